"""Pod groups of kube-scheduler itself (gates on), with the plugin: all of a gang, or nothing."""

import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from control_plane import OF_THE_PINNED, control_plane
from neighbours import told
from plugin_stack import PLUGIN, Plugged, free_after

pytestmark = OF_THE_PINNED
GATES = "--feature-gates=GenericWorkload=true,GangScheduling=true"
API = "scheduling.k8s.io/v1alpha2"
FAILURES = 20
WHOLE = {"koordinator.sh/gpu": "100"}
BOTH = {"koordinator.sh/gpu": "200"}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plugged]:
    """Two nodes of two cards; kube-scheduler knows groups."""
    if not (PLUGIN / "kube-scheduler").exists():
        pytest.skip(
            "kube-scheduler with the plugin is not built from these sources; run tests/cluster/build"
        )
    folder = tmp_path_factory.mktemp("groups")
    with control_plane(folder, GATES, f"--runtime-config={API}=true") as plane:
        made = Plugged(plane, folder, [GATES, "-v=3"])
        made.start()
        yield made


def gang(cluster: Plugged, name: str, size: int, **spec: Any) -> list[str]:
    """A gang of pods of a whole card each; their names."""
    group = {
        "apiVersion": API,
        "kind": "PodGroup",
        "metadata": {"name": name},
        "spec": {"schedulingPolicy": {"gang": {"minCount": size}}},
    }
    cluster.plane.call("POST", f"/apis/{API}/namespaces/default/podgroups", group)
    names = [f"{name}-{i}" for i in range(size)]
    for one in names:
        cluster.pod(one, WHOLE, schedulingGroup={"podGroupName": name}, **spec)
    return names


def cards(cluster: Plugged, *names: str) -> set[tuple[str, str]]:
    """The cards of bound pods; no two of them share one."""
    found = [one for name in names for one in cluster.cards(name)]
    assert len(set(found)) == len(found)
    return set(found)


def test_a_gang_that_fits_is_bound_whole(cluster: Plugged) -> None:
    """Each pod is reserved, reverted, reserved again, and bound once."""
    names = gang(cluster, "fits", 4)
    for name in names:
        cluster.bound(name)
    assert len(cards(cluster, *names)) == 4
    cluster.delete(*names)


def test_a_gang_that_does_not_fit_leaves_nothing(cluster: Plugged) -> None:
    """What its pods had reserved is there for others at once, while it waits."""
    names = gang(cluster, "big", 5)
    for name in names:
        cluster.waits(name)
    for node in ("a", "b"):
        cluster.pod(f"single-{node}", BOTH)
    for node in ("a", "b"):
        cluster.bound(f"single-{node}")
    assert not any(cluster.node_of(name) for name in names)
    cluster.delete(*names, "single-a", "single-b")


@pytest.fixture
def paced(cluster: Plugged) -> Iterator[Plugged]:
    """kube-scheduler takes its pauses between two tries of a group, so that the books can be looked at in between."""
    for flags in ([f"{GATES},SchedulerPopFromBackoffQ=false", "-v=3"], cluster.flags):
        before, cluster.flags = cluster.flags, flags
        cluster.plane.processes["plugged"].stop()
        cluster.scheduler()
        cluster.pod("first", WHOLE)
        cluster.bound("first")
        cluster.delete("first")
        if flags is not before:
            yield cluster
            cluster.flags = before


def test_gangs_that_fail_leave_no_reservation(paced: Plugged) -> None:
    """Four of five have a card reserved in the group's cycle; build/neighbours/gangs.json says when all are free."""
    took = []
    for number in range(FAILURES):
        mine = f'"default/fails{number}"'
        rejected = partial(paced.logged, "Unable to schedule a pod group", mine)
        with paced.looked_at() as looks:
            names = gang(paced, f"fails{number}", 5)
            paced.eventually("the group is rejected", rejected)
            failed = rejected()[0]
            paced.eventually("no card is reserved", lambda at=failed: free_after(looks, at))
        begun = paced.logged("Attempting to schedule pod group", mine)
        freed = free_after(looks, failed)
        assert freed is not None
        seen = max(len(look.booked) for look in looks)
        first = max(one for one in begun if one <= failed)
        took.append({"after_begin": freed - first, "after_failure": freed - failed, "seen": seen})
        assert not any(paced.node_of(name) for name in names)
        paced.delete(*names)
    assert any(one["seen"] for one in took)  # or the looks would not have seen what stays
    told("gangs", took)


