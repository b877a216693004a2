"""Every right that the chart gives is in the tables of docs/reference/rbac.md, and they promise no more."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml

from charts import HELM, generate, needs_helm, objects_of
from uses import can_send

ROOT = Path(__file__).parents[2]
pytestmark = needs_helm

EVERYTHING = (
    "--set",
    "agent.enabled=true,agent.mig=true,agent.devicePlugin.enabled=true",
    "--set",
    "agent.evictUnprotected=true,scheduler.preemption=true,scheduler.claims=true,agent.dra.enabled=true",
    "--set",
    "scheduler.claimTemplates=true",
    "--set",
    "agent.publishedRole=true,scheduler.publishedRole=true",
)
PROGRAMS = {
    "Scheduler service": "scheduler",
    "Second kube-scheduler": "kubeScheduler",
    "Webhook": "webhook",
    "Node agent": "agent",
    "Uninstalling": "withdraw",
}
"""Headings of the page, and what the chart's `names` call it."""
GROUPS = {
    "leases": "coordination.k8s.io",
    "poddisruptionbudgets": "policy",
    "tokenreviews": "authentication.k8s.io",
    "subjectaccessreviews": "authorization.k8s.io",
    "mutatingwebhookconfigurations": "admissionregistration.k8s.io",
    "validatingwebhookconfigurations": "admissionregistration.k8s.io",
}
"""Of resources that the page names alone, as they have one name in all groups."""
CLUSTERS_OWN = {
    "system:kube-scheduler",
    "system:volume-scheduler",
    "extension-apiserver-authentication-reader",
}
VERBS = re.compile(r"\b(get|list|watch|create|update|patch|delete|all)\b")


class Right(NamedTuple):
    """One verb on one resource.

    Attributes:
        program: the holder of the right, as `names` call it.
        where: `cluster`, or the namespace.
        resource: with its group.
        named: whether it is for objects by their names only.
        verb: the verb; `all` for any.
    """

    program: str
    where: str
    resource: str
    named: bool
    verb: str


def granted(profile: str, *options: str) -> Iterator[Right]:
    """What the roles of a profile give."""
    names = {
        "scheduler": "partage-scheduler",
        "kubeScheduler": "partage-kube-scheduler",
        "webhook": "partage-webhook",
        "agent": "partage-agent",
        "metrics": "partage-metrics",
    }
    if profile != "default":
        text = (generate.CHART / "profiles" / f"{profile}.yaml").read_text()
        names |= yaml.safe_load(text).get("names", {})
    programs = {name: program for program, name in names.items()} | {
        "partage-withdraw": "withdraw"
    }
    spaces = {
        None: "cluster",
        "kube-system": "configNamespaces",
        generate.NAMESPACES[profile]: "release",
    }
    for one in rendered(profile, *options):
        if one["kind"] not in ("Role", "ClusterRole"):
            continue
        head = one["metadata"]
        space = head.get("namespace")
        for rule in one["rules"]:
            assert set(rule) <= {"apiGroups", "resources", "resourceNames", "verbs"}, rule
            (group,) = rule["apiGroups"]
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    yield Right(
                        programs[head["name"]],
                        spaces.get(space, space),
                        f"{resource}.{group}".rstrip("."),
                        "resourceNames" in rule,
                        "all" if verb == "*" else verb,
                    )


def rendered(profile: str, *options: str) -> list[dict[str, Any]]:
    """The objects of a profile."""
    text = generate.rendered(str(HELM), profile, *options, hooks=True)
    return objects_of(text)


def told(*, idle: bool = False) -> Iterator[Right]:
    """What the page's tables say; the line above each says of which role it is.

    Args:
        idle: only what no program needs, by its row.
    """
    program = where = ""
    for line in (ROOT / "docs/reference/rbac.md").read_text().splitlines():
        if line[3:] in PROGRAMS and line.startswith("## "):
            program = PROGRAMS[line[3:]]
        elif line.startswith("ClusterRole "):
            where = "cluster"
        elif found := re.match(r"Role in (each of )?(the release|`([a-zA-Z-]+)`)", line):
            where = found[3] or "release"
        elif line.startswith("## What a stolen token"):
            return
        elif line.startswith("| ") and not line.startswith(("| ---", "| resource |")):
            if idle and " | nothing: " not in line:
                continue
            resources, verbs = line.split(" | ")[:2]
            plain = re.sub("`[^`]*`", "", resources.removeprefix("| "))
            named = re.search(r", (the one|HAMi's two by name)", plain)
            kinds, _, group = plain[: named.start() if named else None].partition(" of ")
            for kind in kinds.split(", "):
                for verb in VERBS.findall(re.sub("`[^`]*`", "", verbs)):
                    resource = f"{kind}.{group or GROUPS.get(kind, '')}".rstrip(".")
                    yield Right(program, where, resource, named is not None, verb)


def test_the_tables_are_the_roles() -> None:
    """With everything switched on: each right of each profile has its row, and each row its right."""
    given = {right for profile in generate.NAMESPACES for right in granted(profile, *EVERYTHING)}

    assert given == set(told())


