"""`bench/gpu.py`, which measures a real card in one call, runs as it is on the modelled one.

Its figures mean nothing here; the test tries that each part begins, is judged and reported.
"""

import json
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from native_world import WAIT, World

from native_build import ROOT
from partage.agent.isolation import account, amounts, seats
from partage.agent.isolation.held_files import HeldFiles
from partage.agent.isolation.limits import read
from partage.model.device import SEATS
from partage.vendors.wishes import Policy

sys.path.insert(0, str(ROOT / "bench"))
import card_probes  # scripts, not packages
import gpu


def test_the_files_that_it_makes_are_those_of_the_agent(tmp_path: Path, build: Path) -> None:
    """It must run without any package, so it writes them itself; the agent's readers agree."""
    card = gpu.Card(0, "GPU-1", "a card", 2**34)
    assert (build / "libpartage-isolation.so").exists()

    with card.folder() as folder:
        gpu.room(folder, card.uuid, 3, card.limits(300, "fixed-share", 2**30))
        limits = read((folder / "t3/limits").read_text())

        assert account.read_account(folder / "t3/account") == ()
        assert seats.read_seat(folder / "card-0", limits.cards[0].slot) is None
        assert amounts.read_amounts(folder / "t3" / amounts.NAME, limits.cards) == limits.cards
        gpu.adjust(folder, 3, card.limits(400, "fixed-share", 2**31))
        (now,) = amounts.read_amounts(folder / "t3" / amounts.NAME, limits.cards)
        assert (now.core_milli, now.memory_bytes) == (400, 2**31)
        gpu.adjust(folder, 3, card.limits(300, "fixed-share", 2**30))
        terms = (folder / "card-0/terms").read_bytes()
        seats.make_seats(tmp_path / "card-0")
        seats.give_seat(tmp_path / "card-0", limits.cards[0], HeldFiles())
        assert terms == (tmp_path / "card-0/terms").read_bytes()
    assert (limits.cards[0].core_milli, limits.cards[0].memory_bytes) == (300, 2**30)
    assert gpu.SEATS == SEATS


