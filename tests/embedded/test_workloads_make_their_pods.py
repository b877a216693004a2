"""Deployments, StatefulSets and Jobs in the embedded cluster, and what it says of other workloads."""

from typing import Any

import pytest
from up_world import PODS, World, eventually, node, run, running

from partage.apiserver import ApiServer, Record
from partage.embedded.replicas import Rollout, rollout
from partage.embedded.sets import turn

APPS = "/apis/apps/v1/namespaces/default"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
SHARE = {"koordinator.sh/gpu-core": "10", "koordinator.sh/gpu-memory-ratio": "10"}
WHOLE = {"koordinator.sh/gpu": "100"}


def workload(kind: str, limits: dict[str, str], command: str = "", **spec: Any) -> dict[str, Any]:
    """A workload of one container."""
    container: dict[str, Any] = {
        "name": "main",
        "image": "busybox",
        "resources": {"limits": limits},
    }
    if command:
        container["command"] = ["sh", "-c", command]
    template: dict[str, Any] = {
        "metadata": {"labels": {"app": "web"}},
        "spec": {"containers": [container]},
    }
    if kind == "Job":
        template["spec"]["restartPolicy"] = "Never"
    else:
        spec["selector"] = {"matchLabels": {"app": "web"}}
    version = "batch/v1" if kind == "Job" else "apps/v1"
    return {
        "apiVersion": version,
        "kind": kind,
        "metadata": {"name": "web"},
        "spec": {**spec, "template": template},
    }


async def running_pods(w: World) -> list[dict[str, Any]]:
    """Pods that run and are to stay."""
    items = (await w.get(PODS))["items"]
    return [
        one
        for one in items
        if one["status"].get("phase") == "Running" and "deletionTimestamp" not in one["metadata"]
    ]


def test_a_suspended_job_says_so_until_it_is_resumed() -> None:
    """It has no start and no pods until then, and the condition stays when it is complete."""

    async def story() -> None:
        async with running([node()]) as w:
            made = workload("Job", SHARE, "sleep 0.1", suspend=True)
            await w.create(JOBS, made)
            waits = await eventually(
                lambda: w.get(f"{JOBS}/web"), lambda found: found["status"].get("conditions")
            )
            assert waits["status"]["conditions"][0]["reason"] == "JobSuspended"
            assert "startTime" not in waits["status"]
            assert (await w.get(PODS))["items"] == []

            await w.patch(f"{JOBS}/web", {"spec": {"suspend": False}})
            done = await eventually(
                lambda: w.get(f"{JOBS}/web"), lambda found: "completionTime" in found["status"]
            )
            told = {one["type"]: one["status"] for one in done["status"]["conditions"]}
            assert told == {"Suspended": "False", "Complete": "True"}
            assert "startTime" in done["status"]

    run(story())


