"""Groups of scheduler-plugins' coscheduling, with Partage's plugin in the same kube-scheduler: all of a group, or nothing.

The program is another's build of both (PARTAGE_NEIGHBOURS, `kube-scheduler-coscheduling`): Kubernetes' own with the plugins
Partage and Coscheduling (`kube-scheduler/main.go` with `app.WithPlugin(coscheduling.Name, coscheduling.New)` and their
apis/config/scheme, and controller-runtime of the same Kubernetes). coscheduling keeps pods that have a place waiting
(Permit) until the group is complete, so that their cards are reserved in Partage's books meanwhile, and rejects them all
when one finds none. How long the books keep them after that goes to build/neighbours/coscheduling.json.
"""

import time
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest
from control_plane import control_plane
from neighbours import program, told
from plugin_stack import Plugged

GROUP = "scheduling.x-k8s.io"
LABEL = f"{GROUP}/pod-group"
DEFINITION = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": f"podgroups.{GROUP}",
        "annotations": {
            "api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/scheduler-plugins/pull/50"
        },
    },
    "spec": {
        "group": GROUP,
        "scope": "Namespaced",
        "names": {"kind": "PodGroup", "plural": "podgroups", "singular": "podgroup"},
        "versions": [
            {
                "name": "v1alpha1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
            }
        ],
    },
}
"""What is enough of its definition."""
OUTPUT = "coscheduling"
BACK_OFF = 600
"""Seconds for which a group that failed is left alone: longer than the test looks at the books."""
WHOLE = {"koordinator.sh/gpu": "100"}
BOTH = {"koordinator.sh/gpu": "200"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plugged]:
    """Two nodes of two cards, and a kube-scheduler with both plugins."""
    both = program("kube-scheduler-coscheduling")
    folder = tmp_path_factory.mktemp("coscheduling")
    with control_plane(folder) as plane:
        made = Plugged(plane, folder, ["-v=3"], both)
        plane.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", DEFINITION)
        profile = made.config["profiles"][0]
        made.config["profiles"] = [profile]  # one order of the queue for all
        profile["plugins"]["multiPoint"]["enabled"].append({"name": "Coscheduling"})
        profile["plugins"]["queueSort"] = {
            "enabled": [{"name": "Coscheduling"}],
            "disabled": [{"name": "*"}],
        }
        args = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "CoschedulingArgs",
            "permitWaitingTimeSeconds": 600,
            "podGroupBackoffSeconds": BACK_OFF,
        }
        profile["pluginConfig"].append({"name": "Coscheduling", "args": args})
        made.start()
        # A group that finds the engine starting would fail, and be left alone for that long.
        made.pod("first", WHOLE)
        made.bound("first")
        made.delete("first")
        yield made


def group(cluster: Plugged, name: str, size: int, least: int) -> list[str]:
    """A group of pods of a whole card each, of which so many come together at least; their names."""
    body = {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"minMember": least},
    }
    cluster.plane.call("POST", f"/apis/{GROUP}/v1alpha1/namespaces/default/podgroups", body)
    names = [f"{name}-{i}" for i in range(size)]
    for one in names:
        member(cluster, one, name)
    return names


def member(cluster: Plugged, name: str, of: str) -> None:
    """One pod of a group."""
    container = {"name": "main", "image": "x", "resources": {"limits": WHOLE}}
    spec: dict[str, Any] = {
        "schedulerName": "partage-scheduler",
        "containers": [container],
        "tolerations": [{"operator": "Exists"}],
        "terminationGracePeriodSeconds": 0,
    }
    head = {"name": name, "labels": {LABEL: of}}
    cluster.plane.call("POST", "/api/v1/namespaces/default/pods", {"metadata": head, "spec": spec})


def test_a_group_that_fits_waits_for_its_last_pod_and_is_bound_whole(cluster: Plugged) -> None:
    """Three have places and are bound to none before the fourth is there."""
    body_of_three = group(cluster, "fits", 3, 4)
    member(cluster, "fits-3", "fits")
    names = [*body_of_three, "fits-3"]
    for name in names:
        cluster.bound(name)
    given = [card for name in names for card in cluster.cards(name)]
    assert len(set(given)) == 4
    cluster.delete(*names)
    cluster.eventually("the books are empty", lambda: not cluster.booked())


def test_a_group_that_fails_leaves_no_reservation(cluster: Plugged) -> None:
    """Four of five have a card reserved and wait; the fifth finds none; all four are given back."""
    seen: set[str] = set()
    names = group(cluster, "big", 5, 5)

    def rejected() -> list[str]:
        log = cluster.plane.processes["plugged"].log.read_text(errors="replace")
        return [line for line in log.splitlines() if "rejects the pod" in line]

    def failed() -> bool:
        seen.update(cluster.booked())
        return bool(rejected())

    cluster.eventually("the group is rejected", failed)
    cluster.eventually("no card is reserved", lambda: not cluster.booked())
    freed = time.time()
    first = rejected()[0].split()[1]
    at = datetime.now().astimezone().replace(tzinfo=None)
    begun = datetime.combine(at.date(), datetime.strptime(first, "%H:%M:%S.%f").time()).timestamp()  # noqa: DTZ007
    told(OUTPUT, {"seconds_until_free": round(freed - begun, 3)})
    assert len(seen) == 4, seen
    assert not any(cluster.node_of(name) for name in names)
    # What it had is for others at once.
    for node in ("a", "b"):
        cluster.pod(f"single-{node}", BOTH)
    for node in ("a", "b"):
        cluster.bound(f"single-{node}")
    cluster.delete(*names, "single-a", "single-b")
