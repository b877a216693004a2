"""Trees of files with nonsense, and pods with hostile annotations: an answer, never a crash, never a grant too much."""

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from partage.agent.container_edits import HostFacts, Instance
from partage.agent.device_document import device_document
from partage.agent.discovery.found import Roots
from partage.agent.discovery.search import Search
from partage.agent.injection import Injected, Place, Refusal, inject
from partage.agent.isolation.images import judge_image
from partage.agent.isolation.processes import processes_of
from partage.agent.isolation.providers import OwnLibrary
from partage.agent.nri.messages import Container, PodSandbox
from partage.model import device as model
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import DeviceType
from partage.model.node import Node
from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.wire.context import Context
from partage.wire.documents import decode
from partage.wire.nodes import translate_node
from partage.wire.record import encode

from nodes_world import ROOT, Node as World  # isort: skip # beside this file

BACKENDS = ("files", "metax", "amd", "tools", "rdma", "fpga")
GIB = 2**30
WORDS = st.one_of(
    st.sampled_from(
        [
            "0x9999",
            "0x1002",
            "0x19e5",
            "0xcabc",
            "0x10ee",
            "0x15b3",
            "0x030000",
            "0x120000",
            "0x020000",
            "-1",
            "0",
            "1",
            "4: ACTIVE",
            "4:",
            "",
            "\n",
            "0xfffffffffffffffff",
            "nan",
            "99999999999999999999",
            "17163091968",
            "SPX",
            "../../etc/passwd",
            "\x00",
            "{}",
            "[1]",
            '[{"minor": -1}]',
            '[{"uuid": 7, "minor": "x"}]',
        ]
    ),
    st.text(max_size=30),
    st.binary(max_size=30),
)
NAMES = st.sampled_from(
    [
        "vendor",
        "device",
        "class",
        "numa_node",
        "uevent",
        "mem_info_vram_total",
        "unique_id",
        "product_name",
        "current_compute_partition",
        "sriov_numvfs",
        "infiniband",
        "label",
    ]
)
ADDRESSES = st.sampled_from(["0000:3a:00.0", "0000:3a:00.1", "ffff:ff:1f.7", "nonsense", ".."])
TREES = st.lists(
    st.tuples(st.sampled_from(["pci", "rdma", "drm", "files"]), ADDRESSES, NAMES, WORDS),
    max_size=12,
)


