"""The HTTP methods on resources: the action of each, and the form of its answer."""

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, cast

from aiohttp import web

from partage.apiserver import paths, podparts, scaling
from partage.apiserver.calls import Call, Cluster, accept, must_get
from partage.apiserver.creating import create
from partage.apiserver.decoding import parse
from partage.apiserver.deleting import DeleteOptions, delete
from partage.apiserver.exchange import Exchange
from partage.apiserver.listing import listed
from partage.apiserver.podparts import LogProvider
from partage.apiserver.status import (
    ApiError,
    bad_request,
    invalid_options,
    method_not_allowed,
    success,
    too_new,
    unsupported_media,
)
from partage.apiserver.storage import Record
from partage.apiserver.streams import Watch, watch
from partage.apiserver.tables import formed, partial, table
from partage.apiserver.updating import APPLY, JSON_PATCH, PATCHES, patch, update
from partage.wire.field_types import catalogue

_STREAMED: Final = ("attach", "exec", "portforward")
_WHOLE: Final = ("status", "resize", "ephemeralcontainers")
"""Subresources that are read as the whole object."""
_RETURNED: Final = ("pods", "services", "serviceaccounts", "persistentvolumeclaims")
_BINDING: Final = catalogue()["io.k8s.api.core.v1.Binding"]
_EVICTION: Final = catalogue()["io.k8s.api.policy.v1.Eviction"]
_SCALE: Final = catalogue()["io.k8s.api.autoscaling.v1.Scale"]
_LONGEST_WATCH: Final = 3600
_SHORTEST: Final = 1800.0


