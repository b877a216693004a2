"""Nodes, pods, admission and the scheduler's HTTP paths, by a plain HTTP client."""

import asyncio
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from up_world import (
    DEVICES,
    EXAMPLES,
    PODS,
    World,
    eventually,
    from_files,
    node,
    pod,
    run,
    running,
)

from partage.apiserver import ApiServer, Record, Settings
from partage.embedded.scheduling import Choice, Seam
from partage.embedded.tainting import TaintEvictions, patience
from partage.model.selector import Taint
from partage.vendors import names

QUARTER = {"koordinator.sh/gpu-core": "25", "koordinator.sh/gpu-memory-ratio": "25"}
WHOLE = {"koordinator.sh/gpu": "100"}


def test_a_pod_gets_its_part_of_a_card_and_runs() -> None:
    """Created without a node; bound with its record, running, and its log shows what it has."""

    async def story() -> None:
        async with running([node()]) as w:
            await w.create(PODS, pod("web", QUARTER))
            found = await w.phase("web", "Running")

            assert found["spec"]["nodeName"] == "n0"
            assert found["spec"]["schedulerName"] == "partage-scheduler"
            record = json.loads(found["metadata"]["annotations"][names.ALLOCATION])
            (grant,) = record["containers"][0]["devices"]
            assert (grant["milli"], grant["bytes"]) == (250, 20 * 2**30)
            assert found["status"]["containerStatuses"][0]["state"]["running"]
            log = await w.get(f"{PODS}/web/log")
            assert f"{grant['uuid']} A100-SXM4-80GB): 25% + 20Gi" in log
            assert f"env NVIDIA_VISIBLE_DEVICES={grant['minor']}" in log
            assert f"file /dev/nvidia{grant['minor']}" in log

    run(story())


def test_the_debug_api_and_the_node_agree_on_what_is_used() -> None:
    """The Koordinator document's summaries, and the explanation of the pod."""

    async def story() -> None:
        async with running([node(cards=1)]) as w:
            await w.create(PODS, pod("web", QUARTER))
            await w.phase("web", "Running")
            path = "/apis/v1/plugins/DeviceShare/nodeDeviceSummaries/n0"
            summary = await w.get(path, scheduler=True)
            explained = await w.get("/api/explain/default/web", scheduler=True)

            assert summary["deviceUsed"]["koordinator.sh/gpu-core"] == "25"
            assert "default/web" in summary["allocateSet"]["gpu"]
            assert (explained["state"], explained["node"]) == ("bound", "n0")

    run(story())


@pytest.mark.parametrize(
    "path",
    ["/", "/metrics", "/healthz", "/readyz", "/apis/v1/plugins/DeviceShare/nodeDeviceSummaries"],
)
def test_every_path_of_the_scheduler_is_served(path: str) -> None:
    """The scheduler's URL serves it, which is the dashboard's too."""

    async def story() -> None:
        async with running([node()]) as w:
            assert await w.get(path, scheduler=True)
            where = w.cluster.addresses
            assert where.dashboard == where.scheduler
            assert not where.api.endswith("/")

    run(story())


def test_the_webhook_is_served_over_http_too() -> None:
    """The review of a lone percentage comes back with a patch."""
    review = {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "1",
            "operation": "CREATE",
            "namespace": "default",
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "object": pod("web", {"nvidia.com/gpu": "100"}),
        },
    }

    async def story() -> None:
        async with running([node()]) as w:
            url = w.cluster.addresses.scheduler
            for path in ("mutate", "validate"):
                async with w.http.post(f"{url}/webhook/{path}", json=review) as answer:
                    assert answer.status == 200
                    verdict = (await answer.json())["response"]
                    assert verdict["allowed"], verdict
                    assert ("patch" in verdict) == (path == "mutate")

    run(story())


