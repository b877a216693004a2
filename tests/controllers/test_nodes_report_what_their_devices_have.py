"""Node totals and labels: both name families, written on change only, beside any other writer."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from controllers_world import Manifest, card, device, document, node, world_of

from partage.cli.main import main
from partage.controllers.totals import totals_patch
from partage.kube.errors import api_error
from partage.vendors.locks import LOCKS
from partage.vendors.settings import Settings
from partage.wire.context import Context
from partage.wire.nodes import translate_node

VENDOR = "node.koordinator.sh/gpu-vendor"
MODEL = "node.koordinator.sh/gpu-model"
DRIVER = "node.koordinator.sh/gpu-driver-version"
KOORDINATORS_DOCUMENT = {
    "kubernetes.io/gpu": "200",
    "kubernetes.io/gpu-core": "200",
    "kubernetes.io/gpu-memory": "32Gi",
    "kubernetes.io/gpu-memory-ratio": "200",
}
TODAY = {
    "koordinator.sh/gpu": "200",
    "koordinator.sh/gpu-core": "200",
    "koordinator.sh/gpu-memory": "32Gi",
    "koordinator.sh/gpu-memory-ratio": "200",
    "koordinator.sh/gpu.shared": "200",
}
METAXS_DOCUMENT = {
    "koordinator.sh/gpu.shared": "100",
    "koordinator.sh/gpu-core": "100",
    "koordinator.sh/gpu-memory": "64Gi",
    "koordinator.sh/gpu-memory-ratio": "100",
}


async def test_koordinators_node_comes_out_in_both_dialects() -> None:
    """Two cards written in the older names: the page's totals, today's beside them, nvidia.com/gpu kept."""
    async with world_of() as world:
        await world.create("nodes", node(totals={"nvidia.com/gpu": "2"}))
        world.tell(device("n1", card(0, domain="kubernetes.io"), card(1, domain="kubernetes.io")))
        async with world.leading():
            for part in ("allocatable", "capacity"):
                assert world.totals(part=part) == {
                    **KOORDINATORS_DOCUMENT,
                    **TODAY,
                    "nvidia.com/gpu": "2",
                }


async def test_metaxs_node_comes_out_and_the_plugin_keeps_its_name() -> None:
    """One MetaX card: the page's totals, no `gpu` for another vendor, metax-tech.com/sgpu untouched."""
    async with world_of() as world:
        await world.create("nodes", node(totals={"metax-tech.com/sgpu": "16"}))
        world.tell(device("n1", card(0, "64Gi"), **{VENDOR: "metax", MODEL: "C500"}))
        async with world.leading():
            found = world.totals()
            assert {k: v for k, v in found.items() if k in METAXS_DOCUMENT} == METAXS_DOCUMENT
            assert found["kubernetes.io/gpu-memory"] == "64Gi"
            assert found["metax-tech.com/sgpu"] == "16"
            assert "koordinator.sh/gpu" not in found


async def test_totals_are_those_that_schedule_prints(tmp_path: Path) -> None:
    """`partage schedule` and the controller agree, because they ask one function."""
    manifests = [node(totals={"nvidia.com/gpu": "2"}), device()]
    path = tmp_path / "cluster.json"
    path.write_text(json.dumps({"kind": "List", "items": manifests}))
    printed = json.loads(CliRunner().invoke(main, ["schedule", str(path), "-o", "json"]).output)

    async with world_of() as world:
        await world.create("nodes", manifests[0])
        world.tell(manifests[1])
        async with world.leading():
            assert (
                world.get("nodes", "n1")["status"]["allocatable"]
                == printed["nodes"][0]["allocatable"]
            )


