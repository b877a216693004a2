"""Probes on a port of their own, so that no caller of another port keeps the kubelet waiting."""

from collections.abc import Iterable
from typing import Final

from aiohttp import web

from partage.serving.limits import Limits, guard
from partage.serving.site import Site

_LIMITS: Final = Limits(
    body=2**10, head=2**13, patience=5.0, idle=30.0, connections=64, per_address=48, held=2**20
)


def probe_site(routes: Iterable[web.RouteDef]) -> Site:
    """A port for probes, not started yet; it answers these routes and nothing else."""
    app = web.Application(middlewares=[guard()])
    app.add_routes(routes)
    return Site(app, _LIMITS)
