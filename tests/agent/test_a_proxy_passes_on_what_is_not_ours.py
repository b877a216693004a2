"""The proxy beside a runtime that may fail at any point: requests as bytes, and what each container holds then."""

import asyncio
import contextlib
import json
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partage.agent.container_admission import Keeper
from partage.agent.container_edits import HostFacts, Instance
from partage.agent.cri import messages as cri
from partage.agent.cri.edits import asked, device_file, edited, image_environment
from partage.agent.cri.proxy import Proxy, ProxyOptions
from partage.agent.host import Host
from partage.agent.injection import Place
from partage.agent.journal import Entry, Journal
from partage.agent.metrics import Books, NodeSeries, Tallies
from partage.agent.nri.messages import Adjustment, Device, LinuxAdjustment, Mount, Variable
from partage.agent.protobuf import raw_fields
from partage.model import device as model
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import DeviceType
from partage.model.errors import InvalidValue
from partage.model.node import Node
from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.wire.protobuf import Malformed, wrapped
from partage.wire.record import encode

GIB = 2**30
CARD = model.Device(DeviceType.GPU, 0, "GPU-0", vendor="nvidia", memory_bytes=16 * GIB, slots=10)
NODE = Node("n1", devices=(CARD,))
WHOLE = Grant(
    "main", DeviceType.GPU, 0, "GPU-0", 1000, 16 * GIB, GrantMode.WHOLE, protocol="koordinator"
)
WORDS = st.text(st.sampled_from("ABC_/"), min_size=1, max_size=3)


# --- requests as bytes -----------------------------------------------------------------------


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80))
def test_fields_are_cut_where_they_end(data: bytes) -> None:
    """Any bytes: put together again they are the same, or they were no message."""
    try:
        parts = [raw for _, raw, _ in raw_fields(data)]
    except Malformed:
        return
    assert b"".join(parts) == data


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(WORDS, WORDS),
    st.dictionaries(WORDS, WORDS),
    st.binary(max_size=20),
    st.lists(st.tuples(WORDS, WORDS), max_size=3),
)
def test_only_what_is_ours_is_changed(
    env: dict[str, str], ours: dict[str, str], foreign: bytes, mounts: list[tuple[str, str]]
) -> None:
    """Each variable is there once, ours wins, and fields that the proxy does not know stay as they came."""
    config = cri.ContainerConfig(
        cri.ContainerName("main"),
        envs=tuple(Variable(*pair) for pair in env.items()),
        mounts=tuple(cri.Mount(inside, outside) for inside, outside in mounts),
    ).encode() + wrapped(99, foreign)
    request = wrapped(1, b"pod") + wrapped(2, config) + wrapped(77, foreign)
    adjustment = Adjustment(
        annotations={names.SERVED: "b"},
        env=tuple(Variable(*pair) for pair in ours.items()),
        mounts=(Mount("A", "bind", "/host", ("rbind", "ro")),),
        linux=LinuxAdjustment((Device("/dev/x", "c", 1, 3),)),
    )

    result = edited(request, adjustment, lambda major, minor: f"/made/{major}-{minor}")

    found = cri.CreateRequest.decode(result)
    assert found.config is not None
    assert [(one.key, one.value) for one in found.config.envs] == [
        *((key, value) for key, value in env.items() if key not in ours),
        *ours.items(),
    ]
    assert [(one.container_path, one.host_path) for one in found.config.mounts] == [
        *(pair for pair in mounts if pair[0] != "A"),
        ("A", "/host"),
    ]
    assert found.config.devices == (cri.Device("/dev/x", "/made/1-3", "rwm"),)
    assert found.config.annotations == {names.SERVED: "b"}
    assert result.startswith(wrapped(1, b"pod"))
    assert result.endswith(wrapped(77, foreign))
    (inside,) = [value for number, _, value in raw_fields(result) if number == 2]
    assert wrapped(99, foreign) in inside


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(cri.CreateRequest("p"), id="nobody"),
        pytest.param(
            cri.CreateRequest("p", cri.ContainerConfig(), cri.PodConfig()), id="no names"
        ),
        pytest.param(
            cri.CreateRequest(
                "p",
                cri.ContainerConfig(cri.ContainerName("main")),
                cri.PodConfig(cri.PodName("pod", "", "team")),
            ),
            id="no UID",
        ),
    ],
)
def test_a_request_that_does_not_say_who_is_refused(request_: cri.CreateRequest) -> None:
    """Without container, pod and UID there is no identity, and none is guessed."""
    with pytest.raises(Malformed, match="without"):
        asked(request_, ())


