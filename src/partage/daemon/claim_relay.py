"""`POST /webhook/claims` of the webhook: passes a question about a ResourceClaim on to the scheduler that leads.

The API server reaches the webhook by TLS that the webhook looks after, and only the leader of the scheduler service can
answer. Where it does not, the claim's allocation is refused, and its scheduler tries again.

Late answers are common where processors are short, and the API server refuses a write without an answer. So the relay
passes on few questions at a time, from each address in turn, in order of arrival: the first have their answers in time.
It drops questions that the API server no longer waits for, and reports to the leader the questions whose answers did
not arrive.
"""

import asyncio
import contextlib
from collections import Counter
from typing import Final

import aiohttp
from aiohttp import web

from partage.model.errors import InvalidDocument
from partage.serving.guarded import at_end_of
from partage.serving.limits import Limits, json_response, read_body
from partage.serving.turns import TooMany, Turns
from partage.webhook.review import Review, Verdict, decode_review, encode_verdict

_SECONDS: Final = 4.5
"""For an answer, and for a question's turn; the API server waits five."""
_LARGEST: Final = 64 * 2**10
"""Bytes of an answer; a sentence and a uid."""
_SHOWN: Final = 256
_JSON: Final = "application/json"
_TAKING_BACK: Final = 30.0
"""Seconds to tell the leader of a question that is over, for which cards may be kept for a minute."""
_AT_ONCE: Final = 64
"""Questions that are passed on at a time, half of them of one address: the leader waits for news of their claims. Further
ones wait for their turn."""
_WAITING: Final = 1024
"""Questions that wait for that; further ones, of the network with most, are sent away."""
_HELD: Final = 64 * 2**20
"""Bytes of all that are here, half of them of one address. A question of a usual claim has five thousand."""
_TOO_MANY: Final = "too many claims are asked about at once; try again"


def relay_route(url: str, limits: Limits) -> web.RouteDef:
    """The route; `url` is of the scheduler service's leader, without a trailing slash."""
    held = Counter[str]()
    # Anybody may reach the port, and the leader waits a while for claims that it does not know.
    turns = Turns(_AT_ONCE, _WAITING, _WAITING)
    taken_back: set[asyncio.Task[None]] = set()

    async def handler(request: web.Request) -> web.Response:
        asker = request.remote or ""
        body = await read_body(request, limits)
        try:
            asked = decode_review(body)
        except InvalidDocument as error:
            return json_response({"message": str(error)}, 400)
        size = len(body)
        if held[asker] + size > _HELD // 2 or held.total() + size > _HELD:
            return _refused(asked, _TOO_MANY)
        held[asker] += size
        passed_on = False
        try:
            async with asyncio.timeout(_SECONDS) as limit:
                with at_end_of(request, lambda: limit.reschedule(0.0)):
                    async with turns.turn(asker):
                        passed_on = True
                        answer = await _passed_on(asked, f"{url}/webhook/claims", body)
            if request.transport is None:
                raise ConnectionResetError  # as where it ends meanwhile
            return answer  # noqa: TRY300 # the same
        except TooMany:
            return _refused(asked, _TOO_MANY)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if passed_on and len(taken_back) < _WAITING:
                task = asyncio.create_task(_taken_back(f"{url}/webhook/claims/withdrawn", asked))
                taken_back.add(task)
                task.add_done_callback(taken_back.discard)
            why = str(error) or type(error).__name__
            return _refused(asked, f"the scheduler service does not answer: {why}")
        finally:
            held[asker] -= size
            if not held[asker]:
                del held[asker]

    return web.post("/webhook/claims", handler)


async def _passed_on(asked: Review, url: str, body: bytes) -> web.Response:
    """The leader's answer; a connection for each question, so that none goes on asking a leader of before."""
    async with (
        aiohttp.ClientSession() as http,
        http.post(
            url, data=body, headers={"Content-Type": _JSON}, allow_redirects=False
        ) as answer,
    ):
        found = bytearray()
        async for part in answer.content.iter_chunked(_LARGEST):
            found += part
            if len(found) > _LARGEST:
                return _refused(asked, "the scheduler service's answer has no end")
        if answer.status == 200:
            return web.Response(body=bytes(found), content_type=_JSON)
        told = found[:_SHOWN].decode(errors="replace")
        return _refused(asked, f"the scheduler service answers {answer.status}: {told}")


async def _taken_back(url: str, asked: Review) -> None:
    """Tell the leader that its answer, if there is one, was not the API server's."""
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
        async with (
            asyncio.timeout(_TAKING_BACK),
            aiohttp.ClientSession() as http,
            http.post(url, json={"uid": asked.uid}, allow_redirects=False),
        ):
            pass


def _refused(asked: Review, why: str) -> web.Response:
    """A refusal that tells people more than an error of the webhook would."""
    verdict = Verdict(asked.uid, allowed=False, message=why, code=503)
    return web.Response(body=encode_verdict(verdict), content_type=_JSON)
