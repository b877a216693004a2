"""What fails fails; no finding on the genuine cluster is tried again; retries and skipped tests are listed last."""

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FAILS = """
def test_it():
    raise AssertionError({what!r})
"""


def tree(folder: Path, **tests: str) -> Path:
    """A tree like this one, with tests of its own; a name's first `_` stands for the folder's `/`."""
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "tests/tools").mkdir(parents=True)
    (folder / "tests/docs").mkdir()
    shutil.copy(ROOT / "tests/tools/gate.py", folder / "tests/tools")
    (folder / "tests/conftest.py").write_text('pytest_plugins = ["gate"]\n')
    for name, text in tests.items():
        where, _, rest = name.partition("_")
        (folder / "tests" / where).mkdir(exist_ok=True)
        (folder / "tests" / where / f"test_{rest}.py").write_text(text)
    return folder


def session(folder: Path, *options: str, **environment: str) -> tuple[int, str]:
    """How pytest ends there, and what it says."""
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *options],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", **environment},
    )
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "workers"])
@pytest.mark.parametrize(
    ("what", "code"),
    [
        pytest.param("not within 60 s", 1, id="late"),
        pytest.param(["I1: a card gives 2000"], 20, id="I1"),
        pytest.param("forbidden: get nodes", 20, id="role"),
    ],
)
def test_a_finding_has_a_status_of_its_own(
    tmp_path: Path, what: object, code: int, workers: tuple[str, ...]
) -> None:
    """No recipe tries it again then."""
    tree(tmp_path, faults_one=FAILS.format(what=what))

    ended, told = session(tmp_path, *workers)

    assert ended == code, told


def test_nothing_of_make_test_is_run_again() -> None:
    """No option of the gate does it, nor one that pytest finds in the settings, and no plugin for it is there."""
    settings = (ROOT / "pyproject.toml").read_text()
    for text in ((ROOT / ".ci/run").read_text(), (ROOT / "Makefile").read_text(), settings):
        assert not re.search(r"rerun|flaky|--lf|--last-failed", text)


def test_what_was_tried_again_is_named(tmp_path: Path) -> None:
    """The summary has its outcome."""
    tree(tmp_path, cluster_one=FAILS.format(what="late"), cluster_two="def test_it():\n    pass\n")
    session(tmp_path)
    (tmp_path / "tests/cluster/test_one.py").write_text("def test_it():\n    pass\n")

    told = session(tmp_path, "--last-failed")[1]

    assert re.findall("RETRIED .*", told) == ["RETRIED tests/cluster/test_one.py::test_it: passed"]


SKIPPED = """
import os
import pytest

@pytest.mark.skipif("TOOL" not in os.environ, reason="no tool here")
def test_it():
    pass
"""


def test_what_no_session_ran_is_said_last(tmp_path: Path) -> None:
    """It is listed by reason, right before the summary line, until a later session has run it."""
    tree(tmp_path, native_one=SKIPPED, native_two=SKIPPED, kube_three=SKIPPED)
    file = tmp_path / "not-run.json"
    asked = {"PARTAGE_NOT_RUN": str(file)}

    lines = [line for line in session(tmp_path, **asked)[1].split("\n") if line]
    assert lines[-3:-1] == [
        "NOT RUN 1 of tests/kube: no tool here",
        "NOT RUN 2 of tests/native: no tool here",
    ]
    assert "3 skipped" in lines[-1]

    told = session(tmp_path, "tests/native", TOOL="1", **asked)[1]
    lines = [line for line in told.split("\n") if line]
    assert lines[-2] == "NOT RUN 1 of tests/kube: no tool here"
    assert list(json.loads(file.read_text())["left"]) == ["tests/kube/test_three.py::test_it"]

    told = session(tmp_path, TOOL="1", **asked)[1]
    assert not re.search("NOT RUN", told)


PROGRAMS = """
import os
import pytest

SKIP = [pytest.param(None, id="none", marks=pytest.mark.skip(reason="no program here"))]

@pytest.mark.parametrize("program", [pytest.param(1, id="v1")] if "TOOL" in os.environ else SKIP)
def test_it(program):
    pass

@pytest.mark.parametrize("program", SKIP)
def test_other(program):
    pass
"""


def test_what_stood_for_programs_that_came_since_was_run(tmp_path: Path) -> None:
    """A test that is there once a program, and once for none: that one is never run."""
    tree(tmp_path, native_one=PROGRAMS)
    asked = {"PARTAGE_NOT_RUN": str(tmp_path / "not-run.json")}

    assert "NOT RUN 2 of tests/native: no program here" in session(tmp_path, **asked)[1]
    told = session(tmp_path, "--not-run-yet", TOOL="1", **asked)[1]

    assert "NOT RUN 1 of tests/native: no program here" in told


