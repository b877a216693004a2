"""ResourceClaims with nothing between that is not genuine: API server, kube-scheduler, kubelet, containerd.

The agent's cards are simulated, as in the file of its simulated backend. A stand-in of NVIDIA's library reports a card
that is cut; all other cards that can be cut are slices alone, of nodes that have no kubelet.
"""

import asyncio
import json
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import stack as partage_stack
import yaml
from claims_node import (
    API,
    CAPABILITIES,
    CLAIMS,
    DRA,
    PODS,
    OnCard,
    allocated,
    claim,
    cutting,
    devices,
    dgx,
    empty,
    half,
    identity,
    offering,
    on_card,
    prepared,
    slices,
    user,
)
from genuine_node import (
    NEEDS,
    SLOW,
    Node,
    admitted,
    container,
    cri,
    environment,
    granted,
    pod,
    running,
    says,
)
from page_blocks import BLOCKS
from stack import Stack, eventually

import partage
from partage.agent.discovery.found import Inventory
from partage.agent.dra.publishing import Publisher
from partage.agent.metrics import Tallies
from partage.agent.notes import Notes
from partage.kube.client import Client
from partage.kube.loading import load_config
from partage.model import node as model
from partage.model.policy import Policy
from partage.model.quantity import Quantity
from partage.sim.claims import ClaimAllocator
from partage.sim.offline import queue, started
from partage.wire import shapes
from partage.wire.cluster import assemble
from partage.wire.documents import decode

pytestmark = NEEDS


