"""What a running scheduler recorded is replayed to the identical decisions."""

import asyncio
import random
import re
import resource
import shutil
import sys
from importlib import import_module
from pathlib import Path

import pytest
from click.testing import CliRunner

from fakes.clock import SteppedClock
from partage.cli.main import main
from partage.daemon import recording
from partage.daemon.recording import Recorder, RecordSettings
from partage.kube.clock import SystemClock
from partage.model.errors import InvalidDocument, InvalidValue
from partage.model.node import Node
from partage.model.policy import Policy
from partage.model.reason import Refusal
from partage.scheduler.events import NodeGone, NodeSeen, Placement, PodGone
from partage.scheduler.journal import EngineState
from partage.sim.rerun import Compared, rerun
from partage.wire import journal
from partage.wire.journal import Line, read_lines

sys.path.append(str(Path(__file__).parents[1] / "embedded"))

from up_world import PODS, World, node, pod, run, running

ASKS = (
    {"koordinator.sh/gpu-core": 50, "koordinator.sh/gpu-memory-ratio": 50},
    {"koordinator.sh/gpu": 100},
    {"kubernetes.io/gpu": 200},
    {"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8000, "nvidia.com/gpucores": 30},
    {"tke.cloud.tencent.com/qgpu-core": 25, "tke.cloud.tencent.com/qgpu-memory": 10},
    {"koordinator.sh/gpu": 1600},  # no node has as many
)
HEADER = b'{"kind":"Record","apiVersion":"partage.io/v1","value":{}}\n'
FLEET = (node("n0", cards=2), node("n1", cards=2), node("n2", cards=4))


async def churn(world: World, seed: int, steps: int) -> None:
    """Pods come and go by chance."""
    chance = random.Random(seed)  # noqa: S311 # a story that can be repeated
    alive: list[str] = []
    for step in range(steps):
        if alive and chance.random() < 0.4:
            name = alive.pop(chance.randrange(len(alive)))
            await world.send("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0", {})
        else:
            name = f"p{step}"
            spec = (
                {"nodeSelector": {"kubernetes.io/hostname": "n2"}} if chance.random() < 0.2 else {}
            )
            await world.create(PODS, pod(name, chance.choice(ASKS), **spec))
            alive.append(name)
        if not step % 10:
            await asyncio.sleep(0.05)
    await world.create(PODS, pod("last", ASKS[5]))
    await world.refused("last")


def recorded(path: Path, *, steps: int = 120, limit: int = 2**30, seed: int = 1) -> None:
    """A record of such a story."""

    async def story() -> None:
        async with running(FLEET, record=RecordSettings(path, limit)) as world:
            await churn(world, seed, steps)

    run(story())


def replayed(path: Path, policy: Policy | None = None) -> list[Compared]:
    """The record's decisions, taken again."""
    with path.open("rb") as lines:
        return list(rerun(read_lines(str(path), lines), policy))


def test_pods_that_come_and_go_are_decided_again_alike(tmp_path: Path) -> None:
    """Every hold and every bind, with all cards, reasons and numbers."""
    path = tmp_path / "record"
    recorded(path)

    found = replayed(path)

    assert [one.id for one in found if not one.same] == []
    decisions = [one.question.decision for one in found]
    assert sum(isinstance(one, Placement) for one in decisions) > 20
    assert sum(isinstance(one, Refusal) for one in decisions) > 5
    assert {one.question.verb for one in found} == {"hold", "place_on"}
    assert len({one.id for one in found}) == len(found)


def test_a_file_that_was_turned_is_replayed_alone(tmp_path: Path) -> None:
    """A record begins with the engine's state, so its later half says the same by itself."""
    path = tmp_path / "record"
    recorded(path, limit=150_000, steps=200)

    for half in (path, tmp_path / "record.1"):
        found = replayed(half)
        assert [one.id for one in found if not one.same] == []
    assert replayed(tmp_path / "record.1")


def test_another_policy_decides_otherwise(tmp_path: Path) -> None:
    """What if: under spread some pod goes elsewhere, and the replay reports that."""
    path = tmp_path / "record"
    recorded(path, steps=30)

    found = replayed(path, Policy.parse("spread"))

    assert any(not one.same for one in found)


def test_a_decision_that_was_changed_is_found(tmp_path: Path) -> None:
    """A replay can fail: another node in the file is a difference."""
    path = tmp_path / "record"
    recorded(path, steps=5)
    lines = path.read_bytes().splitlines(keepends=True)
    at = next(i for i, one in enumerate(lines) if b'"Decision"' in one and b'"placement":{' in one)
    lines[at] = lines[at].replace(b'"minor":', b'"minor":1', 1)
    path.write_bytes(b"".join(lines))

    assert any(not one.same for one in replayed(path))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"kind: Pod\n", "is no recording"),
        (b'{"kind":"Decision","engine":"a","value":{}}\n', "is no recording"),
        (b'{"kind":"Record","apiVersion":"partage.io/v9","value":{}}\n', "partage.io/v9"),
        (HEADER + b'{"kind":"New"}\n', "line 2"),
        (HEADER + b'{"kind":"Sta\xff"}\n', "line 2: 'utf-8'"),
        (
            HEADER + b'{"kind":"PodGone","engine":"a","value":{"uid":"u"}}\n',
            "does not begin with a state",
        ),
    ],
    ids=["manifest", "no-header", "other-version", "unknown-kind", "no-text", "no-state"],
)
def test_a_broken_record_is_named(tmp_path: Path, text: bytes, told: str) -> None:
    """The message says what is wrong with which line, and what to do."""
    path = tmp_path / "record"
    path.write_bytes(text)

    with pytest.raises(InvalidDocument, match=told):
        replayed(path)


