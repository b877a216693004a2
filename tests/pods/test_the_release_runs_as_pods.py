"""What an operator types, on two nodes where all that the chart installs runs in pods from the images.

The other tests here run the same programs as processes. What only pods show is seen here: users, read-only roots, accounts
and their tokens, names of Services, certificates in mounted Secrets, probes, limits of memory, host paths of the agent,
budgets while a node is drained, what a rolling upgrade does, and a node that loses its power.
"""

import json
import shutil
import tempfile
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pods_cluster
import pytest
import yaml
from chart import CHART
from pods_cluster import REGISTRY, SEAM, SYSTEM, Cluster
from stack import documents

from partage import __version__

pytestmark = pytest.mark.timeout(1800)
EXAMPLES = Path(__file__).parents[2] / "examples"
RECORD = "partage.io/allocation"
SGPU = "metax-tech.com/sgpu"
TOGETHER = {"scheduler": 2, "webhook": 2, "agent": 2}
"""Parts and their pods where kube-scheduler has the plugin, and is in the service's pods."""
PARTS = TOGETHER if SEAM == "plugin" else {**TOGETHER, "kube-scheduler": 2}
LEASE = "partage-kube-scheduler" if SEAM == "plugin" else "partage-scheduler"
Json = dict[str, Any]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """The cluster with the chart in it."""
    folder = Path(tempfile.mkdtemp(prefix="pods-", dir="/tmp"))  # its sockets need a short path
    try:
        with pods_cluster.cluster(folder) as made:
            pods_cluster.installed(made)
            yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def part(cluster: Cluster, name: str) -> list[Json]:
    """Pods of a component that are not on their way out."""
    found = cluster.pods(f"app.kubernetes.io/component={name}")
    return [one for one in found if "deletionTimestamp" not in one["metadata"]]


def ready(one: Json) -> bool:
    """Whether all its containers are."""
    told = one["status"].get("containerStatuses", [])
    return bool(told) and all(status["ready"] for status in told)


def complete(cluster: Cluster, parts: dict[str, int] | None = None) -> bool:
    """Whether every part has all its pods, and they are ready."""
    for name, count in (parts or PARTS).items():
        found = part(cluster, name)
        if len(found) != count or not all(ready(one) for one in found):
            return False
    return True


def leader(cluster: Cluster) -> str:
    """The pod that serves; empty where none or several say so."""
    found = cluster.pods("partage.io/leader%3Dtrue")
    names = [
        one["metadata"]["name"] for one in found if "deletionTimestamp" not in one["metadata"]
    ]
    return names[0] if len(names) == 1 else ""


def read(cluster: Cluster, node: str, path: str) -> str:
    """A page of the service, by the port that every node serves."""
    url = f"http://{cluster.machines[node].address}:31993{path}"
    with urllib.request.urlopen(url, timeout=30) as answer:
        text: str = answer.read().decode()
    return text


def create(cluster: Cluster, *values: Json) -> None:
    """`kubectl apply`."""
    path = cluster.folder / "applied.yaml"
    path.write_text(yaml.safe_dump_all(values))
    cluster.kubectl("apply", "-f", str(path))


def running(cluster: Cluster, name: str) -> Json:
    """A pod of the users, once it runs."""

    def ask() -> Json | None:
        for one in cluster.pods(namespace="default"):
            if (
                one["metadata"]["name"] == name
                and one["status"]["phase"] == "Running"
                and ready(one)
            ):
                return one
        return None

    found: Json = cluster.eventually(f"pod {name} runs", ask)
    return found


def sleeper(name: str, limits: dict[str, str], **spec: Any) -> Json:
    """A pod that runs until it is ended."""
    container = {
        "name": "main",
        "image": "busybox",
        "imagePullPolicy": "Never",
        "command": ["sleep", "100000"],
        "resources": {"limits": limits},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 1, **spec},
    }


@pytest.fixture(autouse=True)
def alone(cluster: Cluster) -> Iterator[None]:
    """Everything is ready before, and no pod of users is left after."""
    yield
    cluster.kubectl(
        "delete",
        "deployments,pods",
        "--all",
        "-n",
        "default",
        "--grace-period=1",
        "--wait",
        "--timeout=240s",
    )