EITHER = "devicePlugin.nodeConfiguration[0].name=cut,devicePlugin.nodeConfiguration[0].operatingmode=either"


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node of two cards whose agent offers them to claims."""
    layout = replace(DRA, options=(*DRA.options, "--set", EITHER))
    with offering(tmp_path_factory.mktemp("cluster"), layout=layout) as made:
        yield made


@pytest.fixture(autouse=True)
def emptied(cuda: Node) -> Iterator[None]:
    """Leave nothing behind."""
    yield
    empty(cuda)


def unschedulable(stack: Stack, name: str) -> str:
    """Why a pod is not scheduled; empty while its status has no reason."""
    conditions = stack.pod(name)["status"].get("conditions", [])
    return next((one.get("message", "") for one in conditions if one["status"] == "False"), "")


def answered(stack: Stack, name: str) -> object:
    """Whether a pod was placed, or its status says why not."""
    return stack.pod(name)["spec"].get("nodeName") or unschedulable(stack, name)


def test_a_container_has_the_share_that_the_scheduler_allocated(cuda: Node) -> None:
    """It has the card and limits, and no mark; a third claim waits until one is released."""
    stack = cuda.stack
    for name in ("first", "second", "third"):
        claim(stack, name, **half(60, "4Gi"))
    for name in ("first", "second"):
        stack.create(user(name, name))
    cards = {}
    for name in ("first", "second"):
        found = running(stack, name)
        result = allocated(stack, name)
        minor = int(result["device"].removeprefix("gpu-"))
        seen = environment(cuda, found, "main")
        (uuid,) = [one for one, number in cuda.cards().items() if number == minor]
        assert seen["NVIDIA_VISIBLE_DEVICES"] == uuid
        assert seen["CUDA_DEVICE_MEMORY_LIMIT_0"] == "4096m"
        assert seen["CUDA_DEVICE_SM_LIMIT"] == "60"
        assert not any(value for key, value in seen.items() if key.startswith("PARTAGE_DEVICES_"))
        assert f"nvidia{minor}" in says(cuda, found, "main", "ls", "/dev").split()
        assert f"nvidia{1 - minor}" not in says(cuda, found, "main", "ls", "/dev").split()
        assert result["consumedCapacity"] == {"cores": "60", "memory": "4Gi", "sharers": "1"}
        cards[name] = minor
    assert sorted(cards.values()) == [0, 1]
    stack.create(user("third", "third"))
    eventually("the third waits", lambda: "claim" in unschedulable(stack, "third"), SLOW)
    stack.plane.call("DELETE", f"{PODS}/first?gracePeriodSeconds=1")
    eventually(
        "the first is gone",
        lambda: (
            "first"
            not in [one["metadata"]["name"] for one in stack.plane.call("GET", PODS)["items"]]
        ),
        SLOW,
    )
    stack.plane.call("DELETE", f"{CLAIMS}/first")
    running(stack, "third")
    assert allocated(stack, "third")["device"] == f"gpu-{cards['first']}"


def test_pods_of_a_protocol_and_claims_share_the_cards(cuda: Node) -> None:
    """No claim is offered what a pod holds, and no pod gets what a claim holds, until it is released."""
    stack = cuda.stack
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "12000", "nvidia.com/gpucores": "10"}
    minor = granted(admitted(stack, pod("named", container("main", limits))), "main").minor

    def offers() -> str:
        return str(devices(stack, "cuda")[f"gpu-{minor}"]["capacity"]["memory"]["value"])

    eventually("its share is not offered", lambda: offers() == "4384Mi", SLOW)
    claim(stack, "other", **half(10, "8Gi"))
    stack.create(user("claims", "other"))
    running(stack, "claims")
    assert allocated(stack, "other")["device"] == f"gpu-{1 - minor}"
    late = pod("late", container("main", limits))
    stack.create(late)
    eventually(
        "it waits",
        lambda: "8Gi" in unschedulable(stack, "late") or "card" in unschedulable(stack, "late"),
        SLOW,
    )
    stack.delete("claims")
    eventually("the claim's pod is gone", lambda: stack.pod("claims") is None, SLOW)
    stack.plane.call("DELETE", f"{CLAIMS}/other")
    assert granted(running(stack, "late"), "main").minor == 1 - minor
    for name in ("named", "late"):
        stack.delete(name)
    eventually("all is offered again", lambda: offers() == "16Gi", SLOW)


def test_a_claim_and_three_protocols_share_one_card(cuda: Node) -> None:
    """Each container has its own limits and the card's file, and the slice says what pods leave of the card."""
    stack = cuda.stack
    claim(stack, "whole", **half(100, "16Gi"))
    stack.create(user("whole", "whole"))
    running(stack, "whole")  # all others go to the other card
    claim(stack, "part", **half(20, "2Gi"))
    asked = {
        "koordinator": {"koordinator.sh/gpu-core": "20", "koordinator.sh/gpu-memory-ratio": "20"},
        "qgpu": {
            "tke.cloud.tencent.com/qgpu-core": "20",
            "tke.cloud.tencent.com/qgpu-memory": "4",
        },
        "hami": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"},
    }
    for name, limits in asked.items():
        stack.create(pod(name, container("main", limits)))
    stack.create(user("part", "part"))

    found = {name: running(stack, name) for name in (*asked, "part")}

    (minor,) = {granted(found[name], "main").minor for name in asked}
    assert allocated(stack, "part")["device"] == f"gpu-{minor}"
    assert allocated(stack, "whole")["device"] == f"gpu-{1 - minor}"
    seen = {name: environment(cuda, one, "main") for name, one in found.items()}
    for variable, values in {
        "CUDA_DEVICE_MEMORY_LIMIT_0": ["3276m", "4096m", "3000m", "2048m"],
        "CUDA_DEVICE_SM_LIMIT": ["20", "20", "30", "20"],
    }.items():
        assert [one[variable] for one in seen.values()] == values
    for one in found.values():
        files = set(says(cuda, one, "main", "ls", "/dev").split())
        assert files & {"nvidia0", "nvidia1"} == {f"nvidia{minor}"}
    eventually(
        "the slice says what pods leave",
        lambda: devices(stack, "cuda")[f"gpu-{minor}"]["capacity"]["cores"]["value"] == "30",
        SLOW,
    )
    for name in asked:
        stack.delete(name)
    eventually(
        "all is offered again",
        lambda: devices(stack, "cuda")[f"gpu-{minor}"]["capacity"]["memory"]["value"] == "16Gi",
        SLOW,
    )


def test_shares_go_to_the_card_with_the_least_room(cuda: Node) -> None:
    """The allocator takes the first card that fits; in the order of their numbers the last of these four fits nowhere."""
    stack = cuda.stack

    def card_of(eighths: int) -> str:
        name = f"eighths-{eighths}"
        claim(stack, name, **half(eighths * 12, f"{eighths * 2}Gi"))
        stack.create(user(name, name))
        running(stack, name)
        return str(allocated(stack, name)["device"])

    emptier, fuller = card_of(2), card_of(7)
    assert emptier != fuller
    eventually("it comes first", lambda: next(iter(devices(stack, "cuda"))) == fuller, SLOW)
    assert card_of(1) == fuller
    assert card_of(6) == emptier


