"""A running pod whose records were edited holds at least what its spec asks."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from manifests import Manifest, card, cluster, config_map, container, device, node, pod

from partage.inventory.card import Card
from partage.model.device import DeviceType
from partage.model.pod import Record
from partage.sim.offline import schedule
from partage.vendors import names

CORE, MEMORY, RATIO = names.KOORD_GPU_CORE, names.KOORD_GPU_MEMORY, names.KOORD_GPU_MEMORY_RATIO
HAMI = names.HAMI_ALLOCATED
KOORDINATOR = names.DEVICE_ALLOCATED
GIB = 2**30
NODE = [node(), device("n1", card(0), card(1), card(2))]


def koordinator(*entries: Manifest, kind: str = "gpu") -> dict[str, str]:
    """Koordinator's record of these devices."""
    return {KOORDINATOR: json.dumps({kind: list(entries)})}


def entry(minor: int = 0, **resources: str) -> Manifest:
    """A card in it."""
    given_ = {CORE: "core", MEMORY: "memory", RATIO: "ratio"}
    return {
        "minor": minor,
        "resources": {n: resources[short] for n, short in given_.items() if short in resources},
    }


def books(
    annotations: dict[str, str], *asks: Manifest, nodes: Any = NODE, uid: str = "u", **spec: Any
) -> Any:
    """The outcome on a node where a pod with these records and requests runs."""
    containers = [container(f"c{i}", limits=limits) for i, limits in enumerate(asks)]
    running = pod(
        "p", *containers, meta={"annotations": annotations, "uid": uid}, nodeName="n1", **spec
    )
    return schedule(cluster(*nodes, running))


def defaults(text: str) -> Manifest:
    """HAMi's configuration with these fields."""
    return config_map("hami-scheduler-device", device_config__yaml=f"nvidia: {{{text}}}")


def record_of(outcome: Any) -> Record:
    """The pod's record."""
    (found,) = outcome.pods
    record = found.pod.pod.record
    assert isinstance(record, Record)
    return record


def cards(outcome: Any) -> list[Card]:
    """The node's cards."""
    ledger = outcome.ledger
    return list(ledger.cards(DeviceType.GPU, ledger.index["n1"]))


HALF = {CORE: "50", MEMORY: "8Gi"}
HAMI_SHARE = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "30"}
LONE = {"nvidia.com/gpu": "1"}
QGPU = {names.QGPU_CORE: "20", names.QGPU_MEMORY: "2"}
NPU = {names.NPU_CORE: "8", names.KOORD_GPU_MEMORY_RATIO: "100"}


