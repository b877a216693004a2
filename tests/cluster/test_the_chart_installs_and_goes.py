"""The chart under the genuine helm: what it renders, what an API server takes, what it leaves."""

import json
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import generate
import pytest
import yaml
from chart import CHART, helm
from control_plane import HELM, HELM3, KUBERNETES, ControlPlane, control_plane
from kube_scheduler_config import (
    ExtenderAccess,
    kube_scheduler_config,
    left_to_the_ledger,
)
from stack import DEFINITIONS, MERGE, collection, deleted_at_first_try, eventually, listed

from partage.vendors.catalog import FAMILIES
from partage.webhook.installation import conditions
from partage.wire.config import translate_config
from partage.wire.context import Context
from partage.wire.documents import decode

DEPLOY = CHART.parents[1]
Manifest = dict[str, Any]
PROFILES = tuple(generate.NAMESPACES)
RENAMED = (
    "--set",
    "resourceName=example.com/vgpu",
    "--set",
    "resourceMem=example.com/vmem",
    "--set",
    "resourceCores=example.com/vcores",
    "--set",
    "resourcePriority=example.com/prio",
)


def objects(profile: str, *options: str) -> list[Manifest]:
    """What a profile renders to."""
    text = generate.rendered(str(HELM), profile, *options)
    return [one for one in yaml.safe_load_all(text) if one]


def one(found: list[Manifest], kind: str, name: str) -> Manifest:
    """The object of a kind and name."""
    (hit,) = (o for o in found if o["kind"] == kind and o["metadata"]["name"] == name)
    return hit


def options_of(found: list[Manifest]) -> list[str]:
    """What the webhook's Deployment gives its program."""
    (hit,) = (
        o["spec"]["template"]["spec"]["containers"][0]["args"]
        for o in found
        if o["kind"] == "Deployment" and "webhook" in o["metadata"]["name"]
    )
    return [a for a in hit[1:] if not a.startswith(("--port", "--log", "--secret"))]


def bare(found: list[Manifest]) -> list[Manifest]:
    """Admission objects of pods without labels, in order of kind."""
    kinds = ("WebhookConfiguration", "AdmissionPolicy", "AdmissionPolicyBinding")
    others = ("-own-node", "-own-fields", "-config-namespaces")
    ours = [
        o
        for o in found
        if o["kind"].endswith(kinds) and not o["metadata"]["name"].endswith(others)
    ]
    for o in ours:
        o["metadata"].pop("labels", None)
    return sorted(ours, key=lambda o: str(o["kind"]))


@pytest.mark.parametrize("profile", PROFILES)
def test_admission_is_what_the_program_prints(profile: str) -> None:
    """Every condition, rule and name of the chart's admission is the webhook's own."""
    found = objects(profile)
    command = [
        sys.executable,
        "-m",
        "partage.cli.main",
        "webhook",
        "--manifests",
        *options_of(found),
    ]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert bare(found) == bare(list(yaml.safe_load_all(printed)))


@pytest.mark.parametrize("profile", PROFILES)
def test_the_second_scheduler_asks_as_the_program_says(profile: str) -> None:
    """Its configuration is `deploy/kube_scheduler_config.py`'s, with connection and election added."""
    found = objects(profile)
    (config,) = (
        yaml.safe_load(o["data"]["config.yaml"])
        for o in found
        if o["kind"] == "ConfigMap" and "config.yaml" in o["data"]
    )
    for own in ("clientConnection", "leaderElection", "parallelism"):
        config.pop(own)
    services = [
        o["metadata"]
        for o in found
        if o["kind"] == "Service" and o["spec"]["ports"][0]["name"] == "verbs"
    ]
    assert len(services) == (profile in {"extender", "qgpu"})
    access = None
    for service in services:
        access = ExtenderAccess(
            f"https://{service['name']}.{service['namespace']}.svc:8443",
            "/etc/partage/ca.crt",
            "/etc/partage/tls.crt",
            "/etc/partage/tls.key",
        )
    settings = translate_config(
        decode("chart", yaml.safe_dump_all(maps(found)).encode()).documents
    )
    names = [p["schedulerName"] for p in config["profiles"]]
    assert "default-scheduler" not in names
    assert config == kube_scheduler_config(
        access, left_to_the_ledger(FAMILIES, settings.settings), names
    )


