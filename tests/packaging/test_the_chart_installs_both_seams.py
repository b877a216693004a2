"""The default, the plugin: kube-scheduler and the engine in one pod, and nothing of the extender beside them."""

import subprocess
from typing import Any

import pytest
import yaml

from charts import HELM, generate, needs_helm, objects_of
from partage.cli.scheduler import scheduler


def _chart(*values: str) -> list[dict[str, Any]]:
    """The objects of the default profile."""
    given = (part for value in values for part in ("--set", value))
    text = generate.rendered(str(HELM), "default", *given)
    return objects_of(text)


def _of(found: list[dict[str, Any]], kind: str, name: str) -> dict[str, Any]:
    (one,) = (o for o in found if (o["kind"], o["metadata"]["name"]) == (kind, name))
    return one


def _pod(found: list[dict[str, Any]]) -> dict[str, Any]:
    spec: dict[str, Any] = _of(found, "Deployment", "partage-scheduler")["spec"]["template"][
        "spec"
    ]
    return spec


def _options(container: dict[str, Any]) -> dict[str, str]:
    """Options with their values."""
    pairs = (arg.removeprefix("--").partition("=") for arg in container["args"])
    return {name: value for name, _, value in pairs}


@needs_helm
def test_both_ends_of_the_socket_name_each_others_user() -> None:
    """One folder, which no other container has; two users, one group."""
    pod = _pod(_chart())
    engine, beside = pod["containers"]
    options = _options(engine)
    env = {one["name"]: one.get("value", "") for one in beside["env"]}
    own = pod["securityContext"]

    assert (engine["name"], beside["name"]) == ("scheduler", "kube-scheduler")
    assert options["plugin-socket"] == env["PARTAGE_SOCKET"]
    assert options["plugin-user"] == str(beside["securityContext"]["runAsUser"])
    assert env["PARTAGE_ENGINE_USER"] == str(own["runAsUser"])
    assert options["plugin-user"] != env["PARTAGE_ENGINE_USER"]
    assert "runAsUser" not in engine["securityContext"]
    assert "runAsGroup" not in beside["securityContext"]
    assert own["fsGroup"] == own["runAsGroup"]
    folder = env["PARTAGE_SOCKET"].rpartition("/")[0]
    mounts = [
        [one["name"] for one in container["volumeMounts"] if one["mountPath"] == folder]
        for container in pod["containers"]
    ]
    assert mounts == [["engine"], ["engine"]]
    assert {"POD_NAME", "POD_NAMESPACE"} <= env.keys()


@needs_helm
def test_the_service_takes_its_options() -> None:
    """The command reads them: no credential, because no client calls the verbs."""
    engine, _ = _pod(_chart())["containers"]
    command, *rest = engine["args"]
    assert command == scheduler.name
    context = scheduler.make_context(command, list(rest))

    assert str(context.params["plugin_socket"]) == "/run/partage/engine.sock"
    assert context.params["plugin_users"] == (65533,)
    assert context.params["tls_secret"] is None


@needs_helm
def test_both_leases_have_the_names_of_the_other_seam() -> None:
    """kube-schedulers of before and after never schedule together, and services never lead together."""
    found = _chart()
    engine, _ = _pod(found)["containers"]
    config = yaml.safe_load(
        _of(found, "ConfigMap", "partage-kube-scheduler")["data"]["config.yaml"]
    )
    before = objects_of(generate.rendered(str(HELM), "extender"))
    other = yaml.safe_load(
        _of([one for one in before if one], "ConfigMap", "partage-kube-scheduler")["data"][
            "config.yaml"
        ]
    )

    (name,) = (
        value
        for one in _of([one for one in before if one], "Deployment", "partage-scheduler")["spec"][
            "template"
        ]["spec"]["containers"]
        for option, value in _options(one).items()
        if option == "lease-name"
    )
    leases = {one["metadata"]["name"] for one in found if one["kind"] == "Lease"}
    assert leases == {config["leaderElection"]["resourceName"], name}
    assert config["leaderElection"] == other["leaderElection"]
    assert _options(engine)["kube-scheduler-lease"] == config["leaderElection"]["resourceName"]
    assert _options(engine)["lease-name"] == name
    assert "extenders" not in config
    assert [one["schedulerName"] for one in config["profiles"]] == [
        one["schedulerName"] for one in other["profiles"]
    ]
    for one in config["profiles"]:
        assert one["plugins"]["multiPoint"]["enabled"] == [{"name": "Partage", "weight": 20}]
        assert one["pluginConfig"] == other["profiles"][0]["pluginConfig"]