def test_a_broken_request_is_refused_with_its_rule() -> None:
    """Admission in the same process: the rule comes back, and nothing is stored."""

    async def story() -> None:
        async with running([node()]) as w:
            odd = {
                "tke.cloud.tencent.com/qgpu-core": "33",
                "tke.cloud.tencent.com/qgpu-memory": "1",
            }
            code, answer = await w.send("POST", PODS, pod("odd", odd))

            assert code == 422
            assert "multiple of 5" in answer["message"]
            assert (answer["details"]["kind"], answer["details"]["name"]) == ("Pod", "odd")
            (cause,) = answer["details"]["causes"]  # what kubectl prints of a 422
            assert "multiple of 5" in cause["message"]
            assert (await w.get(PODS))["items"] == []

    run(story())


def test_records_cannot_be_forged() -> None:
    """Only Partage writes a reserved key; an administrator may not."""

    async def story() -> None:
        async with running([node()]) as w:
            forged = pod("forged", meta={"annotations": {names.ALLOCATION: "{}"}})
            code, answer = await w.send("POST", PODS, forged)

            assert code == 403
            assert "only Partage may write" in answer["message"]

    run(story())


def test_pods_that_pass_every_scheduler_by_close_next_to_nothing() -> None:
    """None names its node, and one that another scheduler bound closes no other card."""

    async def story() -> None:
        little, other = {"nvidia.com/gpumem": "1"}, {"schedulerName": "volcano"}
        async with running([node(cards=3)]) as w:
            mirror = {"annotations": {"kubernetes.io/config.mirror": "x"}}
            for made in (
                pod("a", little, nodeName="n0", **other),
                pod("a", little, nodeName="n0"),
                pod("a", little, nodeName="n0", meta=mirror, **other),
            ):
                code, said = await w.send("POST", PODS, made)
                assert code == 422
                assert "may not name its node" in said["message"]
            await w.create(PODS, pod("plain", {"cpu": "1"}, nodeName="n0"))
            await w.create(PODS, pod("web", QUARTER))
            await w.phase("web", "Running")

            await w.create(PODS, pod("a", little, **other))
            change = {"spec": {"nodeName": "n0"}}
            merge = "application/merge-patch+json"
            assert (await w.send("PATCH", f"{PODS}/a", change, merge))[0] in (403, 422)
            assert "nodeName" not in (await w.pod("a"))["spec"]

            target = {"apiVersion": "v1", "kind": "Node", "name": "n0"}
            binding = {"apiVersion": "v1", "kind": "Binding", "target": target}
            await w.create(f"{PODS}/a/binding", {**binding, "metadata": {"name": "a"}})
            await w.until("a", lambda found: found["spec"].get("nodeName"))
            await w.create(PODS, pod("whole", WHOLE))
            await w.phase("whole", "Running")
            await w.create(PODS, pod("beside", QUARTER))
            await w.phase("beside", "Running")

    run(story())


def test_a_waiting_pod_says_why_and_follows_a_release() -> None:
    """Refused with the reason as its condition; bound as soon as the card is free again."""

    async def story() -> None:
        async with running([node(cards=1)]) as w:
            await w.create(PODS, pod("first", WHOLE))
            await w.phase("first", "Running")
            await w.create(PODS, pod("second", WHOLE))
            why = await w.refused("second")
            assert ": 0/1 nodes: 1 " in why

            code, _ = await w.send("DELETE", f"{PODS}/first", {})
            assert code == 200
            await w.phase("second", "Running")

    run(story())


def test_ordinary_resources_and_taints_are_counted_too() -> None:
    """A pod without devices; one that wants more CPU than there is; one without a toleration."""

    async def story() -> None:
        taint = {"key": "dedicated", "effect": "NoSchedule"}
        async with running([node(cpu="4"), node("n1", taints=(taint,))]) as w:
            await w.create(PODS, pod("plain", {"cpu": "3"}))
            assert (await w.phase("plain", "Running"))["spec"]["nodeName"] == "n0"
            await w.create(PODS, pod("large", {"cpu": "2", **WHOLE}))
            why = await w.refused("large")

            assert "1 Insufficient cpu" in why
            assert "1 node(s) had untolerated taint {dedicated:NoSchedule}" in why
            await w.send("DELETE", f"{PODS}/plain", {})
            await w.phase("large", "Running")

    run(story())


