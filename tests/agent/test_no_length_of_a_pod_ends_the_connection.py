"""A tenant's pods and containers may be as long as Kubernetes allows: the runtime asks the agent about each of them.

Without the agent's answer a runtime starts containers unchanged. containerd 1.7 sends a list of everything in one message
of any length. containerd 2 sends eight pods and containers at once, and none of them if those exceed a message.
"""

import asyncio
import contextlib
import struct
import threading
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_a_plugin_serves_the_runtime import MAIN, POD, Decisions, _running

from fakes.nri_runtime import SynchronizeRequest, fake_runtime
from partage.agent.injection import looked_at
from partage.agent.nri import bounds
from partage.agent.nri.long import LARGEST_PART, LongMessage
from partage.agent.nri.messages import (
    PLUGIN,
    Container,
    ContainerRequest,
    CreateContainerResponse,
    Event,
    PodSandbox,
    Request,
    StateChange,
    Status,
)
from partage.agent.nri.plugin import Plugin, PluginOptions, _Connection
from partage.agent.nri.session import LARGEST_MESSAGE, Called, Kind, Listed, Session
from partage.vendors import names
from partage.wire.protobuf import Malformed

RECORD = {names.ALLOCATION: "record"}
GREEDY = "NVIDIA_VISIBLE_DEVICES=all"


