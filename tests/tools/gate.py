"""What the gate may not pass over: failures that nobody tries again, and tests that nobody ran.

A busy machine makes tests fail that wait for sockets and processes, so `.ci/run` runs what failed again. A card that
was given twice in one run of three is a defect all the same: what a finding is (`rerun_except` in pyproject.toml) and
all tests marked `once` fail at the first time, and the session ends with a status of its own, so that no recipe tries
again either. Where `PARTAGE_NOT_RUN` names a file, each session keeps in it what was run, and what was skipped and by no
session run, and says the latter last, before the summary line; with `--not-run-yet` it leaves out what the file says was run.
"""

import json
import os
import re
from collections import Counter
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ONCE = frozenset({"inventory", "laws", "record", "upgrade"})
"""Folders of tests without a socket, a process or a clock: what fails there once is wrong."""
FINDING = 20
"""Exit status of a session with a failure that must not be tried again."""
_ANY_BUT_TIME = r"^(?!Failed: Timeout )"
"""Every error, but that of a machine so busy that the test did not come to its end."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Options of our own."""
    told = "leave out what a session before this one has run (PARTAGE_NOT_RUN)"
    parser.addoption("--not-run-yet", action="store_true", help=told)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let nothing that is marked `once` be run again, but where the process was killed."""
    if config.getoption("not_run_yet"):
        ran = _kept(_file()).ran
        config.hook.pytest_deselected(items=[one for one in items if one.nodeid in ran])
        items[:] = [one for one in items if one.nodeid not in ran]
    reruns = config.getoption("reruns", None) or 0
    for item in items:
        parts = item.path.relative_to(config.rootpath).parts
        if parts[0] == "tests" and parts[1] in ONCE:
            item.add_marker("once")
        if item.get_closest_marker("once"):
            item.add_marker(pytest.mark.flaky(reruns=reruns, rerun_except=_ANY_BUT_TIME))


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """End with a status of its own where something was found that must not be tried again."""
    reporter: Any = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is None:
        return
    findings = [re.compile(one) for one in session.config.getini("rerun_except")]
    failed = [*reporter.stats.get("failed", ()), *reporter.stats.get("error", ())]
    if any(_final(report, findings) for report in failed):
        session.exitstatus = FINDING


def _final(report: Any, findings: Iterable[re.Pattern[str]]) -> bool:
    crash = getattr(report.longrepr, "reprcrash", None)
    message = crash.message if crash else str(report.longrepr)
    if "once" in getattr(report, "keywords", ()):  # a file that cannot be read has none
        return bool(re.search(_ANY_BUT_TIME, message))
    return any(one.search(message) for one in findings)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_terminal_summary(terminalreporter: Any) -> Generator[None]:
    """Say last what no session of the gate has run."""
    yield
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