@pytest.mark.parametrize(
    ("tolerated", "seconds"),
    [
        ([], 0.0),
        ([{"key": "ill", "operator": "Exists", "tolerationSeconds": 9}], 9.0),
        ([{"key": "ill", "operator": "Exists"}], None),
        ([{"operator": "Exists"}, {"key": "ill", "value": "x", "tolerationSeconds": 4}], 4.0),
        ([{"key": "ill", "value": "y"}], 0.0),
        ([{"operator": "Exists", "effect": "NoSchedule"}], 0.0),
        ([{"operator": "Exists", "tolerationSeconds": -1}], 0.0),
    ],
)
def test_a_pod_stays_as_long_as_it_tolerates(
    tolerated: list[dict[str, Any]], seconds: float | None
) -> None:
    """The shortest of the tolerations that fit counts."""
    assert patience({"tolerations": tolerated}, (Taint("ill", "x", "NoExecute"),)) == seconds
    assert patience({"tolerations": tolerated}, ()) is None


def test_a_taint_sends_away_who_does_not_tolerate_it() -> None:
    """A pod leaves the node at once, or after the time that it tolerates; its card is free again."""
    taint = {"spec": {"taints": [{"key": "ill", "effect": "NoExecute"}]}}
    for_a_time = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 1}

    async def story() -> None:
        async with running([node(cards=3)]) as w:
            await w.create(PODS, pod("goes", WHOLE))
            await w.create(PODS, pod("stays", WHOLE, tolerations=[{"operator": "Exists"}]))
            await w.create(PODS, pod("later", WHOLE, tolerations=[for_a_time]))
            for name in ("goes", "stays", "later"):
                await w.phase(name, "Running")

            await w.patch("/api/v1/nodes/n0", taint)

            for left in (2, 1):
                await eventually(
                    lambda: w.get(PODS), lambda found, n=left: len(found["items"]) == n
                )
            assert (await w.pod("stays"))["status"]["phase"] == "Running"

    run(story())


def test_a_second_taint_does_not_wait_for_the_first() -> None:
    """A pod that tolerates one for a time, and the other not at all, goes at once."""
    for_long = {
        "key": "ill",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 9000,
    }

    async def story() -> None:
        server = ApiServer(Settings())
        await server.furnish()
        await server.create("nodes", {"metadata": {"name": "n0"}})
        made = pod("goes", {}, nodeName="n0", tolerations=[for_long])
        await server.create("pods", made, "default")
        evicting = asyncio.create_task(TaintEvictions(server).run())
        for known in (("ill",), ("ill", "other")):
            taints = [{"key": key, "effect": "NoExecute"} for key in known]
            await asyncio.sleep(0.05)
            await server.patch("nodes", "", "n0", {"spec": {"taints": taints}})
        async with asyncio.timeout(10):
            async for change in server.changes("pods"):
                if change.record.metadata.get("deletionTimestamp"):
                    break
        evicting.cancel()

    asyncio.run(story())


def test_a_plain_node_has_the_labels_of_a_kubelet(tmp_path: Path) -> None:
    """Most charts choose nodes by `kubernetes.io/os`; what the manifest says stays."""
    file = tmp_path / "node.yaml"
    file.write_text(
        "apiVersion: v1\nkind: Node\nmetadata: {name: Plain, labels: {kubernetes.io/arch: arm64}}\n",
        encoding="utf-8",
    )

    async def story() -> None:
        async with running([], from_files(file).objects) as w:
            found = (await w.get("/api/v1/nodes/Plain"))["metadata"]["labels"]
            assert found["kubernetes.io/os"] == "linux"
            assert found["kubernetes.io/arch"] == "arm64"
            assert found["kubernetes.io/hostname"] == "plain"

    run(story())


