"""Scales of built-in kinds, odd delete options, odd decodings, and what the janitor meets."""

import asyncio
from typing import Any

import pytest
from apiserver_world import (
    APPLY,
    JSON_PATCH,
    PODS,
    World,
    config,
    deployment,
    named,
    ok,
    pod,
    run,
)

from partage.apiserver import Review
from partage.apiserver.metadata import timestamp

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
CONFIGS = "/api/v1/namespaces/default/configmaps"


def test_the_scale_of_a_deployment() -> None:
    """Its selector as text; patched by JSON patch too; malformed patches are refused."""

    async def story(w: World) -> None:
        value = deployment()
        value["spec"]["selector"]["matchExpressions"] = [
            {"key": "app", "operator": "In", "values": ["web", "x"]},
            {"key": "app", "operator": "Exists"},
            {"key": "tier", "operator": "DoesNotExist"},
            {"key": "tier", "operator": "NotIn", "values": ["y"]},
        ]
        ok(await w.post(DEPLOYMENTS, value), 201)
        path = f"{DEPLOYMENTS}/web/scale"

        scale = ok(await w.get(path))
        operation = {"op": "replace", "path": "/spec/replicas", "value": 3}
        patched = ok(await w.patch(path, [operation], JSON_PATCH))
        broken = await w.patch(path, [{"op": "odd"}], JSON_PATCH)
        media = await w.patch(path, {}, "text/plain")

        assert scale["status"]["selector"] == ("app=web,app in (web,x),app,!tier,tier notin (y)")
        assert patched["spec"]["replicas"] == 3
        assert ok(await w.get(f"{DEPLOYMENTS}/web"))["spec"]["replicas"] == 3
        assert (broken.code, media.code) == (400, 415)

    run(story)


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
def test_a_scale_without_a_version_does_not_mind_another_writer(method: str) -> None:
    """As `kubectl scale` sends it beside a controller that writes the status; a version is a precondition."""

    async def story(w: World) -> None:
        ok(await w.post(DEPLOYMENTS, deployment()), 201)
        path = f"{DEPLOYMENTS}/web/scale"
        old = ok(await w.get(path))["metadata"]["resourceVersion"]
        told = [{"status": {"replicas": 1}}]

        async def disturb(_asked: Review) -> None:
            while told:
                await w.server.patch(
                    "deployments.apps", "default", "web", told.pop(), sub="status"
                )

        w.server.admission.validators.append(disturb)
        send = w.patch if method == "PATCH" else w.put
        body: dict[str, Any] = {"metadata": {"name": "web"}, "spec": {"replicas": 3}}
        scaled = await send(path, body)
        body["metadata"]["resourceVersion"] = old
        late = await send(path, body)

        assert ok(scaled)["spec"]["replicas"] == 3
        assert ok(await w.get(f"{DEPLOYMENTS}/web"))["status"]["replicas"] == 1
        assert late.code == 409

    run(story)


OPTIONS: dict[str, tuple[Any, dict[str, str], int]] = {
    "list": ([], {}, 400),
    "preconditions": ({"preconditions": 1}, {}, 400),
    "grace": ({"gracePeriodSeconds": -1}, {}, 400),
    "grace text": ({"gracePeriodSeconds": "1"}, {}, 400),
    "policy": ({"propagationPolicy": "Maybe"}, {}, 422),
    "policy in the query": (None, {"propagationPolicy": "Maybe"}, 422),
    "grace in the query": (None, {"gracePeriodSeconds": "x"}, 400),
    "all right": (None, {"propagationPolicy": "Background", "gracePeriodSeconds": "0"}, 200),
}


@pytest.mark.parametrize(("body", "query", "code"), OPTIONS.values(), ids=OPTIONS)
def test_delete_options_are_checked(body: Any, query: dict[str, str], code: int) -> None:
    """The server checks them in the body and in the query."""

    async def story(w: World) -> None:
        ok(await w.post(CONFIGS, config()), 201)

        assert (await w.delete(f"{CONFIGS}/settings", body, **query)).code == code

    run(story)


def test_a_grace_period_only_ever_shrinks() -> None:
    """A second deletion may hasten the end, and not put it off."""

    async def story(w: World) -> None:
        ok(await w.post(PODS, pod(nodeName="n1")), 201)
        seconds = []
        for wanted in (20, 60, 5):
            found = ok(await w.delete(f"{PODS}/web", {"gracePeriodSeconds": wanted}))
            seconds.append(found["metadata"]["deletionGracePeriodSeconds"])
        again = ok(await w.delete(f"{PODS}/web", dryRun="All"))

        assert seconds == [20, 20, 5]
        assert again["metadata"]["deletionGracePeriodSeconds"] == 5

    run(story)


