"""The CRI proxy looks at an image before its container starts, in a genuine containerd."""

import contextlib
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import containerd
import cri
import grpc
import pytest
from agent_process import Agent
from records import NODE, SHARE, Node, record

from native_build import built

OLD, BUSYBOX = "localhost/old:test", cri.IMAGE


@pytest.fixture(scope="module", params=containerd.GENERATIONS)
def machine(request: pytest.FixtureRequest) -> Iterator[Node]:
    """One containerd, asked through the agent's socket, with Partage's own library."""
    native = built()
    folder = Path(tempfile.mkdtemp(prefix="partage-"))
    try:
        with containerd.running(request.param, folder) as (runtime, direct):
            old = {"lib64/libc.so.6": b"\x7fELF\0GLIBC_2.2.5\0GLIBC_2.12\0"}
            containerd.write_image(folder / "old.tar", old, OLD)
            done = runtime.ctr("image", "import", str(folder / "old.tar"))
            assert done.returncode == 0, done.stderr
            agent = Agent(runtime, folder / "agent", NODE)
            agent.folder.mkdir()
            agent.options = (
                "--cri-socket",
                folder / "cri.sock",
                "--runtime-socket",
                runtime.socket,
                "--cri-devices",
                f"{folder}/devices",
                "--isolation",
                "partage",
                "--isolation-library",
                native / "libpartage-isolation.so",
                "--isolation-dir",
                folder / "isolation",
            )
            yield Node(runtime, direct, agent)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def started(machine: Node) -> Iterator[Callable[..., Node]]:
    """An agent with further options, and a client that asks its proxy; no pods left behind."""

    def start(*options: str) -> Node:
        machine.agent.options = (*machine.agent.options[:12], *options)
        machine.agent.start()
        socket = machine.runtime.folder / "cri.sock"
        client = opened.enter_context(cri.connected(socket, machine.cri.logs))
        opened.callback(client.remove_all)
        return Node(machine.runtime, client, machine.agent)

    opened = contextlib.ExitStack()
    try:
        with opened:
            yield start
    finally:
        machine.agent.stop()
        shutil.rmtree(machine.agent.folder / "journal", ignore_errors=True)


@pytest.mark.parametrize(
    ("image", "why"),
    [(OLD, "2.12; 2.17 or newer is needed"), (BUSYBOX, "no GNU C library")],
    ids=["old", "none"],
)
def test_an_image_that_cannot_load_the_library_runs_without_it(
    started: Callable[..., Node], image: str, why: str
) -> None:
    """As by NRI: the loader's list is empty, and the room says why."""
    node = started()
    pod = node.cri.run_pod("share", "u1", record("u1", SHARE))
    main = node.cri.start(node.cri.create(pod, image=image))

    assert node.cri.says(main, "cat", "/etc/ld.so.preload") == ""
    (spared,) = (node.runtime.folder / "isolation/containers").glob("*/spared")
    assert why in spared.read_text()


def test_it_does_not_start_where_that_is_the_rule(started: Callable[..., Node]) -> None:
    """`--not-in-force evict`: StartContainer fails with our words."""
    node = started("--not-in-force", "evict")
    pod = node.cri.run_pod("share", "u2", record("u2", SHARE))
    main = node.cri.create(pod, image=OLD)

    with pytest.raises(grpc.RpcError) as caught:
        node.cri.start(main)
    assert "NotEnforceable" in caught.value.details()
    assert "team/share, container main: the image's C library is 2.12" in caught.value.details()