@pytest.mark.parametrize(
    ("info", "env"),
    [
        pytest.param({"info": '{"imageSpec": {"config": {"Env": ["A=b"]}}}'}, ("A=b",), id="set"),
        pytest.param({"info": '{"imageSpec": {"config": {}}}'}, (), id="none"),
        pytest.param({}, ("NVIDIA_VISIBLE_DEVICES=all",), id="not said"),
        pytest.param({"info": "{", "x": "[1]"}, ("NVIDIA_VISIBLE_DEVICES=all",), id="nonsense"),
    ],
)
def test_an_image_that_is_not_known_counts_as_greedy(
    info: dict[str, str], env: tuple[str, ...]
) -> None:
    """The runtime reports the variables of an image; where it does not, the worst is assumed."""
    assert image_environment(cri.Details(info)) == env


def test_a_device_file_is_what_its_numbers_say(tmp_path: Path) -> None:
    """Another file in its place is refused; where root may make the file, it is made once."""
    file_of = partial(device_file, tmp_path, "/run/devices")
    (tmp_path / "run/devices").mkdir(parents=True)
    (tmp_path / "run/devices/c-1-5").write_text("no device")

    with pytest.raises(InvalidValue, match="c-1-5 is not the device 1:5"):
        file_of(1, 5)
    if os.geteuid() == 0:
        assert file_of(1, 3) == file_of(1, 3) == "/run/devices/c-1-3"


# --- a runtime that fails --------------------------------------------------------------------


@dataclass
class Runtime:
    """The runtime's side of CRI, as far as the proxy sees it.

    Attributes:
        containers: that it has, by identity.
        fail: how the next CreateContainer ends, and whether the container is made all the same.
        made: makes containers instead, if given.
        configured: what the image says.
    """

    containers: dict[str, cri.ListedContainer] = field(default_factory=dict)
    requests: list[bytes] = field(default_factory=list)
    fail: tuple[grpc.StatusCode, bool] | None = None
    made: Callable[[bytes, Any], Awaitable[bytes]] | None = None
    configured: Mapping[str, Any] = field(default_factory=dict)

    async def asked(self, request: bytes, context: Any) -> bytes:
        """Make a container as given."""
        return await (self.made or self.create)(request, context)

    async def create(self, request: bytes, context: Any) -> bytes:
        """Make a container, or fail."""
        self.requests.append(request)
        fail, self.fail = self.fail, None
        told = cri.CreateRequest.decode(request)
        assert told.config is not None
        identity = f"c{len(self.requests)}"
        if fail is None or fail[1]:
            self.containers[identity] = cri.ListedContainer(
                identity, told.pod, told.config.metadata, 1, told.config.annotations
            )
        if fail is not None:
            await context.abort(fail[0], "the runtime's own words", (("why", "because"),))
        return cri.Identity(identity).encode()

    async def listed(self, _request: bytes, _context: Any) -> bytes:
        """All containers."""
        return cri.ListedContainers(tuple(self.containers.values())).encode()

    async def nothing(self, _request: bytes, _context: Any) -> bytes:
        """An empty answer."""
        return b""

    async def image(self, _request: bytes, _context: Any) -> bytes:
        """The image of every container."""
        info = {"info": json.dumps({"imageSpec": {"config": self.configured}})}
        return cri.Details(info).encode()

    async def events(self, request: bytes, _context: Any) -> AsyncIterator[bytes]:
        """As many answers as are asked for."""
        for number in range(request[0]):
            yield bytes([number])


