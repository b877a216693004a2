"""More pods than there are places come to eight cards at once: half by a protocol's names, half by ResourceClaims.

Two genuine kube-schedulers decide: one asks Partage for the pods, the other one allocates claims by itself. What is
held is added up again at every change that the API server reports, in its own order. `PARTAGE_FLOOD` says how many pods
come, 96 at least.
"""

import json
import os
import shutil
import stat
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import stack as partage_stack
from control_plane import missing
from stack import Layout, Stack, eventually, pod

from partage.model.quantity import Quantity
from partage.vendors import names
from partage.wire.record import decode

API = "/apis/resource.k8s.io/v1"
PODS, CLAIMS = "/api/v1/namespaces/default/pods", f"{API}/namespaces/default/resourceclaims"
CARDS, PLACES = 8, 64
LEAST = PLACES + PLACES // 2
"""Pods that it takes to fill all places once more when half of those that had one are gone."""
EACH = max(int(os.environ.get("PARTAGE_FLOOD", "104")), LEAST) // 2
SLOW = 240
LAYOUT = Layout(
    options=(
        "--set", "agent.enabled=true,agent.dra.enabled=true,scheduler.claims=true",
        "--set", "agent.nodeSelector.nowhere=here",
    ),
    plugged=True,
)  # fmt: skip
SCHEDULERS = ("partage-scheduler", "default-scheduler")
"""Pods with claims come to each in turn: one has nodes proposed, the cluster's own knows no more than slices and claims."""
SHARE_CLASS = "share.gpu.partage.io"
CLASS_RESOURCE = f"deviceclass.resource.kubernetes.io/{SHARE_CLASS}"
SHARE = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "2048", "nvidia.com/gpucores": "10"}
pytestmark = [
    pytest.mark.timeout(2400),
    pytest.mark.skipif(bool(missing()), reason=missing() or "never"),
]


@dataclass
class History:
    """Every change of pods and claims, as the API server reported it.

    Attributes:
        told: version, collection, kind of change, object.
        most: the most of a card that was ever allocated, by card and kind.
        shared: cards that were held by pods and by claims at the same moment.
        ended: set when enough was reported.
    """

    stack: Stack
    told: list[tuple[int, str, str, dict[str, Any]]] = field(default_factory=list)
    most: Counter[tuple[int, str]] = field(default_factory=Counter)
    shared: set[int] = field(default_factory=set)
    ended: threading.Event = field(default_factory=threading.Event)

    def follow(self, path: str, since: str) -> None:
        """Read changes of a collection until `ended`.

        Raises:
            AssertionError: the API server does not have them any more.
        """
        while not self.ended.is_set():
            query = f"?watch=true&resourceVersion={since}&timeoutSeconds=2"
            with suppress(OSError):  # what was read twice is one change all the same
                for line in self.stack.plane.call("GET", path + query, decode=False).splitlines():
                    event = json.loads(line)
                    assert event["type"] != "ERROR", event
                    since = event["object"]["metadata"]["resourceVersion"]
                    self.told.append((int(since), path, event["type"], event["object"]))

    def over(self) -> list[str]:
        """Moments at which more of a card was allocated than it has."""
        held: dict[tuple[str, str], list[tuple[int, int, int]]] = {}
        wrong = []
        for version, path, kind, item in sorted(self.told, key=lambda one: one[0]):
            mine = [] if kind == "DELETED" else of_pod(item) if path == PODS else of_claim(item)
            held[path, item["metadata"]["uid"]] = mine
            by_names, by_claims = (
                {card for (of, _), those in held.items() if of == one for card, _, _ in those}
                for one in (PODS, CLAIMS)
            )
            self.shared |= by_names & by_claims
            sums: Counter[tuple[int, str]] = Counter()
            for card, core, memory in (one for those in held.values() for one in those):
                sums[card, "core"] += core
                sums[card, "memory"] += memory
            self.most |= sums
            wrong += [
                f"{version}: {part} of card {card}: {amount}"
                for (card, part), amount in sums.items()
                if amount > (1000 if part == "core" else 16 * 2**30)
            ]
        return wrong


def of_pod(item: dict[str, Any]) -> list[tuple[int, int, int]]:
    """Card, thousandths and bytes of what a bound pod holds."""
    head, where = item["metadata"], item["spec"].get("nodeName")
    text = head.get("annotations", {}).get(names.ALLOCATION)
    if not where or not text or item["status"].get("phase") in ("Succeeded", "Failed"):
        return []
    read = decode(text, head["uid"], where)
    assert not read.problem
    return [(one.minor, one.core_milli, one.memory_bytes) for one in read.grants]