def test_with_the_leader_away_claims_of_ours_wait_and_no_others(cuda: Node) -> None:
    """The API server asks it before it stores an allocation of our driver, and about nothing else."""
    stack = cuda.stack
    theirs = "gpu.example.com"
    away = stack.plane.processes[stack.layout.pod]
    slice_ = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceSlice",
        "metadata": {"name": "theirs"},
        "spec": {
            "driver": theirs,
            "nodeName": "cuda",
            "devices": [{"name": "one"}],
            "pool": {"name": "theirs", "generation": 1, "resourceSliceCount": 1},
        },
    }
    class_ = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "DeviceClass",
        "metadata": {"name": theirs},
        "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{theirs}'"}}]},
    }
    stack.plane.call("POST", f"{API}/resourceslices", slice_)
    stack.plane.call("POST", f"{API}/deviceclasses", class_)
    away.stop()
    try:
        claim(stack, "theirs", deviceClassName=theirs)
        claim(stack, "ours", **half(10, "1Gi"))
        for name in ("ours", "theirs"):
            stack.create(user(name, name))
        eventually("theirs is placed", lambda: stack.pod("theirs")["spec"].get("nodeName"), SLOW)
        eventually(
            "ours is not stored",
            lambda: any("claims.partage.io" in one["message"] for one in stack.events("ours")),
            SLOW,
        )
        assert not stack.plane.call("GET", f"{CLAIMS}/ours").get("status", {}).get("allocation")
    finally:
        away.start()
        for path in ("resourceslices/theirs", f"deviceclasses/{theirs}"):
            stack.plane.call("DELETE", f"{API}/{path}")
    running(stack, "ours")


def test_the_pod_of_the_guide_runs(cuda: Node) -> None:
    """It is as printed, except the image, which no registry gives here, and mounts that a bare kubelet cannot make."""
    stack = cuda.stack
    page = next(one for one in BLOCKS if one.page == "docs/how-to/use-resource-claims.md")
    template, wanted = yaml.safe_load_all(page.text)
    path = f"{API}/namespaces/default/resourceclaimtemplates"
    stack.plane.call("POST", path, template)
    try:
        (main,) = wanted["spec"]["containers"]
        main |= {"image": cri.IMAGE, "imagePullPolicy": "Never", "command": ["sleep", "1000"]}
        bare = pod("unused", main)["spec"]
        wanted["spec"] = {**bare, **wanted["spec"]}
        stack.create(wanted)
        seen = environment(cuda, running(stack, wanted["metadata"]["name"]), "main")
        assert seen["CUDA_DEVICE_MEMORY_LIMIT_0"] == "8192m"
        assert seen["CUDA_DEVICE_SM_LIMIT"] == "50"
    finally:
        stack.plane.call("DELETE", f"{path}/{template['metadata']['name']}")


def test_each_pod_of_a_deployment_has_a_claim_of_its_own(cuda: Node) -> None:
    """Made from the template with the pod, given up with it: rolled, scaled down, and deleted."""
    plane = cuda.stack.plane
    templates = f"{API}/namespaces/default/resourceclaimtemplates"
    deployments = "/apis/apps/v1/namespaces/default/deployments"
    request = {
        "name": "card",
        "exactly": {"deviceClassName": "share.gpu.partage.io", **half(50, "8Gi")},
    }
    plane.call(
        "POST",
        templates,
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": "halves"},
            "spec": {"spec": {"devices": {"requests": [request]}}},
        },
    )
    main = container("main", {})
    main["resources"] = {"claims": [{"name": "card"}]}
    named = [{"name": "card", "resourceClaimTemplateName": "halves"}]
    labels = {"app": "halves"}
    deployment: dict[str, Any] = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "halves"},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": labels},
            "strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            "template": {
                "metadata": {"labels": labels},
                "spec": pod("unused", main, resourceClaims=named)["spec"],
            },
        },
    }

    def names() -> list[str]:
        listed = plane.call("GET", PODS)["items"]
        return [
            one["metadata"]["name"] for one in listed if "deletionTimestamp" not in one["metadata"]
        ]

    def shares() -> dict[str, str]:
        """Devices by pod, of pods that run; with what their containers were given."""
        found = {}
        for name in names():
            seen = environment(cuda, running(cuda.stack, name), "main")
            assert (seen["CUDA_DEVICE_MEMORY_LIMIT_0"], seen["CUDA_DEVICE_SM_LIMIT"]) == (
                "8192m",
                "50",
            )
            (status,) = cuda.stack.pod(name)["status"]["resourceClaimStatuses"]
            device = allocated(cuda.stack, status["resourceClaimName"])["device"]
            files = set(says(cuda, running(cuda.stack, name), "main", "ls", "/dev").split())
            cards = {f"gpu-{minor}": f"nvidia{minor}" for minor in (0, 1)}
            assert files & set(cards.values()) == {cards[device]}
            found[name] = device
        return found

    def claims() -> int:
        return len(plane.call("GET", CLAIMS)["items"])

    plane.call("POST", deployments, deployment)
    try:
        eventually("three pods are there", lambda: len(names()) == 3, SLOW)
        before = shares()
        assert sorted(Counter(before.values()).values()) == [1, 2]  # of two cards
        assert claims() == 3

        deployment["spec"]["template"]["spec"]["containers"][0]["env"] = [
            {"name": "ROUND", "value": "2"}
        ]
        plane.call("PUT", f"{deployments}/halves", deployment)
        eventually("all pods are others", lambda: not set(names()) & set(before), SLOW)
        eventually("three pods are there", lambda: len(names()) == 3, SLOW)
        assert sorted(Counter(shares().values()).values()) == [1, 2]

        deployment["spec"]["replicas"] = 1
        plane.call("PUT", f"{deployments}/halves", deployment)
        eventually("one claim is left", lambda: claims() == 1 and len(prepared(cuda)) <= 2, SLOW)
    finally:
        plane.call("DELETE", f"{deployments}/halves?propagationPolicy=Foreground")
        plane.call("DELETE", f"{templates}/halves")
    eventually("no claim is left", lambda: claims() == 0, SLOW)