@pytest.mark.parametrize(
    ("annotations", "asked", "core", "memory"),
    [
        pytest.param(koordinator(entry(core="0", memory="1")), HALF, 500, 8 * GIB, id="Koordinator, to 0"),
        pytest.param(
            koordinator(entry(core="50", memory="1Gi")), HALF, 500, 8 * GIB, id="Koordinator, less memory"
        ),
        pytest.param(
            koordinator(entry(core="20", memory="8Gi")), HALF, 500, 8 * GIB, id="Koordinator, less compute"
        ),
        pytest.param(
            koordinator(entry(core="1", ratio="1")),
            {names.KOORD_GPU: "100"},
            1000,
            16 * GIB,
            id="Koordinator, a whole card",
        ),
        pytest.param(
            koordinator(entry(ratio="1")), {RATIO: "40"}, 0, 16 * GIB * 2 // 5, id="Koordinator, a part of memory"
        ),
        pytest.param(
            koordinator(entry(core="1", ratio="1")),
            {"kubernetes.io/gpu": "50"},
            500,
            8 * GIB,
            id="Koordinator, names of v1.4",
        ),
        pytest.param({HAMI: "GPU-0,NVIDIA,0,0:;"}, HAMI_SHARE, 300, 4 * GIB, id="HAMi, to 0"),
        pytest.param({HAMI: "GPU-0,NVIDIA,4096,1:;"}, HAMI_SHARE, 300, 4 * GIB, id="HAMi, less compute"),
        pytest.param(
            {HAMI: "GPU-0,NVIDIA,1,99:;"},
            {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50", "nvidia.com/gpucores": "100"},
            1000,
            8 * GIB,
            id="HAMi, all compute",
        ),
        pytest.param({HAMI: "GPU-0,NVIDIA,1,1:;"}, LONE, 1000, 16 * GIB, id="HAMi, a lone count"),
        pytest.param(
            koordinator(entry(core="1", ratio="1")), LONE, 1000, 16 * GIB, id="Koordinator, a lone count"
        ),
    ],
)  # fmt: skip
def test_a_card_counts_for_what_the_spec_asks_of_it(
    annotations: dict[str, str], asked: Manifest, core: int, memory: int
) -> None:
    """The record says which card; its amounts are the spec's where they were edited down."""
    outcome = books(annotations, asked)

    assert record_of(outcome).problem == ""
    first, *others = cards(outcome)
    assert (1000 - first.core_free, 16 * GIB - first.memory_free) == (core, memory)
    assert first.closed is None or core == 1000
    assert all(one.closed is None and one.core_free == 1000 for one in others)


@pytest.mark.parametrize(
    ("annotations", "asks"),
    [
        pytest.param(
            koordinator(entry(core="100", ratio="100")), [{names.KOORD_GPU: "200"}], id="one card of two"
        ),
        pytest.param(
            koordinator({"minor": 0, "resources": {names.KOORD_RDMA: "1"}}, kind="rdma"),
            [{**HALF, names.KOORD_RDMA: "1"}],
            id="one type of two",
        ),
        pytest.param({HAMI: "GPU-0,NVIDIA,4096,30:;"}, [{**HAMI_SHARE, "nvidia.com/gpu": "2"}], id="HAMi, one of two"),
        pytest.param({HAMI: "GPU-0,NVIDIA,4096,30:;;"}, [HAMI_SHARE, HAMI_SHARE], id="HAMi, one container of two"),
        pytest.param({HAMI: "GPU-0,NVIDIA,4096,30:;;"}, [HAMI_SHARE, HALF], id="one protocol of two"),
        pytest.param(
            koordinator(entry(core="50", memory="8Gi")), [HALF, QGPU], id="qGPU's keys taken away"
        ),
        pytest.param(
            koordinator(entry(core="50", memory="8Gi")), [HALF, LONE], id="a lone count beside a share"
        ),
    ],
)  # fmt: skip
def test_fewer_devices_than_the_spec_asks_close_the_types_of_the_pod(
    annotations: dict[str, str], asks: list[Manifest]
) -> None:
    """It is unknown which ones the pod uses."""
    network = {
        "type": "rdma",
        "health": True,
        "minor": 0,
        "id": "0000:1f:00.0",
        "resources": {names.KOORD_RDMA: "100"},
    }
    outcome = books(
        annotations, *asks, nodes=[node(), device("n1", card(0), card(1), card(2), network)]
    )

    assert "that the spec asks for container" in record_of(outcome).problem
    assert all(one.closed for one in cards(outcome))


MIG_NODE = [
    node(),
    device(
        "n1",
        card(0, "81920Mi"),
        card(1, "81920Mi"),
        meta={"labels": {names.GPU_VENDOR: "nvidia", names.GPU_MODEL: "NVIDIA-A100-SXM4-80GB"}},
    ),
    config_map(
        "hami-device-plugin",
        config__json='{"nodeconfig": [{"name": "n1", "operatingmode": "mig"}]}',
    ),
]


def listed(profile: str, size: int) -> dict[str, str]:
    """The record of HAMi 2.10 for the pod's one instance, with amounts of 0."""
    row = {
        "containerIndex": 0,
        "deviceIndex": 0,
        "gpuUUID": "GPU-0",
        "profile": profile,
        "placement": {"start": 0, "size": size},
    }
    return {HAMI: "GPU-0,NVIDIA,0,0:;", names.HAMI_MIG_ALLOCATIONS: json.dumps([row])}


@pytest.mark.parametrize(
    ("profile", "size", "enough"),
    [("3g.40gb", 4, True), ("2g.20gb", 2, True), ("1g.10gb", 1, False)],
)
def test_an_instance_has_the_memory_that_the_spec_asks(
    profile: str, size: int, *, enough: bool
) -> None:
    """Its place is the capacity; one that is too small for the pod is not the pod's."""
    outcome = books(
        listed(profile, size),
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "16000"},
        nodes=MIG_NODE,
    )

    record = record_of(outcome)
    assert bool(record.problem) is not enough
    if enough:
        (held,) = record.grants
        assert held.memory_bytes >= 16000 * 2**20
        assert [one.profile for one in cards(outcome)[0].instances] == [profile]
    else:
        assert f"names instance {profile} of card 0" in record.problem
        assert all(one.closed for one in cards(outcome))