@pytest.mark.parametrize("name", [b"rank", b"next_rank"])
@pytest.mark.parametrize("rank", [b"-1", b"1048576", b"1" + 30 * b"0"])
def test_an_impossible_rank_is_named(tmp_path: Path, name: bytes, rank: bytes) -> None:
    """A node's rank is a key of a bounded index."""
    path = tmp_path / "record"
    recorded(path, steps=1)
    text, count = re.subn(b'"%b":\\d+' % name, b'"%b":%b' % (name, rank), path.read_bytes())
    assert count
    path.write_bytes(text)

    with pytest.raises(InvalidDocument, match=r"line \d+: .*rank"):
        replayed(path)


def test_a_last_line_without_an_end_is_left_out(tmp_path: Path) -> None:
    """A program that was killed leaves half a line."""
    path = tmp_path / "record"
    path.write_bytes(HEADER + b'{"kind":"Sta')

    assert replayed(path) == []


def test_a_record_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    """The error comes at the start, with the file and what to do."""
    (tmp_path / "file").write_text("", "utf-8")
    settings = RecordSettings(tmp_path / "file" / "record")

    with pytest.raises(InvalidValue, match=r"--record .*name a file"):
        Recorder(settings, "a", SystemClock())


def test_a_record_goes_on_after_a_file_that_could_not_be_begun(tmp_path: Path) -> None:
    """A disk may be full just when the next file begins; a new record begins when there is room."""
    folder = tmp_path / "folder"
    path = folder / "record"

    async def story() -> None:
        recorder = Recorder(RecordSettings(path, limit=200), "a", SystemClock())
        engine = recorder.engine(Policy())
        task = asyncio.create_task(recorder.run())
        shutil.rmtree(folder)
        folder.write_text("", "utf-8")
        for number in range(3):
            engine.handle(PodGone(f"u{number}"))
            await recorder.flush()
        folder.unlink()
        engine.handle(PodGone("after"))
        await recorder.flush()
        task.cancel()
        await asyncio.wait((task,))

    asyncio.run(story())

    assert replayed(path) == []


def test_what_is_being_written_comes_before_what_waits(tmp_path: Path) -> None:
    """A recorder that is stopped in the middle of a batch loses nothing and keeps the order."""
    path = tmp_path / "record"

    async def story() -> None:
        recorder = Recorder(RecordSettings(path), "a", SystemClock())
        engine = recorder.engine(Policy())
        task = asyncio.create_task(recorder.run())
        for number in range(20_000):
            engine.handle(PodGone(f"u{number}"))
        flushing = asyncio.create_task(recorder.flush())
        await asyncio.sleep(0)
        engine.handle(PodGone("last"))
        flushing.cancel()
        task.cancel()
        await asyncio.wait((task, flushing))

    asyncio.run(story())
    with path.open("rb") as file:
        entries = [one.entry for one in read_lines("record", file) if isinstance(one, Line)]

    expected = [PodGone(f"u{number}") for number in range(20_000)]
    assert entries[1:] == [*expected, PodGone("last")]


async def ended(recorder: Recorder) -> None:
    """Run the recorder to its orderly end, as when the service stops."""
    task = asyncio.create_task(recorder.run())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait((task,))


