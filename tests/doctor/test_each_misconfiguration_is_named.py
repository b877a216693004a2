"""Each seeded misconfiguration is named, with its rule and its fix; a sound cluster has none."""

import base64
import copy
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given as given_by
from hypothesis import settings
from hypothesis import strategies as st
from kube_scheduler_config import ExtenderAccess, kube_scheduler_config

from partage.agent.notes import Code, Notes
from partage.cli.doctor import Listed, Right, account_of, doctor, facts_of, listed, rights_of
from partage.cli.main import main
from partage.doctor.checks import diagnosed
from partage.doctor.finding import Level
from partage.doctor.machine import examined
from partage.doctor.scheduler_config import KIND
from partage.vendors import names
from partage.vendors.settings import Settings
from partage.webhook.certificates import Bundle, renewed
from partage.webhook.installation import CLAIMS, MUTATE, VALIDATE
from partage.wire.context import Context
from partage.wire.nodes import device_totals, translate_node
from partage.wire.plugin import SAME_RELEASE

NOW = datetime(2026, 11, 20, tzinfo=UTC)
WORLD = dict[str, Any]
_NOBODY = 65534
AMOUNTS = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}


def authority(now: datetime) -> str:
    """A caBundle made at that time."""
    return base64.b64encode(renewed(Bundle(), ["a.example"], now).trusted).decode()


def pod(name: str, **spec: Any) -> WORLD:
    """A pod of the system's namespace."""
    containers = spec.pop("containers", [{"name": "main", "image": "busybox"}])
    return {
        "metadata": {"name": name, "namespace": "kube-system", "uid": f"uid-{name}"},
        "spec": {"containers": containers, **spec},
        "status": {"phase": "Running"},
    }


def asking(name: str, limits: WORLD, **spec: Any) -> WORLD:
    """A pod that asks for devices."""
    container = {"name": "main", "resources": {"limits": limits, "requests": limits}}
    return pod(name, containers=[container], **spec)


def plugin(name: str, image: str) -> WORLD:
    """A pod that serves a device plugin."""
    path = {"hostPath": {"path": "/var/lib/kubelet/device-plugins"}}
    return pod(name, containers=[{"name": "main", "image": image}], nodeName="n0", volumes=[path])


def world() -> WORLD:
    """A sound cluster of one node."""
    config = kube_scheduler_config(ExtenderAccess("https://partage:8443"), [])
    totals = {
        f"{domain}/{name}": "100"
        for domain in ("koordinator.sh", "kubernetes.io")
        for name in ("gpu-core", "gpu-memory-ratio")
    }
    resources = {
        "koordinator.sh/gpu-core": "100",
        "koordinator.sh/gpu-memory": "80Gi",
        "koordinator.sh/gpu-memory-ratio": "100",
    }
    device = {"type": "gpu", "id": "GPU-0", "minor": 0, "health": True, "resources": resources}
    bundle = {"caBundle": authority(NOW), "service": {"namespace": "p", "name": "webhook"}}
    return {
        "ConfigMap": [
            {
                "metadata": {"name": "beside", "namespace": "p"},
                "data": {"c": yaml.safe_dump(config)},
            }
        ],
        "Node": [{"metadata": {"name": "n0"}, "status": {"allocatable": totals}}],
        "Device": [{"metadata": {"name": "n0"}, "spec": {"devices": [device]}}],
        "Pod": [plugin("agent", "partage:1")],
        "MutatingWebhookConfiguration": [
            {"metadata": {"name": "p"}, "webhooks": [{"name": MUTATE, "clientConfig": bundle}]}
        ],
        "ValidatingWebhookConfiguration": [
            {"metadata": {"name": "p"}, "webhooks": [{"name": VALIDATE, "clientConfig": bundle}]}
        ],
        "RuntimeClass": [],
        "Lease": [
            {
                "metadata": {"name": "partage-agent-n0"},
                "spec": {"renewTime": "2026-11-19T23:59:50.000000Z"},
            }
        ],
    }


def told(given: WORLD) -> dict[str, Listed]:
    """Objects as the API server writes them."""
    return {
        kind: Listed()
        if some is None
        else listed(kind, [json.dumps(one).encode() for one in some])
        for kind, some in given.items()
    }


def checks(given: WORLD, denied: tuple[str, ...] = ()) -> list[str]:
    """Names of what is found; each finding says something in every field."""
    found = diagnosed(facts_of(told(given), NOW, denied))
    assert all(one.thing and one.rule and one.fix for one in found)
    return [one.check for one in found]


def configured(**change: Any) -> Callable[[WORLD], None]:
    """Another kube-scheduler configuration."""

    def apply(given: WORLD) -> None:
        (config,) = given["ConfigMap"]
        text = yaml.safe_load(config["data"]["c"])
        extender = change.pop("extender", {})
        text.update(change)
        for one in text["extenders"]:
            one.update(extender)
        config["data"]["c"] = yaml.safe_dump(text)

    return apply


def added(kind: str, one: WORLD) -> Callable[[WORLD], None]:
    """One object more."""
    return lambda given: given[kind].append(one)


def labelled(nodes: int = 1, **labels: str) -> Callable[[WORLD], None]:
    """The last of so many nodes that are alike otherwise has these labels."""

    def apply(given: WORLD) -> None:
        for number in range(1, nodes):
            for kind in ("Node", "Device"):
                one = copy.deepcopy(given[kind][0])
                one["metadata"]["name"] = f"n{number}"
                for card in one.get("spec", {}).get("devices", ()):
                    card["id"] = f"GPU-{number}"
                given[kind].append(one)
        given["Node"][-1]["metadata"]["labels"] = labels

    return apply


def renamed(given: WORLD) -> None:
    """The machine was another node before, which is left over."""
    for kind in ("Node", "Device"):
        one = copy.deepcopy(given[kind][0])
        one["metadata"]["name"] = "before"
        given[kind].append(one)


def cardless(given: WORLD) -> None:
    """The agent looks where no driver is."""
    given["Device"].clear()
    given["Node"][0]["status"]["allocatable"].clear()


def failing(**container: Any) -> Callable[[WORLD], None]:
    """The agent of a profile, as its kubelet reports it."""

    def apply(given: WORLD) -> None:
        own = plugin("hami-device-plugin-x", "registry.example.com/partage:1")
        own["metadata"]["labels"] = {"app.kubernetes.io/part-of": "partage"}
        own["status"]["containerStatuses"] = [{"name": "agent", "ready": False, **container}]
        given["Pod"].append(own)

    return apply


