"""`bench/gpu.py`, which measures a real card in one call, runs as it is on the modelled one.

Its figures mean nothing here; that each part begins, is judged and told is what is tried.
"""

import re
import subprocess
import sys
from pathlib import Path

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


def test_it_runs_to_its_end_with_nothing_but_python(world: World) -> None:
    """Isolated from packages; what there was no time for is told as missed."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", ROOT / "bench/gpu.py", "--seconds", "0.2", "--kills", "8",
         "--budget", "36"],
        env=world.plain_environment(), capture_output=True, text=True, check=False, timeout=WAIT,
    )  # fmt: skip

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
