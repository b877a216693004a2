"""A pod whose requests became claims reserves of each card what its protocol would have reserved; or it is not translated."""

import json
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partage.agent.discovery.found import Inventory
from partage.agent.dra.slices import Offered, resource_slices
from partage.apiserver.patch import json_patch
from partage.model.device import MILLI, DeviceType, SliceMode
from partage.model.errors import InvalidValue
from partage.model.policy import CardOrder, Strategy
from partage.model.reason import ReasonCode
from partage.model.request import (
    CardFilter,
    ContainerAsk,
    DeviceRequest,
    LabelRule,
    Phase,
    PodRequest,
    RequestGroup,
    Scope,
)
from partage.model.selector import Selector
from partage.sim.offline import schedule
from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.webhook.claiming import translate
from partage.webhook.mutating import mutate
from partage.webhook.review import Review
from partage.webhook.settings import Admission
from partage.wire.claim_shapes import Shape, decode_translated, shape_of, shapes_of
from partage.wire.claim_specs import Kind, claim_spec, kinds, mark, template
from partage.wire.cluster import assemble
from partage.wire.context import Context
from partage.wire.documents import decode

pytest.importorskip(
    "partage.wire.cel", reason="cel-python is not installed: selectors are not judged"
)

Manifest = dict[str, Any]
MIB = 2**20
GIB = 2**30
A100 = "NVIDIA A100-SXM4-40GB"
CONTEXT = Context.of(Settings(), FAMILIES)
OWNER = {"kind": "DeviceClass", "name": "share.gpu.partage.io", "uid": "class"}


def _node(cards: int = 2, mebi: int = 40960, *, mig: bool = False) -> list[Manifest]:
    """A node of cards that are shared, or cut into instances."""
    labels = {
        "node.koordinator.sh/gpu-vendor": "nvidia",
        "node.koordinator.sh/gpu-model": A100,
    }
    registered = [
        {
            "id": f"GPU-{n}",
            "index": n,
            "count": 10,
            "devmem": mebi,
            "devcore": 100,
            "type": A100,
            "mode": "mig" if mig else "hami-core",
            "health": True,
        }
        for n in range(cards)
    ]
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": "n1",
            "labels": labels,
            "annotations": {"hami.io/node-nvidia-register": json.dumps(registered)},
        },
        "status": {"allocatable": {"cpu": "64", "memory": "256Gi", "pods": "110"}},
    }
    return [node]


def _pod(name: str, limits: Mapping[str, str], **annotations: str) -> Manifest:
    resources = {"limits": {"cpu": "1", **limits}, "requests": dict(limits)}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "uid": f"uid-{name}",
            "namespace": "default",
            "annotations": annotations,
        },
        "spec": {"containers": [{"name": "main", "resources": resources}]},
    }


def _admitted(pod: Manifest, *, translated: bool) -> Manifest:
    """The pod as the API server stores it, after one webhook or both."""
    for decide in (mutate, translate) if translated else (mutate,):
        review = Review("r", "pods", "CREATE", "default", "somebody", object=pod)
        verdict = decide(review, CONTEXT, Admission())
        assert verdict.allowed, verdict.message
        pod = json_patch(pod, list(verdict.patch))
    return pod


def _told(pod: Manifest) -> str:
    """Why it keeps to its protocol; empty where it has claims."""
    return str(pod["metadata"]["annotations"].get(names.NOT_TRANSLATED, ""))


def _templates(cards: Mapping[Kind, int], *pods: Manifest) -> list[Manifest]:
    shapes = {
        one.shape
        for pod in pods
        for one in decode_translated(
            pod["metadata"]["annotations"].get(names.TRANSLATED, "{}")
        ).values()
    }
    found = []
    for shape in shapes:
        spec = claim_spec(shape, cards)
        if isinstance(spec, dict):  # else none is made, and the pod waits
            found.append(template(shape, "default", spec, OWNER))
    return found


def _places(*manifests: Manifest) -> dict[str, list[tuple[int, int, str]]]:
    """The devices of each pod with a place: compute, memory, and which instance it is."""
    lines = b"\n".join(json.dumps(one).encode() for one in manifests)
    outcome = schedule(assemble([decode("cluster.json", lines)]))
    return {
        one.pod.pod.name: sorted(
            (
                grant.core_milli,
                grant.memory_bytes,
                grant.mig.profile if grant.mig is not None else "",
            )
            for grant in one.allocation.grants
        )
        for one in outcome.pods
        if one.allocation is not None
    }


