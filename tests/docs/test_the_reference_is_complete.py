"""Every key, reason and option that the program has is in the reference."""

import re
from collections.abc import Iterator
from dataclasses import fields
from importlib.metadata import entry_points
from pathlib import Path

import click
import pytest

from partage.model.policy import Strategy
from partage.model.reason import ReasonCode
from partage.vendors import names
from partage.vendors.settings import HamiSettings

ROOT = Path(__file__).parents[2]
KEYS = (ROOT / "docs/reference/annotations.md").read_text(encoding="utf-8")
SCHEDULE = (ROOT / "docs/reference/schedule.md").read_text(encoding="utf-8")


def _keys() -> Iterator[str]:
    for name, value in vars(names).items():
        if name.isupper():
            for part in _flat(value):
                yield f"{part}<container>" if part == names.QGPU_CARDS else part


def _flat(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, tuple):
        for item in value:
            yield from _flat(item)


@pytest.mark.parametrize("key", sorted(set(_keys())))
def test_a_key_is_in_the_reference(key: str) -> None:
    """Each key in `names` stands in docs/reference/annotations.md between backquotes."""
    assert f"`{key}`" in KEYS


@pytest.mark.parametrize(
    "key", [f.default for f in fields(HamiSettings) if f.name.endswith("_name")]
)
def test_a_default_resource_name_is_in_the_reference(key: str) -> None:
    """HAMi's renameable resources are listed by their published names."""
    assert f"`{key}`" in KEYS


@pytest.mark.parametrize("code", list(ReasonCode))
def test_a_reason_says_what_it_means_and_what_to_do(code: ReasonCode) -> None:
    """Each reason code has a row with three filled cells."""
    row = re.search(rf"^\| `{code.value}` \| (.+) \| (.+) \|$", SCHEDULE, re.MULTILINE)

    assert row is not None


def test_no_reason_is_told_that_does_not_exist() -> None:
    """The table has no code that the program lacks."""
    table = SCHEDULE.split("## Why a pod waits")[1]

    assert set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) == {c.value for c in ReasonCode}


def test_every_option_and_policy_is_told() -> None:
    """Each option of `partage schedule`, and each policy, is in its page."""
    (entry,) = entry_points(group="console_scripts", name="partage")
    group = entry.load()
    command = group.get_command(click.Context(group), "schedule")

    options = {opt for p in command.params for opt in p.opts if opt.startswith("--")}
    told = {"--output": "-o"}
    assert all(told.get(option, option) in SCHEDULE for option in options)
    assert all(f"`{strategy}`" in SCHEDULE for strategy in Strategy)