def of_claim(item: dict[str, Any]) -> list[tuple[int, int, int]]:
    """The same of an allocated claim."""
    allocation = (item.get("status") or {}).get("allocation") or {}
    return [
        (
            int(one["device"].removeprefix("gpu-")),
            int(one["consumedCapacity"]["cores"]) * 10,
            Quantity.parse(one["consumedCapacity"]["memory"]).nano // 10**9,
        )
        for one in allocation.get("devices", {}).get("results", [])
        if not one.get("adminAccess")
    ]


@pytest.fixture(scope="module")
def big(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """A node of eight cards with its agent, and no kubelet."""
    folder = Path(tempfile.mkdtemp(prefix="ptf"))
    try:
        with partage_stack.stack(tmp_path_factory.mktemp("cluster"), layout=LAYOUT) as stack:
            offers = {"cpu": "640", "memory": "5Ti", "pods": "1000"}
            head = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "big"}}
            stack.add_nodes([{**head, "status": {"allocatable": offers}}])
            cards = {"model": "Tesla-T4", "cards": CARDS, "memory": "16Gi"}
            (folder / "hardware.json").write_text(json.dumps(cards))
            (folder / "dev").mkdir()
            for minor, name in enumerate(["nvidiactl", *(f"nvidia{n}" for n in range(CARDS))]):
                os.mknod(folder / "dev" / name, stat.S_IFCHR | 0o666, os.makedev(195, minor))
            (folder / "libvgpu.so").write_text("the library\n")
            stack.agent(
                "big", "--simulated", str(folder / "hardware.json"), "--host-root", str(folder),
                "--journal", str(folder / "journal"), "--nri-socket", str(folder / "nri.sock"),
                "--isolation-library", str(folder / "libvgpu.so"),
                "--dra-kubelet-dir", str(folder / "k"), "--cdi-dir", str(folder / "cdi"),
            )  # fmt: skip
            eventually("cards are offered to claims", lambda: whole(stack), SLOW)
            yield stack
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def offered(stack: Stack) -> list[dict[str, Any]]:
    """Devices of the node's slices."""
    found = stack.plane.call("GET", f"{API}/resourceslices")["items"]
    return [device for one in found for device in one["spec"].get("devices", [])]


def listed(stack: Stack, path: str) -> list[dict[str, Any]]:
    """A collection as it is."""
    found: list[dict[str, Any]] = stack.plane.call("GET", path)["items"]
    return found


def whole(stack: Stack) -> bool:
    """Whether all of each card is offered."""
    cards = offered(stack)
    return len(cards) == CARDS and not any(
        "taints" in one
        or (one["capacity"]["cores"]["value"], one["capacity"]["memory"]["value"])
        != ("100", "16Gi")
        for one in cards
    )


def holders(stack: Stack) -> tuple[int, int]:
    """How many pods and claims hold a share now."""
    pods = sum(bool(of_pod(one)) for one in listed(stack, PODS))
    return pods, sum(bool(of_claim(one)) for one in listed(stack, CLAIMS))


@contextmanager
def followed(stack: Stack) -> Iterator[History]:
    """What happens to pods and claims meanwhile, change by change."""
    history, since = History(stack), stack.revision()
    with ThreadPoolExecutor() as threads:
        followers = [threads.submit(history.follow, path, since) for path in (PODS, CLAIMS)]
        try:
            yield history
        finally:
            history.ended.set()
        for one in followers:
            one.result()


def emptied(stack: Stack, path: str) -> bool:
    """Whether a collection is empty; what is there is deleted, as far as the API server comes in its time."""
    with suppress(OSError):
        stack.plane.call("DELETE", path)
    return not listed(stack, path.partition("?")[0])


def test_no_card_is_over_its_means_at_any_moment(big: Stack) -> None:
    """All places are taken, by both; as many are released, and others come; then all go, and the node is free again."""
    request = {"devices": exactly(share("10", "2Gi"))}
    template = {"metadata": {"name": "flood"}, "spec": {"spec": request}}
    big.plane.call("POST", f"{API}/namespaces/default/resourceclaimtemplates", template)
    with followed(big) as history:
        held = flooded(big)
        gone(big)
    assert history.over() == []
    print(f"\n{2 * EACH} pods; by names, by claims: {held}; {len(history.told)} changes")  # noqa: T201 # a record
    assert min(*held) > 0, held
    assert history.shared
    # Each card was filled, and that was seen.
    assert set(history.most.values()) == {800, 16 * 2**30}, history.most


