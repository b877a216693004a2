"""Groups of scheduler-plugins' coscheduling, with Partage's plugin in the same kube-scheduler: all of a group, or nothing.

The program is another's build of both (PARTAGE_NEIGHBOURS, `kube-scheduler-coscheduling`): Kubernetes' own with the plugins
Partage and Coscheduling (`kube-scheduler/main.go` with `app.WithPlugin(coscheduling.Name, coscheduling.New)` and their
apis/config/scheme, and controller-runtime of the same Kubernetes). coscheduling keeps pods that have a place waiting
(Permit) until the group is complete, so that their cards are reserved in Partage's books meanwhile, and rejects them all
when one finds none. How long the books keep them after that goes to build/neighbours/coscheduling.json.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from control_plane import control_plane
from neighbours import program, told
from plugin_stack import Plugged, free_after

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
FAILURES = 20
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


def group(cluster: Plugged, name: str, least: int) -> None:
    """A group of which so many pods come together at least."""
    body = {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"minMember": least},
    }
    cluster.plane.call("POST", f"/apis/{GROUP}/v1alpha1/namespaces/default/podgroups", body)


def member(cluster: Plugged, name: str, of: str) -> None:
    """One pod of a group, of a whole card."""
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
    group(cluster, "fits", 4)
    names = [f"fits-{i}" for i in range(4)]
    for name in names:
        member(cluster, name, "fits")
    for name in names:
        cluster.bound(name)
    given = [card for name in names for card in cluster.cards(name)]
    assert len(set(given)) == 4
    cluster.delete(*names)
    cluster.eventually("the books are empty", lambda: not cluster.booked())


def test_groups_that_fail_leave_no_reservation(cluster: Plugged) -> None:
    """Four of five pods have a card reserved and wait. The fifth finds none, and all four cards are released.

    A group that coscheduling tries before it knows all pods is left alone, so the pods are there and refused before their
    group is.
    """
    took = []
    for number in range(FAILURES):
        names = [f"big{number}-{i}" for i in range(5)]
        for name in names:
            member(cluster, name, f"big{number}")
        for name in names:
            cluster.waits(name)
        rejected = partial(cluster.logged, "PostFilter rejects the pod", f'"default/big{number}-')
        with cluster.looked_at() as looks:
            group(cluster, f"big{number}", 5)
            cluster.eventually("the group is rejected", rejected)
            failed = rejected()[0]
            cluster.eventually("no card is reserved", lambda at=failed: free_after(looks, at))
        freed = free_after(looks, failed)
        assert freed is not None
        seen = max(len(look.booked) for look in looks)
        took.append({"after_failure": freed - failed, "seen": seen})
        assert len(rejected()) >= 4
        assert not any(cluster.node_of(name) for name in names)
        # What it had is for others at once.
        for node in ("a", "b"):
            cluster.pod(f"single-{node}", BOTH)
        for node in ("a", "b"):
            cluster.bound(f"single-{node}")
        cluster.delete(*names, "single-a", "single-b")
        cluster.eventually("the books are empty", lambda: not cluster.booked())
    told(OUTPUT, took)
