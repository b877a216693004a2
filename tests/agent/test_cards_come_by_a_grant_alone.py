"""A container without a grant gets no card from its vendor's own runtime, whatever its image or author sets.

What a runtime makes of variables is said here again as its source says it (`_opened`), so that the tests do not go
by the agent's own reading.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from prometheus_client import generate_latest

from partage.agent.container_admission import Keeper
from partage.agent.container_edits import HostFacts, Instance
from partage.agent.cri import messages as cri
from partage.agent.cri.edits import asked, edited
from partage.agent.host import Host
from partage.agent.injection import Injected, Place, Refusal, inject
from partage.agent.journal import Journal
from partage.agent.metrics import Tallies
from partage.agent.nri.messages import (
    CdiDevice,
    Container,
    Device,
    LinuxContainer,
    Mount,
    PodSandbox,
)
from partage.model import device as model
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import DeviceType
from partage.model.node import Node
from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.wire.record import encode

GIB = 2**30
VISIBLE = "NVIDIA_VISIBLE_DEVICES"


def _card(minor: int, vendor: str) -> model.Device:
    return model.Device(
        DeviceType.GPU, minor, f"{vendor}-{minor}", vendor=vendor, memory_bytes=80 * GIB, slots=10
    )


def _place(*vendors: str) -> Place:
    cards = tuple(_card(minor, vendor) for minor, vendor in enumerate(vendors))
    node = Node("n1", devices=cards)
    return Place(node, Settings(), FAMILIES, HostFacts(lambda *_: Instance()))


PLACE = _place("nvidia", "huawei")
SHARE = Grant(
    "main", DeviceType.GPU, 0, "nvidia-0", 300, 30 * GIB, GrantMode.SHARE, protocol="hami"
)
NPU = Grant(
    "main", DeviceType.GPU, 1, "huawei-1", 1000, 80 * GIB, GrantMode.WHOLE, protocol="koordinator"
)
PLAIN = PodSandbox("p", "web", "u", "team")


def _pod(*grants: Grant, annotations: Mapping[str, str] | None = None) -> PodSandbox:
    text = encode(Allocation("u", "team", "web", "n1", grants))
    return replace(PLAIN, annotations={names.ALLOCATION: text, **(annotations or {})})


def _process(container: Container, found: Injected | None) -> list[str]:
    """Variables as a runtime hands them on: what NRI changes is the first of each name."""
    lines = list(container.env)
    changed = {} if found is None else {**dict.fromkeys(found.removed, ""), **found.given.env}
    for key, value in changed.items():
        at = next((i for i, one in enumerate(lines) if one.partition("=")[0] == key), len(lines))
        lines[at : at + 1] = [f"{key}={value}"]
    return lines


def _opened(lines: list[str], swarm: str = "DOCKER_RESOURCE_GPU") -> bool:
    """Whether NVIDIA's runtime opens a card, older ones and newer ones alike."""
    env = dict(one.partition("=")[::2] for one in lines)
    for keys in ([VISIBLE], [swarm] if swarm in env else [VISIBLE], [swarm, VISIBLE]):
        there = [env[key] for key in keys if key in env]
        words = [word.strip() for text in there for word in text.split(",") if word.strip()]
        if not there and env.get("CUDA_VERSION") and not env.get("NVIDIA_REQUIRE_CUDA"):
            return True
        if set(words) - {"none"} and "void" not in words:
            return True
    return False