def test_every_part_is_ready_under_the_rules_it_sets_itself(cluster: Cluster) -> None:
    """Spread over the nodes, without a restart, as no root but the agent, and nothing can be written but /tmp."""
    cluster.eventually("every part is ready", lambda: complete(cluster))
    for name in PARTS:
        found = part(cluster, name)
        assert {one["spec"]["nodeName"] for one in found} == {"a", "b"}, name
        for one in found:
            for status in one["status"]["containerStatuses"]:
                assert status["restartCount"] == 0, cluster.told()
    script = (
        "import os, pathlib\n"
        "try: pathlib.Path('/probe').touch(); wrote = True\n"
        "except OSError: wrote = False\n"
        "pathlib.Path('/tmp/probe').touch()\n"
        "print(os.getuid(), wrote)"
    )
    for name, user in (("scheduler", 65532), ("webhook", 65532), ("agent", 0)):
        pod = part(cluster, name)[0]["metadata"]["name"]
        said = cluster.kubectl(
            "exec", "-n", SYSTEM, pod, "-c", name, "--", "python3", "-c", script
        )
        assert said.split() == [str(user), "False"]


def test_one_serves_and_the_other_takes_over(cluster: Cluster) -> None:
    """The Lease and the Service show it, on every node's port; the next leader serves after the first is gone."""
    first = cluster.eventually("one leads", lambda: leader(cluster))
    lease = json.loads(cluster.kubectl("get", "lease", "-n", SYSTEM, LEASE, "-o", "json"))
    assert lease["spec"]["holderIdentity"].startswith(f"{first}_")
    for node in cluster.machines:
        assert "# TYPE" in cluster.eventually(
            "the port answers", lambda node=node: read(cluster, node, "/metrics")
        )

    cluster.kubectl("delete", "pod", "-n", SYSTEM, first, "--wait=false")
    cluster.eventually("another leads", lambda: leader(cluster) not in ("", first))
    create(cluster, sleeper("after", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}))
    assert RECORD in running(cluster, "after")["metadata"]["annotations"]


def named(path: str, name: str) -> Json:
    """An object of an example."""
    (found,) = (d for d in documents(EXAMPLES / path) if d["metadata"]["name"] == name)
    return found


def upgraded(cluster: Cluster, *options: str) -> None:
    """`helm upgrade` with some values, until every part is ready."""
    cluster.helm(
        "upgrade", "partage", str(CHART), "--reuse-values", "--wait", "--timeout", "5m", *options
    )
    cluster.eventually("every part is ready", lambda: complete(cluster))


def published() -> list[Json]:
    """Pods of three documents, as printed but for what two small nodes without a registry cannot have."""
    koordinator = named("koordinator/host04-pods.yaml", "pod-example")
    (qgpu,) = documents(EXAMPLES / "qgpu/deployment.yaml")
    container = qgpu["spec"]["template"]["spec"]["containers"][0]
    container.update({"imagePullPolicy": "Never", "command": ["sleep", "100000"]})
    hami = sleeper(
        "slice-by-size",
        named("hami/pods.yaml", "slice-by-size")["spec"]["containers"][0]["resources"]["limits"],
    )
    hami["metadata"]["annotations"] = {"nvidia.com/vgpu-mode": "hami-core"}
    hami["spec"]["schedulerName"] = "hami-scheduler"
    return [koordinator, qgpu, hami]


def test_the_published_manifests_run(cluster: Cluster) -> None:
    """Placed by the second kube-scheduler, which asks the service by its name; the kubelet runs them."""
    create(cluster, *published())
    for name in ("pod-example", "slice-by-size"):
        assert RECORD in running(cluster, name)["metadata"]["annotations"]

    def replicas() -> list[Json]:
        found = [one for one in cluster.pods("app=qgpu-service", "default") if ready(one)]
        return found if len(found) == 2 else []

    for one in cluster.eventually("both replicas run", replicas):
        (device,) = json.loads(one["metadata"]["annotations"][RECORD])["containers"][0]["devices"]
        assert (device["milli"], device["bytes"]) == (300, 5 * 2**30)
        given = cluster.kubectl("exec", one["metadata"]["name"], "--", "env")
        assert device["uuid"] in given


def test_the_published_manifest_of_metax_runs(cluster: Cluster) -> None:
    """An upgrade gives every node other cards first; a stand-in for MetaX's plugin reports its units."""
    units = {"status": {"capacity": {SGPU: "16"}, "allocatable": {SGPU: "16"}}}
    for node in cluster.machines:
        cluster.kubectl(
            "patch", "node", node, "--subresource=status", "--type=merge", "-p", json.dumps(units)
        )
    upgraded(cluster, "--set", "agent.simulated.model=C500")
    found = named("metax/pods.yaml", "test-metax-sGPU")
    found["metadata"]["name"] = "test-metax-sgpu"
    (container,) = found["spec"]["containers"]
    for amounts in container["resources"].values():
        amounts.update({"cpu": "10m", "memory": "16Mi"})
    create(cluster, found)
    notes = running(cluster, "test-metax-sgpu")["metadata"]["annotations"]
    (device,) = json.loads(notes[RECORD])["containers"][0]["devices"]
    assert (device["milli"], device["bytes"]) == (100, 2**30)
    cluster.kubectl("delete", "pod", "test-metax-sgpu", "--grace-period=1")
    cluster.helm("rollback", "partage", "--wait", "--timeout", "5m")
    gone = {"status": {"capacity": {SGPU: None}, "allocatable": {SGPU: None}}}
    for node in cluster.machines:
        cluster.kubectl(
            "patch", "node", node, "--subresource=status", "--type=merge", "-p", json.dumps(gone)
        )
    create(cluster, sleeper("after", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}))
    running(cluster, "after")