def flooded(stack: Stack) -> list[int]:
    """Take all places, twice, by both; how many places each had, both times."""
    for number in range(EACH):
        stack.create(pod(f"named-{number}", SHARE))
        stack.create(claiming("flood", number))
    eventually("every place is taken", lambda: sum(holders(stack)) >= PLACES, SLOW)
    first = holders(stack)
    bound = [one["metadata"]["name"] for one in listed(stack, PODS) if one["spec"].get("nodeName")]
    gone = set(bound[::2])
    for name in gone:
        stack.plane.call("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")
    eventually(
        "those are gone and every place is taken again",
        lambda: (
            not gone & {one["metadata"]["name"] for one in listed(stack, PODS)}
            and sum(holders(stack)) >= PLACES
        ),
        SLOW,
    )
    return [*first, *holders(stack)]


def share(cores: str, memory: str, **more: Any) -> dict[str, Any]:
    """What is asked of a device."""
    amounts = {"cores": cores, "memory": memory}
    return {"deviceClassName": SHARE_CLASS, "capacity": {"requests": amounts}, **more}


def exactly(*asked: dict[str, Any], **constraint: str) -> dict[str, Any]:
    """A claim's devices, one request for each; all bound by a constraint, if one is given."""
    requests = [{"name": f"r{n}", "exactly": one} for n, one in enumerate(asked)]
    return {"requests": requests} | ({"constraints": [constraint]} if constraint else {})


SHAPES: dict[str, dict[str, Any]] = {
    "every": exactly(share("3", "300Mi", allocationMode="All")),
    "two": exactly(share("5", "1Gi", count=2)),
    "apart": exactly(*[share("5", "1Gi")] * 2, distinctAttribute="gpu.partage.io/uuid"),
    "odd": exactly(share("3.3", "1500001")),
    "least": exactly(share("1m", "1")),
    "bears": exactly(share("5", "1Gi", tolerations=[{"operator": "Exists"}])),
    "watches": exactly(share("1", "1Mi", adminAccess=True)),
    "either": {
        "requests": [
            {
                "name": "r",
                "firstAvailable": [
                    {"name": "large", **share("5", "900Gi")},
                    {"name": "small", **share("5", "1Gi")},
                ],
            }
        ]
    },
}


def test_claims_of_every_shape_share_the_cards_with_pods(big: Stack) -> None:
    """Some pods ask for a class by the name of a resource: whole cards, as many as by a protocol's names."""
    label = {"metadata": {"labels": {"resource.kubernetes.io/admin-access": "true"}}}
    merge = "application/merge-patch+json"
    big.plane.call("PATCH", "/api/v1/namespaces/default", label, kind=merge)
    with followed(big) as history:
        for name, devices in SHAPES.items():
            template = {"metadata": {"name": name}, "spec": {"spec": {"devices": devices}}}
            big.plane.call("POST", f"{API}/namespaces/default/resourceclaimtemplates", template)
            for number in range(2):
                big.create(claiming(name, number))
                big.create(pod(f"beside-{name}-{number}", SHARE))
        eventually("all have a place", lambda: places(big) == 4 * len(SHAPES), SLOW)
        gone(big)
        for number in range(CARDS):
            scheduler = {"schedulerName": SCHEDULERS[number % 2]}
            big.create(pod(f"class-{number}", {CLASS_RESOURCE: "1"}, **scheduler))
            big.create(pod(f"card-{number}", {"nvidia.com/gpu": "1"}))
        eventually("every card is taken", lambda: sum(holders(big)) == CARDS, SLOW)
        gone(big)
    assert history.over() == []
    assert set(history.most.values()) == {1000, 16 * 2**30}, history.most


def claiming(template: str, number: int) -> dict[str, Any]:
    """A pod with a claim of a template."""
    made = pod(f"{template}-{number}", {}, schedulerName=SCHEDULERS[number % 2])
    made["spec"] |= {"resourceClaims": [{"name": "card", "resourceClaimTemplateName": template}]}
    made["spec"]["containers"][0]["resources"] = {"claims": [{"name": "card"}]}
    return made


def places(stack: Stack) -> int:
    """How many pods are bound."""
    return sum(bool(one["spec"].get("nodeName")) for one in listed(stack, PODS))


def gone(stack: Stack) -> None:
    """Wait until nothing is left, and the whole node is offered."""
    for path in (f"{PODS}?gracePeriodSeconds=0", CLAIMS):
        eventually("all are gone", partial(emptied, stack, path), SLOW)
    eventually("the whole node is offered", lambda: whole(stack), SLOW)
