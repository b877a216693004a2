"""Services look for cycles among new objects more seldom than Python does by itself, and only while they run."""

import asyncio
import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator

import pytest
from aiohttp import ClientSession, web

from partage.cli.loop import run_fast
from partage.serving.limits import Handler, Limits, guard
from partage.serving.site import Site


@pytest.fixture(autouse=True)
def as_python_has_it() -> Iterator[None]:
    """Thresholds as Python sets them, not as other tests in this process left them."""
    before = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield
    gc.set_threshold(*before)


def thresholds() -> tuple[int, int, int]:
    """Those in force while a service runs."""
    found: list[tuple[int, int, int]] = []

    async def service(_stop: asyncio.Event) -> None:
        found.append(gc.get_threshold())

    run_fast(service)
    return found[0]


def test_new_objects_are_looked_through_seldom() -> None:
    """The youngest objects wait longer; older ones are looked through as before."""
    assert thresholds() == (10_000, 10, 10)
    assert gc.get_threshold() == (700, 10, 10)


def test_who_looks_more_seldom_already_goes_on() -> None:
    """A command that builds a whole cluster does so."""
    gc.set_threshold(500_000, 10, 10)
    assert thresholds() == (500_000, 10, 10)


def test_it_is_as_before_when_the_service_fails() -> None:
    """Nothing of it outlives the service."""

    async def fails(_stop: asyncio.Event) -> None:
        raise OSError("the port is taken")

    with pytest.raises(OSError, match="the port is taken"):
        run_fast(fails)
    assert gc.get_threshold() == (700, 10, 10)


def test_what_outlives_a_look_at_all_objects_is_not_looked_at_again() -> None:
    """Otherwise each such look at a service's books stops it for longer than the one before."""
    looked_at: list[int] = []

    async def service(_stop: asyncio.Event) -> None:
        gc.collect()
        looked_at.append(len(gc.get_objects()))

    gc.collect()  # what earlier tests left
    before = len(gc.get_objects())
    run_fast(service)
    assert looked_at[0] < before / 10
    assert len(gc.get_objects()) > before / 2
    assert gc.get_freeze_count() == 0


_LEFT_LATER = """
import gc
from partage.cli.loop import old_set_aside

class Request:
    living = 0

    def __init__(self):
        self.itself = self
        Request.living += 1

    def __del__(self):
        Request.living -= 1

gc.collect()
before, most = len(gc.get_objects()), 0
with old_set_aside(few=1_000):
    for _ in range(200):
        made = [Request() for _ in range(500)]
        gc.collect()
        del made
        most = max(most, Request.living)
print(before, most)
"""


def test_what_is_left_of_it_later_is_found_when_it_has_become_much() -> None:
    """A stranger's connections may be open during a search, and leave cycles behind.

    It is a program of its own, because what counts as much depends on all objects of a process.
    """
    ran = [sys.executable, "-c", _LEFT_LATER]
    said = subprocess.run(ran, capture_output=True, text=True, check=True).stdout.split()
    before, most = map(int, said)
    assert 1_000 < most < before // 4 + 5_000 < 50_000


def test_a_wrong_path_leaves_no_frames_behind() -> None:
    """The router keeps the exception of such a request in the request, and its traceback would keep the request."""
    found: list[weakref.ref[web.Request]] = []

    @web.middleware
    async def remembered(request: web.Request, handler: Handler) -> web.StreamResponse:
        found.append(weakref.ref(request))
        return await handler(request)

    async def ask() -> None:
        app = web.Application(middlewares=[remembered, guard()])
        site = Site(app, Limits())
        await site.start()
        async with ClientSession() as session, session.get(f"{site.url}/none") as answer:
            assert answer.status == 404
        await site.stop()

    gc.collect()
    gc.disable()
    try:
        asyncio.run(ask())
        assert [one() for one in found] == [None]
    finally:
        gc.enable()


def test_a_command_that_ends_soon_looks_through_what_it_gathers_hardly_ever() -> None:
    """This holds for a program of its own; services, and commands in a test's process, are left alone."""
    script = (
        "import atexit, gc; from partage.cli.main import main;"
        "atexit.register(lambda: print(gc.get_threshold()[0])); main(['{}', '--help'])"
    )

    def told(command: str) -> str:
        ran = [sys.executable, "-c", script.format(command)]
        return subprocess.run(ran, capture_output=True, text=True, check=True).stdout.split()[-1]

    assert int(told("top")) == 1_000_000
    assert int(told("webhook")) < 1_000_000


def test_modules_are_not_searched_while_they_are_loaded() -> None:
    """They stay, so that each search finds nothing: of a service's start it was a tenth."""
    script = (
        "import atexit, gc; from partage.cli.main import main;"
        "before = gc.get_stats()[0]['collections'];"
        "atexit.register(lambda: print(gc.get_stats()[0]['collections'] - before)); main(['webhook', '--help'])"
    )
    ran = [sys.executable, "-c", script]
    said = subprocess.run(ran, capture_output=True, text=True, check=True).stdout.split()
    assert int(said[-1]) < 10


def test_no_program_looks_through_all_objects_at_its_end() -> None:
    """A cluster of millions would take seconds to end, after all was said and done."""
    script = (
        "import atexit, gc; from partage.cli.main import main;"
        "atexit.register(lambda: print(gc.get_freeze_count(), len(gc.get_objects()))); main(['--version'])"
    )
    ran = [sys.executable, "-c", script]
    said = subprocess.run(ran, capture_output=True, text=True, check=True).stdout.split()
    frozen, looked_at = map(int, said[-2:])
    assert frozen > 10_000
    assert looked_at < frozen / 10