def _both(
    node: list[Manifest], *pods: Manifest
) -> tuple[dict[str, list[tuple[int, int, str]]], dict[str, list[tuple[int, int, str]]]]:
    """What pods get by their protocols, and what by claims."""
    lines = b"\n".join(json.dumps(one).encode() for one in node)
    devices = [one for known in assemble([decode("n.json", lines)]).nodes for one in known.devices]
    claiming = [_admitted(pod, translated=True) for pod in pods]
    templates = _templates(kinds(devices), *claiming)
    named = [_admitted(pod, translated=False) for pod in pods]
    return _places(*node, *named), _places(*node, *templates, *claiming)


QGPU = st.one_of(
    st.builds(
        lambda core, gib: {names.QGPU_CORE: str(core * 5), names.QGPU_MEMORY: str(gib)},
        st.integers(1, 20),
        st.integers(1, 45),
    ),
    st.integers(1, 3).map(lambda cards: {names.QGPU_CORE: str(cards * 100)}),
    st.builds(
        lambda core, gib: {names.QGPU_CORE: str(core), names.QGPU_MEMORY: str(gib)},
        st.integers(101, 200),
        st.integers(2, 80),
    ),
)
KOORDINATOR = st.one_of(
    st.builds(
        lambda core, ratio: {
            names.KOORD_GPU_CORE: str(core),
            names.KOORD_GPU_MEMORY_RATIO: str(ratio),
        },
        st.integers(1, 100),
        st.integers(1, 100),
    ),
    st.builds(
        lambda core, memory: {
            names.KOORD_GPU_CORE: str(core),
            names.KOORD_GPU_MEMORY: f"{memory}Mi",
        },
        st.integers(1, 100),
        st.integers(1, 45000),
    ),
    st.sampled_from((1, 30, 50, 100, 200)).map(lambda gpu: {names.KOORD_GPU: str(gpu)}),
    st.integers(1, 45000).map(lambda memory: {names.KOORD_GPU_MEMORY: f"{memory}Mi"}),
)
HAMI = st.builds(
    lambda count, memory, cores: {"nvidia.com/gpu": str(count), **memory, **cores},
    st.integers(1, 3),
    st.one_of(
        st.just({}),
        st.integers(1, 45000).map(lambda mebi: {"nvidia.com/gpumem": str(mebi)}),
        st.integers(1, 100).map(lambda part: {"nvidia.com/gpumem-percentage": str(part)}),
    ),
    st.one_of(
        st.just({}), st.integers(0, 100).map(lambda core: {"nvidia.com/gpucores": str(core)})
    ),
)
ASKED = st.one_of(QGPU, KOORDINATOR, HAMI)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(limits=ASKED, mebi=st.sampled_from((40960, 40536)), mig=st.booleans())
def test_what_a_claim_reserves_is_what_the_protocol_would(
    limits: Mapping[str, str], mebi: int, *, mig: bool
) -> None:
    """Both get the same devices and amounts on cards of one kind, or none; percent of memory in whole MiB."""
    pod = _pod("a", limits)
    told = _told(_admitted(pod, translated=True))
    if told:
        assert "the only sharer" in told  # nothing else here is beyond claims
        return
    named, claimed = _both(_node(2, mebi, mig=mig), pod)
    rounded = [
        (core, memory if profile else memory // MIB * MIB, profile)
        for core, memory, profile in named.get("a", [])
    ]
    assert claimed.get("a", []) == rounded


def test_claims_and_protocols_fill_the_same_cards() -> None:
    """Ten tenths of a card whose memory no tenth divides, of three protocols, side by side."""
    tenths = [
        _pod("k", {names.KOORD_GPU: "10"}),
        _pod(
            "h",
            {
                "nvidia.com/gpu": "1",
                "nvidia.com/gpumem-percentage": "10",
                "nvidia.com/gpucores": "10",
            },
        ),
        _pod("q", {names.QGPU_CORE: "10", names.QGPU_MEMORY: "3"}),
    ]
    pods = [
        _pod(
            f"{pod['metadata']['name']}{n}", pod["spec"]["containers"][0]["resources"]["requests"]
        )
        for n in range(3)
        for pod in tenths
    ]
    named, claimed = _both(_node(1, 40537), *pods, _pod("last", {names.KOORD_GPU: "10"}))
    assert len(named) == len(claimed) == 10
    assert _both(_node(1, 40537), *pods, _pod("w", {names.KOORD_GPU: "100"}))[1].keys() == {
        pod["metadata"]["name"] for pod in pods
    }


def test_a_whole_card_is_an_idle_one() -> None:
    """Beside a share by a protocol it waits, as the protocol's own would; slices say what pods hold."""
    node = _node(1)
    lines = b"\n".join(json.dumps(one).encode() for one in node)
    (known,) = assemble([decode("n.json", lines)]).nodes
    whole = _admitted(_pod("w", {"nvidia.com/gpu": "1"}), translated=True)
    templates = _templates(kinds(known.devices), whole)
    for memory, placed in ((40960, True), (40000, False)):
        left = type(known)(
            known.name,
            devices=tuple(
                type(one)(
                    one.type, one.minor, one.uuid, one.vendor, one.model, memory_bytes=memory * MIB
                )
                for one in known.devices
            ),
        )
        totals = {0: 40960 * MIB}
        slices = resource_slices(left, Inventory(), "", 1, Offered(), (), totals)
        assert ("w" in _places(*node, *slices, *templates, whole)) is placed


@pytest.mark.parametrize(
    ("annotations", "mig", "profile"),
    [
        ({names.HAMI_VGPU_MODE: "mig"}, True, "1g.5gb"),
        ({names.MIG_PROFILE: "3g"}, True, "3g.20gb"),
        ({names.MIG_PROFILE: "2g.10gb"}, True, "2g.10gb"),
        ({names.HAMI_VGPU_MODE: "hami-core"}, False, ""),
        ({names.HAMI_USE_TYPE: "a100,T4", names.HAMI_AVOID_TYPE: "H100"}, False, ""),
        ({names.HAMI_USE_UUID: "GPU-1", names.HAMI_AVOID_UUID: "GPU-0"}, False, ""),
    ],
)
def test_wishes_of_cards_are_kept(annotations: dict[str, str], profile: str, *, mig: bool) -> None:
    """Modes, profiles, models and identities, as HAMi's annotations say them; a wish that nothing meets waits."""
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4000"}
    named, claimed = _both(_node(mig=mig), _pod("a", limits, **annotations))
    assert claimed == named
    ((_, _, got),) = claimed["a"]
    assert got == profile
    other = {names.HAMI_USE_TYPE: "H100"} if not mig else {names.HAMI_AVOID_TYPE: "A100"}
    assert _both(_node(mig=mig), _pod("a", limits, **{**annotations, **other})) == ({}, {})


def _group(**fields: Any) -> RequestGroup:
    phase = fields.pop("phase", Phase.MAIN)
    containers = fields.pop("containers", ("main",))
    given = {"type": DeviceType.GPU, "core_milli": 100, "memory_bytes": GIB, **fields}
    asks = tuple(ContainerAsk(name, phase) for name in containers)
    return RequestGroup("hami", DeviceRequest(**given), asks, phase)


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"type": DeviceType.RDMA}, "cards"),
        ({"containers": ("a", "b")}, "several containers"),
        ({"phase": Phase.INIT}, "init container"),
        ({"every": True}, "all devices"),
        ({"extras": (("huawei.com/npu-core", 4),)}, "native units"),
        ({"exclusive": True}, "the only sharer"),
        ({"unused": True}, "the only sharer"),
        ({"filter": CardFilter(selector=Selector())}, "labels of devices"),
        ({"scope": Scope.NUMA}, "near each other"),
        ({"core_milli": 105}, "whole percent"),
        ({"memory_bytes": GIB + 1}, "whole MiB"),
        ({"memory_bytes": 0}, "no memory"),
        ({"count": 33}, "count"),
        ({"filter": CardFilter(use_uuids=("ü",))}, "use_uuids"),
    ],
)
def test_what_no_claim_can_say_is_said(fields: dict[str, Any], told: str) -> None:
    """One sentence a reason."""
    found = shape_of(_group(**fields))
    assert isinstance(found, str)
    assert told in found