@pytest.mark.parametrize("workers", [(), ("-n", "1")], ids=["alone", "workers"])
def test_a_later_session_runs_what_no_earlier_one_did(
    tmp_path: Path, workers: tuple[str, ...]
) -> None:
    """What was skipped or never looked at; what failed counts as run, and has failed the gate."""
    passes, fails = "def test_it():\n    pass\n", "def test_it():\n    assert False\n"
    tree(tmp_path, native_one=SKIPPED, native_two=passes, native_three=fails, kube_four=passes)
    asked = {"PARTAGE_NOT_RUN": str(tmp_path / "not-run.json"), "TOOL": "1"}
    first = {name: value for name, value in asked.items() if name != "TOOL"}

    assert session(tmp_path, "tests/native", **first)[0] == 1
    ended, told = session(tmp_path, "--not-run-yet", *workers, **asked)

    assert ended == 0, told
    assert "2 passed" in told
    assert not re.search("NOT RUN|failed", told)


def test_without_a_file_everything_is_run(tmp_path: Path) -> None:
    """This holds outside the gate."""
    tree(tmp_path, native_one="def test_it():\n    pass\n")
    for _ in range(2):
        assert "1 passed" in session(tmp_path, "--not-run-yet")[1]


LONG = """
import pytest

@pytest.mark.parametrize("number", range(10))
def test_short(number):
    pass

@pytest.mark.parametrize("seconds", [pytest.param(one, marks=pytest.mark.long(one)) for one in (2, 1, 3)])
def test_long(seconds):
    pass
"""


@pytest.mark.parametrize("workers", [1, 2, 3, 9])
def test_each_worker_begins_with_its_part_of_what_takes_long(tmp_path: Path, workers: int) -> None:
    """The longest first; all are run, once."""
    tree(tmp_path, kube_one=LONG)
    told = session(tmp_path, "--collect-only", "-q", PYTEST_XDIST_WORKER_COUNT=str(workers))[1]
    found = re.findall(r"test_(\w+)\[(\d)\]", told)

    begin, parts = 0, []
    for worker in range(workers):  # as xdist shares them out
        end = begin + (len(found) - begin) // (workers - worker)
        parts.append(found[begin:end])
        begin = end
    firsts = [[int(of) for what, of in part if what == "long"] for part in parts]
    assert firsts == [[3, 2, 1][worker::workers] for worker in range(workers)]
    for part, first in zip(parts, firsts, strict=True):
        assert part[: len(first)] == [("long", str(one)) for one in first]
    assert [of for what, of in found if what == "short"] == [str(one) for one in range(10)]


@pytest.mark.parametrize(
    ("code", "gate", "ended", "told"),
    [
        pytest.param(0, "1", 0, "", id="there"),
        pytest.param(124, "1", 0, "its tests are skipped", id="no time"),
        pytest.param(3, "1", 1, "the gate must have it", id="gate without a tool"),
        pytest.param(4, "1", 1, "the gate must have it", id="gate without a network"),
        pytest.param(3, "", 0, "its tests are skipped", id="at home without a tool"),
        pytest.param(1, "", 1, "ended with 1", id="does not compile"),
    ],
)
def test_only_want_of_time_skips_a_tier(
    tmp_path: Path, code: int, gate: str, ended: int, told: str
) -> None:
    """The gate does without the control plane on slow machines alone; elsewhere it is skipped."""
    endings = {"cluster/build": code, "runtime/fetch": 0, "tools/watching/fetch": 0}
    for name, status in endings.items():
        stub(tmp_path / "tests" / name, f"exit {status}")
    stub(tmp_path / ".venv/bin/python", 'echo "tests with: $PARTAGE_WITHOUT"')
    shutil.copy(ROOT / "tests/cluster/run", tmp_path / "tests/cluster/run")

    done = subprocess.run(
        [tmp_path / "tests/cluster/run"],
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin", "PARTAGE_GATE": gate},
    )

    assert done.returncode == ended, done.stderr
    assert told in done.stderr
    skipped = ended == 0 and code != 0
    assert ("with: the genuine control plane" in done.stdout) is skipped


@pytest.mark.parametrize(("codes", "ended"), [("1 0", 0), ("1 1", 1), ("20", 20), ("0", 0)])
def test_a_finding_is_not_tried_again_in_a_fresh_cluster(
    tmp_path: Path, codes: str, ended: int
) -> None:
    """Any other failure is, once."""
    for name in ("cluster/build", "runtime/fetch", "tools/watching/fetch"):
        stub(tmp_path / "tests" / name, "exit 0")
    (tmp_path / "codes").write_text("\n".join(codes.split()) + "\n")
    stub(tmp_path / ".venv/bin/python", "code=$(head -n 1 codes); sed -i 1d codes; exit $code")
    shutil.copy(ROOT / "tests/cluster/run", tmp_path / "tests/cluster/run")

    done = subprocess.run([tmp_path / "tests/cluster/run"], check=False)

    assert done.returncode == ended
    assert not (tmp_path / "codes").read_text(), "every session was asked for"


def stub(path: Path, text: str) -> None:
    """A program that does this."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