DECODED: dict[str, tuple[dict[str, Any], int]] = {
    "nulls": ({"metadata": {"name": "x", "labels": {"a": None}, "finalizers": [None]}}, 422),
    "null container": ({"metadata": {"name": "x"}, "spec": {"containers": [None]}}, 422),
    "boolean for a number": ({"metadata": {"name": "x"}, "spec": {"priority": True}}, 400),
    "too large": ({"metadata": {"name": "x"}, "spec": {"priority": 2**40}}, 400),
    "float for a number": ({"metadata": {"name": "x"}, "spec": {"priority": 1.5}}, 400),
    "text for a list": ({"metadata": {"name": "x"}, "spec": {"containers": "x"}}, 400),
    "text for a map": ({"metadata": {"name": "x", "labels": "x"}}, 400),
    "text for a flag": ({"metadata": {"name": "x"}, "spec": {"hostNetwork": "yes"}}, 400),
    "text for a time": (
        {
            "metadata": {
                "name": "x",
                "managedFields": [{"manager": "m", "time": "20256-03-15T10:00:00Z"}],
            }
        },
        400,
    ),
    "number for a time": ({"metadata": {"name": "x", "managedFields": [{"time": 1}]}}, 400),
    "boolean for an amount": (
        {
            "metadata": {"name": "x"},
            "spec": {"containers": [{"name": "a", "resources": {"limits": {"cpu": True}}}]},
        },
        400,
    ),
    "boolean for a port": (
        {
            "metadata": {"name": "x"},
            "spec": {
                "containers": [{"name": "a", "livenessProbe": {"tcpSocket": {"port": True}}}]
            },
        },
        400,
    ),
}


@pytest.mark.parametrize(("body", "code"), DECODED.values(), ids=DECODED)
def test_values_of_a_wrong_type_are_refused(body: dict[str, Any], code: int) -> None:
    """Null stands for the zero value, as in Go; nothing else is converted."""

    async def story(w: World) -> None:
        assert (await w.post(PODS, body)).code == code

    run(story)


def test_numbers_that_are_whole_are_numbers() -> None:
    """`3.0` is 3."""

    async def story(w: World) -> None:
        body = deployment()
        body["spec"]["replicas"] = 3.0
        assert ok(await w.post(DEPLOYMENTS, body), 201)["spec"]["replicas"] == 3

    run(story)


def test_a_later_write_wins_a_race_through_admission() -> None:
    """A patch whose admission was slow is made again from the newest state."""

    async def story(w: World) -> None:
        path = f"{CONFIGS}/settings"
        ok(await w.post(CONFIGS, config()), 201)
        asked, passed = asyncio.Event(), asyncio.Event()

        async def slow(review: Review) -> None:
            if review.object is not None and "slow" in (review.object.get("data") or {}):
                asked.set()
                await asyncio.wait_for(passed.wait(), 240)

        w.server.admission.validators.append(slow)
        late = asyncio.create_task(w.patch(path, {"data": {"slow": "1"}}))
        await asyncio.wait_for(asked.wait(), 240)
        ok(await w.patch(path, {"data": {"fast": "1"}}))
        passed.set()

        assert ok(await late)["data"] == {"fast": "1", "slow": "1"}

    run(story)


def test_a_put_with_a_revision_loses_that_race() -> None:
    """409 when someone else wrote while admission was asked; 404 when the object went."""

    async def story(w: World) -> None:
        path = f"{CONFIGS}/settings"
        made = ok(await w.post(CONFIGS, config()), 201)

        async def meddle(review: Review) -> None:
            if (review.object or {}).get("data") == {"put": "1"}:
                value = {**made, "data": {"other": "1"}}
                found = w.server.store.get("configmaps", "default", "settings")
                assert found is not None
                w.server.store.replace("configmaps", value, found.revision)
            if (review.object or {}).get("data") == {"put": "2"}:
                found = w.server.store.get("configmaps", "default", "settings")
                assert found is not None
                w.server.store.remove("configmaps", "default", "settings", found.revision)

        w.server.admission.validators.append(meddle)
        lost = await w.put(path, {**made, "data": {"put": "1"}})
        gone = await w.put(path, config(put="2"))

        assert (lost.code, gone.code) == (409, 404)

    run(story)


