"""A pod that wishes for more than its operator's rule allows runs with less: in `explain`, as event, in counts."""

import json
from typing import Any

from world import World, device, document, half, node, pod, run

from partage.extender.explain import explain
from partage.vendors import names

RULES = "[{name: shop, namespaces: [team], serviceAccounts: [web], online: true, onlinePods: 1}]"
WHY = "online is not granted: 1 of 1 pods of namespace team are online already (rule shop)"


def config(rules: str = RULES) -> dict[str, Any]:
    """The operator's rules."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "partage-config", "namespace": "kube-system", "resourceVersion": "1"},
        "data": {"permits": rules},
    }


def online(name: str, account: str = "web", **annotations: str) -> dict[str, Any]:
    """A pod that wishes to go before others."""
    said = {names.QGPU_APP_CLASS: "online", **annotations}
    return pod(name, half(), meta={"annotations": said}, serviceAccountName=account)


def written(world: World, name: str) -> dict[str, Any]:
    """What the Binding of a pod said of its wishes."""
    (sent,) = [one for one in world.api.sent if one.name == name]
    found: dict[str, Any] = json.loads(sent.annotations[names.PERMIT])
    return found


def notes(world: World, name: str) -> list[str]:
    """What `explain` says beside the place."""
    found = explain(world.service.books, "team", name)
    assert found is not None
    told: list[str] = found["notes"]
    return told


def told_by(world: World) -> list[tuple[str, str]]:
    """Collect what is cut down from now on."""
    found: list[tuple[str, str]] = []
    hooks = world.service.books.hooks
    object.__setattr__(hooks, "cut", lambda entry, said: found.append((entry.pod.name, said)))
    return found


@run
async def test_the_second_of_one_is_an_ordinary_pod() -> None:
    """The first pod is online, as its Binding shows; nothing is refused."""
    world = await World().start(config(), node(), device())
    told = told_by(world)
    for name, account in (("a", "web"), ("b", "web"), ("c", "cron")):
        await world.place(online(name, account))

    assert written(world, "a") == {"v": 1, "uid": "uid-a", "rule": "shop", "online": True}
    assert written(world, "b") == {"v": 1, "uid": "uid-b", "rule": "shop", "why": WHY}
    other = (
        "online is not granted: no rule names service account cron of namespace team "
        "(permits of partage-config)"
    )
    assert written(world, "c") == {"v": 1, "uid": "uid-c", "why": other}
    assert [notes(world, name) for name in "abc"] == [[], [WHY], [other]]
    assert told == [("b", WHY), ("c", other)]
    counts = world.service.books.counts
    assert (counts["wish granted"], counts["wish cut"]) == (1, 2)


@run
async def test_room_that_an_end_leaves_is_given_to_the_next() -> None:
    """A running pod does not get it: its container has its limits."""
    world = await World().start(config(), node(), device())
    for name in "ab":
        await world.place(online(name))
    world.service.pod_gone("uid-a")
    await world.place(online("c"))

    assert written(world, "c")["online"]
    assert notes(world, "b") == [WHY]


@run
async def test_pods_that_race_for_the_last_one_do_not_both_get_it() -> None:
    """Both have a hold before either is bound; a failed Binding releases the permit."""
    world = await World().start(config(), node(), device())
    for name in "abc":
        world.create(online(name))
        world.filter(online(name))
    for name in "bca":
        assert await world.bind(name) == ""

    assert sorted(one for one in "abc" if written(world, one).get("online")) == ["a"]


@run
async def test_a_leader_that_starts_anew_counts_what_is_bound() -> None:
    """It counts by the permits beside the records."""
    world = await World().start(config(), node(), device())
    await world.place(online("a"))
    after = await World().start(config(), node(), device(), world.api.pods["a"])
    await after.place(online("b"))

    assert "online" not in written(after, "b")
    assert after.service.audit().clean


@run
async def test_what_a_tenant_writes_grants_nothing() -> None:
    """The Binding replaces a tenant's own permit, and a later one with another pod's uid does not count."""
    forged = json.dumps({"v": 1, "uid": "uid-b", "rule": "shop", "online": True})
    world = await World().start(config(), node(), device())
    await world.place(online("a"))
    await world.place(online("b", **{names.PERMIT: forged}))

    assert written(world, "b") == {"v": 1, "uid": "uid-b", "rule": "shop", "why": WHY}
    after = json.loads(world.api.pods["b"]["metadata"]["annotations"][names.PERMIT])
    assert "online" not in after


@run
async def test_rules_that_change_leave_what_runs_and_judge_what_comes() -> None:
    """New rules that are invalid leave the earlier rules in force."""
    world = await World().start(config(), node(), device())
    await world.place(online("a"))
    for version, rules in ((2, "[]"), (3, "[{name: shop}]")):
        manifest = config(rules)
        manifest["metadata"]["resourceVersion"] = str(version)
        world.service.changed(document(manifest))
    await world.place(online("b"))

    assert written(world, "a")["online"]
    (sent,) = [one for one in world.api.sent if one.name == "b"]
    assert names.PERMIT not in sent.annotations
    assert (
        "permits"
        in world.service.books.cluster_cache.problems["ConfigMap kube-system/partage-config"]
    )
