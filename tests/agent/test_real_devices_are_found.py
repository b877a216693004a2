"""Vendors' libraries, sysfs and vendors' files become one inventory; odd devices are reported and closed."""

import ctypes
import json
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nodes_world import ROOT, Node, compiled

from partage.agent.device_document import device_document
from partage.agent.discovery.found import InstanceUse
from partage.agent.discovery.health import HealthBook
from partage.agent.discovery.search import Search, booted
from partage.model.device import Topology

GIB = 2**30
UUIDS = [f"GPU-{index}8b0d1c2-0000-1111-2222-333344445555" for index in range(3)]


@pytest.fixture
def node(tmp_path: Path) -> Node:
    """A node without devices."""
    return Node(tmp_path)


@pytest.fixture(scope="session")
def nvml(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in for NVIDIA's library: loaded once a process, as the loader knows it by name."""
    pytest.importorskip("pynvml", reason="nvidia-ml-py is not installed: partage[nvidia]")
    return compiled(
        "nvml_card.c", tmp_path_factory.mktemp("nvml") / "libnvidia-ml.so.1", "libnvidia-ml.so.1"
    )


class Cards:
    """NVIDIA cards of a node, through the stand-in; `now` is the clock."""

    def __init__(self, node: Node, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._file = node.folder / "cards"
        self._lost: set[int] = set()
        self._xids: list[str] = []
        self.now = 0.0
        node.link("lib/libnvidia-ml.so.1", library)
        ctypes.CDLL(str(library)).fake_reset()
        monkeypatch.setenv("FAKE_NVML", str(self._file))
        for index in range(2):
            node.pci(f"0000:{0x38 + index:02x}:00.0", "0x10de", "0x030200")
            node.write(f"dev/nvidia{index}", "")
        self.set()
        self._roots = node.roots
        self.begin_anew()

    def begin_anew(self) -> None:
        """Search as an agent that has just started."""
        self.search = Search(self._roots, "n", clock=lambda: self.now)

    def set(self, *, lost: int | None = None, xid: int | None = None, mode: int = 0) -> None:
        """Lose card `lost`, or none; report an error of card 0; its MIG mode is as the stand-in has it."""
        self._xids += [] if xid is None else [f"xid 0 {xid}"]
        lines = [
            f"{i} {i} {UUIDS[i]} NVIDIA_A100-SXM4-80GB {80 * GIB} "
            f"00000000:{0x38 + i:02X}:00.0 {i or mode} {int(i == lost)} {'20b210de' if i == 0 else '0'}"
            for i in range(2)
        ]
        self._file.write_text("\n".join([*lines, *self._xids]) + "\n")

    def misspell(self, name: str, by: bytes) -> None:
        """The driver answers so the first time that it should answer with `name`."""
        self._file.write_bytes(self._file.read_bytes().replace(name.encode(), by, 1))

    def uncount(self) -> None:
        """The driver counts card 1 alone, as its first one."""
        lines = self._file.read_text().splitlines()
        self._file.write_text("\n".join([lines[1], *self._xids]) + "\n")

    def run(self, *processes: tuple[int, int, int]) -> None:
        """Processes use cards: card, number, bytes (0: the driver does not tell)."""
        lines = [f"process {card} {pid} {used}" for card, pid, used in processes]
        self._file.write_text(self._file.read_text() + "\n".join(lines) + "\n")

    def busy(self, *times: tuple[int, int, int, int]) -> None:
        """Processes were busy: card, number, percent, when."""
        lines = [f"time {card} {pid} {part} {at}" for card, pid, part, at in times]
        self._file.write_text(self._file.read_text() + "\n".join(lines) + "\n")

    def cut(self, *instances: str, counters: int | None = 1) -> None:
        """Card 1 has these instances; `counters` as the stand-in has `gpm`, None for a driver without."""
        self.set()
        lines = [f"instance 1 {one}" for one in instances]
        lines += [] if counters is None else [f"gpm {counters}"]
        self._file.write_text(self._file.read_text() + "\n".join(lines) + "\n")

    def join(self, *switches: str) -> None:
        """Both cards have a link to each of these NVSwitches, and none to each other."""
        lines = [f"switch {one}" for one in switches]
        self._file.write_text(self._file.read_text() + "\n".join(lines) + "\n")

    def instances(self) -> dict[tuple[int, int], InstanceUse]:
        """What card 1's instances did, by start and size; card 0 has none."""
        whole, cut = (one.use for one in self.search().found)
        assert whole is not None
        assert cut is not None
        assert not whole.instances
        return dict(cut.instances)

    def unload(self) -> None:
        """The driver goes away."""
        self._file.write_text("")

    def healthy(self) -> list[bool]:
        """Health of the cards that are found."""
        return [one.healthy for one in self.search().devices]


@pytest.fixture
def cards(node: Node, nvml: Path, monkeypatch: pytest.MonkeyPatch) -> Cards:
    """Two A100, the second in MIG mode."""
    return Cards(node, nvml, monkeypatch)


def test_nvidia_cards_come_with_all_their_facts(cards: Cards) -> None:
    """Identity, number, model, memory, driver, place, MIG mode and links."""
    found = cards.search()

    first = found.found[0]
    assert [one.uuid for one in found.devices] == UUIDS[:2]
    assert (first.device.model, first.product) == ("A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB")
    assert (first.device.memory_bytes, first.driver) == (80 * GIB, "550.54.15")
    assert first.architecture == "Ampere"
    assert first.device.topology == Topology(1, ROOT, "0000:38:00.0")
    assert [one.labels for one in found.devices] == [
        {"partage.io/pci-product": "20B2"},
        {"partage.io/mig-mode": "enabled"},
    ]
    assert [one.mig for one in found.found] == [False, True]
    assert found.links == {(UUIDS[0], UUIDS[1]): 2}
    assert found.switches == {}
    assert first.files[0].endswith("/dev/nvidia0")
    assert found.problems == ()
    cards.search.close()


def test_cards_behind_switches_say_to_which_they_have_links(cards: Cards) -> None:
    """On a board of eight no card has a link to another one."""
    cards.join("00000000:04:00.0", "00000000:05:00.0")

    found = cards.search()

    assert found.links == {}
    assert found.switches == {one: {"0000:04:00.0", "0000:05:00.0"} for one in UUIDS[:2]}
    assert found.problems == ()
    cards.search.close()


@pytest.mark.parametrize(
    ("name", "by"),
    [
        (UUIDS[0], b"GPU-\xff"),
        (UUIDS[0], b"../../../etc"),
        (UUIDS[0], b"GPU-\x1b[2J"),
        (UUIDS[0], b".."),
        ("NVIDIA_A100", b"A\xe9100"),
    ],
    ids=["no text", "a path", "an escape", "a folder above", "a name that is no text"],
)
def test_a_card_with_an_impossible_name_is_left_out(cards: Cards, name: str, by: bytes) -> None:
    """A broken driver costs its card and no other: the agent goes on, and makes no file of such a name."""
    cards.misspell(name, by)

    found = cards.search()

    assert [one.uuid for one in found.devices] == [UUIDS[1]]
    (problem,) = found.problems
    assert problem.isprintable()
    assert problem.startswith(("NVIDIA card 0 does not answer", "gpu 0 is left out"))
    cards.set()
    assert cards.healthy() == [True, True]
    cards.search.close()


@pytest.mark.parametrize(
    ("code", "found"),
    [(3, [None, True]), (13, [None, True]), (999, [True])],
    ids=["a card without", "a driver without", "a failure"],
)
def test_only_a_card_without_mig_counts_as_not_switched(
    cards: Cards, code: int, found: list[bool | None]
) -> None:
    """Otherwise shares of a card that is in MIG mode would be given while its driver does not answer."""
    cards.set(mode=code - 1)

    assert [one.mig for one in cards.search().found] == found
    cards.search.close()


@pytest.mark.parametrize(
    ("xid", "after_quiet", "after_reset"),
    [(31, True, True), (999, True, True), (48, False, True), (79, False, False)],
    ids=["of a program", "unknown", "needs a reset", "needs a reboot"],
)
def test_an_error_closes_a_card_for_as_long_as_it_should(
    cards: Cards, xid: int, *, after_quiet: bool, after_reset: bool
) -> None:
    """A program's error closes nothing; others until a quiet time, a reset, or a reboot."""
    assert cards.healthy() == [True, True]

    cards.set(xid=xid)
    assert cards.healthy() == [xid == 31, True]
    cards.now = 601.0
    assert cards.healthy() == [after_quiet, True]
    cards.set(lost=0)
    assert cards.healthy() == [True]  # the other one
    cards.set()
    assert cards.healthy() == [after_reset, True]
    cards.search.close()


def test_a_card_that_the_driver_did_not_count_for_a_while_was_away(cards: Cards) -> None:
    """After a reset of one card, for example, while the others answer: they have other indexes meanwhile."""
    assert cards.healthy() == [True, True]
    cards.set(xid=48)
    assert cards.healthy() == [False, True]

    cards.uncount()
    assert [one.uuid for one in cards.search().devices] == [UUIDS[1]]
    cards.set()
    assert cards.healthy() == [True, True]
    cards.search.close()


def test_a_card_that_is_away_keeps_what_only_a_reboot_ends(cards: Cards) -> None:
    """The agent ends meanwhile; a reset's card is trusted when it is back, as it went away and came."""
    entries = {}
    for xid in (48, 79):
        book = HealthBook()
        cards.set(xid=xid)
        before = device_document("n", cards.search(), None, "2026-01-01T00:00:00Z")
        cards.set(lost=0)
        away = device_document("n", cards.search(), before, "2026-01-01T00:00:01Z")
        entries[xid] = away["spec"]["devices"][0]["conditions"][0]["reason"]
        cards.set()
        book.restore(away, 0.0, datetime.fromtimestamp(0, UTC))
        assert (book.answers(UUIDS[0], 10_000.0) is None) == (xid == 48)
    assert entries == {48: "DeviceLost", 79: "Xid79"}
    cards.search.close()


def test_an_older_report_closes_no_card_that_was_reset_since(cards: Cards) -> None:
    """The API server was away meanwhile, and has the report from before; what only a reboot ends stays closed."""
    assert cards.healthy() == [True, True]
    cards.set(xid=48)
    before = device_document("n", cards.search(), None, "2026-01-01T00:00:00Z")
    cards.set(lost=0)
    assert cards.healthy() == [True]  # the other one
    cards.set()
    cards.search.health.restore(before, cards.now, datetime.fromtimestamp(0, UTC))
    assert cards.healthy() == [True, True]

    cards.set(xid=79)
    assert cards.healthy() == [False, True]
    cards.search.health.restore(before, cards.now, datetime.fromtimestamp(0, UTC))
    cards.set(lost=0)
    assert cards.healthy() == [True]
    cards.set()
    assert cards.healthy() == [False, True]
    cards.search.close()


def test_a_card_that_is_away_when_its_agent_begins_was_reset(cards: Cards) -> None:
    """The agent ended before it could report the card as lost."""
    assert cards.healthy() == [True, True]
    cards.set(xid=48)
    assert cards.healthy() == [False, True]
    before = device_document("n", cards.search(), None, "2026-01-01T00:00:00Z")
    cards.begin_anew()
    cards.search.health.restore(before, cards.now, datetime.fromtimestamp(0, UTC))

    cards.set(lost=0)
    assert cards.healthy() == [True]  # the other one
    cards.set()
    assert cards.healthy() == [True, True]
    cards.search.close()


def test_a_card_that_fell_off_its_bus_is_known_by_its_handle(cards: Cards) -> None:
    """Its last error counts although the card no longer answers with its name."""
    assert cards.healthy() == [True, True]

    cards.set(lost=0, xid=79)
    assert cards.healthy() == [True]  # the other one
    cards.set()
    assert cards.healthy() == [False, True]
    cards.search.close()


def test_errors_are_heard_again_after_the_driver_was_reloaded(cards: Cards) -> None:
    """A library that fails is a problem; opened again, it is listened to as before."""
    assert cards.healthy() == [True, True]

    cards.unload()
    assert "library failed" in cards.search().problems[0]
    cards.set()
    assert cards.healthy() == [True, True]
    cards.set(xid=48)
    assert cards.healthy() == [False, True]
    cards.search.close()


def test_an_error_outlives_the_agent_but_not_the_machine(node: Node) -> None:
    """What the Device object says of a card is read back, unless the machine was rebooted since."""
    condition = {
        "status": "False",
        "reason": "Xid79",
        "lastTransitionTime": "2026-01-02T00:00:00Z",
    }
    document = {"spec": {"devices": [{"id": UUIDS[0], "conditions": [condition]}]}}
    kept, forgotten = HealthBook(), HealthBook()

    node.write("proc/stat", "cpu 1 2\nbtime 1767225600\n")  # 2026-01-01
    kept.restore(document, 0.0, booted(node.roots))
    node.write("proc/stat", "btime 1767398400\n")  # 2026-01-03
    forgotten.restore(document, 0.0, booted(node.roots))

    ailment = kept.answers(UUIDS[0], 10_000.0)
    assert ailment is not None
    assert "Xid 79" in ailment.message
    assert forgotten.answers(UUIDS[0], 0.0) is None


def test_nvidia_cards_without_their_library_are_told(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No part of them is allocated, and the problem names the cards and the next step."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    node.pci("0000:38:00.0", "0x10de", "0x030200")

    found = node.discover()

    assert found.found == ()
    assert "0000:38:00.0" in found.problems[0]
    assert "partage[nvidia]" in found.problems[0]


def test_metax_cards_come_from_their_library(node: Node) -> None:
    """Facts as in the MetaX document; a card without sensible memory is closed; parts of cards are skipped."""
    compiled("metax_card.c", node.folder / "lib/libmxsml.so", "libmxsml-test.so")
    home = node.pci("0000:38:00.0", "0x9999", "0x030200")
    for name in ("card1", "renderD129"):
        (home / "drm" / name).mkdir(parents=True)
        node.write(f"dev/dri/{name}", "")
    node.write("dev/mxcd", "")

    found = node.discover()

    first, second = found.devices
    assert (first.uuid, first.model) == ("89033010-2354-0000-0000-000000000000", "C500")
    assert (first.memory_bytes, first.healthy) == (64 * GIB, True)
    assert first.topology == Topology(1, ROOT, "0000:38:00.0")
    assert (second.memory_bytes, second.healthy) == (0, False)
    assert found.found[0].files == ("/dev/mxcd", "/dev/dri/card1", "/dev/dri/renderD129")


@pytest.mark.parametrize("library", [None, b"no library at all"], ids=["absent", "broken"])
def test_metax_cards_without_their_library_are_closed(node: Node, library: bytes | None) -> None:
    """Sysfs shows them, and no pod gets them."""
    node.pci("0000:38:00.0", "0x9999", "0x030200")
    if library:
        node.write("lib/libmxsml.so", library)

    found = node.discover()

    assert [(one.vendor, one.healthy) for one in found.devices] == [("metax", False)]
    assert "libmxsml.so" in found.problems[0]


def test_rdma_cards_come_with_their_virtual_functions(node: Node) -> None:
    """Number, identity, files, place and functions by address; a card with a dead port is closed."""
    node.nic("mlx5_0", "0000:40:00.0", functions=3)
    node.write("sys/bus/pci/devices/0000:40:00.0/infiniband_verbs/uverbs0/dev", "231:192")
    for name in ("rdma_cm", "uverbs0"):
        node.write(f"dev/infiniband/{name}", "")
    node.nic("mlx5_1", "0000:41:00.0", state="1: DOWN")

    found = node.discover()

    first, second = found.devices
    assert (first.minor, first.uuid) == (0, "0000:40:00.0")
    assert [one.bus_id for one in first.functions] == [f"0000:40:00.{n}" for n in (1, 2, 3)]
    assert (second.healthy, second.health_detail) == (False, "port is 1: DOWN")
    # By the node's paths, which differ from those of an agent in a container.
    assert found.found[0].files == ("/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0")
    assert found.problems == ()


def test_amd_cards_and_fpgas_come_from_sysfs(node: Node) -> None:
    """Memory and identity as amdgpu tells them; one FPGA for both functions of a board."""
    home = node.pci(
        "0000:03:00.0",
        "0x1002",
        "0x038000",
        mem_info_vram_total=str(192 * GIB),
        unique_id="af12",
        product_name="AMD Instinct MI300X",
    )
    (home / "drm/renderD128").mkdir(parents=True)
    for name in ("kfd", "dri/renderD128"):
        node.write(f"dev/{name}", "")
    node.pci("0000:05:00.0", "0x10ee", "0x120000")
    node.pci("0000:05:00.1", "0x10ee", "0x120000")

    fpga, gpu = node.discover().devices

    assert (gpu.uuid, gpu.minor, gpu.model) == ("GPU-af12", 0, "AMD-Instinct-MI300X")
    assert (gpu.memory_bytes, gpu.healthy) == (192 * GIB, True)
    assert (fpga.type, fpga.uuid) == ("fpga", "0000:05:00.0")


def test_vendor_files_describe_what_sysfs_cannot(node: Node) -> None:
    """An Ascend card is closed until a device file tells its memory; bad entries hide no good one."""
    node.pci("0000:81:00.0", "0x19e5", "0x120000")
    assert [one.healthy for one in node.discover().devices] == [False]
    card = {
        "vendor": "huawei",
        "model": "Ascend-310P3",
        "uuid": "185011D4-0",
        "minor": "0",
        "resources": {"huawei.com/npu-core": "8", "gpu-memory": "21527Mi"},
        "topology": {"nodeID": "1", "busID": "0000:81:00.0"},
        "status": {"healthy": True},
    }
    node.write("files/ic-device", json.dumps([card, {"vendor": 3}]))
    node.write("files/other", "{")

    found = node.discover()

    (only,) = found.devices
    assert (only.uuid, only.memory_bytes) == ("185011D4-0", 21527 * 2**20)
    assert only.extras == (("huawei.com/npu-core", 8),)
    assert any("ic-device: device 1" in problem for problem in found.problems)
    assert any("device file other" in problem for problem in found.problems)


def test_a_second_vendor_is_left_out(node: Node) -> None:
    """A Device object names one make; cards of another would be given to the wrong pods."""
    home = node.pci("0000:03:00.0", "0x1002", "0x030000", mem_info_vram_total=str(GIB))
    (home / "drm/renderD128").mkdir(parents=True)
    for name in ("kfd", "dri/renderD128"):
        node.write(f"dev/{name}", "")
    node.pci("0000:38:00.0", "0x9999", "0x030200")

    found = node.discover()

    assert {one.vendor for one in found.devices} == {"metax"}
    assert any("amd card" in problem for problem in found.problems)


NONSENSE = st.one_of(
    st.none(),
    st.binary(max_size=40),
    st.sampled_from([b"-1", b"0x", b"007", b"9" * 30, b"\xff", b"4: ACTIVE"]),
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    texts=st.lists(NONSENSE, min_size=8, max_size=8),
    kind=st.just(b"0x020000") | NONSENSE,
    card=st.just(b"0x120000") | NONSENSE,
    vendor=st.sampled_from(["0x1002", "0x9999", "0x19e5"]),
)
def test_nonsense_in_sysfs_grants_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    texts: list[bytes | None],
    kind: bytes | None,
    card: bytes | None,
    vendor: str,
) -> None:
    """Missing or mad files never raise, and no card is open that does not tell its memory."""
    node = Node(tmp_path_factory.mktemp("n"))
    paths = (
        "device",
        "numa_node",
        "mem_info_vram_total",
        "unique_id",
        "product_name",
        "current_compute_partition",
    )
    home = node.pci("0000:03:00.0", vendor, "0x120000")
    (home / "drm/renderD128").mkdir(parents=True)
    for name in ("kfd", "dri/renderD128"):
        node.write(f"dev/{name}", "")
    node.nic("mlx5_0", "0000:40:00.0", functions=1)
    for name, text in (("class", card), *zip(paths, texts, strict=False)):
        (home / name).unlink(missing_ok=True)
        if text is not None:
            (home / name).write_bytes(text)
    for path, text in (("ports/1/state", texts[7]), ("device/class", kind)):
        file = node.folder / "sys/class/infiniband/mlx5_0" / path
        file.unlink()
        if text is not None:
            file.write_bytes(text)

    found = node.discover()

    for one in found.devices:
        assert not one.healthy or one.type != "gpu" or one.memory_bytes > 0
        assert one.healthy or one.health_detail
        assert one.type != "rdma" or not one.healthy or b"ACTIVE" in (texts[7] or b"")


def test_links_in_a_ring_are_survived(node: Node) -> None:
    """A folder that leads back to itself is a problem, not an endless walk."""
    node.link("sys/class/infiniband/mlx5_0/device", node.folder / "sys/a")
    node.link("sys/a", node.folder / "sys/b")
    node.link("sys/b", node.folder / "sys/a")
    node.link("sys/bus/pci/devices/0000:03:00.0", node.folder / "sys/a")

    found = node.discover()

    assert found.found == ()
    assert "mlx5_0" in found.problems[0]


def test_memory_of_processes_is_told_by_card(cards: Cards) -> None:
    """It has their numbers on the host; nothing of a card with a process whose memory the driver does not report."""
    cards.run((0, 4000, 300 * 2**20), (0, 4001, 5), (1, 4000, 0))

    uses = [one.use for one in cards.search().found]

    assert [use and use.processes for use in uses] == [{4000: 300 * 2**20, 4001: 5}, None]


@pytest.mark.parametrize(
    ("pid", "used"),
    [(4000, 80 * GIB + 1), (4000, 2**63), (2**32 - 1, 5), (2**22, 5), (0, 5)],
)
def test_figures_that_cannot_be_are_no_figures(cards: Cards, pid: int, used: int) -> None:
    """Containers would be beyond their caps by them, and be evicted for it."""
    cards.run((0, 4001, 80 * GIB), (0, pid, used), (1, 2**22 - 1, 80 * GIB))

    uses = [one.use for one in cards.search().found]

    assert [use and use.processes for use in uses] == [None, {2**22 - 1: 80 * GIB}]


def test_a_drivers_version_is_the_value_of_a_label(
    cards: Cards, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The API server would refuse the whole Device object for another one."""
    monkeypatch.setenv("FAKE_DRIVER", f"580 \x1b[2J\n{'1' * 70}")

    assert [one.driver for one in cards.search().found] == [f"580-2J-{'1' * 56}"] * 2


def test_time_of_processes_is_told_by_card(cards: Cards) -> None:
    """The newest sample of each counts once, and a cut card reports none."""
    cards.busy((0, 4000, 30, 10), (0, 4000, 50, 20), (0, 4001, 200, 20), (1, 4000, 7, 20))

    def told() -> list[dict[int, float] | None]:
        return [one.use and one.use.times for one in cards.search().found]

    assert told() == [{4000: 0.5, 4001: 1.0}, None]
    assert told() == [{}, None]
    cards.busy((0, 4000, 20, 30))
    assert told() == [{4000: 0.2}, None]


def test_time_of_instances_is_told_between_two_searches(cards: Cards) -> None:
    """Each instance has its own figure; a search too soon after another repeats the figure before."""
    cards.cut("1 MIG-a 0 4 100 1000", "2 MIG-b 4 2 0 1000")
    assert cards.instances() == {}  # one sample is no time
    cards.now = 60
    cards.cut("1 MIG-a 0 4 350 2000", "2 MIG-b 4 2 1000 2000")
    told = {(0, 4): InstanceUse(0.25, 0, 60), (4, 2): InstanceUse(1.0, 0, 60)}
    assert cards.instances() == told
    cards.now = 60.2
    cards.cut("1 MIG-a 0 4 351 2003", "2 MIG-b 4 2 1003 2003")
    assert cards.instances() == told
    cards.now = 70
    cards.cut("1 MIG-a 0 4 350 3000", "2 MIG-b 4 2 1500 3000")
    assert cards.instances() == {
        (0, 4): InstanceUse(0.0, 60, 70),
        (4, 2): InstanceUse(0.5, 60, 70),
    }


def test_an_instance_that_was_made_anew_begins_anew(cards: Cards) -> None:
    """The driver uses its number again; samples of an instance that is gone are freed, and all with the library."""
    library = ctypes.CDLL("libnvidia-ml.so.1")
    before = library.fake_samples()
    cards.cut("1 MIG-a 0 4 900 1000")
    cards.instances()
    cards.now = 10
    cards.cut("1 MIG-b 0 4 950 2000", "2 MIG-c 4 4 0 1")
    assert cards.instances() == {}
    cards.now = 20
    cards.cut("1 MIG-b 0 4 1450 3000")
    assert cards.instances() == {(0, 4): InstanceUse(0.5, 10, 20)}
    assert library.fake_samples() - before == 2
    cards.search.close()
    assert library.fake_samples() == before


@pytest.mark.parametrize("counters", [None, 0])
def test_a_driver_without_counters_tells_no_time_of_instances(
    cards: Cards, counters: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    """Cards before Hopper, older drivers: said once, and the card is found all the same."""
    caplog.set_level("INFO", "partage.agent")
    for now in (0, 60, 120):
        cards.now = now
        cards.cut(f"1 MIG-a 0 4 {now} {now * 10 + 1}", counters=counters)
        assert cards.instances() == {}
    assert caplog.text.count("time of its instances is not measured") == 1


def test_what_the_driver_does_not_say_of_an_instance_is_not_made_up(cards: Cards) -> None:
    """A figure that failed, or makes no sense, is absent; the next good one is there again."""
    cards.cut("1 MIG-a 0 4 0 1000")
    cards.instances()
    for now, sample in ((10, "0 1000"), (20, "5000 2000"), (30, "100 3000")):
        cards.now = now
        cards.cut(f"1 MIG-a 0 4 {sample}")
        assert cards.instances() == {}
    cards.now = 40
    cards.cut("1 MIG-a 0 4 100 4000")
    assert cards.instances() == {(0, 4): InstanceUse(0.0, 30, 40)}