def test_a_fault_of_a_hook_is_told_and_ends_nothing() -> None:
    """The request fails with 500; the next one is served."""

    async def story(w: World) -> None:
        def broken(review: Review) -> None:
            if review.kind.kind == "ConfigMap":
                raise RuntimeError("a bug")

        w.server.admission.validators.append(broken)
        failed = await w.post(CONFIGS, config())

        assert (failed.code, failed.reason) == (500, "InternalError")
        assert (await w.get(CONFIGS)).code == 200

    run(story)


def test_owners_wait_for_their_dependents_in_the_foreground() -> None:
    """The owner stays until a dependent on a node has ended."""

    async def story(w: World) -> None:
        owner = ok(await w.post(CONFIGS, config("owner")), 201)["metadata"]
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["uid"]}
        ok(await w.post(PODS, named(pod(nodeName="n1"), ownerReferences=[reference])), 201)

        ok(await w.delete(f"{CONFIGS}/owner", {"propagationPolicy": "Foreground"}))
        await w.server.settle()
        held = ok(await w.get(f"{CONFIGS}/owner"))
        ok(await w.delete(f"{PODS}/web", {"gracePeriodSeconds": 0}))
        await w.server.settle()

        assert held["metadata"]["finalizers"] == ["foregroundDeletion"]
        assert (await w.get(f"{CONFIGS}/owner")).code == 404

    run(story)


def test_a_later_deletion_may_have_another_policy() -> None:
    """It does not begin again; without a policy it changes nothing, and in the background it waits for no dependent."""

    async def story(w: World) -> None:
        path = f"{CONFIGS}/owner"
        mine = named(config("owner"), finalizers=["example.com/mine"])
        owner = ok(await w.post(CONFIGS, mine), 201)["metadata"]
        reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["uid"]}
        ok(await w.post(PODS, named(pod(nodeName="n1"), ownerReferences=[reference])), 201)
        seen = []
        for policy in ("", "Foreground", "", "Background", "Foreground"):
            ok(await w.delete(path, {"propagationPolicy": policy} if policy else None))
            await w.server.settle()
            seen.append((await w.get(path)).body["metadata"])

        assert [len(one["finalizers"]) for one in seen] == [1, 2, 2, 1, 2]
        assert len({one["deletionTimestamp"] for one in seen}) == 1
        ok(await w.patch(path, {"metadata": {"finalizers": ["foregroundDeletion"]}}))
        assert (await w.get(path)).code == 200
        ok(await w.delete(path, {"propagationPolicy": "Background"}))
        assert (await w.get(path)).code == 404

    run(story)


def test_two_controllers_are_one_too_many() -> None:
    """An object has at most one controlling owner."""

    async def story(w: World) -> None:
        one = {"apiVersion": "v1", "kind": "X", "name": "a", "uid": "a", "controller": True}
        body = named(config(), ownerReferences=[one, {**one, "name": "b", "uid": "b"}])

        answer = await w.post(CONFIGS, body)

        assert "Only one reference can have Controller set to true" in answer.message

    run(story)


def test_taints_and_atomic_structs_are_applied_whole() -> None:
    """A selector is one field; changing it takes all of it."""

    async def story(w: World) -> None:
        path = "/api/v1/namespaces/default/services/web"
        body = {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": {"name": "web"},
            "spec": {"ports": [{"port": 80}], "selector": {"a": "1", "b": "2"}},
        }
        ok(await w.patch(path, body, APPLY, fieldManager="one"), 201)
        body["spec"] = {"ports": [{"port": 80}], "selector": {"a": "1"}}
        found = ok(await w.patch(path, body, APPLY, fieldManager="one"))

        assert found["spec"]["selector"] == {"a": "1"}

    run(story)


def test_a_replaced_service_keeps_what_was_allocated() -> None:
    """Its addresses and its ports on nodes, which a manifest seldom names."""

    async def story(w: World) -> None:
        path = "/api/v1/namespaces/default/services"
        ports = [{"port": 80}, {"port": 81, "name": "b"}]
        ports[0]["name"] = "a"
        body = {"metadata": {"name": "web"}, "spec": {"type": "NodePort", "ports": ports}}
        made = ok(await w.post(path, body), 201)["spec"]

        changed = {**body, "spec": {**body["spec"], "selector": {"a": "1"}}}
        found = ok(await w.put(f"{path}/web", changed))["spec"]

        assert found["selector"] == {"a": "1"}
        for key in ("clusterIP", "clusterIPs", "ports"):
            assert found[key] == made[key]

    run(story)


def test_times_are_written_as_kubernetes_does() -> None:
    """Their precision is a second, and their zone UTC."""
    assert timestamp(0) == "1970-01-01T00:00:00Z"
