"""From a pod's record to what its container gets, and the rules by which containers are refused."""

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from prometheus_client import generate_latest

from partage.agent.cdi.specs import DeviceNode
from partage.agent.container_admission import Keeper
from partage.agent.container_edits import HostFacts, Instance
from partage.agent.host import Host
from partage.agent.injection import Injected, Place, Refusal, inject, looked_at
from partage.agent.isolation.providers import HamiCore
from partage.agent.journal import Entry, Journal
from partage.agent.metrics import Tallies
from partage.agent.nri.messages import Container, Device, LinuxContainer, Mount, PodSandbox
from partage.agent.nri.plugin import Refused
from partage.model import device as model
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import DeviceType, VirtualFunction
from partage.model.mig import MigSlice
from partage.model.node import Node
from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.wire.record import encode

GIB = 2**30
CARDS = tuple(
    model.Device(
        DeviceType.GPU, minor, f"GPU-{minor}", vendor=vendor, memory_bytes=80 * GIB, slots=10
    )
    for minor, vendor in enumerate(("nvidia", "nvidia", "metax"))
)
NIC = model.Device(
    DeviceType.RDMA, 0, "0000:1f:00.0", functions=(VirtualFunction(1, "0000:1f:00.2"),)
)
NODE = Node("n1", devices=(*CARDS, NIC))
FACTS = HostFacts(
    lambda _pod, _card, _mig: Instance(), lambda address: (f"/dev/infiniband/uverbs-{address}",)
)
PLACE = Place(NODE, Settings(), FAMILIES, FACTS)
HALF = Grant("main", DeviceType.GPU, 0, "GPU-0", 500, 40 * GIB, GrantMode.SHARE, protocol="hami")


def _allocation(*grants: Grant, uid: str = "uid-1", node: str = "n1") -> Allocation:
    return Allocation(uid, "team", uid, node, grants)


def _pod(*grants: Grant, labels: Mapping[str, str] | None = None, **record: str) -> PodSandbox:
    text = encode(_allocation(*grants, **record))
    return PodSandbox("p1", "train", "uid-1", "team", labels or {}, {names.ALLOCATION: text})


def _container(*env: str, files: tuple[str, ...] = (), name: str = "main") -> Container:
    devices = tuple(Device(path, "c") for path in files)
    return Container("c1", "p1", name, env=env, linux=LinuxContainer(devices))


def _injected(pod: PodSandbox, container: Container, place: Place = PLACE) -> Injected:
    found = inject(pod, container, place, ())
    assert isinstance(found, Injected), found
    return found


def _grant(protocol: str, minor: int = 0, mode: GrantMode = GrantMode.WHOLE) -> Grant:
    return structs.replace(HALF, protocol=protocol, minor=minor, uuid=f"GPU-{minor}", mode=mode)


@pytest.mark.parametrize(
    ("grants", "env", "files"),
    [
        pytest.param(
            [_grant("koordinator"), _grant("koordinator", 1)],
            {"NVIDIA_VISIBLE_DEVICES": "0,1"},
            ("/dev/nvidia0", "/dev/nvidia1"),
            id="koordinator: minors",
        ),
        pytest.param(
            [HALF],
            {
                "NVIDIA_VISIBLE_DEVICES": "GPU-0",
                "CUDA_DEVICE_MEMORY_LIMIT_0": "40960m",
                "CUDA_DEVICE_SM_LIMIT": "50",
            },
            ("/dev/nvidia0",),
            id="hami: identities and limits",
        ),
        pytest.param(
            [_grant("qgpu", 1)],
            {"NVIDIA_VISIBLE_DEVICES": "GPU-1"},
            ("/dev/nvidia1",),
            id="qgpu",
        ),
        pytest.param(
            [_grant("koordinator", 2)],
            {"NVIDIA_VISIBLE_DEVICES": "void"},
            ("/dev/dri/card2", "/dev/dri/renderD130"),
            id="metax, whole",
        ),
        pytest.param(
            [_grant("koordinator", 2, GrantMode.VENDOR)],
            {"NVIDIA_VISIBLE_DEVICES": "void"},
            (),
            id="metax, cut by its own plugin",
        ),
        pytest.param(
            [
                Grant(
                    "main",
                    DeviceType.RDMA,
                    0,
                    NIC.uuid,
                    1000,
                    0,
                    GrantMode.SHARE,
                    protocol="koordinator",
                    function=(1, "0000:1f:00.2"),
                )
            ],
            {"NVIDIA_VISIBLE_DEVICES": "void"},
            ("/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs-0000:1f:00.2"),
            id="virtual function",
        ),
    ],
)
def test_each_protocol_gives_what_its_readers_expect(
    grants: list[Grant], env: dict[str, str], files: tuple[str, ...]
) -> None:
    """Environment and device files follow from the record alone."""
    found = _injected(_pod(*grants), _container()).given

    assert (found.env, found.files) == (env, files)