CHANGES: dict[str, tuple[Manifest, dict[str, str]]] = {
    "an unhealthy card drops out": (
        device("n1", card(0), card(1, health=False), version=2),
        {
            "koordinator.sh/gpu": "100",
            "kubernetes.io/gpu-memory": "16Gi",
            "koordinator.sh/gpu.shared": "100",
        },
    ),
    "a larger card counts": (
        device("n1", card(0), card(1, "48Gi"), version=2),
        {"koordinator.sh/gpu": "200", "kubernetes.io/gpu-memory": "64Gi"},
    ),
    "no healthy card removes every name": (
        device("n1", card(0, health=False), card(1, health=False), version=2),
        {},
    ),
    "network cards have names of their own": (
        device(
            "n1",
            {
                "type": "rdma",
                "id": "0000:1f:00.0",
                "minor": 0,
                "health": True,
                "resources": {"koordinator.sh/rdma": "100"},
            },
            version=2,
        ),
        {"koordinator.sh/rdma": "100", "kubernetes.io/rdma": "100"},
    ),
}


@pytest.mark.parametrize(("changed", "expected"), CHANGES.values(), ids=CHANGES)
async def test_a_changed_device_changes_the_totals(
    changed: Manifest, expected: dict[str, str]
) -> None:
    """What a Device object says now is what the node reports; names without devices go."""
    async with world_of() as world:
        await world.create("nodes", node())
        world.tell(device())
        async with world.leading():
            assert world.totals()["koordinator.sh/gpu"] == "200"
            world.tell(changed)
            await world.settled()
            found = world.totals()
            assert {key: found.get(key) for key in expected} == expected
            assert bool(found) == bool(expected)


async def test_a_removed_device_object_takes_its_totals_along() -> None:
    """The names go, the labels stay, and what plugins report is left alone."""
    async with world_of() as world:
        await world.create(
            "nodes", node(totals={"nvidia.com/gpu": "2", "huawei.com/npu-core": "8"})
        )
        world.tell(device("n1", **{VENDOR: "nvidia", MODEL: "T4", DRIVER: "535.1.1"}))
        async with world.leading():
            world.controllers.gone(document(device()))
            await world.settled()
            assert world.totals() == {"nvidia.com/gpu": "2", "huawei.com/npu-core": "8"}
            labels = world.get("nodes", "n1")["metadata"]["labels"]
            assert labels == {VENDOR: "nvidia", MODEL: "T4", DRIVER: "535.1.1"}


async def test_nothing_is_written_while_nothing_changes() -> None:
    """Heartbeats, repeated facts and a new leader's first look cause no write."""
    async with world_of() as world:
        await world.create("nodes", node())
        world.tell(device(**{VENDOR: "nvidia"}))
        async with world.leading():
            pass
        assert world.writes() == 2
        version = world.version("nodes", "n1")
        async with world.leading():
            for _ in range(3):
                world.tell(device(**{VENDOR: "nvidia"}))
                world.controllers.changed(document({**world.get("nodes", "n1"), "kind": "Node"}))
                await world.settled()
        assert world.version("nodes", "n1") == version
        assert world.writes() == 2


def test_equal_amounts_in_other_words_are_equal() -> None:
    """32Gi and its bytes are the same amount: no write."""
    words = {
        "koordinator.sh/gpu": "200",
        "kubernetes.io/gpu": "0.2k",
        "koordinator.sh/gpu-core": "200",
        "kubernetes.io/gpu-core": "200000m",
        "koordinator.sh/gpu-memory": str(32 * 2**30),
        "kubernetes.io/gpu-memory": "32768Mi",
        "koordinator.sh/gpu-memory-ratio": "2e2",
        "kubernetes.io/gpu-memory-ratio": "200",
        "koordinator.sh/gpu.shared": "200",
    }
    one, two = document(node(totals=words)), document(device())
    context = Context.of(Settings(), ())
    read = translate_node(one, two, context)

    assert totals_patch(one, two, read.node, Settings()) == {}


SEVEN = {"status": {"allocatable": {"koordinator.sh/gpu": "7"}}}


