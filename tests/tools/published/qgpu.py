"""Cases of the qGPU document: Tencent qGPU."""

from typing import Final

from published.case import Case, Elsewhere, Expectation, Misprint
from published.parts import (
    exits,
    join,
    node,
    node_says,
    placed,
    pod,
    pod_says,
    waits,
)

__all__ = ["CASES", "ELSEWHERE", "MISPRINTS"]

_GIB: Final = 2**30
_CORE: Final = "tke.cloud.tencent.com/qgpu-core"
_MEMORY: Final = "tke.cloud.tencent.com/qgpu-memory"
_POLICY: Final = "tke.cloud.tencent.com/qgpu-schedule-policy"
_HOST: Final = "kubernetes.io/hostname"
_DRIVERS: Final = (
    ("450", "450.102.04", "450.102.05"),
    ("470", "470.161.03", "470.161.04"),
    ("515", "515.65.01", "515.65.02"),
    ("525", "525.89.02", "525.89.03"),
)


def _node(
    name: str,
    cards: int = 1,
    *,
    model: str = "Tesla-T4",
    driver: str = "470.161.03",
    gib: int = 14,
    policy: str = "",
) -> str:
    labels = {
        _HOST: name,
        "nvidia.com/gpu.product": model,
        "nvidia.com/cuda.driver-version.full": driver,
    }
    if policy:
        labels[_POLICY] = policy
    return node(name, {_CORE: str(100 * cards), _MEMORY: str(gib * cards)}, labels)


def _pod(name: str, core: str, memory: str = "", on: str = "") -> str:
    limits = {_CORE: core} | ({_MEMORY: memory} if memory else {})
    return pod(name, limits, selector={_HOST: on} if on else None)


def _driver(branch: str, last: str, newer: str) -> Case:
    return Case(
        id=f"001-driver-{branch}",
        printed=f"driver branch {branch}: at most {last}",
        documents=join(
            _node("bound", driver=last),
            _node("beyond", driver=newer),
            _pod("on-bound", "30", "5", on="bound"),
            _pod("on-beyond", "30", "5", on="beyond"),
        ),
        expected=(
            exits(3),
            placed("on-bound", "bound"),
            pod_says("on-beyond", "reason", "nodes", "beyond", "code", value="DriverUnsupported"),
        ),
        how="the last version is admitted, the next one refused",
    )


def _architectures() -> Case:
    supported = {
        "v100": "Tesla-V100-SXM2-32GB",
        "t4": "Tesla-T4",
        "a100": "NVIDIA-A100-SXM4-80GB",
        "a10": "NVIDIA-A10",
    }
    nodes = [_node(name, model=model) for name, model in supported.items()]
    pods = [_pod(f"on-{name}", "30", "5", on=name) for name in supported]
    return Case(
        id="001-architectures",
        printed="cards of Volta (V100), Turing (T4), Ampere (A100, A10)",
        documents=join(
            *nodes,
            _node("p100", model="Tesla-P100-PCIE-16GB"),
            *pods,
            _pod("on-p100", "30", "5", on="p100"),
        ),
        expected=(
            exits(3),
            *(placed(f"on-{name}", name) for name in supported),
            pod_says("on-p100", "reason", "nodes", "p100", "code", value="DriverUnsupported"),
        ),
    )


def _grain() -> Case:
    good = {"smallest": ("5", "1"), "step": ("95", "1")}
    bad = {
        "below": ("4", "1"),
        "between": ("33", "1"),
        "no-memory-unit": ("30", "0"),
        "part-of-a-gib": ("30", "1500m"),
        "with-suffix": ("30", "5Gi"),
    }
    return Case(
        id="001-grain",
        printed="at least 1 GiB in steps of 1, at least 5 % in steps of 5",
        documents=join(
            _node("t4", 2), *(_pod(name, *asked) for name, asked in {**good, **bad}.items())
        ),
        expected=(
            exits(3),
            *(placed(name, "t4") for name in good),
            *(waits(name, "InvalidRequest") for name in bad),
        ),
    )