@pytest.mark.parametrize(
    "env",
    [
        pytest.param((), id="nothing that the runtime tells of"),
        pytest.param(("CUDA_VERSION=9.0",), id="a legacy image"),
        pytest.param(("CUDA_VERSION=9.0", "NVIDIA_REQUIRE_CUDA="), id="legacy by an empty rule"),
        pytest.param(("CUDA_VERSION=12.4", "NVIDIA_DRIVER_CAPABILITIES=all"), id="capabilities"),
        pytest.param((f"{VISIBLE}=all",), id="all"),
        pytest.param((f"{VISIBLE}= all ",), id="blanks"),
        pytest.param((f"{VISIBLE}=none,0",), id="a list"),
        pytest.param((f"{VISIBLE}=nvidia.com/gpu=all",), id="a CDI name"),
        pytest.param((f"{VISIBLE}=runtime.nvidia.com/gpu=all",), id="a CDI name made on the fly"),
        pytest.param(("DOCKER_RESOURCE_GPU=all",), id="swarm's resource"),
        pytest.param(
            (f"{VISIBLE}=void", "DOCKER_RESOURCE_GPU=0"), id="swarm's resource, beside void"
        ),
        pytest.param((f"{VISIBLE}=all", f"{VISIBLE}=none"), id="by the image, closed by the pod"),
    ],
)
def test_no_variable_opens_a_card(env: tuple[str, ...]) -> None:
    """In a pod without a record, and beside the container that has the grant; any kind of container."""
    for pod, name in ((PLAIN, "main"), (PLAIN, "init"), (_pod(SHARE), "sidecar")):
        container = Container("c", "p", name, env=env)
        found = inject(pod, container, PLACE, ())

        assert isinstance(found, Injected)
        assert not _opened(_process(container, found))
        assert found.given.env.get(VISIBLE, "void") == "void"


_VALUES = st.sampled_from(
    ["all", "0", "", "void", "none", "0,1", "void,all", " none", "GPU-0", "9.0"]
)
_KEYS = st.sampled_from(
    [VISIBLE, "CUDA_VERSION", "NVIDIA_REQUIRE_CUDA", "DOCKER_RESOURCE_GPU", "A"]
)


@given(st.lists(st.builds(lambda key, value: f"{key}={value}", _KEYS, _VALUES), max_size=6))
def test_whatever_is_set_no_card_opens(env: list[str]) -> None:
    """A container is closed, or it is not made: by NRI, and by the proxy."""
    container = Container("c", "p", "main", env=tuple(env))
    found = inject(PLAIN, container, PLACE, ())

    if not isinstance(found, Refusal):
        assert not _opened(_process(container, found))
    else:
        assert found.rule == "SetTwice"


@pytest.mark.parametrize(
    ("key", "closed"),
    [
        ("ASCEND_VISIBLE_DEVICES", ""),
        ("HABANA_VISIBLE_DEVICES", "none"),
        ("AMD_VISIBLE_DEVICES", "none"),
        ("CAMBRICON_VISIBLE_DEVICES", "none"),
        ("METAX_VISIBLE_DEVICES", "none"),
        ("MTHREADS_VISIBLE_DEVICES", "none"),
        ("ILUVATAR_COREX_VISIBLE_DEVICES", "none"),
    ],
)
def test_other_vendors_runtimes_open_none_either(key: str, closed: str) -> None:
    """An empty value means all to Habana's and none to Ascend's."""
    for pod in (PLAIN, _pod(SHARE)):
        found = inject(pod, Container("c", "p", "main", env=(f"{key}=0",)), PLACE, ())

        assert isinstance(found, Injected)
        assert found.given.env[key] == closed


def test_a_grant_of_one_vendor_opens_no_card_of_another() -> None:
    """A container with an NPU of its own keeps what its vendor's plugin set, and no more."""
    env = ("ASCEND_VISIBLE_DEVICES=1", "CUDA_VERSION=9.0", "DOCKER_RESOURCE_GPU=all")
    found = inject(_pod(NPU), Container("c", "p", "main", env=env), PLACE, ())

    assert isinstance(found, Injected)
    assert "ASCEND_VISIBLE_DEVICES" not in found.given.env
    assert found.given.env["DOCKER_RESOURCE_GPU"] == "none"


