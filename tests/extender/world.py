"""A scheduler service with a fake API server: manifests in, Bindings out."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping
from functools import wraps
from typing import Any, ParamSpec

from fakes.clock import InstantClock, SteppedClock
from partage.extender.bindings import BindLimits
from partage.extender.books import Books
from partage.extender.cluster_cache import ClusterCache
from partage.extender.ports import Answered, Binding, Hooks, Outcome
from partage.extender.service import SchedulerService, ServiceSettings
from partage.extender.stories import SILENT, Stories
from partage.kube.clock import Clock
from partage.model.policy import Policy
from partage.scheduler.engine import State
from partage.wire.documents import Document, decode

Given = ParamSpec("Given")
Manifest = dict[str, Any]
DONE = Answered(Outcome.DONE)
REFUSED = Answered(Outcome.REFUSED, "the pod is being deleted")
UNKNOWN = Answered(Outcome.UNKNOWN, "connection reset")


def document(manifest: Manifest) -> Document:
    """The manifest decoded."""
    (found,) = decode("test.json", json.dumps(manifest).encode()).documents
    return found


def node(name: str = "n1", version: int = 1, **meta: Any) -> Manifest:
    """A Node."""
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "uid": f"uid-{name}", "resourceVersion": str(version), **meta},
        "status": {"allocatable": {"cpu": "32", "memory": "64Gi", "pods": "110"}},
    }


def card(
    minor: int, memory: str = "16Gi", domain: str = "koordinator.sh", **more: Any
) -> Manifest:
    """A card of a Device object."""
    resources = {"gpu-core": "100", "gpu-memory": memory, "gpu-memory-ratio": "100"}
    return {
        "type": "gpu",
        "id": f"GPU-{minor}",
        "minor": minor,
        "health": True,
        "resources": {f"{domain}/{name}": value for name, value in resources.items()},
        **more,
    }


def device(name: str = "n1", *cards: Manifest, version: int = 1, **labels: str) -> Manifest:
    """A Device object; it has two cards by default."""
    return {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": name, "resourceVersion": str(version), "labels": labels},
        "spec": {"devices": list(cards) or [card(0), card(1)]},
    }


def pod(name: str = "web", limits: Mapping[str, str] | None = None, **more: Any) -> Manifest:
    """A pod with one container; `meta`, `container` and `status` go where they belong."""
    meta, inner = more.pop("meta", {}), more.pop("container", {})
    status = more.pop("status", {"phase": "Pending"})
    amounts = {} if limits is None else {"resources": {"limits": dict(limits)}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}", **meta},
        "spec": {"containers": [{"name": "main", **amounts, **inner}], **more},
        "status": status,
    }


def whole(cards: int = 1) -> dict[str, str]:
    """So many whole cards, in today's names."""
    return {"koordinator.sh/gpu": str(100 * cards)}


def half() -> dict[str, str]:
    """Half a card."""
    return {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}


def sgpu() -> dict[str, str]:
    """A tenth of a MetaX card, which wakes the vendor's plugin."""
    return {
        "koordinator.sh/gpu.shared": "1",
        "koordinator.sh/gpu-core": "10",
        "koordinator.sh/gpu-memory": "1Gi",
        "metax-tech.com/sgpu": "1",
    }


class FakeApi:
    """Binds pods, or does whatever the test says next.

    Attributes:
        pods: manifests by name.
        sent: Bindings that came in.
        answers: what is said to the next Bindings; done when it is empty.
        locks: annotations by node.
        given_back: when a lock was to be released.
        locks_late: a lock whose write gets no answer arrives in `late` only.
        late: such locks.
    """

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.given_back: list[float] = []
        self.locks_late = False
        self.late: dict[str, dict[str, str]] = {}
        self.pods: dict[str, Manifest] = {}
        self.sent: list[Binding] = []
        self.answers: list[Answered | Exception | None] = []
        self.takes: list[bool] = []
        self.reads: list[Exception] = []
        self.locks: dict[str, dict[str, str]] = {}
        self.refusing = 0
        self.lock_faults: list[Exception] = []
        self.unlock_faults: list[Exception] = []
        self.gate: asyncio.Event | None = None
        self.arrived = asyncio.Event()

    async def bind(self, binding: Binding) -> Answered:
        """See `Binder`."""
        self.sent.append(binding)
        self.arrived.set()
        if self.gate is not None:
            await self.gate.wait()
        answer = self.answers.pop(0) if self.answers else DONE
        took = self.takes.pop(0) if self.takes else answer == DONE
        if took:
            self._write(binding)
        if isinstance(answer, Exception):
            raise answer
        return answer or DONE

    def _write(self, binding: Binding) -> None:
        manifest = self.pods.setdefault(binding.name, pod(binding.name))
        manifest["spec"]["nodeName"] = binding.node
        meta = manifest["metadata"]
        meta["annotations"] = {**meta.get("annotations", {}), **binding.annotations}
        meta["labels"] = {**meta.get("labels", {}), **binding.labels}

    async def read(self, namespace: str, name: str) -> Document | None:
        """See `Binder`."""
        if self.reads:
            raise self.reads.pop(0)
        manifest = self.pods.get(name)
        return None if manifest is None else document(manifest)

    async def take(
        self, node: str, annotations: Mapping[str, str], instead: Mapping[str, str]
    ) -> Answered:
        """See `NodeLocks`."""
        if self.lock_faults:
            (self.late if self.locks_late else self.locks)[node] = dict(annotations)
            raise self.lock_faults.pop()
        if self.refusing > 0:
            self.refusing -= 1
            return Answered(Outcome.REFUSED, "held by another")
        held = self.locks.get(node, {})
        if any(held[key] != instead.get(key) for key in annotations if key in held):
            return Answered(Outcome.REFUSED, "taken", held=held)
        self.locks[node] = dict(annotations)
        return Answered(Outcome.DONE)

    async def give_back(self, node: str, annotations: Mapping[str, str]) -> bool:
        """See `NodeLocks`."""
        self.given_back.append(self.clock.monotonic())
        if self.unlock_faults:
            raise self.unlock_faults.pop()
        if self.locks.get(node) != annotations:
            return False
        del self.locks[node]
        return True


