"""The plugin's loop against a runtime that reads as containerd does."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from fakes.nri_runtime import FakeRuntime, fake_runtime
from partage.agent.injection import looked_at
from partage.agent.nri.messages import (
    Adjustment,
    CdiDevice,
    Container,
    ContainerRequest,
    CreateContainerResponse,
    Event,
    PodSandbox,
    StateChange,
    Status,
    Variable,
)
from partage.agent.nri.plugin import Plugin, PluginOptions, Refused
from partage.agent.protobuf import Empty
from partage.kube.retry import Backoff
from partage.vendors import names

POD = PodSandbox("p1", "train", "uid-1", "team")
MAIN = Container("c1", "p1", "main")


class Decisions:
    """Answers by a function, and remembers what it received."""

    def __init__(self, create: Callable[[], Adjustment | None] = lambda: None) -> None:
        self._create = create
        self.told: list[tuple[int, int]] = []
        self.pods: tuple[PodSandbox, ...] = ()
        self.containers: tuple[Container, ...] = ()
        self.asked: list[tuple[PodSandbox, str]] = []
        self.started: list[str] = []
        self.gone: list[str] = []
        self.missed: list[str] = []

    def create(self, pod: PodSandbox, container: Container) -> Adjustment | None:
        """What the function says."""
        self.asked.append((pod, threading.current_thread().name))
        return self._create()

    def start(self, pod: PodSandbox, container: Container) -> None:
        """Keep which."""
        self.started.append(container.id)

    def has_room(self, container: str) -> bool:
        """All have."""
        return True

    def remove(self, container: Container) -> None:
        """Keep which."""
        self._create()
        self.gone.append(container.id)

    def synchronize(self, pods: tuple[PodSandbox, ...], containers: tuple[Container, ...]) -> None:
        """Keep how many."""
        self.told.append((len(pods), len(containers)))
        self.pods, self.containers = pods, containers

    def large(self, why: str) -> Refused:
        """With the reason."""
        return Refused(why)

    def late(self, pod: PodSandbox, container: Container) -> None:
        """Keep which."""
        self.missed.append(container.name)


@asynccontextmanager
async def _running(
    runtime: FakeRuntime, decisions: Decisions, deadline: float = 30.0, **more: Any
) -> AsyncIterator[Plugin]:
    stop = asyncio.Event()
    options = PluginOptions(
        runtime.socket, deadline=deadline, patience=30, again=Backoff(0.01, cap=0.05), **more
    )
    plugin = Plugin(decisions, options)
    task = asyncio.create_task(plugin.run(stop))
    try:
        async with asyncio.timeout(240):
            await runtime.plugin.wait()
            await plugin.ready.wait()
        yield plugin
    finally:
        stop.set()
        await task


async def test_a_container_gets_its_adjustment_however_large(tmp_path: Path) -> None:
    """60 kB of environment arrive whole: no frame is larger than the runtime reads."""
    large = Adjustment(env=tuple(Variable(f"V{n}", "x" * 1000) for n in range(60)))

    async with (
        fake_runtime(tmp_path / "s") as runtime,
        _running(runtime, Decisions(lambda: large)),
    ):
        assert await runtime.create(POD, MAIN, 90) == CreateContainerResponse(large)


@pytest.mark.parametrize(
    ("version", "refused"),
    [("v1.7.24", True), ("2.0.11", True), ("v2.1.9", False), ("2.10.0", False), ("v2.2.0", False)],
)
async def test_names_go_to_runtimes_that_read_them(
    tmp_path: Path, version: str, *, refused: bool
) -> None:
    """Before containerd 2.1, NRI leaves names out without a word: the container would lack its cards."""
    named = Adjustment(cdi_devices=(CdiDevice("nvidia.com/gpu=GPU-a"),))

    async with fake_runtime(tmp_path / "s") as runtime:
        runtime.name, runtime.version = "containerd", version
        async with _running(runtime, Decisions(lambda: named)):
            answer = await runtime.create(POD, MAIN, 90)
            assert isinstance(answer, Status) == refused


async def test_a_refusal_reaches_the_runtime_in_words(tmp_path: Path) -> None:
    """The error that fails CreateContainer is ours; a bug's says where to look, and no more."""
    errors: list[Exception] = [Refused("no record"), KeyError("secret")]

    def fail() -> Adjustment | None:
        raise errors.pop(0)

    async with (
        fake_runtime(tmp_path / "s") as runtime,
        _running(runtime, Decisions(fail)),
    ):
        assert await runtime.create(POD, MAIN, 90) == Status(2, "no record")
        failed = await runtime.create(POD, MAIN, 90)
        assert isinstance(failed, Status)
        assert "secret" not in failed.message
        assert "agent's log" in failed.message


