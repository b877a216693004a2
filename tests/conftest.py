"""How hard the laws are tried: `ci` by default, `soak` with HYPOTHESIS_PROFILE=soak.

Tests that are coroutines are run each in an event loop of its own (`tests/tools/steady.py`), which saves a dependency.
"""

import asyncio
import contextlib
import gc
import inspect
import logging
import os
import shutil
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

import pytest
from hypothesis import HealthCheck, settings

from steady import steady

pytest_plugins = ["gate"]
_MEMORY: Final = Path("/dev/shm")  # noqa: S108 # each run has a folder of its own in it
_FOLDERS: Final = "partage-tests-"
_MINE: Final = _MEMORY / f"{_FOLDERS}{os.getpid()}"
_LEAST: Final = 4 << 30
"""Bytes that must be free in memory for tests' files; they take up to 1.8 GB."""
_SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.filter_too_much)

settings.register_profile(
    "ci",
    deadline=None,
    derandomize=True,
    database=None,
    max_examples=120,
    suppress_health_check=_SLOW,
)
settings.register_profile(
    "soak",
    deadline=None,
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "5000")),
    print_blob=True,
    suppress_health_check=_SLOW,
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """Keep tests' files in memory where there is room: they make and flush tens of thousands.

    Files of a failed run stay until the next. A genuine node's own files stay on the disk, as containers' layers do.
    """
    genuine = "PARTAGE_CLUSTER" in os.environ or "PARTAGE_PODS" in os.environ
    if hasattr(config, "workerinput") or config.option.basetemp or genuine or not _has_room():
        return
    for old in _MEMORY.glob(f"{_FOLDERS}*"):
        if not Path("/proc", old.name.removeprefix(_FOLDERS)).exists():
            shutil.rmtree(old, ignore_errors=True)
    config.option.basetemp = str(_MINE)


def _has_room() -> bool:
    """Whether memory may hold files that are executed, and has room for them."""
    try:
        found = os.statvfs(_MEMORY)
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return False
    free = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    usable = not found.f_flag & (os.ST_NOEXEC | os.ST_RDONLY) and os.access(_MEMORY, os.W_OK)
    return usable and found.f_bavail * found.f_frsize >= _LEAST and free >= 2 * _LEAST


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    """Remove the files of a run that passed, if they are in memory."""
    if exitstatus == 0 and session.config.option.basetemp == str(_MINE):
        shutil.rmtree(_MINE, ignore_errors=True)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None]:
    """Keep what was collected out of the search for cycles: it stays to the end, and looking through it took a quarter of tests' time."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """A command that a test runs in this process may have taken the log over: the next test captures it again."""
    logger = logging.getLogger("partage")
    handlers, propagate, level = logger.handlers[:], logger.propagate, logger.level
    yield
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a coroutine function to its end; leave the others to pytest."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    arguments = {name: pyfuncitem.funcargs[name] for name in names}
    asyncio.run(pyfuncitem.obj(**arguments))
    return True


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Loops of tests have time of their own; on the genuine control plane it is the machine's."""
    with contextlib.nullcontext() if item.get_closest_marker("cluster") else steady():
        return (yield)
