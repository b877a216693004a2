"""Cases of the Koordinator document: Koordinator's v1.4 page on GPU and RDMA scheduling."""

from typing import Final

from published.case import Case, Elsewhere, Expectation, Misprint
from published.koordinator_manifests import (
    DEVICE,
    NODE,
    POD,
    PRINTED,
    RECORD,
    RUNNING,
)
from published.parts import (
    device_object,
    exits,
    join,
    node_says,
    placed,
    pod_says,
)

__all__ = ["CASES", "ELSEWHERE", "MISPRINTS"]

_GIB: Final = 2**30
_FIRST: Final = "GPU-04cea5cd-966f-7116-1d58-1ac34421541b"
_SECOND: Final = "GPU-3680858f-1753-371e-3c1a-7d8127fc7113"

_SMALL: Final = device_object(
    "host04", [(_FIRST, "12508288Ki"), (_SECOND, "12508288Ki")], {}, "kubernetes.io"
)
_ROOM: Final = "the page gives the node 16Gi a card and the annotation 12508288Ki"


def _further(name: str, *requests: str) -> str:
    lines = "\n".join(f"          {request}" for request in requests)
    return f"""
apiVersion: v1
kind: Pod
metadata:
  name: {name}
spec:
  schedulerName: koord-scheduler
  containers:
    - name: main
      resources:
        requests:
          cpu: 40m
          memory: 40Mi
{lines}
"""


def _card(minor: int, uuid: str) -> Expectation:
    return node_says(
        "host04",
        "devices",
        minor,
        value={
            "type": "gpu",
            "minor": minor,
            "uuid": uuid,
            "healthy": True,
            "core_milli": {"total": 1000, "used": 0},
            "memory_bytes": {"total": 16 * _GIB, "used": 0},
        },
    )


def _whole(name: str) -> tuple[Expectation, ...]:
    return (
        exits(0),
        placed(name, "host04"),
        pod_says(
            name,
            "allocations",
            0,
            value={"minor": 0, "core_milli": 1000, "memory_bytes": 16 * _GIB, "mode": "whole"},
        ),
    )


CASES: Final[tuple[Case, ...]] = (
    Case(
        id="003-device",
        printed="`kubectl get device host04 -o yaml`: two cards, 100 core, 16Gi, ratio 100, healthy",
        documents=join(DEVICE, NODE),
        expected=(exits(0), _card(0, _FIRST), _card(1, _SECOND)),
    ),
    Case(
        id="003-node-totals",
        printed="`kubectl get node host04`: allocatable merges the cards: gpu 200, gpu-core 200, gpu-memory 32Gi,"
        " gpu-memory-ratio 200, nvidia.com/gpu 2",
        documents=join(DEVICE, NODE),
        expected=(
            node_says(
                "host04",
                "allocatable",
                value={
                    "cpu": "6",
                    "ephemeral-storage": "200681483926",
                    "kubernetes.io/gpu": "200",
                    "kubernetes.io/gpu-core": "200",
                    "kubernetes.io/gpu-memory": "32Gi",
                    "kubernetes.io/gpu-memory-ratio": "200",
                    "memory": "59274552Ki",
                    "nvidia.com/gpu": "2",
                    "pods": "220",
                },
            ),
            node_says("host04", "allocatable", "koordinator.sh/gpu", value="200"),
        ),
        how="computed from the Device; every printed line is equal",
    ),
    Case(
        id="003-pod-gpu",
        printed='pod-example asks `kubernetes.io/gpu: "100"` and gets one card',
        documents=join(DEVICE, NODE, POD),
        expected=(
            *_whole("pod-example"),
            pod_says(
                "pod-example", "annotations", RECORD, value=PRINTED.replace("12508288Ki", "16Gi")
            ),
        ),
        how="annotation equal as text, with the memory of the printed Device",
        misprint=_ROOM,
    ),
    Case(
        id="003-annotation",
        printed=f"`{RECORD}: '{PRINTED}'`",
        documents=join(_SMALL, NODE, POD),
        expected=(
            placed("pod-example", "host04"),
            pod_says("pod-example", "annotations", RECORD, value=PRINTED),
        ),
        how="annotation equal as text, on cards of the size that it was printed on",
        misprint=_ROOM,
    ),
    Case(
        id="003-running-pod",
        printed="the pod as it runs (cpu 1, memory 256Mi, with the annotation)",
        documents=join(_SMALL, NODE, RUNNING),
        expected=(
            exits(0),
            placed("pod-example", "host04"),
            node_says(
                "host04",
                "devices",
                0,
                value={
                    "core_milli": {"total": 1000, "used": 1000},
                    "memory_bytes": {"total": 12508288 * 1024, "used": 12508288 * 1024},
                },
            ),
        ),
        how="the printed record is read back and counted",
        misprint="the manifest above it asks cpu 40m and 40Mi, and its selfLink names another pod",
    ),
    Case(
        id="003-nvidia-gpu",
        printed='further form: `nvidia.com/gpu: "100"`',
        documents=join(DEVICE, NODE, _further("more-1", 'nvidia.com/gpu: "100"')),
        expected=_whole("more-1"),
        how="100 is percent: one whole card",
    ),
    Case(
        id="003-core-ratio",
        printed='further form: `kubernetes.io/gpu-core: "100"`, `kubernetes.io/gpu-memory-ratio: "100"`',
        documents=join(
            DEVICE,
            NODE,
            _further(
                "more-2", 'kubernetes.io/gpu-core: "100"', 'kubernetes.io/gpu-memory-ratio: "100"'
            ),
        ),
        expected=(
            *_whole("more-2"),
            pod_says("more-2", "annotations", RECORD, value=PRINTED.replace("12508288Ki", "16Gi")),
        ),
    ),
    Case(
        id="003-core-bytes",
        printed='further form: `kubernetes.io/gpu-core: "100"`, `kubernetes.io/gpu-memory: "16Mi"`',
        documents=join(
            DEVICE,
            NODE,
            _further(
                "more-3", 'kubernetes.io/gpu-core: "100"', 'kubernetes.io/gpu-memory: "16Mi"'
            ),
        ),
        expected=(
            exits(0),
            pod_says(
                "more-3",
                "allocations",
                0,
                value={
                    "minor": 0,
                    "core_milli": 1000,
                    "memory_bytes": 16 * 2**20,
                    "mode": "share",
                },
            ),
            pod_says(
                "more-3",
                "annotations",
                RECORD,
                value='{"gpu":[{"minor":0,"resources":{"kubernetes.io/gpu-core":"100",'
                '"kubernetes.io/gpu-memory":"16Mi","kubernetes.io/gpu-memory-ratio":"0"}}]}',
            ),
        ),
        how="taken as printed: all compute and 16 MiB, ratio truncated as upstream does",
        misprint="16Gi was surely meant",
    ),
)