def test_priority_goes_first() -> None:
    """Among the waiting pods, the more important one gets the card."""

    async def story() -> None:
        async with running([node(cards=1)]) as w:
            await w.create(PODS, pod("holder", WHOLE))
            await w.phase("holder", "Running")
            calm = {**URGENT, "preemptionPolicy": "Never"}
            await w.create("/apis/scheduling.k8s.io/v1/priorityclasses", calm)
            await w.create(PODS, pod("early", WHOLE))
            await w.refused("early")
            await w.create(PODS, pod("late", WHOLE, priorityClassName="urgent"))
            await w.refused("late")
            await w.send("DELETE", f"{PODS}/holder", {})
            await w.phase("late", "Running")

            assert not (await w.pod("early"))["spec"].get("nodeName")

    run(story())


URGENT = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "urgent"},
    "value": 10,
}


def test_the_extender_and_the_loop_share_one_ledger() -> None:
    """Pods that a kube-scheduler of its own asks about by HTTP, among pods of the loop: each card is full, none over."""
    rounds = 4

    async def ask(w: World, verb: str, body: Any) -> Any:
        url = f"{w.cluster.addresses.scheduler}/scheduler/{verb}"
        async with w.http.post(url, json=body) as answer:
            assert answer.status == 200
            return await answer.json()

    async def by_hand(w: World, name: str) -> str:
        """Filter and bind, as kube-scheduler does; empty where it is bound."""
        asked = {"Pod": await w.pod(name), "Nodes": None, "NodeNames": ["n0"]}
        answer = await ask(w, "filter", asked)
        if not answer.get("NodeNames"):
            return str(answer["FailedNodes"]["n0"])
        uid = asked["Pod"]["metadata"]["uid"]
        bind = {"PodName": name, "PodNamespace": "default", "PodUID": uid, "Node": "n0"}
        return str((await ask(w, "bind", bind)).get("Error") or "")

    async def story() -> None:
        async with running([node(cards=2)]) as w:
            for number in range(rounds):
                other = pod(f"by-hand-{number}", QUARTER, schedulerName="beside")
                await w.create(PODS, other)
                assert (await w.pod(f"by-hand-{number}"))["spec"]["schedulerName"] == "beside"
                hand = asyncio.create_task(by_hand(w, f"by-hand-{number}"))
                await w.create(PODS, pod(f"loop-{number}", QUARTER))
                assert await hand == ""
            for number in range(rounds):
                await w.phase(f"loop-{number}", "Running")
                await w.phase(f"by-hand-{number}", "Running")
            await w.create(PODS, pod("one-more", QUARTER))
            await w.create(PODS, pod("by-hand-more", QUARTER, schedulerName="beside"))
            assert "gpu-memory" in await w.refused("one-more")
            assert "gpu-memory" in await by_hand(w, "by-hand-more")
            assert (await w.state("n0"))["compute"] == "2 of 2 cards", await w.state("n0")

            await w.send("DELETE", f"{PODS}/by-hand-0", {})
            woken = await w.phase("one-more", "Running")
            # The loop gets news in the same process: no write of a pod is needed for that.
            assert names.WOKEN not in woken["metadata"].get("annotations", {})

    run(story())


class _Faulty:
    """A seam that fails once in deciding about one pod and once in binding it; see `embedded.scheduling.Seam`."""

    def __init__(self, seam: Seam) -> None:
        self.seam = seam
        self.failures: list[str] = []

    def _fail(self, where: str, name: str) -> None:
        if name == "unlucky" and where not in self.failures:
            self.failures.append(where)
            raise RuntimeError(f"a fault of ours in {where}")

    async def choose(self, record: Record, fitting: Sequence[str], *, all_fit: bool) -> Choice:
        """Fail, or ask."""
        self._fail("choose", record.name)
        return await self.seam.choose(record, fitting, all_fit=all_fit)

    async def bind(self, record: Record, choice: Choice) -> str:
        """Fail, or bind."""
        self._fail("bind", record.name)
        return await self.seam.bind(record, choice)

    def forget(self, record: Record, choice: Choice) -> None:
        """Pass it on."""
        self.seam.forget(record, choice)