async def test_a_decision_that_takes_too_long_is_an_error(tmp_path: Path) -> None:
    """Silence would start the container without its devices; the plugin stays connected."""
    go = threading.Event()
    decisions = Decisions(lambda: Adjustment() if go.wait(60) else None)

    async with (
        fake_runtime(tmp_path / "s") as runtime,
        _running(runtime, decisions, deadline=0.05),
    ):
        answer = await runtime.create(POD, MAIN)
        go.set()
        assert isinstance(answer, Status)
        assert "pod team/train, container main: not decided within 0.05 s" in answer.message
        assert decisions.missed == ["main"]
        assert runtime.connections == 1


async def test_a_disk_that_is_slow_does_not_end_the_connection(tmp_path: Path) -> None:
    """A tenant writes without an end, and no flush comes back: the end of a container is answered, and counts afterwards."""
    go = threading.Event()
    decisions = Decisions(lambda: Adjustment() if go.wait(60) else None)

    async with (
        fake_runtime(tmp_path / "s") as runtime,
        _running(runtime, decisions, deadline=0.05),
    ):
        ended = await runtime.ask("StopContainer", ContainerRequest(POD, MAIN))
        started = await runtime.ask("StartContainer", ContainerRequest(POD, MAIN))
        assert not ended.status or not ended.status.code
        assert started.status is not None
        assert "not looked at within 0.05 s" in started.status.message
        assert decisions.gone == []
        go.set()
        while not decisions.started:  # noqa: ASYNC110 # another thread's
            await asyncio.sleep(0.01)
        assert decisions.gone == ["c1"]
        assert runtime.connections == 1


async def test_a_look_that_takes_long_does_not_end_the_connection(tmp_path: Path) -> None:
    """The runtime has its answer; the plugin is ready once it knows what there is."""
    go = threading.Event()

    class Slow(Decisions):
        def synchronize(
            self, pods: tuple[PodSandbox, ...], containers: tuple[Container, ...]
        ) -> None:
            go.wait(60)
            super().synchronize(pods, containers)

    async with fake_runtime(tmp_path / "s") as runtime:
        runtime.containers = (MAIN,)
        stop = asyncio.Event()
        decisions = Slow()
        plugin = Plugin(decisions, PluginOptions(runtime.socket, deadline=0.05))
        task = asyncio.create_task(plugin.run(stop))
        await runtime.plugin.wait()
        ready = plugin.ready.is_set()
        go.set()
        await plugin.ready.wait()
        assert not ready
        assert decisions.told == [(0, 1)]
        assert runtime.connections == 1
        stop.set()
        await task


async def test_a_look_that_fails_late_is_made_again(tmp_path: Path) -> None:
    """The runtime lists its containers once a connection: after a failure the plugin opens another."""

    class Failing(Decisions):
        def synchronize(
            self, pods: tuple[PodSandbox, ...], containers: tuple[Container, ...]
        ) -> None:
            super().synchronize(pods, containers)
            if len(self.told) == 1:
                time.sleep(0.5)
                raise OSError(24, "Too many open files")

    decisions = Failing()
    async with (
        fake_runtime(tmp_path / "s") as runtime,
        asyncio.timeout(60),
        _running(runtime, decisions, deadline=0.05),
    ):
        assert len(decisions.told) == runtime.connections == 2


async def test_unknown_methods_are_answered_as_unimplemented(tmp_path: Path) -> None:
    """The runtime falls back to what older plugins know."""
    async with fake_runtime(tmp_path / "s") as runtime, _running(runtime, Decisions()):
        response = await runtime.ask("RunPodSandbox", Empty())
        assert response.status is not None
        assert response.status.code == 12


async def test_a_plugin_comes_back_and_is_told_everything(tmp_path: Path) -> None:
    """After a restart of the runtime the plugin registers again and receives all; parts of Synchronize are joined."""
    decisions = Decisions()

    async with fake_runtime(tmp_path / "s") as runtime:
        runtime.pods, runtime.containers = (POD,) * 3, (MAIN,) * 2
        async with _running(runtime, decisions) as plugin:
            runtime.drop()
            async with asyncio.timeout(240):
                await runtime.plugin.wait()
                await plugin.ready.wait()
            await runtime.removed(MAIN)

    assert decisions.told == [(3, 2), (3, 2)]
    assert decisions.gone == ["c1"]


@pytest.mark.parametrize("calls", [True, False], ids=["calls", "changes of state"])
async def test_starts_and_ends_are_heard_by_either_form(tmp_path: Path, *, calls: bool) -> None:
    """NRI 0.12 has calls for both, and uses the earlier event for a plugin that does not answer them."""
    decisions = Decisions()
    async with fake_runtime(tmp_path / "nri.sock") as runtime, _running(runtime, decisions):
        for method, event in (
            ("StartContainer", Event.START_CONTAINER),
            ("RemoveContainer", Event.REMOVE_CONTAINER),
        ):
            told = ContainerRequest(POD, MAIN) if calls else StateChange(event, POD, MAIN)
            answer = await runtime.ask(method if calls else "StateChange", told)
            assert not answer.status or not answer.status.code

    assert (decisions.started, decisions.gone) == (["c1"], ["c1"])