def maps(found: list[Manifest]) -> list[Manifest]:
    """The ConfigMaps."""
    return [o for o in found if o["kind"] == "ConfigMap"]


@pytest.mark.parametrize("profile", PROFILES)
def test_every_map_is_read_without_a_note(profile: str) -> None:
    """Partage takes every ConfigMap of the chart, and its policy."""
    found = objects(profile)
    read = translate_config(decode("chart", yaml.safe_dump_all(maps(found)).encode()).documents)
    assert read.notes == ()
    policies = {"qgpu": "spread", "koordinator": "spread", "hami": "binpack/spread"}
    assert str(read.policy).lower() == policies.get(profile, "partage")
    assert len(read.settings.hami.geometries) == (3 if profile == "hami" else 0)


def test_objects_are_valid() -> None:
    """The plain manifests are those of the chart, and helm finds no fault in it."""
    for name, text in generate.kustomize(str(HELM)).items():
        assert (DEPLOY / "kustomize" / name).read_text() == text, "run deploy/generate.py"
    done = subprocess.run(
        [str(HELM), "lint", "--strict", str(CHART)], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stdout


@pytest.fixture(scope="module")
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server of its own, without controllers: objects count, nothing runs."""
    folder = tmp_path_factory.mktemp("chart")
    written = {
        "level": "Request",
        "verbs": ["create", "update", "patch"],
        "resources": [{"group": "admissionregistration.k8s.io"}],
    }
    rules = [written, {"level": "Metadata", "verbs": ["delete"]}, {"level": "None"}]
    policy = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": rules,
    }
    (folder / "audit.json").write_text(json.dumps(policy))
    flags = (
        f"--audit-policy-file={folder / 'audit.json'}",
        f"--audit-log-path={folder / 'audit.log'}",
    )
    with control_plane(folder, *flags) as made:
        yield made


def left(plane: ControlPlane, found: list[Manifest]) -> list[str]:
    """Those of these objects that the server has."""
    have = []
    for o in found:
        path = f"{collection(o)}/{o['metadata']['name']}"
        try:
            plane.call("GET", path)
        except OSError:
            continue
        have.append(path)
    return have


def gone(plane: ControlPlane, found: list[Manifest]) -> bool:
    """Whether the server has none of these objects.

    Raises:
        OSError: it has some, which are named, for `eventually` to tell.
    """
    there = left(plane, found)
    if there:
        raise OSError(f"still there: {there}")
    return True


@pytest.mark.parametrize("profile", PROFILES)
def test_it_comes_changes_goes_back_and_leaves_nothing(plane: ControlPlane, profile: str) -> None:
    """Install, upgrade, roll back, uninstall; afterwards not one object of it is left."""
    space = generate.NAMESPACES[profile]
    values = [] if profile == "default" else ["-f", str(CHART / "profiles" / f"{profile}.yaml")]
    given = [str(CHART), "-n", space, *values, "--set", "crds.keep=false"]
    found = objects(profile)
    helm(plane, "install", "partage", *given, "--create-namespace")
    assert len(left(plane, found)) == len(found)
    helm(plane, "upgrade", "partage", *given, "--set", "placement.policy=binpack", *RENAMED)
    config = f"/api/v1/namespaces/{space}/configmaps/partage-config"
    assert plane.call("GET", config)["data"]["policy"] == "binpack"
    helm(plane, "rollback", "partage", "1", "-n", space)
    assert plane.call("GET", config)["data"]["policy"] != "binpack"
    listed(plane)
    helm(plane, "uninstall", "partage", "-n", space, "--no-hooks")  # no controller runs a Job here
    eventually("all of it is gone", lambda: gone(plane, found))
    assert deleted_at_first_try(plane)
    kinds = json.dumps(plane.call("GET", f"/api/v1/namespaces/{space}/secrets")["items"])
    assert "helm" not in kinds


@pytest.mark.parametrize("profile", PROFILES)
def test_a_server_would_take_every_object(plane: ControlPlane, profile: str) -> None:
    """A server-side dry run by kubectl of the plain manifests finds no fault."""
    space = generate.NAMESPACES[profile]
    if space not in json.dumps(plane.call("GET", "/api/v1/namespaces")):
        plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": space}})
    done = subprocess.run(
        [
            str(KUBERNETES / "kubectl"),
            f"--kubeconfig={plane.kubeconfig()}",
            "apply",
            "--server-side",
            "--validate=strict",
            "--dry-run=server",
            "-k",
            str(DEPLOY / "kustomize" / profile),
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("values", "told"),
    [
        pytest.param("scheduler.replica=3", "replica", id="a name that is not a value"),
        pytest.param(
            "schedulerNames={default-scheduler}", "schedulerNames", id="the cluster's own"
        ),
        pytest.param("metrics.service.port=0", "port", id="no port"),
        pytest.param("scheduler.featureGates=Other=true", "featureGates", id="an unknown gate"),
    ],
)
def test_a_wrong_value_is_refused_by_name(values: str, told: str) -> None:
    """Helm says which value breaks the schema."""
    with pytest.raises(subprocess.CalledProcessError) as error:
        objects("default", "--set", values)
    assert told in error.value.stderr


def test_renamed_resources_are_renamed_everywhere() -> None:
    """Conditions and kube-scheduler follow the values, as the running webhook would have them."""
    found = objects("default", *RENAMED)
    settings = translate_config(
        decode("chart", yaml.safe_dump_all(maps(found)).encode()).documents
    ).settings
    context = Context.of(settings, FAMILIES)
    for o in found:
        if o["kind"].endswith("WebhookConfiguration"):
            (webhook,) = o["webhooks"]
            assert webhook["matchConditions"] == conditions(webhook["name"], context)
    config = yaml.safe_load(
        one(found, "ConfigMap", "partage-kube-scheduler")["data"]["config.yaml"]
    )
    for profile in config["profiles"]:
        args = profile["pluginConfig"][0]["args"]
        assert args["ignoredResources"] == left_to_the_ledger(FAMILIES, settings)


FLOOR = {
    "qgpu-scheduler": {
        ("", "nodes"): {"get", "list", "watch"},
        ("", "events"): {"create", "patch"},
        ("", "pods"): {"update", "patch", "get", "list", "watch"},
        ("", "bindings"): {"create"},
        ("", "pods/binding"): {"create"},
        ("", "configmaps"): {"get", "list", "watch"},
        ("elasticgpu.io", "gpus"): {"*"},
        ("elasticgpu.io", "gpus/status"): {"*"},
    },
    "qgpu-manager": {
        ("", "pods"): {"get", "list", "watch"},
        ("", "nodes"): {"update", "get", "list", "watch"},
        ("elasticgpu.io", "gpus"): {"*"},
        ("elasticgpu.io", "gpus/status"): {"*"},
    },
}
"""The roles that the qGPU document prints."""


def verbs(role: Manifest) -> dict[tuple[str, str], set[str]]:
    """What a role allows, by group and resource."""
    found: dict[tuple[str, str], set[str]] = {}
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                found.setdefault((group, resource), set()).update(rule["verbs"])
    return found


@pytest.mark.parametrize("name", FLOOR)
def test_published_roles_are_the_floor(name: str) -> None:
    """Every verb of the document is there, under the document's names, in its namespace."""
    found = objects("qgpu")
    have = verbs(one(found, "ClusterRole", name))
    for what, wanted in FLOOR[name].items():
        assert have[what] >= wanted, what
    (subject,) = one(found, "ClusterRoleBinding", name)["subjects"]
    assert subject == {"kind": "ServiceAccount", "name": name, "namespace": "kube-system"}


def test_published_objects_have_their_published_names() -> None:
    """The qGPU document: names, namespace, replicas and requests."""
    found = objects("qgpu")
    deployment = one(found, "Deployment", "qgpu-scheduler")
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert deployment["spec"]["replicas"] == 1
    assert container["resources"]["requests"] == {"cpu": "1", "memory": "800M"}
    (manager,) = one(found, "DaemonSet", "qgpu-manager")["spec"]["template"]["spec"]["containers"]
    assert manager["resources"]["requests"] == {"cpu": "200m", "memory": "300M"}
    assert one(found, "Service", "qgpu-scheduler")["metadata"]["namespace"] == "kube-system"
    assert not [o for o in objects("default") if o["kind"] == "DaemonSet"]


HELMS = [
    pytest.param(HELM, id="helm 4"),
    pytest.param(
        HELM3,
        id="helm 3",
        marks=pytest.mark.skipif(
            not HELM3.exists(), reason="helm 3 not built; run tests/cluster/build"
        ),
    ),
]
BAD = 400
"""From this status on a request has changed nothing."""
WEBHOOKS = {"mutatingwebhookconfigurations", "validatingwebhookconfigurations"}


@pytest.mark.parametrize("program", HELMS)
def test_nothing_waits_for_a_webhook_that_is_gone(plane: ControlPlane, program: Path) -> None:
    """Both webhook configurations are away for good before the Deployment or the Service is deleted."""
    log = plane.folder / "audit.log"
    given = ("--create-namespace", "--set", "crds.devices=false,crds.elasticgpu=false")
    helm(plane, "install", "order", str(CHART), "-n", "order", *given, program=program)
    before = len(log.read_text().splitlines())

    with jobs_done(plane, "order"):
        helm(plane, "uninstall", "order", "-n", "order", program=program)

    webhooks_went_first(log.read_text().splitlines()[before:])


@pytest.mark.parametrize("program", HELMS)
def test_an_upgrade_brings_definitions_and_new_defaults(
    plane: ControlPlane, program: Path, tmp_path: Path
) -> None:
    """With the page's option, set values stay; the rest is the new chart's, kept definitions included."""
    newer = tmp_path / "partage"
    shutil.copytree(CHART, newer)
    values, devices = newer / "values.yaml", newer / "files" / "devices.json"
    values.write_text(values.read_text().replace("auditSeconds: 60", "auditSeconds: 61"))
    definition = json.loads(devices.read_text())
    definition["spec"]["names"]["categories"] = ["newer"]
    devices.write_text(json.dumps(definition))
    space = "upgraded"
    given = ("-n", space, "--create-namespace", "--set", "placement.policy=binpack")
    helm(plane, "install", "partage", str(CHART), *given, program=program)

    helm(
        plane,
        "upgrade",
        "partage",
        str(newer),
        "-n",
        space,
        "--reset-then-reuse-values",
        program=program,
    )

    kept = f"{DEFINITIONS}/{definition['metadata']['name']}"
    assert plane.call("GET", kept)["spec"]["names"]["categories"] == ["newer"]
    config = plane.call("GET", f"/api/v1/namespaces/{space}/configmaps/partage-config")
    assert config["data"]["policy"] == "binpack"
    path = f"/apis/apps/v1/namespaces/{space}/deployments/partage-scheduler"
    container, _ = plane.call("GET", path)["spec"]["template"]["spec"]["containers"]
    assert "--audit=61" in container["args"]
    helm(plane, "uninstall", "partage", "-n", space, "--no-hooks", program=program)
    listed(plane)
    kubectl(
        plane,
        "delete",
        "crd",
        *(one["metadata"]["name"] for one in plane.call("GET", DEFINITIONS)["items"]),
    )


@pytest.mark.parametrize("program", HELMS)
def test_what_is_only_printed_can_be_applied(program: Path) -> None:
    """No two objects of one name, of which the later, such as the stand-in, would take the other's place."""
    found = yaml.safe_load_all(generate.rendered(str(program), "default", hooks=True))
    names = [
        (o["kind"], o["metadata"]["name"], o["metadata"].get("namespace")) for o in found if o
    ]

    assert len(names) == len(set(names))


def webhooks_went_first(lines: list[str]) -> None:
    """Assert it of lines of the audit log."""
    asked: set[str] = set()
    away: set[str] = set()
    for event in map(json.loads, lines):
        what, verb = event["objectRef"]["resource"], event["verb"]
        if event["responseStatus"]["code"] >= BAD:
            continue
        if what in WEBHOOKS and verb == "delete":
            away.add(what)
        elif what in WEBHOOKS:  # the stand-in, which calls no webhook
            away.discard(what)
            assert not event["requestObject"].get("webhooks")
        elif what in {"deployments", "services"} and verb == "delete":
            asked.add(what)
            assert away == WEBHOOKS, what
    assert asked == {"deployments", "services"}
    assert away == WEBHOOKS


@contextmanager
def jobs_done(plane: ControlPlane, namespace: str) -> Iterator[None]:
    """Report every Job of a namespace as done, which its controller and a kubelet would do."""
    jobs = f"/apis/batch/v1/namespaces/{namespace}/jobs"
    over = threading.Event()

    def report() -> None:
        while not over.wait(0.2):
            with suppress(OSError):
                for found in plane.call("GET", jobs)["items"]:
                    now = found["metadata"]["creationTimestamp"]
                    ended = [
                        {"type": one, "status": "True"}
                        for one in ("SuccessCriteriaMet", "Complete")
                    ]
                    status = {
                        "startTime": now,
                        "completionTime": now,
                        "succeeded": 1,
                        "conditions": ended,
                    }
                    path = f"{jobs}/{found['metadata']['name']}/status"
                    plane.call("PATCH", path, {"status": status}, kind=MERGE)

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_plain_manifests_go_and_leave_others_objects(plane: ControlPlane) -> None:
    """What the page types deletes all programs, webhook configurations first, and no Device."""
    folder = DEPLOY / "kustomize" / "default"
    kubectl(plane, "apply", "-k", str(folder))
    device = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {"name": "n1"},
        "spec": {"devices": []},
    }
    eventually("koordlet reports a node", lambda: put(plane, device))
    log = plane.folder / "audit.log"
    before = len(log.read_text().splitlines())

    kubectl(plane, "delete", "-f", str(folder / "partage.yaml"))

    webhooks_went_first(log.read_text().splitlines()[before:])
    files = {
        name: list(yaml.safe_load_all((folder / name).read_text()))
        for name in ("partage.yaml", "definitions.yaml")
    }
    assert not left(plane, files["partage.yaml"])
    assert (
        len(left(plane, [*files["definitions.yaml"], device]))
        == len(files["definitions.yaml"]) + 1
    )
    space = plane.call("GET", "/api/v1/namespaces/partage-system")
    assert space["status"]["phase"] == "Active"


def kubectl(plane: ControlPlane, *arguments: str) -> None:
    """Run the genuine kubectl as the administrator.

    Raises:
        AssertionError: it failed; says what it said.
    """
    command = [str(KUBERNETES / "kubectl"), f"--kubeconfig={plane.kubeconfig()}", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def put(plane: ControlPlane, made: Manifest) -> bool:
    """Whether the server takes it; not before it serves its definition."""
    with suppress(OSError):
        plane.call("POST", collection(made), made)
        return True
    return False
