"""Which protocol reads which container, above all a lone `nvidia.com/gpu`."""

import pytest
from manifests import Manifest, config_map, container, device, node, only, pod, read

GPU = "nvidia.com/gpu"
HAMI_NODE = "GPU-a,10,16384,100,NVIDIA A100,0,true:"


def protocols(*manifests: Manifest) -> dict[str, str]:
    """Container to the protocol of its group."""
    groups = read(*manifests).request.groups
    return {ask.name: group.protocol for group in groups for ask in group.containers}


@pytest.mark.parametrize(
    ("manifest", "protocol"),
    [
        pytest.param(pod("p", container(limits={GPU: 1})), "nvidia", id="undecided"),
        pytest.param(
            pod("p", container(limits={GPU: 1}), schedulerName="hami-scheduler"),
            "hami",
            id="hami-scheduler",
        ),
        pytest.param(
            pod("p", container(limits={GPU: 1}), schedulerName="koord-scheduler"),
            "koordinator",
            id="koord-scheduler",
        ),
        pytest.param(
            pod("p", container(limits={GPU: 1}), schedulerName="my-scheduler"),
            "nvidia",
            id="another scheduler",
        ),
        pytest.param(
            pod("p", container(limits={GPU: 1, "nvidia.com/gpumem": 100})),
            "hami",
            id="gpumem beside it",
        ),
        pytest.param(
            pod(
                "p",
                container(limits={GPU: 1, "nvidia.com/gpucores": 10}),
                schedulerName="koord-scheduler",
            ),
            "hami",
            id="gpucores, whatever the scheduler",
        ),
        pytest.param(
            pod("p", container(limits={"nvidia.com/gpumem": 100})), "hami", id="gpumem alone"
        ),
        pytest.param(
            pod(
                "p",
                container(limits={GPU: 1}),
                meta={"annotations": {"nvidia.com/use-gputype": "A100"}},
            ),
            "hami",
            id="annotation of nvidia.com",
        ),
        pytest.param(
            pod(
                "p",
                container(limits={GPU: 1}),
                meta={"annotations": {"hami.io/node-scheduler-policy": "spread"}},
            ),
            "hami",
            id="annotation of hami.io",
        ),
        pytest.param(
            pod(
                "p",
                container(limits={GPU: 1}),
                schedulerName="koord-scheduler",
                meta={"annotations": {"nvidia.com/use-gputype": "A100"}},
            ),
            "koordinator",
            id="the scheduler comes first",
        ),
        pytest.param(
            pod("p", container(limits={"kubernetes.io/gpu": 50})), "koordinator", id="v1.4"
        ),
        pytest.param(
            pod("p", container(limits={"koordinator.sh/gpu": 50, GPU: 0})),
            "koordinator",
            id="zero is no contradiction",
        ),
        pytest.param(
            pod("p", container(limits={"tke.cloud.tencent.com/qgpu-core": 100})), "qgpu", id="qgpu"
        ),
        pytest.param(
            pod(
                "p",
                container(limits={GPU: 1}),
                meta={"annotations": {"partage.io/mig-profile": "3g"}},
            ),
            "hami",
            id="a profile of instances, which no other protocol has",
        ),
        pytest.param(
            pod("p", container(limits={GPU: 1, "nvidia.com/priority": 0})),
            "hami",
            id="a priority of 0 is the highest",
        ),
        pytest.param(
            pod("p", container(limits={GPU: 1, "nvidia.com/gpumem-percentage": 0})),
            "hami",
            id="a percentage of 0 is all memory",
        ),
        pytest.param(
            pod("p", container(limits={GPU: 1, "koordinator.sh/gpu": 0, "nvidia.com/gpumem": 0})),
            "nvidia",
            id="zeros of both decide nothing",
        ),
    ],
)
def test_the_owner_of_a_container(manifest: Manifest, protocol: str) -> None:
    """The container's names decide, then the pod, then the node."""
    assert protocols(manifest) == {"main": protocol}


def test_a_profile_beside_another_protocol_is_told() -> None:
    """Only containers by HAMi's names can have hardware instances."""
    annotated = {"annotations": {"partage.io/mig-profile": "3g"}}
    manifest = pod("p", container(limits={"koordinator.sh/gpu": 50}), meta=annotated)

    assert read(manifest).request.notes == (
        "annotation partage.io/mig-profile has no effect: no container asks by HAMi's names",
    )


def test_wishes_in_a_protocol_that_no_container_speaks_are_told() -> None:
    """HAMi's, Koordinator's and MetaX's beside qGPU; what the pod's own protocol reads is not among them."""
    others = {
        "nvidia.com/use-gputype": "A100",
        "scheduling.koordinator.sh/device-allocate-hint": "{}",
        "metax-tech.com/sgpu-qos-policy": "fixed-share",
    }
    qgpu = {"tke.cloud.tencent.com/qgpu-core": 20, "tke.cloud.tencent.com/qgpu-memory": 5}
    hami = {GPU: 1, "nvidia.com/gpumem": 5}

    notes = [
        read(pod("p", container(limits=limits), meta={"annotations": others})).request.notes
        for limits in (qgpu, hami)
    ]

    foreign = (
        "annotation scheduling.koordinator.sh/device-allocate-hint has no effect: no container asks by Koordinator's names",
        "annotation metax-tech.com/sgpu-qos-policy has no effect: no container asks for metax-tech.com/sgpu",
    )
    own = "annotation nvidia.com/use-gputype has no effect: no container asks by HAMi's names"
    assert sorted(notes[0]) == sorted((own, *foreign))
    assert sorted(notes[1]) == sorted(foreign)