@needs_helm
def test_nothing_of_the_extender_is_left() -> None:
    """No port, Service, Secret, account or Deployment of it; and the service itself may delete no pod."""
    found = _chart("networkPolicy.enabled=true")
    names = {(one["kind"], one["metadata"]["name"]) for one in found}

    assert not names & {
        ("Deployment", "partage-kube-scheduler"),
        ("ServiceAccount", "partage-kube-scheduler"),
        ("Secret", "partage-scheduler-tls"),
        ("Service", "partage-scheduler"),
        ("PodDisruptionBudget", "partage-kube-scheduler"),
    }
    assert "verbs" not in str(_pod(found)["containers"])
    assert "{'port': 'verbs'}" not in str([o for o in found if o["kind"] == "NetworkPolicy"])
    rules = _of(found, "ClusterRole", "partage-scheduler")["rules"]
    assert not [
        one for one in rules if "delete" in one["verbs"] or "pods/eviction" in one["resources"]
    ]
    bound = {
        one["roleRef"]["name"]
        for one in found
        if one["kind"] in {"RoleBinding", "ClusterRoleBinding"}
        and one["subjects"][0]["name"] == "partage-scheduler"
    }
    assert {"system:kube-scheduler", "system:volume-scheduler", "partage-kube-scheduler"} <= bound


@needs_helm
@pytest.mark.parametrize("seam", ["extender", "plugin"])
def test_images_follow_the_seam(seam: str) -> None:
    """Kubernetes' own, or ours with the version of the chart."""
    text = generate.rendered(str(HELM), "default", "--set", f"scheduler.seam={seam}")
    pods = [
        one["spec"]["template"]["spec"]
        for one in objects_of(text)
        if one and one["kind"] == "Deployment"
    ]
    (image,) = (
        container["image"]
        for pod in pods
        for container in pod["containers"]
        if container["name"] == "kube-scheduler"
    )
    ours, theirs = "registry.example.com/kube-scheduler:", "registry.k8s.io/kube-scheduler:v1."
    assert image.startswith(ours if seam == "plugin" else theirs)


@needs_helm
@pytest.mark.parametrize(
    ("given", "image"),
    [
        (
            "image.repository=one.example.com/gpu/partage,image.tag=v1",
            "one.example.com/gpu/kube-scheduler:v1",
        ),
        ("kubeScheduler.pluginImage.repository=two.example.com/ks", "two.example.com/ks:0.1.0"),
        (
            "image.tag=v1,kubeScheduler.pluginImage.tag=v2",
            "registry.example.com/kube-scheduler:v2",
        ),
    ],
)
def test_the_plugins_image_is_beside_ours(given: str, image: str) -> None:
    """One registry and one tag serve both by default; each may be set apart."""
    assert [one["image"] for one in _pod(_chart(given))["containers"]][1] == image


@needs_helm
@pytest.mark.parametrize(
    ("version", "seam", "renders"),
    [
        ("1.35.9", "seam=plugin", False),
        ("1.35.9", "seam=plugin,kubeScheduler.pluginImage.kubernetes=1.35", True),
        ("1.36.0", "seam=plugin", True),
        ("v1.37.2-gke.100", "seam=plugin", True),
        ("1.37.0", "seam=plugin,kubeScheduler.pluginImage.kubernetes=1.35", False),
        ("1.38.0", "seam=plugin", False),
        ("1.30.0", "seam=extender", True),
    ],
)
def test_a_cluster_that_the_plugins_kube_scheduler_is_not_for_is_refused(
    version: str,
    seam: str,
    renders: bool,  # noqa: FBT001 # a row
) -> None:
    """It is never newer than the API server and at most one minor older, as Kubernetes demands."""
    options = ("--kube-version", version, "--set", f"scheduler.{seam}")
    if renders:
        assert generate.rendered(str(HELM), "default", *options)
        return
    with pytest.raises(subprocess.CalledProcessError) as refused:
        generate.rendered(str(HELM), "default", *options)
    assert f"this cluster has v{version}. Set scheduler.seam=extender" in refused.value.stderr