def test_a_fault_in_one_pod_stops_no_other() -> None:
    """It is tried again, and so is a Binding that failed; the loop goes on meanwhile."""

    async def story() -> None:
        async with running([node()]) as w:
            loop = w.cluster._loop
            assert loop is not None
            faulty = loop._seam = _Faulty(loop._seam)
            await w.create(PODS, pod("unlucky", QUARTER))
            await w.create(PODS, pod("other", QUARTER))

            await w.phase("other", "Running")
            await w.phase("unlucky", "Running")
            assert faulty.failures == ["choose", "bind"]

    run(story())


def test_less_important_pods_make_room() -> None:
    """The only victim that helps goes, with an event; the urgent pod gets its card."""

    async def story() -> None:
        async with running([node(cards=2)]) as w:
            await w.create("/apis/scheduling.k8s.io/v1/priorityclasses", URGENT)
            await w.create(PODS, pod("calm", WHOLE))
            await w.create(PODS, pod("kept", WHOLE, priorityClassName="urgent"))
            for name in ("calm", "kept"):
                await w.phase(name, "Running")
            await w.create(PODS, pod("hurried", WHOLE, priorityClassName="urgent"))
            await w.phase("hurried", "Running")

            names_ = {one["metadata"]["name"] for one in (await w.get(PODS))["items"]}
            assert names_ == {"kept", "hurried"}
            wanted = {("Preempted", "calm"), ("Preempting", "hurried")}
            await eventually(
                lambda: w.get("/api/v1/namespaces/default/events"),
                lambda found: (
                    wanted
                    <= {(one["reason"], one["involvedObject"]["name"]) for one in found["items"]}
                ),
            )

    run(story())


def test_nobody_is_sent_away_in_vain() -> None:
    """A pod that may not preempt waits, and so does one for whom no eviction makes room."""

    async def story() -> None:
        async with running([node(cards=1)]) as w:
            polite = {**URGENT, "metadata": {"name": "polite"}, "preemptionPolicy": "Never"}
            for one in (URGENT, polite):
                await w.create("/apis/scheduling.k8s.io/v1/priorityclasses", one)
            await w.create(PODS, pod("calm", WHOLE))
            await w.phase("calm", "Running")
            await w.create(PODS, pod("modest", WHOLE, priorityClassName="polite"))
            await w.refused("modest")
            two = {"koordinator.sh/gpu": "200"}
            await w.create(PODS, pod("greedy", two, priorityClassName="urgent"))
            await w.refused("greedy")

            assert "deletionTimestamp" not in (await w.pod("calm"))["metadata"]

    run(story())


def test_a_card_falls_ill_and_recovers_on_demand() -> None:
    """An annotation of the node: the Device object says why, the pod waits, and then runs."""

    async def story() -> None:
        async with running([node(cards=1)]) as w:
            change: dict[str, Any] = {
                "metadata": {"annotations": {names.SIMULATE_UNHEALTHY: "0=Xid 79"}}
            }
            await w.patch("/api/v1/nodes/n0", change)
            device = await eventually(
                lambda: w.get(f"{DEVICES}/n0"),
                lambda found: not found["spec"]["devices"][0]["health"],
            )
            assert device["spec"]["devices"][0]["conditions"][0]["message"] == "Xid 79"
            await w.heard()
            await w.create(PODS, pod("web", QUARTER))
            assert (await w.refused("web")).startswith("Unhealthy")

            change["metadata"]["annotations"][names.SIMULATE_UNHEALTHY] = None
            await w.patch("/api/v1/nodes/n0", change)
            await w.phase("web", "Running")

    run(story())