def test_another_container_decides() -> None:
    """A pod that speaks HAMi in one container means HAMi in the other."""
    manifest = pod(
        "p", container("a", limits={GPU: 1}), container("b", limits={"nvidia.com/gpumem": 5})
    )

    assert protocols(manifest) == {"a": "hami", "b": "hami"}


def test_containers_may_speak_different_protocols() -> None:
    """One pool: each container's request is placed by its own rules."""
    manifest = pod(
        "p",
        container("h", limits={"nvidia.com/gpumem": 5}),
        container(
            "q",
            limits={"tke.cloud.tencent.com/qgpu-core": 5, "tke.cloud.tencent.com/qgpu-memory": 1},
        ),
        container("k", limits={"koordinator.sh/gpu": 50}),
        container("none"),
    )

    assert protocols(manifest) == {"h": "hami", "q": "qgpu", "k": "koordinator"}


def test_a_cluster_of_hami_nodes_decides() -> None:
    """Where HAMi registered every node, its defaults apply from the start."""
    hami = {
        **node(),
        "metadata": {"name": "n1", "annotations": {"hami.io/node-nvidia-register": HAMI_NODE}},
    }
    lone = pod("p", container(limits={GPU: 1}))

    assert protocols(hami, lone) == {"main": "hami"}
    assert protocols(hami, node("n2"), device("n2"), lone) == {"main": "nvidia"}


def test_no_node_changes_what_a_default_memory_says() -> None:
    """One node's account could make whole cards of all shares, by one node without HAMi's annotation."""
    text = "nvidia: {resourceCountName: nvidia.com/gpu, defaultMemory: 3000}"
    config = config_map("hami-scheduler-device", **{"device-config.yaml": text})
    lone = pod("p", container(limits={GPU: 1}))
    groups = read(config, node("n2"), device("n2"), lone).request.groups

    assert [(one.protocol, one.request.memory_bytes >> 20) for one in groups] == [("hami", 3000)]


@pytest.mark.parametrize(
    ("amount", "count"), [(1, 1), ("3", 3), ("100", 1), (800, 8), ("150", 150), ("2k", 20)]
)
def test_undecided_cards_are_whole(amount: object, count: int) -> None:
    """N cards a container; a multiple of 100 is percent."""
    (group,) = read(pod("p", container(limits={GPU: amount}))).request.groups

    assert (group.request.count, group.request.whole) == (count, True)
    assert (group.request.core_milli, group.request.memory_milli) == (1000, 1000)
    assert group.request.filter.vendors == ("nvidia",)


def test_init_groups_come_last() -> None:
    """They are placed after the others."""
    manifest = pod(
        "p",
        container("m", limits={GPU: 1}),
        initContainers=[container("i", limits={GPU: 1}), container("z", limits={GPU: 0})],
    )

    assert list(protocols(manifest)) == ["m", "i"]


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        pytest.param(
            {"koordinator.sh/gpu": 50, "nvidia.com/gpumem": 5},
            "two protocols in one container: koordinator.sh/gpu (koordinator) and nvidia.com/gpumem (hami)",
            id="koordinator and hami",
        ),
        pytest.param(
            {GPU: 1, "tke.cloud.tencent.com/qgpu-core": 5},
            "two protocols in one container: tke.cloud.tencent.com/qgpu-core (qgpu) and nvidia.com/gpu (koordinator/hami)",
            id="qgpu and nvidia",
        ),
        pytest.param(
            {GPU: 1, "koordinator.sh/gpu-core": 50},
            "invalid resource device requests",
            id="koordinator's own rule",
        ),
        pytest.param(
            {GPU: "0.5"},
            "container main: nvidia.com/gpu: 500m must be a whole number, as the API server demands",
            id="half a card",
        ),
        pytest.param(
            {"koordinator.sh/gpu-core": "500m", "koordinator.sh/gpu-memory": "1Gi"},
            "container main: koordinator.sh/gpu-core: 500m must be a whole number",
            id="half a percent",
        ),
        pytest.param(
            {"koordinator.sh/gpu-core": 50, "koordinator.sh/gpu-memory": "0.3"},
            "container main: koordinator.sh/gpu-memory: 300m must be a whole number",
            id="part of a byte",
        ),
        pytest.param(
            {GPU: "4G"},
            "nvidia.com/gpu: 4G must be at most",
            id="too many",
        ),
    ],
)
def test_contradictions_are_refused(limits: Manifest, message: str) -> None:
    """The pod waits, and the message names container and names."""
    request = read(pod("p", container(limits=limits))).request

    assert request.fault is not None
    assert message in request.fault.message