@dataclass
class World:
    """Runtime, keeper and proxy, with the kubelet's channel to it."""

    runtime: Runtime
    keeper: Keeper
    proxy: Proxy
    channel: Any
    now: list[float]

    async def create(self, uid: str, name: str = "main", attempt: int = 0) -> str:
        """Make a container that has the whole card; its identity, or how it was refused."""
        record = encode(Allocation(uid, "team", uid, "n1", (WHOLE,)))
        head = cri.PodName(uid, uid, "team")
        request = cri.CreateRequest(
            f"sandbox-{uid}",
            cri.ContainerConfig(cri.ContainerName(name, attempt)),
            cri.PodConfig(head, annotations={names.ALLOCATION: record}),
        )
        try:
            answer = await self.call("CreateContainer", request.encode())
        except grpc.aio.AioRpcError as error:
            return f"{error.code().name}: {error.details()}"
        return cri.Identity.decode(answer).id

    async def call(self, method: str, request: bytes) -> bytes:
        """Any call, through the proxy."""
        stub = self.channel.unary_unary(f"/{cri.RUNTIME}/{method}")
        answer: bytes = await stub(request, timeout=240)
        return answer

    async def look(self) -> None:
        """Have the proxy compare with what the runtime has."""
        assert await self.proxy._look() == ""


@contextlib.asynccontextmanager
async def _world(
    folder: Path, containers: Mapping[str, cri.ListedContainer] | None = None
) -> AsyncIterator[World]:
    (folder / "dev").mkdir(exist_ok=True)
    (folder / "dev/nvidia0").unlink(missing_ok=True)
    (folder / "dev/nvidia0").symlink_to("/dev/null")
    facts = HostFacts(lambda _pod, _card, _mig: Instance())
    place = Place(NODE, Settings(), FAMILIES, facts)
    journal = Journal(folder / "journal")
    keeper = Keeper(lambda: place, Host(folder), journal, Tallies())
    runtime = Runtime(dict(containers or {}))
    server = grpc.aio.server()
    one = grpc.unary_unary_rpc_method_handler
    handlers = {
        "CreateContainer": one(runtime.asked),
        "ListContainers": one(runtime.listed),
        "ListPodSandbox": one(runtime.nothing),
        "StartContainer": one(runtime.nothing),
        "StopContainer": one(runtime.nothing),
        "GetContainerEvents": grpc.unary_stream_rpc_method_handler(runtime.events),
    }
    image = {"ImageStatus": one(runtime.image)}
    server.add_generic_rpc_handlers(
        (
            grpc.method_handlers_generic_handler(cri.RUNTIME, handlers),
            grpc.method_handlers_generic_handler(cri.IMAGE, image),
        )
    )
    server.add_insecure_port(f"unix:{folder / 'runtime.sock'}")
    await server.start()
    options = ProxyOptions(
        folder / "cri.sock", folder / "runtime.sock", "/devices", folder, deadline=60, look=600
    )
    now = [1000.0]
    proxy = Proxy(keeper, options, lambda: now[0])
    stop = asyncio.Event()
    task = asyncio.create_task(proxy.run(stop))
    try:
        async with asyncio.timeout(240):
            await proxy.ready.wait()
        async with grpc.aio.insecure_channel(f"unix:{options.socket}") as channel:
            yield World(runtime, keeper, proxy, channel, now)
    finally:
        stop.set()
        await task
        await server.stop(None)
        journal.close()


ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="makes device files, which needs root")


