"""`POST /webhook/claims` of the webhook: passes a question about a ResourceClaim on to the leading scheduler.

The API server reaches the webhook by the webhook's own TLS, and only the leader of the scheduler service can answer.
Without an answer the relay refuses the claim's allocation, and the claim's scheduler tries again.

Late answers are common on busy machines, and the API server refuses a write without an answer. So the relay passes on
few questions at a time, of each network and address in turn, in order of arrival. Then the first ones get their answers
in time. Half of all room is for addresses whose questions made the leader reserve devices lately, as API servers' do. A
stranger with hundreds of addresses, who asks about claims that do not exist, fills the other half alone. The relay drops
questions that the API server no longer waits for, and reports to the leader the questions whose answers did not arrive.
"""

import asyncio
import contextlib
from collections import Counter, OrderedDict
from dataclasses import dataclass, field, replace
from typing import Annotated, Final

import aiohttp
import msgspec
from aiohttp import web

from partage.model.errors import InvalidDocument
from partage.serving.guarded import at_end_of
from partage.serving.limits import Limits, json_response, read_body
from partage.serving.turns import TooMany, Turns, counted
from partage.webhook.review import LARGEST, LONGEST_UID, RESERVED, Verdict, encode_verdict
from partage.wire.documents import typed

_SECONDS: Final = 4.5
"""Seconds for a question's turn and its answer; the API server waits five."""
_LARGEST: Final = 64 * 2**10
"""Most bytes of an answer, which has a sentence and a uid."""
_SHOWN: Final = 256
_JSON: Final = "application/json"
_TAKING_BACK: Final = 30.0
"""Seconds to report to the leader that a question is over; the leader may reserve cards for it for a minute."""
_AT_ONCE: Final = 64
"""Questions that are passed on at a time. The leader waits for news of their claims, and further questions wait for
their turn."""
_WAITING: Final = 1024
"""Questions that wait for their turn; when there are more, the network with most of them loses one."""
_HELD: Final = 64 * 2**20
"""Bytes of all questions in memory. A question about a usual claim has five thousand."""
_LATELY: Final = 600.0
"""Seconds for which an address has room of its own after a question by which devices were reserved."""
_KNOWN: Final = 1024
"""Such addresses to remember, the latest."""
_TOO_MANY: Final = "too many claims are asked about at once; try again"


class _Question(msgspec.Struct, frozen=True):
    """All that is read of a question here: as values, a stranger's take 26 times their text."""

    uid: Annotated[str, msgspec.Meta(max_length=LONGEST_UID)]


class _Review(msgspec.Struct, frozen=True):
    request: _Question


@dataclass(slots=True)
class _Room:
    """The room of half of all questions, an address having half of it; `held`: bytes in memory, by address."""

    turns: Turns = field(
        default_factory=lambda: Turns(max(1, _AT_ONCE // 2), _WAITING // 2, _WAITING // 2)
    )
    held: Counter[str] = field(default_factory=Counter)

    def takes(self, asker: str, size: int) -> bool:
        """Whether there is memory for a question."""
        most = _HELD // 2
        return self.held[asker] + size <= most // 2 and self.held.total() + size <= most


class _Known:
    """The addresses whose questions made the leader reserve devices lately."""

    def __init__(self) -> None:
        self._until: OrderedDict[str, float] = OrderedDict()

    def __contains__(self, asker: str) -> bool:
        return self._until.get(asker, 0.0) > asyncio.get_running_loop().time()

    def add(self, asker: str) -> None:
        """Remember an address for a while."""
        self._until[asker] = asyncio.get_running_loop().time() + _LATELY
        self._until.move_to_end(asker)
        if len(self._until) > _KNOWN:
            self._until.popitem(last=False)


def relay_route(url: str, limits: Limits) -> web.RouteDef:
    """The route; `url` is of the scheduler service's leader, without a trailing slash."""
    few = replace(limits, body=min(LARGEST, limits.body))
    # Any client may reach the port, and the leader waits a while for claims that it does not know.
    known, rooms = _Known(), {True: _Room(), False: _Room()}
    taken_back: set[asyncio.Task[None]] = set()

    async def handler(request: web.Request) -> web.Response:
        asker = request.remote or ""
        body = await read_body(request, few)
        try:
            question = typed(body, _Review, "AdmissionReview").request.uid
        except InvalidDocument as error:
            return json_response({"message": str(error)}, 400)
        size, room = len(body), rooms[asker in known]
        if not room.takes(asker, size):
            return _refused(question, _TOO_MANY)
        passed_on = False
        try:
            with counted(room.held, asker, size):
                async with asyncio.timeout(_SECONDS) as limit:
                    with at_end_of(request, lambda: limit.reschedule(0.0)):
                        async with room.turns.turn(asker):
                            passed_on = True
                            answer = await _passed_on(question, f"{url}/webhook/claims", body)
            if request.transport is None:
                raise ConnectionResetError  # as if the connection had ended before the answer
            if RESERVED in answer.headers:
                known.add(asker)
            return answer  # noqa: TRY300 # it belongs to the check above
        except TooMany:
            return _refused(question, _TOO_MANY)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            if passed_on and len(taken_back) < _WAITING:
                task = asyncio.create_task(
                    _taken_back(f"{url}/webhook/claims/withdrawn", question)
                )
                taken_back.add(task)
                task.add_done_callback(taken_back.discard)
            why = str(error) or type(error).__name__
            return _refused(question, f"the scheduler service does not answer: {why}")

    return web.post("/webhook/claims", handler)


async def _passed_on(question: str, url: str, body: bytes) -> web.Response:
    """The leader's answer, by a connection of its own, so that no question goes to a former leader."""
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
                return _refused(question, "the scheduler service's answer has no end")
        if answer.status == 200:
            told = {RESERVED: "true"} if RESERVED in answer.headers else {}
            return json_response(bytes(found), headers=told)
        shown = found[:_SHOWN].decode(errors="replace")
        return _refused(question, f"the scheduler service answers {answer.status}: {shown}")


async def _taken_back(url: str, question: str) -> None:
    """Report to the leader that the API server did not get its answer, if there was one."""
    with contextlib.suppress(aiohttp.ClientError, TimeoutError, OSError):
        async with (
            asyncio.timeout(_TAKING_BACK),
            aiohttp.ClientSession() as http,
            http.post(url, json={"uid": question}, allow_redirects=False),
        ):
            pass


def _refused(question: str, why: str) -> web.Response:
    """A refusal with a reason; an error of the webhook would show people less."""
    verdict = Verdict(question, allowed=False, message=why, code=503)
    return json_response(encode_verdict(verdict))
