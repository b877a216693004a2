"""What docs/how-to/first-card.md tries in its last forty minutes: a card is shared by pods, from the manifest to the kernel on the card.

API server, kube-scheduler with the plugin, kubelet, containerd, CDI, agent and library are genuine. So are driver and card
where this machine has an NVIDIA card and NVIDIA's container toolkit, which describes the driver's files to the runtime;
nothing is changed on the card, and other work on it makes the rates wrong. Everywhere the modelled card stands for it.

    PARTAGE_CLUSTER=1 .venv/bin/python -m pytest -n 0 -s tests/cluster/test_a_card_is_shared_from_manifest_to_kernel.py
"""

import importlib.util
import json
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import kubelet
import pytest
import stack as partage_stack
from genuine_node import LAYOUT, SLOW, Node, added, admitted, complete, containerd, granted, says
from genuine_node import container as busybox
from genuine_node import pod as plain_pod
from stack import eventually

from native_build import ROOT, built
from partage.vendors import names

sys.path.append(str(ROOT / "bench"))
import gpu

_T = TypeVar("_T")
CTK, HOOK = "nvidia-ctk", "nvidia-cdi-hook"
GPU = "nvidia.com/gpu"
IMAGE = "localhost/card:test"
MIB, GIB = 2**20, 2**30
MODELLED, TOTAL = "GPU-fafafafa-fafa-fafa-fafa-fafafafafa00", 140 * GIB
"""The modelled card."""
PROGRAMS = ("load", "memory")
OPTIONS = "agent.isolation.compute=true,agent.evictUnprotected=false,agent.cdiKind=nvidia.com/gpu"
SECONDS = 5
"""That tenants work side by side."""
POINTS = 3
"""By which their rates may miss their quotas, in percent of the rate alone: the page's own bound."""
TORCH = """
import time, torch
a = torch.randn(4096, 4096, device="cuda", dtype=torch.float16)
free, total = torch.cuda.mem_get_info()
held = []
try:
    while True: held.append(torch.empty(256 * 2**20, dtype=torch.uint8, device="cuda"))
except torch.cuda.OutOfMemoryError: pass
(a @ a).sum().item()
print("total", total, "held", len(held) * 256 * 2**20)
"""


def lacking() -> str:
    """What keeps a real card from being shared here, in one line; empty when nothing does."""
    if not Path("/dev/nvidia0").exists():
        return "no NVIDIA card is in this machine"
    absent = [name for name in (CTK, HOOK) if not shutil.which(name)]
    return f"{', '.join(absent)} not installed" if absent else ""


pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(
        bool(containerd.missing() or kubelet.missing() or not shutil.which("gcc")),
        reason=containerd.missing() or kubelet.missing() or "gcc is missing",
    ),
]


def linked(*files: Path) -> dict[str, Path | bytes]:
    """The system's libraries that files are linked to, by their place in an image."""
    found: dict[str, Path | bytes] = {}
    for at in range(0, len(files), 64):
        command = [shutil.which("ldd") or "ldd", *map(str, files[at : at + 64])]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        for word in done.stdout.split():
            if word.startswith(("/lib", "/usr/lib")) and ".so" in word and not word.endswith(":"):
                found[word.lstrip("/")] = Path(word)
    return found


def driver_folder() -> str:
    """Where the driver's library is, as images of NVIDIA name it to the loader."""
    known = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True)
    (place, *_) = [
        line.split()[-1] for line in known.stdout.splitlines() if "libcuda.so.1 " in line
    ]
    return str(Path(place).resolve().parent)


def python_files() -> dict[str, Path | bytes]:
    """This interpreter and its standard library; PyTorch itself is mounted, as it is large."""
    program, library = Path(sys.executable).resolve(), Path(sysconfig.get_path("stdlib"))
    files: dict[str, Path | bytes] = {
        str(one).lstrip("/"): one
        for one in library.rglob("*")
        if one.is_file() and "test" not in one.parts and "__pycache__" not in one.parts
    }
    loaded = [*library.rglob("lib-dynload/*.so"), *Path(sys.prefix).rglob("torch/lib/*.so")]
    loaded += Path(sys.prefix).rglob("nvidia/**/lib/*.so*")
    return files | linked(program, *loaded) | {str(program).lstrip("/"): program}