ELSEWHERE: Final[tuple[Elsewhere, ...]] = (
    Elsewhere(
        "003",
        "`kubectl get lease koord-scheduler …`: finding the leader",
        "the scheduler service, by the Lease's name in the profile koordinator",
        "test_the_documents_steps_are_followed_as_printed",
    ),
    Elsewhere(
        "003",
        "the devices are bound to the container by NRI or a runtime proxy",
        "the node agent, by either",
        "test_koordinator_gets_card_numbers_and_a_sidecar_gets_nothing",
    ),
    Elsewhere(
        "003",
        "`Device` objects reported by the node",
        "the node agent",
        "test_devices_are_reported_and_containers_are_served",
    ),
)

MISPRINTS: Final[tuple[Misprint, ...]] = (
    Misprint(
        "003",
        "manifests without indentation",
        "YAML",
        "indentation restored by hand in the inputs",
    ),
    Misprint(
        "003",
        "annotation memory 12508288Ki beside cards of 16Gi",
        "output of another run",
        "each card's own memory; both sizes are cases",
    ),
    Misprint(
        "003",
        "cpu 40m and memory 40Mi in the manifest, 1 and 256Mi in the running pod",
        "output of another run",
        "requests are taken as written",
    ),
    Misprint(
        "003",
        "selfLink and the debug API name xlf/gpu-pod7, the pod is default/pod-example",
        "output of another run",
        "selfLink is not read",
    ),
    Misprint(
        "003",
        "the debug API prints one card for host04, its Device has two",
        "output of another run",
        "both cards are printed, each with free and used amounts",
    ),
    Misprint(
        "003",
        'requests `kubernetes.io/gpu: "100"` without a limit',
        "an extended resource needs both",
        "requests and limits are copied to each other",
    ),
    Misprint(
        "003",
        '`nvidia.com/gpu: "100"` (plugins count cards)',
        "100 percent of a card",
        "a lone multiple of 100 is percent",
    ),
    Misprint(
        "003",
        '`kubernetes.io/gpu-memory: "16Mi"`',
        "16Gi",
        "taken as written; the pod gets 16 MiB",
    ),
    Misprint("003", "Koordinator >= 0.71", "0.7.1", "no version is checked"),
)