@pytest.mark.parametrize(
    "others",
    [
        ({"koordinator.sh/gpu": "7"},),
        ({"koordinator.sh/gpu": "7"}, {"koordinator.sh/gpu-core": "7"}),
        (
            {"koordinator.sh/gpu": "7", "koordinator.sh/gpu-core": None},
            {"koordinator.sh/gpu-core": "9", "koordinator.sh/gpu-memory": "1"},
            {"koordinator.sh/gpu-memory": None},
        ),
    ],
    ids=["the same", "one of two in turn", "some of three in turn"],
)
async def test_a_foreign_edit_is_put_right_and_a_fight_slows_down(
    others: tuple[Manifest, ...],
) -> None:
    """The first overwriting is corrected within seconds; the tenth waits for minutes, with an event."""
    async with world_of() as world:
        await world.create("nodes", node())
        world.tell(device())
        async with world.leading():
            for number in range(60):
                edit = {"status": {"allocatable": others[number % len(others)]}}
                await world.server.patch("nodes", "", "n1", edit, sub="status")
                await world.settled()
                await world.clock.advance(20)
                await world.settled()
            assert 4 < world.writes() < 15 * len({name for one in others for name in one})
            assert ("Node", "n1", "Warning", "TotalsContended") in world.ears.heard
            assert world.sample("partage_controller_contended_total") == 1
            await world.clock.advance(600)
            await world.settled()
            assert world.totals()["koordinator.sh/gpu"] == "200"


async def test_a_fight_about_one_amount_delays_no_other() -> None:
    """A kubelet that starts again takes all amounts away; those about which no manager fights are back soon."""
    async with world_of() as world:
        await world.create("nodes", node())
        world.tell(device())
        async with world.leading():
            for _ in range(60):
                await world.server.patch("nodes", "", "n1", SEVEN, sub="status")
                await world.settled()
                await world.clock.advance(20)
                await world.settled()
            before = world.totals()
            gone = {"status": {"allocatable": dict.fromkeys(before)}}
            await world.server.patch("nodes", "", "n1", gone, sub="status")
            await world.settled()
            await world.clock.advance(2)
            await world.settled()
            assert world.totals() == before | {"koordinator.sh/gpu": "200"}


async def test_a_race_converges() -> None:
    """A refused write, an old state and a failing server end in the right totals."""
    async with world_of() as world:
        await world.create("nodes", node())
        refusals: list[Any] = [404, 409, 500, 503]  # the first of a proxy, which knows no node
        original = world.client.patch

        async def patch(*args: Any, **options: Any) -> Any:
            if refusals:
                code = refusals.pop(0)
                raise api_error("PATCH", "/", code, b"{}")
            return await original(*args, **options)

        world.client.patch = patch  # type: ignore[method-assign]
        world.tell(device())
        async with world.leading():
            await world.clock.advance(120)
            await world.until(lambda: not refusals)
            await world.clock.advance(120)
            await world.settled()
            assert world.totals()["koordinator.sh/gpu"] == "200"


async def test_a_node_made_anew_is_not_hit_by_what_was_meant_for_the_old_one() -> None:
    """Every patch carries the uid; another object of the same name refuses it."""
    async with world_of() as world:
        await world.create("nodes", node())
        world.tell(device())
        world.deaf.add("nodes")
        await world.server.delete("nodes", "", "n1")
        await world.create("nodes", node())
        async with world.leading():
            await world.clock.advance(5)
            await world.settled()
            assert world.totals() == {}
            assert world.sample(
                "partage_controller_writes_total", what="node_status", outcome="conflict"
            )
            world.deaf.clear()
            await world.server.patch("nodes", "", "n1", {"metadata": {"labels": {"new": "1"}}})
            await world.settled()
            assert world.totals()["koordinator.sh/gpu"] == "200"


