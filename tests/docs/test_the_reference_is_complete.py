"""Every key, reason and option that the program has is in the reference."""

import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import click
import pytest

from partage.agent.discovery.models import MODELS
from partage.agent.isolation.statements import Cause
from partage.cli.explain import meaning
from partage.cli.main import main as program
from partage.cli.up import up
from partage.controllers.pods import Problem
from partage.model.policy import Strategy
from partage.model.reason import ReasonCode
from partage.tracing import spans
from partage.vendors import names
from partage.vendors.reserved import RESERVED
from partage.vendors.settings import HamiSettings
from partage.wire.advice import advice
from reference.pages import declared_pages
from span_page import ATTRIBUTES, SPANS

ROOT = Path(__file__).parents[2]
KEYS = (ROOT / "docs/reference/annotations.md").read_text(encoding="utf-8")
SCHEDULE = (ROOT / "docs/reference/schedule.md").read_text(encoding="utf-8")
ON_A_POD = (ROOT / "docs/reference/on-a-pod.md").read_text(encoding="utf-8")
DAEMON = "".join(
    file.read_text(encoding="utf-8") for file in (ROOT / "src/partage/daemon").glob("*.py")
)
TOLD_OF_PODS = sorted(re.findall(r'regarding\(\w+\),\s*"(\w+)"', DAEMON))
"""Events on pods, but for those of `Problem`."""


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


@pytest.mark.parametrize("word", [*Problem, *Cause, *TOLD_OF_PODS])
def test_what_stands_on_a_pod_is_told(word: str) -> None:
    """Each reason of a condition and each event has a place on the page that lists them."""
    assert len(TOLD_OF_PODS) >= 5
    assert f"`{word}`" in ON_A_POD


def test_every_option_of_up_and_every_model_is_told() -> None:
    """Each option of `partage up`, and each known model of card, is in its page."""
    page = (ROOT / "docs/reference/up.md").read_text(encoding="utf-8")

    options = {opt for p in up.params for opt in p.opts if opt.startswith("--")}
    told = {"--output": "-o"}
    assert all(f"`{told.get(option, option)}" in page for option in options)
    assert all(f"`{model}`" in page for model in MODELS)


def test_every_option_and_policy_is_told() -> None:
    """Each option of `partage schedule`, and each policy, is in its page."""
    group = program
    command = group.get_command(click.Context(group), "schedule")

    options = {opt for p in command.params for opt in p.opts if opt.startswith("--")}
    told = {"--output": "-o"}
    assert all(told.get(option, option) in SCHEDULE for option in options)
    assert all(f"`{strategy}`" in SCHEDULE for strategy in Strategy)


@pytest.mark.parametrize("name", ["agent", "discover", "scheduler", "webhook"])
def test_every_option_of_a_service_is_told(name: str) -> None:
    """Each option of `partage scheduler` and `partage webhook` is in its page."""
    group = program
    command = group.get_command(click.Context(group), name)
    page_name = {"discover": "agent-discovery"}.get(name, name)
    page = (ROOT / f"docs/reference/{page_name}.md").read_text(encoding="utf-8")

    shown = [p for p in command.params if not getattr(p, "hidden", False)]
    options = {o for p in shown for o in (*p.opts, *p.secondary_opts)}
    assert {option for option in options if f"`{option}" not in page} == set()


@pytest.mark.parametrize("name", ["explain", "top", "inspect"])
def test_every_option_of_asking_is_told(name: str) -> None:
    """Each option of `partage explain`, `top` and `inspect` is in their page."""
    group = program
    command = group.get_command(click.Context(group), name)
    page = (ROOT / "docs/reference/asking.md").read_text(encoding="utf-8")

    options = {o for p in command.params for o in p.opts if o.startswith("--")} - {"--output"}
    assert {option for option in options if f"`{option}" not in page} == set()


@pytest.mark.parametrize("code", list(ReasonCode))
def test_what_to_do_is_told_alike(code: ReasonCode) -> None:
    """`explain` advises what the table of reasons advises; links stand in the table alone."""
    row = re.search(rf"^\| `{code.value}` \| .+ \| (.+) \|$", SCHEDULE, re.MULTILINE)

    assert row is not None
    assert re.sub(r" \(\[.*\)\)", "", row[1]) == advice(code.value)


def test_every_written_annotation_has_a_meaning() -> None:
    """`explain` has a word for each annotation that is written on pods."""
    keys = (*RESERVED.annotations, f"{names.QGPU_CARDS}main")

    assert [key for key in keys if not meaning(key)] == []


def test_every_option_of_simulate_is_told() -> None:
    """Each option of each subcommand of `partage simulate` is in its part of the page."""
    group = program
    simulate = group.get_command(click.Context(group), "simulate")
    page = (ROOT / "docs/reference/simulate.md").read_text(encoding="utf-8")

    assert simulate.commands
    for name, command in simulate.commands.items():
        part = page.split(f"## `partage simulate {name} ")[1].split("\n## ")[0]
        options = {opt for p in command.params for opt in p.opts if opt.startswith("--")}
        missing = {opt for opt in options - {"--output"} if f"`{opt}" not in part}
        assert not missing, name


@pytest.mark.parametrize(
    "name",
    ["alerts.md", "commands.md", "names.md", "settings.md", "values.md"],
)
def test_a_made_page_is_what_the_program_declares(name: str) -> None:
    """`make reference` brings it up to date."""
    made = declared_pages(ROOT)[name]

    assert (ROOT / "docs/reference" / name).read_text("utf-8") == made, "run `make reference`"


def test_every_kind_of_span_is_on_its_page() -> None:
    """It has the role that the page says, and attributes that the page explains."""
    kinds = [one for one in vars(spans).values() if isinstance(one, spans.Kind)]

    assert {one.name: one.role.value for one in kinds} == {
        n: role for n, (role, _) in SPANS.items()
    }
    assert all(attributes <= ATTRIBUTES for _, attributes in SPANS.values())
