"""Limits of an HTTP service: the size of a body, and the time of a client.

A body that is too large is refused with 413 before it is in memory, and one that arrives too
slowly with 408. No input of a client is answered with a 5xx: handlers turn bad input into the
documented answer. Any other exception is a bug, which is logged and answered with 500.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec
from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

_LOG = logging.getLogger("partage.serving")


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one service.

    Attributes:
        body: the largest body, bytes.
        head: the largest request head, bytes.
        patience: seconds that a client may take to send one request.
        idle: seconds that a connection may stay open between requests.
        connections: connections of each port at a time.
        per_address: those of one client address at a time. Beyond either limit, a connection that
            waits for its client is closed.
        held: bytes of incomplete requests and unread answers, over all connections of a port. Beyond
            it, the address with the most bytes loses a connection.
    """

    body: int = 10 * 2**20
    head: int = 64 * 2**10
    patience: float = 15.0
    idle: float = 90.0
    connections: int = 1024
    per_address: int = 768
    held: int = 64 * 2**20


def json_response(
    data: object, status: int = 200, headers: Mapping[str, str] | None = None
) -> web.Response:
    """A JSON answer; bytes are JSON already."""
    body = data if isinstance(data, bytes) else msgspec.json.encode(data)
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


async def read_body(request: web.BaseRequest, limits: Limits) -> bytes:
    """The request's body.

    Raises `web.HTTPRequestEntityTooLarge`: it is larger than the limit; `web.HTTPUnsupportedMediaType`: it is
    compressed; `web.HTTPRequestTimeout`: it did not arrive in time; `web.HTTPBadRequest`: the connection broke off, or
    the encoding is not the declared one.
    """
    if request.content_length is not None and request.content_length > limits.body:
        raise web.HTTPRequestEntityTooLarge(limits.body, request.content_length)
    if (coding := request.headers.get("Content-Encoding", "identity")) != "identity":
        raise web.HTTPUnsupportedMediaType(
            text=f"Content-Encoding: {coding[:32]} is not read here; send the body as it is"
        )
    chunks: list[bytes] = []
    size = 0
    transport = request.transport
    protocol = transport.get_protocol() if transport is not None else None
    holds: Callable[[int], None] = getattr(protocol, "holds", lambda _size: None)  # if it counts
    try:
        async with asyncio.timeout(limits.patience):
            async for chunk in request.content.iter_any():
                size += len(chunk)
                if size > limits.body:
                    raise web.HTTPRequestEntityTooLarge(limits.body, size)  # noqa: TRY301 # seen here only
                chunks.append(chunk)
                holds(size)
    except TimeoutError:
        raise web.HTTPRequestTimeout(text="the body did not come in time") from None
    except web.HTTPException:
        raise
    except Exception as error:  # the client causes all errors of a broken stream
        raise web.HTTPBadRequest(text=f"the body cannot be read: {error}") from error
    finally:
        holds(0)
    return b"".join(chunks)


def has_version(request: web.Request, tag: str) -> bool:
    """Whether the caller has the page with this ETag already.

    Parsing the header takes a stranger's 15,000 tags as many objects; no other tag contains ours.
    """
    return f'"{tag}"' in request.headers.get("If-None-Match", "")


def guard() -> Middleware:
    """A middleware that answers every error in JSON, and logs unexpected ones."""

    @web.middleware
    async def answer(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await handler(request)
        except web.HTTPException as error:
            if error.status < 400:
                raise
            response = json_response({"message": error.text or error.reason}, error.status)
            for name in ("Allow", "Retry-After", "WWW-Authenticate"):
                if name in error.headers:
                    response.headers[name] = error.headers[name]
            # The router keeps this exception in the request, which its frames keep: a cycle for each wrong path.
            error.__traceback__ = None
            return response
        except ConnectionResetError:  # the caller has gone in the middle of the answer
            _LOG.debug("%s %s: the client closed the connection", request.method, request.path)
            return json_response({"message": "the client closed the connection"}, 400)
        except Exception:  # noqa: BLE001 # the last line of defence; logged with its traceback
            _LOG.exception("%s %s failed", request.method, request.path)
            return json_response({"message": "internal error; see the log"}, 500)

    return answer