def test_shares_get_the_library_that_the_operator_supplies() -> None:
    """HAMi's library is mounted with a folder of the container's own; qGPU's shares get limits too."""
    facts = replace(FACTS, provider=HamiCore())
    node = replace(NODE, properties={"qgpu-policy": "best-effort"})
    share = structs.replace(HALF, protocol="qgpu")

    found = _injected(_pod(share), _container(), replace(PLACE, node=node, host=facts)).given

    assert found.limits == "hami-core"
    assert found.env["LD_PRELOAD"] == "/usr/local/vgpu/libvgpu.so"
    assert found.env["CUDA_DEVICE_MEMORY_LIMIT_0"] == "40960m"
    assert found.env["GPU_CORE_UTILIZATION_POLICY"] == "disable"
    assert [bind.target for bind in found.binds] == [
        "/usr/local/vgpu",
        "/usr/local/vgpu/libvgpu.so",
        HamiCore().lock,
    ]
    assert found.binds[0].source.endswith("/uid-1_main")


def test_limits_without_a_library_count_as_not_enforced() -> None:
    """Without a library, nothing is loaded and the agent claims no limits."""
    labels = {names.GPU_ISOLATION_PROVIDER: "HAMi-core"}
    share = structs.replace(HALF, protocol="koordinator")

    found = _injected(_pod(share, labels=labels), _container()).given

    assert found.limits == "none"
    assert "LD_PRELOAD" not in found.env


def test_a_container_cannot_widen_its_grant() -> None:
    """What the author sets is replaced or removed; a container without a grant sees no card."""
    mine = _injected(
        _pod(HALF), _container("NVIDIA_VISIBLE_DEVICES=all", "CUDA_DISABLE_CONTROL=true")
    )
    other = _injected(_pod(HALF), _container("NVIDIA_VISIBLE_DEVICES=all", name="sidecar"))

    assert mine.given.env["NVIDIA_VISIBLE_DEVICES"] == "GPU-0"
    assert mine.removed == ("CUDA_DISABLE_CONTROL",)
    assert other.given.env == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert other.given.files == ()


_FORGED = {names.DEVICE_ALLOCATED: "{}"}


