"""kube-scheduler with the plugin and the engine beside it, on a genuine control plane."""

import contextlib
import json
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from control_plane import control_plane
from kube_scheduler_config import SCHEDULERS, ExtenderAccess, kube_scheduler_config
from plugin_stack import AT_A, LEASE, MODULE, PATIENCE, PLUGIN, Plugged

from partage.vendors import names


@pytest.fixture(scope="module")
def program() -> Path:
    """kube-scheduler with the plugin."""
    program = PLUGIN / "kube-scheduler"
    if not program.exists():
        pytest.skip(
            "kube-scheduler with the plugin is not built from these sources; run tests/cluster/build"
        )
    return program


@pytest.fixture(scope="module")
def cluster(program: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Plugged]:
    """The cluster."""
    folder = tmp_path_factory.mktemp("plugged")
    with control_plane(folder) as plane:
        made = Plugged(plane, folder)
        made.start()
        yield made


MERGE = "application/merge-patch+json"
WHOLE = {"koordinator.sh/gpu": "100"}
QUARTER = {"koordinator.sh/gpu-core": "25", "koordinator.sh/gpu-memory-ratio": "25"}
HALF = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}
BOTH = {"koordinator.sh/gpu": "200"}


@pytest.mark.parametrize("package", ["protocol", "partage"])
def test_the_go_side_passes_its_own_tests(program: Path, package: str) -> None:
    """Against an engine that is played; the build has vetted it."""
    done = subprocess.run(
        [program.with_name(f"{package}.test"), "-test.v"],
        cwd=MODULE / package,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "--- PASS" in done.stdout


def test_pods_with_devices_are_bound_with_their_record(cluster: Plugged) -> None:
    """kube-scheduler alone binds pods without devices."""
    cluster.pod("half", HALF)
    cluster.pod("plain")

    assert names.ALLOCATION in cluster.bound("half")["metadata"]["annotations"]
    assert names.ALLOCATION not in cluster.bound("plain")["metadata"].get("annotations", {})
    cluster.delete("half", "plain")


def test_a_pod_that_waits_says_why_and_comes_when_there_is_room(cluster: Plugged) -> None:
    """This holds for each profile; the engine pushes, and nothing of the pod is changed for it."""
    for name in ("one", "two"):
        cluster.pod(name, BOTH)
        cluster.bound(name)
    for profile in SCHEDULERS:
        cluster.pod(profile, HALF, schedulerName=profile)
        assert "Insufficient" in cluster.waits(profile)

    cluster.delete("one")
    for profile in SCHEDULERS:
        found = cluster.bound(profile)
        assert names.WOKEN not in found["metadata"]["annotations"]
    cluster.delete("two", *SCHEDULERS)


def test_it_starts_and_wakes_pods_where_no_kind_is_defined(program: Path, tmp_path: Path) -> None:
    """A kind without its definition would block kube-scheduler's start; nodes are registered as HAMi's plugin does it."""
    ask = {"nvidia.com/gpu": "1"}
    card = {"id": "GPU-h", "index": 0, "count": 10, "devmem": 16384, "devcore": 100}
    card |= {"type": "NVIDIA-T4", "numa": 0, "mode": "hami-core", "health": True}
    register = {"hami.io/node-nvidia-register": json.dumps([card])}
    with control_plane(tmp_path) as plane:
        bare = Plugged(plane, tmp_path)
        amounts = {"cpu": "4", "memory": "64Gi", "pods": "50", "nvidia.com/gpu": "10"}
        node = {"metadata": {"name": "h", "annotations": register}}
        node["status"] = {"allocatable": amounts, "capacity": amounts}
        plane.call("POST", "/api/v1/nodes", node)
        account = {"metadata": {"name": "default"}, "automountServiceAccountToken": False}
        plane.call("POST", "/api/v1/namespaces/default/serviceaccounts", account)
        bare.engine()
        bare.scheduler()
        found = plane.call("GET", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions")
        assert not found["items"]

        bare.pod("plain")
        bare.bound("plain")
        bare.pod("first", ask)
        bare.bound("first")
        bare.pod("second", ask)
        assert "engine" not in bare.waits("second")
        bare.delete("first")
        bare.bound("second")
        assert bare.cards("second") == [("h", "GPU-h")]


def test_a_refusal_is_one_attempt_and_one_event(cluster: Plugged) -> None:
    """What kube-scheduler writes on a refused pod is no reason to try it again; changes by its author are."""
    for name in ("one", "two"):
        cluster.pod(name, BOTH)
        cluster.bound(name)
    for name in ("refused-1", "refused-2", "refused-3"):  # each behind whatever is tried again
        cluster.pod(name, BOTH)
        assert "InsufficientCards" in cluster.waits(name)
    cluster.eventually("an event", lambda: cluster.failures("refused-3"))
    assert cluster.failures("refused-1") == 1

    cluster.plane.call(
        "PATCH",
        "/api/v1/namespaces/default/pods/refused-1",
        {"metadata": {"labels": {"a": "b"}}},
        kind="application/merge-patch+json",
    )
    cluster.eventually("another attempt", lambda: cluster.failures("refused-1") > 1)
    cluster.delete("one", "two", "refused-1", "refused-2", "refused-3")


@pytest.mark.parametrize("full", ["cpu", "port"])
def test_the_second_choice_is_taken_before_anybody_is_evicted(cluster: Plugged, full: str) -> None:
    """The first node is full of CPU, or has the port; another is free, and a less important pod about.

    What pods request of CPU the engine knows, so that kube-scheduler rejects nothing; it knows nothing of ports.
    """
    ports = [{"containerPort": 80, "hostPort": 8080}]
    big, asks = (
        ({"resources": {"requests": {"cpu": "3"}}}, {"cpu": "2"})
        if full == "cpu"
        else ({"ports": ports}, {})
    )
    cluster.pod("filler", HALF)
    first = cluster.bound("filler")["spec"]["nodeName"]
    hog = [{"name": "main", "image": "x", **big}]
    there = {"kubernetes.io/hostname": first}
    # If it were evicted, it would be seen: it takes its time to end.
    cluster.pod("hog", containers=hog, nodeSelector=there, terminationGracePeriodSeconds=600)
    cluster.bound("hog")
    # The default policy packs, so that its first choice is the node with the share.
    wanted = {"resources": {"limits": HALF, "requests": asks}}
    if full == "port":
        wanted["ports"] = ports
    containers = [{"name": "main", "image": "x", **wanted}]
    cluster.pod("important", containers=containers, priorityClassName="high")

    assert cluster.bound("important")["spec"]["nodeName"] != first
    assert cluster.node_of("hog") == first
    assert not cluster.leaves("hog")
    if full == "port":
        cluster.eventually("a rejection", lambda: cluster.failures("important") > 0)
    assert full == "port" or not cluster.failures("important")
    cluster.delete("filler", "hog", "important")


ZONES = {"a": "east", "b": "west"}
ZONE = "topology.kubernetes.io/zone"


@pytest.fixture
def zoned(cluster: Plugged) -> Plugged:
    """The cluster, with a node in each of two zones."""
    for node, zone in ZONES.items():
        labels = {"metadata": {"labels": {ZONE: zone}}}
        cluster.plane.call("PATCH", f"/api/v1/nodes/{node}", labels, kind=MERGE)
    return cluster


def evenly(otherwise: str) -> dict[str, Any]:
    """A constraint by zone, and what is to be done where it cannot be met."""
    return {
        "maxSkew": 1,
        "topologyKey": ZONE,
        "whenUnsatisfiable": otherwise,
        "labelSelector": {"matchLabels": {"app": "spread"}},
    }


@pytest.mark.parametrize("otherwise", ["ScheduleAnyway", "DoNotSchedule"])
def test_pods_are_spread_as_they_ask(zoned: Plugged, otherwise: str) -> None:
    """kube-scheduler's wish for domains weighs more than the policy's to pack."""
    pods = [f"spread-{i}" for i in range(4)]
    for name in pods:
        zoned.pod(
            name, HALF, labels={"app": "spread"}, topologySpreadConstraints=[evenly(otherwise)]
        )
    found = Counter(ZONES[zoned.bound(name)["spec"]["nodeName"]] for name in pods)

    assert found == {"east": 2, "west": 2}
    zoned.delete(*pods)


def test_a_pod_waits_for_its_zone_and_comes_when_there_is_room(zoned: Plugged) -> None:
    """Where it would have to go all cards are taken, by a pod that its constraint does not count; elsewhere cards are free."""
    zoned.pod("filler", BOTH, nodeSelector={ZONE: "west"})
    zoned.bound("filler")
    spread = {"labels": {"app": "spread"}, "topologySpreadConstraints": [evenly("DoNotSchedule")]}
    for name in ("first", "second", "soft"):
        if name == "soft":
            spread["topologySpreadConstraints"] = [evenly("ScheduleAnyway")]
        zoned.pod(name, HALF, **spread)
        if name != "second":
            assert ZONES[zoned.bound(name)["spec"]["nodeName"]] == "east"
        else:
            zoned.waits(name)

    zoned.delete("filler")

    assert ZONES[zoned.bound("second")["spec"]["nodeName"]] == "west"
    zoned.delete("first", "second", "soft")


def test_a_pod_goes_where_its_volume_may_be(zoned: Plugged) -> None:
    """A volume that is not bound yet and exists in one zone only, which is not the first choice."""
    storage, core = "/apis/storage.k8s.io/v1/storageclasses", "/api/v1"
    size = {"storage": "1Gi"}
    there = {"key": ZONE, "operator": "In", "values": ["west"]}
    zoned.plane.call(
        "POST",
        storage,
        {
            "metadata": {"name": "local"},
            "provisioner": "kubernetes.io/no-provisioner",
            "volumeBindingMode": "WaitForFirstConsumer",
        },
    )
    volume = {
        "capacity": size,
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "local",
        "local": {"path": "/data"},
        "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [there]}]}},
    }
    whole = {"metadata": {"name": "v"}, "spec": volume}
    zoned.plane.call("POST", f"{core}/persistentvolumes", whole)
    # This and what follows further down is the work of the controller of volumes, which does not run here.
    free = {"status": {"phase": "Available"}}
    zoned.plane.call("PATCH", f"{core}/persistentvolumes/v/status", free, kind=MERGE)
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "storageClassName": "local",
        "resources": {"requests": size},
    }
    claims = f"{core}/namespaces/default/persistentvolumeclaims"
    made = zoned.plane.call("POST", claims, {"metadata": {"name": "data"}, "spec": claim})
    zoned.pod("packed", HALF, nodeSelector={ZONE: "east"})
    zoned.bound("packed")

    mounted = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    zoned.pod("web", HALF, volumes=[mounted])

    def chosen() -> bool:
        spec = zoned.plane.call("GET", f"{core}/persistentvolumes/v")["spec"]
        return (spec.get("claimRef") or {}).get("uid") == made["metadata"]["uid"]

    zoned.eventually("the volume is chosen", chosen)
    done = {"metadata": {"annotations": {"pv.kubernetes.io/bind-completed": "yes"}}}
    zoned.plane.call("PATCH", f"{claims}/data", {**done, "spec": {"volumeName": "v"}}, kind=MERGE)
    zoned.plane.call("PATCH", f"{claims}/data/status", {"status": {"phase": "Bound"}}, kind=MERGE)
    assert ZONES[zoned.bound("web")["spec"]["nodeName"]] == "west"
    assert [node for node, _ in zoned.cards("web")] == ["b"]
    zoned.delete("web", "packed")


def test_the_least_important_go_for_devices_and_what_they_leave_is_kept(cluster: Plugged) -> None:
    """One victim is enough, a budget spares the other, and no other pod gets the room meanwhile."""
    budget = {
        "metadata": {"name": "guarded"},
        "spec": {"minAvailable": 1, "selector": {"matchLabels": {"guarded": "yes"}}},
    }
    cluster.plane.call("POST", "/apis/policy/v1/namespaces/default/poddisruptionbudgets", budget)
    cluster.fills("guarded", WHOLE)
    cluster.plane.call(
        "PATCH",
        "/api/v1/namespaces/default/pods/guarded",
        {"metadata": {"labels": {"guarded": "yes"}}},
        kind="application/merge-patch+json",
    )
    cluster.fills("spare", WHOLE)
    cluster.pod("vip", WHOLE, nodeSelector=AT_A, priorityClassName="high")

    cluster.eventually("a victim", lambda: cluster.leaves("spare"))
    cluster.eventually(
        "a nomination", lambda: cluster.get("vip")["status"].get("nominatedNodeName") == "a"
    )
    cluster.pod("thief", HALF, nodeSelector=AT_A)
    cluster.waits("thief")
    cluster.delete("spare")
    cluster.bound("vip")
    assert not cluster.leaves("guarded")
    assert not cluster.node_of("thief")
    cluster.delete("guarded", "vip", "thief")


def test_room_is_made_for_devices_and_cpu_at_once(cluster: Plugged) -> None:
    """Pods with devices and others leave one node; a pod that is in neither's way stays."""
    cpu = [{"name": "main", "image": "x", "resources": {"requests": {"cpu": "2"}}}]
    cluster.fills("cards", BOTH)
    cluster.fills("hog", containers=cpu)
    cluster.fills("small")
    asks = [
        {"name": "main", "image": "x", "resources": {"limits": WHOLE, "requests": {"cpu": "3"}}}
    ]
    cluster.pod("vip", containers=asks, nodeSelector=AT_A, priorityClassName="high")

    cluster.eventually("both leave", lambda: cluster.leaves("cards") and cluster.leaves("hog"))
    cluster.delete("cards", "hog")
    assert cluster.bound("vip")["spec"]["nodeName"] == "a"
    assert not cluster.leaves("small")
    cluster.delete("vip", "small")


def test_a_pod_whose_gates_come_off_while_the_engine_stands_still_is_bound(
    cluster: Plugged,
) -> None:
    """kube-scheduler knows of it first; the engine has only the pod with gates until it goes on."""
    cluster.pod("gated", HALF, schedulingGates=[{"name": "example.com/wait"}])
    cluster.pod("seen", HALF)
    cluster.bound("seen")
    engine = cluster.plane.processes["engine"]
    engine.signal(signal.SIGSTOP)
    cluster.plane.call(
        "PATCH",
        "/api/v1/namespaces/default/pods/gated",
        {"spec": {"schedulingGates": None}},
        kind=MERGE,
    )
    time.sleep(1)  # for kube-scheduler to ask
    engine.signal(signal.SIGCONT)

    assert names.ALLOCATION in cluster.bound("gated")["metadata"]["annotations"]
    cluster.delete("gated", "seen")


def resized(cluster: Plugged, name: str, cpu: str) -> None:
    """Change the CPU of a pod's container in place."""
    cluster.plane.call(
        "PATCH",
        f"/api/v1/namespaces/default/pods/{name}/resize",
        {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}},
        kind="application/strategic-merge-patch+json",
    )


