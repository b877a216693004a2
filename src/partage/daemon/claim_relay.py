"""`POST /webhook/claims` of the webhook: passes a question about a ResourceClaim on to the scheduler that leads.

The API server reaches the webhook by TLS that the webhook looks after, and only the leader of the scheduler service can
answer. Where it does not, the claim's allocation is refused, and its scheduler tries again.
"""

import asyncio
from typing import Final

import aiohttp
from aiohttp import web

from partage.model.errors import InvalidDocument
from partage.serving.limits import Limits, json_response, read_body
from partage.webhook.review import Review, Verdict, decode_review, encode_verdict

_SECONDS: Final = 4.5
"""For an answer, and for a question's turn; the API server waits five."""
_LARGEST: Final = 64 * 2**10
"""Bytes of an answer; a sentence and a uid."""
_SHOWN: Final = 256
_JSON: Final = "application/json"
_AT_ONCE: Final = 256
"""Questions that are passed on at a time: the leader waits for news of their claims. Further ones wait for their turn."""
_WAITING: Final = 1024
"""Questions that are here at a time; further ones are sent away."""
_HELD: Final = 64 * 2**20
"""Bytes of these together. A question of a usual claim has five thousand."""


def relay_route(url: str, limits: Limits) -> web.RouteDef:
    """The route; `url` is of the scheduler service's leader, without a trailing slash."""
    there = held = 0
    turns = asyncio.Semaphore(_AT_ONCE)

    async def handler(request: web.Request) -> web.Response:
        nonlocal there, held
        body = await read_body(request, limits)
        try:
            asked = decode_review(body)
        except InvalidDocument as error:
            return json_response({"message": str(error)}, 400)
        if there >= _WAITING or held + len(body) > _HELD:
            return _refused(asked, "too many claims are asked about at once; try again")
        there += 1
        held += len(body)
        try:
            async with asyncio.timeout(_SECONDS), turns:
                return await _passed_on(asked, f"{url}/webhook/claims", body)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = str(error) or type(error).__name__
            return _refused(asked, f"the scheduler service does not answer: {why}")
        finally:
            there -= 1
            held -= len(body)

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


def _refused(asked: Review, why: str) -> web.Response:
    """A refusal that tells people more than an error of the webhook would."""
    verdict = Verdict(asked.uid, allowed=False, message=why, code=503)
    return web.Response(body=encode_verdict(verdict), content_type=_JSON)
