"""Documents that several cases need, written as short as they can be."""

from collections.abc import Iterable, Mapping

from published.case import Expectation

__all__ = [
    "device_object",
    "exits",
    "join",
    "node",
    "node_says",
    "placed",
    "pod",
    "pod_says",
    "waits",
]


def join(*documents: str) -> str:
    """Documents as one stream."""
    return "---\n".join(document.lstrip("\n") for document in documents)


def node(
    name: str,
    allocatable: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> str:
    """A node with room for any example; `allocatable` is added."""
    room = {"cpu": "64", "memory": "512Gi", "pods": "110", **(allocatable or {})}
    return (
        "apiVersion: v1\nkind: Node\nmetadata:\n"
        f"  name: {name}\n{_block('labels', labels)}{_block('annotations', annotations)}"
        f"status:\n{_block('allocatable', room)}"
    )


def device_object(
    name: str,
    cards: Iterable[tuple[str, str]],
    labels: Mapping[str, str],
    domain: str = "koordinator.sh",
) -> str:
    """A Device object: uuid and memory of each card."""
    entries = "".join(
        f"    - type: gpu\n      health: true\n      id: {uuid}\n      minor: {minor}\n      resources:\n"
        f'        {domain}/gpu-core: "100"\n        {domain}/gpu-memory: {memory}\n'
        f'        {domain}/gpu-memory-ratio: "100"\n'
        for minor, (uuid, memory) in enumerate(cards)
    )
    return (
        "apiVersion: scheduling.koordinator.sh/v1alpha1\nkind: Device\nmetadata:\n"
        f"  name: {name}\n{_block('labels', labels)}spec:\n  devices:\n{entries}"
    )


def pod(
    name: str,
    limits: Mapping[str, str],
    *,
    annotations: Mapping[str, str] | None = None,
    selector: Mapping[str, str] | None = None,
    requests: Mapping[str, str] | None = None,
    scheduler: str = "",
) -> str:
    """A pod with one container named `main`."""
    scheduler = f"  schedulerName: {scheduler}\n" if scheduler else ""
    asked = _block("requests", requests, 8) + _block("limits", limits, 8)
    return (
        f"apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\n{_block('annotations', annotations)}"
        f"spec:\n{scheduler}{_block('nodeSelector', selector)}"
        f"  containers:\n    - name: main\n      resources:\n{asked}"
    )


def exits(code: int) -> Expectation:
    """The exit code."""
    return Expectation(("exit",), code)


def placed(name: str, where: str) -> Expectation:
    """The pod's node."""
    return Expectation(("pods", f"default/{name}", "node"), where)


def waits(name: str, code: str) -> Expectation:
    """The code with which the pod waits."""
    return Expectation(("pods", f"default/{name}", "reason", "code"), code)


def pod_says(name: str, *path: str | int, value: object) -> Expectation:
    """Something of a pod in the default namespace."""
    return Expectation(("pods", f"default/{name}", *path), value)


def node_says(name: str, *path: str | int, value: object) -> Expectation:
    """Something of a node."""
    return Expectation(("nodes", name, *path), value)


def _block(key: str, values: Mapping[str, str] | None, indent: int = 2) -> str:
    if not values:
        return ""
    space = " " * indent
    lines = "".join(f"{space}  {name}: {_quoted(value)}\n" for name, value in values.items())
    return f"{space}{key}:\n{lines}"


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