def lost(given: WORLD) -> None:
    """An upgrade replaced kube-scheduler's manifest."""
    given["ConfigMap"].clear()
    own = pod("kube-scheduler-a", containers=[{"name": "s", "command": ["kube-scheduler"]}])
    own["metadata"]["labels"] = {"component": "kube-scheduler"}
    placed = pod("placed")
    placed["metadata"]["annotations"] = {"partage.io/allocation": "{}"}
    given["Pod"] += [own, placed]


def bundled(text: str) -> Callable[[WORLD], None]:
    """Another authority of the webhook."""

    def apply(given: WORLD) -> None:
        (one,) = given["MutatingWebhookConfiguration"]
        one["webhooks"][0]["clientConfig"] = {"caBundle": text}

    return apply


def noted(given: WORLD) -> None:
    """The node's agent has something to say."""
    notes = Notes()
    notes.say("statements", Code.DRIVER_UNTRIED, ["driver 999"])
    given["Node"][0]["metadata"]["annotations"] = {names.AGENT_NOTES: notes.text}


def total(name: str, amount: str | None) -> Callable[[WORLD], None]:
    """Another total of the node."""

    def apply(given: WORLD) -> None:
        have = given["Node"][0]["status"]["allocatable"]
        have.pop(name)
        have.update({} if amount is None else {name: amount})

    return apply


def unready(given: WORLD) -> None:
    """The node's kubelet is silent."""
    given["Node"][0]["status"]["conditions"] = [{"type": "Ready", "status": "Unknown"}]


GATE = [
    {"name": "a", "command": ["kube-apiserver", "--feature-gates=ValidatingAdmissionPolicy=false"]}
]
LIAR = asking("liar", AMOUNTS, nodeName="n0")
LIAR["metadata"]["annotations"] = {"partage.io/allocation": "nonsense"}
WHOLE = {"koordinator.sh/gpu-core": "100", "koordinator.sh/gpu-memory-ratio": "100"}


def twice(given: WORLD) -> None:
    """Two pods on the one card, each with all of it, by Koordinator's record."""
    told = {"gpu": [{"minor": 0, "resources": WHOLE | {"koordinator.sh/gpu-memory": "80Gi"}}]}
    for name in ("one", "two"):
        one = asking(name, WHOLE, nodeName="n0")
        text = json.dumps(told)
        one["metadata"]["annotations"] = {"scheduling.koordinator.sh/device-allocated": text}
        given["Pod"].append(one)


MIXED = asking("mixed", AMOUNTS | {"tke.cloud.tencent.com/qgpu-core": "50"})
MIXED["status"] = {"phase": "Pending"}


def elsewhere(given: WORLD) -> None:
    """A ConfigMap as the MetaX document prints it, applied where the scheduler service does not look."""
    args = ["scheduler", "--config-namespace=kube-system", "--config-namespace=partage-system"]
    given["Pod"].append(pod("partage-scheduler", containers=[{"name": "scheduler", "args": args}]))
    for namespace in ("default", "kube-system"):
        head = {"name": "metax-device-config", "namespace": namespace}
        data = {"version": "v1", "cluster-config": 'mode: "native"'}
        given["ConfigMap"].append({"metadata": head, "data": data})


CASES: dict[str, tuple[Callable[[WORLD], None], str]] = {
    "extender": (configured(extenders=[]), "extender-not-configured"),
    "upgrade": (lost, "extender-lost"),
    "managed": (
        configured(extender={"managedResources": [{"name": "nvidia.com/gpu"}]}),
        "managed-resources",
    ),
    "verbs": (configured(extender={"preemptVerb": ""}), "extender-incomplete"),
    "ignorable": (configured(extender={"ignorable": True}), "extender-incomplete"),
    "sampling": (configured(percentageOfNodesToScore=50), "sampling"),
    "sampling-default": (configured(percentageOfNodesToScore=0), "sampling"),
    "no-record": (added("Pod", asking("bare", AMOUNTS, nodeName="n0")), "bound-without-record"),
    "rival": (
        added(
            "Pod", pod("x", containers=[{"name": "main", "image": "projecthami/hami-scheduler:2"}])
        ),
        "other-scheduler",
    ),
    "gates": (added("Pod", pod("api", containers=GATE)), "feature-gate"),
    "no-webhook": (lambda given: given["MutatingWebhookConfiguration"].clear(), "webhook-missing"),
    "no-authority": (bundled(""), "webhook-certificate"),
    "wrong-authority": (bundled("bm9uc2Vuc2U="), "webhook-certificate"),
    "expired": (bundled(authority(NOW - timedelta(days=20000))), "webhook-certificate"),
    "left-over": (added("Device", {"metadata": {"name": "gone"}}), "device-stale"),
    "not-ready": (unready, "device-stale"),
    "renamed": (renamed, "card-on-two-nodes"),
    "mistyped UUID": (
        lambda given: given["Node"][0]["metadata"].update(
            {"annotations": {"hami.io/device-cordon": "GPU-nope,"}}
        ),
        "cordon-unknown",
    ),
    "no-agent": (
        added(
            "Node",
            {"metadata": {"name": "n1"}, "status": {"allocatable": {"nvidia.com/gpu": "8"}}},
        ),
        "node-unlabelled",
    ),
    "no-cards": (cardless, "no-cards"),
    "silent": (
        added(
            "Lease",
            {
                "metadata": {"name": "partage-agent-n0"},
                "spec": {"renewTime": "2026-11-19T23:54:00.000000Z"},
            },
        ),
        "agent-silent",
    ),
    "agent's note": (noted, "agent-note"),
    "no-totals": (total("koordinator.sh/gpu-core", None), "totals-missing"),
    "no totals of one": (total("kubernetes.io/gpu-memory-ratio", None), "totals-missing"),
    "contended": (total("kubernetes.io/gpu-core", "800"), "totals-contended"),
    "no-image": (
        failing(state={"waiting": {"reason": "ImagePullBackOff", "message": "no such host"}}),
        "part-failing",
    ),
    "restarts": (
        failing(state={"running": {}}, lastState={"terminated": {"exitCode": 2}}),
        "part-failing",
    ),
    "units": (
        lambda given: given["Node"][0]["status"]["allocatable"].update({"nvidia.com/gpu": "0"}),
        "units-gone",
    ),
    "two-plugins": (
        added("Pod", plugin("nv", "nvcr.io/nvidia/k8s-device-plugin:1")),
        "second-plugin",
    ),
    "runtime": (added("Pod", pod("r", runtimeClassName="nvidia")), "runtime-class"),
    "quarantine": (added("Pod", LIAR), "quarantine"),
    "twice": (twice, "card-given-twice"),
    "mixed": (added("Pod", MIXED), "pod-request"),
    "config": (
        added("ConfigMap", {"metadata": {"name": "partage-config"}, "data": {"policy": "best"}}),
        "config-refused",
    ),
    "config elsewhere": (elsewhere, "config-unread"),
    "qgpu policy": (labelled(**{names.QGPU_POLICY: "binpack"}), "object-unusable"),
    "qgpu policy of one": (labelled(nodes=2, **{names.QGPU_POLICY: "sf"}), "object-unusable"),
}


