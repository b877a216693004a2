"""A pod's way from admission to its Binding, as a collector sees it: one connected trace."""

import asyncio
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip(
    "opentelemetry.exporter.otlp.proto.http", reason="the extra trace is not there"
)

pytest.importorskip("grpc", reason="grpcio is not installed")

from collector import Collector, collecting
from traced_world import World, of_pod, pod, sound, traced, tracer

from fakes.kubelet import fake_kubelet
from fakes.nri_runtime import FakeRuntime, fake_runtime
from partage.agent.host import Host
from partage.agent.kubelet.units import offers
from partage.agent.nri.messages import Container, CreateContainerResponse, PodSandbox, Status
from partage.agent.nri.plugin import PluginOptions
from partage.daemon.agent import AgentDaemon, AgentOptions
from partage.daemon.kubelet_side import KubeletOptions, KubeletSide
from partage.embedded.manifests import decoded
from partage.tracing.context import TraceContext, read_traceparent, trace_of
from partage.tracing.tracer import LiveTracer
from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.wire.context import Context
from partage.wire.nodes import translate_node

MINE = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    """A collector to which the environment leads."""
    with collecting() as found:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", found.url)
        # On a busy machine the threads of both wait for the processor: no span is lost for it.
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "240000")
        monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "1000000")
        yield found


async def _until(collector: Collector, true: object) -> None:
    await asyncio.to_thread(collector.until, true)


def test_a_pod_is_one_trace_from_admission_to_its_binding(collector: Collector) -> None:
    """Webhook, filter, bind and the request to the API server, with what each decided."""

    async def story() -> None:
        live = tracer()
        async with traced(live) as world:
            made, _ = await world.create(pod("a"))
            uid = made["metadata"]["uid"]
            await _until(
                collector, lambda c: c.named("partage.schedule") and c.named("partage.inject")
            )
            bound = await world.pod("a")
        live.close()

        by = sound(of_pod(collector, uid, "a"))
        begun = read_traceparent(made["metadata"]["annotations"][names.TRACEPARENT])
        assert isinstance(begun, TraceContext)
        (admit,) = by["partage.admit"]
        assert (admit.trace, admit.id, admit.parent) == (begun.trace, begun.span, "")
        assert admit.attributes["partage.changes"] >= 2
        assert by["partage.validate"][0].attributes["partage.outcome"] == "allowed"
        assert by["partage.filter"][-1].attributes["partage.nodes.fitting"] == 1
        (bind,) = by["partage.bind"]
        node = bound["spec"]["nodeName"]
        assert (bind.attributes["partage.outcome"], bind.attributes["k8s.node.name"]) == (
            "bound",
            node,
        )
        assert [one.parent for one in by["partage.send"]] == [bind.id]
        (schedule,) = by["partage.schedule"]
        assert {one.parent for name in ("filter", "bind") for one in by[f"partage.{name}"]} == {
            schedule.id
        }
        assert schedule.start <= by["partage.filter"][0].start
        (inject,) = by["partage.inject"]
        assert (inject.attributes["k8s.container.name"], inject.attributes["k8s.node.name"]) == (
            "main",
            node,
        )
        assert bind.end <= schedule.end

    asyncio.run(story())


def test_the_trace_goes_on_to_the_container(collector: Collector) -> None:
    """The agent on the pod's node, asked by a kubelet and a runtime: units taken, devices given.

    It is a program of its own that knows of the pod what the runtime sends it.
    """

    async def story(folder: Path) -> None:
        live, agents = tracer("partage-up"), tracer("partage-agent")
        async with traced(live) as world:
            made, _ = await world.create(pod("a"))
            await _until(collector, lambda c: c.named("partage.schedule"))
            bound = await world.pod("a")
            given = await _given(world, agents, bound, folder)
            assert isinstance(given, CreateContainerResponse), given
            await _until(collector, lambda c: c.named("partage.allocate"))
        live.close()
        agents.close()

        by = sound(of_pod(collector, made["metadata"]["uid"], "a"))
        assert set(by) >= {
            "partage.admit",
            "partage.validate",
            "partage.filter",
            "partage.schedule",
            "partage.bind",
            "partage.send",
            "partage.allocate",
            "partage.inject",
        }
        (allocate,) = by["partage.allocate"]
        # The cluster's own stand-in for kubelets tells what containers get as well.
        (inject,) = (one for one in by["partage.inject"] if one.service == allocate.service)
        assert allocate.service == "partage-agent"
        assert by["partage.bind"][0].service == "partage-up"
        assert inject.parent == allocate.parent == by["partage.admit"][0].id
        assert (inject.attributes["partage.outcome"], inject.attributes["k8s.container.name"]) == (
            "given",
            "main",
        )
        assert inject.attributes["k8s.node.name"] == bound["spec"]["nodeName"]
        assert allocate.attributes["partage.resource"] == "nvidia.com/gpu"
        assert allocate.attributes["partage.units"] == 1
        assert by["partage.bind"][0].end <= allocate.end <= inject.start

    with tempfile.TemporaryDirectory(prefix="tr") as made:
        asyncio.run(story(Path(made)))


