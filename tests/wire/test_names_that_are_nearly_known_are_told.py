"""A misspelt resource or annotation does nothing, and Kubernetes takes it: only a note can inform its author."""

import difflib
from collections.abc import Callable

import pytest
from manifests import container, documents, pod, read

from partage.vendors import names
from partage.vendors.settings import Settings
from partage.wire.context import Context
from partage.wire.documents import Document
from partage.wire.near_names import near_names, unread_names


@pytest.mark.parametrize(
    ("resource", "near"),
    [
        ("nvidia.com/gpumemory", "nvidia.com/gpumem"),
        ("nvidia.com/gpu-cores", "nvidia.com/gpucores"),
        ("koordinator.sh/gpu-mem", "koordinator.sh/gpu-memory"),
        ("kubernetes.io/gpu-cores", "kubernetes.io/gpu-core"),
        ("tke.cloud.tencent.com/qgpu_memory", "tke.cloud.tencent.com/qgpu-memory"),
        ("metax-tech.com/sgpus", "metax-tech.com/sgpu"),
        ("huawei.com/Ascend310p", "huawei.com/Ascend310P"),
    ],
)
@pytest.mark.parametrize("kind", ["limits", "requests"])
def test_a_misspelt_resource_is_told_with_the_nearest(resource: str, near: str, kind: str) -> None:
    """The note stands for limits and requests, and names one of the same domain, since others would be no help."""
    found = read(pod("p", container("c", **{kind: {resource: 1}}))).request.notes

    assert found == (
        f"container c: resource {resource} is none that Partage reads; did you mean {near}?",
    )


@pytest.mark.parametrize(
    "resource",
    [
        "cpu",
        "example.com/gpumemory",
        "nvidia.com/mig-1g.10gb",
        "nvidia.com/gpu.shared",
        "nvidia.com/hostdev",
        "kubernetes.io/batch-memory",
        "metax-tech.com/gpu",
        "huawei.com/Ascend910",
        "metax-tech.com/vcore",
    ],
)
def test_what_others_serve_is_left_alone(resource: str) -> None:
    """Names of other programs, and those that resemble none of Partage's."""
    assert read(pod("p", container(limits={resource: 1}))).request.notes == ()


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("nvidia.com/use-gputypes", names.HAMI_USE_TYPE),
        ("nvidia.com/numabind", names.HAMI_NUMA_BIND),
        ("hami.io/gpu-scheduler-polcy", names.HAMI_CARD_POLICY),
        ("scheduling.koordinator.sh/device-allocation-hint", names.DEVICE_ALLOCATE_HINT),
        ("metax-tech.com/sgpu-qos-polcy", names.SGPU_QOS_POLICY),
        ("partage.io/node-polices", names.NODE_POLICY),
    ],
)
def test_a_misspelt_annotation_is_told_with_the_nearest(key: str, near: str) -> None:
    """The note suggests a key that a pod's author writes."""
    found = read(pod("p", meta={"annotations": {key: "x"}})).request.notes

    assert found == (f"annotation {key} is none that Partage reads; did you mean {near}?",)


def test_a_plugin_that_is_woken_alone_is_told() -> None:
    """It finds no card that was allocated, and Partage reserves none; beside amounts there is no note."""
    alone = read(pod("p", container(limits={names.SGPU: 1}))).request.notes
    amounts = {names.KOORD_GPU_CORE: 10, names.KOORD_GPU_MEMORY: "1Gi"}
    beside = read(pod("p", container(limits={names.SGPU: 1, **amounts}))).request.notes

    said = (
        "resource metax-tech.com/sgpu only wakes its vendor's plugin: Partage gives no card for it; write "
        "amounts beside it, such as koordinator.sh/gpu-core and koordinator.sh/gpu-memory"
    )
    assert alone == (said,)
    assert beside == ()


def test_what_is_known_is_not_told() -> None:
    """Every key of the protocols is either read or some program's own."""
    every = {
        value: "x"
        for key, value in vars(names).items()
        if key.isupper() and isinstance(value, str) and "/" in value
    }
    notes = read(pod("p", meta={"annotations": every})).request.notes

    assert not [note for note in notes if "did you mean" in note]


def test_of_thousands_a_few_are_told() -> None:
    """A tenant may write as many as an object holds, each of any length."""
    keys = {f"nvidia.com/use-gputype{number}": "x" for number in range(5000)}
    keys |= {f"nvidia.com/{'use-gputype' * 40}{number}": "x" for number in range(200)}

    assert len(read(pod("p", meta={"annotations": keys})).request.notes) == 8


@pytest.mark.parametrize("told", [near_names, unread_names])
@pytest.mark.parametrize("alike", ["gpu-memory-ratios", "nothing-known"])
def test_of_all_containers_together_a_few_names_are_compared(
    monkeypatch: pytest.MonkeyPatch,
    told: Callable[[Document, Context], tuple[str, ...]],
    alike: str,
) -> None:
    """Each comparison takes as long as a container: 32,000 took a second."""
    compared: list[str] = []
    closest = difflib.get_close_matches

    def counted(word: str, *given: object, **more: object) -> list[str]:
        compared.append(word)
        return closest(word, *given, **more)  # type: ignore[arg-type,call-overload]

    monkeypatch.setattr(difflib, "get_close_matches", counted)
    listed = [
        container(
            f"c{number}",
            limits={
                "metax-tech.com/sgpu": 1,
                **{f"koordinator.sh/{alike}{number}.{other}": 1 for other in range(20)},
            },
        )
        for number in range(100)
    ]
    (document,) = documents(pod("p", *listed))
    told(document, Context.of(Settings()))
    assert 0 < len(compared) <= 130


def test_a_misspelt_name_is_told_for_each_container() -> None:
    """It is compared once."""
    notes = read(
        pod("p", *(container(c, limits={"nvidia.com/gpumemory": 1}) for c in "ab"))
    ).request.notes
    assert [note.partition(":")[0] for note in notes] == ["container a", "container b"]
