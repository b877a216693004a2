"""In-process hooks, webhooks, and the order they run in."""

import asyncio
import base64
import json
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiohttp import web
from apiserver_world import PODS, World, config, named, ok, pod, run, sized

from partage.apiserver import Refused, Review

HOOKS = "/apis/admissionregistration.k8s.io/v1"


def test_hooks_alter_before_validation() -> None:
    """A mutator can make valid what would be refused, as copying requests to limits does."""

    async def story(w: World) -> None:
        async def copy(review: Review) -> dict[str, Any] | None:
            if review.kind.kind != "Pod" or review.operation != "CREATE" or review.subresource:
                return None
            assert review.object is not None
            spec = review.object["spec"]
            containers = [
                {**c, "resources": {"limits": c["resources"]["requests"], **c["resources"]}}
                for c in spec["containers"]
            ]
            return {**review.object, "spec": {**spec, "containers": containers}}

        w.server.admission.mutators.append(copy)

        made = ok(await w.post(PODS, sized(None, {"nvidia.com/gpu": "100"})), 201)

        assert made["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "100"}

    run(story)


def test_hooks_see_user_operation_and_both_objects() -> None:
    """They see them for creation, update, status, binding and deletion."""
    seen: list[tuple[str, str, bool, bool, str]] = []

    async def story(w: World) -> None:
        def note(review: Review) -> None:
            if review.kind.kind == "Pod":
                seen.append(
                    (
                        review.operation,
                        review.subresource,
                        review.object is not None,
                        review.old is not None,
                        review.user.name,
                    )
                )

        w.server.admission.validators.append(note)
        ok(await w.post(PODS, pod()), 201)
        ok(await w.patch(f"{PODS}/web", {"metadata": {"labels": {"a": "b"}}}))
        ok(await w.patch(f"{PODS}/web/status", {"status": {"phase": "Running"}}))
        ok(await w.post(f"{PODS}/web/binding", {"target": {"name": "n1"}}), 201)
        ok(await w.delete(f"{PODS}/web", {"gracePeriodSeconds": 0}))

    run(story)

    who = "kubernetes-admin"
    assert seen == [
        ("CREATE", "", True, False, who),
        ("UPDATE", "", True, True, who),
        ("UPDATE", "status", True, True, who),
        ("CREATE", "binding", True, False, who),
        ("DELETE", "", False, True, who),
    ]


def test_hooks_refuse_with_their_message() -> None:
    """403 by default, another code on request; nothing is stored."""

    async def story(w: World) -> None:
        def guard(review: Review) -> None:
            raise Refused("reserved key", 422 if review.operation == "DELETE" else 403)

        ok(await w.post(PODS, pod("old")), 201)
        w.server.admission.validators.append(guard)
        refused = await w.post(PODS, pod())
        deleted = await w.delete(f"{PODS}/old")
        bound = await w.post(f"{PODS}/old/binding", {"target": {"name": "n1"}})

        assert (refused.code, deleted.code, bound.code) == (403, 422, 403)
        assert refused.message == 'pods "web" is forbidden: reserved key'
        assert (await w.get(f"{PODS}/web")).code == 404

    run(story)


@asynccontextmanager
async def hook(answer: Callable[[dict[str, Any]], Any]) -> Any:
    """A webhook on loopback; its value is the URL and what it was asked."""
    asked: list[dict[str, Any]] = []

    async def handle(request: web.BaseRequest) -> web.Response:
        body = json.loads(await request.read())
        asked.append(body["request"])
        found = answer(body["request"])
        if isinstance(found, web.Response):
            return found
        if asyncio.iscoroutine(found):
            found = await found
        response = {"uid": body["request"]["uid"], "allowed": True, **found}
        return web.json_response({"response": response})

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", asked
    finally:
        await runner.cleanup()


def configuration(url: str, **more: Any) -> dict[str, Any]:
    """A webhook configuration for pods."""
    rule = {
        "operations": ["CREATE"],
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "resources": ["pods"],
    }
    one = {
        "name": "hook.example.com",
        "clientConfig": {"url": url},
        "rules": [rule],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        **more,
    }
    return {"metadata": {"name": "hook"}, "webhooks": [one]}


def patching(*operations: dict[str, Any]) -> dict[str, Any]:
    """An answer with a JSON patch."""
    text = base64.b64encode(json.dumps(list(operations)).encode()).decode()
    return {"patch": text, "patchType": "JSONPatch"}


def test_warnings_fit_the_head_of_an_answer() -> None:
    """The server cuts them as kube-apiserver does: clients read no head of any length."""

    async def story(w: World) -> None:
        told = [f"{number} {'x' * 9_000}" for number in range(20)]
        async with hook(lambda _request: {"warnings": told}) as (url, _):
            ok(await w.post(f"{HOOKS}/mutatingwebhookconfigurations", configuration(url)), 201)

            found = await w.post(PODS, pod())

        assert ok(found, 201)
        assert found.warnings == [f'299 - "{text[:256]}"' for text in told[:16]]

    run(story)


def test_a_webhooks_answer_has_a_bound() -> None:
    """An answer of megabytes is refused; a smaller one may come in any number of pieces."""

    async def story(w: World) -> None:
        answers = [{"warnings": ["x" * 4 * 2**20]}, {"warnings": ["x" * 2**20]}]
        async with hook(lambda _request: answers.pop(0)) as (url, _):
            ok(await w.post(f"{HOOKS}/mutatingwebhookconfigurations", configuration(url)), 201)
            refused = await w.post(PODS, pod())
            ok(await w.post(PODS, pod()), 201)

        assert "more than 3145728 bytes" in refused.body["message"]

    run(story)


def test_a_mutating_webhook_patches() -> None:
    """Its patch is applied, defaults and validation follow, warnings reach the client."""

    async def story(w: World) -> None:
        operation = {"op": "add", "path": "/spec/schedulerName", "value": "mine"}
        answer = {**patching(operation), "warnings": ["careful"]}
        async with hook(lambda _request: answer) as (url, asked):
            made = configuration(url, matchConditions=[{"name": "x", "expression": "true"}])
            ok(await w.post(f"{HOOKS}/mutatingwebhookconfigurations", made), 201)

            found = await w.post(PODS, pod())

        assert ok(found, 201)["spec"]["schedulerName"] == "mine"
        assert '299 - "careful"' in found.warnings
        assert any("matchConditions" in text for text in found.warnings)
        assert asked[0]["operation"] == "CREATE"
        assert asked[0]["userInfo"]["username"] == "kubernetes-admin"
        assert asked[0]["object"]["spec"]["tolerations"]

    run(story)


def test_a_validating_webhook_denies() -> None:
    """The denial has its own code and message, or neither."""

    async def story(w: World) -> None:
        answers = iter(
            [
                {"allowed": False, "status": {"message": "not today", "code": 418}},
                {"allowed": False},
            ]
        )
        async with hook(lambda _request: next(answers)) as (url, _asked):
            path = f"{HOOKS}/validatingwebhookconfigurations"
            ok(await w.post(path, configuration(url)), 201)

            explained = await w.post(PODS, pod())
            mute = await w.post(PODS, pod())

        text = 'admission webhook "hook.example.com" denied the request'
        assert (explained.code, explained.message) == (418, f"{text}: not today")
        assert (mute.code, mute.message) == (403, f"{text} without explanation")

    run(story)


async def slow() -> dict[str, Any]:
    """An answer that takes too long."""
    await asyncio.sleep(5)
    return {}


FAULTS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "error": lambda _r: web.Response(status=503),
    "no review": lambda _r: web.json_response([]),
    "another uid": lambda _r: {"uid": "other"},
    "no JSON": lambda _r: web.Response(text="?"),
    "too slow": lambda _r: slow(),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
@pytest.mark.parametrize("policy", ["Fail", "Ignore"])
def test_a_webhook_that_cannot_be_asked_counts_by_its_policy(
    fault: Callable[[dict[str, Any]], Any], policy: str
) -> None:
    """`Fail` refuses, `Ignore` passes with a warning."""

    async def story(w: World) -> None:
        async with hook(fault) as (url, _asked):
            body = configuration(url, failurePolicy=policy, timeoutSeconds=1)
            ok(await w.post(f"{HOOKS}/validatingwebhookconfigurations", body), 201)

            answer = await w.post(PODS, pod())

        if policy == "Fail":
            assert answer.code == 500
            assert 'failed calling webhook "hook.example.com"' in answer.message
        else:
            assert answer.code == 201
            assert "passed over" in answer.warnings[0]

    run(story)


PATCHES: dict[str, dict[str, Any]] = {
    "no base64": {"patch": "?"},
    "no JSON": {"patch": "Pz8/"},
    "unfit": patching({"op": "remove", "path": "/none"}),
    "no object": patching({"op": "replace", "path": "", "value": 1}),
    "no pod": patching({"op": "replace", "path": "/spec/containers", "value": "x"}),
}


@pytest.mark.parametrize("answer", PATCHES.values(), ids=PATCHES)
def test_a_webhooks_unfit_patch_refuses(answer: dict[str, Any]) -> None:
    """Nothing is stored from it."""

    async def story(w: World) -> None:
        async with hook(lambda _request: answer) as (url, _asked):
            ok(await w.post(f"{HOOKS}/mutatingwebhookconfigurations", configuration(url)), 201)

            refused = await w.post(PODS, pod())

        assert refused.code in (422, 500)
        assert (await w.get(f"{PODS}/web")).code == 404

    run(story)


MATCHES: dict[str, tuple[dict[str, Any], bool]] = {
    "object selector": ({"objectSelector": {"matchLabels": {"a": "b"}}}, True),
    "other object": ({"objectSelector": {"matchLabels": {"a": "c"}}}, False),
    "namespace selector": (
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}}},
        True,
    ),
    "other namespace": (
        {
            "namespaceSelector": {
                "matchExpressions": [
                    {
                        "key": "kubernetes.io/metadata.name",
                        "operator": "NotIn",
                        "values": ["default"],
                    }
                ]
            }
        },
        False,
    ),
    "any": (
        {
            "rules": [
                {
                    "operations": ["*"],
                    "apiGroups": ["*"],
                    "apiVersions": ["*"],
                    "resources": ["*/*"],
                    "scope": "Namespaced",
                }
            ]
        },
        True,
    ),
    "cluster scope": (
        {
            "rules": [
                {
                    "operations": ["*"],
                    "apiGroups": ["*"],
                    "apiVersions": ["*"],
                    "resources": ["*"],
                    "scope": "Cluster",
                }
            ]
        },
        False,
    ),
    "subresource": (
        {
            "rules": [
                {
                    "operations": ["*"],
                    "apiGroups": [""],
                    "apiVersions": ["v1"],
                    "resources": ["pods/status"],
                }
            ]
        },
        False,
    ),
}


