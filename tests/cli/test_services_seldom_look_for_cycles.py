"""Services look for cycles among new objects more seldom than Python does by itself, and only while they run."""

import gc

import pytest

from partage.cli.loop import run


async def thresholds() -> tuple[int, int, int]:
    """Those in force while a service runs."""
    return gc.get_threshold()


def test_new_objects_are_looked_through_seldom() -> None:
    """The youngest objects wait longer; older ones are looked through as ever."""
    before = gc.get_threshold()
    young, *older = run(thresholds())
    assert young > before[0]
    assert older == list(before[1:])
    assert gc.get_threshold() == before


def test_it_is_as_before_when_the_service_fails() -> None:
    """Nothing of it outlives the service."""

    async def fails() -> None:
        raise OSError("the port is taken")

    before = gc.get_threshold()
    with pytest.raises(OSError, match="the port is taken"):
        run(fails())
    assert gc.get_threshold() == before