@pytest.mark.parametrize(("breaks", "check"), CASES.values(), ids=CASES)
def test_a_broken_cluster_is_diagnosed(breaks: Callable[[WORLD], None], check: str) -> None:
    """This finding, and no other."""
    given = copy.deepcopy(world())

    breaks(given)

    assert set(checks(given)) == {check}


def test_a_card_that_is_named_by_its_slot_is_on_every_node_with_such_a_slot() -> None:
    """Cards without an identity of their own are named so, and equal machines have equal slots."""
    given = world()
    labelled(nodes=2)(given)
    for one in given["Device"]:
        one["spec"]["devices"][0]["id"] = "0000:03:00.0"

    assert checks(given) == []


def test_an_extender_of_all_names_is_a_warning() -> None:
    """It is asked about every pod with devices but those of Koordinator v1.4."""
    given = world()
    left = ["koordinator.sh/gpu", "nvidia.com/gpu"]
    config = kube_scheduler_config(ExtenderAccess("https://partage:8443"), left)
    for managed, level in ((left, Level.WARNING), (left[:1], Level.ERROR)):
        config["extenders"][0]["managedResources"] = [{"name": name} for name in managed]
        given["ConfigMap"][0]["data"]["c"] = yaml.safe_dump(config)
        (found,) = diagnosed(facts_of(told(given), NOW, ()))

        assert (found.check, found.level) == ("managed-resources", level)
        assert ("nvidia.com/gpu" in found.rule) == (level is Level.ERROR)


def offering() -> WORLD:
    """A sound cluster whose node offers its card to ResourceClaims, and counts them."""
    given = world()
    agent, service = ["agent", "--dra", "--mig"], ["scheduler", "--claims", "--claim-templates"]
    for name, args in (("agent-n0", agent), ("service", service)):
        containers = [{"name": "main", "image": "partage:1", "args": args}]
        given["Pod"].append(pod(name, containers=containers, nodeName="n0"))
    hooks = given["ValidatingWebhookConfiguration"][0]["webhooks"]
    hooks.append({**hooks[0], "name": CLAIMS})
    pool = {"name": "n0", "generation": 3, "resourceSliceCount": 2}
    spec = {"driver": "gpu.partage.io", "nodeName": "n0", "pool": pool}
    given["DeviceClass"] = [
        {"metadata": {"name": f"{kind}.gpu.partage.io"}} for kind in ("share", "mig")
    ]
    given["ResourceSlice"] = [
        {"metadata": {"name": f"n0-{part}"}, "spec": copy.deepcopy(spec)} for part in range(2)
    ]
    labels = {"partage.io/claims": "translate"}
    given["ResourceClaimTemplate"] = [
        {"metadata": {"name": "partage-share", "namespace": "team", "labels": labels}},
        {"metadata": {"name": "own", "namespace": "team"}},
    ]
    return given


def without(name: str, option: str) -> Callable[[WORLD], None]:
    """A program that runs without an option."""

    def apply(given: WORLD) -> None:
        (one,) = (one for one in given["Pod"] if one["metadata"]["name"] == name)
        one["spec"]["containers"][0]["args"].remove(option)

    return apply


def named_as(resource: str) -> Callable[[WORLD], None]:
    """Another driver's class that pods may ask for by the name of a resource."""
    spec = {"extendedResourceName": resource}
    one = {"metadata": {"name": "gpu.nvidia.com"}, "spec": spec}
    return lambda given: given["DeviceClass"].append(one)


def gated(given: WORLD) -> None:
    """A control plane that has a gate off."""
    command = ["kube-apiserver", "--feature-gates=Other=true,DRAConsumableCapacity=false"]
    given["Pod"].append(pod("api", containers=[{"name": "main", "command": command}]))


OFFERING: dict[str, tuple[Callable[[WORLD], object], list[str]]] = {
    "sound": (lambda _: None, []),
    "no class": (lambda given: given["DeviceClass"].pop(), ["claims-class-missing"]),
    "names taken": (named_as("nvidia.com/gpu"), ["claims-class-takes-name"]),
    "names of others": (named_as("example.com/gpu"), []),
    "not counted": (without("service", "--claims"), ["claims-uncounted"]),
    "not asked": (
        lambda given: given["ValidatingWebhookConfiguration"][0]["webhooks"].pop(),
        ["claims-webhook-missing"],
    ),
    "translation off": (without("service", "--claim-templates"), ["claims-templates-left"]),
    "gate off": (gated, ["feature-gate"]),
    "half written": (lambda given: given["ResourceSlice"].pop(), ["claims-slices-incomplete"]),
    "nothing written": (lambda given: given["ResourceSlice"].clear(), ["claims-nothing-offered"]),
    "of an agent that offers nothing": (without("agent-n0", "--dra"), ["claims-slices-stale"]),
    "of a node that is gone": (
        lambda given: [one["spec"].update(nodeName="gone") for one in given["ResourceSlice"]],
        ["claims-slices-stale", "claims-nothing-offered"],
    ),
    "of an agent outside of pods": (lambda given: given["Pod"].pop(1), []),
    "of another driver": (
        lambda given: given["ResourceSlice"].append(
            {"metadata": {"name": "other"}, "spec": {"driver": "gpu.nvidia.com", "nodeName": "n9"}}
        ),
        [],
    ),
    "may not be read": (
        lambda given: given.update(
            DeviceClass=None, ResourceSlice=None, ResourceClaimTemplate=None
        ),
        [],
    ),
}


@pytest.mark.parametrize(("breaks", "found"), OFFERING.values(), ids=OFFERING)
def test_what_claims_lack_is_named(breaks: Callable[[WORLD], object], found: list[str]) -> None:
    """Classes, counting, the question before storage, gates, slices; and nothing where they are sound."""
    given = offering()

    breaks(given)

    assert checks(given) == found