NPUS = _place("nvidia", "huawei", "huawei", "huawei")
NPU_PART = structs.replace(NPU, core_milli=500, memory_bytes=40 * GIB, mode=GrantMode.VENDOR)
NPU_NEXT = structs.replace(NPU, minor=2, uuid="huawei-2")
OPENS = "ASCEND_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("values", "fine", "of_a_part"),
    [
        pytest.param(("1",), True, True, id="its number"),
        pytest.param(("Ascend910-1",), True, True, id="behind the model"),
        pytest.param(("huawei-1",), True, True, id="its identity"),
        pytest.param(("",), True, True, id="none"),
        pytest.param(("1-1",), True, True, id="a range"),
        pytest.param(("1", "1"), True, True, id="the plugin's, repeated by the pod"),
        pytest.param(("100",), False, True, id="a part"),
        pytest.param(("Ascend910-2c-100-1",), True, True, id="a part by its name"),
        pytest.param(("1", "Ascend-1", "A-1"), False, False, id="more values than two"),
        pytest.param(("1", "100"), False, False, id="a part, and the pod's beside it"),
        pytest.param(("1,2",), False, False, id="another card in the list"),
        pytest.param(("1", "2"), False, False, id="another card beside the plugin's"),
        pytest.param(("all",), False, False, id="all"),
        pytest.param(("1,all",), False, False, id="all, in the list"),
        pytest.param(("0-7",), False, False, id="a range of all"),
        pytest.param(("1-2",), False, False, id="a range with it"),
        pytest.param(("2-1",), False, False, id="a range backwards"),
        pytest.param(("1-999999999",), False, False, id="a long range"),
        pytest.param(("Ascend910-2",), False, False, id="another card behind the model"),
        pytest.param(("huawei-2",), False, False, id="another card's identity"),
        pytest.param(("02",), False, False, id="spelled otherwise"),
        pytest.param(("\u0662",), False, False, id="another alphabet's digit"),
        pytest.param(("-1",), False, False, id="below zero"),
        pytest.param((" 2 ",), False, False, id="blanks"),
        pytest.param(("9" * 5000,), False, False, id="a number of 5,000 digits"),
        pytest.param(("1," * 100_000,), False, False, id="100,000 names"),
    ],
)
def test_a_grant_opens_no_further_card_of_its_vendor(
    values: tuple[str, ...], *, fine: bool, of_a_part: bool
) -> None:
    """The vendor's plugin names the granted cards in the variable; a pod's author may name any."""
    env = tuple(f"{OPENS}={value}" for value in values)
    for grant, expected in ((NPU, fine), (NPU_PART, of_a_part)):
        found = inject(_pod(grant), Container("c", "p", "main", env=env), NPUS, ())

        assert isinstance(found, Injected if expected else Refusal), (grant.mode, found)
        if isinstance(found, Refusal):
            assert found.rule == "Tampered"
            assert OPENS in found.message
            assert len(found.message) < 500


def test_a_plugin_may_name_its_part_at_the_container_and_a_pod_may_not() -> None:
    """The kubelet writes a plugin's CDI names at the container; a pod's annotations are its author's."""
    named = {"cdi.k8s.io/x": "huawei.com/npu=1"}
    container = Container("c", "p", "main")
    by_pod = inject(_pod(NPU_PART, annotations=named), container, NPUS, ())

    assert isinstance(by_pod, Refusal)
    assert by_pod.rule == "Tampered"
    by_plugin = replace(container, annotations=named)
    assert isinstance(inject(_pod(NPU_PART), by_plugin, NPUS, ()), Injected)
    assert isinstance(inject(_pod(NPU), by_plugin, NPUS, ()), Refusal), "no part"


def test_a_proxy_sees_every_value_of_a_repeated_variable() -> None:
    """The plugin's comes first, the pod's behind it; runtimes differ in which they read."""
    for first, second, refused in (("1", "2", True), ("2", "1", True), ("1", "1", False)):
        envs = tuple(cri.Variable(OPENS, value) for value in (first, second))
        config = cri.ContainerConfig(cri.ContainerName("main"), envs=envs)
        request = cri.CreateRequest("p", config, cri.PodConfig(cri.PodName("web", "u", "team")))
        _, container = asked(request, ())

        assert isinstance(inject(_pod(NPU), container, NPUS, ()), Refusal) == refused


def test_all_granted_cards_may_be_named() -> None:
    """As a list and as a range; a card of another container of the pod is not among them."""
    both = (NPU, NPU_NEXT)
    beside = (NPU, structs.replace(NPU_NEXT, container="sidecar"))
    for value in ("1,2", "1-2", "2, 1", "Ascend910-1,huawei-2"):
        container = Container("c", "p", "main", env=(f"{OPENS}={value}",))
        assert isinstance(inject(_pod(*both), container, NPUS, ()), Injected), value
        assert isinstance(inject(_pod(*beside), container, NPUS, ()), Refusal), value