async def test_labels_follow_the_device_and_leave_the_operators_alone() -> None:
    """Make, model and driver follow; `qgpu-device-enable` is only filled in where it is absent."""
    async with world_of() as world:
        qgpu = {
            "tke.cloud.tencent.com/qgpu-core": "200",
            "tke.cloud.tencent.com/qgpu-memory": "30",
        }
        await world.create("nodes", node("n1", totals=qgpu))
        await world.create(
            "nodes", node("n2", totals=qgpu, labels={"qgpu-device-enable": "disable"})
        )
        await world.create(
            "nodes", node("n3", labels={"tke.cloud.tencent.com/qgpu-schedule-policy": "fs"})
        )
        for name in ("n1", "n2", "n3"):
            world.tell(device(name, **{DRIVER: "535.1.1"}))
        async with world.leading():
            world.tell(device("n1", version=2, **{DRIVER: "550.2.2"}))
            await world.settled()
            labels = [world.get("nodes", n)["metadata"]["labels"] for n in ("n1", "n2", "n3")]
            assert labels == [
                {DRIVER: "550.2.2", "qgpu-device-enable": "enable"},
                {DRIVER: "535.1.1", "qgpu-device-enable": "disable"},
                {DRIVER: "535.1.1", "tke.cloud.tencent.com/qgpu-schedule-policy": "fs"},
            ]


async def test_a_device_object_that_cannot_be_read_changes_nothing() -> None:
    """The totals stay as they are, and the metric says so."""
    async with world_of() as world:
        await world.create("nodes", node())
        world.tell(device())
        async with world.leading():
            broken = card(0)
            broken["resources"]["koordinator.sh/gpu-memory"] = "many"
            world.tell(device("n1", broken, version=2))
            await world.settled()
            assert world.totals()["koordinator.sh/gpu"] == "200"
            assert world.sample("partage_controller_unreadable_total") == 1


async def test_a_standby_takes_facts_in_and_writes_nothing() -> None:
    """Before `run`, and after it was cancelled, nothing is queued."""
    async with world_of() as world:
        await world.create("nodes", node())
        world.tell(device())
        assert (world.totals(), world.sample("partage_controller_queue")) == ({}, 0)
        async with world.leading():
            pass
        world.tell(device("n1", card(0), version=2))
        assert world.totals()["koordinator.sh/gpu"] == "200"
        async with world.leading():
            assert world.totals()["koordinator.sh/gpu"] == "100"


async def test_totals_can_be_left_to_another_manager() -> None:
    """With `totals` off labels are still written, amounts are not."""
    async with world_of(totals=False) as world:
        await world.create("nodes", node())
        world.tell(device(**{VENDOR: "nvidia"}))
        async with world.leading():
            assert world.totals() == {}
            assert world.get("nodes", "n1")["metadata"]["labels"] == {VENDOR: "nvidia"}


@pytest.mark.parametrize("vendor", ["huawei", "nvidia"])
async def test_native_units_go_with_the_device_object_of_their_vendor(vendor: str) -> None:
    """The vendor's own label shows that a Device object described them."""
    async with world_of() as world:
        await world.create("nodes", node(totals={"huawei.com/npu-core": "20"}))
        npu = {"huawei.com/npu-core": "20", "koordinator.sh/gpu-memory": "32Gi"}
        world.tell(device("n1", card(0) | {"resources": npu}, **{VENDOR: vendor}))
        async with world.leading():
            await world.settled()
            world.controllers.gone(document(device()))
            await world.settled()
            assert ("huawei.com/npu-core" in world.totals()) is (vendor == "nvidia")


@pytest.mark.parametrize("write", ["node_status", "unlock"])
async def test_nothing_is_kept_of_a_node_that_went_while_it_was_written_to(write: str) -> None:
    """Otherwise every node with another name that comes and goes would leave an entry."""
    async with world_of() as world:
        held = dict.fromkeys(LOCKS, "2026-01-01T00:00:00Z,default,nobody")
        await world.create("nodes", node(annotations=held if write == "unlock" else {}))
        world.tell(device())
        writer = world.controllers._writer
        before = getattr(writer, write)

        async def late(*given: Any) -> Any:
            found = await before(*given)
            if world.server.store.get("nodes", "", "n1") is not None:
                await world.server.delete("nodes", "", "n1")
            return found

        setattr(writer, write, late)
        async with world.leading():
            assert world.server.store.get("nodes", "", "n1") is None
        assert not world.controllers._contention._writes
        assert not world.controllers._locks