@dataclass(frozen=True, slots=True)
class Verbs:
    """Answers requests for resources. `closing`: set at the server's end, so that watches end too."""

    cluster: Cluster
    logs: LogProvider
    closing: asyncio.Event
    beat: float = 60.0

    async def serve(self, exchange: Exchange, call: Call, *, watching: bool) -> web.StreamResponse:
        """The answer to one request; `watching` for one of the old `/watch/` paths. Raises `ApiError`."""
        method = exchange.request.method
        if call.kind.verbs == ("create",):
            return await self._virtual(exchange, call)
        if call.sub:
            return await self._part(exchange, call)
        if method == "GET":
            if watching or paths.flag(exchange.query, "watch"):
                return await self._watch(exchange, call)
            if not call.name:
                return self._list(exchange, call)
            self._version(exchange.query)
            return self._one(exchange, call, must_get(self.cluster, call))
        if method == "POST" and not call.name:
            self._placed(call)
            record = await create(
                self.cluster, call, await exchange.document(call.kind.type, call.repeated)
            )
            return self._one(exchange, call, record, code=201)
        if method == "PUT" and call.name:
            return await self._put(exchange, call)
        if method == "PATCH" and call.name:
            return await self._patch(exchange, call)
        if method == "DELETE":
            return await (self._delete if call.name else self._clear)(exchange, call)
        raise method_not_allowed()

    @staticmethod
    def _placed(call: Call) -> None:
        if call.kind.namespaced and not call.namespace:
            raise method_not_allowed()

    def _one(
        self, exchange: Exchange, call: Call, record: Record, *, code: int = 200
    ) -> web.Response:
        include, now = _include(exchange), self.cluster.ambient.now()
        text = formed(call.kind, record, exchange.form, now, include)
        return exchange.text(text, code=code, warnings=call.warnings)

    def _version(self, query: Mapping[str, str]) -> int | None:
        """The version from which a reader wants to read. Raises `ApiError`: 504, there is none so new."""
        version, newest = paths.number(query, "resourceVersion"), self.cluster.store.revision
        if version is not None and version > newest:
            raise too_new(version, newest)
        return version

    def _list(self, exchange: Exchange, call: Call) -> web.Response:
        query, kind, form = exchange.query, call.kind, exchange.form
        token = query.get("continue", "")
        version = self._version(query)
        unlimited = query.get("limit", "").startswith("-")
        if token and version:
            raise bad_request("specifying resource version is not allowed when using continue")
        found = listed(
            self.cluster,
            call,
            paths.selection_of(call, query),
            limit=0 if unlimited else paths.number(query, "limit") or 0,
            token=token,
            exact=version if query.get("resourceVersionMatch") == "Exact" else None,
        )
        head: dict[str, Any] = {"resourceVersion": str(found.revision)}
        if found.token:
            head["continue"] = found.token
        if found.remaining is not None:
            head["remainingItemCount"] = found.remaining
        told = call.warnings
        if form.shape == "table":
            include, now = _include(exchange), self.cluster.ambient.now()
            page = table(
                kind, found.records, now, head=head, include=include, version=form.version
            )
            return exchange.answer(page, warnings=told)
        if form.shape == "partial":
            items = [partial(kind.outward(one.value), form.version) for one in found.records]
            return exchange.answer(
                {
                    "kind": "PartialObjectMetadataList",
                    "apiVersion": f"meta.k8s.io/{form.version}",
                    "metadata": head,
                    "items": items,
                },
                warnings=told,
            )
        return exchange.text(_listed(call, found.records, head), warnings=told)

    async def _watch(self, exchange: Exchange, call: Call) -> web.StreamResponse:
        query = exchange.query
        since = paths.number(query, "resourceVersion")
        initial = paths.flag(query, "sendInitialEvents")
        if initial and query.get("resourceVersionMatch") != "NotOlderThan":
            raise invalid_options(
                "ListOptions",
                "resourceVersionMatch: Forbidden: sendInitialEvents requires setting "
                "resourceVersionMatch to NotOlderThan",
            )
        bookmarks = paths.flag(query, "allowWatchBookmarks")
        seconds = paths.number(query, "timeoutSeconds")
        wanted = Watch(
            selection=paths.selection_of(call, query),
            form=exchange.form,
            since=None if initial or not since else since,
            initial_end=initial and bookmarks,
            bookmarks=bookmarks,
            seconds=min(seconds, _LONGEST_WATCH) if seconds else _SHORTEST,
            beat=self.beat,
            include=_include(exchange),
        )
        lines = watch(self.cluster, call, wanted, self.closing)
        return await _pour(exchange, lines, "application/json")

    async def _put(self, exchange: Exchange, call: Call) -> web.Response:
        body = await exchange.document(call.kind.type, call.repeated)
        return self._one(exchange, call, await update(self.cluster, call, body))

    async def _patch(self, exchange: Exchange, call: Call) -> web.Response:
        media = _patch_media(exchange)
        if call.force and media != APPLY:
            why = "force: Forbidden: may not be specified for non-apply patch"
            raise invalid_options("PatchOptions", why)
        if media == APPLY and not exchange.query.get("fieldManager"):
            call = replace(call, manager="")
        told: list[str] = []
        try:
            body = parse(await exchange.read(), yaml=media == APPLY, twice=told)
        except ApiError as error:
            if media == APPLY or error.code != 400:
                raise
            raise bad_request(f"error decoding patch: {error.message}") from error
        if media == JSON_PATCH:
            told = [f"json patch {one}" for one in told]
        call.repeated.extend(told)
        record, fresh = await patch(self.cluster, call, media, body)
        return self._one(exchange, call, record, code=201 if fresh else 200)

    async def _options(self, exchange: Exchange, call: Call) -> tuple[DeleteOptions, Call]:
        """The options of a deletion, from the body and the query; and the call, which the body may make a dry run."""
        body = await exchange.optional()
        options = DeleteOptions.read(body)
        grace = paths.number(exchange.query, "gracePeriodSeconds")
        if grace is not None:
            options = replace(options, grace=min(grace, 2**31 - 1))
        policy = exchange.query.get("propagationPolicy")
        if policy:
            options = replace(
                options, policy=DeleteOptions.read({"propagationPolicy": policy}).policy
            )
        dry = bool(body and body.get("dryRun"))
        return options, replace(call, dry_run=call.dry_run or dry)

    async def _delete(self, exchange: Exchange, call: Call) -> web.Response:
        options, call = await self._options(exchange, call)
        record, gone = await delete(self.cluster, call, options)
        if not gone or call.kind.resource in _RETURNED:
            return self._one(exchange, call, record)
        details = {
            "name": record.name,
            **({"group": call.kind.group} if call.kind.group else {}),
            "kind": call.kind.plural,
            "uid": record.uid,
        }
        return exchange.answer(success(details), warnings=call.warnings)

    async def _clear(self, exchange: Exchange, call: Call) -> web.Response:
        self._placed(call)
        options, call = await self._options(exchange, call)
        found = listed(self.cluster, call, paths.selection_of(call, exchange.query))
        for record in found.records:
            try:
                await delete(self.cluster, replace(call, name=record.name), options)
            except ApiError as error:
                if error.code != 404:
                    raise
        head = {"resourceVersion": str(self.cluster.store.revision)}
        return exchange.text(_listed(call, found.records, head))

    async def _virtual(self, exchange: Exchange, call: Call) -> web.Response:
        """Bindings without a pod in their path, and reviews, which allow everything."""
        if exchange.request.method != "POST" or call.name:
            raise method_not_allowed()
        body = await exchange.document(call.kind.type)
        if call.kind.kind == "Binding":
            self._placed(call)
            pods = self.cluster.registry.find("", "v1", "pods")
            answer = await podparts.bind(self.cluster, replace(call, kind=cast("Any", pods)), body)
            return exchange.answer(answer, code=201)
        value = accept(call, body)
        if call.kind.kind == "SelfSubjectReview":
            who = {"username": call.user.name, "groups": list(call.user.groups)}
            return exchange.answer({**value, "status": {"userInfo": who}}, code=201)
        value["status"] = {"allowed": True, "reason": "everything is allowed here"}
        if call.kind.kind == "SelfSubjectRulesReview":
            every = ["*"]
            value["status"] = {
                "resourceRules": [{"verbs": every, "apiGroups": every, "resources": every}],
                "nonResourceRules": [{"verbs": every, "nonResourceURLs": every}],
                "incomplete": False,
            }
        return exchange.answer(value, code=201)

    async def _part(self, exchange: Exchange, call: Call) -> web.StreamResponse:
        method = exchange.request.method
        part = call.sub
        if part == "token":
            must_get(self.cluster, call)
            raise bad_request(
                "this API server issues no tokens: clients do without, and those that it knows were set at its start"
            )
        if part in _WHOLE and method == "GET":
            return self._one(exchange, call, must_get(self.cluster, call))
        if part in _STREAMED or part in _WHOLE[1:]:
            pod = must_get(self.cluster, call)
            if part in _STREAMED and not pod.value["spec"].get("nodeName"):
                raise bad_request(f"pod {call.name} does not have a host assigned")
            raise bad_request(
                f"pods/{part} is not supported by this API server: its pods are simulated and "
                "run no processes"
            )
        if part == "log" and method == "GET":
            return await self._log(exchange, call)
        if part in ("binding", "eviction") and method == "POST":
            act: Callable[[Cluster, Call, Any], Awaitable[dict[str, Any]]] = (
                podparts.bind if part == "binding" else podparts.evict
            )
            of = _BINDING if part == "binding" else _EVICTION
            answer = await act(self.cluster, call, await exchange.document(of))
            return exchange.answer(answer, code=201, warnings=call.warnings)
        if part == "scale":
            return await self._scale(exchange, call)
        if part in ("status", "finalize") and method == "PUT":
            return await self._put(exchange, call)
        if part == "status" and method == "PATCH":
            return await self._patch(exchange, call)
        raise method_not_allowed()

    async def _scale(self, exchange: Exchange, call: Call) -> web.Response:
        method = exchange.request.method
        if method == "GET":
            found = scaling.scale_of(call.kind, must_get(self.cluster, call))
        elif method == "PUT":
            found = await scaling.set_scale(self.cluster, call, await exchange.document(_SCALE))
        elif method == "PATCH":
            media = _patch_media(exchange)
            body = parse(await exchange.read(), yaml=media == APPLY)
            found = await scaling.patch_scale(self.cluster, call, media, body)
        else:
            raise method_not_allowed()
        return exchange.answer(found, warnings=call.warnings)

    async def _log(self, exchange: Exchange, call: Call) -> web.StreamResponse:
        answer = self.logs(podparts.log(self.cluster, call, exchange.query))
        if inspect.isawaitable(answer):
            answer = await answer
        if isinstance(answer, str):
            return web.Response(text=answer, content_type="text/plain")
        return await _pour(exchange, answer, "text/plain")