@pytest.mark.parametrize(
    ("annotations", "targets"),
    [
        pytest.param({"cdi.k8s.io/x": "nvidia.com/gpu=all"}, (), id="CDI"),
        pytest.param({"cdi.k8s.io/x": "a.org/b=c, nvidia.com/gpu=0"}, (), id="CDI, second"),
        pytest.param({"cdi.k8s.io/x": "management.nvidia.com/gpu=all"}, (), id="CDI, management"),
        pytest.param({"cdi.k8s.io/x": "k8s.gpu.nvidia.com/claim=a"}, (), id="CDI, of a claim"),
        pytest.param({"cdi.k8s.io/x": "huawei.com/npu=0"}, (), id="CDI, Ascend"),
        pytest.param({"cdi.k8s.io/x": "own.example/card=0"}, (), id="CDI, this node's kind"),
        pytest.param({}, ("/var/run/nvidia-container-devices/all",), id="a list of mounts"),
        pytest.param(
            {}, ("/a", "//var//run/./nvidia-container-devices/0"), id="spelled otherwise"
        ),
        pytest.param({}, ("/run/nvidia-container-devices/all",), id="where the link leads"),
        pytest.param({}, ("/var/run/nvidia-container-devices",), id="the folder itself"),
        pytest.param({}, ("/var/run/nvidia-container-devices/cdi/nvidia.com/gpu/all",), id="both"),
    ],
)
def test_names_and_lists_of_cards_are_refused(
    annotations: dict[str, str], targets: tuple[str, ...]
) -> None:
    """On the pod or the container; a share does not open the rest of its card so."""
    place = replace(PLACE, host=replace(PLACE.host, cdi="own.example/card"))
    mounts = tuple(Mount(target, "bind", "/dev/null") for target in targets)
    named = Container("c", "p", "main", annotations=annotations, mounts=mounts)
    bare = replace(named, annotations={})
    for pod, container, rule in (
        (PLAIN, named, "NoRecord"),
        (replace(PLAIN, annotations=annotations), bare, "NoRecord"),
        (_pod(SHARE), named, "Tampered"),
        (_pod(SHARE, annotations=annotations), bare, "Tampered"),
        (_pod(SHARE, annotations=annotations), replace(bare, name="sidecar"), "Tampered"),
    ):
        found = inject(pod, container, place, ())
        assert isinstance(found, Refusal), (pod, container)
        assert found.rule == rule


def test_no_pod_names_what_the_agent_made_for_another() -> None:
    """Claims and instances have CDI names of the agent's own; only a kubelet may write a claim's, at the container."""
    for name in ("partage.io/claim=claim-u-0", "partage.io/mig=MIG-1"):
        named = {"cdi.k8s.io/x": name}
        found = inject(replace(PLAIN, annotations=named), Container("c", "p", "main"), PLACE, ())
        assert isinstance(found, Refusal)
        assert found.rule == "NoRecord"
        past = inject(_pod(SHARE, annotations=named), Container("c", "p", "main"), PLACE, ())
        assert isinstance(past, Refusal)
        assert past.rule == "Tampered"
    theirs = Container(
        "c", "p", "main", annotations={"cdi.k8s.io/x": "partage.io/claim=claim-u-0"}
    )
    assert not isinstance(inject(PLAIN, theirs, PLACE, ()), Refusal)


def test_what_has_nothing_to_do_with_cards_is_left() -> None:
    """Other CDI devices and mounts; and on a node of another vendor nothing is set that nothing asks for."""
    container = Container(
        "c",
        "p",
        "main",
        annotations={"cdi.k8s.io/x": "a.org/net=b,notnvidia.com/gpu=all"},
        env=("PATH=/bin", "NVIDIA_REQUIRE_CUDA=x", "CUDA_VISIBLE_DEVICES=0"),
        mounts=(Mount("/var/run/nvidia-container-devices-of-mine", "bind", "/data"),),
    )

    assert inject(PLAIN, container, _place("metax"), ()) is None
    found = inject(PLAIN, container, PLACE, ())
    assert isinstance(found, Injected)
    assert (found.given.env, found.removed, found.chose) == ({VISIBLE: "void"}, (), ())
    legacy = replace(container, env=("CUDA_VERSION=9.0",))
    assert isinstance(inject(PLAIN, legacy, _place("metax"), ()), Injected)