async def test_what_is_kept_of_those_that_run_is_what_is_looked_at(tmp_path: Path) -> None:
    """A node may run hundreds of containers, each with a megabyte of variables; the runtime sends all at once."""
    decisions = Decisions()
    env = (*(f"V{n}={'x' * 999}" for n in range(1000)), "NVIDIA_VISIBLE_DEVICES=all")
    large = replace(MAIN, env=env, args=("y" * 10**6,))

    async with fake_runtime(tmp_path / "s") as runtime:
        runtime.containers = (large, large)
        async with _running(runtime, decisions, kept=looked_at):
            pass

    assert decisions.containers == (replace(MAIN, env=env[-1:]),) * 2


async def test_of_a_pod_only_what_is_read_is_kept(tmp_path: Path) -> None:
    """A pod may have a hundred thousand labels and annotations. The loop reads no pod: one thread decides and reads."""
    known = {names.ALLOCATION: "record", names.QGPU_CARDS + "main": "1", "cdi.k8s.io/x": "a/b=c"}
    foreign = {f"k{number}": "" for number in range(1000)} | {"k" * 200: "long"}
    large = replace(POD, annotations={**foreign, **known}, labels={**foreign, **known})
    small = replace(POD, annotations=known, labels=known)
    threads: list[str] = []

    def kept(container: Container) -> Container:
        threads.append(threading.current_thread().name)
        return container

    async with fake_runtime(tmp_path / "s") as runtime:
        runtime.pods, runtime.containers = (large,), (MAIN,)
        decisions = Decisions()
        async with _running(runtime, decisions, kept=kept):
            await runtime.create(large, replace(MAIN, annotations={**foreign, **known}))
        assert decisions.pods == (small,)
        ((asked, thread),) = decisions.asked
        assert asked == small
        assert [one.partition("_")[0] for one in (*threads, thread)] == ["nri", "nri"]


async def test_a_runtime_that_goes_on_telling_has_time(tmp_path: Path) -> None:
    """Its patience begins again with each message until all containers are listed: tenants make the lists long."""
    untold: list[float] = []
    async with fake_runtime(tmp_path / "s") as runtime:
        runtime.pods = (POD,) * 3
        stop, plugin = (
            asyncio.Event(),
            Plugin(Decisions(), PluginOptions(runtime.socket, patience=7777)),
        )
        genuine = asyncio.Timeout.reschedule

        def rescheduled(self: asyncio.Timeout, when: float | None) -> None:
            if when is not None and when - asyncio.get_running_loop().time() > 7700:
                untold.append(when)
            genuine(self, when)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(asyncio.Timeout, "reschedule", rescheduled)
            task = asyncio.create_task(plugin.run(stop))
            await asyncio.wait_for(plugin.ready.wait(), 240)
            heard = len(untold)
            await runtime.create(POD, MAIN)
        assert (
            heard == 2 + 2 + 4
        )  # it connects and registers; is accepted and configured; gets four messages
        assert len(untold) == heard, "once it has listed them, it may be silent"
        assert untold == sorted(untold)
        stop.set()
        await task


async def test_garbage_ends_the_connection_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The plugin logs a broken frame and registers again."""
    async with fake_runtime(tmp_path / "s") as runtime, _running(runtime, Decisions()):
        runtime.plugin.clear()
        runtime.say(b"\xff" * 64)
        async with asyncio.timeout(240):
            await runtime.plugin.wait()
        assert runtime.connections == 2

    assert "a frame of" in caplog.text


async def test_a_plugin_that_is_not_taken_says_why(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The runtime's own words are in the log."""
    stop = asyncio.Event()
    async with fake_runtime(tmp_path / "s") as runtime:
        runtime.refusal = "plugins are disabled"
        plugin = Plugin(Decisions(), PluginOptions(runtime.socket, again=Backoff(0.01)))
        task = asyncio.create_task(plugin.run(stop))
        async with asyncio.timeout(240):
            while "plugins are disabled" not in caplog.text:  # noqa: ASYNC110 # a log has no event
                await asyncio.sleep(0.01)
        stop.set()
        await task


async def test_a_plugin_says_why_it_is_not_asked(tmp_path: Path) -> None:
    """No socket: what has to be switched on. Refused: the runtime's words. Served: nothing."""
    stop = asyncio.Event()
    plugin = Plugin(Decisions(), PluginOptions(tmp_path / "s", again=Backoff(0.01, cap=0.02)))
    assert "has not answered yet" in plugin.problem
    task = asyncio.create_task(plugin.run(stop))

    async def says(words: str) -> None:
        async with asyncio.timeout(240):
            while words not in plugin.problem:  # noqa: ASYNC110 # a text has no event
                await asyncio.sleep(0.01)

    await says("NRI is off in the container runtime")
    async with fake_runtime(tmp_path / "s") as runtime:
        runtime.refusal = "plugins are disabled"
        await says("plugins are disabled")
        runtime.refusal = ""
        async with asyncio.timeout(240):
            await plugin.ready.wait()
        assert plugin.problem == ""
    stop.set()
    await task