async def _given(
    world: World, live: LiveTracer, bound: dict[str, Any], folder: Path
) -> CreateContainerResponse | Status:
    """What the agent of the pod's node answers the runtime."""
    name, context = bound["spec"]["nodeName"], Context.of(Settings(), FAMILIES)
    store = world.cluster.server.store
    node, device = (
        store.get("nodes", "", name),
        store.get("devices.scheduling.koordinator.sh", "", name),
    )
    assert node is not None
    assert device is not None
    documents = decoded("Node", node.value), decoded("Device", device.value)
    place = translate_node(*documents, context).node
    stop = asyncio.Event()
    options = AgentOptions(
        folder / "journal",
        plugin=PluginOptions(folder / "nri.sock", deadline=60.0),
        roots=Host(folder, simulated=True),
        tracer=live,
    )

    def beside(agent: AgentDaemon) -> list[KubeletSide]:
        told = KubeletOptions(folder, patience=0.1, look=0.02)
        side = KubeletSide(name, told, agent.keeper, agent.asked.ready, lambda: 0.5)
        agent.follow(side.take)
        return [side]

    async with fake_runtime(folder / "nri.sock") as runtime, fake_kubelet(folder) as kubelet:
        agent = AgentDaemon(place, context, options, beside=beside)
        task = asyncio.create_task(agent.run(stop))
        try:
            await runtime.plugin.wait()
            await kubelet.until("nvidia.com/gpu", len(offers(place, Settings())[0].units))
            await kubelet.admit("default", "a", "main", "nvidia.com/gpu", 1)
            (env,) = kubelet.given.values()
            return await _made(runtime, bound, env)
        finally:
            stop.set()
            await task


async def _made(
    runtime: FakeRuntime, bound: dict[str, Any], env: dict[str, str]
) -> CreateContainerResponse | Status:
    metadata = bound["metadata"]
    sandbox = PodSandbox("s", "a", metadata["uid"], "default", annotations=metadata["annotations"])
    told = tuple(f"{key}={value}" for key, value in env.items())
    return await runtime.create(sandbox, Container("c", "s", "main", env=told), 60)


def test_a_pod_that_waits_says_why_and_for_how_long(collector: Collector) -> None:
    """Refusals with codes and counts; what happened meanwhile; that it went away waiting."""

    async def story() -> None:
        live = tracer()
        async with traced(live) as world:
            made, _ = await world.create(pod("big", memory="9000000"))
            await _until(collector, lambda c: c.named("partage.filter"))
            await world.delete("big")
            await _until(collector, lambda c: c.named("partage.schedule"))
        live.close()

        by = sound(of_pod(collector, made["metadata"]["uid"], "big"))
        refused = by["partage.filter"][0]
        assert refused.attributes["partage.code"] == "InsufficientMemory"
        assert refused.attributes["partage.counts"] == ["InsufficientMemory=4", "TypeMismatch=1"]
        assert refused.problem.startswith("InsufficientMemory: 0/5 nodes")
        (schedule,) = by["partage.schedule"]
        assert schedule.attributes["partage.outcome"] == "gone"
        assert schedule.attributes["partage.refusals"] >= 1
        assert schedule.events[0] == ("refused", {"partage.code": "InsufficientMemory"})

    asyncio.run(story())


def test_a_waiting_pod_that_is_woken_and_bound(collector: Collector) -> None:
    """Its waiting is one span: refused, woken as room appeared, bound."""

    async def story() -> None:
        live = tracer()
        whole = {"koordinator.sh/gpu": "100"}
        async with traced(live) as world:
            names_of = [f"full-{number}" for number in range(64)]
            for name in names_of:
                body = pod(name)
                body["spec"]["containers"][0]["resources"]["limits"] = whole
                await world.create(body)
            await _until(collector, lambda c: any(s.problem for s in c.named("partage.filter")))
            waiting = next(s for s in collector.named("partage.filter") if s.problem)
            uid = waiting.attributes["k8s.pod.uid"]
            placed = next(
                s.attributes["k8s.pod.name"]
                for s in collector.named("partage.schedule")
                if s.attributes["partage.outcome"] == "bound"
            )
            await world.delete(placed)
            await _until(
                collector,
                lambda c: any(
                    s.attributes["partage.refusals"] and s.attributes["partage.outcome"] == "bound"
                    for s in c.named("partage.schedule")
                ),
            )
        live.close()

        assert uid
        found = [
            s
            for s in collector.named("partage.schedule")
            if s.attributes["partage.refusals"] and s.attributes["partage.outcome"] == "bound"
        ]
        assert [name for name, _ in found[0].events][:2] == ["refused", "woken"]

    asyncio.run(story())