def plugged() -> WORLD:
    """A sound cluster whose kube-scheduler has the plugin."""
    given = world()
    config = kube_scheduler_config(None, [])
    given["ConfigMap"][0]["data"]["c"] = yaml.safe_dump(config)
    mounts = [{"name": "engine", "mountPath": "/run/partage"}]
    engine = {
        "name": "scheduler",
        "image": "r:5000/partage:0.2.0",
        "volumeMounts": mounts,
        "args": ["scheduler", "--plugin-socket=/run/partage/engine.sock"],
    }
    kube = {
        "name": "kube-scheduler",
        "image": "r:5000/kube-scheduler:0.2.0",
        "volumeMounts": mounts,
        "env": [{"name": "PARTAGE_SOCKET", "value": "/run/partage/engine.sock"}],
    }
    both = pod("both", containers=[engine, kube])
    both["status"]["containerStatuses"] = [
        {"name": one["name"], "ready": True} for one in (engine, kube)
    ]
    given["Pod"].append(both)
    return given


def _config(given: WORLD, change: Callable[[WORLD], object]) -> None:
    data = given["ConfigMap"][0]["data"]
    config = yaml.safe_load(data["c"])
    change(config)
    data["c"] = yaml.safe_dump(config)


def _both(given: WORLD) -> WORLD:
    found: WORLD = given["Pod"][-1]
    return found


def _pinned(given: WORLD, *containers: int) -> None:
    """Images by their digests alone, as clusters have them that trust no tag."""
    for one in containers:
        container = _both(given)["spec"]["containers"][one]
        container["image"] = f"{container['image'].rpartition(':')[0]}@sha256:{one:064x}"


def _refused(given: WORLD) -> None:
    """What kube-scheduler says of a pod where the engine refused its plugin."""
    waiting = pod("waiting", containers=[{"name": "main", "image": "x"}])
    message = f"0/3 nodes are available: the plugin speaks version 2; {SAME_RELEASE}."
    waiting["status"] = {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "message": message}],
    }
    given["Pod"].insert(0, waiting)


PLUGGED: dict[str, tuple[Callable[[WORLD], object], list[str]]] = {
    "sound": (lambda _: None, []),
    "both seams": (
        lambda given: _config(
            given,
            lambda c: c.update(
                extenders=kube_scheduler_config(ExtenderAccess("https://x"), [])["extenders"],
                percentageOfNodesToScore=100,
            ),
        ),
        ["plugin-and-extender"],
    ),
    "another extender that binds every pod": (
        lambda given: _config(
            given,
            lambda c: c.update(extenders=[{"urlPrefix": "https://x/a-path", "bindVerb": "b"}]),
        ),
        ["plugin-and-extender"],
    ),
    "extenders for other pods": (
        lambda given: _config(
            given,
            lambda c: c.update(
                extenders=[
                    {"urlPrefix": "https://x/scheduler", "filterVerb": "f"},
                    {
                        "urlPrefix": "https://y/a-path",
                        "bindVerb": "b",
                        "managedResources": [{"name": "example.com/nic"}],
                    },
                ]
            ),
        ),
        [],
    ),
    "a profile without": (
        lambda given: _config(given, lambda c: c["profiles"][1].pop("plugins")),
        ["plugin-incomplete"],
    ),
    "weight": (
        lambda given: _config(
            given,
            lambda c: c["profiles"][0]["plugins"]["multiPoint"]["enabled"][0].update(weight=1),
        ),
        ["plugin-incomplete"] * 4,  # YAML's anchors: all profiles are one
    ),
    "order": (
        lambda given: _config(
            given,
            lambda c: c["profiles"][0].update(
                plugins={"multiPoint": {"enabled": [{"name": "Partage", "weight": 20}]}}
            ),
        ),
        ["plugin-incomplete"],
    ),
    "no engine": (lambda given: _both(given)["spec"]["containers"].pop(0), ["plugin-socket"]),
    "another path": (
        lambda given: _both(given)["spec"]["containers"][1]["env"][0].update(
            value="/run/other.sock"
        ),
        ["plugin-socket"],
    ),
    "another volume": (
        lambda given: _both(given)["spec"]["containers"][1].update(
            volumeMounts=[{"name": "x", "mountPath": "/run/partage"}]
        ),
        ["plugin-socket"],
    ),
    "another release": (
        lambda given: _both(given)["spec"]["containers"][1].update(
            image="r:5000/kube-scheduler:0.3.0"
        ),
        ["plugin-version"],
    ),
    "another release, by digests": (
        lambda given: (_pinned(given, 0, 1), _refused(given)),
        ["plugin-version"],
    ),
    "the same release, by digests": (lambda given: _pinned(given, 0, 1), []),
    "the same release, one by its digest": (lambda given: _pinned(given, 1), []),
    "engine away": (
        lambda given: _both(given)["status"]["containerStatuses"][0].update(ready=False),
        ["engine-away"],
    ),
    "not yet running": (
        lambda given: (
            _both(given)["status"].update(phase="Pending"),
            _both(given)["spec"]["containers"].pop(0),
        ),
        [],
    ),
}


@pytest.mark.parametrize(("breaks", "found"), PLUGGED.values(), ids=PLUGGED)
def test_what_is_wrong_with_the_plugin_is_told(
    breaks: Callable[[WORLD], object], found: list[str]
) -> None:
    """The missing extender is no finding then."""
    given = plugged()

    breaks(given)

    assert checks(given) == found


def two_authorities(given: WORLD) -> None:
    """One has expired, and the other begins tomorrow."""
    made = [NOW - timedelta(days=20000), NOW + timedelta(days=1)]
    both = b"".join(base64.b64decode(authority(one)) for one in made)
    bundled(base64.b64encode(both).decode())(given)


def test_an_authority_that_is_none_now_is_no_authority() -> None:
    """It does not matter how long the others were, or will be, valid."""
    given = copy.deepcopy(world())
    two_authorities(given)

    assert set(checks(given)) == {"webhook-certificate"}


NO_FAULTS = {
    "gated": asking("gated", AMOUNTS, schedulingGates=[{"name": "kueue.x-k8s.io/admission"}]),
    "of nothing": asking("none", {"nvidia.com/gpu": "0"}, nodeName="n0"),
}


