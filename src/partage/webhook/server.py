"""The webhook's routes, for an application of its own or beside the scheduler's.

The server answers a body that is no AdmissionReview with 400 and a sentence, and all others with a review. It asks
for the settings at each call, because they change while the service runs.

It decides small reviews at once. It decides a large one in a thread, one at a time, so that no pod delays other
reviews, the probes and other work on the same loop. Callers have turns by address, because the addresses of API
servers are not known and strangers may ask too. The large reviews of one address have turns by namespace, because an
API server asks for all tenants.
"""

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Final

from aiohttp import web

from partage.model.errors import InvalidDocument
from partage.serving.limits import Limits, guard, json_response, read_body
from partage.serving.turns import TooMany, Turns, at_work
from partage.tracing.tracer import NO_TRACES, Tracer
from partage.webhook.claiming import translate
from partage.webhook.review import LARGEST, decode_review, encode_verdict, namespace_of
from partage.webhook.settings import Admission
from partage.webhook.tracing import Decide, mutating, validating
from partage.wire.context import Context

_LARGE: Final = 64 * 2**10
"""Least bytes of a review that is decided in a thread."""
_HELD: Final = 48 * 2**20
"""Bytes of large reviews at a time. Beyond it, one of the address and namespace with most of them is rejected."""


def review_routes(
    context: Callable[[], Context],
    admission: Callable[[], Admission] = Admission,
    limits: Limits | None = None,
    tracer: Tracer = NO_TRACES,
) -> list[web.RouteDef]:
    """`POST /webhook/mutate`, `/webhook/translate`, `/webhook/validate`, by the present `context` and `admission`."""
    given = limits or Limits()
    bounds = replace(given, body=min(LARGEST, given.body))
    # A thread decides them one after another.
    waiting = _HELD - bounds.body
    desk = Turns(1, waiting, waiting)

    def answering(decide: Decide) -> Callable[[web.Request], object]:
        async def handler(request: web.Request) -> web.Response:
            body = await read_body(request, bounds)
            answer = partial(_answer, decide, body, context(), admission())
            try:
                if len(body) < _LARGE:
                    async with at_work(request):
                        found = answer()
                else:
                    # It is read at once: no body waits uncounted.
                    asker, namespace = request.remote or "", namespace_of(body)
                    async with desk.turn(asker, namespace, len(body)):
                        if request.transport is None or request.transport.is_closing():
                            raise ConnectionResetError  # its client no longer waits
                        found = await asyncio.to_thread(answer)
            except InvalidDocument as error:
                return json_response({"message": str(error)}, 400)
            except TooMany as error:
                raise web.HTTPServiceUnavailable(
                    text="too many large reviews at once; try again"
                ) from error
            return json_response(found)

        return handler

    return [
        web.post("/webhook/mutate", answering(mutating(tracer))),  # type: ignore[arg-type]  # aiohttp's alias
        web.post("/webhook/translate", answering(translate)),  # type: ignore[arg-type]  # same
        web.post("/webhook/validate", answering(validating(tracer))),  # type: ignore[arg-type]  # same
    ]


def _answer(decide: Decide, body: bytes, context: Context, admission: Admission) -> bytes:
    """The answer to a review, from values alone; any thread may call it. Raises `InvalidDocument`."""
    try:
        return encode_verdict(decide(decode_review(body), context, admission))
    except RecursionError:  # a review that is just flat enough to be decoded
        raise InvalidDocument("AdmissionReview: nested too deeply") from None


def make_app(
    context: Callable[[], Context],
    admission: Callable[[], Admission] = Admission,
    limits: Limits | None = None,
    routes: Iterable[web.RouteDef] = (),
    tracer: Tracer = NO_TRACES,
) -> web.Application:
    """The webhook as an application of its own, with its probes and other routes."""
    app = web.Application(middlewares=[guard()], client_max_size=(limits or Limits()).body)
    app.add_routes(review_routes(context, admission, limits, tracer))
    app.add_routes([*probe_routes(), *routes])
    return app


def probe_routes() -> list[web.RouteDef]:
    """Routes of the kubelet's two probes; a replica that answers also serves."""

    async def healthy(_request: web.Request) -> web.Response:
        return web.Response(text="ok")

    return [web.get("/healthz", healthy), web.get("/readyz", healthy)]