def test_a_deployment_grows_rolls_and_goes() -> None:
    """Its pods run; a new template replaces them; deleting it deletes them."""

    async def story() -> None:
        async with running([node()]) as w:
            path = f"{APPS}/deployments/web"
            await w.create(f"{APPS}/deployments", workload("Deployment", SHARE, replicas=3))
            done = await eventually(
                lambda: w.get(path), lambda found: found["status"].get("readyReplicas") == 3
            )
            assert done["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "1"
            before = {one["metadata"]["name"] for one in await running_pods(w)}

            image = {"name": "main", "image": "busybox:2", "resources": {"limits": SHARE}}
            await w.patch(path, {"spec": {"template": {"spec": {"containers": [image]}}}})
            await eventually(
                lambda: w.get(path),
                lambda found: (
                    found["status"]["observedGeneration"] == found["metadata"]["generation"]
                    and found["status"].get("updatedReplicas")
                    == found["status"].get("replicas")
                    == 3
                    and found["status"].get("readyReplicas") == 3
                ),
            )
            after = {one["metadata"]["name"] for one in await running_pods(w)}
            assert not before & after

            await w.send("DELETE", path, {})
            await eventually(lambda: w.get(PODS), lambda found: not found["items"])

    run(story())


def test_a_workload_that_nothing_acts_on_says_so() -> None:
    """It is stored; an event says that it creates no pods."""

    async def story() -> None:
        async with running([node()]) as w:
            await w.create(f"{APPS}/daemonsets", workload("DaemonSet", SHARE))
            found = await eventually(
                lambda: w.get("/api/v1/namespaces/default/events"),
                lambda found: [one for one in found["items"] if one["reason"] == "NotActedUpon"],
            )
            (event,) = [one for one in found["items"] if one["reason"] == "NotActedUpon"]
            assert event["involvedObject"]["kind"] == "DaemonSet"
            assert "makes no pods of it" in event["message"]
            assert not (await w.get(PODS))["items"]

    run(story())


def test_a_stateful_set_keeps_names_and_order() -> None:
    """One pod after another, by number; a new template replaces the last first; a smaller set loses its last."""
    path = f"{APPS}/statefulsets/web"

    async def settled(w: World, number: int) -> list[str]:
        done = await eventually(
            lambda: w.get(path),
            lambda found: (
                (told := found.get("status", {}))
                and told["observedGeneration"] == found["metadata"]["generation"]
                and [told.get(key) for key in ("replicas", "readyReplicas", "updatedReplicas")]
                == [number] * 3
            ),
        )
        assert done["status"]["currentRevision"] == done["status"]["updateRevision"]
        found = await running_pods(w)
        assert {one["metadata"]["labels"]["controller-revision-hash"] for one in found} == {
            done["status"]["updateRevision"]
        }
        return sorted(one["metadata"]["name"] for one in found)

    async def told(w: World, reason: str) -> list[str]:
        found = await w.get("/api/v1/namespaces/default/events")
        mine = [one for one in found["items"] if one["reason"] == reason]
        return [
            one["message"]
            for one in sorted(mine, key=lambda one: int(one["metadata"]["resourceVersion"]))
        ]

    async def story() -> None:
        async with running([node()]) as w:
            claims = [{"metadata": {"name": "data"}, "spec": {"accessModes": ["ReadWriteOnce"]}}]
            stateful = workload(
                "StatefulSet", SHARE, replicas=3, serviceName="web", volumeClaimTemplates=claims
            )
            await w.create(f"{APPS}/statefulsets", stateful)
            assert await settled(w, 3) == ["web-0", "web-1", "web-2"]
            assert await told(w, "SuccessfulCreate") == [
                f"create Pod web-{number} in StatefulSet web successful" for number in range(3)
            ]
            pod = await w.pod("web-1")
            assert (pod["spec"]["hostname"], pod["spec"]["subdomain"]) == ("web-1", "web")
            assert {"claimName": "data-web-1"} in [
                one.get("persistentVolumeClaim") for one in pod["spec"]["volumes"]
            ]
            assert pod["metadata"]["labels"]["apps.kubernetes.io/pod-index"] == "1"

            image = {"name": "main", "image": "busybox:2", "resources": {"limits": SHARE}}
            await w.patch(path, {"spec": {"template": {"spec": {"containers": [image]}}}})
            await settled(w, 3)
            assert (await w.pod("web-0"))["spec"]["containers"][0]["image"] == "busybox:2"
            assert await told(w, "SuccessfulDelete") == [
                f"delete Pod web-{number} in StatefulSet web successful" for number in (2, 1, 0)
            ]

            await w.patch(path, {"spec": {"replicas": 1}})
            assert await settled(w, 1) == ["web-0"]
            before = (await w.pod("web-0"))["metadata"]["uid"]
            await w.send("DELETE", f"{PODS}/web-0", {})
            await w.until("web-0", lambda pod: pod["metadata"]["uid"] != before)
            assert await settled(w, 1) == ["web-0"]

            await w.send("DELETE", path, {})
            await eventually(lambda: w.get(PODS), lambda found: not found["items"])

    run(story())


def test_a_stateful_set_waits_for_the_pod_before() -> None:
    """The second pod finds no card: the third is not made, and with `Parallel` it is."""

    async def story() -> None:
        async with running([node(cards=1)]) as w:
            for name, policy in (("web", "OrderedReady"), ("all", "Parallel")):
                stateful = workload("StatefulSet", WHOLE, replicas=3, podManagementPolicy=policy)
                stateful["metadata"]["name"] = name
                stateful["spec"]["selector"] = {"matchLabels": {"app": name}}
                stateful["spec"]["template"]["metadata"]["labels"] = {"app": name}
                await w.create(f"{APPS}/statefulsets", stateful)
            found = await eventually(lambda: w.get(PODS), lambda one: len(one["items"]) == 5)
            assert sorted(one["metadata"]["name"] for one in found["items"]) == [
                "all-0",
                "all-1",
                "all-2",
                "web-0",
                "web-1",
            ]

    run(story())


def record(name: str, *, serves: bool = True, of: str = "r2", phase: str = "Running") -> Record:
    """A pod of a set."""
    ready = {"type": "Ready", "status": "True" if serves else "False"}
    labels = {"controller-revision-hash": of}
    value = {
        "metadata": {"uid": name, "labels": labels},
        "status": {"phase": phase, "conditions": [ready]},
    }
    return Record("pods", "default", name, value, 1)


@pytest.mark.parametrize(
    ("spec", "pods", "made", "gone"),
    [
        pytest.param({"replicas": 2}, {}, [0], [], id="the first"),
        pytest.param({"replicas": 2}, {0: {"serves": False}}, [], [], id="waits"),
        pytest.param({"replicas": 2}, {0: {}}, [1], [], id="the next"),
        pytest.param({"replicas": 2, "ordinals": {"start": 4}}, {4: {}}, [5], [], id="from 4"),
        pytest.param({"replicas": 1}, {0: {}, 1: {}, 2: {}}, [], [2], id="the last goes"),
        pytest.param({"replicas": 0}, {0: {"serves": False}}, [], [0], id="none is left"),
        pytest.param({"replicas": 2}, {0: {"phase": "Failed"}, 1: {}}, [], [0], id="one failed"),
        pytest.param({"replicas": 2}, {0: {"of": "r1"}, 1: {"of": "r1"}}, [], [1], id="rolls"),
        pytest.param({"replicas": 2}, {0: {"of": "r1"}, 1: {}}, [], [0], id="rolls on"),
        pytest.param(
            {"replicas": 2, "updateStrategy": {"rollingUpdate": {"partition": 1}}},
            {0: {"of": "r1"}, 1: {}},
            [],
            [],
            id="partition",
        ),
        pytest.param(
            {"replicas": 1, "updateStrategy": {"type": "OnDelete"}},
            {0: {"of": "r1"}},
            [],
            [],
            id="on delete",
        ),
        pytest.param(
            {"replicas": 2, "podManagementPolicy": "Parallel"},
            {0: {"of": "r1"}, 1: {"serves": False}},
            [],
            [],
            id="parallel waits to roll",
        ),
        pytest.param(
            {"replicas": 1, "podManagementPolicy": "Parallel"},
            {0: {}, 1: {}, 2: {}},
            [],
            [2, 1],
            id="parallel shrinks",
        ),
    ],
)
def test_a_stateful_sets_next_step(
    spec: dict[str, Any], pods: dict[int, dict[str, Any]], made: list[int], gone: list[int]
) -> None:
    """What is made and what goes, as apps/v1 has it."""
    step = turn(spec, {n: record(f"web-{n}", **of) for n, of in pods.items()}, "r2")

    assert list(step.made) == made
    assert [pod.name for pod in step.gone] == [f"web-{number}" for number in gone]


def test_a_stateful_set_of_any_size_makes_some_pods_at_a_time() -> None:
    """All its pods may be made at once by its policy; other workloads have their turn meanwhile."""
    spec = {"replicas": 2**31 - 1, "podManagementPolicy": "Parallel"}
    assert turn(spec, {}, "r").made == tuple(range(500))


@pytest.mark.parametrize(("kind", "field"), [("ReplicaSet", "replicas"), ("Job", "parallelism")])
def test_a_large_workload_lets_others_have_their_turn(
    monkeypatch: pytest.MonkeyPatch, kind: str, field: str
) -> None:
    """A pod of a small one is made long before the last of the large one's, of which none is left out."""
    monkeypatch.setattr("partage.embedded.workloads.AT_ONCE", 10)
    many, order, create = 300, [], ApiServer.create

    async def noted(server: ApiServer, resource: str, made: Any, *more: Any, **by: Any) -> Record:
        if resource == "pods":
            order.append(made["metadata"]["ownerReferences"][0]["name"])
        return await create(server, resource, made, *more, **by)

    monkeypatch.setattr(ApiServer, "create", noted)

    async def story() -> None:
        async with running([node(cards=1)]) as w:
            small = workload("Job", WHOLE)
            small["metadata"]["name"] = "small"
            large = workload(kind, WHOLE, **{field: many})
            await w.create(JOBS if kind == "Job" else f"{APPS}/replicasets", large)
            await w.create(JOBS, small)
            await eventually(lambda: w.get(PODS), lambda found: len(found["items"]) == many + 1)

    run(story())

    assert order.count("web") == many
    assert order.index("small") < many / 2


def test_a_job_runs_to_its_completions() -> None:
    """One after another on one card, then it is complete."""

    async def story() -> None:
        async with running([node(cards=1)]) as w:
            job = workload("Job", WHOLE, "sleep 0.1", completions=3, parallelism=2)
            await w.create(JOBS, job)
            found = await eventually(
                lambda: w.get(f"{JOBS}/web"), lambda found: found["status"].get("completionTime")
            )
            assert found["status"]["succeeded"] == 3
            assert found["status"]["conditions"][0]["type"] == "Complete"
            assert len((await w.get(PODS))["items"]) == 3

    run(story())


@pytest.mark.parametrize(
    ("policy", "limit", "failures", "made"),
    [("Never", 0, 1, 1), ("Never", 2, 3, 3), ("OnFailure", 0, 1, 0), ("OnFailure", 1, 1, 0)],
)
def test_a_job_fails_once_its_limit_is_passed(
    policy: str, limit: int, failures: int, made: int
) -> None:
    """Failed pods count, and restarted containers; pods that still run go."""

    async def story() -> None:
        async with running([node()]) as w:
            job = workload("Job", SHARE, "exit 1", backoffLimit=limit)
            job["spec"]["template"]["spec"]["restartPolicy"] = policy
            await w.create(JOBS, job)
            found = await eventually(
                lambda: w.get(f"{JOBS}/web"), lambda found: found["status"].get("conditions")
            )
            (condition,) = found["status"]["conditions"]
            assert (condition["type"], condition["reason"]) == ("Failed", "BackoffLimitExceeded")
            assert found["status"]["failed"] == failures
            pods = await eventually(lambda: w.get(PODS), lambda found: len(found["items"]) == made)
            assert {one["status"]["phase"] for one in pods["items"]} <= {"Failed"}
            after = await eventually(
                lambda: w.get(f"{JOBS}/web"), lambda found: not found["status"].get("active")
            )
            assert after["status"]["failed"] == failures

    run(story())


def test_jobs_and_pods_end_at_their_deadlines() -> None:
    """A Job's pods go; a pod that has run too long has failed, whatever its policy, and its Job makes another."""

    async def story() -> None:
        async with running([node(cards=4)]) as w:
            late = workload("Job", SHARE, "sleep 1h", activeDeadlineSeconds=1)
            await w.create(JOBS, late)
            again = workload("Job", SHARE, "sleep 1h", backoffLimit=1)
            again["metadata"]["name"] = "again"
            again["spec"]["template"]["spec"]["activeDeadlineSeconds"] = 1
            await w.create(JOBS, again)
            found = {
                name: await eventually(
                    lambda name=name: w.get(f"{JOBS}/{name}"),
                    lambda found: found["status"].get("conditions"),
                )
                for name in ("web", "again")
            }
            ends = {name: one["status"]["conditions"][0]["reason"] for name, one in found.items()}
            assert ends == {"web": "DeadlineExceeded", "again": "BackoffLimitExceeded"}
            pods = await eventually(lambda: w.get(PODS), lambda found: len(found["items"]) == 2)
            for one in pods["items"]:
                status = one["status"]
                assert (status["phase"], status["reason"]) == ("Failed", "DeadlineExceeded")
                (container,) = status["containerStatuses"]
                assert container["state"]["terminated"]["exitCode"] == 137

    run(story())


async def rolled_out(w: World, image: str) -> None:
    """The Deployment has pods of this image alone."""
    await eventually(
        lambda: w.get(PODS),
        lambda found: {one["spec"]["containers"][0]["image"] for one in found["items"]} == {image},
    )


def test_undone_twice_a_rollout_is_done_again() -> None:
    """The template that is in force has the highest revision, which is what `kubectl rollout undo` goes by."""

    async def story() -> None:
        async with running([node()]) as w:
            path = f"{APPS}/deployments/web"
            made = workload("Deployment", SHARE, replicas=1, revisionHistoryLimit=1)
            await w.create(f"{APPS}/deployments", made)
            for image in ("busybox", "busybox:2", "busybox", "busybox:3"):
                container = {"name": "main", "image": image, "resources": {"limits": SHARE}}
                cause = {"annotations": {"kubernetes.io/change-cause": image}}
                change = {"spec": {"template": {"spec": {"containers": [container]}}}}
                await w.patch(path, {"metadata": cause, **change})
                await rolled_out(w, image)

            sets = await eventually(
                lambda: w.get(f"{APPS}/replicasets"), lambda found: len(found["items"]) == 2
            )
            said = sorted(
                (
                    one["metadata"]["annotations"]["deployment.kubernetes.io/revision"],
                    one["metadata"]["annotations"]["kubernetes.io/change-cause"],
                )
                for one in sets["items"]
            )
            assert said == [("3", "busybox"), ("4", "busybox:3")]

    run(story())


@pytest.mark.parametrize("text", ["9" * 5_000, "٣", "-1", "1e3"], ids=lambda text: text[:4])
def test_a_revision_that_is_none_ends_no_rollout(text: str) -> None:
    """Any user may write one on a ReplicaSet; Python reads no number of 5,000 digits."""

    async def story() -> None:
        async with running([node()]) as w:
            await w.create(f"{APPS}/deployments", workload("Deployment", SHARE, replicas=1))
            await rolled_out(w, "busybox")
            (made,) = (await w.get(f"{APPS}/replicasets"))["items"]
            said = {"annotations": {"deployment.kubernetes.io/revision": text}}
            await w.patch(f"{APPS}/replicasets/{made['metadata']['name']}", {"metadata": said})

            container = {"name": "main", "image": "busybox:2", "resources": {"limits": SHARE}}
            change = {"spec": {"template": {"spec": {"containers": [container]}}}}
            await w.patch(f"{APPS}/deployments/web", change)
            await rolled_out(w, "busybox:2")

    run(story())


def test_pods_are_taken_and_let_go_by_their_labels() -> None:
    """A pod that lost its label is replaced and stays; what was orphaned has its workload again."""

    async def story() -> None:
        async with running([node()]) as w:
            made = workload("Deployment", SHARE, replicas=2)
            await w.create(f"{APPS}/deployments", made)
            taken_out, stays = await eventually(lambda: running_pods(w), lambda it: len(it) == 2)
            name = taken_out["metadata"]["name"]
            await w.patch(f"{PODS}/{name}", {"metadata": {"labels": {"app": None}}})
            await eventually(lambda: running_pods(w), lambda found: len(found) == 3)
            assert not (await w.get(f"{PODS}/{name}"))["metadata"].get("ownerReferences")

            orphaned = {"propagationPolicy": "Orphan"}
            await w.send("DELETE", f"{APPS}/deployments/web", orphaned)
            await w.create(f"{APPS}/deployments", made)
            (left,) = (await w.get(f"{APPS}/replicasets"))["items"]
            await eventually(
                lambda: w.get(f"{APPS}/replicasets/{left['metadata']['name']}"),
                lambda found: found["metadata"].get("ownerReferences"),
            )
            assert stays["metadata"]["name"] in {
                one["metadata"]["name"] for one in await running_pods(w)
            }
            await w.send("DELETE", f"{APPS}/deployments/web", {})
            await eventually(lambda: running_pods(w), lambda found: len(found) == 1)

    run(story())


def test_a_workload_says_what_it_has_when_it_may_have_no_more() -> None:
    """A quota keeps its pods out: none is counted that is not there."""

    async def story() -> None:
        async with running([node()]) as w:
            path = f"{APPS}/deployments/web"
            await w.create(f"{APPS}/deployments", workload("Deployment", SHARE, replicas=2))
            pods = await eventually(lambda: running_pods(w), lambda found: len(found) == 2)
            quota = {"metadata": {"name": "none"}, "spec": {"hard": {"pods": "0"}}}
            await w.create("/api/v1/namespaces/default/resourcequotas", quota)
            for pod in pods:
                await w.send("DELETE", f"{PODS}/{pod['metadata']['name']}", {})

            await eventually(
                lambda: w.get(path),
                lambda found: found["status"].get("unavailableReplicas") == 2,
            )

    run(story())


def test_steps_are_told_as_events() -> None:
    """What `kubectl describe` shows of a Deployment, of its ReplicaSet and of a Job; one event each."""

    async def story() -> None:
        async with running([node()]) as w:
            path = f"{APPS}/deployments/web"
            await w.create(f"{APPS}/deployments", workload("Deployment", SHARE, replicas=2))
            await eventually(lambda: running_pods(w), lambda found: len(found) == 2)
            await w.patch(path, {"spec": {"replicas": 1}})
            await w.create(JOBS, workload("Job", SHARE, "true"))

            events = await eventually(
                lambda: w.get("/api/v1/namespaces/default/events"),
                lambda found: (
                    {"SuccessfulDelete", "job-controller"}
                    <= {
                        text
                        for one in found["items"]
                        for text in (one["reason"], one["source"].get("component"))
                    }
                ),
            )
            told = {
                (one["involvedObject"]["kind"], one["source"]["component"], one["reason"]): one
                for one in events["items"]
            }
            scaled = [
                one["message"] for one in events["items"] if one["reason"] == "ScalingReplicaSet"
            ]
            (replicas,) = (await w.get(f"{APPS}/replicasets"))["items"]
            name = replicas["metadata"]["name"]
            assert sorted(scaled) == [
                f"Scaled down replica set {name} from 2 to 1",
                f"Scaled up replica set {name} from 0 to 2",
            ]
            assert {
                ("Deployment", "deployment-controller", "ScalingReplicaSet"),
                ("ReplicaSet", "replicaset-controller", "SuccessfulCreate"),
                ("ReplicaSet", "replicaset-controller", "SuccessfulDelete"),
                ("Job", "job-controller", "SuccessfulCreate"),
            } <= told.keys()
            made = [one for one in events["items"] if one["reason"] == "SuccessfulCreate"]
            assert len(made) == 3
            assert all(one["message"].startswith("Created pod: web-") for one in made)

    run(story())


@pytest.mark.parametrize(
    ("script", "more", "told"),
    [
        (
            "true",
            {"suspend": True},
            {("Normal", "Suspended"), ("Normal", "Resumed"), ("Normal", "Completed")},
        ),
        ("exit 1", {"backoffLimit": 0}, {("Warning", "BackoffLimitExceeded")}),
        ("sleep 1h", {"activeDeadlineSeconds": 1}, {("Warning", "DeadlineExceeded")}),
    ],
    ids=["completed", "failed", "late"],
)
def test_how_a_job_went_on_and_ended_is_told_as_events(
    script: str, more: dict[str, Any], told: set[tuple[str, str]]
) -> None:
    """Each event comes once, in the words of a genuine cluster's controller."""

    async def story() -> None:
        async with running([node()]) as w:
            job = workload("Job", SHARE, script, **more)
            job["spec"]["template"]["spec"]["restartPolicy"] = "Never"
            await w.create(JOBS, job)
            if "suspend" in more:
                await eventually(
                    lambda: w.get(f"{JOBS}/web"), lambda found: found["status"].get("conditions")
                )
                await w.patch(f"{JOBS}/web", {"spec": {"suspend": False}})

            def ends(found: dict[str, Any]) -> list[tuple[str, str]]:
                return [
                    (one["type"], one["reason"])
                    for one in found["items"]
                    if one["source"].get("component") == "job-controller"
                    and not one["reason"].startswith("Successful")
                ]

            events = await eventually(
                lambda: w.get("/api/v1/namespaces/default/events"),
                lambda found: told <= set(ends(found)),
            )
            assert sorted(ends(events)) == sorted(told)

    run(story())


def test_what_admission_refuses_is_told_on_the_workload() -> None:
    """An event on the ReplicaSet says which rule its pods break."""

    async def story() -> None:
        async with running([node()]) as w:
            odd = {
                "tke.cloud.tencent.com/qgpu-core": "33",
                "tke.cloud.tencent.com/qgpu-memory": "1",
            }
            await w.create(f"{APPS}/deployments", workload("Deployment", odd, replicas=1))
            events = await eventually(
                lambda: w.get("/api/v1/namespaces/default/events"),
                lambda found: any(one["reason"] == "FailedCreate" for one in found["items"]),
            )
            (told,) = [one for one in events["items"] if one["reason"] == "FailedCreate"]
            assert "multiple of 5" in told["message"]
            assert told["involvedObject"]["kind"] == "ReplicaSet"

    run(story())


@pytest.mark.parametrize(
    ("strategy", "state", "step"),
    [
        ({}, (0, 0, 0, 0), Rollout(4, 0)),
        ({}, (0, 0, 4, 4), Rollout(1, 3)),
        ({}, (1, 0, 3, 3), Rollout(2, 3)),
        ({}, (2, 2, 3, 3), Rollout(2, 1)),
        ({}, (4, 4, 1, 1), Rollout(4, 0)),
        ({}, (0, 0, 4, 0), Rollout(1, 0)),
        ({"type": "Recreate"}, (0, 0, 4, 4), Rollout(0, 0)),
        ({"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}}, (0, 0, 4, 4), Rollout(0, 3)),
        ({"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}, (0, 0, 4, 4), Rollout(0, 3)),
        ({"rollingUpdate": {"maxSurge": "50%", "maxUnavailable": 0}}, (0, 0, 4, 4), Rollout(2, 4)),
    ],
)
def test_a_rollout_keeps_its_bounds(
    strategy: dict[str, Any], state: tuple[int, int, int, int], step: Rollout
) -> None:
    """Never more than wanted and surge, never fewer serving than wanted less what may be away."""
    assert rollout({"replicas": 4, "strategy": strategy}, *state) == step