@pytest.mark.parametrize("one", NO_FAULTS.values(), ids=NO_FAULTS)
def test_a_pod_that_breaks_no_rule_is_no_finding(one: WORLD) -> None:
    """A gate is no mistake of its pod, and a pod without devices needs no record."""
    given = copy.deepcopy(world())
    added("Pod", one)(given)

    assert checks(given) == []


@pytest.mark.parametrize(
    ("names_", "found"), [([], {"config-refused"}), (["other"], set())], ids=["any", "another"]
)
def test_a_config_map_that_is_not_read_is_no_finding(names_: list[str], found: set[str]) -> None:
    """The service reads only the ConfigMaps that its options name."""
    given = copy.deepcopy(world())
    broken = {"metadata": {"name": "partage-config", "namespace": "p"}, "data": {"policy": "best"}}
    given["ConfigMap"].append(broken)
    own = pod("partage-scheduler-7f6")
    args = ["scheduler", "--plain", *(f"--config-name={one}" for one in names_)]
    own["spec"]["containers"] = [{"name": "main", "args": args}]
    given["Pod"].append(own)

    assert set(checks(given)) == found


def hami(*entries: WORLD, **more: Any) -> WORLD:
    """HAMi's configuration of single nodes."""
    return {
        "metadata": {"name": "hami-device-plugin", "namespace": "kube-system"},
        "data": {"config.json": json.dumps({"nodeconfig": [*entries], **more})},
    }


@pytest.mark.parametrize(
    ("config", "check", "words"),
    [
        pytest.param(
            hami({"name": "no", "operatingmode": "mig"}), "node-config-node", "does nothing: no", id="node"
        ),
        pytest.param(
            hami({"name": "n00", "operatingmode": "mig"}),
            "node-config-node",
            "n00 (did you mean n0?)",
            id="node, nearly",
        ),
        pytest.param(
            hami({"name": "n0"}, {"name": "n0", "devicesplitcount": 3}),
            "node-config-node",
            "the last one counts for n0",
            id="node twice",
        ),
        pytest.param(
            hami({"name": "n0", "operationmode": "mig"}),
            "node-config-field",
            "nodeconfig[0].operationmode (did you mean nodeconfig[0].operatingmode?)",
            id="field",
        ),
        pytest.param(
            hami({"name": "n0", "filterdevices": {"uuids": ["GPU-0"]}}),
            "node-config-field",
            "nodeconfig[0].filterdevices.uuids (did you mean nodeconfig[0].filterdevices.uuid?)",
            id="field of filterdevices",
        ),
        pytest.param(
            hami(nodeconfigs=[]), "node-config-field", "nodeconfigs (did you mean nodeconfig?)", id="field of all"
        ),
        pytest.param(
            hami({"name": "n0", "filterdevices": {"uuid": ["GPU-9", "GPU-0"], "index": [0, 4]}}),
            "node-config-card",
            "none of these: GPU-9, 4",
            id="card",
        ),
    ],
)  # fmt: skip
def test_a_name_in_hamis_configuration_that_means_nothing(
    config: WORLD, check: str, words: str
) -> None:
    """HAMi ignores it, and so does Partage; its author thinks that it is in force."""
    given = copy.deepcopy(world())
    given["ConfigMap"].append(config)

    (found,) = diagnosed(facts_of(told(given), NOW))

    assert (found.check, found.level) == (check, Level.WARNING)
    assert found.thing == "ConfigMap kube-system/hami-device-plugin"
    assert words in found.rule
    assert found.fix.startswith("kubectl -n kube-system edit configmap hami-device-plugin, and ")


def test_what_hami_itself_reads_is_no_finding() -> None:
    """Its keys may be in any case, and some concern its own plugin alone."""
    given = copy.deepcopy(world())
    entry = {
        "name": "n0",
        "OperatingMode": "hami-core",
        "devicesplitcount": 10,
        "migstrategy": "none",
        "filterdevices": {"uuid": ["GPU-0"], "index": []},
    }
    given["ConfigMap"].append(hami(entry))

    assert checks(given) == []


def test_cards_that_count_their_own_cores_have_no_total_of_compute() -> None:
    """The controller writes it so: Huawei's cards have AI cores instead."""
    given = copy.deepcopy(world())
    given["Device"][0]["metadata"]["labels"] = {names.GPU_VENDOR: "huawei"}
    entry = given["Device"][0]["spec"]["devices"][0]
    entry["resources"] = {names.NPU_CORE: "20", names.KOORD_GPU_MEMORY: "64Gi"}
    documents = (told(given)[kind].documents[0] for kind in ("Node", "Device"))
    node = translate_node(*documents, Context.of(Settings())).node
    amounts = {name: str(amount) for name, amount in device_totals(node).items()}
    given["Node"][0]["status"]["allocatable"] = amounts

    assert "koordinator.sh/gpu-core" not in amounts
    assert checks(given) == []


def test_a_sound_cluster_has_no_finding() -> None:
    """Nothing is found where nothing is wrong, nor where nothing may be read."""
    assert checks(world()) == []
    hidden = world() | dict.fromkeys(("Device", "RuntimeClass", "ValidatingWebhookConfiguration"))
    assert "webhook-missing" not in checks(hidden)
    assert checks(world(), ("create pods/binding",)) == ["rights"]


_NO_CONFIGURATIONS = {
    "a date that is none": "x: 2024-13-45",
    "a number without digits": "x: 0b_",
    "nested too deeply": "x: " + "[" * 3000 + "]" * 3000,
    "profiles that are no list": "profiles: 5",
    "a profile that is no object": "profiles: [x]",
    "an extender that is no object": "extenders: [[]]",
    "a plugin that is no object": "profiles: [{plugins: {multiPoint: {enabled: [3]}}}]",
    "a name that is no text": "extenders: [{urlPrefix: /scheduler, bindVerb: bind, managedResources: [{name: {}}]}]",
    "resources that are no texts": "profiles: [{pluginConfig: [{args: {ignoredResources: [{}]}}]}]",
}


@pytest.mark.parametrize("text", _NO_CONFIGURATIONS.values(), ids=_NO_CONFIGURATIONS)
def test_what_a_tenant_writes_into_a_config_map_changes_no_finding(text: str) -> None:
    """Doctor reads every ConfigMap that names a kube-scheduler's configuration, also one of a tenant."""
    given = world()
    head = {"name": "mine", "namespace": "team-a"}
    given["ConfigMap"].append({"metadata": head, "data": {"x": f"kind: {KIND}\n{text}\n"}})

    assert checks(given) == []


