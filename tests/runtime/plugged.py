"""The NRI plugin alone, in a thread of the test, beside a genuine containerd."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator

import containerd
from agent_process import WAIT

from partage.agent.nri.messages import Adjustment, Container, PodSandbox
from partage.agent.nri.plugin import Plugin, PluginOptions, Refused
from partage.kube.retry import Backoff


class Scripted:
    """Decides by a function."""

    def __init__(self, create: Callable[[], Adjustment | None]) -> None:
        self._create = create

    def create(self, pod: PodSandbox, container: Container) -> Adjustment | None:
        """What the function says."""
        return self._create()

    def start(self, pod: PodSandbox, container: Container) -> None:
        """Nothing."""

    def has_room(self, container: str) -> bool:
        """None."""
        return False

    def remove(self, container: Container) -> None:
        """Nothing."""

    def synchronize(self, pods: tuple[PodSandbox, ...], containers: tuple[Container, ...]) -> None:
        """Nothing."""

    def large(self, why: str) -> Refused:
        """With the reason."""
        return Refused(why)

    def late(self, pod: PodSandbox, container: Container) -> None:
        """Nothing."""


@contextlib.contextmanager
def plugged(
    runtime: containerd.Containerd, create: Callable[[], Adjustment | None], deadline: float = 1.5
) -> Iterator[None]:
    """The plugin in a thread of this process."""
    up, down = threading.Event(), threading.Event()

    async def serve() -> None:
        stop = asyncio.Event()
        options = PluginOptions(runtime.nri, deadline=deadline, again=Backoff(0.05, cap=0.2))
        plugin = Plugin(Scripted(create), options)
        task = asyncio.create_task(plugin.run(stop))
        await plugin.ready.wait()
        up.set()
        await asyncio.to_thread(down.wait)
        stop.set()
        await task

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    try:
        assert up.wait(WAIT), runtime.log()[-2000:]
        yield
    finally:
        down.set()
        thread.join(WAIT)