def run(
    world: World, *options: str, script: Path | None = None, out: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """The script with little time."""
    where = {**world.plain_environment(), **({"OUT": str(out)} if out else {})}
    return subprocess.run(
        [
            sys.executable,
            "-I",
            "-S",
            script or ROOT / "bench/gpu.py",
            "--seconds",
            "0.2",
            *options,
        ],
        env=where,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT,
    )


@pytest.mark.long(75)
@pytest.mark.timeout(1800)
def test_it_runs_to_its_end_with_nothing_but_python(world: World, tmp_path: Path) -> None:
    """Isolated from packages."""
    done = run(world, "--kills", "8", "--budget", "480", out=tmp_path)

    assert done.returncode == 0, done.stderr
    told = done.stdout
    assert re.findall(r"^  (\w+) +\d+ MiB +.*2 +ok$", told, re.MULTILINE) == [
        "plain",
        "small",
        "pitch",
        "managed",
        "handle",
        "pool",
        "newpool",
        "array",
        "graph",
        "node",
        "capture",
    ]
    assert re.findall(r"^  (.+) held +[+-]\d+\.\d\d MiB .*ok$", told, re.MULTILINE) == [
        "plain, half",
        "pitch",
        "handle",
        "array",
        "pool",
        "newpool",
        "graph",
        "node",
        "capture",
        "sum of graphs",
    ]
    assert re.search(r"^  /etc/ld.so.preload +(in force .*ok|left out: .*)$", told, re.MULTILINE)
    assert re.search(r"gated, cap not reached +\d+ ns +p99 \d+ ns", told)
    assert "PyTorch" in told
    assert re.search(r"^\d+ s; (MISSED|all as required)", told, re.MULTILINE)
    # The page: each part is in one of its halves, and memory alone comes out as it did above.
    held, rest = told.split("\nwhat held\n")[1].split("\nwhat did not\n")
    not_held, advice = rest.split("\nwhat to switch off or set\n")
    for name in ("memory", "memory by the driver", "adjustment of memory"):
        assert re.search(rf"^  {name}: \d+ as required$", held, re.MULTILINE)
    for name in ("many small", "adjustment"):
        assert re.search(rf"^  {name}: ", held + not_held, re.MULTILINE)
    assert advice.count("agent.isolation.compute") == 1

    record = json.loads((tmp_path / "gpu.json").read_text())
    asked = [*card_probes.PROBES, *card_probes.UNDER]
    assert [one[0] for one in record["assumptions"]] == asked
    runs = [one for one in record["runs"] if len(one.get("tenants", ())) == 2]
    assert all(book["served_ns"] > 0 for one in runs for book in one["books"])
    assert all(len(series) > 3 for one in runs for series in one["reports"])
    assert runs
    shown = [row for row in record["rows"] if row[0] == "memory"]
    assert len(shown) == 11
    assert shown[0][2] == "plain"
    (missed,) = re.findall(r"^\d+ s; MISSED: (.*)$", told, re.MULTILINE)
    assert "; ".join(record["missed"]) == missed


def test_each_way_of_the_card_is_asked_for_itself(world: World) -> None:
    """The script reports those properties of the modelled card that it is built to have."""
    done = subprocess.run(
        [sys.executable, "-I", "-S", ROOT / "bench/card_probes.py"],
        env=world.plain_environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT,
    )
    told = {one["probe"]: one for one in map(json.loads, done.stdout.splitlines())}

    assert list(told) == list(card_probes.PROBES), done.stderr
    assert not [one for one in told.values() if one["measured"].startswith("failed")]
    assert told["context"]["measured"] == "the first 300.00 MiB, another one 300.00 MiB"
    assert told["printing"]["holds"], told["printing"]["measured"]
    assert told["pool"]["holds"]
    assert told["graph_pool"]["holds"]
    assert told["backwards"]["holds"]
    assert told["variants"]["holds"]


def test_as_a_tenant_it_asks_what_the_library_makes_of_its_work(world: World) -> None:
    """Only what does not go by this machine's speed is held here; without the library there is nothing to ask."""
    tenant = world.tenant(policy=Policy.BURST_SHARE, memory=2**30)
    command = [sys.executable, "-I", "-S", str(ROOT / "bench/card_probes.py"), "--under"]
    told = []
    for where in (tenant.environment, world.plain_environment()):
        done = subprocess.run(
            command, env=where, capture_output=True, text=True, check=False, timeout=WAIT
        )
        lines = map(json.loads, done.stdout.splitlines())
        told.append({one["probe"]: (one["holds"], one["measured"]) for one in lines})
    under, bare = told

    assert list(under) == list(bare) == list(card_probes.UNDER)
    assert under["shown"] == (True, "1024.00 MiB, free 1024.00 MiB")
    assert under["capture"] == (
        True,
        "after its own work: 0, after short work: 0, after legacy: 0",
    )
    for probe in ("together", "overlap", "apart"):
        assert float(re.findall(r"counted ([\d.]+) ms", under[probe][1])[0]) > 1
    assert {bare[probe][1] for probe in ("shown", "capture", "together", "tiny")} == {
        "not asked: this process is under no library"
    }


def test_the_probes_know_what_the_library_asks_of_a_driver() -> None:
    """Read from its sources, so that a function that it begins to use is looked for as well."""
    assert ("cuLaunchKernel_ptsz", "cuLaunchKernel", 7000, 1) in card_probes.hooks()
    text = "".join(one.read_text() for one in card_probes.SOURCES.glob("*.c"))
    asked = card_probes.asked()
    assert {"cuEventRecord", "cuStreamQuery", "cuThreadExchangeStreamCaptureMode"} <= asked
    assert len(re.findall(r"\bASK\(", text)) == len(re.findall(card_probes.ASKED, text))


def test_a_probe_that_falls_or_hangs_is_told_and_the_next_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An unknown card may break a process; the questions behind it are asked all the same."""
    script = tmp_path / "probes.py"
    script.write_text(
        "import json, os, sys, time\n"
        "names = ['first', 'falls', 'hangs', 'last']\n"
        "if '--after' in sys.argv: names = names[names.index(sys.argv[-1]) + 1:]\n"
        "for name in names:\n"
        "    if '--list' not in sys.argv and name == 'falls': os._exit(11)\n"
        "    if '--list' not in sys.argv and name == 'hangs': time.sleep(600)\n"
        "    print(json.dumps({'probe': name, 'assumption': 'a', 'holds': name != 'last', 'measured': '1'}), flush=True)\n"
    )
    monkeypatch.setattr(gpu, "probing", lambda *more: [sys.executable, str(script), *more])
    # What does not hang has long: a busy machine starts Python late.
    timer, waits = threading.Timer, iter((240, 240, 0.1, 240))
    monkeypatch.setattr(threading, "Timer", lambda _each, end: timer(next(waits), end))
    monkeypatch.setattr(gpu, "RECORD", {**gpu.RECORD, "assumptions": []})

    wrong = gpu.asked((), {}, 600)

    assert [(one[0], one[2]) for one in gpu.RECORD["assumptions"]] == [
        ("first", True),
        ("falls", None),
        ("hangs", None),
        ("last", False),
    ]
    assert wrong == ["last"]
    assert capsys.readouterr().out.count("hangs or crashes") == 2


def test_a_share_of_arithmetic_is_taken_at_the_clock_of_the_rate_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A card that is half idle runs faster: without this, 30 % of its time would read as 33 %."""
    clocks = [{"at": i * 10**8, "mhz": 1980} for i in range(100)]
    monkeypatch.setattr(gpu, "RECORD", {**gpu.RECORD, "rows": [], "clocks": clocks})
    series = [[(i * 10**7, 33 * i) for i in range(400)]]
    rate = gpu.Rate(10_000, 1800)

    mul = gpu.parts(series, rate, gpu.Kind("", "mul", 1))
    copy = gpu.parts(series, rate, gpu.Kind("", "copy", 1))

    assert mul == [pytest.approx(30)]
    assert copy == [pytest.approx(33)]
    assert gpu.RECORD["rows"][0][4] == "(at 1980 MHz; alone 1800)"


FINE = {"memory": [True], "preload": [True], "kills": [True], "graphs": [True]}


@pytest.mark.parametrize(
    ("good", "wrong", "confirmed", "more"),
    [
        (FINE, [], ["memory caps", "compute"], 0),
        ({**FINE, "graphs": [True, False]}, [], ["memory caps"], 0),
        ({**FINE, "memory": [True, False]}, [], ["compute"], 0),
        (FINE, ["variants"], ["compute"], 0),
        (FINE, ["legacy"], ["memory caps"], 0),
        (FINE, ["heap"], ["memory caps", "compute"], 1),
        ({"memory": [True], "preload": [True]}, [], ["memory caps"], 0),
        ({"graphs": [True]}, [], ["compute"], 0),
        ({}, [], [], 0),
    ],
)
def test_what_is_not_confirmed_is_to_be_switched_off(
    good: dict[str, list[bool]], wrong: list[str], confirmed: list[str], more: int
) -> None:
    """What was not measured is not confirmed either; caps and compute are judged by what each rests on."""
    advice = gpu.advised(good, wrong)

    assert [line.partition(":")[0] for line in advice[:2] if ": nothing; " in line] == confirmed
    assert len(advice) == 2 + more


def test_every_probe_has_a_sentence_for_who_reads_the_page() -> None:
    """A card that differs from the library's assumption is of use only with what to do about it."""
    told = (ROOT / "docs/how-to/first-card.md").read_text()
    figures = {"start", "totals", "lazy", "fills", "moved", "shown"}

    for probe in {*card_probes.PROBES, *card_probes.UNDER} - figures:
        assert f"`{probe}`" in told, probe
    assert set(gpu.INSTEAD) <= {*card_probes.PROBES, *card_probes.UNDER}


@pytest.fixture
def elsewhere(build: Path, tmp_path: Path) -> Path:
    """A copy of the script with the programs that it runs, to be broken; nothing is built there."""
    shutil.copytree(build, tmp_path / "build/native", ignore=shutil.ignore_patterns(".lock"))
    (tmp_path / "bench").mkdir()
    shutil.copy(ROOT / "bench/gpu.py", tmp_path / "bench/gpu.py")
    return tmp_path


def test_a_part_that_fails_is_told_and_the_next_begins(world: World, elsewhere: Path) -> None:
    """If a card's kernels cannot be loaded, memory is measured, and each part that needs kernels says why it is not."""
    load = elsewhere / "build/native/load"
    load.unlink()
    load.write_text("#!/bin/sh\necho cuModuleLoadData: driver error 221 >&2\nexit 3\n")
    load.chmod(0o755)

    done = run(world, "--kills", "0", "--budget", "480", script=elsewhere / "bench/gpu.py")

    assert done.returncode == 0, done.stderr
    assert re.search(r"^  plain +2048 MiB .* ok$", done.stdout, re.MULTILINE)
    assert re.search(
        r"^  many small +failed: .*221 \(libnvidia-ptxjit.* MISSED$", done.stdout, re.MULTILINE
    )
    assert re.search(r"^  without the library +failed: .*221", done.stdout, re.MULTILINE)
    assert re.search(r"^\d+ s; MISSED: .*matrix arithmetic.*latency", done.stdout, re.MULTILINE)


UP_WHEN_IT_HANGS = """
import pathlib, sys, threading, time
sys.path.insert(0, str(pathlib.Path(__file__).parent))
import gpu

def late(seconds, function, timer=threading.Timer):
    def hangs():
        while not list(pathlib.Path(gpu.__file__).parents[1].glob("build/native/*.hangs")):
            time.sleep(0.05)
        time.sleep(0.1)
        function()
    return threading.Thread(target=hangs) if seconds > 1000 else timer(seconds, function)

def slow(begun, summary=gpu.summary):
    time.sleep(0.3)
    summary(begun)

threading.Timer, gpu.summary = late, slow
gpu.main()
"""
"""The script, whose time of all is up as soon as a program hangs, whatever the machine's speed.

It pauses before its table, so that whatever else its end breaks would be in the table.
"""


def test_what_hangs_ends_with_the_table(world: World, elsewhere: Path) -> None:
    """The time of all is bounded, and what was measured until then is there."""
    load = elsewhere / "build/native/load"
    load.unlink()
    load.write_text('#!/bin/sh\n: > "$0.hangs"\nexec sleep 300\n')
    load.chmod(0o755)
    script = elsewhere / "bench/in_time.py"
    script.write_text(UP_WHEN_IT_HANGS)

    done = run(world, "--budget", "1000", script=script)

    assert done.returncode == 1, done.stderr
    assert re.search(r"^  plain +2048 MiB .* ok$", done.stdout, re.MULTILINE)
    assert re.search(r"^\d+ s; MISSED: .*time: cut off$", done.stdout, re.MULTILINE)


def test_without_the_library_in_force_nothing_is_judged(world: World, elsewhere: Path) -> None:
    """A loader that cannot load it goes on without, and overhead would look like none."""
    (elsewhere / "build/native/libpartage-isolation.so").write_bytes(b"no library")

    done = run(world, script=elsewhere / "bench/gpu.py")

    assert done.returncode == 1
    assert "does not load the library here" in done.stderr
    assert "ok" not in done.stdout.split()


def test_a_card_that_is_not_there_is_told(world: World) -> None:
    """The message is a sentence, not a traceback."""
    world.card.kill()
    world.card.wait()

    done = run(world)

    assert done.returncode == 1
    assert re.match(
        r"gpu: no CUDA driver or card .*cuInit: driver error 999: unknown", done.stderr
    )


@pytest.mark.parametrize(
    ("got", "quotas", "error", "lost"),
    [
        ([29.7, 69.3], [30, 70], 0.0, 1.0),  # what turns cost is lost to both
        ([28.0, 68.0], [30, 70], 0.83, 4.0),
        ([27.0, 72.0], [30, 70], 2.73, 1.0),
        ([31.1], [30], 1.1, 0.0),  # alone it has to have its quota
        ([0.0, 0.0], [50, 50], 50.0, 100.0),
    ],
)
def test_parts_are_judged_apart_from_what_turns_cost(
    got: list[float], quotas: list[float], error: float, lost: float
) -> None:
    """Two that lose alike are as they should be to each other, and the loss has a bound of its own."""
    assert gpu.off(got, quotas) == pytest.approx((error, lost), abs=0.01)