@pytest.mark.parametrize(("more", "matched"), MATCHES.values(), ids=MATCHES)
def test_a_webhook_is_asked_about_what_it_matches(more: dict[str, Any], *, matched: bool) -> None:
    """Rules, scope, namespace and labels decide."""

    async def story(w: World) -> None:
        async with hook(lambda _request: {}) as (url, asked):
            body = configuration(url, **more)
            ok(await w.post(f"{HOOKS}/validatingwebhookconfigurations", body), 201)
            ok(await w.post(PODS, named(pod(), labels={"a": "b"})), 201)

        assert bool(asked) is matched

    run(story)


def test_a_webhook_that_cannot_be_asked_is_told() -> None:
    """No Service has a server behind it here; a certificate may be unusable; and a dry run is reported as one."""

    async def story(w: World) -> None:
        async with hook(lambda _request: {}) as (url, asked):
            path = f"{HOOKS}/validatingwebhookconfigurations"
            ok(await w.post(path, configuration(url)), 201)
            dry = await w.post(PODS, pod("dry"), dryRun="All")
            service = {"namespace": "x", "name": "svc", "path": "/path"}
            named_ = configuration(url, clientConfig={"service": service})
            ok(await w.put(f"{path}/hook", named_))
            failed = await w.post(PODS, pod("other"))
            none = configuration("https://127.0.0.1:1/", sideEffects="Some")
            none["webhooks"][0]["clientConfig"]["caBundle"] = "Pz8/"
            ok(await w.put(f"{path}/hook", none))
            unusable = await w.post(PODS, pod("other"))
            refused = await w.post(PODS, pod("other"), dryRun="All")

        assert asked[-1]["dryRun"] is True
        assert dry.code == 201
        assert "no endpoints available" in failed.message
        assert unusable.code == 500
        assert "does not support dry run" in refused.message

    run(story)


def test_code_in_the_process_goes_the_same_way() -> None:
    """The embedder's own calls are validated, admitted and seen by readers of changes."""

    async def story(w: World) -> None:
        server = w.server
        seen = []

        async def follow() -> None:
            async for change in server.changes("configmaps"):
                seen.append((change.kind, change.record.name))
                if len(seen) == 3:
                    return

        task = asyncio.create_task(follow())
        await asyncio.sleep(0)
        await server.create("configmaps", config(), "default")
        await server.patch("configmaps", "default", "settings", {"data": {"a": "1"}})
        await server.delete("configmaps", "default", "settings")
        await asyncio.wait_for(task, 240)
        await server.create("pods", pod(), "default")
        await server.bind("default", "web", {"target": {"name": "n1"}})
        record = server.store.get("pods", "default", "web")
        assert record is not None
        running = {**record.value, "status": {"phase": "Running"}}
        await server.update("pods", running, "status")

        assert seen == [("ADDED", "settings"), ("MODIFIED", "settings"), ("DELETED", "settings")]
        found = server.store.get("pods", "default", "web")
        assert found is not None
        assert (found.value["spec"]["nodeName"], found.value["status"]["phase"]) == (
            "n1",
            "Running",
        )

    run(story)
