"""`fullnameOverride` is the prefix of names, as in other charts; a name that is given goes before it."""

from typing import Any

import yaml

from charts import HELM, generate, needs_helm, objects_of

PARTS = ("scheduler", "kube-scheduler", "webhook", "agent", "metrics")
STAY = {
    "partage-config",
    "partage-kube-scheduler",
    "partage-node-name",
    "partage-pod-labels",
    "partage-reserved-keys",
    "partage-scheduler",
    "partage-scheduler-tls",
    "partage-webhook-tls",
}
"""A ConfigMap, Leases, Secrets and policies: values of their own, or one a cluster."""


def rendered(*options: str) -> list[dict[str, Any]]:
    """All objects of a chart with the agent and its users switched on, hooks left out."""
    everything = "agent.enabled=true,agent.simulated.model=T4,agent.simulated.cards=1"
    text = generate.rendered(str(HELM), "extender", "--set", everything, *options)
    return objects_of(text)


def named(objects: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """Kind and name of each."""
    return {(one["kind"], one["metadata"]["name"]) for one in objects}


@needs_helm
def test_every_name_follows() -> None:
    """Names and references change alike, so nothing is asked for that is not there; the rest stays."""
    usual, other = rendered(), rendered("--set", "fullnameOverride=acme")

    def moved(name: str) -> str:
        return name.replace("partage-", "acme-", 1) if name.startswith("partage-") else name

    changed = {(kind, name) for kind, name in named(usual) - named(other)}
    assert {name for kind, name in changed if kind == "Service"} == {
        f"partage-{part}" for part in ("scheduler", "webhook", "metrics")
    }
    assert {name for kind, name in changed if kind in {"Deployment", "DaemonSet"}} == {
        f"partage-{part}" for part in PARTS if part != "metrics"
    }
    assert {(kind, moved(name)) for kind, name in changed} == named(other) - named(usual)
    stay = {(kind, name) for kind, name in named(other) if name.startswith("partage-")}
    assert {name for _, name in stay} == STAY
    assert {
        kind for kind, name in stay if name in {"partage-kube-scheduler", "partage-scheduler"}
    } == {"Lease"}
    accounts = {name for kind, name in named(other) if kind == "ServiceAccount"}
    for one in other:
        for subject in one.get("subjects", []):
            if subject["kind"] == "ServiceAccount":
                assert subject["name"] in accounts
        if "template" in one.get("spec", {}):
            assert one["spec"]["template"]["spec"]["serviceAccountName"] in accounts
    text = yaml.safe_dump_all(other, width=10**6)
    for part in ("scheduler", "webhook", "metrics"):
        assert f"partage-{part}.partage-system.svc" not in text
    assert "--service=acme-webhook" in text
    for part in ("scheduler", "agent"):
        assert f"--writer=system:serviceaccount:partage-system:acme-{part}" in text


@needs_helm
def test_a_name_that_is_given_goes_before_the_prefix() -> None:
    """One of them; the others follow the prefix."""
    found = named(rendered("--set", "fullnameOverride=acme,names.agent=node-agent"))

    assert {("DaemonSet", "node-agent"), ("Deployment", "acme-webhook")} <= found