def test_namespaces_of_drivers_and_monitors_are_left_alone() -> None:
    """Their containers choose all cards, by any way; also one that the operator named."""
    container = Container(
        "c",
        "p",
        "exporter",
        annotations={"cdi.k8s.io/x": "nvidia.com/gpu=all"},
        env=(f"{VISIBLE}=all", "NVIDIA_MIG_MONITOR_DEVICES=all"),
        linux=LinuxContainer((Device("/dev/nvidia0", "c"),)),
    )
    place = replace(PLACE, exempt=frozenset({"kube-system", "gpu-operator"}))

    for namespace in ("kube-system", "gpu-operator"):
        assert inject(replace(PLAIN, namespace=namespace), container, place, ()) is None


def test_instances_of_others_are_not_configured_or_watched() -> None:
    """Variables by which NVIDIA's runtime opens the administration of instances, and memory of other nodes."""
    env = (
        "NVIDIA_MIG_CONFIG_DEVICES=all",
        "NVIDIA_MIG_MONITOR_DEVICES=all",
        "NVIDIA_IMEX_CHANNELS=0",
    )
    found = inject(PLAIN, Container("c", "p", "main", env=env), PLACE, ())

    assert isinstance(found, Injected)
    assert found.removed == tuple(one.partition("=")[0] for one in env)


def test_a_card_brings_no_network_card_and_no_switch() -> None:
    """NVIDIA's runtime adds them all to a container that has a card and sets these variables."""
    env = ("NVIDIA_MOFED=enabled", "NVIDIA_NVSWITCH=enabled", "NVIDIA_GDS=enabled")
    found = inject(_pod(SHARE), Container("c", "p", "main", env=env), PLACE, ())

    assert isinstance(found, Injected)
    assert found.given.cdi or found.given.files
    assert found.removed == ("NVIDIA_MOFED", "NVIDIA_NVSWITCH")


def test_the_proxy_reads_names_of_a_request_and_closes_as_well() -> None:
    """CDI names of a request count as annotations do; the variable is in what the runtime gets."""
    config = cri.ContainerConfig(
        cri.ContainerName("main", 0), cdi_devices=(CdiDevice("nvidia.com/gpu=all"),)
    )
    head = cri.PodConfig(cri.PodName("web", "u", "team"))
    pod, container = asked(cri.CreateRequest("p", config, head), ())
    assert isinstance(inject(pod, container, PLACE, ()), Refusal)

    request = cri.CreateRequest("p", replace(config, cdi_devices=()), head)
    pod, container = asked(request, ("CUDA_VERSION=9.0",))
    found = inject(pod, container, PLACE, ())
    assert isinstance(found, Injected)
    adjustment = Host().adjustment(found.given, found.removed, container)
    assert adjustment is not None
    sent = cri.CreateRequest.decode(edited(request.encode(), adjustment, lambda *_: ""))
    assert sent.config is not None
    assert [(one.key, one.value) for one in sent.config.envs] == [(VISIBLE, "void")]


def test_only_who_chose_cards_is_counted_and_a_worry(tmp_path: Path) -> None:
    """Every container is closed; that is no news of those that asked for nothing."""
    keeper = Keeper(lambda: PLACE, Host(), Journal(tmp_path), Tallies())
    keeper.create(PLAIN, Container("c1", "p", "main"))
    assert b'injected_total{limits="whole"}' not in generate_latest(keeper.tallies.registry)
    keeper.create(PLAIN, Container("c2", "p", "main", env=("CUDA_VERSION=9.0",)))
    assert b'injected_total{limits="whole"} 1.0' in generate_latest(keeper.tallies.registry)

    keeper.synchronize(
        (PLAIN,),
        (
            Container("c1", "p", "main", 3),
            Container("c2", "p", "closed", 3, env=("CUDA_VERSION=9.0", f"{VISIBLE}=void")),
            Container("c3", "p", "legacy", 3, env=("CUDA_VERSION=9.0",)),
            Container("c4", "p", "all", 3, env=(f"{VISIBLE}=all",)),
        ),
    )
    assert {one.container: one.why for one in keeper.unprotected.values()} == {
        "legacy": "it chose its cards itself, by variable CUDA_VERSION",
        "all": f"it chose its cards itself, by variable {VISIBLE}",
    }