def with_torch() -> bool:
    """Whether this interpreter has PyTorch in a folder of its own."""
    return importlib.util.find_spec("torch") is not None and sys.prefix != "/usr"


@dataclass(frozen=True)
class Machine:
    """Where the driver is, and what the agent and containers need to find it.

    Attributes:
        root: the host's files, as the agent sees them.
        options: further ones of the agent.
        environment: of the agent.
        driver: folder of the driver's library, in containers.
    """

    root: Path
    options: tuple[str, ...]
    environment: dict[str, str]
    driver: str


def real(described: Path) -> Machine:
    """The machine's own card, which NVIDIA's container toolkit describes."""
    command = [CTK, "cdi", "generate", "--device-name-strategy=uuid", f"--output={described}"]
    subprocess.run([*command, f"--nvidia-cdi-hook-path={shutil.which(HOOK)}"], check=True)
    return Machine(Path("/"), (), {}, driver_folder())


def modelled(described: Path, folder: Path, native: Path, cleanup: ExitStack) -> Machine:
    """The modelled card with the stand-ins for the driver's libraries."""
    (folder / "gpu").mkdir()
    command = [str(native / "fake-card"), str(folder / "gpu/card"), "1", str(TOTAL)]
    process = cleanup.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE))
    cleanup.callback(process.kill)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    root, library = folder / "host", folder / "nvml/libnvidia-ml.so.1"
    for one in (root / "dev", library.parent):
        one.mkdir(parents=True)
    for minor, name in enumerate(("nvidia0", "nvidiactl")):
        os.mknod(root / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(1, 3 + 2 * minor))
    (root / folder.parts[1]).symlink_to(f"/{folder.parts[1]}")
    source = ROOT / "tests/agent/nvml_card.c"
    soname = "-Wl,-soname,libnvidia-ml.so.1"
    subprocess.run(["gcc", "-shared", "-fPIC", soname, "-o", library, source], check=True)  # noqa: S607
    cards = library.with_name("cards")
    cards.write_text(f"0 0 {MODELLED} NVIDIA_H200 {TOTAL} 00000000:3B:00.0 2 0 233510de\n")
    edits = {
        "env": ["FAKE_GPU_SOCKET=/gpu/card"],
        "mounts": [
            {"hostPath": str(host), "containerPath": inside, "options": ["ro", "bind"]}
            for host, inside in ((native / "fake", "/driver"), (folder / "gpu", "/gpu"))
        ],
    }
    device = {"name": MODELLED, "containerEdits": edits}
    spec = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": [device]}
    described.write_text(json.dumps(spec))
    return Machine(root, ("--library", str(library.parent)), {"FAKE_NVML": str(cards)}, "/driver")


@dataclass
class Card:
    """A node with a card, as an operator installs it."""

    node: Node
    machine: Machine
    is_real: bool
    provider: str

    def needs(self, provider: str = "partage", *, real: bool = False) -> None:
        """Leave a test out that says nothing of this one."""
        if self.provider != provider:
            pytest.skip(f"this is about the provider {provider}")
        if real and not self.is_real:
            pytest.skip("rates and frameworks need a real card: see bench/isolation.py")


ON_A_CARD = pytest.mark.skipif(bool(lacking()), reason=lacking() or "never")


