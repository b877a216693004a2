"""What the driver says of a container's processes counts against its cap, instead of an estimate."""

from collections.abc import Callable
from pathlib import Path

import pytest

from partage.agent.isolation.account import PLACES_AT, read_account, set_overhead
from partage.agent.isolation.container_dirs import CardQuota, Room, Rooms
from partage.agent.isolation.node_scan import see
from partage.agent.isolation.overhead import SLACK, Overheads
from partage.vendors.wishes import Policy

MIB = 2**20
CAP = 1024 * MIB
START = 777


class Node:
    """A node with one container, whose process 4000 has number 7 inside."""

    def __init__(self, folder: Path, swap: int = 0, slack: int = SLACK, cap: int = CAP) -> None:
        boot = folder / "proc/sys/kernel/random/boot_id"
        boot.parent.mkdir(parents=True)
        boot.write_text("one")
        (folder / "built.so").write_bytes(b"the library")
        self.rooms = Rooms(folder / "built.so", folder / "state", "/state", folder)
        quota = CardQuota(
            "GPU-0", cap, 300, Policy.FIXED_SHARE, swap_bytes=swap, context_bytes=256 * MIB
        )
        self.room: Room = self.rooms.open("container-a", (quota,))
        self.proc = folder / "proc"
        self.process(4000, inner=7)
        self.overheads = Overheads(slack)

    def process(self, pid: int, inner: int, start: int = START) -> None:
        """A process of the container, as the host's procfs shows it."""
        home = self.proc / str(pid)
        home.mkdir()
        (home / "cgroup").write_text("0::/kubepods/container-a\n")
        (home / "status").write_text(f"Name:\tx\nNSpid:\t{pid}\t{inner}\n")
        fields = " ".join(["S", *["0"] * 18, str(start)])
        (home / "stat").write_text(f"{pid} (a) b) {fields} 0\n")

    def counts(self, counted: int, inner: int = 7, start: int = START, swapped: int = 0) -> None:
        """What the process entered itself."""
        with self.room.account.open("r+b") as file:
            file.seek(PLACES_AT)
            file.write((inner << 42 | start << 1).to_bytes(8, "little"))
            file.seek(PLACES_AT + 32)
            file.write(counted.to_bytes(8, "little"))
            file.seek(PLACES_AT + 32 + 24)
            file.write(swapped.to_bytes(8, "little"))

    def expects(self, allowance: int) -> None:
        """What the process entered for its contexts."""
        with self.room.account.open("r+b") as file:
            file.seek(PLACES_AT + 32 + 8)
            file.write(allowance.to_bytes(8, "little"))

    def overhead(self) -> int:
        """What was written down."""
        (process,) = read_account(self.room.account)
        return process.cards[0].overhead

    def look(self, told: dict[str, dict[int, int]]) -> None:
        """One look."""
        rooms = self.rooms.rooms
        self.overheads.look(rooms, told, see(rooms, self.proc))

    def samples(self, *used: dict[int, int] | None) -> None:
        """What the driver says, look after look."""
        for one in used:
            told = {} if one is None else {"GPU-0": one}
            self.look(told)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A container that uses a card."""
    return Node(tmp_path)


def test_what_is_there_beyond_what_was_counted_is_the_overhead(node: Node) -> None:
    """The least of three looks counts: memory that was released between two moments is not a context."""
    node.counts(100 * MIB)

    node.samples({4000: 460 * MIB}, {4000: 400 * MIB, 9: CAP})
    assert node.overhead() == 0
    node.samples({4000: 900 * MIB})

    assert node.overhead() == 300 * MIB


def test_a_new_context_is_measured_once_it_is_in_every_sample(node: Node) -> None:
    """Until then what is written down stays, to which the library added the context by its estimate."""
    node.counts(0)
    node.expects(256 * MIB)
    node.samples(*[{4000: 300 * MIB} for _ in range(3)])
    assert node.overhead() == 300 * MIB

    node.expects(512 * MIB)
    (process,) = read_account(node.room.account)
    set_overhead(node.room.account, process, 0, 556 * MIB)
    node.samples(*[{4000: 700 * MIB} for _ in range(2)])
    assert node.overhead() == 556 * MIB
    node.samples({4000: 650 * MIB})

    assert node.overhead() == 650 * MIB


def test_a_sample_counts_once(node: Node) -> None:
    """Looks between two of the driver's samples add nothing."""
    node.counts(0)
    told = {"GPU-0": {4000: 300 * MIB}}

    for _ in range(5):
        node.look(told)

    assert node.overhead() == 0


@pytest.mark.parametrize(
    "change",
    [
        lambda node: node.samples(*[{}] * 3),
        lambda node: node.samples(*[{4001: 300 * MIB}] * 3),
        lambda node: node.samples(None, None, None),
        lambda node: (node.counts(0, start=START + 1), node.samples(*[{4000: MIB}] * 3)),
        lambda node: (node.counts(0, inner=8), node.samples(*[{4000: MIB}] * 3)),
        lambda node: (node.counts(CAP), node.samples(*[{4000: 300 * MIB} for _ in range(3)])),
    ],
    ids=["no process", "another's", "not reported", "another start", "another number", "managed"],
)
def test_the_estimate_stays_where_the_driver_does_not_tell(
    node: Node, change: Callable[[Node], object]
) -> None:
    """Nothing is guessed: no process, no figure, another process of that number, memory that is not there."""
    node.counts(0)

    change(node)

    assert node.overhead() == 0