def test_nodes_come_and_go_while_it_runs() -> None:
    """A described node gets its devices and takes pods; it goes with its description."""
    path = "/apis/partage.io/v1alpha1/simulatednodes"
    described: dict[str, Any] = {
        "apiVersion": "partage.io/v1alpha1",
        "kind": "SimulatedNode",
        "metadata": {"name": "late"},
        "spec": {"model": "H200", "count": 2, "cards": 1},
    }

    async def story() -> None:
        async with running([node(cards=1)]) as w:
            wrong = {**described, "spec": {"model": "H300"}}
            code, answer = await w.send("POST", path, wrong)
            assert (code, "is not one of A10" in answer["message"]) == (422, True)

            odd = {
                "model": "a<b>",
                "vendor": "nvidia",
                "memory": "8Gi",
            }  # its node would be refused
            code, answer = await w.send("POST", path, {**described, "spec": odd})
            assert (code, "a valid label must be" in answer["message"]) == (422, True)

            await w.create(path, described)
            wanted = {"kubernetes.io/hostname": "late-1"}
            await w.create(PODS, pod("web", WHOLE, nodeSelector=wanted))
            assert (await w.phase("web", "Running"))["spec"]["nodeName"] == "late-1"
            await w.send("DELETE", f"{path}/late", {})
            await eventually(
                lambda: w.get("/api/v1/nodes"), lambda found: len(found["items"]) == 1
            )
            for path_ in (DEVICES, PODS):
                left = 1 if path_ == DEVICES else 0
                await eventually(
                    lambda at=path_: w.get(at), lambda found, n=left: len(found["items"]) == n
                )

    run(story())


def test_a_deleted_node_comes_back_as_it_is_described_anew() -> None:
    """A node of the start that is gone may be described with fewer cards; while it is there, it keeps its hardware."""
    anew = {
        "apiVersion": "partage.io/v1alpha1",
        "kind": "SimulatedNode",
        "metadata": {"name": "n0"},
        "spec": {"model": "H200", "cards": 1},
    }
    path = "/apis/partage.io/v1alpha1/simulatednodes"

    def cards(number: int) -> Callable[[Any], bool]:
        return lambda found: [len(one["spec"]["devices"]) for one in found["items"]] == [number]

    async def story() -> None:
        async with running([node(cards=3)]) as w:
            await eventually(lambda: w.get(DEVICES), cards(3))
            await w.create(path, anew)
            await w.send("DELETE", f"{path}/n0", {})
            await eventually(lambda: w.get(DEVICES), cards(3))

            await w.send("DELETE", "/api/v1/nodes/n0", {})
            await eventually(lambda: w.get(DEVICES), lambda found: not found["items"])
            await w.create(path, anew)
            await eventually(lambda: w.get(DEVICES), cards(1))

    run(story())


def test_shares_that_nothing_keeps_do_not_change() -> None:
    """Simulated nodes have no software that would limit a container, and the condition says so."""

    async def story() -> None:
        async with running([node(cards=1)]) as w:
            await w.create(PODS, pod("web", QUARTER))
            await w.phase("web", "Running")
            asked = {"metadata": {"annotations": {names.ADJUST: "compute=60"}}}
            await w.patch(f"{PODS}/web", asked)
            found = await w.until(
                "web", lambda one: "SharesAdjusted" in json.dumps(one["status"]["conditions"])
            )
            (told,) = [
                one["message"]
                for one in found["status"]["conditions"]
                if one["type"] == names.ADJUSTED_CONDITION
            ]
            assert told.startswith("nothing enforces shares on node n0")

    run(story())


def test_a_pod_on_a_node_that_is_not_there_does_not_run() -> None:
    """It waits for its node, and can be deleted without it."""

    async def story() -> None:
        async with running([node()]) as w:
            await w.create(PODS, pod("early", nodeName="late"))
            await w.create(PODS, pod("never", nodeName="nowhere"))
            await w.send("DELETE", f"{PODS}/never", {})
            await w.create(PODS, pod("other"))
            await w.phase("other", "Running")
            assert (await w.pod("early"))["status"]["phase"] == "Pending"
            await w.create("/api/v1/nodes", {"metadata": {"name": "late"}})
            await w.phase("early", "Running")
            assert len((await w.get(PODS))["items"]) == 2

    run(story())