def stranger(name: str, **labels: str) -> Json:
    """A pod of a tenant that can connect to others."""
    made = sleeper(name, {})
    made["metadata"]["labels"] = labels
    made["spec"]["containers"][0]["image"] = f"{REGISTRY}/partage:{__version__}"
    return made


def ports(cluster: Cluster) -> dict[str, list[tuple[str, str, int]]]:
    """Node, address and number of every port of the chart's pods, by part and name."""
    found: dict[str, list[tuple[str, str, int]]] = {}
    for name in PARTS:
        for one in part(cluster, name):
            for container in one["spec"]["containers"]:
                for port in container.get("ports", ()):
                    place = (
                        one["spec"]["nodeName"],
                        one["status"]["podIP"],
                        port["containerPort"],
                    )
                    found.setdefault(f"{name} {port['name']}", []).append(place)
    return found


def connecting(places: dict[str, list[tuple[str, str, int]]]) -> tuple[str, ...]:
    """A command that prints which of the ports take connections: those that do on every pod, and on none."""
    script = (
        "import json, socket, sys\n"
        "def opens(address, port):\n"
        "    try: socket.create_connection((address, port), 3).close(); return True\n"
        "    except OSError: return False\n"
        "print(json.dumps({name: sorted({opens(a, p) for _, a, p in places})"
        " for name, places in json.loads(sys.argv[1]).items()}))"
    )
    return ("python3", "-c", script, json.dumps(places))


