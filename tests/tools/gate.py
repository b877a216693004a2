"""What the gate may not pass over: findings on the genuine cluster, retries there, and tests that never ran.

`make test` tries nothing again. `tests/cluster/run` tries once more what failed while processes were killed on a busy
machine, and the summary names it under RETRIED. A card that was given twice in one run of two is a defect all the same:
after a finding (`FINDINGS`) the session ends with a status of its own, and nothing is tried again.
Tests that are marked `long` begin first, shared out among the workers: begun last they would run alone, with nothing beside
them. Where `PARTAGE_NOT_RUN` names a file, each session keeps in it what was run, and what was skipped and by no
session run, and says the latter last, before the summary line; with `--not-run-yet` it leaves out what the file says was run.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

FINDINGS = (
    r"\bI[1-5]: ",  # an invariant is broken (tests/faults/invariants.py): a card given twice, books that lie
    r"\bforbidden: ",  # the API server refused one of our programs: a role of the chart lacks a verb
)
"""What must not be tried again: it would pass, and be there all the same."""
FINDING = 20
"""Exit status of a session with such a failure."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of our own."""
    told = "leave out what a session before this one has run (PARTAGE_NOT_RUN)"
    parser.addoption("--not-run-yet", action="store_true", help=told)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what was run before, and let each worker begin with its part of the long tests."""
    if config.getoption("not_run_yet"):
        ran = _kept(_file()).ran
        config.hook.pytest_deselected(items=[one for one in items if one.nodeid in ran])
        items[:] = [one for one in items if one.nodeid not in ran]
    seconds = {one: _seconds(one) for one in items}
    longest = sorted(filter(seconds.get, items), key=lambda one: -seconds[one])
    others = [one for one in items if not seconds[one]]
    items[:] = shared_out(longest, others, int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1")))


def _seconds(item: pytest.Item) -> float:
    marker = item.get_closest_marker("long")
    return float(marker.args[0]) if marker else 0.0


def shared_out(first: Sequence[Any], others: Sequence[Any], workers: int) -> list[Any]:
    """All in an order of which each worker is given an even part to begin with (`--dist worksteal`).

    Args:
        first: what is begun first, the longest first.
        others: the rest; stays in its order.
        workers: how many.
    """
    order: list[Any] = []
    rest = iter(others)
    for worker in range(workers):
        own = first[worker::workers]
        part = (len(first) + len(others) - len(order)) // (workers - worker)
        order += [*own, *islice(rest, max(0, part - len(own)))]
    return [*order, *rest]


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """End with a status of its own where something was found that must not be tried again."""
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    failed = [*reporter.stats.get("failed", ()), *reporter.stats.get("error", ())]
    if any(_is_finding(report) for report in failed):
        session.exitstatus = FINDING


def _is_finding(report: Any) -> bool:
    crash = getattr(report.longrepr, "reprcrash", None)
    message = crash.message if crash else str(report.longrepr)
    return any(re.search(one, message) for one in FINDINGS)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any) -> Generator[None]:
    """Say last what was tried again, and what no session of the gate has run."""
    yield
    if terminalreporter.config.getoption("lf", None):
        for outcome in ("passed", "failed", "error"):
            for one in terminalreporter.stats.get(outcome, ()):
                terminalreporter.line(f"RETRIED {one.nodeid}: {outcome}")
    file = _file()
    if file is None:
        return
    left = not_run(file, terminalreporter.stats)
    without = os.environ.get("PARTAGE_WITHOUT", "").splitlines()
    if left or without:
        terminalreporter.section("NOT RUN", yellow=True, bold=True)
    for line in without:
        terminalreporter.line(f"NOT RUN, as {line}")
    for (folder, reason), count in sorted(Counter(left).items()):
        terminalreporter.line(f"NOT RUN {count} of {folder}: {reason}")


@dataclass
class _Kept:
    """What the file has: tests that were run, and those that were not with the reason."""

    ran: set[str] = field(default_factory=set)
    left: dict[str, str] = field(default_factory=dict)


def _file() -> Path | None:
    name = os.environ.get("PARTAGE_NOT_RUN")
    return Path(name) if name else None


def _kept(file: Path | None) -> _Kept:
    if file is None or not file.exists():
        return _Kept()
    found = json.loads(file.read_text())
    return _Kept(set(found["ran"]), found["left"])


def not_run(file: Path, stats: dict[str, list[Any]]) -> list[tuple[str, str]]:
    """Folder and reason of every test that neither this session nor one before it ran; kept in the file."""
    known = _kept(file)
    known.ran |= {
        one.nodeid for key in ("passed", "failed", "error") for one in stats.get(key, ())
    }
    for one in stats.get("skipped", ()):
        known.left[one.nodeid] = str(one.longrepr[2]).removeprefix("Skipped: ")
    ran = known.ran | {nodeid.split("::")[0] for nodeid in known.ran}
    # What stood for all programs that were not there yet: it was run once it was run with one of them.
    ran |= {f"{nodeid.split('[')[0]}[none]" for nodeid in known.ran}
    left = {nodeid: reason for nodeid, reason in known.left.items() if nodeid not in ran}
    file.write_text(json.dumps({"ran": sorted(known.ran), "left": left}))
    return [("/".join(nodeid.split("/")[:2]), reason) for nodeid, reason in left.items()]