def _sixteen() -> Case:
    return Case(
        id="001-sixteen",
        printed="at most 16 qGPU devices on one GPU",
        documents=join(
            _node("v100", model="Tesla-V100-SXM2-32GB", gib=32),
            *(_pod(f"share-{number:02}", "5", "1") for number in range(1, 18)),
        ),
        expected=(
            exits(3),
            placed("share-16", "v100"),
            waits("share-17", "InsufficientSlots"),
            node_says("v100", "devices", 0, "slots", value={"total": 16, "used": 16}),
        ),
        how="seventeen shares of 5 % and 1 GiB",
    )


def _policies() -> Case:
    labels = ("best-effort", "be", "fixed-share", "fs", "burst-share", "bs")
    return Case(
        id="001-policy",
        printed="label `qgpu-schedule-policy`: best-effort (be, default), fixed-share (fs), burst-share (bs)",
        documents=join(
            *(_node(f"node-{label}", policy=label) for label in labels),
            _node("node-none"),
            _node("node-odd", policy="fair"),
            *(
                _pod(f"on-{label}", "30", "5", on=f"node-{label}")
                for label in (*labels, "none", "odd")
            ),
        ),
        expected=(
            exits(3),
            *(placed(f"on-{label}", f"node-{label}") for label in (*labels, "none")),
            pod_says("on-odd", "reason", "nodes", "node-odd", "code", value="NodePolicy"),
        ),
        how="full names, abbreviations and no label are admitted, other values refused",
    )


def _strategy(name: str, expected: tuple[Expectation, ...], how: str, printed: str) -> Case:
    return Case(
        id=f"001-{name}",
        printed=printed,
        documents=join(
            _node("one", 2), _node("two", 2), _pod("first", "30", "5"), _pod("second", "30", "5")
        ),
        expected=(exits(0), *expected),
        arguments=("--policy", name),
        how=how,
    )


def _first_card(pod_name: str, minor: int) -> Expectation:
    return pod_says(pod_name, "allocations", 0, "minor", value=minor)


_PUBLISHED: Final = """
apiVersion: apps/v1
kind: Deployment
metadata:
  name: demo
spec:
  replicas: 1
  template:
    spec:
      containers:
        - name: main
          resources:
            limits:
              tke.cloud.tencent.com/qgpu-memory: "5"
              tke.cloud.tencent.com/qgpu-core: "30"
            requests:
              tke.cloud.tencent.com/qgpu-memory: "5"
              tke.cloud.tencent.com/qgpu-core: "30"
"""

CASES: Final[tuple[Case, ...]] = (
    Case(
        id="001-yaml",
        printed="the YAML: qgpu-memory 5, qgpu-core 30 in limits and requests",
        documents=join(_node("t4"), _PUBLISHED),
        expected=(
            exits(0),
            placed("demo-0", "t4"),
            pod_says(
                "demo-0",
                "allocations",
                0,
                value={
                    "container": "main",
                    "minor": 0,
                    "core_milli": 300,
                    "memory_bytes": 5 * _GIB,
                    "mode": "share",
                },
            ),
            pod_says(
                "demo-0",
                "annotations",
                value={
                    "tke.cloud.tencent.com/qgpu": "true",
                    "tke.cloud.tencent.com/qgpu-pgpu-main": "0",
                },
            ),
        ),
        how="amounts equal; the page prints no annotation, the keys are those its maker's tool reads",
    ),
    _architectures(),
    *(_driver(*row) for row in _DRIVERS),
    _grain(),
    Case(
        id="001-whole",
        printed="whole cards: qgpu-core 100, 200, … N x 100, all memory of the card, no qgpu-memory",
        documents=join(_node("t4", 3), _pod("one-card", "100"), _pod("two-cards", "200")),
        expected=(
            exits(0),
            pod_says(
                "one-card", "allocations", 0, value={"mode": "whole", "memory_bytes": 14 * _GIB}
            ),
            pod_says(
                "two-cards", "allocations", 1, value={"mode": "whole", "memory_bytes": 14 * _GIB}
            ),
        ),
    ),
    Case(
        id="001-both",
        printed="a fraction needs both core and memory",
        documents=join(_node("t4"), _pod("core-only", "30"), pod("memory-only", {_MEMORY: "5"})),
        expected=(
            exits(3),
            waits("core-only", "InvalidRequest"),
            waits("memory-only", "InvalidRequest"),
        ),
    ),
    _sixteen(),
    Case(
        id="001-requests",
        printed="requests equal limits, or are left out",
        documents=join(
            _node("t4"),
            pod("equal", {_CORE: "30", _MEMORY: "5"}, requests={_CORE: "30", _MEMORY: "5"}),
            pod("left-out", {_CORE: "30", _MEMORY: "5"}),
            pod("different", {_CORE: "30", _MEMORY: "5"}, requests={_CORE: "20", _MEMORY: "5"}),
        ),
        expected=(
            exits(3),
            placed("equal", "t4"),
            placed("left-out", "t4"),
            waits("different", "InvalidRequest"),
        ),
    ),
    Case(
        id="001-remaining",
        printed="a value beyond the remaining compute of the card fails",
        documents=join(_node("t4"), _pod("most", "80", "5"), _pod("more", "30", "5")),
        expected=(exits(3), placed("most", "t4"), waits("more", "InsufficientCore")),
    ),
    _policies(),
    _strategy(
        "spread",
        (placed("first", "one"), placed("second", "two")),
        "the second pod goes to the other node",
        "Spread: pods go to different nodes and different cards",
    ),
    _strategy(
        "binpack",
        (placed("first", "one"), placed("second", "one"), _first_card("second", 0)),
        "the second pod goes to the same node and card",
        "Binpack: pods go to the same node first",
    ),
    Case(
        id="001-spread-cards",
        printed="Spread: … different cards",
        documents=join(_node("one", 2), _pod("first", "30", "5"), _pod("second", "30", "5")),
        expected=(exits(0), _first_card("first", 0), _first_card("second", 1)),
        arguments=("--policy", "spread"),
        how="on one node the second pod goes to the other card",
    ),
)