def test_two_instances_of_one_card_are_two_devices() -> None:
    """As HAMi may cut them; each is counted by itself."""
    annotations = listed("1g.10gb", 1)
    rows = json.loads(annotations[names.HAMI_MIG_ALLOCATIONS])
    second = {**rows[0], "deviceIndex": 1, "placement": {"start": 1, "size": 1}}
    annotations[names.HAMI_MIG_ALLOCATIONS] = json.dumps([*rows, second])
    annotations[HAMI] = "GPU-0,NVIDIA,8000,0:GPU-0,NVIDIA,8000,0:;"
    asked = {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "8000"}

    outcome = books(annotations, asked, nodes=MIG_NODE)

    assert record_of(outcome).problem == ""
    assert len(cards(outcome)[0].instances) == 2


def test_native_units_count_too() -> None:
    """A share of an NPU is in cores of its own, from which its compute follows."""
    npu = {
        **card(0, "32Gi"),
        "resources": {**card(0, "32Gi")["resources"], names.NPU_CORE: "20", names.NPU_CPU: "14"},
    }
    ascend = {"labels": {names.GPU_VENDOR: "huawei", names.GPU_MODEL: "Ascend-910B3"}}
    nodes = [node(), device("n1", npu, meta=ascend)]
    asked = {names.NPU_CORE: "20", names.KOORD_GPU_MEMORY_RATIO: "100"}
    (honest,) = schedule(cluster(*nodes, pod("p", container(limits=asked)))).pods
    assert honest.rendering.annotations
    edited = {"minor": 0, "resources": {RATIO: "1", names.NPU_CORE: "1"}}

    outcome = books(koordinator(edited), asked, nodes=nodes)

    (first,) = cards(outcome)
    assert (first.core_free, first.memory_free) == (0, 0)
    assert not any((first.extras_free or {}).values())


@pytest.mark.parametrize("broken", [names.DEVICE_ALLOCATE_HINT, names.CARD_POLICY])
def test_an_annotation_that_breaks_a_rule_hides_no_request(broken: str) -> None:
    """The author of a running pod may edit it; the spec asks the same."""
    annotations = {**koordinator(entry(core="0", memory="1")), broken: "{"}

    outcome = books(annotations, HALF)

    assert cards(outcome)[0].core_free == 500


def test_a_record_of_main_containers_alone_is_right() -> None:
    """HAMi before 2.5 left init containers out, which have ended."""
    first = [container("first", limits=HAMI_SHARE)]

    outcome = books({HAMI: "GPU-0,NVIDIA,4096,30:;"}, HAMI_SHARE, initContainers=first)

    assert record_of(outcome).problem == ""
    assert cards(outcome)[0].core_free == 700


def test_a_pod_that_hamis_webhook_did_not_see_shares_its_card() -> None:
    """Its spec has no compute, and HAMi counted its default; the webhook would have written 100."""
    outcome = books(
        {HAMI: "GPU-0,NVIDIA,4096,0:;"}, LONE, nodes=[*NODE, defaults("defaultMemory: 4096")]
    )

    first, *_ = cards(outcome)
    assert (first.closed, first.core_free, first.memory_free) == (None, 1000, 12 * GIB)


OWN = [HALF, HAMI_SHARE, QGPU, {RATIO: "30"}]


def edited(placed: Any, **grant: Any) -> dict[str, str]:
    """Our record alone, with other values in its first device."""
    text = placed.rendering.annotations[names.ALLOCATION]
    document = json.loads(text)
    document["containers"][0]["devices"][0] |= grant
    return {names.ALLOCATION: json.dumps(document)}


@pytest.mark.parametrize("asked", OWN)
def test_our_record_counts_for_no_less_either(asked: Manifest) -> None:
    """Without the protocol's record beside it no other amount contradicts it."""
    before = schedule(cluster(*NODE, pod("p", container("c0", limits=asked))))
    (placed,) = before.pods

    outcome = books(edited(placed, milli=0, bytes=0), asked, uid=placed.pod.pod.uid)

    assert [c.core_free for c in cards(outcome)] == [c.core_free for c in cards(before)]
    assert [c.memory_free for c in cards(outcome)] == [c.memory_free for c in cards(before)]


@pytest.mark.parametrize("asked", [*OWN, LONE])
def test_our_record_without_devices_closes_those_of_the_type(asked: Manifest) -> None:
    """It is unknown which ones the pod uses."""
    (placed,) = schedule(cluster(*NODE, pod("p", container("c0", limits=asked)))).pods
    document = json.loads(placed.rendering.annotations[names.ALLOCATION])
    empty = json.dumps({**document, "containers": []})

    outcome = books({names.ALLOCATION: empty}, asked, uid=placed.pod.pod.uid)

    assert "has 0 of the 1 gpu devices" in record_of(outcome).problem
    assert all(one.closed for one in cards(outcome))


