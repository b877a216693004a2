"""How hard the laws are tried: `ci` by default, `soak` with HYPOTHESIS_PROFILE=soak.

Tests that are coroutines are run each in an event loop of its own (`tests/tools/steady.py`), which saves a dependency.
"""

import asyncio
import contextlib
import gc
import inspect
import logging
import os
from collections.abc import Generator, Iterator

import pytest
from hypothesis import HealthCheck, settings

from steady import steady

pytest_plugins = ["gate"]
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