class World:
    """The service and everything around it."""

    def __init__(
        self,
        policy: str = "partage",
        *,
        stories: Stories = SILENT,
        limits: BindLimits | None = None,
        clock: SteppedClock | None = None,
        **settings: Any,
    ) -> None:
        self.clock = InstantClock()
        self.api = FakeApi(self.clock if clock is None else clock)
        self.woken: list[str] = []
        self.told: list[tuple[str, str]] = []
        self.quarantined: list[str] = []
        self.unserviceable: list[str] = []
        hooks = Hooks(
            wake=self.woken.extend,
            refused=lambda entry, refusal: self.told.append((entry.pod.name, refusal.code.value)),
            quarantined=lambda action: self.quarantined.append(action.message),
            unserviceable=lambda action: self.unserviceable.append(action.message),
        )
        self.service = SchedulerService(
            self.api,
            self.clock if clock is None else clock,
            hooks,
            locks=self.api,
            settings=ServiceSettings(
                limits or BindLimits(pause=0.5),
                cluster_cache=lambda: ClusterCache(
                    policy=Policy.parse(policy), namespaces=("kube-system",)
                ),
                **settings,
            ),
            stories=stories,
        )

    async def start(self, *manifests: Manifest) -> "World":
        """Rebuild from these, and lead."""
        found = [document(manifest) for manifest in manifests]
        await self.service.rebuild(found)
        for one, manifest in zip(found, manifests, strict=True):
            if one.kind == "Pod":
                self.api.pods[one.name] = manifest
        self.service.lead()
        return self

    def create(self, manifest: Manifest) -> Manifest:
        """A pod comes into being."""
        self.api.pods[manifest["metadata"]["name"]] = manifest
        self.service.changed(document(manifest))
        return manifest

    def seen(self, name: str) -> None:
        """The service hears what the API server has of a pod."""
        self.service.changed(document(self.api.pods[name]))

    def filter(self, manifest: Manifest, *names: str) -> Manifest:
        """Ask filter, names only."""
        wanted = list(names or [n.name for n in self.service.books.engine.ledger.nodes if n])
        body = {"Pod": manifest, "Nodes": None, "NodeNames": wanted}
        answer: Manifest = json.loads(self.service.filter(json.dumps(body).encode()))
        return answer

    async def bind(self, name: str, node: str = "n1", uid: str | None = None) -> str:
        """Ask bind; the error, empty when bound."""
        body = {
            "PodName": name,
            "PodNamespace": "team",
            "PodUID": uid or f"uid-{name}",
            "Node": node,
        }
        answer = json.loads(await self.service.bind(json.dumps(body).encode()))
        error: str = answer["Error"]
        return error

    async def place(self, manifest: Manifest, node: str = "n1") -> None:
        """Create, filter and bind a pod, and hear of it."""
        self.create(manifest)
        self.filter(manifest)
        name = manifest["metadata"]["name"]
        assert await self.bind(name, node) == ""
        self.seen(name)


def unlisted(books: Books) -> str:
    """What the books' lists of bound and leaving pods by node lack or have too much; empty if they are right."""
    engine, pods = books.engine, books.cluster_cache.pods
    bound = [
        (held.node, pods[held.uid].pod.priority)
        for held in engine.ledger.allocations()
        if held.uid in pods and engine.states.get(held.uid) is State.BOUND
    ]
    lowest: dict[str, int] = {}
    for node_, priority in bound:
        lowest[node_] = min(priority, lowest.get(node_, priority))
    if (books.lowest, books.priorities) != (lowest, Counter(priority for _, priority in bound)):
        return f"lowest priorities are {books.lowest}, not {lowest}"
    ends = {
        held.node
        for held in engine.ledger.allocations()
        if (known := books.cluster_cache.documents.get(held.uid)) is not None
        and known.metadata.deletion_timestamp is not None
    }
    left = ends - books.vacating()
    return f"pods leave {left}, which are not listed" if left else ""


def run(test: Callable[Given, Coroutine[Any, Any, None]]) -> Callable[Given, None]:
    """A test that is a coroutine."""

    @wraps(test)
    def runner(*args: Given.args, **kwargs: Given.kwargs) -> None:
        asyncio.run(test(*args, **kwargs))

    return runner


async def metax_world(*names: str, **settings: Any) -> World:
    """A world of nodes with two MetaX cards each, whose vendor's plugin needs a lock."""
    manifests = []
    labels = {"node.koordinator.sh/gpu-vendor": "metax", "node.koordinator.sh/gpu-model": "C500"}
    for name in names or ("n1",):
        machine = node(name)
        machine["status"]["allocatable"]["metax-tech.com/sgpu"] = "32"
        manifests += [machine, device(name, card(0), card(1), version=1, **labels)]
    return await World(**settings).start(*manifests)
