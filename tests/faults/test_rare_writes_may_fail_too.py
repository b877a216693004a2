"""Scenario 7, the writes that a pod seldom causes: preemption, labels, Secrets, and those of agents."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from bed import QUICK, WHOLE, Bed, bed, node, until
from lone_agent import node as lone_node
from ways import WAYS
from webhook_process import start_webhook

from fakes.wire import Fault
from partage.daemon.preempting import PreemptionSettings
from partage.vendors import names

FEW = ("conflict", "too many requests", "timeout", "timeout though done", "no answer though done")
PODS = "/api/v1/namespaces/default/pods"
BUDGETS = "poddisruptionbudgets.policy"
PREEMPTION = {
    "nomination": {"method": "PATCH", "path": f"{PODS}/high/status"},
    "condition": {"method": "PATCH", "path": f"{PODS}/low/status"},
    "deletion": {"method": "DELETE", "path": f"{PODS}/low"},
    "eviction": {"method": "POST", "path": f"{PODS}/low/eviction"},
}
PREEMPTING = replace(QUICK, preemption=PreemptionSettings(period=0.05, patience=0.3))


async def classes(cluster: Bed) -> None:
    """Two priorities."""
    for name, value in (("low", 1), ("high", 1000)):
        body = {"metadata": {"name": name}, "value": value}
        await cluster.create(body, "priorityclasses.scheduling.k8s.io")


async def guarded(cluster: Bed) -> None:
    """A budget that allows the pod to be evicted."""
    spec = {"minAvailable": 0, "selector": {"matchLabels": {"app": "low"}}}
    await cluster.create(
        {"metadata": {"name": "b", "namespace": "default"}, "spec": spec}, BUDGETS
    )
    status = {"status": {"disruptionsAllowed": 1, "observedGeneration": 1}}
    await cluster.server.patch(BUDGETS, "default", "b", status, sub="status")


@pytest.mark.parametrize("fault", FEW)
@pytest.mark.parametrize("write", PREEMPTION)
async def test_room_is_made_though_a_write_of_it_fails(write: str, fault: str) -> None:
    """The more important pod gets the card in the end, and no room is kept without a pod."""
    async with bed(node(cards=1)) as cluster:
        await classes(cluster)
        if write == "eviction":
            await guarded(cluster)
        await cluster.daemon(options=PREEMPTING)
        await cluster.led()
        low: dict[str, Any] = {"meta": {"labels": {"app": "low"}}, "priorityClassName": "low"}
        await cluster.pod("low", WHOLE, **low)
        await cluster.bound("low")
        cluster.wire.fail(Fault(**PREEMPTION[write], **WAYS[fault], times=2))

        await cluster.pod("high", WHOLE, priorityClassName="high")
        await cluster.bound("high")

        assert cluster.wire.struck
        assert not cluster.stored("low")
        await cluster.sound(f"7: {write}, {fault}")


@pytest.mark.parametrize("fault", FEW)
async def test_the_leaders_label_is_written_in_the_end(fault: str) -> None:
    """The Service finds the leader by it."""
    async with bed(node(cards=1)) as cluster:
        await cluster.pod("own", {"cpu": "1"}, schedulerName="nobody")
        cluster.wire.fail(Fault(method="PATCH", path=f"{PODS}/own", **WAYS[fault], times=2))
        await cluster.daemon(pod=("default", "own"))

        await until(
            lambda: (cluster.stored("own")["metadata"].get("labels") or {}).get(names.LEADER),
            "the label is there",
        )

        assert cluster.wire.struck
        await cluster.pod("a", WHOLE)
        await cluster.bound("a")


@pytest.mark.parametrize("fault", ["too many requests", "no answer though done"])
async def test_a_webhook_is_trusted_though_its_writes_fail(fault: str, tmp_path: Path) -> None:
    """Its Secret, and both configurations that the API server reads."""
    async with bed(node(cards=1), folder=tmp_path) as cluster:
        for where in ("/secrets", "/mutatingwebhookconfigurations/", "/validatingwebhook"):
            for method in ("POST", "PATCH"):
                cluster.wire.fail(Fault(method=method, path=where, **WAYS[fault]))

        await start_webhook(cluster)

        struck = {
            (method, path.split("/")[-1 - (method == "PATCH")])
            for method, path in cluster.wire.struck
        }
        assert {one for _, one in struck} == {
            "secrets",
            "mutatingwebhookconfigurations",
            "validatingwebhookconfigurations",
        }


async def test_what_an_agent_writes_arrives_whatever_fails(tmp_path: Path) -> None:
    """Its Device object and its lease, in one way after the other."""
    faults = tmp_path / "devices.yaml"

    def ill(number: int) -> Callable[[], object]:
        """Break the one card and mend the other; whether the API server knows."""
        faults.write_text(f"{{model: H100-80GB-HBM3, cards: 2, faults: '{number}=Xid 79'}}")
        return lambda: one.reported() == [number != 0, number != 1]

    async with lone_node(tmp_path) as one:
        for number, fault in enumerate(FEW):
            one.wire.struck.clear()
            one.wire.fail(Fault(method="PATCH", path="/devices/", **WAYS[fault]))
            arrived = ill(number % 2)
            await one.until(arrived)
            assert one.wire.struck
        # A lease is renewed every ten seconds only.
        one.wire.struck.clear()
        one.wire.fail(Fault(method="PATCH", path="/leases/", **WAYS["timeout"]))
        await one.until(lambda: one.wire.struck)
        told = one.renewed()
        await one.until(lambda: one.renewed() > told)
