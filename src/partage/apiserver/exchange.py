"""One HTTP request and the ways to answer it."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec
import yaml
from aiohttp import web

from partage.apiserver import protobuf
from partage.apiserver.admission import User
from partage.apiserver.decoding import parse
from partage.apiserver.negotiation import JSON, Form, form_of
from partage.apiserver.status import ApiError, bad_request, too_large, unsupported_media
from partage.serving.limits import Limits, read_body
from partage.serving.turns import Pace
from partage.wire.field_types import META, Type, catalogue
from partage.wire.protobuf import Malformed

LARGEST_BODY: Final = 3 * 2**20
"""Most bytes of a request's body."""

_YAML: Final = ("application/yaml", "application/x-yaml", "text/yaml")
_DELETE_OPTIONS: Final = catalogue()[f"{META}DeleteOptions"]
_WARNINGS: Final = 4096
_A_WARNING: Final = 256
"""Characters of each warning if all of one answer together are too long."""
_encode: Final = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class Exchange:
    """A request, with its parsed parts.

    Attributes:
        parts: the path's segments, unquoted.
        pace: the queue in which the request waits for its turn.
        patience: seconds for the arrival of the body.
    """

    request: web.BaseRequest
    parts: tuple[str, ...]
    user: User
    pace: Pace
    patience: float = 15.0

    @property
    def query(self) -> Mapping[str, str]:
        """The query's parameters; the first of duplicates."""
        return self.request.query

    @property
    def form(self) -> Form:
        """The accepted form of answer. Raises `ApiError`."""
        return form_of(self.request.headers.get("Accept", ""))

    @property
    def media(self) -> str:
        """The body's media type, without parameters."""
        return self.request.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    async def read(self) -> bytes:
        """The body, at the request's turn. Raises `ApiError`: 400, 408, 413, 415."""
        try:
            body = await read_body(self.request, Limits(LARGEST_BODY, patience=self.patience))
        except web.HTTPRequestEntityTooLarge:
            raise too_large(LARGEST_BODY) from None
        except web.HTTPException as error:
            reason = {408: "Timeout", 415: "UnsupportedMediaType"}.get(error.status, "BadRequest")
            raise ApiError(error.status, reason, error.text or error.reason) from None
        await self.pace.turn()
        return body

    async def document(self, type_: Type | None = None, twice: list[str] | None = None) -> Any:
        """The body as a plain value, from JSON, YAML or, for built-in kinds, protobuf.

        `type_`: the type of a protobuf body. Raises `ApiError`: 400, 413, 415.
        """
        media = self.media
        if media == protobuf.MEDIA and type_ is not None and type_.numbers:
            return _message(await self.read(), type_)
        if media not in ("", JSON, *_YAML):
            raise unsupported_media(f"{JSON}, application/yaml")
        return parse(await self.read(), yaml=media != JSON, twice=twice)

    async def optional(self) -> Any:
        """The body as a plain value, None without one. Raises `ApiError`: 400, 413."""
        body = await self.read()
        if body and self.media == protobuf.MEDIA:
            return _message(body, _DELETE_OPTIONS)
        return parse(body, yaml=self.media != JSON) if body else None

    def answer(
        self, value: Any, *, code: int = 200, warnings: list[str] | None = None, media: str = JSON
    ) -> web.Response:
        """An answer with a document."""
        return self.text(_encode(value), code=code, warnings=warnings, media=media)

    def text(
        self, text: bytes, *, code: int = 200, warnings: list[str] | None = None, media: str = JSON
    ) -> web.Response:
        """An answer with a JSON document, indented on request."""
        accept = self.request.headers.get("Accept", "")
        if media == JSON and accept.startswith(_YAML):
            media = _YAML[0]
            text = yaml.safe_dump(msgspec.json.decode(text), sort_keys=False).encode()
        elif media == JSON and self._readable:
            text = msgspec.json.format(text, indent=2) + b"\n"
        response = web.Response(body=text, status=code, headers={"Content-Type": media})
        for warning in _bounded(dict.fromkeys(warnings or ())):
            quoted = warning.replace("\\", "\\\\").replace('"', '\\"')
            clean = "".join(c if c.isprintable() and c.isascii() else "?" for c in quoted)
            response.headers.add("Warning", f'299 - "{clean}"')
        return response

    @property
    def _readable(self) -> bool:
        wanted = self.query.get("pretty")
        if wanted is not None:
            return wanted not in ("false", "0")
        return self.request.headers.get("User-Agent", "").startswith(("curl/", "Wget/"))

    def refusal(self, error: ApiError, warnings: list[str] | None = None) -> web.Response:
        """A refusal."""
        response = self.answer(error.document(), code=error.code, warnings=warnings)
        if error.code == 401:
            response.headers["WWW-Authenticate"] = 'Bearer realm="partage"'
        if error.code == 429:
            seconds = (error.details or {}).get("retryAfterSeconds", 1)
            response.headers["Retry-After"] = str(seconds)
        return response

    async def stream(self, media: str) -> web.StreamResponse:
        """An answer written piece by piece."""
        response = web.StreamResponse(headers={"Content-Type": media, "Cache-Control": "no-cache"})
        response.enable_chunked_encoding()
        await response.prepare(self.request)
        return response


def _message(body: bytes, type_: Type) -> dict[str, Any]:
    try:
        version, kind, raw = protobuf.envelope(body)
        return {"apiVersion": version, "kind": kind, **protobuf.message(raw, type_)}
    except Malformed as error:
        raise bad_request(f"the body is not readable as protobuf: {error}") from error


def _bounded(warnings: Iterable[str]) -> Iterator[str]:
    """Warnings as kube-apiserver sends them: above 4,096 characters together, each is cut to 256."""
    told, left = list(warnings), _WARNINGS
    if sum(map(len, told)) > _WARNINGS:
        told = [warning[:_A_WARNING] for warning in told]
    for warning in told:
        left -= len(warning)
        if left < 0:
            return
        yield warning