ELSEWHERE: Final[tuple[Elsewhere, ...]] = (
    Elsewhere(
        "001",
        "ClusterRoles qgpu-manager and qgpu-scheduler, service accounts, bindings",
        "the chart's profile qgpu",
        "test_every_object_of_the_qgpu_document_is_there",
    ),
    Elsewhere(
        "001",
        "DaemonSet qgpu-manager, Deployment and Service qgpu-scheduler",
        "the chart's profile qgpu",
        "test_every_object_of_the_qgpu_document_is_there",
    ),
    Elsewhere(
        "001",
        "CRD `gpus.elasticgpu.io`, deprecated by the page itself",
        "the chart installs the definition, as the page keeps it; no object is written",
        "test_the_definition_that_qgpus_page_keeps_is_there",
    ),
    Elsewhere(
        "001",
        "labels that qgpu-manager writes on nodes (driver, card, qGPU version)",
        "published driver labels are read; the other keys are not published",
        "test_whichever_label_tells_the_driver",
    ),
    Elsewhere(
        "001",
        "the isolation itself: a quota that cannot be exceeded, idle compute that may be used",
        "the agent with the enforcement library, on NVIDIA cards",
        "test_a_containers_program_is_refused_beyond_its_memory",
    ),
    Elsewhere(
        "001",
        "console steps (install the add-on, node pools, switches)",
        "never: Tencent's console; its labels and resources are read",
    ),
    Elsewhere(
        "001",
        "native nodes only; TKE 1.14 or newer",
        "never: not a property of the protocol; not checked",
    ),
    Elsewhere(
        "001",
        "devices cleaned up when a pod is deleted",
        "the ledger at once, the node agent on the node",
        "test_a_folder_goes_with_its_container",
    ),
)

MISPRINTS: Final[tuple[Misprint, ...]] = (
    Misprint(
        "001",
        "manifests without indentation",
        "YAML",
        "indentation restored by hand in the inputs",
    ),
    Misprint(
        "001",
        "`containers:` without a list item and without a name",
        "one container",
        "a Deployment with one named container",
    ),
    Misprint(
        "001", "`?` where an image or a blank stood, `?` before `---`", "nothing", "left out"
    ),
    Misprint(
        "001",
        '"qgpu-core should be less than 100" beside "at most 100 (one card)"',
        "below 100 to share, N x 100 for whole cards",
        "100 with memory is a share of all compute, 100 without is the card",
    ),
)