def _put(path: Path, content: str | bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(
            content if isinstance(content, bytes) else content.encode("utf-8", "replace")
        )
    except (OSError, ValueError):
        return  # a name that is a folder already


def _tree(folder: Path, entries: list[tuple[str, str, str, str | bytes]]) -> Roots:
    """A node with cards of two makes and a network card, and then nonsense over and beside its files."""
    node = World(folder)
    node.pci("0000:3a:00.0", "0x9999", "0x030000")
    node.pci("0000:3a:00.1", "0x1002", "0x120000", mem_info_vram_total=str(GIB), unique_id="ab")
    node.nic("mlx5_0", "0000:3b:00.0", functions=2)
    for kind, address, name, content in entries:
        if kind == "pci":
            _put(folder / "sys/devices" / ROOT / "0000:3a:01.0" / address / name, content)
            link = folder / "sys/bus/pci/devices" / address
            if not link.exists() and not link.is_symlink():
                link.symlink_to(folder / "sys/devices" / ROOT / "0000:3a:01.0" / address)
        elif kind == "rdma":
            _put(folder / "sys/class/infiniband/mlx5_0/ports/1/state", content)
            _put(folder / "sys/class/infiniband/mlx5_0/device" / name, content)
        elif kind == "drm":
            _put(folder / "sys/class/drm/card0/device" / name, content)
        else:
            _put(folder / "files" / f"{name}.json", content)
    return node.roots


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(TREES)
def test_any_tree_of_files_has_an_inventory(
    entries: list[tuple[str, str, str, str | bytes]],
) -> None:
    """It also has a Device object that the scheduler reads; a card without memory is closed."""
    with TemporaryDirectory() as folder:
        search = Search(_tree(Path(folder), entries), "n1", backends=BACKENDS)
        found = search()
        again = search()
        search.close()

    assert found.devices == again.devices
    for one in found.found:
        assert one.device.uuid
        if one.device.type is DeviceType.GPU and not one.device.memory_bytes:
            assert not one.device.healthy
    body = device_document("n1", found, None, "2026-01-01T00:00:00Z")
    (document,) = decode("x", json.dumps(body).encode()).documents
    read = translate_node(None, document, Context.of(Settings(), FAMILIES)).node
    assert {one.uuid for one in read.devices} == {one.uuid for one in found.devices}
    assert {one.uuid for one in read.devices if one.healthy} <= {
        one.uuid for one in found.devices if one.healthy
    }


NODE = Node(
    "n1",
    devices=(model.Device(DeviceType.GPU, 0, "GPU-0", vendor="nvidia", memory_bytes=16 * GIB),),
)
PLACE = Place(
    NODE,
    Settings(),
    FAMILIES,
    HostFacts(lambda _pod, _card, _mig: Instance(), provider=OwnLibrary(compute=True)),
)
GRANT = Grant("main", DeviceType.GPU, 0, "GPU-0", 300, GIB, GrantMode.SHARE, protocol="qgpu")
KEYS = sorted(value for value in vars(names).values() if isinstance(value, str) and "/" in value)


@settings(max_examples=200)
@given(
    st.dictionaries(st.sampled_from(KEYS), st.text(max_size=60), max_size=6),
    st.dictionaries(st.sampled_from(KEYS), st.text(max_size=60), max_size=3),
    st.lists(st.text(max_size=40), max_size=5),
)
def test_hostile_pods_get_their_record_or_nothing(
    annotations: dict[str, str], labels: dict[str, str], env: list[str]
) -> None:
    """Whatever else a pod says beside its record: its own card, its own amounts, or a refusal."""
    record = encode(Allocation("u1", "team", "p", "n1", (GRANT,)))
    said = {**annotations, names.ALLOCATION: record}
    pod = PodSandbox("s", "p", "u1", "team", labels, said)

    found = inject(pod, Container("c", "s", "main", env=tuple(env)), PLACE, ())

    if isinstance(found, Refusal):
        return
    assert isinstance(found, Injected)
    assert [file for file in found.given.files if "nvidia" in file] == ["/dev/nvidia0"]
    assert found.given.quota is not None
    (card,) = found.given.quota
    assert (card.uuid, card.memory_bytes, card.core_milli) == ("GPU-0", GIB, 300)


@settings(max_examples=200)
@given(st.text(max_size=300), st.integers(0, 400), st.text(max_size=5))
def test_a_damaged_record_gives_no_other_card(junk: str, at: int, inserted: str) -> None:
    """Junk, or a true record with something in it: refused, or of the card of the true one, whatever amounts it has then."""
    record = encode(Allocation("u1", "team", "p", "n1", (GRANT,)))
    for text in (junk, record[:at] + inserted + record[at:], record[:at]):
        pod = PodSandbox("s", "p", "u1", "team", annotations={names.ALLOCATION: text})
        found = inject(pod, Container("c", "s", "main"), PLACE, ())
        if isinstance(found, Injected) and found.allocation is not None:
            for grant in found.allocation.grants:
                assert grant.uuid == "GPU-0"


@settings(max_examples=100)
@given(
    st.dictionaries(
        st.sampled_from(
            ["lib64/libc.so.6", "lib/libc.so.6", "bin/run", "lib/ld-musl-x86_64.so.1"]
        ),
        st.binary(max_size=200),
        max_size=4,
    ),
    st.dictionaries(
        st.sampled_from(["lib64", "lib", "bin", "usr/lib64", "loop"]),
        st.sampled_from(
            ["/", "..", "../../..", "loop", "/loop", "/etc", "lib", "/proc/self/root"]
        ),
        max_size=4,
    ),
    st.lists(st.sampled_from(["run", "/bin/run", "../run", "", "x" * 5000]), max_size=2),
)
def test_any_image_is_judged_inside_its_root(
    files: dict[str, bytes], links: dict[str, str], command: list[str]
) -> None:
    """Links lead nowhere but into the image, fifos and loops included."""
    with TemporaryDirectory() as folder:
        root = Path(folder)
        for name, target in links.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.symlink_to(target)
        for name, content in files.items():
            if not any(name.startswith(f"{link}/") for link in links):
                _put(root / name, content)
        if "bin" not in links:
            (root / "bin").mkdir(exist_ok=True)
            os.mkfifo(root / "bin/fifo")
        verdict = judge_image([root], command or ["fifo"], MappingProxyType({"PATH": "/bin"}))

        # The machine's own C library is never what is found: only what the image holds counts.
        held = [content for name, content in files.items() if name.endswith("libc.so.6")]
        assert not verdict.loads or any(b"GLIBC_2." in content for content in held)


@given(st.lists(st.text(max_size=60), max_size=4), st.lists(st.text(max_size=80), max_size=4))
def test_any_process_table_is_read(containers: list[str], lines: list[str]) -> None:
    """Names that are no identity are of no process."""
    with TemporaryDirectory() as folder:
        _put(Path(folder) / "7/cgroup", "\n".join(lines))
        found = processes_of(containers, Path(folder))

    assert set(found) <= set(containers)