def _include(exchange: Exchange) -> str:
    """The content of each row's object in a table."""
    return exchange.query.get("includeObject", "Metadata")


def _patch_media(exchange: Exchange) -> str:
    if exchange.media not in PATCHES:
        raise unsupported_media(", ".join(PATCHES))
    return exchange.media


def _listed(call: Call, records: list[Record], head: dict[str, Any]) -> bytes:
    """A list, assembled from its objects' existing texts."""
    kind = call.kind
    meta = ",".join(
        f'"{key}":{value}' if isinstance(value, int) else f'"{key}":"{value}"'
        for key, value in head.items()
    )
    texts = [record.text(kind.api_version, kind.outward) for record in records]
    return b"".join(
        (
            f'{{"kind":"{kind.kind}List","apiVersion":"{kind.api_version}",'
            f'"metadata":{{{meta}}},"items":['.encode(),
            b",".join(texts),
            b"]}",
        )
    )


async def _pour(
    exchange: Exchange, pieces: AsyncIterator[bytes], media: str
) -> web.StreamResponse:
    """Writes pieces as they arrive; the answer begins after the first."""
    try:
        first = await anext(pieces, b"")
        response = await exchange.stream(media)
        if first:
            await response.write(first)
        async for piece in pieces:
            await response.write(piece)
        await response.write_eof()
    except ConnectionError:
        return web.Response()
    finally:
        close = getattr(pieces, "aclose", None)
        if close is not None:
            await close()
    return response
