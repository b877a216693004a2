"""The faulty wire of `tests/faults` before the genuine API server, and the invariants behind it.

Everything that one instance of the scheduler service sends, and the kube-scheduler of its pod, goes through the wire,
TLS on both sides and with its own token; every other client reaches the server directly. A watchman follows pods
and Devices beside the wire, and checks I1 and I3 at every change.
"""

import asyncio
import json
import ssl
import threading
import urllib.request
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp
from invariants import DEVICES, NODES, PODS, SUMMARIES, Findings, asks, findings, series
from other_instance import instead
from stack import SCHEDULER, Stack, eventually
from watchman import Watchman

from fakes.wire import Wire

__all__ = ["Wired", "wired"]

SETTLE_SECONDS = 240.0


@dataclass
class Wired:
    """A stack whose scheduler service reaches the API server through a wire.

    Attributes:
        stack: the cluster.
        wire: touch it by `do` alone, as it lives in another thread.
        watchman: the same.
        node: the only one that is looked at; other tests leave theirs.
    """

    stack: Stack
    wire: Wire
    watchman: Watchman
    loop: asyncio.AbstractEventLoop
    node: str

    def do(self, what: Callable[[], Any]) -> Any:
        """Call something where the wire lives, and wait for it."""

        async def call() -> Any:
            found = what()
            return await found if isinstance(found, Awaitable) else found

        return asyncio.run_coroutine_threadsafe(call(), self.loop).result(60)

    def look(self) -> Findings:
        """What can be seen of the node and its pods from outside."""

        def items(path: str) -> list[Any]:
            found: list[Any] = self.stack.plane.call("GET", path)["items"]
            return found

        pods = [one for one in items(PODS) if self._ours(one)]
        devices = [one for one in items(DEVICES) if one["metadata"]["name"] == self.node]
        nodes = [n for n in (one["metadata"]["name"] for one in items(NODES)) if n == self.node]
        metrics = series(self._said("/metrics").decode())
        summaries = {n: s for n, s in json.loads(self._said(SUMMARIES)).items() if n == self.node}
        found = Findings(pods, devices, nodes, metrics, summaries)
        for pod in pods:
            head = pod["metadata"]
            if not pod["spec"].get("nodeName") and asks(pod):
                path = f"/api/explain/{head['namespace']}/{head['name']}"
                found.explained[head["uid"]] = json.loads(self._said(path))
        return found

    def _said(self, path: str) -> bytes:
        """A page of the service, as the administrator may read it."""
        request = urllib.request.Request(  # noqa: S310 # loopback
            self.stack.scheduler + path,
            headers={"Authorization": f"Bearer {self.stack.plane.admin}"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:  # noqa: S310 # the same
            data: bytes = answer.read()
        return data

    def _ours(self, pod: dict[str, Any]) -> bool:
        return bool((pod["spec"].get("nodeSelector") or {}).get("wired"))

    def sound(self) -> Findings:
        """Wait until all invariants hold, which they must; and they did at every change."""
        seen: list[Findings] = []

        def wrong() -> list[str]:
            seen.append(self.look())
            return findings(seen[-1])

        try:
            eventually("the invariants hold", lambda: not wrong(), SETTLE_SECONDS)
        except AssertionError as error:
            raise AssertionError(f"{error}: {findings(seen[-1]) if seen else ''}") from error
        assert not self.watchman.wrong, self.watchman.wrong
        return seen[-1]


@contextmanager
def wired(stack: Stack, node: str, *options: str) -> Iterator[Wired]:
    """The scheduler service reaches the API server through a wire while this lasts.

    Args:
        stack: the cluster.
        node: the node to look at.
        options: of the instance.
    """
    plane = stack.plane
    own = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    own.load_cert_chain(plane.folder / "server.crt", plane.folder / "server.key")
    with ExitStack() as leaving:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, daemon=True)
        thread.start()

        def run(work: Any) -> Any:
            return asyncio.run_coroutine_threadsafe(work, loop).result(60)

        def ended() -> None:
            run(_silence(loop))
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()

        leaving.callback(ended)
        wire = Wire(plane.url, plane.trust, own)
        run(wire.__aenter__())
        leaving.callback(lambda: run(wire.__aexit__()))
        http, following, watchman = run(_watching(stack))
        leaving.callback(lambda: run(_ended(http, following)))
        config = plane.kubeconfig(stack.token(SCHEDULER), wire.url)
        stack.wire = wire.url
        leaving.callback(lambda: setattr(stack, "wire", ""))
        leaving.enter_context(
            instead(stack, "wired", f"--kubeconfig={config}", "--audit=1", *options)
        )
        leaving.callback(lambda: loop.call_soon_threadsafe(wire.heal))
        yield Wired(stack, wire, watchman, loop, node)


async def _silence(loop: Any) -> None:
    """Wait until every connection is closed: under TLS that takes some more turns of the loop."""
    end = loop.time() + 10
    # The loop's own wake-up stays.
    while len(loop._selector.get_map()) > 1 and loop.time() < end:  # noqa: ASYNC110 # nothing tells
        await asyncio.sleep(0.01)


async def _watching(
    stack: Stack,
) -> tuple[aiohttp.ClientSession, asyncio.Task[None], Watchman]:
    head = {"Authorization": f"Bearer {stack.plane.admin}"}
    connector = aiohttp.TCPConnector(ssl=stack.plane.trust)
    http = aiohttp.ClientSession(headers=head, connector=connector)
    watchman = Watchman(http, stack.plane.url, {})
    return http, asyncio.create_task(watchman.run()), watchman


async def _ended(http: aiohttp.ClientSession, following: asyncio.Task[None]) -> None:
    """End the watchman, which may not have ended before."""
    broken = following.exception() if following.done() else None
    following.cancel()
    await asyncio.gather(following, return_exceptions=True)
    await http.close()
    if broken is not None:
        raise broken