def test_a_nominated_node_may_lose_its_cpu_to_a_pod_that_grows_in_place(cluster: Plugged) -> None:
    """The nominated pod then waits for CPU and holds no card, and comes when the other one shrinks."""
    small = [{"name": "main", "image": "x", "resources": {"requests": {"cpu": "1"}}}]
    asks = [
        {"name": "main", "image": "x", "resources": {"limits": WHOLE, "requests": {"cpu": "2"}}}
    ]
    cluster.fills("cards", BOTH)
    cluster.fills("grows", containers=small, priorityClassName="high")
    cluster.pod("vip", containers=asks, nodeSelector=AT_A, priorityClassName="high")
    cluster.eventually("a victim", lambda: cluster.leaves("cards"))
    cluster.eventually(
        "a nomination", lambda: cluster.get("vip")["status"].get("nominatedNodeName") == "a"
    )

    resized(cluster, "grows", "3")
    cluster.delete("cards")
    cluster.eventually("it lacks CPU", lambda: "Insufficient cpu" in cluster.waits("vip"))
    cluster.pod("both", BOTH, nodeSelector=AT_A)
    cluster.bound("both")
    assert not cluster.leaves("grows")
    assert not cluster.leaves("both")
    cluster.delete("both")

    resized(cluster, "grows", "1")
    cluster.bound("vip")
    cluster.delete("grows", "vip")


