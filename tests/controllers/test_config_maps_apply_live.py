"""ConfigMaps of every protocol apply while the controllers run; a bad one changes nothing."""

import json
from itertools import permutations
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from controllers_world import Manifest, World, device, document, node, world_of

from partage.controllers.routes import config_routes
from partage.wire.config_book import ConfigBook


def config(name: str, namespace: str = "kube-system", version: int = 0, **data: str) -> Manifest:
    """A ConfigMap; underscores in keys stand for dots and dashes as its protocol writes them."""
    meta: Manifest = {"name": name, "namespace": namespace}
    if version:
        meta |= {"resourceVersion": str(version), "uid": f"uid-{name}"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": data}


def hami(scaling: float | str) -> Manifest:
    """HAMi's device-config with this memory scaling."""
    text = f"nvidia:\n  deviceMemoryScaling: {scaling}\n"
    return config("hami-scheduler-device", **{"device-config.yaml": text})


async def ask(world: World, path: str) -> tuple[int, Any]:
    """The route's answer."""
    app = web.Application()
    app.add_routes(config_routes(world.controllers.picture))
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    port = runner.addresses[0][1]
    try:
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"http://127.0.0.1:{port}{path}") as answer,
        ):
            return answer.status, await answer.json()
    finally:
        await runner.cleanup()


async def test_scaling_changes_the_totals_live_and_a_bad_map_changes_nothing() -> None:
    """Good, bad, good again: totals follow the good ones, and an event on the bad one reports it."""
    async with world_of(namespaces=("kube-system",)) as world:
        await world.create("nodes", node())
        world.tell(device(**{"node.koordinator.sh/gpu-vendor": "nvidia"}))
        async with world.leading():
            await world.create("configmaps", hami(2))
            await world.settled()
            assert world.totals()["koordinator.sh/gpu-memory"] == "64Gi"
            await world.server.patch(
                "configmaps", "kube-system", "hami-scheduler-device", hami("many")
            )
            await world.settled()
            assert world.totals()["koordinator.sh/gpu-memory"] == "64Gi"
            assert world.ears.heard == [
                ("ConfigMap", "hami-scheduler-device", "Warning", "ConfigRefused")
            ]
            assert "deviceMemoryScaling" in world.ears.said["ConfigRefused"]
            assert world.sample("partage_refused_config_maps") == 1
            await world.server.patch("configmaps", "kube-system", "hami-scheduler-device", hami(3))
            await world.settled()
            assert world.totals()["koordinator.sh/gpu-memory"] == "96Gi"
            assert world.ears.heard[-1][2:] == ("Normal", "ConfigApplied")
            assert world.sample("partage_refused_config_maps") == 0
            await world.server.delete("configmaps", "kube-system", "hami-scheduler-device")
            await world.settled()
            assert world.totals()["koordinator.sh/gpu-memory"] == "32Gi"


async def test_the_effective_configuration_of_a_node_can_be_read() -> None:
    """The node's own settings, what they make of its cards, where they come from, what was refused."""
    async with world_of() as world:
        await world.create("nodes", node())
        world.tell(device(**{"node.koordinator.sh/gpu-vendor": "nvidia"}))
        own = {"nodeconfig": [{"name": "n1", "devicesplitcount": 5, "devicememoryscaling": 1.5}]}
        await world.create(
            "configmaps", config("hami-device-plugin", **{"config.json": json.dumps(own)})
        )
        await world.create("configmaps", config("partage-config", policy="spread"))
        await world.create(
            "configmaps", config("metax-device-config", **{"cluster-config": 'mode: "sgpu"'})
        )
        await world.create(
            "configmaps", config("x-metax-device-config", **{"nodes-config": "mode: ["})
        )
        await world.create("configmaps", config("unrelated", key="value"))

        status, found = await ask(world, "/api/config/n1")
        assert status == 200
        assert found["policy"] == "spread"
        assert found["settings"]["hami"]["node"]["split_count"] == 5
        assert found["settings"]["metax"] == {"mode": "sgpu"}
        assert found["devices"][0]["memory_bytes"] == 24 * 2**30
        assert found["devices"][0]["slots"] == 5
        assert found["totals"]["koordinator.sh/gpu-memory"] == "48Gi"
        assert [source["configMap"] for source in found["sources"]] == [
            "kube-system/hami-device-plugin",
            "kube-system/metax-device-config",
            "kube-system/partage-config",
        ]
        assert list(found["refused"]) == ["ConfigMap kube-system/x-metax-device-config"]
        assert (await ask(world, "/api/config/nowhere"))[0] == 404
        assert (await ask(world, "/api/config"))[1]["policy"] == "spread"


MODES = [
    config("a-metax-device-config", version=1, **{"cluster-config": "mode: native"}),
    config("b-metax-device-config", version=2, **{"cluster-config": "mode: sgpu"}),
    config("partage-config", version=3, policy="binpack"),
]


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_what_holds_does_not_depend_on_the_order_of_arrival(order: tuple[int, ...]) -> None:
    """Two replicas agree: the later name holds."""
    book = ConfigBook()

    for index in order:
        book.changed(document(MODES[index]))

    assert book.configuration.settings.metax.cluster_mode == "sgpu"
    assert str(book.configuration.policy) == "binpack"


def test_an_older_state_and_a_foreign_namespace_change_nothing() -> None:
    """A late event of the watch, and a namespace that sets nothing."""
    book = ConfigBook(["kube-system"])
    book.changed(document(config("partage-config", version=5, policy="spread")))

    assert not book.changed(document(config("partage-config", version=4, policy="binpack")))
    assert not book.changed(
        document(config("partage-config", "default", version=9, policy="binpack"))
    )
    assert str(book.configuration.policy) == "spread"


def test_a_map_that_no_longer_sets_anything_is_as_good_as_gone() -> None:
    """Its keys were renamed: the defaults hold again, and what was refused is forgotten."""
    book = ConfigBook()
    book.changed(document(config("partage-config", version=1, policy="spread")))
    book.changed(document(config("partage-config", version=2, policy="nonsense")))
    assert list(book.refused) == ["ConfigMap kube-system/partage-config"]

    assert book.changed(document(config("partage-config", version=3, other="x")))
    assert (book.configuration.policy, book.refused, dict(book.documents)) == (None, {}, {})