@pytest.mark.parametrize("name", ["nvidia.com/gpu", "koordinator.sh/gpu", "nvidia.com/priority"])
def test_a_pod_that_names_devices_and_asks_for_none_runs(name: str) -> None:
    """Amounts of 0, and HAMi's priority alone: no device is given, and none is missing."""

    async def story() -> None:
        async with running([node()]) as w:
            await w.create(PODS, pod("idle", {name: "0"}))
            found = await w.until(
                "idle", lambda pod: pod["status"].get("phase") in ("Running", "Failed")
            )
            assert found["status"]["phase"] == "Running"
            assert names.ALLOCATION not in found["metadata"].get("annotations", {})

    run(story())


def test_pods_end_and_give_back() -> None:
    """Their annotation or their command ends them; what they held is free again."""

    async def story() -> None:
        async with running([node(cards=1)]) as w:
            short = {"annotations": {names.SIMULATE_LIFETIME: "0.2s"}}
            await w.create(PODS, pod("short", WHOLE, meta=short))
            nap = {"command": ["sh", "-c", "sleep 0.2"]}
            await w.create(PODS, pod("nap", WHOLE, container=nap, restartPolicy="Never"))
            for name in ("short", "nap"):
                found = await w.phase(name, "Succeeded")
                state = found["status"]["containerStatuses"][0]["state"]["terminated"]
                assert (state["exitCode"], state["reason"]) == (0, "Completed")

    run(story())


def test_the_examples_come_out_as_their_readmes_say() -> None:
    """All four protocols side by side; a pod that is meant to wait waits, with the code that is listed."""

    async def story() -> None:
        found = from_files(EXAMPLES)
        async with running((), found.objects) as w:
            assert await w.cluster.settled(60.0)
            seen = w.cluster.overview()
            assert "A100-SXM4-40GB" in {one.model for one in seen.nodes}  # without its maker
            placed = {one.name for one in seen.placed}
            waiting = {one.name: one.reason.partition(":")[0] for one in seen.waiting}
            refused = {one.manifest.name for one in w.cluster.outcome.refused}

            assert {
                "default/pod-example",
                "default/qgpu-whole-card",
                "default/slice-by-size",
                "default/test-metax-sGPU",
                "team-vision/already-running",
                "team-text/hami-on-t4",
                "team-vision/metax-third",
                "default/gpu-with-rdma",
            } <= placed
            assert waiting["waiting/too-big-for-t4"] == "InsufficientMemory"
            assert waiting["waiting/on-broken-a10"] == "Unhealthy"
            assert waiting["small-team/over-quota"] == "QuotaExceeded"
            assert waiting["default/wants-h200"] == "TypeMismatch"
            assert refused == {"two-protocols", "qgpu-odd-share", "metax-two-parts"}
            (note,) = w.cluster.outcome.notes  # admission's, as kubectl prints it
            assert "(Pod pod-percent): container curlimage: nvidia.com/gpu alone is" in note

            pytest.importorskip("celpy", reason="selectors of claims are not judged without it")
            # Claims come once the nodes have published what they offer.
            for name in ("whole-card", "same-card", "memory-alone", "instance"):
                await w.phase(f"claims-{name}", "Running")

            async def serving() -> dict[str, list[str]]:
                items = (await w.get(PODS))["items"]
                of: dict[str, list[str]] = {"placed": [], "waits": []}
                for one in items:
                    if one["metadata"]["name"].startswith("claims-serve-"):
                        of["placed" if one["spec"].get("nodeName") else "waits"].append(
                            one["metadata"]["name"]
                        )
                return of

            two = await eventually(serving, lambda of: len(of["placed"]) == 2)
            (waits,) = two["waits"]
            await w.until(waits, lambda one: "InsufficientCore" in str(one["status"]))

    run(story())