@pytest.mark.parametrize("said", [names.ADJUST, names.ENFORCED])
def test_an_adjusted_share_may_be_less(said: str) -> None:
    """The leader lowers the record once the node has lowered the limit."""
    (placed,) = schedule(cluster(*NODE, pod("p", container("c0", limits=HALF)))).pods
    annotations = {**edited(placed, milli=200), said: "compute=20"}

    outcome = books(annotations, HALF, uid=placed.pod.pod.uid)

    assert cards(outcome)[0].core_free == 800


@pytest.mark.parametrize(
    ("asked", "later"),
    [
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096"}, "defaultCores: 60"),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpucores": "30"}, "defaultMemory: 0"),
    ],
)
def test_defaults_that_changed_since_do_not_count(asked: Manifest, later: str) -> None:
    """Our record has the amounts by which the pod was placed."""
    first = "defaultMemory: 2048"
    manifest = pod("p", container("c0", limits=asked))
    before = schedule(cluster(*NODE, defaults(first), manifest))
    (placed,) = before.pods
    ours = edited(placed)

    outcome = books(ours, asked, uid=placed.pod.pod.uid, nodes=[*NODE, defaults(later)])

    assert cards(outcome) == cards(before)


@pytest.mark.parametrize(
    "since",
    [
        {names.DEVICE_ALLOCATE_HINT: '{"rdma":{"allocateStrategy":"RequestsAsCount"}}'},
        {names.DEVICE_ALLOCATE_HINT: "{"},
        {"nvidia.com/use-gputype": "A100"},
    ],
)
def test_annotations_that_changed_since_close_nothing(since: dict[str, str]) -> None:
    """Their author may edit them at any time, and the spec asks the same."""
    network = {
        "type": "rdma", "health": True, "minor": 0, "id": "0000:1f:00.0",
        "resources": {names.KOORD_RDMA: "100"},
    }  # fmt: skip
    nodes = [node(), device("n1", card(0), network)]
    asked = [{**HALF, names.KOORD_RDMA: "2"}, {}]
    manifest = pod("p", *[container(f"c{i}", limits=one) for i, one in enumerate(asked)])
    before = schedule(cluster(*nodes, manifest))
    (placed,) = before.pods

    outcome = books({**edited(placed), **since}, *asked, uid=placed.pod.pod.uid, nodes=nodes)

    assert record_of(outcome).problem == ""
    assert cards(outcome) == cards(before)


ASKS = st.sampled_from(
    [HALF, HAMI_SHARE, QGPU, LONE, {names.KOORD_GPU: "100"}, {names.KOORD_GPU: "200"}, {RATIO: "30"}, {}]
)  # fmt: skip


@given(
    asks=st.lists(ASKS, min_size=1, max_size=3),
    first=ASKS,
    factor=st.sampled_from([0, 1, 50]),
)
def test_no_edit_of_amounts_frees_anything(
    asks: list[Manifest], first: Manifest, factor: int
) -> None:
    """Any mix of protocols; every amount of every record that has amounts is cut to a part of it."""
    containers = [container(f"c{i}", limits=limits) for i, limits in enumerate(asks)]
    waiting = pod("p", *containers, initContainers=[container("first", limits=first)])
    before = schedule(cluster(*NODE, waiting))
    (placed,) = before.pods
    if before.waiting:
        return
    annotations = {
        key: _cut(key, text, factor)
        for key, text in placed.rendering.annotations.items()
        if key != names.ALLOCATION
    }

    outcome = books(annotations, *asks, initContainers=[container("first", limits=first)])

    (found,) = outcome.pods
    if found.pod.pod.record is None:
        return  # the pod asks for nothing
    for then, now in zip(cards(before), cards(outcome), strict=True):
        assert now.closed or now.core_free <= then.core_free
        assert now.closed or now.memory_free <= then.memory_free


def _cut(key: str, text: str, factor: int) -> str:
    if key == KOORDINATOR:
        document = json.loads(text)
        for one in document["gpu"]:
            for name, value in one["resources"].items():
                plain = int(value.removesuffix("Mi").removesuffix("Gi").removesuffix("Ki"))
                one["resources"][name] = str(max(1, plain * factor // 100))
        return json.dumps(document)
    if key in (HAMI, names.HAMI_TO_ALLOCATE):
        parts = [
            ":".join(
                ",".join([*one.split(",")[:2], *(str(int(n) * factor // 100) for n in one.split(",")[2:])])
                for one in slot.split(":")
                if one
            )
            for slot in text.split(";")
        ]  # fmt: skip
        return ";".join(f"{part}:" if part else part for part in parts)
    return text