def test_a_batch_that_is_half_written_is_taken_back(tmp_path: Path) -> None:
    """A disk that is full for a while costs entries, but leaves a file that can be read."""
    path = tmp_path / "record"
    before, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    async def story() -> None:
        recorder = Recorder(RecordSettings(path), "a", SystemClock())
        engine = recorder.engine(Policy())
        await recorder.flush()
        size = path.stat().st_size
        engine.handle(NodeSeen(Node("n", labels={"large": "x" * 2**23})))
        resource.setrlimit(resource.RLIMIT_FSIZE, (2**22, hard))
        try:
            await recorder.flush()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (before, hard))
        assert path.stat().st_size == size
        engine.handle(PodGone("after"))
        await ended(recorder)

    asyncio.run(story())

    assert replayed(path) == []
    with path.open("rb") as file:
        entries = [one.entry for one in read_lines("record", file) if isinstance(one, Line)]
    assert [node.name for node, _ in entries[-1].nodes] == ["n"]


def test_an_entry_that_cannot_be_written_does_not_end_the_record(tmp_path: Path) -> None:
    """Any error costs the batch; later entries follow a new state."""
    path = tmp_path / "record"

    async def story() -> None:
        recorder = Recorder(RecordSettings(path), "a", SystemClock())
        engine = recorder.engine(Policy())
        engine.handle(PodGone("\ud800"))  # no text of a file
        await recorder.flush()
        engine._gone.clear()
        engine.handle(PodGone("after"))
        await recorder.flush()
        engine.handle(PodGone("last"))
        await recorder.flush()
        await ended(recorder)

    asyncio.run(story())
    with path.open("rb") as file:
        entries = [one.entry for one in read_lines("record", file) if isinstance(one, Line)]

    assert [tuple(entries[0].gone), entries[1]] == [("after",), PodGone("last")]


def test_a_state_that_is_larger_than_a_file_is_not_written_again_and_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Pods of some tenants may ask in a megabyte each. The former file stays, and recording begins again without them."""
    path, encoded = tmp_path / "record", []
    plain = recording.encode_entry
    monkeypatch.setattr(
        recording, "encode_entry", lambda *given: encoded.append(given[1]) or plain(*given)
    )

    async def story() -> None:
        clock = SteppedClock()
        recorder = Recorder(RecordSettings(path, limit=2**20), "a", clock)
        engine = recorder.engine(Policy())
        await recorder.flush()
        for number in range(24):
            engine.handle(NodeSeen(Node(f"n{number}", labels={"large": "x" * 2**20})))
            await recorder.flush()
        before = len(encoded)
        for number in range(100):
            engine.handle(PodGone(f"u{number}"))
            await recorder.flush()
        assert len(encoded) - before < 5
        for number in range(24):
            engine.handle(NodeGone(f"n{number}"))
        await clock.advance(60)
        engine.handle(PodGone("after"))
        await recorder.flush()
        engine.handle(PodGone("last"))
        await recorder.flush()
        await ended(recorder)

    asyncio.run(story())
    assert sum(one.stat().st_size for one in tmp_path.iterdir()) < 2 * (2**20 + recording._BEYOND)
    with path.open("rb") as file:
        entries = [one.entry for one in read_lines("record", file) if isinstance(one, Line)]
    assert [type(one) for one in entries] == [EngineState, PodGone]
    assert caplog.text.count("larger than a file may be") < 4


def test_many_large_entries_make_no_file_larger_than_it_may_be(tmp_path: Path) -> None:
    """What comes within half a second may be more than a file; the next one begins with a state."""
    path = tmp_path / "record"

    async def story() -> None:
        recorder = Recorder(RecordSettings(path, limit=2**20), "a", SystemClock())
        engine = recorder.engine(Policy())
        await recorder.flush()
        for number in range(40):
            engine.handle(NodeSeen(Node("n", labels={"large": f"{number}" * 2**19})))
        await recorder.flush()
        assert path.stat().st_size < 2**20
        engine.handle(NodeGone("n"))
        await recorder.flush()
        engine.handle(PodGone("after"))
        await ended(recorder)

    asyncio.run(story())
    for file in tmp_path.iterdir():
        assert replayed(file) == []
        assert file.stat().st_size < 2**20


def test_a_line_that_is_too_long_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no last line of a program that was killed."""
    path = tmp_path / "record"
    recorded(path, steps=1)
    for module in (journal, import_module("partage.cli.replay")):
        monkeypatch.setattr(module, "LONGEST", 2**9)

    outcome = CliRunner().invoke(main, ["replay", str(path)])

    assert outcome.exit_code == 2
    assert "line 5: longer than" in outcome.stderr