def test_a_container_above_its_cap_is_named(node: Node) -> None:
    """It passed the library by, or spoilt its account; all its processes count, known or not."""
    node.counts(0)
    node.process(4001, inner=8)
    above = {4000: CAP, 4001: CAP // 2 + 2 * SLACK}

    node.samples(dict(above), dict(above))
    assert not node.overheads.above
    node.samples(dict(above))

    said = node.overheads.above["container-a"]
    assert f"use {CAP + CAP // 2 + 2 * SLACK} bytes of card GPU-0" in said
    assert said.endswith(f"accepted up to {2 * SLACK} beyond it")
    assert node.overheads.excess == {("container-a", "GPU-0"): CAP // 2 + 2 * SLACK}
    node.samples({4000: MIB})
    assert not node.overheads.above
    assert not node.overheads.excess


def test_contexts_that_grew_are_told_and_no_alarm(node: Node) -> None:
    """A program that filled its cap and then loads kernels: the excess is taken off its cap; the words stay the same."""
    node.counts(CAP)
    said = set()

    for used in (CAP, CAP, CAP + 300 * MIB, CAP + 310 * MIB, CAP + SLACK, CAP + SLACK):
        node.samples({4000: used})
        said |= set(node.overheads.grown.values())
        assert not node.overheads.above

    assert len(said) == 1
    assert "beyond its memory of card GPU-0" in said.pop()
    assert node.overheads.excess["container-a", "GPU-0"] == 310 * MIB
    assert node.overhead() == 310 * MIB
    node.samples({4000: CAP + 2 * MIB})
    assert not node.overheads.grown


@pytest.mark.parametrize(
    ("processes", "cap", "slack", "accepted"),
    [
        (1, CAP, SLACK, SLACK),
        (3, CAP, SLACK, 3 * SLACK),
        (9, CAP, SLACK, 4 * SLACK),
        (1, 30 * 2**30, SLACK, 3 * 2**30),
        (1, CAP, 5 * MIB, CAP // 10),
        (3, CAP, 0, 2 * MIB),
    ],
    ids=["one process", "three", "more than count", "a tenth", "a smaller slack", "none"],
)
def test_growth_is_accepted_up_to_a_bound(
    tmp_path: Path, processes: int, cap: int, slack: int, accepted: int
) -> None:
    """The slack counts for each process, up to four; a tenth of the cap in any case. A byte more is not in force."""
    node = Node(tmp_path, slack=slack, cap=cap)
    for more in range(1, processes):
        node.process(4000 + more, inner=7 + more)
    node.process(5000, inner=100)  # it has nothing on the card
    small = {4000 + more: MIB for more in range(1, processes)}

    def use(total: int) -> None:
        used = {**small, 4000: total - sum(small.values()), 5000: 0, 6000: CAP}
        node.samples(*[dict(used) for _ in range(3)])

    use(cap + accepted)
    assert not node.overheads.above
    use(cap + accepted + 1)
    assert list(node.overheads.above) == ["container-a"]


def test_a_moment_above_is_no_alarm(node: Node) -> None:
    """Three samples in a row count: one that is within the bound starts the count again."""
    high, low = {4000: CAP + 2 * SLACK}, {4000: CAP + SLACK}

    for used in (high, high, low, high, high):
        node.samples(dict(used))
        assert not node.overheads.above
    node.samples(dict(high))

    assert node.overheads.above


def test_nothing_that_a_container_writes_hides_what_it_uses(node: Node) -> None:
    """Less or more in the account than it has, no account at all: its limits and the driver's word count."""
    over = {4000: CAP + SLACK + 1}

    for spoil in (
        lambda: node.counts(0),
        lambda: node.counts(2**61, swapped=2**61),
        lambda: node.counts(CAP, inner=8),
        lambda: node.room.account.write_bytes(b"nothing"),
    ):
        spoil()
        node.samples(*[dict(over) for _ in range(3)])
        assert node.overheads.above
        node.samples({})
        assert not node.overheads.above


def test_what_goes_beyond_the_cap_by_oversubscription_may_lie_on_the_card(tmp_path: Path) -> None:
    """Cap and swap together are the bound, by the limits and not by what the container says."""
    node = Node(tmp_path, swap=CAP // 2)
    node.counts(0, swapped=CAP * 4)

    node.samples(*[{4000: CAP + CAP // 2} for _ in range(3)])
    assert not node.overheads.excess
    node.samples(*[{4000: CAP + CAP // 2 + SLACK} for _ in range(3)])
    assert not node.overheads.above
    node.samples(*[{4000: CAP * 2 + SLACK} for _ in range(3)])

    assert f"{CAP + CAP // 2} are granted" in node.overheads.above["container-a"]


def test_memory_that_the_driver_moves_is_no_overhead(tmp_path: Path) -> None:
    """What was served beyond the cap is not charged again as context; before and after it, contexts are measured."""
    node = Node(tmp_path, swap=CAP)
    node.counts(CAP, swapped=CAP // 2)

    node.samples(*[{4000: CAP + CAP // 2} for _ in range(3)])
    assert node.overhead() == 0
    node.counts(CAP)
    node.samples(*[{4000: CAP + 300 * MIB} for _ in range(3)])

    assert node.overhead() == 300 * MIB
