"""ResourceQuota: admission, and the status that shows what is used."""

import asyncio
from typing import Any

import pytest
from apiserver_world import PODS, World, config, ok, pod, run, sized

QUOTAS = "/api/v1/namespaces/default/resourcequotas"


def quota(**hard: Any) -> dict[str, Any]:
    """A quota; `__` in a name stands for a dot or slash where a keyword cannot have one."""
    return {"metadata": {"name": "q"}, "spec": {"hard": hard}}


CASES: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "fits": ({"requests.e.com/card": 2}, sized({"e.com/card": 2}), ""),
    "extended": (
        {"requests.e.com/card": 2},
        sized({"e.com/card": 3}),
        "requested: requests.e.com/card=3, used: requests.e.com/card=0, limited: requests.e.com/c",
    ),
    "cpu": ({"cpu": 1}, sized({"cpu": 2}), "requested: cpu=2, used: cpu=0, limited: cpu=1"),
    "limits": ({"limits.memory": "1Gi"}, sized({"memory": "2Gi"}), "limits.memory=2Gi"),
    "unspecified": (
        {"requests.cpu": 1},
        pod(),
        "failed quota: q: must specify requests.cpu for: ",
    ),
    "native is not counted": (
        {"requests.kubernetes.io/gpu": 1},
        sized(None, {"kubernetes.io/gpu": 5}),
        "",
    ),
    "count": ({"count/pods": 0}, pod(), "exceeded quota: q, requested: count/pods=1"),
    "plain count": ({"pods": 0}, pod(), "requested: pods=1, used: pods=0, limited: pods=0"),
}


@pytest.mark.parametrize(("hard", "value", "why"), CASES.values(), ids=CASES)
def test_what_does_not_fit_is_refused(
    hard: dict[str, Any], value: dict[str, Any], why: str
) -> None:
    """403 with asked, used and limit."""

    async def story(w: World) -> None:
        ok(await w.post(QUOTAS, {"metadata": {"name": "q"}, "spec": {"hard": hard}}), 201)

        answer = await w.post(PODS, value)

        assert answer.code == (403 if why else 201), answer.body
        if why:
            assert answer.message.startswith('pods "web" is forbidden: ')
            assert why in answer.message

    run(story)


def test_init_containers_count_by_maximum_and_sidecars_by_sum() -> None:
    """The kubelet would need the same."""

    async def story(w: World) -> None:
        def one(name: str, cpu: int, **more: Any) -> dict[str, Any]:
            return {"name": name, "image": "x", "resources": {"limits": {"cpu": cpu}}, **more}

        ok(await w.post(QUOTAS, quota(cpu=100)), 201)
        spec = {
            "initContainers": [
                one("side", 1, restartPolicy="Always"),
                one("init", 7),
                one("late", 2),
            ],
            "containers": [one("a", 2), one("b", 3)],
        }
        ok(await w.post(PODS, pod(**spec)), 201)
        await w.server.settle()

        assert ok(await w.get(f"{QUOTAS}/q"))["status"]["used"] == {"cpu": "8"}

    run(story)


def test_the_status_follows_pods() -> None:
    """Used grows and shrinks with pods; those that ended count no longer."""

    async def story(w: World) -> None:
        ok(await w.post(QUOTAS, quota(pods=5, **{"count/configmaps": 9})), 201)

        async def used() -> Any:
            await w.server.settle()
            return ok(await w.get(f"{QUOTAS}/q"))["status"]["used"]

        seen = [await used()]
        for name in ("a", "b", "c"):
            ok(await w.post(PODS, pod(name)), 201)
        ok(await w.post("/api/v1/namespaces/default/configmaps", config()), 201)
        seen.append(await used())
        ok(await w.patch(f"{PODS}/a/status", {"status": {"phase": "Succeeded"}}))
        ok(await w.delete(f"{PODS}/b"))
        seen.append(await used())

        assert [one["pods"] for one in seen] == ["0", "3", "1"]
        assert seen[-1]["count/configmaps"] == "1"

    run(story)


SCOPES: dict[str, tuple[dict[str, Any], dict[str, Any], bool]] = {
    "best effort": ({"scopes": ["BestEffort"]}, pod(), True),
    "not best effort": ({"scopes": ["NotBestEffort"]}, pod(), False),
    "terminating": ({"scopes": ["Terminating"]}, pod(activeDeadlineSeconds=5), True),
    "not terminating": ({"scopes": ["NotTerminating"]}, pod(activeDeadlineSeconds=5), False),
    "priority": (
        {
            "scopeSelector": {
                "matchExpressions": [
                    {
                        "scopeName": "PriorityClass",
                        "operator": "In",
                        "values": ["system-node-critical"],
                    }
                ]
            }
        },
        pod(priorityClassName="system-node-critical"),
        True,
    ),
}


@pytest.mark.parametrize(("scope", "value", "counted"), SCOPES.values(), ids=SCOPES)
def test_scopes_limit_what_a_quota_counts(
    scope: dict[str, Any], value: dict[str, Any], *, counted: bool
) -> None:
    """Only pods within the scopes are held against it."""

    async def story(w: World) -> None:
        spec = {"hard": {"pods": 0}, **scope}
        ok(await w.post(QUOTAS, {"metadata": {"name": "q"}, "spec": spec}), 201)

        assert (await w.post(PODS, value)).code == (403 if counted else 201)

    run(story)


def test_a_crowd_does_not_pass_a_quota() -> None:
    """Exactly as many of the pods created at once are admitted as fit."""

    async def story(w: World) -> None:
        ok(await w.post(QUOTAS, quota(pods=5)), 201)

        answers = await asyncio.gather(*(w.post(PODS, pod(f"p{i}")) for i in range(20)))

        assert sorted(answer.code for answer in answers) == [201] * 5 + [403] * 15

    run(story)