@pytest.mark.parametrize(
    ("pod", "container", "held", "why"),
    [
        pytest.param(
            PodSandbox("p", "train", "u", "team", {}, _FORGED),
            _container(),
            (),
            f"pod team/train, container main: annotation {names.DEVICE_ALLOCATED} .*NoRecord",
            id="another protocol's record alone",
        ),
        pytest.param(
            PodSandbox("p", "train", "u", "team"),
            _container(files=("/dev/nvidia3",)),
            (),
            "device file /dev/nvidia3 .*NoRecord",
            id="a device file without a record",
        ),
        pytest.param(_pod(HALF, uid="uid-2"), _container(), (), "BadRecord", id="another pod"),
        pytest.param(_pod(HALF, node="n2"), _container(), (), "BadRecord", id="another node"),
        pytest.param(
            PodSandbox("p", "train", "u", "team", {}, {names.ALLOCATION: "{"}),
            _container(),
            (),
            "cannot be read.*BadRecord",
            id="no JSON",
        ),
        pytest.param(
            _pod(structs.replace(HALF, uuid="GPU-9")),
            _container(),
            (),
            "UnknownDevice",
            id="no such card",
        ),
        pytest.param(
            _pod(structs.replace(HALF, memory_bytes=41 * GIB)),
            _container(),
            (_allocation(HALF, uid="a"),),
            r"held by team/a: 44023414784 bytes of memory asked, 42949672960 of .* left .*CardFull",
            id="memory is full",
        ),
        pytest.param(
            _pod(structs.replace(HALF, mode=GrantMode.WHOLE)),
            _container(),
            (_allocation(HALF, uid="a"),),
            "alone .*CardFull",
            id="whole card, taken",
        ),
        pytest.param(
            _pod(
                structs.replace(
                    HALF, mode=GrantMode.MIG, mig=MigSlice("1g.10gb", 2, 1), core_milli=0
                )
            ),
            _container(),
            (
                _allocation(
                    structs.replace(
                        HALF, mode=GrantMode.MIG, mig=MigSlice("3g.40gb", 0, 4), core_milli=0
                    ),
                    uid="a",
                ),
            ),
            "1g.10gb at 2 overlaps 3g.40gb at 0",
            id="instances overlap",
        ),
        pytest.param(
            _pod(structs.replace(HALF, mode=GrantMode.MIG, mig=MigSlice("1g.10gb", 2, 1))),
            _container(),
            (),
            "1g.10gb at 2 of card GPU-0 is not made.*NoInstance",
            id="no instance yet",
        ),
    ],
)
def test_what_cannot_be_trusted_does_not_start(
    pod: PodSandbox, container: Container, held: tuple[Allocation, ...], why: str
) -> None:
    """The refusal names pod, container and rule."""
    found = inject(pod, container, PLACE, held)

    assert isinstance(found, Refusal), found
    assert "container main" in found.message
    with pytest.raises(AssertionError, match=why):
        raise AssertionError(found.message)


def test_a_restarted_container_is_not_beside_itself() -> None:
    """The earlier container of the same pod does not make its card full."""
    whole = structs.replace(HALF, mode=GrantMode.WHOLE)

    assert isinstance(inject(_pod(whole), _container(), PLACE, (_allocation(whole),)), Injected)


@given(st.text(max_size=60) | st.binary(max_size=60).map(lambda b: b.decode("latin-1")))
def test_any_annotation_is_a_refusal_or_a_record(text: str) -> None:
    """Hostile text is refused, never a crash and never a grant."""
    pod = PodSandbox("p", "train", "u", "team", {}, {names.ALLOCATION: text})

    assert isinstance(inject(pod, _container(), PLACE, ()), Refusal)


# --- keeper and journal ----------------------------------------------------------------------


def _keeper(folder: Path) -> Keeper:
    root = folder / "root"
    (root / "dev").mkdir(parents=True, exist_ok=True)
    for name in ("nvidia0", "nvidiactl"):
        if not (root / "dev" / name).exists():
            (root / "dev" / name).symlink_to("/dev/null")
    place = replace(PLACE, host=FACTS)
    return Keeper(lambda: place, Host(root), Journal(folder / "journal"), Tallies())


def test_device_files_come_with_their_numbers(tmp_path: Path) -> None:
    """Numbers are the host's own; files that a driver may lack are left out."""
    adjustment = _keeper(tmp_path).create(_pod(HALF), _container())

    assert adjustment is not None
    assert adjustment.linux is not None
    null = os.stat("/dev/null").st_rdev  # noqa: PTH116 # the number is what matters
    assert [(d.path, d.major, d.minor) for d in adjustment.linux.devices] == [
        (path, os.major(null), os.minor(null)) for path in ("/dev/nvidia0", "/dev/nvidiactl")
    ]


def test_a_missing_device_file_refuses_the_container(tmp_path: Path) -> None:
    """A grant that cannot be honoured is no start with less; nothing is written down."""
    keeper = _keeper(tmp_path)

    with pytest.raises(Refused, match="container main: device file /dev/nvidia1: No such file"):
        keeper.create(_pod(_grant("hami", 1)), _container())
    assert not keeper.books.held


