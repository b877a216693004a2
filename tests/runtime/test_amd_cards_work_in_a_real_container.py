"""AMD's whole cards on a genuine containerd of both generations, by what discovery finds on the node."""

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

import containerd
import grpc
import pytest
from agent_process import Agent
from msgspec import structs
from records import GIB, WHOLE, Node, record

ROOT = "sys/devices/pci0000:3a/0000:3a:01.0"
FIRST = structs.replace(WHOLE, minor=0, uuid="GPU-af0", memory_bytes=192 * GIB)
SECOND = structs.replace(FIRST, minor=1, uuid="GPU-af1")


def _host(root: Path) -> None:
    """A node with two cards and a display: their numbers below `/dev/dri` are not the same."""
    (root / "dev/dri").mkdir(parents=True)
    named = ("kfd", "dri/card0", "dri/card1", "dri/card2", "dri/renderD128", "dri/renderD129")
    for number, name in enumerate(named):
        os.mknod(root / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(1, 3 + number))
    (root / "sys/bus/pci/devices").mkdir(parents=True)
    for index in range(2):
        home = root / ROOT / f"0000:0{index + 3}:00.0"
        for name in (f"card{index + 1}", f"renderD{128 + index}"):
            (home / "drm" / name).mkdir(parents=True)
        facts = {
            "vendor": "0x1002",
            "device": "0x74a1",
            "class": "0x038000",
            "numa_node": "0",
            "unique_id": f"af{index}",
            "product_name": "AMD Instinct MI300X",
            "mem_info_vram_total": str(192 * GIB),
            "current_compute_partition": "SPX",
        }
        for name, text in facts.items():
            (home / name).write_text(f"{text}\n")
        (root / "sys/bus/pci/devices" / home.name).symlink_to(
            Path("../../../..") / ROOT / home.name
        )


@pytest.fixture(scope="module", params=containerd.GENERATIONS)
def node(request: pytest.FixtureRequest) -> Iterator[Node]:
    """A containerd, and an agent that looks for devices itself. Sockets need a short path."""
    folder = Path(tempfile.mkdtemp(prefix="partage-"))
    try:
        with containerd.running(request.param, folder) as (runtime, client):
            agent = Agent(runtime, folder / "agent", None, ("--backend", "amd"))
            root = agent.folder / "host"
            _host(root)
            for part in {agent.folder.parts[1], "tmp"}:
                (root / part).symlink_to(f"/{part}")
            agent.start()
            try:
                yield Node(runtime, client, agent)
            finally:
                client.remove_all()
                agent.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _seen(node: Node, container: str) -> set[str]:
    listed = node.cri.says(container, "sh", "-c", "ls /dev/kfd /dev/dri/* 2>/dev/null; true")
    return set(listed.split())


def test_a_container_sees_its_own_card_and_no_other(node: Node) -> None:
    """The files that discovery found, with the host's numbers; AMD's own runtime gets no card."""
    pod = node.cri.run_pod("second", "u1", record("u1", SECOND))
    main = node.cri.start(node.cri.create(pod, env={"AMD_VISIBLE_DEVICES": "all"}))

    assert _seen(node, main) == {"/dev/kfd", "/dev/dri/card2", "/dev/dri/renderD129"}
    shown = node.cri.says(main, "ls", "-l", "/dev/dri/renderD129").split()
    assert (shown[0][0], shown[4:6]) == ("c", ["1,", "8"])
    env = node.cri.says(main, "env").splitlines()
    assert {"AMD_VISIBLE_DEVICES=none", "NVIDIA_VISIBLE_DEVICES=void"} <= set(env)
    sidecar = node.cri.start(node.cri.create(pod, "sidecar"))
    assert _seen(node, sidecar) == set()


def test_both_cards_go_to_one_container(node: Node) -> None:
    """Their common file is there once."""
    pod = node.cri.run_pod("both", "u2", record("u2", FIRST, SECOND))
    with pytest.raises(grpc.RpcError) as caught:
        node.cri.create(pod)
    assert "CardFull" in caught.value.details()
    node.cri.remove_all()
    pod = node.cri.run_pod("both", "u3", record("u3", FIRST, SECOND))
    main = node.cri.start(node.cri.create(pod))

    assert _seen(node, main) == {
        "/dev/kfd",
        "/dev/dri/card1",
        "/dev/dri/card2",
        "/dev/dri/renderD128",
        "/dev/dri/renderD129",
    }


def test_a_card_whose_file_has_gone_is_not_given(node: Node) -> None:
    """Nothing starts with half of what it was granted."""
    node.cri.remove_all()
    file = node.agent.folder / "host/dev/dri/renderD128"
    away = file.with_name("away")
    file.rename(away)
    pod = node.cri.run_pod("gone", "u4", record("u4", FIRST))
    try:
        with pytest.raises(grpc.RpcError) as caught:
            node.cri.create(pod)
    finally:
        away.rename(file)
    assert "renderD128" in caught.value.details()