def test_a_claim_without_amounts_is_the_whole_card_and_pods_may_share_it(cuda: Node) -> None:
    """The usual meaning of a claim that names a device alone."""
    stack = cuda.stack
    claim(stack, "whole")
    for name in ("one", "other"):
        stack.create(user(name, "whole"))
    seen = [environment(cuda, running(stack, name), "main") for name in ("one", "other")]
    assert len({one["NVIDIA_VISIBLE_DEVICES"] for one in seen}) == 1
    assert allocated(stack, "whole")["consumedCapacity"] == {
        "cores": "100",
        "memory": "16Gi",
        "sharers": "1",
    }


def test_selectors_choose_by_what_is_known_of_a_card(cuda: Node) -> None:
    """CEL of the genuine scheduler over our attributes."""
    stack = cuda.stack
    one = devices(stack, "cuda")["gpu-1"]["attributes"]
    assert one["productName"] == {"string": "Tesla T4"}
    uuid = one["uuid"]["string"]
    text = (
        f'device.attributes["gpu.partage.io"].uuid == "{uuid}" '
        '&& device.attributes["gpu.partage.io"].driverVersion.isGreaterThan(semver("500.0.0")) '
        '&& device.capacity["gpu.partage.io"].memory.compareTo(quantity("10Gi")) > 0'
    )
    claim(stack, "chosen", selectors=[{"cel": {"expression": text}}], **half(1, "1Gi"))
    stack.create(user("chooser", "chosen"))
    running(stack, "chooser")
    assert allocated(stack, "chosen")["device"] == "gpu-1"


def test_an_ill_card_is_marked_and_given_to_nobody_new(cuda: Node) -> None:
    """Its pod keeps running, and its status says that the device is unhealthy."""
    stack = cuda.stack
    claim(stack, "holds", **half(10, "1Gi"))
    stack.create(user("holder", "holds"))
    running(stack, "holder")
    device = allocated(stack, "holds")["device"]
    minor = device.removeprefix("gpu-")
    try:
        cuda.hardware(f"{minor}=fell off")
        eventually("the slice says so", lambda: "taints" in devices(stack, "cuda")[device], SLOW)
        claim(stack, "late", **half(10, "1Gi"))
        stack.create(user("late", "late"))
        running(stack, "late")
        assert allocated(stack, "late")["device"] != device

        def told() -> bool:
            (status,) = stack.pod("holder")["status"]["containerStatuses"]
            return "Unhealthy" in json.dumps(status.get("allocatedResourcesStatus", []))

        eventually("the pod's status says so", told, SLOW)
    finally:
        cuda.hardware()
    eventually("and not any more", lambda: "taints" not in devices(stack, "cuda")[device], SLOW)


def test_claims_outlive_the_agent_and_the_kubelet(cuda: Node) -> None:
    """Both are restarted; what was prepared is still counted, and is unprepared when its pod goes."""
    stack = cuda.stack
    claim(stack, "lasting", **half(90, "1Gi"))
    stack.create(user("lasting", "lasting"))
    running(stack, "lasting")
    files = prepared(cuda)
    assert len(files) == 2
    cuda.agent.stop()
    for path in (cuda.runtime.folder / "cdi").glob("partage.io-claim_*.json"):
        path.unlink()  # as a boot leaves it
    cuda.agent.start()
    cuda.kubelet_process.stop()
    cuda.kubelet_process.start()
    # A kubelet that starts removes the slices of its node, and the driver's come back.
    eventually("slices are there", lambda: devices(stack, "cuda"), SLOW)
    eventually("the runtime has the files again", lambda: prepared(cuda) == files, SLOW)
    claim(stack, "beside", **half(90, "1Gi"))
    stack.create(user("beside", "beside"))
    running(stack, "beside")
    assert allocated(stack, "beside")["device"] != allocated(stack, "lasting")["device"]