def test_a_card_is_free_again_when_its_container_has_ended(tmp_path: Path) -> None:
    """A later record on a full card is refused until then, also by an agent that was restarted."""
    keeper, whole = _keeper(tmp_path), structs.replace(HALF, mode=GrantMode.WHOLE)
    late = replace(_pod(whole, uid="uid-2"), uid="uid-2")
    keeper.create(_pod(whole), _container())
    again = _keeper(tmp_path)

    with pytest.raises(Refused, match="CardFull"):
        again.create(late, replace(_container(), id="c2"))
    again.remove(_container())
    assert again.create(late, replace(_container(), id="c2")) is not None


def test_what_ran_while_nobody_looked_is_reported_and_counts(tmp_path: Path) -> None:
    """Synchronize finds containers that the agent did not serve, and forgets those that are gone."""
    keeper = _keeper(tmp_path)
    keeper.create(_pod(HALF), _container())
    forged = PodSandbox("p2", "bad", "u2", "team", {}, _FORGED)
    running = (
        Container("c7", "p1", "main", 3),
        Container("c8", "p2", "main", 3),
        Container("c9", "p2", "over", 4),
    )

    keeper.synchronize((_pod(HALF), forged), running)

    assert {key: str(one) for key, one in keeper.unprotected.items()} == {
        "c7": "team/train/main",
        "c8": "team/bad/main",
    }
    assert set(keeper.books.held) == {"c7"}
    assert b"partage_agent_unprotected_containers 2.0" in generate_latest(keeper.tallies.registry)


LINES = (
    "A=b",
    "NVIDIA_VISIBLE_DEVICES=all",
    "NVIDIA_VISIBLE_DEVICES=void",
    "NVIDIA_VISIBLE_DEVICES=" + "GPU-0," * 99,
    "CUDA_VERSION=9.0",
    "CUDA_VERSION=",
    "NVIDIA_REQUIRE_CUDA=cuda>=9.0",
    "NVIDIA_MIG_CONFIG_DEVICES=all",
    "DOCKER_RESOURCE_GPU=0",
    "DOCKER_RESOURCE_GPU=void",
    "DOCKER_RESOURCE_" + "X" * 999 + "=0",
    "AMD_VISIBLE_DEVICES=0",
    "PARTAGE_DEVICES_GPU=1",
)
TARGETS = st.sampled_from(("/data", "/var/run/nvidia-container-devices/all", "/run/../etc"))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(LINES), max_size=6), st.lists(TARGETS, max_size=3), st.booleans())
def test_what_is_kept_of_a_container_worries_as_all_of_it_does(
    env: list[str],
    targets: list[str],
    recorded: bool,  # noqa: FBT001 # a case
) -> None:
    """The plugin keeps little of each running container until the runtime has sent all of them."""
    pod = _pod(HALF) if recorded else PodSandbox("p1", "train", "uid-1", "team")
    mounts = tuple(Mount(one) for one in targets)
    whole = Container("c7", "p1", "main", 3, args=("x" * 999,), env=(*env,), mounts=mounts)

    with TemporaryDirectory() as folder:
        one, other = (_keeper(Path(folder) / name) for name in ("whole", "kept"))
        one.synchronize((pod,), (whole,))
        other.synchronize((pod,), (looked_at(whole),))

        assert one.unprotected.keys() == other.unprotected.keys()
        assert one.books.held == other.books.held