def of_a_tenant(one: WORLD) -> WORLD:
    """An object in a tenant's namespace, outside the operator's."""
    return {**one, "metadata": {**one["metadata"], "namespace": "team-a"}}


def test_no_config_map_of_a_tenant_stands_in_for_the_configuration() -> None:
    """One with the extender, and one with the plugin; a file that a person names does."""
    given = world()
    with_plugin = kube_scheduler_config(None, [])
    for config in (yaml.safe_load(given["ConfigMap"][0]["data"]["c"]), with_plugin):
        head = {"metadata": {"name": "mine"}, "data": {"c": yaml.safe_dump(config)}}
        given["ConfigMap"] = [of_a_tenant(head)]

        assert checks(given) == ["extender-not-configured"]
        named = facts_of(told(given), NOW, files={"config.yaml": config})
        assert list(diagnosed(named)) == []


def test_no_pod_of_a_tenant_stands_in_for_a_program() -> None:
    """The options of the scheduler service's own pods count, and not those of other pods."""
    agent, scheduler = (
        pod(name, containers=[{"name": "m", "args": [name, *given]}])
        for name, given in (("agent", ["--dra"]), ("scheduler", []))
    )
    mine = pod("mine", containers=[{"name": "m", "args": ["scheduler", "--claims"]}])
    given = world()
    given["Pod"] += [agent, scheduler]
    assert "claims-uncounted" in checks(given)

    given["Pod"].insert(0, of_a_tenant(mine))

    assert "claims-uncounted" in checks(given)


def test_the_webhook_tells_whose_namespaces_are_operators() -> None:
    """Without the right to list its configuration, doctor goes by labels; else every cluster would look wrong."""
    given = world()
    given["Pod"][0]["metadata"] = {
        "name": "agent",
        "namespace": "p",
        "labels": {"app.kubernetes.io/part-of": "partage"},
    }
    given["MutatingWebhookConfiguration"] = given["ValidatingWebhookConfiguration"] = None

    assert checks(given) == []


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"\xff\xfe", "not UTF-8"),
        (b"kind: Pod\n", f"it holds no {KIND}"),
        (f"kind: {KIND}\nprofiles: 5\n".encode(), "field profiles: "),
        (b"x" * (2**22 + 1), "4 MiB that are read"),
    ],
    ids=["not text", "another kind", "of another shape", "too large"],
)
def test_a_file_that_is_no_configuration_is_named(tmp_path: Path, data: bytes, says: str) -> None:
    """Otherwise doctor would leave out its checks in silence."""
    path = tmp_path / "config.yaml"
    path.write_bytes(data)

    answer = CliRunner().invoke(main, ["doctor", f"--scheduler-config={path}"])

    assert answer.exit_code == 2
    assert str(path) in answer.stderr
    assert says in answer.stderr


def test_a_node_of_closed_cards_need_not_report_them() -> None:
    """The controllers count healthy cards only, so a node without any has no totals."""
    given = world()
    given["Device"][0]["spec"]["devices"][0]["health"] = False
    given["Node"][0]["status"]["allocatable"].clear()

    assert checks(given) == []


DEEP = "[" * 9000 + "]" * 9000
FILES = {
    "nri": (
        "etc/containerd/config.toml",
        "version = 2\n[plugins.'io.containerd.grpc.v1.cri']\nenable_cdi = true\n",
        "nri-off",
    ),
    "cdi": (
        "etc/containerd/config.toml",
        "version = 3\n[plugins.'io.containerd.cri.v1.runtime']\nenable_cdi = false\n",
        "cdi-off",
    ),
    "toml": ("etc/containerd/config.toml", "version = = 3\n", "unreadable"),
    "deep toml": ("etc/containerd/config.toml", f"x = {DEEP}", "unreadable"),
    "deep yaml": ("var/lib/kubelet/config.yaml", f"x: {DEEP}", "unreadable"),
    "yaml that is no object": ("var/lib/kubelet/config.yaml", "[1]", "unreadable"),
    "deep manifest": ("etc/kubernetes/manifests/kube-scheduler.yaml", f"x: {DEEP}", "unreadable"),
    "deep json": (
        "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint",
        f'{{"Data": {DEEP}}}',
        "unreadable",
    ),
    "checkpoint": (
        "var/lib/kubelet/device-plugins/kubelet_internal_checkpoint",
        json.dumps(
            {
                "Data": {
                    "RegisteredDevices": {"a/b": ["1"]},
                    "PodDeviceEntries": [
                        {"PodUID": "u", "ResourceName": "a/b", "DeviceIDs": {"-1": ["2"]}}
                    ],
                }
            }
        ),
        "stale-checkpoint",
    ),
    "gate": (
        "var/lib/kubelet/config.yaml",
        "featureGates: {KubeletPodResources: false}\n",
        "feature-gate",
    ),
    "static": (
        "etc/kubernetes/manifests/kube-scheduler.yaml",
        "spec: {containers: [{command: [kube-scheduler]}]}\n",
        "extender-lost",
    ),
    "cdi-spec": ("var/run/cdi/x.json", "{", "cdi-spec"),
    "library": (
        "var/lib/partage/isolation/lib/libpartage-isolation-0000000000000000.so",
        "x",
        "isolation-library",
    ),
    "image": (
        "var/lib/partage/isolation/containers/c1/spared",
        "the image has musl",
        "not-enforceable",
    ),
    "finding": (
        "var/lib/partage/agent/findings.json",
        json.dumps(
            {
                "v": 1,
                "at": "2026-01-01T00:00:00Z",
                "findings": [
                    {
                        "kind": "PodGone",
                        "pod": "team/a",
                        "container": "main",
                        "message": "m",
                        "done": "report",
                        "fix": "f",
                    }
                ],
            }
        ),
        "agent-finding",
    ),
    "findings of a newer agent": (
        "var/lib/partage/agent/findings.json",
        '{"v": 2, "at": "", "findings": []}',
        "unreadable",
    ),
    "torn findings": ("var/lib/partage/agent/findings.json", '{"v": 1, ', "unreadable"),
    "no findings": (
        "var/lib/partage/agent/findings.json",
        '{"v": 1, "at": "", "findings": []}',
        "",
    ),
    "sound": ("etc/containerd/config.toml", "version = 3\n", ""),
    "nothing": ("etc/other", "", ""),
}