@pytest.fixture(
    scope="module",
    params=[
        "modelled partage",
        pytest.param("real partage", marks=ON_A_CARD),
        pytest.param("real mps", marks=ON_A_CARD),
    ],
)
def card(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Card]:
    """The node, its cluster, and an agent; sockets need short paths."""
    native = built()
    folder = Path(tempfile.mkdtemp(prefix="ptg"))
    kind, provider = request.param.split()
    is_real = kind == "real"
    options = f"{OPTIONS},agent.isolation.provider={provider}"
    layout = replace(LAYOUT, plugged=True, options=(*LAYOUT.options, "--set", options))
    try:
        with (
            partage_stack.stack(tmp_path_factory.mktemp("cluster"), layout=layout) as stack,
            ExitStack() as cleanup,
        ):
            node = added("cuda", "2.1", stack, folder, cleanup)
            (folder / "cuda/nri.sock").symlink_to(node.runtime.nri)
            described = node.runtime.folder / "cdi/nvidia.json"
            machine = real(described) if is_real else modelled(described, folder, native, cleanup)
            programs = {f"bin/{one}": native / one for one in PROGRAMS}
            files = programs | linked(*programs.values())
            files |= python_files() if is_real and with_torch() else {}
            containerd.write_image(folder / "more.tar", files, IMAGE)
            done = node.runtime.ctr("image", "import", str(folder / "more.tar"))
            assert done.returncode == 0, done.stderr
            with pytest.MonkeyPatch.context() as patch:
                for name, value in machine.environment.items():
                    patch.setenv(name, value)
                stack.agent(
                    node.name,
                    "--host-root", str(machine.root),
                    "--journal", str(folder / "journal"),
                    "--kubelet-dir", str(node.kubelet.folder),
                    "--period", "0.5",
                    "--nri-socket", str(folder / "cuda/nri.sock"),
                    "--mps-dir", str(folder / "mps"),
                    "--isolation-library", str(native / "libpartage-isolation.so"),
                    "--isolation-dir", str(folder / "isolation"),
                    *machine.options,
                )  # fmt: skip
            complete(node)
            eventually("the kubelet offers shares", lambda: node.offers(GPU) != "0", SLOW)
            yield Card(node, machine, is_real, provider)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def pod(card: Card, name: str, limits: dict[str, str], **annotations: str) -> dict[str, Any]:
    """A pod that idles, with the test's programs, and PyTorch where there is one."""
    python = {"name": "python", "mountPath": sys.prefix, "readOnly": True}
    mounts = [python] if card.is_real and with_torch() else []
    main = {
        **busybox("main", limits),
        "image": IMAGE,
        "env": [{"name": "LD_LIBRARY_PATH", "value": card.machine.driver}],
        "volumeMounts": mounts,
    }
    volumes = [{"name": one["name"], "hostPath": {"path": sys.prefix}} for one in mounts]
    return plain_pod(name, main, annotations=annotations, volumes=volumes)


def share(card: Card, name: str, core: int, memory: int) -> dict[str, Any]:
    """A pod with a fixed share by HAMi's names: percent of compute, GiB of memory. qGPU's know no Hopper."""
    limits = {GPU: "1", f"{GPU}cores": str(core), f"{GPU}mem": str(memory * 1024)}
    return pod(card, name, limits, **{names.COMPUTE_POLICY: "fixed-share"})


def gone(node: Node, *pods: str, grace: int = 1) -> None:
    """Delete pods, and wait until they are away."""
    base = "/api/v1/namespaces/default/pods"
    for name in pods:
        node.stack.plane.call("DELETE", f"{base}/{name}?gracePeriodSeconds={grace}")
    for name in pods:
        eventually(f"{name} is gone", partial(_is_gone, node, name), SLOW)


def started(card: Card, manifest: dict[str, Any]) -> Any:
    """The pod, once it runs.

    Raises:
        AssertionError: it does not in time; says what `explain` says.
    """
    try:
        return admitted(card.node.stack, manifest)
    except AssertionError as error:
        said = explained(card.node, manifest["metadata"]["name"])
        raise AssertionError(f"{error}\n{said}") from error


def _is_gone(node: Node, name: str) -> bool:
    return node.stack.pod(name) is None


