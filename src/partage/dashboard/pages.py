"""The page itself: a few files of the package, served unchanged, with a library in `vendor`.

The browser asks no other host, because the content security policy forbids it. The page only reads.
"""

import hashlib
from importlib.resources import files
from typing import Final

from aiohttp import web
from aiohttp.typedefs import Handler

from partage.serving.limits import has_version

_TYPES: Final = {
    ".css": "text/css",
    ".html": "text/html",
    ".js": "text/javascript",
    ".mjs": "text/javascript",
    ".svg": "image/svg+xml",
}
_HEADERS: Final = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self'; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # the browser asks with its ETag every time, so it is never stale
}
_INDEX: Final = "index.html"


def page_routes() -> list[web.RouteDef]:
    """`GET /`, and `GET /dashboard/<file>` for the page's files.

    Paths in the page are relative, so it works behind the API server's proxy too.
    """
    folder = files("partage.dashboard").joinpath("static")
    routes: list[web.RouteDef] = []
    for inside, prefix in ((folder, ""), (folder.joinpath("vendor"), "vendor/")):
        for file in sorted(inside.iterdir(), key=lambda one: one.name):
            suffix = "." + file.name.rpartition(".")[2]
            if suffix in _TYPES and file.is_file():
                path = "/" if file.name == _INDEX else f"/dashboard/{prefix}{file.name}"
                routes.append(web.get(path, _served(file.read_bytes(), _TYPES[suffix])))
    return routes


def _served(body: bytes, kind: str) -> Handler:
    """A handler of one file."""
    tag = hashlib.blake2b(body, digest_size=12).hexdigest()
    headers = {**_HEADERS, "ETag": f'"{tag}"'}

    async def serve(request: web.Request) -> web.Response:
        if has_version(request, tag):
            return web.Response(status=304, headers=headers)
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=headers)

    return serve
