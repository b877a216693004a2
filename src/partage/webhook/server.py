"""The webhook's routes, for an application of its own or beside the scheduler's.

A body that is no AdmissionReview is answered with 400 and a sentence; everything else with a
review. The settings are asked for at each call, because they change while the service runs.
"""

from collections.abc import Callable, Iterable
from typing import Final

from aiohttp import web

from partage.model.errors import InvalidDocument
from partage.serving.limits import Limits, guard, json_response, read_body
from partage.tracing.tracer import NO_TRACES, Tracer
from partage.webhook.review import decode_review, encode_verdict
from partage.webhook.settings import Admission
from partage.webhook.tracing import Decide, mutating, validating
from partage.wire.context import Context

__all__ = ["make_app", "review_routes"]

_JSON: Final = "application/json"


def review_routes(
    context: Callable[[], Context],
    admission: Callable[[], Admission] = Admission,
    limits: Limits | None = None,
    tracer: Tracer = NO_TRACES,
) -> list[web.RouteDef]:
    """`POST /webhook/mutate` and `POST /webhook/validate`.

    Args:
        context: what pods are read against now.
        admission: the switches that are in force now.
        limits: of requests.
        tracer: is told of pods that ask for devices.
    """
    bounds = limits or Limits()

    def answering(decide: Decide) -> Callable[[web.Request], object]:
        async def handler(request: web.Request) -> web.Response:
            body = await read_body(request, bounds)
            try:
                review = decode_review(body)
            except InvalidDocument as error:
                return json_response({"message": str(error)}, 400)
            verdict = decide(review, context(), admission())
            return web.Response(body=encode_verdict(verdict), content_type=_JSON)

        return handler

    return [
        web.post("/webhook/mutate", answering(mutating(tracer))),  # type: ignore[arg-type]  # aiohttp's alias
        web.post("/webhook/validate", answering(validating(tracer))),  # type: ignore[arg-type]  # same
    ]


def make_app(
    context: Callable[[], Context],
    admission: Callable[[], Admission] = Admission,
    limits: Limits | None = None,
    routes: Iterable[web.RouteDef] = (),
    tracer: Tracer = NO_TRACES,
) -> web.Application:
    """The webhook as an application of its own, with its probes and further routes."""

    async def healthy(_request: web.Request) -> web.Response:
        return web.Response(text="ok")

    app = web.Application(middlewares=[guard()], client_max_size=(limits or Limits()).body)
    app.add_routes(review_routes(context, admission, limits, tracer))
    app.add_routes([web.get("/healthz", healthy), web.get("/readyz", healthy), *routes])
    return app
