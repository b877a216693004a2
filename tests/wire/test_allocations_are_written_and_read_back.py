"""What is written on a placed pod: every family's keys and our record, which agree when read back."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from manifests import Manifest, card, cluster, container, device, node, only, pod

from partage.model.allocation import Allocation, Grant, GrantMode, charges_of
from partage.model.device import DeviceType
from partage.sim.offline import schedule
from partage.vendors.base import Family, PlacedPod, Rendering
from partage.vendors.settings import Settings
from partage.wire.record import decode, labels_of, render, resolve

GPU = "nvidia.com/gpu"
REGISTER = {"hami.io/node-nvidia-register": "GPU-0,10,16384,100,NVIDIA A100,0,true:"}
MINE = "partage.io/allocation"


def placed(manifest: Manifest, *grants: Grant, meta: Manifest | None = None) -> PlacedPod:
    """A pod with these grants on a node with one card."""
    on = {**node(), "metadata": {"name": "n1", **(meta or {})}}
    found = cluster(on, device("n1", card(0)), manifest)
    request = found.pods[0].pod.request
    allocation = Allocation(found.pods[0].pod.uid, "default", "p", "n1", grants)
    return PlacedPod(found.pods[0].view, request, allocation, found.nodes[0], 10**18)


def whole(protocol: str = "nvidia", container: str = "main") -> Grant:
    """A whole card."""
    return Grant(
        container, DeviceType.GPU, 0, "GPU-0", 1000, 2**34, GrantMode.WHOLE, protocol=protocol
    )


def test_no_device_means_no_keys() -> None:
    """Such a pod is no concern of Partage's."""
    assert render(placed(pod("p")), Settings(), cluster().context.families) == Rendering()


def test_a_lone_count_is_written_by_its_nodes_protocol() -> None:
    """Koordinator's record where a Device object describes the cards, HAMi's where HAMi does."""
    families = cluster().context.families
    lone = pod("p", container(limits={GPU: 1}))
    koordinator = placed(lone, whole())
    only_hami = cluster(
        {**node(), "metadata": {"name": "n1", "annotations": REGISTER}},
        node("n2"),
        device("n2"),
        lone,
    )
    hami = PlacedPod(
        only_hami.pods[0].view,
        only_hami.pods[0].pod.request,
        koordinator.allocation,
        only_hami.nodes[0],
        10**18,
    )

    first, second = (render(each, Settings(), families) for each in (koordinator, hami))

    assert "scheduling.koordinator.sh/device-allocated" in first.annotations
    assert "hami.io/vgpu-devices-allocated" not in first.annotations
    assert second.annotations["hami.io/vgpu-devices-allocated"] == "GPU-0,NVIDIA,16384,100:;"
    assert "scheduling.koordinator.sh/device-allocated" not in second.annotations
    for rendering, name in ((first, "koordinator"), (second, "hami")):
        record = decode(rendering.annotations[MINE], koordinator.allocation.uid, "n1")
        assert [grant.protocol for grant in record.grants] == [name]
    assert {group.protocol for group in resolve(hami).request.groups} == {"hami"}


def test_families_are_merged() -> None:
    """Annotations, labels and node annotations side by side; environment by container. Others are not asked."""

    def said(text: str) -> Family:
        rendering = Rendering(
            {f"a/{text}": text}, {f"l/{text}": text}, {"main": {text: text}}, {f"n/{text}": text}
        )
        return Family(text, render=lambda _placed, _settings: rendering)

    mine = placed(pod("p"), whole("x"), whole("y"))
    found = render(mine, Settings(), (said("y"), said("x"), said("z")))

    assert [*found.annotations] == ["a/x", "a/y", MINE]
    assert found.labels == {"l/x": "x", "l/y": "y"}
    assert found.env == {"main": {"x": "x", "y": "y"}}
    assert found.node_annotations == {"n/x": "x", "n/y": "y"}


LIMITS: tuple[Manifest, ...] = (
    {},
    {GPU: 1},
    {GPU: "200"},
    {GPU: 1, "nvidia.com/gpumem": 3000},
    {GPU: 2, "nvidia.com/gpumem-percentage": 33, "nvidia.com/gpucores": 30},
    {"koordinator.sh/gpu": 50},
    {"koordinator.sh/gpu": 200},
    {"koordinator.sh/gpu-core": 29, "koordinator.sh/gpu-memory": "4751Mi"},
    {"koordinator.sh/gpu.shared": 2, "koordinator.sh/gpu-memory-ratio": 58},
    {"kubernetes.io/gpu-core": 57, "kubernetes.io/gpu-memory-ratio": 57},
    {"koordinator.sh/rdma": 50},
    {"tke.cloud.tencent.com/qgpu-core": 30, "tke.cloud.tencent.com/qgpu-memory": 5},
    {"tke.cloud.tencent.com/qgpu-core": 200},
)
RDMA = {
    "type": "rdma",
    "id": "0000:1f:00.0",
    "minor": 0,
    "health": True,
    "resources": {"koordinator.sh/rdma": 100},
}
MACHINES = [
    [node("a"), device("a", *(card(i, id=f"GPU-a{i}") for i in range(4)), RDMA)],
    [
        {
            **node("b"),
            "metadata": {
                "name": "b",
                "annotations": {
                    "hami.io/node-nvidia-register": "".join(
                        f"GPU-b{i},10,16384,100,NVIDIA A100,0,true:" for i in range(4)
                    )
                },
            },
        }
    ],
]