def other_version(folder: Path) -> dict[str, str]:
    """Variables with which an agent runs from another installation of the program, which says its version in its log."""
    shutil.copytree(Path(partage.__file__).parent, folder / "partage")
    head = folder / "partage/__init__.py"
    told = 'import sys\n__version__ = "9.9.9"\nprint("version", __version__, file=sys.stderr, flush=True)\n'
    head.write_text(head.read_text() + told)
    return {"PYTHONPATH": str(folder)}


def test_another_version_takes_over_what_is_prepared(cuda: Node, tmp_path: Path) -> None:
    """Upgraded, and back after a crash: pods go on, and what one version prepared the other unprepares."""
    stack, agent = cuda.stack, cuda.agent
    for name in ("stays", "before", "between", "after"):
        claim(stack, name, **half(20, "1Gi"))
    for name in ("stays", "before"):
        stack.create(user(name, name))
    running(stack, "before")
    kept = identity(stack, "stays")

    def taken_over(end: Callable[[], None], env: dict[str, str]) -> None:
        told = agent.log.stat().st_size
        end()
        agent.env = env
        agent.start()
        eventually("the kubelet takes it", lambda: b"with the kubelet" in said_since(told), SLOW)
        assert (b"version 9.9.9" in said_since(told)) is bool(env)

    def said_since(size: int) -> bytes:
        return agent.log.read_bytes()[size:]

    def replaced(old: str, new: str) -> None:
        stack.create(user(new, new))
        running(stack, new)
        stack.delete(old)
        eventually(f"{old} is gone", lambda: stack.pod(old) is None, SLOW)
        uids = [
            stack.plane.call("GET", f"{CLAIMS}/{one}")["metadata"]["uid"] for one in ("stays", new)
        ]
        eventually(
            "their claims are prepared, and no other",
            lambda: (
                sorted(uid for name in prepared(cuda) for uid in uids if uid in name)
                == sorted(2 * uids)
                and len(prepared(cuda)) == 4
            ),
            SLOW,
        )
        assert identity(stack, "stays") == kept

    try:
        taken_over(agent.stop, other_version(tmp_path))
        replaced("before", "between")
    finally:
        taken_over(agent.kill, {})  # over the sockets that a crash leaves
    replaced("between", "after")
    seen = environment(cuda, stack.pod("stays"), "main")
    assert seen["CUDA_DEVICE_MEMORY_LIMIT_0"] == "1024m"


def test_a_pod_may_go_before_it_is_prepared(cuda: Node) -> None:
    """A kubelet keeps a pod until the driver is back; then it goes, nothing was prepared, and another has the claim."""
    stack = cuda.stack
    claim(stack, "early", **half(100, "16Gi"))
    cuda.agent.stop()
    stack.create(user("early", "early"))
    eventually("it has a node", lambda: stack.pod("early")["spec"].get("nodeName"), SLOW)
    stack.delete("early")
    cuda.agent.start()
    eventually("it is gone", lambda: stack.pod("early") is None, SLOW)
    eventually("slices are there", lambda: devices(stack, "cuda"), SLOW)
    assert not prepared(cuda)
    stack.create(user("later", "early"))
    running(stack, "later")


def test_a_driver_that_goes_leaves_no_slice(cuda: Node) -> None:
    """The kubelet removes them once its sockets are gone; with the agent they come back, and what waited for them runs."""
    assert not any("finalizers" in one["metadata"] for one in slices(cuda.stack, "cuda"))
    cuda.agent.stop()
    assert not [*(cuda.kubelet.folder / "plugins_registry").glob("gpu.partage.io*")]
    eventually("slices are gone", lambda: not slices(cuda.stack, "cuda"), SLOW)
    claim(cuda.stack, "early", **half(20, "1Gi"))
    cuda.stack.create(user("early", "early"))
    eventually("a pod waits for it", lambda: "claim" in unschedulable(cuda.stack, "early"), SLOW)
    cuda.agent.start()
    eventually("slices are back", lambda: devices(cuda.stack, "cuda"), SLOW)
    running(cuda.stack, "early")