def test_policies_let_in_what_the_chart_says(cluster: Cluster) -> None:
    """All that a pod need not reach is closed to it, and the kubelet of the node gets in for its probes."""
    shut = {"scheduler health", "webhook health", "agent health", "scheduler verbs"}
    readers = {"scheduler read", "agent metrics"}
    create(cluster, stranger("stranger"), stranger("reader", reads="yes"))
    for name in ("stranger", "reader"):
        running(cluster, name)
    found = ports(cluster)

    def reached(name: str) -> set[str]:
        told = json.loads(cluster.kubectl("exec", name, "--", *connecting(found)))
        assert all(len(one) == 1 for one in told.values()), told
        return {port for port, (opens,) in told.items() if opens}

    def only(name: str, wanted: set[str]) -> None:
        cluster.eventually(f"{name} reaches {wanted}", lambda: reached(name) == wanted)

    assert shut & set(found) >= {"scheduler health", "webhook health", "agent health"}
    only("stranger", set(found) - shut)
    for node in cluster.machines:
        here = {name: [one for one in places if one[0] == node] for name, places in found.items()}
        told = json.loads(cluster.machines[node].run(*connecting(here)))
        assert all(one == [True] for one in told.values()), told

    peers = [{"namespaceSelector": {}, "podSelector": {"matchLabels": {"reads": "yes"}}}]
    upgraded(cluster, "--set-json", f"networkPolicy.readFrom={json.dumps(peers)}")
    only("stranger", set(found) - shut - readers)
    only("reader", set(found) - shut)
    create(cluster, sleeper("share", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1000"}))
    running(cluster, "share")
    cluster.helm("rollback", "partage", "--wait", "--timeout", "5m")
    only("stranger", set(found) - shut)


def test_a_node_can_be_drained(cluster: Cluster) -> None:
    """Budgets let its pods go one at a time, all of them run on the other node, and the agent stays."""
    apart = {"nodeSelector": {"kubernetes.io/hostname": "a"}}
    create(cluster, sleeper("stays", {"koordinator.sh/gpu": "50"}, **apart))
    kept = running(cluster, "stays")["metadata"]["annotations"][RECORD]
    cluster.kubectl(
        "drain", "b", "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=280s"
    )
    try:
        cluster.eventually("all is ready on one node", lambda: complete(cluster))
        where = {
            one["spec"]["nodeName"]
            for name in PARTS
            if name != "agent"
            for one in part(cluster, name)
        }
        assert where == {"a"}
        assert {one["spec"]["nodeName"] for one in part(cluster, "agent")} == {"a", "b"}
        cluster.eventually("one leads", lambda: leader(cluster))
        assert running(cluster, "stays")["metadata"]["annotations"][RECORD] == kept
    finally:
        cluster.kubectl("uncordon", "b")


def test_an_upgrade_and_the_way_back_disturb_no_pod(cluster: Cluster) -> None:
    """Helm waits for what the pods say themselves; pods are placed before, between and after."""
    share = {"tke.cloud.tencent.com/qgpu-core": "20", "tke.cloud.tencent.com/qgpu-memory": "4"}
    create(cluster, sleeper("before", share))
    before = running(cluster, "before")
    upgraded(
        cluster,
        "--set",
        "scheduler.auditSeconds=33,webhook.logLevel=debug,agent.logLevel=debug",
    )
    create(cluster, sleeper("between", share))
    running(cluster, "between")
    cluster.helm("rollback", "partage", "--wait", "--timeout", "5m")
    cluster.eventually("every part is ready", lambda: complete(cluster))
    create(cluster, sleeper("after", share))
    running(cluster, "after")
    now = running(cluster, "before")
    assert now["metadata"]["annotations"][RECORD] == before["metadata"]["annotations"][RECORD]
    assert now["status"]["containerStatuses"][0]["restartCount"] == 0


def started(one: Json) -> str:
    """When its container was last started; empty where it does not run."""
    (status,) = one["status"].get("containerStatuses", [{}])
    return str(status.get("state", {}).get("running", {}).get("startedAt", ""))


def test_a_node_that_loses_its_power_comes_back(cluster: Cluster) -> None:
    """Pods run again with the devices that they had, and the parts that were there are ready.

    For what a device plugin serves, of any vendor, this is not so: a kubelet that starts admits such pods before the
    plugin is there, and fails them for good, so that their controller makes new ones.
    """
    there = {"kubernetes.io/hostname": "b"}
    create(cluster, sleeper("kept", {"koordinator.sh/gpu": "50"}, nodeSelector=there))
    plugin = sleeper("", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "2000"}, nodeSelector=there)
    del plugin["spec"]["terminationGracePeriodSeconds"]
    labels = {"app": "anew"}
    template = {"metadata": {"labels": labels}, "spec": plugin["spec"]}
    deployment = {"replicas": 1, "selector": {"matchLabels": labels}, "template": template}
    create(
        cluster,
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "anew"},
            "spec": deployment,
        },
    )
    before = running(cluster, "kept")

    def of_deployment() -> str:
        found = [one for one in cluster.pods("app=anew", "default") if ready(one)]
        return started(found[0]) if len(found) == 1 else ""

    first = cluster.eventually("the Deployment's pod runs", of_deployment)
    cluster.reboot("b")
    cluster.eventually(
        "the pod runs again",
        lambda: started(running(cluster, "kept")) not in ("", started(before)),
    )
    now = running(cluster, "kept")
    assert now["metadata"]["uid"] == before["metadata"]["uid"]
    assert now["metadata"]["annotations"][RECORD] == before["metadata"]["annotations"][RECORD]
    cluster.eventually(
        "the Deployment's pod runs again", lambda: of_deployment() not in ("", first)
    )
    cluster.eventually("every part is ready", lambda: complete(cluster))


def test_the_other_seam_takes_its_place(cluster: Cluster) -> None:
    """An upgrade changes how kube-scheduler asks, and a roll-back changes it again."""
    other = "extender" if SEAM == "plugin" else "plugin"
    parts = {**TOGETHER, "kube-scheduler": 2 if other == "extender" else 0}
    cluster.helm(
        "upgrade",
        "partage",
        str(CHART),
        "--reuse-values",
        "--wait",
        "--timeout",
        "5m",
        "--set",
        f"scheduler.seam={other}",
    )
    cluster.eventually("every part is ready", lambda: complete(cluster, parts))
    create(cluster, sleeper("otherwise", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}))
    assert RECORD in running(cluster, "otherwise")["metadata"]["annotations"]
    cluster.helm("rollback", "partage", "--wait", "--timeout", "5m")
    cluster.eventually("every part is ready", lambda: complete(cluster))
    create(cluster, sleeper("again", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}))
    assert RECORD in running(cluster, "again")["metadata"]["annotations"]


def test_uninstalling_leaves_nothing(cluster: Cluster) -> None:
    """The namespace is empty, and nodes and Devices have nothing of ours."""
    cluster.helm("uninstall", "partage", "--wait", "--timeout", "5m")
    cluster.eventually("no pod is left", lambda: not cluster.pods())
    for name in cluster.machines:
        found = cluster.plane.call("GET", f"/api/v1/nodes/{name}")
        assert "partage.io" not in json.dumps(found["metadata"])
    devices = "/apis/scheduling.koordinator.sh/v1alpha1/devices"
    assert not cluster.plane.call("GET", devices)["items"]
