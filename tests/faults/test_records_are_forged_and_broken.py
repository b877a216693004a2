"""Scenario 11: records that are malformed, copied, edited or huge, where admission did not stop them."""

import json
import time
from typing import Any

import pytest
from bed import HALF, WHOLE, Bed, bed, node, pod, told, until

from partage.vendors import names


def record(cluster: Bed, name: str) -> dict[str, Any]:
    """The record of a pod."""
    found: dict[str, Any] = json.loads(
        cluster.stored(name)["metadata"]["annotations"][names.ALLOCATION]
    )
    return found


def edited(found: dict[str, Any], **device: Any) -> str:
    """The record with something else for its first device."""
    found["containers"][0]["devices"][0] |= device
    return json.dumps(found)


BROKEN = {
    "no JSON": lambda _: "{",
    "not UTF-8": lambda _: "\udcff\udcfe".encode("utf-8", "replace").decode(),
    "an empty object": lambda _: "{}",
    "a list": lambda _: "[[[[]]]]",
    "200 KiB": lambda _: "x" * 200 * 2**10,
    "a card that is not there": lambda found: edited(found, uuid="GPU-nowhere"),
    "a negative amount": lambda found: edited(found, milli=-500),
    "another pod's": lambda found: json.dumps(found | {"uid": "somebody-else"}),
    "another node's": lambda found: json.dumps(found | {"node": "n9"}),
    "another version": lambda found: json.dumps(found | {"version": 999, "v": 999}),
}


@pytest.mark.parametrize("how", BROKEN)
async def test_a_record_that_is_broken_under_a_running_pod_frees_nothing(
    how: str, seam: str
) -> None:
    """What it held stays closed, an event names the pod for the operator, and others go on elsewhere."""
    async with bed(node(cards=1), node("n1", 1), foreign={"a"}, seam=seam) as cluster:
        daemon = await cluster.daemon()
        await cluster.led()
        await cluster.pod("a", WHOLE)
        await cluster.bound("a")
        text = BROKEN[how](record(cluster, "a"))
        await cluster.patch("a", {"metadata": {"annotations": {names.ALLOCATION: text}}})
        where = cluster.placed("a")

        await until(lambda: cluster.events(where, "Quarantined"), "an event says so")
        await cluster.pod("b", WHOLE)
        await cluster.bound("b")
        await cluster.pod("c", HALF)
        await cluster.told("c")

        assert cluster.placed("b") != where
        assert cluster.placed("c") == ""
        assert daemon.service.audit().clean
        assert not cluster.watchman.wrong
        started = time.monotonic()
        await cluster.delete("a")
        await cluster.bound("c")
        told(f"11: {how}: pod gone: next Binding", time.monotonic() - started)
        await cluster.sound(f"11: {how}")


async def test_a_copied_record_gives_its_pod_nothing(seam: str) -> None:
    """A pod that brings the record of another one is reported, and does not start."""
    async with bed(node(cards=2), foreign={"thief"}, seam=seam) as cluster:
        await cluster.daemon()
        await cluster.led()
        await cluster.pod("owner", WHOLE)
        await cluster.bound("owner")
        stolen = cluster.stored("owner")["metadata"]["annotations"]
        await cluster.create(
            pod("thief", WHOLE, nodeName="n0", meta={"annotations": dict(stolen)})
        )
        await until(lambda: cluster.stored("thief")["status"].get("phase") == "Failed", "refused")
        await cluster.pod("other", WHOLE)
        await cluster.bound("other")

        assert set(cluster.cards("other")).isdisjoint(cluster.cards("owner"))
        assert cluster.stored("owner")["status"]["phase"] != "Failed"
        await cluster.sound("11: copied record")


async def test_a_pod_that_was_bound_by_somebody_else_does_not_start(seam: str) -> None:
    """`nodeName` by hand, without a record: refused on its node, and the card goes to others."""
    async with bed(node(cards=1), seam=seam) as cluster:
        await cluster.daemon()
        await cluster.led()
        await cluster.create(pod("by-hand", WHOLE, nodeName="n0"))
        await until(
            lambda: cluster.stored("by-hand")["status"].get("phase") == "Failed", "refused"
        )
        assert cluster.stored("by-hand")["status"]["reason"] == "UnexpectedAdmissionError"
        await cluster.pod("other", WHOLE)
        await cluster.bound("other")

        await cluster.sound("11: bound by hand")