def test_an_instance_is_made_for_its_claim_and_removed_after_it(cuda: Node) -> None:
    """It is beside a pod's by names, on a card with shares before and after; the agent may be killed meanwhile."""
    stack = cuda.stack
    with cutting(stack, "cut") as cut:
        here = {"nodeSelector": {"kubernetes.io/hostname": "cut"}}
        offers = lambda: "gpu-0-mig-3g-40gb-4" in devices(stack, "cut")  # noqa: E731
        eventually("places of instances are offered", offers, SLOW)
        assert on_card(cut) == (False, set())
        for name, profile in (("large", "3g.40gb"), ("small", "1g.10gb")):
            claim(stack, name, **_instance(profile))
            stack.create(user(name, name, **here))
            # On a busy machine the others might take the places of the large one first.
            running(stack, name)
        limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "15000"}
        by_mode = {"annotations": {"nvidia.com/vgpu-mode": "mig"}}
        stack.create(pod("named", container("main", limits), **by_mode, **here))

        found = {name: running(stack, name) for name in ("large", "small", "named")}
        record = granted(found["named"], "main").mig
        assert record is not None
        places = {
            **{name: _place(allocated(stack, name)["device"]) for name in ("large", "small")},
            "named": (record.profile, record.start),
        }
        mode, there = on_card(cut)
        made = {(one.profile, one.start): one for one in there}
        assert mode
        assert set(made) == set(places.values())
        assert len(places) == 3

        def has(name: str, one: OnCard) -> None:
            """The container has this instance, its files with the numbers of the driver, and no other's."""
            assert environment(cut, found[name], "main")["NVIDIA_VISIBLE_DEVICES"] == one.uuid
            lines = says(cut, found[name], "main", "ls", "-l", "/dev/nvidia-caps").splitlines()
            files = {words[-1]: words[4:6] for line in lines if len(words := line.split()) > 6}
            assert files == {
                file: [f"{CAPABILITIES},", file.removeprefix("nvidia-cap")] for file in one.files
            }
            assert "nvidia0" in says(cut, found[name], "main", "ls", "/dev").split()

        for name, place in places.items():
            has(name, made[place])
        claim(stack, "share", **half(10, "1Gi"))
        stack.create(user("share", "share", **here))
        eventually("a share waits", lambda: "claim" in unschedulable(stack, "share"), SLOW)

        kept = identity(stack, "large")
        cut.agent.kill()
        cut.agent.start()
        _ended(stack, "small")
        left = {one for one in there if one.profile != "1g.10gb"}
        eventually(
            "its instance is gone, and no other", lambda: on_card(cut) == (True, left), SLOW
        )
        assert identity(stack, "large") == kept
        has("large", made[places["large"]])

        for name in ("large", "named"):
            _ended(stack, name)
        # The share waited for the card to be whole again.
        assert (
            environment(cut, running(stack, "share"), "main")["CUDA_DEVICE_MEMORY_LIMIT_0"]
            == "1024m"
        )
        assert on_card(cut) == (False, set())
        assert len(prepared(cut)) == 2  # of the share
        _ended(stack, "share")
        eventually("nothing is prepared", lambda: not prepared(cut), SLOW)
        assert not [*(cut.runtime.folder / "cdi").glob("partage.io-mig_*.json")]
    stack.plane.call("DELETE", "/api/v1/nodes/cut")


def _place(device: str) -> tuple[str, int]:
    """Profile and start of an instance by the name of its device."""
    name, _, start = device.removeprefix("gpu-0-mig-").rpartition("-")
    return name.replace("-", "."), int(start)


def _ended(stack: Stack, name: str) -> None:
    """Delete a pod, and its claim if it has one of its name, and wait until the pod is gone."""
    stack.delete(name)
    eventually(f"{name} is gone", lambda: stack.pod(name) is None, SLOW)
    if name in {one["metadata"]["name"] for one in stack.plane.call("GET", CLAIMS)["items"]}:
        stack.plane.call("DELETE", f"{CLAIMS}/{name}")


@pytest.mark.parametrize("name", ["A100-80GB", "H100-80GB", "H200-141GB", "Tesla-T4"])
def test_slices_of_eight_cards_are_stored_as_they_were_sent(cuda: Node, name: str) -> None:
    """Written once, then nothing differs; healthy cards and marked ones."""
    stack, host = cuda.stack, f"eight-{name.lower()}"
    stack.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": host}})
    notes = Notes()
    cards = dgx(host, name)
    ill = replace(cards, devices=(replace(cards.devices[0], healthy=False), *cards.devices[1:]))
    asyncio.run(published(stack, notes, cards, cards, ill, ill, cards))
    assert not notes.said
    found = slices(stack, host)
    assert {one["spec"]["pool"]["generation"] for one in found} == {3}
    stack.plane.call("DELETE", f"/api/v1/nodes/{host}")
    eventually("the node's slices go with it", lambda: not slices(stack, host), SLOW)