@settings(max_examples=30, deadline=None)
@given(cut=st.integers(0, 400))
def test_a_journal_survives_a_crash_at_any_byte(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    """What was written before the torn line is there; the torn line is not; writing goes on."""
    folder = tmp_path_factory.mktemp("journal")
    keeper = _keeper(folder)
    keeper.create(_pod(HALF), _container())
    keeper.create(_pod(HALF), replace(_container(), id="c2"))
    file = folder / "journal" / "containers.jsonl"
    data = file.read_bytes()
    kept = data[: min(cut * len(data) // 400, len(data))]
    file.write_bytes(kept)

    journal = Journal(folder / "journal")

    assert len(journal.entries) == max(0, kept.count(b"\n") - 1)  # the first says the version
    assert journal.damaged == 0
    journal.end("c1")
    assert "c1" not in Journal(folder / "journal").entries


def test_a_damaged_line_is_counted_and_the_others_hold(tmp_path: Path) -> None:
    """A line that is no entry is left out and counted."""
    _keeper(tmp_path).create(_pod(HALF), _container())
    file = tmp_path / "journal" / "containers.jsonl"
    file.write_bytes(b'{"given":7}\n\xff\n' + file.read_bytes())

    journal = Journal(tmp_path / "journal")

    assert (list(journal.entries), journal.damaged) == (["c1"], 2)


def test_a_line_nested_without_end_is_counted_too(tmp_path: Path) -> None:
    """Garbage of any kind keeps no agent from its start."""
    Journal(tmp_path / "journal").give(Entry("c1", "u", "team/train", "main", "record"))
    file = tmp_path / "journal" / "containers.jsonl"
    file.write_bytes(b'{"given":' * 5000 + b"\n" + file.read_bytes())

    journal = Journal(tmp_path / "journal")

    assert (list(journal.entries), journal.damaged) == (["c1"], 1)


def test_an_instance_that_goes_while_it_is_given_is_asked_for_once() -> None:
    """What was found ready is what the container gets, whatever happens in between."""
    answers = [
        Instance("MIG-1", (DeviceNode("/dev/nvidia-caps/nvidia-cap10", major=511, minor=10),))
    ]
    facts = HostFacts(lambda _pod, _card, _mig: answers.pop() if answers else Instance())
    sliced = structs.replace(HALF, mode=GrantMode.MIG, mig=MigSlice("1g.10gb", 2, 1), core_milli=0)

    given = _injected(_pod(sliced), _container(), replace(PLACE, host=facts)).given

    assert given.env["NVIDIA_VISIBLE_DEVICES"] == "MIG-1"
    assert [one.path for one in given.made] == ["/dev/nvidia-caps/nvidia-cap10"]
    assert (given.files, given.spare, given.limits) == ((), (), "mig")


@pytest.mark.parametrize(
    ("env", "refused"),
    [
        pytest.param(("NVIDIA_VISIBLE_DEVICES=all",), False, id="by the image"),
        pytest.param(
            ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=all"), True, id="by both"
        ),
        pytest.param(
            ("NVIDIA_VISIBLE_DEVICES=all", "NVIDIA_VISIBLE_DEVICES=GPU-0"), False, id="right"
        ),
        pytest.param(
            ("CUDA_DISABLE_CONTROL=true", "CUDA_DISABLE_CONTROL=true"), True, id="limits"
        ),
        pytest.param(
            ("A=b", "A=c", "PARTAGE_DEVICES_GPU=1", "PARTAGE_DEVICES_GPU=1"), False, id="others"
        ),
    ],
)
def test_what_could_not_be_changed_is_refused(env: tuple[str, ...], *, refused: bool) -> None:
    """A runtime changes the first of two values, and a process sees the last."""
    found = inject(_pod(HALF), _container(*env), PLACE, ())

    assert isinstance(found, Refusal) == refused
    if isinstance(found, Refusal):
        assert found.rule == "SetTwice"


def test_what_the_kubelet_counts_needs_a_record() -> None:
    """A marked container without a record is refused, in namespaces that are left alone too."""
    for namespace in ("team", "kube-system"):
        pod = PodSandbox("p1", "forced", "uid-1", namespace)
        found = inject(pod, _container("PARTAGE_DEVICES_GPU=1"), PLACE, ())
        assert isinstance(found, Refusal)
        assert "(NoRecord)" in found.message
    assert _injected(_pod(HALF), _container("PARTAGE_DEVICES_GPU=1")).removed == (
        "PARTAGE_DEVICES_GPU",
    )


def test_cards_are_named_by_cdi_where_that_is_wanted() -> None:
    """NVIDIA's cards of whole and shared grants, once each; other vendors' and instances are not."""
    place = replace(PLACE, host=replace(FACTS, cdi="nvidia.com/gpu"))
    two = structs.replace(HALF, minor=1, uuid="GPU-1")
    metax = structs.replace(HALF, minor=2, uuid="GPU-2", protocol="koordinator")

    assert _injected(_pod(HALF, two), _container(), place).given.cdi == (
        "nvidia.com/gpu=GPU-0",
        "nvidia.com/gpu=GPU-1",
    )
    assert _injected(_pod(metax), _container(), place).given.cdi == ()
    assert _injected(_pod(HALF), _container()).given.cdi == ()
