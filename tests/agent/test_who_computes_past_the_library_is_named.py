"""A process that has the driver's device for memory open and no place in the account is not under the library."""

import ctypes
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from partage.agent.isolation.account import PLACES_AT
from partage.agent.isolation.container_dirs import CardQuota, Rooms
from partage.agent.isolation.node_scan import see
from partage.agent.isolation.processes import numbers_of
from partage.agent.isolation.unmanaged_processes import Strangers
from partage.vendors.wishes import Policy

FORKED = 0x40
_SET_NAME = 15


class Node:
    """A node with one container, looked at again and again."""

    def __init__(self, folder: Path) -> None:
        boot = folder / "proc/sys/kernel/random/boot_id"
        boot.parent.mkdir(parents=True)
        boot.write_text("one")
        (folder / "built.so").write_bytes(b"the library")
        rooms = Rooms(folder / "built.so", folder / "state", "/state", folder)
        quota = CardQuota("GPU-0", 2**30, 300, Policy.FIXED_SHARE)
        self.room = rooms.open("container-a", (quota,))
        self.proc = folder / "proc"
        self.strangers = Strangers()

    def process(
        self,
        pid: int,
        *opened: str,
        flags: int = 0,
        start: int = 5,
        loaded: str = "",
        maps: str = "/dev/nvidia0",
    ) -> None:
        """A process of the container, as the host's procfs shows it; inside it has number `pid - 4000`."""
        home = self.proc / str(pid)
        (home / "fd").mkdir(parents=True, exist_ok=True)
        (home / "cgroup").write_text("0::/kubepods/container-a\n")
        (home / "status").write_text(f"NSpid:\t{pid}\t{pid - 4000}\n")
        fields = " ".join(["S", *["0"] * 5, str(flags), *["0"] * 12, str(start)])
        (home / "stat").write_text(f"{pid} (python\x1b[2J) {fields} 0\n")
        code = f"7f00-7f01 r-xp 0 00:00 1 {loaded}\n" if loaded else ""
        (home / "maps").write_text(
            f"7e00-7e01 rw-p 0 00:00 0\n{code}7f02-7f03 -w-s 0 00:05 9 {maps}\n"
        )
        (home / "exe").write_bytes(b"")
        (home / "environ").write_bytes(b"A=b\0")
        for number, name in enumerate(opened):
            (home / "fd" / str(number)).symlink_to(name)

    def listed(self, inner: int) -> None:
        """The process with that number inside takes a place."""
        with self.room.account.open("r+b") as file:
            file.seek(PLACES_AT)
            file.write((inner << 42 | 5 << 1).to_bytes(8, "little"))

    def said(self, looks: int = 4, *reported: int) -> str:
        """What is said after so many looks, while the driver reports that these processes use a card."""
        used = {"GPU-0": dict.fromkeys(reported, 2**20)}
        for _ in range(looks):
            rooms = {"container-a": self.room}
            self.strangers.look(rooms, see(rooms, self.proc), used)
        return self.strangers.found.get("container-a", "")


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A container without processes."""
    return Node(tmp_path)


def test_a_process_without_a_place_is_named_after_a_while(node: Node) -> None:
    """The message has number and program, and no command for a terminal; it does not come before the fourth look."""
    node.process(4007, "/dev/null", "/dev/nvidia-uvm")

    assert node.said(3) == ""
    said = node.said(1)

    assert said.startswith(
        "process 4007 (python\\x1b[2J) computes on a card and bypasses the library"
    )
    node.listed(7)
    assert node.said(1) == ""


@pytest.mark.parametrize(
    "maps", ["/dev/nvidia0", "/dev/nvidia12", "/dev/nvidiactl", "/dev/nvidia-uvm"]
)
def test_any_device_file_that_is_mapped_counts(node: Node, maps: str) -> None:
    """Any of them; a process that works on a card has several."""
    node.process(4007, "/dev/nvidia-uvm", maps=maps)

    assert "bypasses the library" in node.said()


def test_open_files_that_were_put_away_count(node: Node) -> None:
    """A process can send them to itself, and work by what it has mapped."""
    node.process(4007, "/dev/null", maps="/dev/nvidia0")

    assert "bypasses the library" in node.said()
    (one,) = see({"container-a": node.room}, node.proc).processes["container-a"]
    assert one.view is not None
    assert one.view.uses_card


@pytest.mark.parametrize(
    ("kind", "opened"),
    [("nvidia-uvm", ()), ("nvidia-frontend", ("/dev/nvidia-uvm",))],
    ids=["memory", "card"],
)
def test_a_device_file_by_another_name_counts(
    node: Node, kind: str, opened: tuple[str, ...]
) -> None:
    """A container may rename, remove and make device files: the kernel's numbers tell what it has open."""
    node.process(4007, *opened, "/dev/null", "/dev/no-such-file", maps="/dev/mine")
    assert node.said() == ""

    (node.proc / "devices").write_text(
        f"Character devices:\n  1 {kind}\n 10 misc\n\nBlock devices:\n"
    )
    assert "bypasses the library" in node.said()


@pytest.mark.parametrize("flags", [0, FORKED])
def test_who_put_away_files_of_other_names_is_known_to_the_driver(node: Node, flags: int) -> None:
    """Neither files nor mappings show it, nor that a child started a program; the driver knows who uses its card."""
    node.process(4007, maps="/dev/mine", flags=flags)
    node.process(4008, maps="/dev/zero")
    node.listed(8)
    assert node.said(9) == ""
    assert node.said(3, 4007, 4008) == ""

    said = node.said(1, 4007, 4008)

    assert said.startswith(
        "process 4007 (python\\x1b[2J) computes on a card and bypasses the library"
    )
    assert "by the driver's report" in said
    node.listed(7)
    assert node.said(9, 4007) == ""


