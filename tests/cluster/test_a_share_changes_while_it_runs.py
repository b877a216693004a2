"""A running container's share is raised and lowered on a genuine node, from the annotation to the page that its programs have mapped.

API server, kube-scheduler, kubelet and containerd are genuine, the agent is the real one with Partage's library; cards
alone are made up. How long it took is printed and not judged: that is for a quiet machine.
"""

import mmap
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import kubelet
import pytest
import stack as partage_stack
from genuine_node import (
    LAYOUT,
    SLOW,
    Node,
    added,
    admitted,
    complete,
    container,
    containerd,
    pod,
    says,
    settled,
)
from stack import MERGE, eventually

from native_build import built
from partage.agent.isolation.shared import word
from partage.vendors import names

GIB = 2**30
IMAGE = "localhost/glibc:test"
AMOUNTS = 64
"""Where a page of amounts has those of its first card: bytes of memory, thousandths of compute (native/include/page.h)."""
OWN = "agent.isolation.provider=partage,agent.isolation.compute=true,agent.evictUnprotected=false"
LIBRARY = replace(LAYOUT, options=(*LAYOUT.options, "--set", OWN))
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        bool(containerd.missing() or kubelet.missing() or not shutil.which("gcc")),
        reason=containerd.missing() or kubelet.missing() or "gcc is missing",
    ),
]


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node whose agent keeps shares by Partage's library; its sockets need short paths."""
    native = built()
    folder = Path(tempfile.mkdtemp(prefix="ptg"))
    try:
        with (
            partage_stack.stack(tmp_path_factory.mktemp("cluster"), layout=LIBRARY) as stack,
            ExitStack() as cleanup,
        ):
            node = added("cuda", "2.1", stack, folder, cleanup)
            (folder / "cuda/nri.sock").symlink_to(node.runtime.nri)
            node.start_agent(
                "--nri-socket", str(folder / "cuda/nri.sock"),
                "--isolation-library", str(native / "libpartage-isolation.so"),
                "--isolation-dir", str(folder / "isolation"),
            )  # fmt: skip
            complete(node)
            # The library is left out of an image without the C library.
            libc = {"lib64/libc.so.6": b"\x7fELF\0GLIBC_2.17\0GLIBC_2.34\0"}
            containerd.write_image(folder / "more.tar", libc, IMAGE)
            done = node.runtime.ctr("image", "import", str(folder / "more.tar"))
            assert done.returncode == 0, done.stderr
            for name in (names.QGPU_CORE, "nvidia.com/gpu"):
                eventually("the kubelet offers shares", lambda: node.offers(name) != "0", SLOW)  # noqa: B023 # asked at once
            yield node
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def adjusted(node: Node, page: mmap.mmap, name: str, compute: int, gib: int) -> float:
    """Ask for other amounts, as `kubectl annotate` does; seconds until they were on the page."""
    wish = {"metadata": {"annotations": {names.ADJUST: f"compute={compute},memory={gib}Gi"}}}
    began = time.monotonic()
    node.stack.plane.call("PATCH", f"/api/v1/namespaces/default/pods/{name}", wish, kind=MERGE)
    until = began + SLOW
    while (now := (word(page, AMOUNTS), word(page, AMOUNTS + 8))) != (gib * GIB, compute * 10):
        assert time.monotonic() < until, (now, node.stack.pod(name))
        time.sleep(0.002)
    return time.monotonic() - began


@pytest.mark.parametrize(
    ("name", "limits"),
    [
        (
            "hami",
            {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4096", "nvidia.com/gpucores": "30"},
        ),
        ("qgpu", {names.QGPU_CORE: "30", names.QGPU_MEMORY: "4"}),
    ],
)
def test_a_share_changes_while_its_container_runs(
    cuda: Node, name: str, limits: dict[str, str]
) -> None:
    """Up and down, on the page and as the container sees it; the pod says so, and the container is the same."""
    stack = cuda.stack
    main = {**container("main", limits), "image": IMAGE}
    made = admitted(stack, pod(name, main))
    (room,) = (cuda.kubelet.folder.parents[1] / "isolation/containers").iterdir()
    with (room / "amounts").open("rb") as file:
        page = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    assert (word(page, AMOUNTS), word(page, AMOUNTS + 8)) == (4 * GIB, 300)

    took = [adjusted(cuda, page, name, *to) for to in ((60, 8), (20, 2), (100, 16), (10, 1))]

    now = stack.pod(name)
    shown = says(
        cuda, now, "main", "busybox", "od", "-An", "-tu8", "-j64", "-N16",
        "/usr/local/partage/isolation/amounts",
    )  # fmt: skip
    assert [int(one) for one in shown.split()] == [GIB, 100]
    assert container_id(now) == container_id(made)

    def told() -> bool:
        conditions = stack.pod(name)["status"]["conditions"]
        return any(
            (one["type"], one["status"], one["reason"])
            == (names.ADJUSTED_CONDITION, "True", "InForce")
            for one in conditions
        )

    eventually("the pod says so", told, SLOW)
    print(f"\n{name}: " + ", ".join(f"{one:.2f} s" for one in took))  # noqa: T201 # a measurement
    page.close()
    settled(cuda)


def container_id(found: Any) -> str:
    """Of the pod's one container."""
    (status,) = found["status"]["containerStatuses"]
    return str(status["containerID"])