@pytest.mark.parametrize(
    "wish",
    [
        {"node_labels": (LabelRule("k", "v", ReasonCode.ISOLATION_PROVIDER, "m"),)},
        {"node_strategy": Strategy.SPREAD},
        {"card_order": CardOrder(Strategy.BINPACK)},
    ],
)
def test_choices_between_nodes_and_cards_are_no_claims(wish: dict[str, Any]) -> None:
    """The allocator takes the first device that fits, whatever a pod prefers."""
    found = shapes_of(PodRequest((_group(),), **wish))
    assert isinstance(found, str)
    assert "a claim cannot express" in found


def test_a_container_has_one_claim() -> None:
    """Several containers have one each; a reason names the container."""
    two = shapes_of(PodRequest((_group(containers=("a",)), _group(containers=("b",)))))
    assert isinstance(two, dict)
    assert list(two) == ["a", "b"]
    assert (
        shapes_of(PodRequest((_group(), _group())))
        == "container main asks twice, and may have one claim"
    )
    told = shapes_of(PodRequest((_group(every=True),)))
    assert str(told).startswith("container main: ")


def test_a_template_is_named_by_what_is_asked() -> None:
    """People can read the name, and it is unique; the cluster's cards change the spec and not the name."""
    share = Shape(core_milli=500, memory_bytes=8 * GIB)
    assert share.template.startswith("partage-share-50c-8192m-")
    assert Shape(count=2, whole=True).template.startswith("partage-card-2x-")
    assert Shape(shares=False, instances=True, profile="3g").template.startswith(
        "partage-instance-"
    )
    percent = Shape(core_milli=100, memory_milli=300)
    assert percent.template.startswith("partage-share-10c-30p-")
    assert (
        len(
            {
                share.template,
                Shape(core_milli=500, memory_bytes=8 * GIB, count=2).template,
                percent.template,
            }
        )
        == 3
    )
    assert (
        decode_translated(
            f'{{"main":{{"shape":{json.dumps({"memory_milli": 300, "core_milli": 100})}}}}}'
        )["main"].shape.template
        == percent.template
    )