def test_a_card_by_another_name_is_in_use(node: Node) -> None:
    """A program without the library is outside, whatever it calls the file; the control device is no card."""
    node.process(4007, "/dev/null", maps="/dev/mine")
    (node.proc / "devices").write_text("Character devices:\n  1 nvidia\n")
    sight = see({"container-a": node.room}, node.proc)

    (one,) = sight.processes["container-a"]
    assert one.view is not None
    assert one.view.uses_card


@pytest.mark.parametrize(
    "maps",
    ["/mnt/sandbox/dev/nvidia0", "/dev/nvidiactl (deleted)", "/old/dev/nvidia-uvm (deleted)"],
)
def test_a_file_below_another_root_counts(node: Node, maps: str) -> None:
    """A process in a root of its own, or a file that was removed since."""
    node.process(4007, "/dev/nvidia-uvm", maps=maps)

    assert "bypasses the library" in node.said()


@pytest.mark.parametrize(
    ("loaded", "interface"),
    [
        ("/usr/lib/x86_64-linux-gnu/libnvidia-opencl.so.580.82.07", "OpenCL"),
        ("/usr/lib/x86_64-linux-gnu/libvulkan.so.1.3.204", "Vulkan"),
        ("/usr/lib64/libEGL_nvidia.so.580.82.07", "OpenGL"),
    ],
)
def test_who_uses_another_interface_is_told_so(node: Node, loaded: str, interface: str) -> None:
    """The message names what is not limited and what to do, and does not accuse the program of evading the library."""
    node.process(4007, "/dev/nvidia-uvm", loaded=loaded)

    said = node.said()

    assert said.startswith(
        f"process 4007 (python\\x1b[2J) uses a card by {interface}, and shares are"
    )
    assert "neither its memory nor its time on the card is limited" in said
    assert "a whole card or a hardware instance" in said
    assert "past the library" not in said


def test_other_libraries_name_no_interface(node: Node) -> None:
    """Another vendor's OpenCL, and the loader of all of them: they do not show by what the device was opened."""
    node.process(4007, "/dev/nvidia-uvm", loaded="/usr/lib/libOpenCL.so.1")

    assert "bypasses the library" in node.said()


def test_who_comes_and_goes_is_not_counted_together(node: Node) -> None:
    """Another process of that number starts the count again."""
    node.process(4007, "/dev/nvidia-uvm")
    node.said(3)
    node.process(4007, start=6)

    assert node.said(3) == ""


@pytest.mark.parametrize(
    ("opened", "flags", "inner", "maps"),
    [
        (("/dev/nvidia-uvm",), 0, 7, "/dev/nvidia0"),
        (("/dev/nvidiactl", "/dev/nvidia0"), 0, 8, ""),
        (("/dev/nvidiactl", "/dev/nvidia0", "/dev/nvidia-uvm"), 0, 8, "/dev/zero"),
        (("/dev/nvidia-uvm",), FORKED, 8, "/dev/nvidia0"),
        ((), 0, 8, ""),
    ],
    ids=["has a place", "asks NVML", "asks NVML of branch 580", "a forked child", "no card"],
)
def test_who_is_in_order_is_let_be(
    node: Node, opened: tuple[str, ...], flags: int, inner: int, maps: str
) -> None:
    """Under the library, a tool that only asks, a worker with its parent's files, a shell."""
    node.listed(inner)
    node.process(4007, *opened, flags=flags, maps=maps)

    assert node.said(9) == ""


def test_what_is_not_under_the_library_anyway_is_not_said_twice(node: Node) -> None:
    """An image that cannot load it; an account that cannot be read."""
    node.process(4007, "/dev/nvidia-uvm")
    room = node.room

    node.room = replace(room, spared="musl")
    assert node.said(9) == ""
    node.room = room
    room.account.write_bytes(b"")
    assert node.said(9) == ""


@pytest.mark.parametrize(
    "name", [b"\fNSpid:\t7", b"\x1cNSpid:\tx", "\x85NSpid:\t7".encode(), b"a\nNSpid:\t7"]
)
def test_a_process_tells_its_number_by_no_name(name: bytes) -> None:
    """The kernel shows every character of it but a line feed: it would be another process, or one that has ended."""
    read, write = os.pipe()
    ready, told = os.pipe()
    child = os.fork()
    if not child:
        os.close(write)
        os.write(told, bytes([ctypes.CDLL(None).prctl(_SET_NAME, name, 0, 0, 0)]))
        os.read(read, 1)
        os._exit(0)
    try:
        assert os.read(ready, 1) == b"\0"
        numbers = numbers_of(child)
    finally:
        for one in (read, write, ready, told):
            os.close(one)
        os.waitpid(child, 0)

    assert numbers is not None
    assert numbers.inner == child


def test_the_kernel_tells_a_forked_child_from_a_program() -> None:
    """The agent reads a flag for that."""
    program = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.close(write)
        os.read(read, 1)
        os._exit(0)
    try:
        started, forked = numbers_of(program.pid), numbers_of(child)
    finally:
        os.close(write)
        os.close(read)
        os.waitpid(child, 0)
        program.communicate(b"\n")

    assert started
    assert forked
    assert (started.inner, started.forked, forked.forked) == (program.pid, False, True)