def test_an_authors_trace_goes_on(collector: Collector) -> None:
    """What a controller set is not changed, and everything hangs under it."""

    async def story() -> None:
        live = tracer()
        async with traced(live) as world:
            made, warned = await world.create(pod("a", **{names.TRACEPARENT: MINE}))
            await _until(
                collector, lambda c: c.named("partage.schedule") and c.named("partage.inject")
            )
        live.close()

        assert made["metadata"]["annotations"][names.TRACEPARENT] == MINE
        assert not warned
        spans = of_pod(collector, made["metadata"]["uid"], "a")
        assert {one.trace for one in spans} == {MINE.split("-")[1]}
        roots = {one.name for one in spans if one.parent == MINE.split("-")[2]}
        assert roots == {
            "partage.admit",
            "partage.validate",
            "partage.schedule",
            "partage.inject",
        }

    asyncio.run(story())


def test_a_broken_traceparent_is_replaced_with_a_warning(collector: Collector) -> None:
    """The author gets the reason, the span has it too, and the pod has a trace of its own."""

    async def story() -> None:
        live = tracer()
        async with traced(live) as world:
            made, warned = await world.create(pod("a", **{names.TRACEPARENT: MINE.upper()}))
            await _until(collector, lambda c: c.named("partage.schedule"))
        live.close()

        assert "is ignored: it is not 00-<32 digits>" in warned
        by = sound(of_pod(collector, made["metadata"]["uid"], "a"))
        assert "lower case" in by["partage.admit"][0].attributes["partage.trace.ignored"]
        assert made["metadata"]["annotations"][names.TRACEPARENT].startswith("00-")

    asyncio.run(story())


def test_a_pod_that_came_before_traces_has_one_by_its_uid(collector: Collector) -> None:
    """Without the annotation all parts agree; scheduling is the top of its trace."""

    async def story() -> None:
        live = tracer()
        async with traced(live) as world:
            world.cluster.server.admission.mutators.clear()  # as a webhook without traces
            body = pod("a")
            body["spec"]["schedulerName"] = "partage-scheduler"
            made, _ = await world.create(body)
            await _until(collector, lambda c: c.named("partage.schedule"))
        live.close()

        uid = made["metadata"]["uid"]
        by = sound(of_pod(collector, uid, "a"))
        trace = trace_of(uid, {})
        assert by["partage.schedule"][0].trace == trace.trace
        assert by["partage.schedule"][0].id == trace.scheduling
        assert "partage.admit" not in by

    asyncio.run(story())


def test_a_pod_that_is_refused_at_its_creation_is_told(collector: Collector) -> None:
    """There is no pod, and a span says why."""

    async def story() -> None:
        live = tracer()
        async with traced(live) as world:
            body = pod("a")
            body["spec"]["containers"][0]["resources"]["limits"]["koordinator.sh/gpu"] = "50"
            url = f"{world.cluster.addresses.api}/api/v1/namespaces/default/pods"
            async with world.http.post(url, json=body) as answer:
                assert answer.status == 422
            await _until(collector, lambda c: c.named("partage.validate"))
        live.close()

        (span,) = collector.named("partage.validate")
        assert span.attributes["partage.outcome"] == "refused"
        assert "InvalidRequest" in span.problem

    asyncio.run(story())


def test_pods_without_devices_are_not_traced(collector: Collector) -> None:
    """No annotation and no span."""

    async def story() -> None:
        live = tracer()
        async with traced(live) as world:
            body = pod("plain")
            body["spec"]["containers"][0].pop("resources")
            made, _ = await world.create(body)
            await world.create(pod("a"))
            await _until(collector, lambda c: c.named("partage.schedule"))
        live.close()

        assert names.TRACEPARENT not in (made["metadata"].get("annotations") or {})
        assert {one.attributes["k8s.pod.name"] for one in collector.spans} == {"a"}

    asyncio.run(story())