@ROOT
async def test_a_container_is_known_by_the_identity_that_it_gets(folder: Path) -> None:
    """Written down before it is made, renamed after; a second one on the card is refused."""
    async with _world(folder) as world:
        assert await world.create("u1") == "c1"
        assert list(world.keeper.books.held) == ["c1"]
        assert "CardFull" in await world.create("u2")
        assert len(world.runtime.requests) == 1
        await world.look()
        assert world.keeper.unprotected == {}
        assert list(world.keeper.books.held) == ["c1"]
        await world.call("StopContainer", cri.Identity("c1").encode())
        assert list(world.keeper.books.held) == []
        assert await world.create("u2") == "c2"


@ROOT
@pytest.mark.parametrize(
    ("code", "made", "held"),
    [
        pytest.param(grpc.StatusCode.INTERNAL, False, [], id="refused"),
        pytest.param(grpc.StatusCode.UNAVAILABLE, False, [], id="lost before"),
        pytest.param(grpc.StatusCode.UNAVAILABLE, True, ["c1"], id="lost after"),
        pytest.param(grpc.StatusCode.DEADLINE_EXCEEDED, True, ["c1"], id="late"),
    ],
)
async def test_whatever_becomes_of_a_call_what_is_held_is_what_runs(
    folder: Path, code: grpc.StatusCode, *, made: bool, held: list[str]
) -> None:
    """The runtime's status and words reach the kubelet; the next look settles what was unknown."""
    async with _world(folder) as world:
        world.runtime.fail = (code, made)
        assert await world.create("u1") == f"{code.name}: the runtime's own words"
        if code is not grpc.StatusCode.INTERNAL:
            # Until that is known, the card is taken.
            assert len(world.keeper.books.held) == 1
        await world.look()
        await world.look()
        assert list(world.keeper.books.held) == held
        assert world.keeper.unprotected == {}
        other = await world.create("u2")
        assert ("CardFull" in other) == bool(held)


@ROOT
async def test_a_proxy_that_died_in_between_learns_what_was_made(folder: Path) -> None:
    """Given and made, but never renamed: the next agent finds it by pod, name and attempt."""
    async with _world(folder) as world:
        world.runtime.fail = (grpc.StatusCode.UNAVAILABLE, True)
        await world.create("u1")
        made = world.runtime.containers
        (entry,) = world.keeper.journal.entries
        assert entry.startswith("cri-")
    async with _world(folder, made) as world:
        assert list(world.keeper.journal.entries) == list(world.keeper.books.held) == ["c1"]
        assert world.keeper.unprotected == {}


@ROOT
async def test_a_device_that_cannot_be_made_refuses_the_container(folder: Path) -> None:
    """Nothing is asked of the runtime, and nothing stays held."""
    async with _world(folder) as world:
        (folder / "devices").write_text("no folder")
        assert "device file" in await world.create("u1")
        assert world.runtime.requests == []
        assert list(world.keeper.books.held) == []


def _series(keeper: Keeper) -> list[tuple[str, ...]]:
    """Labels of the series of containers, as often as they are there."""
    series = NodeSeries(lambda: Books(NODE, keeper.books.latest, {}, {}))
    return sorted(
        (family.name, *sample.labels.values())
        for family in series.collect()
        for sample in family.samples
        if family.name.startswith(("hami_vgpu", "container_request"))
    )


@ROOT
async def test_a_container_that_crashed_and_its_next_attempt_are_one_series(folder: Path) -> None:
    """It is so before a look finds the first ended, while the second is made, and after."""
    async with _world(folder) as world:
        await world.create("u1")
        once = _series(world.keeper)
        crashed = world.runtime.containers["c1"]
        world.runtime.containers["c1"] = replace(crashed, state=cri.EXITED)
        seen = []
        genuine = world.runtime.create

        async def create(request: bytes, context: Any) -> bytes:
            seen.append(_series(world.keeper))
            return await genuine(request, context)

        world.runtime.made = create
        assert await world.create("u1", attempt=1) == "c2"
        assert sorted(world.keeper.books.held) == ["c1", "c2"]
        assert seen == [once]
        assert _series(world.keeper) == once
        assert list(world.keeper.entries) == ["c2"]
        await world.look()
        assert list(world.keeper.books.held) == ["c2"]
        assert _series(world.keeper) == once
        assert len(set(once)) == len(once) > 0