def test_a_gang_with_places_for_some_has_kube_schedulers_pauses(paced: Plugged) -> None:
    """The places that its cycle reverts are no room that has come."""
    names = gang(paced, "part", 5)
    for name in names:
        paced.waits(name)
    cycles = partial(paced.logged, "Attempting to schedule pod group", '"default/part"')
    before = len(cycles())
    time.sleep(15)
    assert len(cycles()) - before <= 15
    paced.delete(*names)


def test_a_gang_that_waits_comes_when_there_is_room(cluster: Plugged) -> None:
    """All of its pods come together."""
    cluster.pod("single", WHOLE)
    cluster.bound("single")
    names = gang(cluster, "late", 4)
    for name in names:
        cluster.waits(name)
    assert not any(cluster.node_of(name) for name in names)
    cluster.delete("single")
    for name in names:
        cluster.bound(name)
    cards(cluster, *names)
    cluster.delete(*names)


def test_less_important_pods_go_for_a_gang(cluster: Plugged) -> None:
    """As many go as it needs, and no more."""
    low = [f"low-{i}" for i in range(4)]
    for name in low:
        cluster.pod(name, WHOLE, terminationGracePeriodSeconds=600)
        cluster.bound(name)
    names = gang(cluster, "vips", 2, priorityClassName="high")

    cluster.eventually(
        "two victims", lambda: len([one for one in low if cluster.leaves(one)]) == 2
    )
    going = [one for one in low if cluster.leaves(one)]
    cluster.delete(*going)
    for name in names:
        cluster.bound(name)
    left = [one for one in low if one not in going]
    assert not any(cluster.leaves(one) for one in left)
    cards(cluster, *names, *left)
    cluster.delete(*names, *left)


def going(cluster: Plugged, names: list[str]) -> list[str]:
    """Wait until two of these pods are being evicted; those."""
    cluster.eventually(
        "two victims", lambda: len([one for one in names if cluster.leaves(one)]) == 2
    )
    return [one for one in names if cluster.leaves(one)]


@pytest.mark.parametrize("ended", [0, 1, 2])
def test_a_gang_that_preempts_may_be_deleted_in_the_middle(cluster: Plugged, ended: int) -> None:
    """The room that was kept for it is there for others at once, however many of its victims had ended by then."""
    low = gang(cluster, f"rest{ended}", 4, terminationGracePeriodSeconds=600)
    for name in low:
        cluster.bound(name)
    names = gang(cluster, f"gone{ended}", 2, priorityClassName="high")
    victims = going(cluster, low)
    cluster.delete(*victims[:ended])
    cluster.delete(*names)
    cluster.delete(*victims[ended:])

    late = gang(cluster, f"next{ended}", 2)

    for name in late:
        cluster.bound(name)
    left = [one for one in low if one not in victims]
    assert len(cards(cluster, *late, *left)) == 4
    cluster.delete(*late, *left)


def test_a_victim_gang_may_be_half_evicted_when_kube_scheduler_dies(cluster: Plugged) -> None:
    """No other pod is evicted for the gang, and it comes."""
    low = gang(cluster, "torn", 4, terminationGracePeriodSeconds=600)
    for name in low:
        cluster.bound(name)
    names = gang(cluster, "heirs", 2, priorityClassName="high")
    victims = going(cluster, low)
    cluster.delete(victims[0])
    cluster.plane.processes["plugged"].kill()
    cluster.scheduler()
    cluster.delete(victims[1])

    for name in names:
        cluster.bound(name)
    left = [one for one in low if one not in victims]
    assert not any(cluster.leaves(one) for one in left)
    assert len(cards(cluster, *names, *left)) == 4
    cluster.delete(*names, *left)