SOCKETS = {
    "nri is off": (["run/containerd/containerd.sock"], "", ["runtime-unasked"]),
    "nri is on": (["run/containerd/containerd.sock", "run/nri/nri.sock"], "", []),
    "by the other name": (["var/run/crio/crio.sock", "var/run/nri/nri.sock"], "", []),
    "proxy": (
        ["run/containerd/containerd.sock", "run/partage/cri.sock"],
        "containerRuntimeEndpoint: unix:///run/partage/cri.sock\n",
        [],
    ),
    "proxy by flag": (
        ["run/containerd/containerd.sock", "run/partage/cri.sock"],
        "--container-runtime-endpoint=unix:///run/partage/cri.sock",
        [],
    ),
    "proxy beside the way": (
        ["run/containerd/containerd.sock", "run/partage/cri.sock"],
        "containerRuntimeEndpoint: unix:///run/containerd/containerd.sock\n",
        ["proxy-unused"],
    ),
}


@pytest.mark.parametrize(("sockets", "kubelet", "found"), SOCKETS.values(), ids=SOCKETS)
def test_a_runtime_that_asks_nobody_is_told(
    tmp_path: Path, sockets: list[str], kubelet: str, found: list[str]
) -> None:
    """It runs, and neither NRI nor the proxy is on the way of the kubelet's containers."""
    name = "kubeadm-flags.env" if kubelet.startswith("--") else "config.yaml"
    for path, text in {**dict.fromkeys(sockets, ""), f"var/lib/kubelet/{name}": kubelet}.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    assert [one.check for one in examined(tmp_path)] == found


@pytest.mark.parametrize(
    ("folder", "kept"), [("run/nri", "/run"), ("etc/cdi", "/etc/cdi")], ids=["sockets", "cdi"]
)
def test_who_may_not_read_a_folder_is_told(folder: str, kept: str) -> None:
    """Folders of the runtime are often root's alone."""
    with TemporaryDirectory() as made:
        root = Path(made)
        root.chmod(0o755)
        for one in ("run/containerd/containerd.sock", f"{folder}/x"):
            (root / one).parent.mkdir(parents=True, exist_ok=True)
            (root / one).touch()
        (root / folder).chmod(0)
        mine = os.geteuid()
        os.seteuid(mine or _NOBODY)
        try:
            found = list(examined(root))
        finally:
            os.seteuid(mine)
        (root / folder).chmod(0o700)

    assert ("unreadable", kept) in [(one.check, one.thing) for one in found]


@pytest.mark.parametrize(("path", "text", "check"), FILES.values(), ids=FILES)
def test_a_broken_node_is_diagnosed(tmp_path: Path, path: str, text: str, check: str) -> None:
    """Its files alone suffice; the command ends with 3 where something was found, else with 0."""
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text(text, "utf-8")

    assert [one.check for one in examined(tmp_path)] == ([check] if check else [])
    done = CliRunner().invoke(main, ["doctor", "--node", "--root", str(tmp_path), "-o", "json"])
    assert done.exit_code == (3 if check else 0)
    assert len(json.loads(done.stdout)["findings"]) == bool(check)


def test_every_check_and_option_is_in_the_reference() -> None:
    """The page has each check and each option."""
    page = (Path(__file__).parents[2] / "docs/reference/doctor.md").read_text("utf-8")
    told = {check for _, check in CASES.values()} | {
        check for *_, check in FILES.values() if check
    }
    told |= {check for *_, found in SOCKETS.values() for check in found}

    assert [check for check in sorted(told) if f"| `{check}` |" not in page] == []
    options = {opt for one in doctor.params for opt in one.opts if opt.startswith("--")}
    assert [one for one in options - {"--output"} if f"`{one}" not in page] == []


def test_what_agents_say_is_told_with_what_to_do() -> None:
    """Each note is a finding, of a newer agent too; an annotation that cannot be read says nothing."""
    given = copy.deepcopy(world())
    noted(given)
    annotations = given["Node"][0]["metadata"]["annotations"]
    text = annotations[names.AGENT_NOTES]
    annotations[names.AGENT_NOTES] = text[:-1] + ',{"code":"New","message":"m","more":1}]'

    found = diagnosed(facts_of(told(given), NOW, ()))

    assert [one.rule for one in found] == [
        "its agent reports: DriverUntried: driver 999",
        "its agent reports: New: m",
    ]
    assert "bench/gpu.py" in found[0].fix
    assert "log of Partage's agent on n0" in found[1].fix
    for broken in ("x", "[1]", '[{"code":1}]', "{}"):
        annotations[names.AGENT_NOTES] = broken
        assert checks(given) == []


@pytest.mark.parametrize(
    ("name", "component", "image"),
    [
        ("hami-scheduler-7f6", "scheduler", "a.example/partage:1"),
        ("koord-scheduler-1", "scheduler", "a.example/ours:1"),
        ("hami-device-plugin-x", "agent", "a.example/hami-device-plugin:1"),
    ],
)
def test_pods_of_a_profile_are_no_rivals(name: str, component: str, image: str) -> None:
    """They have the names of what they replace; their labels say whose they are."""
    given = world()
    own = plugin(name, image)
    own["metadata"]["labels"] = {
        "app.kubernetes.io/part-of": "partage",
        "app.kubernetes.io/component": component,
    }
    given["Pod"].append(own)
    assert checks(given) == []
    own["metadata"]["labels"].clear()
    assert checks(given) != []


def test_rights_are_those_of_the_account_that_the_service_has() -> None:
    """A profile, another namespace or another prefix of names has another one."""
    own = pod("hami-scheduler-7f6", serviceAccountName="hami-scheduler")
    assert account_of([own]) == "system:serviceaccount:partage-system:partage-scheduler"
    own["metadata"]["labels"] = {
        "app.kubernetes.io/part-of": "partage",
        "app.kubernetes.io/component": "scheduler",
    }
    assert account_of([pod("other"), own]) == "system:serviceaccount:kube-system:hami-scheduler"


def test_rights_are_those_that_the_service_needs_by_its_options() -> None:
    """If it follows claims it writes them before it leads: without the right, each new leader waits for a minute."""
    own = pod("partage-scheduler-7f6")
    own["spec"]["containers"] = [{"name": "main", "args": ["scheduler", "--plain"]}]
    assert not any("resourceclaims" in one for one in rights_of([own]))
    own["spec"]["containers"][0]["args"].append("--claims")
    assert Right("patch", "resource.k8s.io", "resourceclaims") in rights_of([own])
    assert Right("list", "", "configmaps") in rights_of([own])
    own["spec"]["containers"][0]["args"] += ["--config-name=a", "--config-name=b"]
    named = [one.name for one in rights_of([own]) if one.resource == "configmaps"]
    assert named == ["a", "b"]