def test_percent_needs_a_card_of_which() -> None:
    """One way for each size; eight at most, those of the most cards, in the order of their sizes."""
    percent = Shape(memory_milli=500)
    assert claim_spec(percent, {}) == "no card of the cluster can give it"
    assert (
        claim_spec(Shape(memory_milli=1), {_kind(500 * MIB): 1})
        == "no card of the cluster can give it"
    )
    one = claim_spec(percent, {_kind(16 * GIB): 4})
    assert isinstance(one, dict)
    (request,) = one["devices"]["requests"]
    assert request["exactly"]["capacity"] == {"requests": {"cores": "0", "memory": "8Gi"}}
    many = {_kind(size * GIB): size for size in range(1, 12)}
    several = claim_spec(percent, many | {_kind(99 * GIB, vendor="amd"): 100})
    assert isinstance(several, dict)
    (request,) = several["devices"]["requests"]
    sizes = [way["capacity"]["requests"]["memory"] for way in request["firstAvailable"]]
    assert sizes == ["2560Mi", "3Gi", "3584Mi", "4Gi", "4608Mi", "5Gi", "5632Mi", "50688Mi"]
    mine = claim_spec(
        Shape(memory_milli=500, vendors=("nvidia",)), many | {_kind(99 * GIB, vendor="amd"): 9}
    )
    assert isinstance(mine, dict)
    assert mark(mine) != mark(several)
    without = claim_spec(
        Shape(memory_milli=500, avoid_vendors=("amd",)), {_kind(GIB, vendor="amd"): 1}
    )
    assert isinstance(without, str)


def _kind(memory: int, *, vendor: str = "nvidia") -> Kind:
    return Kind(vendor, "T4", memory, SliceMode.SHARE, None)


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"main":{"shape":{"count":33}}}',
        '{"main":{"shape":{"core_milli":-1}}}',
        '{"main":{"shape":{"profile":"x\\"y"}}}',
        '{"main":{"shape":{"vendors":["ü"]}}}',
        '{"main":{"shape":{"unknown":1}}}',
        '{"main":{}}',
        '"' + "x" * 2**19 + '"',
        json.dumps({f"{n}": {"shape": {"core_milli": n + 1}} for n in range(65)}),
    ],
)
def test_an_annotation_that_somebody_wrote_is_refused(text: str) -> None:
    """Any user may write it, and templates are made of it."""
    with pytest.raises(InvalidValue):
        decode_translated(text)


def test_expressions_quote_what_pods_write() -> None:
    """A quotation mark ends no text of CEL."""
    shape = Shape(core_milli=MILLI, memory_bytes=GIB, use_uuids=('a"] || true || ["',))
    spec = claim_spec(shape, {})
    assert isinstance(spec, dict)
    (request,) = spec["devices"]["requests"]
    (selector,) = request["exactly"]["selectors"]
    assert selector["cel"]["expression"].endswith('in ["a\\"] || true || [\\""]')
