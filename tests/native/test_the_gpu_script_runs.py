"""`bench/gpu.py`, which measures a real card in one call, runs as it is on the modelled one.

Its figures mean nothing here; that each part begins, is judged and told is what is tried.
"""

import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from native_world import ROOT, WAIT, World

from partage.agent.isolation import account, seats
from partage.agent.isolation.limits import SEATS, read

sys.path.insert(0, str(ROOT / "bench"))
import gpu  # a script, not a package


def test_the_files_that_it_makes_are_those_of_the_agent(tmp_path: Path, build: Path) -> None:
    """It must run without any package, so it writes them itself; the agent's readers agree."""
    card = gpu.Card(0, "GPU-1", "a card", 2**34)
    assert (build / "libpartage-isolation.so").exists()

    with card.folder() as folder:
        gpu.room(folder, card.uuid, 3, card.limits(300, "fixed-share", 2**30))
        limits = read((folder / "t3/limits").read_text())

        assert account.read_account(folder / "t3/account") == ()
        assert seats.read_seat(folder / "card-0", limits.cards[0].slot) is None
        terms = (folder / "card-0/terms").read_bytes()
        seats.make_seats(tmp_path / "card-0")
        seats.give_seat(tmp_path / "card-0", limits.cards[0])
        assert terms == (tmp_path / "card-0/terms").read_bytes()
    assert (limits.cards[0].core_milli, limits.cards[0].memory_bytes) == (300, 2**30)
    assert gpu.SEATS == SEATS


def run(
    world: World, *options: str, script: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """The script with little time."""
    return subprocess.run(
        [sys.executable, "-I", "-S", script or ROOT / "bench/gpu.py", "--seconds", "0.2", *options],
        env=world.plain_environment(), capture_output=True, text=True, check=False, timeout=WAIT,
    )  # fmt: skip


def test_it_runs_to_its_end_with_nothing_but_python(world: World) -> None:
    """Isolated from packages; what there was no time for is told as missed."""
    done = run(world, "--kills", "8", "--budget", "24")

    assert done.returncode == 0, done.stderr
    told = done.stdout
    assert re.findall(r"^  (\w+) +\d+ MiB +.*2 +ok$", told, re.MULTILINE) == [
        "plain", "small", "pitch", "managed", "handle", "pool", "newpool", "array",
        "graph", "node", "capture",
    ]  # fmt: skip
    assert re.findall(r"^  (\w+) held +[+-]\d+\.\d\d MiB .*ok$", told, re.MULTILINE) == [
        "graph", "node", "capture", "sum",
    ]  # fmt: skip
    assert re.search(r"gated, cap not reached +\d+ ns +p99 \d+ ns", told)
    assert "PyTorch" in told
    assert re.search(r"^\d+ s; (MISSED|all as required)", told, re.MULTILINE)


@pytest.fixture
def elsewhere(build: Path, tmp_path: Path) -> Path:
    """A copy of the script with the programs that it runs, to be broken; nothing is built there."""
    shutil.copytree(build, tmp_path / "build/native", ignore=shutil.ignore_patterns(".lock"))
    (tmp_path / "bench").mkdir()
    shutil.copy(ROOT / "bench/gpu.py", tmp_path / "bench/gpu.py")
    return tmp_path


def test_a_part_that_fails_is_told_and_the_next_begins(world: World, elsewhere: Path) -> None:
    """As where a card's kernels cannot be loaded: memory is measured, and what needs kernels says why it is not."""
    load = elsewhere / "build/native/load"
    load.unlink()
    load.write_text("#!/bin/sh\necho cuModuleLoadData: driver error 221 >&2\nexit 3\n")
    load.chmod(0o755)

    done = run(world, "--kills", "0", "--budget", "60", script=elsewhere / "bench/gpu.py")

    assert done.returncode == 0, done.stderr
    assert re.search(r"^  plain +2048 MiB .* ok$", done.stdout, re.MULTILINE)
    assert re.search(
        r"^  many small +failed: .*221 \(libnvidia-ptxjit.* MISSED$", done.stdout, re.MULTILINE
    )
    assert re.search(r"^  without the library +failed: .*221", done.stdout, re.MULTILINE)
    assert re.search(r"^\d+ s; MISSED: .*matrix arithmetic.*latency", done.stdout, re.MULTILINE)


def test_what_hangs_ends_with_the_table(world: World, elsewhere: Path) -> None:
    """The time of all is bounded, and what was measured until then is there."""
    load = elsewhere / "build/native/load"
    load.unlink()
    load.write_text("#!/bin/sh\nexec sleep 300\n")
    load.chmod(0o755)

    begun = time.monotonic()
    done = run(world, "--budget", "-17", script=elsewhere / "bench/gpu.py")

    assert time.monotonic() - begun < 30
    assert done.returncode == 1
    assert re.search(r"^  plain +2048 MiB .* ok$", done.stdout, re.MULTILINE)
    assert re.search(r"^\d+ s; MISSED: .*time: cut off$", done.stdout, re.MULTILINE)


def test_without_the_library_in_force_nothing_is_judged(world: World, elsewhere: Path) -> None:
    """A loader that cannot load it goes on without, and overhead would look like none."""
    (elsewhere / "build/native/libpartage-isolation.so").write_bytes(b"no library")

    done = run(world, script=elsewhere / "bench/gpu.py")

    assert done.returncode == 1
    assert "the library is not in force" in done.stderr
    assert "ok" not in done.stdout.split()


def test_a_card_that_is_not_there_is_told(world: World) -> None:
    """In words, not in a traceback."""
    world.card.kill()
    world.card.wait()

    done = run(world)

    assert done.returncode == 1
    assert re.match(
        r"gpu: no CUDA driver or card .*cuInit: driver error 999: unknown", done.stderr
    )