def test_the_genuine_allocator_keeps_shares_and_instances_apart(cuda: Node) -> None:
    """Counters alone decide: two halves of a card and no share; released parts are free; a share, and no instance."""
    stack, host = cuda.stack, "dgx"
    offers = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    bare = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": host}}
    stack.add_nodes([{**bare, "status": {"allocatable": offers}}])
    cards = dgx(host, "A100-80GB")
    asyncio.run(published(stack, Notes(), replace(cards, devices=cards.devices[:1])))
    # Its cards are in slices alone: the leader, which knows none of them, is not asked.
    where = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/partage"
    unasked = [{"op": "remove", "path": "/webhooks/1"}]
    stack.plane.call("PATCH", where, unasked, kind="application/json-patch+json")
    profile = 'device.attributes["gpu.partage.io"].profile == "3g.40gb"'
    cut = {
        "deviceClassName": "mig.gpu.partage.io",
        "selectors": [{"cel": {"expression": profile}}],
    }
    here = {
        "nodeSelector": {"kubernetes.io/hostname": host},
        "tolerations": [{"operator": "Exists"}],
    }
    stack.plane.call(
        "PATCH",
        f"/api/v1/nodes/{host}",
        {"metadata": {"labels": {"kubernetes.io/hostname": host}}},
        kind=partage_stack.MERGE,
    )

    def placed() -> set[str]:
        items = stack.plane.call("GET", PODS)["items"]
        return {one["metadata"]["name"] for one in items if one["spec"].get("nodeName")}

    def waits(name: str) -> None:
        eventually(f"{name} waits", lambda: "claim" in unschedulable(stack, name), SLOW)

    for name in ("low", "high", "more"):
        claim(stack, name, **cut)
        stack.create(user(name, name, **here))
    eventually("two of three are placed", lambda: len(placed()) == 2, SLOW)
    first = placed()
    (third,) = {"low", "high", "more"} - first
    assert {allocated(stack, name)["device"] for name in first} == {
        "gpu-0-mig-3g-40gb-0",
        "gpu-0-mig-3g-40gb-4",
    }
    waits(third)
    claim(stack, "share", **half(10, "1Gi"))
    stack.create(user("share", "share", **here))
    waits("share")

    # What is given up is free again, for an instance first, and for shares once the card is whole.
    gone = min(first)
    place = allocated(stack, gone)["device"]
    stack.plane.call("DELETE", f"{PODS}/{gone}?gracePeriodSeconds=0")
    eventually("the third has the place of the first", lambda: third in placed(), SLOW)
    assert allocated(stack, third)["device"] == place
    waits("share")
    for name in (first | {third}) - {gone}:
        stack.plane.call("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
    eventually("the share is placed", lambda: placed() == {"share"}, SLOW)
    claim(stack, "late", **cut)
    stack.create(user("late", "late", **here))
    waits("late")


MINE = 'device.attributes["gpu.partage.io"]'


def _selected(expression: str, **more: Any) -> dict[str, Any]:
    return {"selectors": [{"cel": {"expression": expression}}], **more}


def _instance(profile: str, **more: Any) -> dict[str, Any]:
    wanted = _selected(f'{MINE}.profile == "{profile}"', **more)
    return {"deviceClassName": "mig.gpu.partage.io", **wanted}


def _one(**exactly: Any) -> dict[str, Any]:
    exactly = {"deviceClassName": "share.gpu.partage.io", **exactly}
    return {"requests": [{"name": "card", "exactly": exactly}]}


def _bound(attribute: str, **exactly: Any) -> dict[str, Any]:
    return {**_one(**exactly), "constraints": [{attribute: "gpu.partage.io/uuid"}]}


FORETOLD: dict[str, dict[str, Any]] = {
    "share": _one(**half(50, "10Gi")),
    "larger": _one(**half(60, "1Gi")),
    "rounded": _one(**half(1, "1500Ki")),
    "instance": _one(**_instance("3g.40gb")),
    "two": _one(**_instance("1g.10gb", count=2)),
    "together": _bound("matchAttribute", **_instance("1g.10gb", count=2)),
    "apart": _bound("distinctAttribute", **_instance("1g.10gb", count=2)),
    "spread": _bound("distinctAttribute", **_instance("1g.10gb", count=3)),
    "named": _one(
        **_selected(
            f'cel.bind(card, {MINE}, card.index == 6 && card.?fabric.orValue("") == "" && '
            'sets.contains(card.uuid.split("-"), [card.uuid.substring(0, 3)]) && '
            'card.uuid.find("[A-Z]+") == "GPU" && [card.index, card.index].sum() == 12)'
        ),
        **half(10, "1Gi"),
    ),
    "absent": _one(**_selected(f"{MINE}.?fabric.hasValue()"), **half(1, "1Gi")),
    "either": {
        "requests": [
            {
                "name": "card",
                "firstAvailable": [
                    {"name": "all", **_instance("7g.80gb")},
                    {"name": "some", "deviceClassName": "share.gpu.partage.io", **half(20, "1Gi")},
                ],
            }
        ]
    },
    "every": _one(**_selected(f"{MINE}.index <= 1", allocationMode="All"), **half(5, "1Gi")),
    "whole": _one(**_selected(f"{MINE}.index == 4")),
    "room": _one(
        **_selected('device.capacity["gpu.partage.io"].memory.isGreaterThan(quantity("70Gi"))'),
        **half(90, "1Gi"),
    ),
    "large": _one(**half(10, "100Gi")),
    "unknown": _one(**_selected(f'{MINE}.fabric == "x"'), **half(1, "1Gi")),
    "none": _one(**_selected(f"{MINE}.index == 7"), **half(1, "1Gi")),
}
"""What claims ask for, in the order in which they come to a node of seven cards."""


def test_what_schedule_foretells_the_genuine_allocator_does(cuda: Node) -> None:
    """Claim by claim the same devices and amounts, and the same claims wait."""
    stack, host = cuda.stack, "oracle"
    offers = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    bare = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": host}}
    stack.add_nodes([{**bare, "status": {"allocatable": offers}}])
    cards = dgx(host, "A100-80GB")
    asyncio.run(published(stack, Notes(), replace(cards, devices=cards.devices[:7])))
    where = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/partage"
    stack.plane.call(
        "PATCH",
        where,
        [{"op": "replace", "path": "/webhooks", "value": []}],  # its cards are in slices alone
        kind="application/json-patch+json",
    )
    label = {"kubernetes.io/hostname": host}
    stack.plane.call(
        "PATCH", f"/api/v1/nodes/{host}", {"metadata": {"labels": label}}, kind=partage_stack.MERGE
    )
    manifests = []
    for name, wanted in FORETOLD.items():
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"devices": wanted},
        }
        using = user(name, name, nodeSelector=label, tolerations=[{"operator": "Exists"}])
        manifests += [body, using]
        stack.plane.call("POST", CLAIMS, body)
        stack.create(using)
        eventually(
            f"{name} is placed or waits",
            partial(answered, stack, name),
            SLOW,
        )
    for kind, plural in (("ResourceSlice", "resourceslices"), ("DeviceClass", "deviceclasses")):
        listed = stack.plane.call("GET", f"{API}/{plural}")["items"]
        manifests += [{**one, "apiVersion": "resource.k8s.io/v1", "kind": kind} for one in listed]
    known = {"metadata": {"name": host, "labels": label}, "status": {"allocatable": offers}}
    manifests.append({**bare, **known})
    lines = "\n".join(json.dumps(one) for one in manifests)
    cluster = assemble([decode("cluster.json", lines.encode())])
    engine, _ = started(cluster, Policy())
    allocator = ClaimAllocator(engine, cluster.offers)
    waits = set()
    for one in queue(cluster.pods):
        named = cluster.claimants[one.pod.uid]
        allocator.decide(one.pod, named, keep=True)
        (foretold,) = allocator.named(named)
        assert isinstance(foretold.shape, shapes.ResourceClaim)
        stored = stack.plane.call("GET", f"{CLAIMS}/{one.pod.name}")
        mine = {"status": foretold.shape.status}
        assert _got(stored) == _got(mine), (one.pod.name, unschedulable(stack, one.pod.name))
        waits |= {one.pod.name} if not _got(stored) else set()
    assert waits >= {"large", "unknown", "none", "absent"}
    assert not waits & {"spread", "named"}, waits
    assert len(waits) < len(FORETOLD) // 2, waits


def _got(claim: dict[str, Any]) -> list[tuple[str, str, dict[str, int]]]:
    """The request, name and amounts in base units of each device that a claim has."""
    allocation = (claim.get("status") or {}).get("allocation", {})
    return [
        (
            one["request"],
            one["device"],
            {
                key: Quantity.parse(value).ceil()
                for key, value in one.get("consumedCapacity", {}).items()
            },
        )
        for one in allocation.get("devices", {}).get("results", [])
    ]


async def published(stack: Stack, notes: Notes, *nodes: model.Node) -> None:
    """Publish states of a node one after the other; one that has not changed is not written."""
    config = load_config({}, kubeconfig=stack.plane.kubeconfig())
    async with Client(config) as client:
        publisher = Publisher(client, nodes[0].name, Inventory, Tallies(), notes, instances=True)
        before: model.Node | None = None
        for node in nodes:
            assert bool(await publisher.once(node)) == (node != before)
            before = node