def test_pods_of_a_removed_profile_wait_and_hold_up_no_other(cluster: Plugged) -> None:
    """kube-scheduler leaves them alone, whatever the engine pushes; they come when the profile is back."""
    kept, *_, removed = cluster.config["profiles"]
    for name in ("one", "two"):
        cluster.pod(name, BOTH)
        cluster.bound(name)
    cluster.pod("left", HALF, schedulerName=removed["schedulerName"])
    cluster.waits("left")
    before = cluster.config["profiles"]
    for profiles in ([kept], before):
        cluster.plane.processes["plugged"].stop()
        cluster.config["profiles"] = profiles
        cluster.scheduler()
        if profiles is not before:
            cluster.delete("one")
            cluster.pod("other", BOTH, schedulerName=kept["schedulerName"])
            cluster.bound("other")
            cluster.delete("two")
            cluster.pod("last", HALF, schedulerName=kept["schedulerName"])
            cluster.bound("last")
            assert not cluster.node_of("left")

    cluster.bound("left")
    cluster.delete("other", "last", "left")


@contextlib.contextmanager
def relayed(
    engine: Path, path: Path, answered: Callable[[dict[str, Any]], None]
) -> Iterator[None]:
    """A socket in front of the engine's; `answered` has each frame of the engine before kube-scheduler gets it."""
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def asks(plugin: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while some := plugin.recv(65536):
                other.sendall(some)
            other.shutdown(socket.SHUT_WR)

    def serve(plugin: socket.socket) -> None:
        # The engine may not listen yet, or have ended; kube-scheduler connects again.
        with plugin, socket.socket(socket.AF_UNIX) as other, contextlib.suppress(OSError):
            other.connect(str(engine))
            threading.Thread(target=asks, args=(plugin, other), daemon=True).start()
            frames = other.makefile("rb")
            while head := frames.read(4):
                body = frames.read(int.from_bytes(head))
                answered(json.loads(body))
                plugin.sendall(head + body)

    def accepts() -> None:
        with contextlib.suppress(OSError):
            while True:
                serve(listener.accept()[0])

    thread = threading.Thread(target=accepts, daemon=True)
    thread.start()
    try:
        yield
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        path.unlink()


def test_a_kube_scheduler_that_stood_still_sends_no_binding_late(
    cluster: Plugged, tmp_path: Path
) -> None:
    """It stops when the engine has allowed the Binding, and goes on when another instance could lead."""
    stops = threading.Event()

    def answered(frame: dict[str, Any]) -> None:
        if "within" in frame and not stops.is_set():
            stops.set()
            cluster.plane.processes["plugged"].signal(signal.SIGSTOP)

    cluster.plane.processes["plugged"].stop()
    with relayed(cluster.socket, tmp_path / "s", answered):
        cluster.scheduler(PARTAGE_SOCKET=str(tmp_path / "s"))
        cluster.pod("late", HALF)
        assert stops.wait(PATIENCE)
        time.sleep(5)  # a Binding has four seconds
        cluster.plane.processes["plugged"].signal(signal.SIGCONT)

        cluster.eventually("it is not sent", lambda: cluster.logged("the Binding was not sent"))
        cluster.bound("late")
        cluster.plane.processes["plugged"].stop()
    cluster.scheduler()
    cluster.delete("late")


def test_without_the_engine_plain_pods_go_on_and_the_others_come_later(cluster: Plugged) -> None:
    """It is killed, and comes back; pods without devices start under every scheduler name, and a pod that ran ends."""
    cluster.pod("early", HALF)
    cluster.bound("early")
    cluster.plane.processes["engine"].kill()
    plain = {name: f"plain-{name}" for name in SCHEDULERS}
    for name, one in plain.items():
        cluster.pod(one, schedulerName=name)
    for one in plain.values():
        cluster.bound(one)
    cluster.pod("half", HALF)
    assert "engine" in cluster.waits("half")
    cluster.delete("early")

    cluster.engine()
    assert names.ALLOCATION in cluster.bound("half")["metadata"]["annotations"]
    cluster.delete(*plain.values(), "half")


def test_a_restarted_kube_scheduler_is_followed(cluster: Plugged) -> None:
    """It gets its Lease again, and the engine leads with it."""
    cluster.plane.processes["plugged"].signal(signal.SIGTERM)
    cluster.eventually("its end", lambda: not cluster.plane.processes["plugged"].running)
    cluster.pod("half", HALF)
    cluster.scheduler()

    assert names.ALLOCATION in cluster.bound("half")["metadata"]["annotations"]
    cluster.delete("half")


def test_a_pod_that_is_nested_deeper_than_decoders_go_stops_nothing(cluster: Plugged) -> None:
    """Any user may write such a pod; the engine receives it, and then has it in its first list."""
    fields = b'{"f:a":' * 9000 + b"{}" + b"}" * 9000
    entry = b'{"manager":"x","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":%s}'
    written = b'{"metadata":{"name":"deep","managedFields":[%s]},"spec":{"schedulerName":"nobody","containers":[%s]}}'
    body = written % (entry % fields, b'{"name":"main","image":"x"}')
    cluster.plane.call("POST", "/api/v1/namespaces/default/pods", body, decode=False)
    kept = cluster.plane.call("GET", "/api/v1/namespaces/default/pods/deep", decode=False)
    assert kept.count(b'"f:a"') == 9000
    cluster.pod("half", HALF)
    cluster.bound("half")
    cluster.plane.processes["engine"].kill()
    cluster.engine()

    cluster.pod("later", HALF)
    assert names.ALLOCATION in cluster.bound("later")["metadata"]["annotations"]
    cluster.delete("half", "later")
    cluster.plane.call(
        "DELETE",
        "/api/v1/namespaces/default/pods/deep",
        {"gracePeriodSeconds": 0},
        decode=False,
    )


def test_each_process_may_be_killed_while_a_queue_is_bound(cluster: Plugged) -> None:
    """The kill meets a pod at any step between Reserve and the end of Bind: each is bound once, no card is over."""
    queue = [f"queued-{i}" for i in range(16)]  # as many quarters as there are
    for name in queue:
        cluster.pod(name, QUARTER)
    for part, victim in ((3, "engine"), (7, "plugged"), (11, "engine")):
        cluster.eventually(
            f"{part} bound", lambda part=part: sum(map(bool, map(cluster.node_of, queue))) >= part
        )
        cluster.plane.processes[victim].kill()
        {"engine": cluster.engine, "plugged": cluster.scheduler}[victim]()

    for name in queue:
        node = cluster.bound(name)["spec"]["nodeName"]
        assert {card[0] for card in cluster.cards(name)} == {node}
    taken = Counter(card for name in queue for card in cluster.cards(name))
    assert set(taken.values()) == {4}
    cluster.delete(*queue)


def test_a_leader_without_its_engine_leaves_to_another(cluster: Plugged) -> None:
    """Without another ready replica it stays; with one, it releases the Lease and ends."""
    cluster.plane.processes["plugged"].stop()
    cluster.replica("us", ready=True)
    cluster.replica("others", ready=False)
    cluster.scheduler(POD_NAME="us", POD_NAMESPACE="default")
    leader = cluster.plane.processes["plugged"]
    cluster.pod("half", HALF)
    cluster.bound("half")

    cluster.plane.processes["engine"].kill()
    time.sleep(8)  # longer than its patience
    assert leader.running
    cluster.replica("others", ready=True)
    cluster.eventually("its end", lambda: not leader.running)
    lease = cluster.plane.call(
        "GET", f"/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/{LEASE}"
    )
    assert not lease["spec"].get("holderIdentity")
    cluster.engine()
    cluster.scheduler()
    cluster.delete("half", "us", "others")


def test_plugin_and_extender_at_once_are_refused_at_start(cluster: Plugged, program: Path) -> None:
    """The refusal is a sentence."""
    both = kube_scheduler_config(ExtenderAccess("http://127.0.0.1:1"), [])
    both["profiles"] = cluster.config["profiles"]
    cluster.plane.start_scheduler(
        both, "both", env={"PARTAGE_SOCKET": str(cluster.socket)}, program=program
    )
    process = cluster.plane.processes["both"]

    cluster.eventually("its end", lambda: not process.running)
    assert "binds every pod, so the plugin Partage could bind none" in process.log.read_text()
    process.wanted = False