@ROOT
async def test_a_journal_on_a_full_disk_ends_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kubelet gets the answer that the container exists; with a library, it starts only once the journal has its name."""
    async with _world(folder) as world:
        genuine = Journal.give

        def give(journal: Journal, entry: Entry) -> None:
            if not entry.container.startswith("cri-"):
                raise OSError(28, "No space left on device")
            genuine(journal, entry)

        monkeypatch.setattr(Journal, "give", give)
        assert await world.create("u1") == "c1"
        assert "No space left" in await world.proxy._look()
        assert "CardFull" in await world.create("u2")
        await world.call("StartContainer", cri.Identity("c1").encode())
        monkeypatch.setattr(world.keeper, "has_room", lambda one: one.startswith("cri-"))
        with pytest.raises(grpc.aio.AioRpcError, match="No space left"):
            await world.call("StartContainer", cri.Identity("c1").encode())
        monkeypatch.setattr(Journal, "give", genuine)
        await world.call("StartContainer", cri.Identity("c1").encode())
        assert list(world.keeper.books.held) == ["c1"]
        await world.look()
        assert list(world.keeper.books.held) == ["c1"]
        assert world.keeper.unprotected == {}


async def test_streams_and_what_does_not_exist_pass_through(folder: Path) -> None:
    """Answers in their order, none at all, and the runtime's own word for a call it lacks; what is too long is not read."""
    async with _world(folder) as world:
        stream = world.channel.unary_stream(f"/{cri.RUNTIME}/GetContainerEvents")
        for count in (0, 1, 50):
            got = [answer async for answer in stream(bytes([count]), timeout=240)]
            assert got == [bytes([number]) for number in range(count)]
        for method in ("StreamContainers", "NoSuchMethod"):
            many = world.channel.unary_stream(f"/{cri.RUNTIME}/{method}")
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                [answer async for answer in many(b"", timeout=240)]
            assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await world.call("CreateContainer", b"\xff\xff")
        assert "partage: CreateRequest" in caught.value.details()
        config = cri.ContainerConfig(cri.ContainerName("main"), envs=(Variable("A"),) * 17_000)
        pod = cri.PodConfig(cri.PodName("train", "u", "team"))
        with pytest.raises(
            grpc.aio.AioRpcError, match=r"pod team/train, container main: .*TooLong"
        ):
            await world.call("CreateContainer", cri.CreateRequest("p", config, pod).encode())


@pytest.mark.parametrize(
    "configured",
    [{"Env": ["A="] * 17_000}, {"Labels": {"a": "x" * (1 << 20)}}],
    ids=["variables", "all of it"],
)
async def test_an_image_that_is_too_long_is_not_read(
    folder: Path, configured: Mapping[str, Any]
) -> None:
    """Containers of others wait for the thread that reads it."""
    async with _world(folder) as world:
        world.runtime.configured = configured
        refused = await world.create("u1")
        assert "pod team/u1, container main: its image's " in refused
        assert "TooLong" in refused
        world.runtime.configured = {"Env": ["A="] * 9_000}
        assert await world.create("u1") == "c1"


async def test_a_kubelet_that_asks_elsewhere_is_noticed(folder: Path) -> None:
    """It asks its runtime every few seconds: one that has not asked here for long goes around us."""
    async with _world(folder) as world:
        needed = f"containerRuntimeEndpoint: unix://{folder / 'cri.sock'}"
        assert needed in world.proxy.problem
        await world.call("ListContainers", b"")
        assert world.proxy.problem == ""
        world.now[0] += 29
        assert world.proxy.problem == ""
        world.now[0] += 2
        assert needed in world.proxy.problem
