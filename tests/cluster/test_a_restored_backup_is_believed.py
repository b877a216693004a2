"""etcd restored from an older backup under a leader that goes on: its books become what the API server says.

An API server that runs on shows none of it until it is restarted, so the leader waits for that. kube-scheduler's own
caches are Kubernetes' matter: the test restarts it, as Kubernetes asks after a restore.
"""

import json
import shutil
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from control_plane import ETCD, ControlPlane, control_plane
from plugin_stack import PLUGIN, Plugged

WHOLE = {"koordinator.sh/gpu": "100"}
MEMORY = "the API server lists what its store no longer has"
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Plugged]:
    """Four cards, kube-scheduler with the plugin, and the engine."""
    if not (PLUGIN / "kube-scheduler").exists():
        pytest.skip("kube-scheduler with the plugin is not built; run tests/cluster/build")
    with control_plane(tmp_path) as plane:
        made = Plugged(plane, tmp_path)
        made.start()
        yield made


def back_up(plane: ControlPlane) -> Path:
    """A copy of etcd's data, taken while it does not run."""
    etcd, kept = plane.processes["etcd"], plane.folder / "backup"
    etcd.stop()
    shutil.copytree(plane.folder / "etcd", kept)
    etcd.start()
    plane.wait_ready()
    return kept


def put_back(plane: ControlPlane, kept: Path, bump: str = "", *, stop: bool = True) -> None:
    """Restore it; by a copy, or with versions beyond all that there were, as etcd advises.

    Args:
        stop: whether the API server is stopped before, as etcd's guide asks.
    """
    server, etcd, data = (
        plane.processes["kube-apiserver"],
        plane.processes["etcd"],
        plane.folder / "etcd",
    )
    if stop:
        server.kill()
    etcd.kill()
    shutil.rmtree(data)
    if bump:
        peers = next(one for one in etcd.command if "--initial-cluster=" in one)
        own = next(one for one in etcd.command if "--initial-advertise-peer-urls=" in one)
        subprocess.run(
            [
                *(str(ETCD.with_name("etcdutl")), "snapshot", "restore"),
                *(str(kept / "member/snap/db"), "--skip-hash-check", f"--data-dir={data}"),
                *(peers, own, f"--bump-revision={bump}", "--mark-compacted"),
            ],
            check=True,
            capture_output=True,
        )
    else:
        shutil.copytree(kept, data)
    etcd.start()
    if stop:
        server.start()
    plane.wait_ready()


def held(cluster: Plugged) -> dict[str, list[tuple[str, str]]]:
    """The cards of bound pods, by the API server; none is given twice."""
    found: list[dict[str, Any]] = cluster.plane.call("GET", PODS)["items"]
    bound = [one["metadata"]["name"] for one in found if one["spec"].get("nodeName")]
    cards = {name: cluster.cards(name) for name in bound}
    twice = [
        card for card, n in Counter(c for some in cards.values() for c in some).items() if n > 1
    ]
    assert not twice, f"I1: {json.dumps(cards)}"
    return cards


def agree(cluster: Plugged) -> bool:
    """Whether the engine serves, and its books have the pods that are bound."""
    cluster.plane.processes["plugged"].revive()  # it ends by itself where it notices
    try:
        return {name.partition("/")[2] for name in cluster.booked()} == held(cluster).keys()
    except OSError:
        return False  # it does not lead now


def placed(cluster: Plugged, name: str) -> None:
    """Wait for the node of a pod, by a kube-scheduler that is started again where it has ended.

    It loses its Lease while etcd is away: for the restoration, and on a slow machine for the backup too.
    """

    def node() -> str:
        cluster.plane.processes["plugged"].revive()
        return cluster.node_of(name)

    cluster.eventually(f"pod {name} bound", node)


@pytest.mark.parametrize("bump", ["", "1000000"], ids=["as-it-was", "as-etcd-advises"])
def test_the_books_become_what_the_api_server_says(cluster: Plugged, bump: str) -> None:
    """Pods came back, went, and are bound no more, while the leader stayed the same; then all get their places."""
    for name in ("kept", "ended"):
        cluster.pod(name, WHOLE)
        cluster.bound(name)
    cluster.pod("late", WHOLE, schedulingGates=[{"name": "example.com/wait"}])
    kept = back_up(cluster.plane)
    before = held(cluster)
    cluster.delete("ended")
    patch, kind = {"spec": {"schedulingGates": None}}, "application/merge-patch+json"
    cluster.plane.call("PATCH", f"{PODS}/late", patch, kind=kind)
    cluster.pod("new", WHOLE)
    for name in ("late", "new"):
        placed(cluster, name)

    put_back(cluster.plane, kept, bump)

    assert held(cluster) == before
    cluster.eventually("the books are right", lambda: agree(cluster))
    cluster.plane.processes["plugged"].kill()
    cluster.scheduler()
    cluster.plane.call("PATCH", f"{PODS}/late", patch, kind=kind)
    cluster.pod("another", WHOLE)
    for name in ("late", "another"):
        placed(cluster, name)
    assert held(cluster).keys() == {"kept", "ended", "late", "another"}
    cluster.eventually("the books are right", lambda: agree(cluster))


def serves(cluster: Plugged) -> bool:
    """Whether the engine leads."""
    try:
        cluster.booked()
    except OSError:
        return False
    return True


def test_nothing_is_bound_by_an_api_server_that_ran_meanwhile(cluster: Plugged) -> None:
    """It goes on listing what there was: the engine waits until it is restarted, and then has the right books."""
    cluster.pod("ended", WHOLE)
    cluster.bound("ended")
    kept = back_up(cluster.plane)
    before = held(cluster)
    cluster.delete("ended")
    for number in range(200):  # the store must not reach the old versions within the test
        note = {"metadata": {"name": f"c{number}"}}
        cluster.plane.call("POST", "/api/v1/namespaces/default/configmaps", note)
    cluster.pod("new", WHOLE)
    placed(cluster, "new")

    put_back(cluster.plane, kept, stop=False)

    log = cluster.plane.processes["engine"].log
    cluster.eventually("the engine waits", lambda: MEMORY in log.read_text())
    assert not serves(cluster)
    listed: list[dict[str, Any]] = cluster.plane.call("GET", PODS)["items"]
    assert [one["metadata"]["name"] for one in listed] == ["new"]  # what the server remembers
    server = cluster.plane.processes["kube-apiserver"]
    server.kill()
    server.start()
    cluster.plane.wait_ready()
    assert held(cluster) == before
    cluster.eventually("the books are right", lambda: agree(cluster))