def _again(manifest: Manifest, outcome: Any, *, keep: bool) -> Manifest:
    written = {k: v for k, v in outcome.rendering.annotations.items() if keep or k != MINE}
    metadata = {
        **manifest["metadata"],
        "annotations": written,
        "labels": dict(outcome.rendering.labels),
    }
    return {
        **manifest,
        "metadata": metadata,
        "spec": {**manifest["spec"], "nodeName": outcome.allocation.node},
    }


def _amounts(grants: tuple[Grant, ...]) -> list[tuple[str, str, int]]:
    return [(c.type.value, c.uuid, c.core_milli) for c in charges_of(grants)]


@settings(max_examples=60)
@given(
    st.lists(st.lists(st.sampled_from(LIMITS), min_size=1, max_size=3), min_size=1, max_size=6),
    st.lists(st.sampled_from(LIMITS), min_size=6, max_size=6),
)
def test_what_was_written_is_read_back(mains: list[list[Manifest]], inits: list[Manifest]) -> None:
    """Every placed pod's records agree with each other, and ours gives its grants back."""
    manifests = [
        pod(
            f"p{index}",
            *(container(f"c{i}", limits=limits) for i, limits in enumerate(listed)),
            initContainers=[container("init", limits=inits[index])],
        )
        for index, listed in enumerate(mains)
    ]
    machines = [manifest for machine in MACHINES for manifest in machine]
    outcome = schedule(cluster(*machines, *manifests))
    placed_pods = [
        (m, o)
        for m, o in zip(manifests, outcome.pods, strict=True)
        if o.allocation and o.allocation.grants
    ]

    for manifest, one in placed_pods:
        assert one.allocation is not None
        record = only(*machines, _again(manifest, one, keep=True)).pod.record
        assert record is not None
        assert record.problem == ""
        assert _amounts(record.grants) == _amounts(one.allocation.grants)


PROVIDER = {"koordinator.sh/gpu-isolation-provider": "HAMi-core"}
TWICE = {"tke.cloud.tencent.com/qgpu-core": 30, "tke.cloud.tencent.com/qgpu-memory": 5}


@pytest.mark.parametrize("labels", [{}, PROVIDER], ids=["plain", "isolated"])
@pytest.mark.parametrize("limits", [*((each,) for each in LIMITS), (TWICE, TWICE)], ids=str)
def test_labels_alone_are_those_of_everything(
    limits: tuple[Manifest, ...], labels: Manifest
) -> None:
    """What is compared of a running pod is what was written on it when it was placed."""
    containers = [container(f"c{i}", limits=each) for i, each in enumerate(limits)]
    manifests = [pod("p", *containers), node("a"), MACHINES[0][1]]
    labelled = [{**m, "metadata": {**m["metadata"], "labels": labels}} for m in manifests]
    found = cluster(*labelled)

    (one,) = schedule(found).pods

    assert one.allocation is not None
    whole = PlacedPod(one.pod.view, one.pod.pod.request, one.allocation, found.nodes[0], 0)
    assert labels_of(whole, Settings(), found.context.families) == one.rendering.labels


@pytest.mark.parametrize(
    ("where", "limits", "cards"),
    [
        ("n" * 64, {GPU: 1, "nvidia.com/gpumem": 1024}, 1),
        ("n1", {"tke.cloud.tencent.com/qgpu-core": 3200}, 32),
    ],
    ids=["a node with a long name", "many cards of one container"],
)
def test_no_label_is_longer_than_an_api_server_takes(
    where: str, limits: Manifest, cards: int
) -> None:
    """Else no kubelet could write the pod's state any more, nor its end; the annotations say the same."""
    machine = device(where, *(card(minor) for minor in range(cards)))
    found = cluster(node(where), machine, pod("p", container(limits=limits)))

    (one,) = schedule(found).pods

    assert one.allocation is not None
    placed = PlacedPod(one.pod.view, one.pod.pod.request, one.allocation, found.nodes[0], 0)
    assert max(map(len, one.rendering.labels.values()), default=0) <= 63
    assert labels_of(placed, Settings(), found.context.families) == one.rendering.labels
    assert max(map(len, one.rendering.annotations.values())) > 63


@pytest.mark.parametrize("limits", [limits for limits in LIMITS if limits], ids=str)
def test_a_protocols_record_alone_is_enough(limits: Manifest) -> None:
    """Another scheduler's pod, written as we would, is taken over with the same cards."""
    manifest = pod("p", container(limits=limits))
    machines = [manifest for machine in MACHINES for manifest in machine]
    (one,) = schedule(cluster(*machines, manifest)).pods
    assert one.allocation is not None

    record = only(*machines, _again(manifest, one, keep=False)).pod.record

    assert record is not None
    assert record.problem == ""
    assert [(g.type, g.uuid) for g in record.grants] == [
        (g.type, g.uuid) for g in one.allocation.grants
    ]