def _labels(size: int) -> dict[str, str]:
    """Labels of so many bytes in a message."""
    return {f"k{number:06}": "v" * 85 for number in range(size // 100)}


def _message(length: int) -> tuple[str, ...]:
    """Variables that are longer than a message together."""
    return tuple(f"V{number}={'x' * 99_000}" for number in range(length // 99_000 + 1))


async def test_a_container_that_is_too_long_is_refused_on_the_same_connection(
    tmp_path: Path,
) -> None:
    """The connection goes on: the next container has its decision, by the same agent."""
    decisions = Decisions()
    async with fake_runtime(tmp_path / "s") as runtime, _running(runtime, decisions):
        for long in (
            replace(MAIN, env=_message(2 * LARGEST_MESSAGE)),
            replace(MAIN, env=(*_message(bounds.LARGEST_CONTAINER), GREEDY)),
            replace(MAIN, env=("A=",) * (bounds.MOST_FIELDS + 1)),
        ):
            answer = await runtime.create(POD, long)
            assert isinstance(answer, Status)
            assert answer.message.startswith("pod team/train, container main: variables, arg")

        assert isinstance(await runtime.create(POD, MAIN), CreateContainerResponse)
        assert runtime.connections == 1
    assert len(decisions.asked) == 1


async def test_the_end_of_a_container_is_heard_however_long_it_is(tmp_path: Path) -> None:
    """One that started while the agent was away holds its cards until then."""
    decisions = Decisions()
    long = replace(MAIN, env=_message(2 * LARGEST_MESSAGE))
    wide = replace(POD, labels=_labels(1_500_000))
    async with fake_runtime(tmp_path / "s") as runtime, _running(runtime, decisions):
        await runtime.ask("StopContainer", ContainerRequest(wide, long))
        await runtime.ask("StateChange", StateChange(Event.REMOVE_CONTAINER, wide, long))
        assert runtime.connections == 1
    assert decisions.gone == ["c1", "c1"]


async def test_all_pods_are_listed_however_long_they_are_together(tmp_path: Path) -> None:
    """An agent that starts beside a tenant's pods hears of all of them, and serves."""
    long = replace(POD, annotations=RECORD, labels=_labels(LARGEST_MESSAGE // 3))
    decisions = Decisions()
    async with fake_runtime(tmp_path / "s") as runtime:
        runtime.at_once, runtime.pods = True, (long,) * 7
        runtime.containers = (MAIN, replace(MAIN, env=_message(LARGEST_PART)), MAIN)
        async with _running(runtime, decisions, kept=looked_at):
            assert runtime.connections == 1

    assert decisions.pods == (replace(POD, annotations=RECORD),) * 7
    assert decisions.containers == (MAIN, replace(MAIN, env=(GREEDY,)), MAIN), (
        "one that cannot be read whole counts as asking for every card"
    )


async def test_a_list_is_answered_before_it_is_read(tmp_path: Path) -> None:
    """The runtime waits two seconds for all of its parts together, and drops the plugin afterwards."""
    may = threading.Event()
    asked: list[str] = []

    def kept(container: Container) -> Container:
        assert may.wait(240)
        asked.append(container.id)
        return container

    decisions = Decisions()
    async with fake_runtime(tmp_path / "s") as runtime:
        runtime.pods, runtime.containers = (POD,) * 5, (MAIN,) * 3
        stop = asyncio.Event()
        options = PluginOptions(runtime.socket, deadline=0.2, kept=kept)
        plugin = Plugin(decisions, options)
        task = asyncio.create_task(plugin.run(stop))
        async with asyncio.timeout(240):
            await runtime.plugin.wait()
            assert (plugin.ready.is_set(), asked) == (False, [])
            may.set()
            await plugin.ready.wait()
        assert (runtime.connections, decisions.told) == (1, [(5, 3)])
        stop.set()
        await task


async def test_of_an_endless_list_a_bounded_part_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond that the runtime waits until the parts before have been read."""
    monkeypatch.setattr("partage.agent.nri.plugin._AHEAD", 1000)
    read: list[int] = []

    def kept(container: Container) -> Container:
        read.append(len(container.env))
        return Container(container.id)

    async with fake_runtime(tmp_path / "s") as runtime:
        runtime.at_once = True
        runtime.containers = (replace(MAIN, env=("A=" + "x" * 90_000,)),) * 60
        async with _running(runtime, Decisions(), kept=kept) as plugin:
            assert plugin.ready.is_set()
    assert read == [1] * 60


def test_eight_of_the_longest_fit_in_one_message() -> None:
    """Containerd 2 sends four pods and four containers, if more are too long; the agent's edits are among them."""
    pod, edits = 360 << 10, 64 << 10
    assert 4 * (pod + bounds.LARGEST_CONTAINER + edits) <= LARGEST_MESSAGE


LISTS = st.builds(
    SynchronizeRequest,
    st.lists(st.builds(PodSandbox, st.text(max_size=9)), max_size=4).map(tuple),
    st.lists(st.builds(Container, st.text(max_size=9)), max_size=4).map(tuple),
    st.booleans(),
)


@given(LISTS, st.lists(st.integers(1, 9)), st.integers(0, 2**40))
def test_a_long_list_is_the_sum_of_its_parts(
    told: SynchronizeRequest, cuts: list[int], nanoseconds: int
) -> None:
    """However its bytes arrive."""
    data = Request(PLUGIN, "Synchronize", told.encode(), nanoseconds).encode()
    long = LongMessage(7, len(data))
    parts = bytearray()
    at = 0
    for step in (*cuts, len(data)):
        for part in long.feed(data[at : at + step]):
            parts += part
        at += step

    assert (long.missing, long.timeout, long.service) == (0, nanoseconds, PLUGIN)
    assert SynchronizeRequest.decode(bytes(parts) + bytes(long.rest)) == told


@given(st.binary(max_size=64), st.booleans())
def test_a_long_message_may_hold_anything(data: bytes, lists: bool) -> None:  # noqa: FBT001 # drawn
    """It is read, or `Malformed`; no part is longer than it."""
    head = Request(PLUGIN, "Synchronize").encode() if lists else b""
    long = LongMessage(1, len(head + data))
    with contextlib.suppress(Malformed):
        assert sum(map(len, long.feed(head + data))) + len(long.rest) <= len(data)


def test_of_a_long_list_one_part_is_held() -> None:
    """The bytes of a gigabyte of pods pass by."""
    pod = PodSandbox("p", labels=_labels(100_000)).encode()
    told = SynchronizeRequest((PodSandbox("p", labels=_labels(100_000)),) * 50)
    request = Request(PLUGIN, "Synchronize", told.encode()).encode()
    session = Session()
    data = struct.pack(">IIBB", len(request), 5, Kind.REQUEST, 0) + request
    data = struct.pack(">II", 1, len(data)) + data
    found = [
        one
        for at in range(0, len(data), 65_536)
        for one in session.receive(data[at : at + 65_536])
    ]

    assert [len(one.payload) - len(pod) < 10 for one in found if isinstance(one, Listed)] == [
        True
    ] * 50
    assert [type(one) for one in found[50:]] == [Called]


async def test_a_part_of_a_list_is_measured_once() -> None:
    """A list may have tens of thousands of parts, and the runtime gives all of it two seconds."""
    measured = 0

    class Part(bytes):
        __slots__ = ()

        def __len__(self) -> int:
            nonlocal measured
            measured += 1
            return super().__len__()

    serving = _Connection(cast("Plugin", None), cast("asyncio.StreamWriter", None))
    for _ in range(1000):
        await serving._hold(Part(b"x"))

    assert measured == 1000