def reader(node: Node) -> str:
    """A token of an account that may see pods."""
    plane, space = node.stack.plane, "/api/v1/namespaces/default/serviceaccounts"
    plane.call("POST", space, {"metadata": {"name": "reader"}})
    subject = {"kind": "ServiceAccount", "name": "reader", "namespace": "default"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "view"}
    body = {"metadata": {"name": "reader"}, "roleRef": role, "subjects": [subject]}
    plane.call("POST", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings", body)
    made = plane.call("POST", f"{space}/reader/token", {"spec": {}})
    return str(made["status"]["token"])


def explained(node: Node, name: str) -> str:
    """What `partage explain` prints of a pod, asked with the administrator's kubeconfig."""
    config = str(node.stack.plane.kubeconfig())
    token = node.kubelet.folder.parent / "token"
    if not token.exists():
        token.write_text(reader(node))
    service = ["--scheduler", node.stack.scheduler, "--token-file", str(token)]
    command = [sys.executable, "-m", "partage.cli.main", "explain", name, *service]
    done = subprocess.run(
        [*command, "--kubeconfig", config], capture_output=True, text=True, check=False, timeout=60
    )
    return done.stdout + done.stderr


def side_by_side(work: Callable[[Any], _T], pods: Collection[Any]) -> list[_T]:
    """What each pod's work gives, all at the same time."""
    with ThreadPoolExecutor(len(pods)) as pool:
        return [*pool.map(work, pods)]


def launched(node: Node, found: Any, size: int, seconds: int) -> str:
    """What a pod's program says that launches kernels all the time."""
    command = ["--kernel", "mul", "--size", str(size), "--seconds", str(seconds)]
    return says(node, found, "main", "/bin/load", *command, "--report", "5", "--depth", "6")


def filled(node: Node, found: Any) -> int:
    """Bytes that a pod's program gets until it is refused."""
    said = says(node, found, "main", "/bin/memory", "plain", str(64 * MIB)).splitlines()
    return int(next(line for line in said if line.startswith("total")).split()[1])


def rates(node: Node, size: int, *pods: Any) -> list[float]:
    """Launches each second of pods that work side by side, over the time in which all do."""
    said = side_by_side(partial(launched, node, size=size, seconds=SECONDS), pods)
    series = [gpu.reports(one) for one in said]
    begin, end = max(one[0][0] for one in series), min(one[-1][0] for one in series)
    t0, t1 = begin + (end - begin) // 5, end - (end - begin) // 10
    return [(gpu.at(one, t1) - gpu.at(one, t0)) * 1e9 / (t1 - t0) for one in series]


def in_force(node: Node, name: str) -> bool:
    """Whether the pod's condition says that its limits are kept."""
    conditions = node.stack.pod(name)["status"]["conditions"]
    return any(
        one["type"] == names.LIMITS_CONDITION and one["status"] == "True" for one in conditions
    )


def test_pods_of_two_protocols_fill_their_memory_on_one_card(card: Card) -> None:
    """Each gets what its record says to the granule, its limits are in force, and the card holds both at once."""
    card.needs()
    asked = {
        "koordinator": {"koordinator.sh/gpu-core": "20", "koordinator.sh/gpu-memory-ratio": "20"},
        "hami": {GPU: "1", f"{GPU}mem": "40000", f"{GPU}cores": "30"},
    }
    found = {name: started(card, pod(card, name, limits)) for name, limits in asked.items()}
    grants = {name: granted(one, "main") for name, one in found.items()}

    totals = side_by_side(partial(filled, card.node), found.values())

    for (name, grant), got in zip(grants.items(), totals, strict=True):
        print(f"\n{name}: granted {grant.memory_bytes / MIB:.0f} MiB, got {got / MIB:.0f}")  # noqa: T201 # a measurement
        assert grant.memory_bytes - 700 * MIB <= got <= grant.memory_bytes, name
        eventually(f"{name} is in force", partial(in_force, card.node, name), SLOW)
        said = explained(card.node, name)
        print(said)  # noqa: T201 # as users read it
        assert "in force" in said
    gone(card.node, *asked)


def test_fixed_shares_get_their_part_of_the_card(card: Card) -> None:
    """30 and 70 percent beside each other, against one that has the whole card to itself."""
    card.needs(real=True)
    whole = started(card, pod(card, "whole", {GPU: "1", f"{GPU}cores": "100"}))
    first = rates(card.node, 2000, whole)[0]
    size = max(1, int(2000 * first / 1000))  # launches of a millisecond
    (alone,) = rates(card.node, size, whole)
    gone(card.node, "whole")
    small, large = (started(card, share(card, f"q{core}", core, 30)) for core in (30, 70))

    parts = [100 * one / alone for one in rates(card.node, size, small, large)]

    print(f"\nfixed-share 30/70: {parts[0]:.1f} / {parts[1]:.1f} percent of {alone:.0f}/s alone")  # noqa: T201 # a measurement
    assert abs(parts[0] - 30) <= POINTS
    assert abs(parts[1] - 70) <= POINTS
    gone(card.node, "q30", "q70")


def test_the_third_waits_and_takes_the_place_of_one_that_is_killed(card: Card) -> None:
    """It says why it waits; the neighbour of the killed one goes on; the place is free at once."""
    card.needs()
    asked = {GPU: "1", f"{GPU}cores": "50", f"{GPU}mem-percentage": "45"}
    asks = {name: pod(card, name, asked) for name in ("one", "two", "three")}
    first, second = (started(card, asks[name]) for name in ("one", "two"))
    card.node.stack.create(asks["three"])
    eventually("the third waits", lambda: card.node.stack.events("three"), SLOW)
    said = explained(card.node, "three")
    print(said)  # noqa: T201 # as users read it
    assert "InsufficientMemory" in said
    assert not card.node.stack.pod("three")["spec"].get("nodeName")
    with ThreadPoolExecutor(2) as pool:
        killed = pool.submit(launched, card.node, first, 2000, 60)
        neighbour = pool.submit(launched, card.node, second, 2000, 12)
        gone(card.node, "one", grace=0)
        running = eventually("the third runs", lambda: _runs(card.node, "three"), SLOW)
        got = filled(card.node, running)
        killed.exception()  # it ended with its pod, whatever the runtime says to that

    assert got > granted(running, "main").memory_bytes - GIB
    assert len(gpu.reports(neighbour.result())) > 10
    gone(card.node, "two", "three")


def _runs(node: Node, name: str) -> Any:
    found = node.stack.pod(name)
    return found if found["status"].get("phase") == "Running" else None


def test_pytorch_sees_its_share_as_the_card(card: Card) -> None:
    """It goes on at its cap, as on a card that is full."""
    card.needs(real=True)
    if not with_torch():
        pytest.skip("this interpreter has no PyTorch")
    found = started(card, share(card, "torch", 30, 20))

    said = says(card.node, found, "main", f"{sys.prefix}/bin/python3", "-c", TORCH).split()

    grant = granted(found, "main")
    told = dict(zip(said[::2], map(int, said[1::2]), strict=True))
    print(f"\nPyTorch: {json.dumps(told)} of {grant.memory_bytes}")  # noqa: T201 # a measurement
    assert told["total"] == grant.memory_bytes
    assert grant.memory_bytes - 2 * GIB < told["held"] <= grant.memory_bytes
    eventually("its limits are in force", lambda: in_force(card.node, "torch"), SLOW)
    gone(card.node, "torch")


def test_a_share_that_is_raised_gets_more_of_the_card(card: Card) -> None:
    """From the annotation to the driver's answer, while its container runs; lowered, it gets no more than before."""
    card.needs()
    found = started(card, share(card, "grows", 20, 10))
    got = []
    for memory in (10, 40, 20):
        wish = {"metadata": {"annotations": {names.ADJUST: f"compute=20,memory={memory}Gi"}}}
        path = "/api/v1/namespaces/default/pods/grows"
        card.node.stack.plane.call("PATCH", path, wish, kind=partage_stack.MERGE)
        eventually(f"{memory} GiB are in force", partial(_shows, card, found, memory), SLOW)
        got.append(filled(card.node, found) / GIB)

    print("\nadjusted to 10, 40, 20 GiB:", *(f"{one:.1f}" for one in got))  # noqa: T201 # a measurement
    assert all(0 <= memory - one < 1 for memory, one in zip((10, 40, 20), got, strict=True)), got
    gone(card.node, "grows")


def _shows(card: Card, found: Any, memory: int) -> bool:
    """Whether a program is shown so many GiB as the card's memory."""
    said = says(card.node, found, "main", "/bin/memory", "show", "1", "dlsym")
    return f"info {memory * GIB} " in said


def test_by_mps_a_share_gets_its_memory_and_no_more(card: Card) -> None:
    """NVIDIA's Multi-Process Service, which the agent starts, refuses beyond the grant; a neighbour has its own."""
    card.needs("mps", real=True)
    pods = {name: started(card, share(card, name, 30, 20)) for name in ("first", "second")}

    got = side_by_side(partial(filled, card.node), pods.values())

    print("\nby MPS, of 20 GiB:", *(f"{one / GIB:.2f}" for one in got))  # noqa: T201 # a measurement
    print(explained(card.node, "first"))  # noqa: T201 # as users read it
    assert all(18 * GIB < one <= 20 * GIB for one in got), got
    gone(card.node, *pods)
