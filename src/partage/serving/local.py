"""Checks callers of a port that needs no credentials, since it listens on this machine alone.

A web page in this machine's browser may send requests there too. Two headers show it. Browsers send the page's origin
with every request that may change something. They send the host name, which is the page's own if that points here.
"""

from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware


def is_here(host: str) -> bool:
    """Whether a host name or address is this machine's alone, so that no other machine can connect."""
    if host.rstrip(".").lower() == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def stranger(headers: Mapping[str, str]) -> str:
    """The reason to refuse a request with these `headers`, in a sentence; a caller without `Host` is no browser."""
    host, origin = headers.get("Host"), headers.get("Origin")
    if host is not None and not _here(f"//{host}"):
        return f"Host {host[:64]!r} is not this machine; use localhost or 127.0.0.1"
    if origin is not None and origin.lower() != f"http://{host}".lower():
        return f"pages of {origin[:64]!r} may not send requests here"
    return ""


def no_stranger() -> Middleware:
    """A middleware that refuses such requests with 403."""

    @web.middleware
    async def judge(request: web.Request, handler: Handler) -> web.StreamResponse:
        why = stranger(request.headers)
        if why:
            raise web.HTTPForbidden(text=why)
        return await handler(request)

    return judge


def _here(url: str) -> bool:
    try:
        parts = urlsplit(url)
        return is_here(parts.hostname or "") and parts.port != 0 and parts.username is None
    except ValueError:
        return False
