"""`POST /webhook/claims`: the API server asks whether a claim's allocation may be stored, and the leader reserves it.

The route reserves cards, so it is as privileged as the verbs and asks for the same credential. An instance that does not lead
at this very moment answers 503, which the API server takes as a webhook that failed.
"""

from collections.abc import Awaitable, Callable
from typing import Final

import msgspec
from aiohttp import web

from partage.daemon.watched import CLAIMS, RESOURCE_CLAIMS, LiveClaim, as_document
from partage.extender.service import SchedulerService
from partage.kube.client import Client
from partage.kube.errors import NotFound
from partage.model.errors import InvalidDocument
from partage.serving.access import Access
from partage.serving.limits import Limits, json_response, read_body
from partage.webhook.review import Review, Verdict, decode_review, encode_verdict
from partage.wire import shapes
from partage.wire.documents import Document, explain

__all__ = ["claim_route", "reader"]

_STATUS: Final = "resourceclaims.resource.k8s.io/status"
_JSON: Final = "application/json"


def reader(client: Client) -> Callable[[str, str], Awaitable[Document | None]]:
    """Reads a claim of the API server, by namespace and name."""

    async def read(namespace: str, name: str) -> Document | None:
        try:
            found = await client.get(RESOURCE_CLAIMS, name, namespace=namespace, into=LiveClaim)
        except NotFound:
            return None
        return as_document(CLAIMS.kind, found)

    return read


def claim_route(
    service: SchedulerService, may_reserve: Callable[[], bool], access: Access, limits: Limits
) -> web.RouteDef:
    """The route.

    Args:
        service: with the books.
        may_reserve: whether this instance leads at this very moment.
        access: who may ask.
        limits: of requests.
    """

    async def handler(request: web.Request) -> web.Response:
        certificate = request.transport and request.transport.get_extra_info("peercert")
        if not access.allows(request.headers.get("Authorization", ""), certificate):
            raise web.HTTPUnauthorized(headers={"WWW-Authenticate": "Bearer"})
        body = await read_body(request, limits)
        if service.closed or not may_reserve():
            message = service.closed or "the instance is not leader"
            response = json_response({"message": message}, 503)
            response.force_close()  # a connection that is kept would go on asking this instance
            return response
        try:
            review = decode_review(body)
        except InvalidDocument as error:
            return json_response({"message": str(error)}, 400)
        return web.Response(body=encode_verdict(_verdict(service, review)), content_type=_JSON)

    return web.post("/webhook/claims", handler)


def _verdict(service: SchedulerService, review: Review) -> Verdict:
    if review.resource != _STATUS or review.operation != "UPDATE" or review.object is None:
        return Verdict(review.uid)
    try:
        shape = msgspec.convert(review.object, shapes.ResourceClaim)
        before = msgspec.convert(review.before or {}, shapes.ResourceClaim)
    except (msgspec.ValidationError, RecursionError) as error:
        return Verdict(review.uid, allowed=False, message=f"ResourceClaim: {explain(error)}")
    if (before.status or {}).get("allocation") is not None:
        return Verdict(review.uid)  # it cannot be changed, only taken away
    document = Document(CLAIMS.kind, "admission", 1, shape)
    refusal = service.review_claim(document, dry_run=review.dry_run)
    return Verdict(review.uid, allowed=not refusal, message=refusal)
