"""The scheduler service on a port: the application, with the hot verbs on the fast way in."""

from collections.abc import Iterable
from functools import partial

from aiohttp import web

from partage.extender.server import Faces, bind_with, make_app, verb_with
from partage.extender.service import SchedulerService
from partage.serving.hot import HotRoute
from partage.serving.site import Site
from partage.serving.tls import ServerTls

_HOT = ("filter", "prioritize", "priorities", "preempt")


def scheduler_site(
    service: SchedulerService,
    faces: Faces,
    routes: Iterable[web.RouteDef] = (),
    tls: ServerTls | None = None,
) -> Site:
    """The site, not started yet.

    Args:
        service: what answers.
        faces: how.
        routes: further routes to be served beside the scheduler's.
        tls: certificates; None serves without.
    """
    hot: dict[bytes, HotRoute] = {
        f"/scheduler/{verb}".encode(): partial(verb_with, service, verb) for verb in _HOT
    }
    hot[b"/scheduler/bind"] = partial(bind_with, service)
    return Site(make_app(service, faces, routes), faces.access, faces.limits, hot, tls)