def test_no_program_has_a_right_that_it_cannot_use() -> None:
    """No call in the source that a program can reach is of this verb and resource. The exceptions have their rows."""
    can = {
        name: can_send(f"partage.cli.{name}")
        for name in ("scheduler", "webhook", "agent", "withdraw")
    }
    idle = set(told(idle=True))

    for profile in generate.NAMESPACES:
        given = {one for one in granted(profile, *EVERYTHING) if one.program in can}
        assert {one.program for one in given} == can.keys()
        unused = {one for one in given if (one.verb, one.resource) not in can[one.program]}
        assert unused <= idle
        # A right that the page calls idle is unused by the source's calls.
        assert {one for one in idle if one.program == "scheduler"} <= unused
    for profile in generate.NAMESPACES.keys() - {"qgpu"}:
        assert not idle & set(granted(profile))


@pytest.mark.parametrize("profile", generate.NAMESPACES)
def test_a_profile_as_it_comes_gives_no_more(profile: str) -> None:
    """The scheduler may create Bindings in every profile."""
    given = set(granted(profile))

    assert given <= set(told())
    assert Right("scheduler", "cluster", "pods/binding", named=False, verb="create") in given


@pytest.mark.parametrize("profile", generate.NAMESPACES)
def test_every_binding_is_to_a_role_of_ours_or_one_that_the_page_names(profile: str) -> None:
    """No account of the chart is bound to anything else."""
    found = rendered(profile, *EVERYTHING)
    ours = {o["metadata"]["name"] for o in found if o["kind"] in ("Role", "ClusterRole")}
    bound = {o["roleRef"]["name"] for o in found if o["kind"].endswith("RoleBinding")}
    page = (ROOT / "docs/reference/rbac.md").read_text()

    assert bound - ours == CLUSTERS_OWN
    assert all(f"`{name}`" in page for name in CLUSTERS_OWN)


def test_config_maps_that_are_named_are_all_that_may_be_read() -> None:
    """Every role, and every program asks for no more."""
    found = rendered(
        "default", *EVERYTHING, "--set", "configNames={partage-config,our-device-plugin}"
    )
    rules = [
        rule
        for one in found
        if one["kind"] in ("Role", "ClusterRole") and "published" not in one["metadata"]["name"]
        for rule in one["rules"]
        if rule["resources"] == ["configmaps"] and "watch" in rule["verbs"]
    ]
    texts = [yaml.safe_dump(one) for one in found if one["kind"] == "Deployment"]
    programs = [text for text in texts if "--config-namespace=" in text]

    named = [one for one in rules if "resourceNames" in one]
    assert len(named) == 4
    assert all(one["resourceNames"] == ["partage-config", "our-device-plugin"] for one in named)
    # What the qGPU document prints for its scheduler is printed as it is.
    assert [one["verbs"] for one in rules if one not in named] == [["get", "list", "watch"]]
    assert len(programs) == 2
    assert all("--config-name=our-device-plugin" in text for text in programs)


STOLEN = re.compile(r"`(create|update|patch|delete)` of ((?:[a-z/.]+(?:, (?!`))?)+)")


def test_the_worst_of_each_stolen_token_is_told() -> None:
    """Every right to change what others depend on is in the row of its program, and no row has another."""
    page = (ROOT / "docs/reference/rbac.md").read_text().partition("## What a stolen token")[2]
    rows = {
        PROGRAMS[cells[1]]: {
            (verb, resource)
            for verb, listed in STOLEN.findall(cells[3])
            for resource in listed.strip(", ").split(", ")
        }
        for line in page.splitlines()
        if len(cells := [one.strip() for one in line.split("|")]) > 4 and cells[1] in PROGRAMS
    }
    harmless = {
        "events",
        "leases.coordination.k8s.io",
        "bindings",
        "tokenreviews.authentication.k8s.io",
        "subjectaccessreviews.authorization.k8s.io",
    }
    named_alike = {"devices.scheduling.koordinator.sh"}
    for profile in ("extender", "default", "koordinator", "hami"):
        given = {
            (
                one.program,
                one.verb,
                one.resource if one.resource in named_alike else one.resource.partition(".")[0],
            )
            for one in granted(profile, *EVERYTHING[:4])
            if one.verb in ("create", "update", "patch", "delete")
            and (one.resource not in harmless or (one.verb == "delete"))
            and one.program != "kubeScheduler"
        }
        told_ = {(program, *right) for program, rights in rows.items() for right in rights}
        # Devices are made by the agent that may patch them.
        given -= {("agent", "create", "devices.scheduling.koordinator.sh")}
        # Beside the plugin the service needs no certificate, and kube-scheduler sends the victims away.
        assert given == told_ if profile == "extender" else given < told_
    assert rows.keys() == set(PROGRAMS.values())


@pytest.mark.parametrize("alone", ["dra.enabled", "devicePlugin.enabled", "mig"])
def test_an_agent_that_follows_pods_may_list_them(alone: str) -> None:
    """This holds for each of its parts that follows them, with the others off."""
    given = set(granted("default", "--set", f"agent.enabled=true,agent.{alone}=true"))
    verbs = {one.verb for one in given if (one.program, one.resource) == ("agent", "pods")}

    assert {"get", "list", "watch"} <= verbs