@pytest.mark.parametrize(("more", "most"), [({}, 3), ({GPU: 2}, 2)], ids=["default", "its own"])
def test_a_refused_pod_may_run_with_the_default_count(more: Manifest, most: int) -> None:
    """Another scheduler may have placed it, and HAMi's gives a container without a count the operator's."""
    limits = {"nvidia.com/gpumem": 1, "koordinator.sh/gpu-core": 50, **more}
    settings = config_map(
        "hami-scheduler-device", device_config__yaml="nvidia: {defaultGPUNum: 3}"
    )

    request = read(settings, pod("p", container(limits=limits))).request

    assert request.fault is not None
    assert [one.count for one in request.may_use] == [most]


def test_the_reading_is_explained() -> None:
    """The pod's notes say whose a lone count is, and why."""
    notes = read(
        pod("p", container(limits={GPU: 1}), schedulerName="hami-scheduler")
    ).request.notes

    assert (
        notes[0]
        == "container main: nvidia.com/gpu alone is hami's, by schedulerName hami-scheduler"
    )


@pytest.mark.parametrize(
    ("annotations", "reason"),
    [
        ({"nvidia.com/use-gputype": "A100"}, "the annotation nvidia.com/use-gputype"),
        ({"hami.io/bind-phase": "success", "hami.io/vgpu-node": "n1"}, "the record of its place"),
    ],
    ids=["the author's", "written since"],
)
def test_what_was_written_with_the_place_is_no_sign_of_the_author(
    annotations: dict[str, str], reason: str
) -> None:
    """The author of a placed pod never wrote `hami.io/bind-phase`, so the note does not name it."""
    made = pod("p", container(limits={GPU: 1}))
    made["metadata"]["annotations"] = annotations

    notes = read(made).request.notes

    assert notes[0] == f"container main: nvidia.com/gpu alone is hami's, by {reason}"


def test_renamed_names_are_routed() -> None:
    """With HAMi's count renamed, `nvidia.com/gpu` is Koordinator's alone."""
    names = config_map(
        "hami-scheduler-device", device_config__yaml="nvidia: {resourceCountName: acme.io/vgpu}"
    )

    assert protocols(names, pod("p", container(limits={"acme.io/vgpu": 1}))) == {"main": "hami"}
    assert protocols(names, pod("p", container(limits={GPU: 1}))) == {"main": "koordinator"}


def test_a_name_of_two_families_goes_to_the_first() -> None:
    """An operator may rename HAMi's count to another's name; nothing is lost then."""
    names = config_map(
        "hami-scheduler-device",
        device_config__yaml="nvidia: {resourceCountName: koordinator.sh/gpu}",
    )

    assert protocols(names, pod("p", container(limits={"koordinator.sh/gpu": 50}))) == {
        "main": "koordinator"
    }


@pytest.mark.parametrize(
    ("key", "value", "ok"),
    [
        ("partage.io/node-policy", "spread", True),
        ("partage.io/card-policy", "binpack", True),
        ("partage.io/card-policy", "Spread", True),
        ("partage.io/node-policy", "best", False),
        ("partage.io/card-policy", "first-fit", False),
    ],
)
def test_a_pod_may_choose_its_policy(key: str, value: str, *, ok: bool) -> None:
    """Partage's annotation wins over a protocol's; another value is refused by name."""
    annotations = {key: value, "hami.io/node-scheduler-policy": "binpack"}
    request = read(pod("p", container(limits={GPU: 1}), meta={"annotations": annotations})).request

    if ok:
        chosen = request.node_strategy if "node" in key else request.card_order.strategy
        assert chosen == value.lower()
    else:
        assert request.fault is not None
        assert f"annotation {key}: '{value}' is not one of" in request.fault.message


def test_vendors_refine_what_was_read() -> None:
    """MetaX takes one card only, and its own quality of service."""
    limits = {
        "koordinator.sh/gpu.shared": 1,
        "koordinator.sh/gpu-core": 10,
        "koordinator.sh/gpu-memory": "1Gi",
        "metax-tech.com/sgpu": 1,
    }
    manifest = pod(
        "p",
        container(limits=limits),
        meta={"annotations": {"metax-tech.com/sgpu-qos-policy": "x"}},
    )

    fault = only(manifest).pod.request.fault

    assert fault is not None
    assert "metax-tech.com/sgpu-qos-policy" in fault.message


def test_a_broken_amount_is_not_read_around() -> None:
    """The container names HAMi's memory, so nothing is said of a lone count."""
    found = read(pod("web", container(limits={"nvidia.com/gpu": 1, "nvidia.com/gpumem": "-1"})))

    assert found.request.fault is not None
    assert "nvidia.com/gpumem: -1 must not be negative" in found.request.fault.message
    assert found.request.notes == ()


@pytest.mark.parametrize(("cards", "notes"), [(1, 1), (0, 0)])
def test_no_cards_are_not_read_as_whole_ones(cards: int, notes: int) -> None:
    """Charts write `nvidia.com/gpu: 0` for a pod without devices."""
    assert len(read(pod("p", container(limits={GPU: cards}))).request.notes) == notes