def test_rights_are_those_that_the_chart_gives() -> None:
    """Kube-scheduler may be apart, with roles of its own that the account does not have."""
    text = (Path(__file__).parents[2] / "deploy/kustomize/extender/partage.yaml").read_text()
    granted = {
        (verb, group, resource)
        for one in yaml.safe_load_all(text)
        if one["kind"] in {"ClusterRole", "Role"}
        and one["metadata"]["name"] == "partage-scheduler"
        for rule in one["rules"]
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }

    for one in rights_of([]):
        path = "/".join(filter(None, (one.resource, one.part)))
        assert (one.verb, one.group, path) in granted


def test_a_part_that_starts_is_not_failing() -> None:
    """A restarted part that is ready again is not failing either, nor is another's pod."""
    given = world()
    failing(state={"waiting": {"reason": "ContainerCreating"}})(given)
    failing(state={}, lastState={"terminated": {"exitCode": 1}}, ready=True)(given)
    failing(state={"waiting": {"reason": "CrashLoopBackOff"}})(given)
    given["Pod"][-1]["metadata"]["labels"] = {}
    given["Pod"][-1]["spec"]["nodeName"] = "elsewhere"
    assert checks(given) == []


def test_a_larger_cluster_is_looked_at_no_more_often() -> None:
    """Devices are walked so many times however many nodes there are, not once for each of them."""
    walks = {}
    for nodes in (2, 20):
        cluster = world()
        for kind in ("Node", "Device"):
            (one,) = cluster[kind]
            cluster[kind] = [copy.deepcopy(one) for _ in range(nodes)]
            for number, made in enumerate(cluster[kind]):
                made["metadata"] |= {"name": f"n{number}", "uid": f"{kind}-{number}"}
        devices = Walked(cluster["Device"])
        facts = replace(facts_of(told(cluster), NOW), devices=devices)
        diagnosed(facts)
        walks[nodes] = devices.walks
    assert walks[2] == walks[20] > 0


class Walked(list[WORLD]):
    """A list that counts how often it is read."""

    walks = 0

    def __iter__(self) -> Iterator[WORLD]:
        self.walks += 1
        return super().__iter__()


@st.composite
def pools(draw: st.DrawFn) -> WORLD:
    """Nodes of a few kinds, some of which nothing can read, with pods and claims on some of them."""
    given = world()
    given["ResourceClaim"] = []
    kinds = {
        "whole": {"koordinator.sh/gpu-core": "100"},
        "odd": {"koordinator.sh/gpu-core": "much"},
        "none": {},
    }
    for number, kind in enumerate(draw(st.lists(st.sampled_from(["bare", *kinds]), max_size=8))):
        name = f"m{number}"
        labels = {"kubernetes.io/hostname": name, "rack": name}
        totals = {"cpu": str(number + 1), **draw(st.sampled_from([{}, {"nvidia.com/gpu": "x"}]))}
        given["Node"].append(
            {"metadata": {"name": name, "labels": labels}, "status": {"allocatable": totals}}
        )
        if kind != "bare":
            device = copy.deepcopy(given["Device"][0]["spec"]["devices"][0])
            device |= {"id": f"GPU-{name}", "resources": kinds[kind]}
            listed_ = [device] * draw(st.integers(0, 1))
            given["Device"].append({"metadata": {"name": name}, "spec": {"devices": listed_}})
        if draw(st.booleans()):
            one = asking(f"p{number}", {"koordinator.sh/gpu-core": "50"}, nodeName=name)
            given["Pod"].append(one)
        if draw(st.booleans()):
            result = {"driver": "gpu.partage.io", "pool": name, "device": "gpu-0", "request": "r"}
            given["ResourceClaim"].append(
                {
                    "metadata": {"name": f"c{number}", "namespace": "d", "uid": f"c{number}"},
                    "spec": {"devices": {"requests": [{"name": "r"}]}},
                    "status": {"allocation": {"devices": {"results": [result]}}},
                }
            )
    return given


@settings(max_examples=60, deadline=None)
@given_by(pools())
def test_nodes_that_are_alike_are_examined_as_if_each_were_read(given: WORLD) -> None:
    """One of many such nodes is read, and the findings are the same."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("partage.cli.doctor.alike", lambda _nodes: {})
        each = facts_of(told(given), NOW)
    few = facts_of(told(given), NOW)

    assert few == each
    assert diagnosed(few) == diagnosed(each)


def test_of_many_nodes_that_are_alike_one_is_read() -> None:
    """Doctor also reads each node on which a pod or a claim holds something."""
    given = world()
    for number in range(1, 40):
        for kind in ("Node", "Device"):
            one = copy.deepcopy(given[kind][0])
            one["metadata"]["name"] = f"n{number}"
            given[kind].append(one)
    given["Pod"].append(asking("p", {"koordinator.sh/gpu-core": "50"}, nodeName="n7"))
    read: list[str] = []

    def noted_down(node: Any, *more: Any) -> Any:
        read.append(node.name)
        return translate_node(node, *more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("partage.extender.cluster_cache.translate_node", noted_down)
        facts = facts_of(told(given), NOW)

    assert read == ["n0", "n7"]
    assert len(facts.known) == 40


def test_a_node_that_cannot_be_read_closes_no_unknown_card() -> None:
    """Its devices are not known, so its UUIDs may be right."""
    given = world()
    given["Node"][0]["metadata"]["annotations"] = {"hami.io/device-cordon": "GPU-nope"}
    assert facts_of(told(given), NOW).missed
    given["Device"][0]["spec"]["devices"][0]["resources"]["koordinator.sh/gpu-core"] = "much"
    assert not facts_of(told(given), NOW).missed


def test_of_nodes_that_cannot_be_read_alike_each_is_named() -> None:
    """One tells that the others cannot be read, but not what is wrong with them."""
    given = world()
    for number in range(1, 4):
        for kind in ("Node", "Device"):
            one = copy.deepcopy(given[kind][0])
            one["metadata"]["name"] = f"n{number}"
            given[kind].append(one)
        given["Device"][-1]["spec"]["devices"][0]["resources"]["koordinator.sh/gpu-core"] = "much"

    unusable = dict(facts_of(told(given), NOW).unusable)

    assert unusable.keys() == {"Node n1", "Node n2", "Node n3"}
    assert all(f"(Device {name[5:]})" in why for name, why in unusable.items())
