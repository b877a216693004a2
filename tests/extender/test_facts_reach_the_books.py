"""Documents of the API server, in any order, become the state of the books."""

import asyncio
import json
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from plugin_world import Plugged
from world import Manifest, World, card, device, document, half, node, pod, run, whole

from partage.extender import cluster_cache
from partage.extender.books import Books
from partage.extender.cluster_cache import ClusterCache
from partage.extender.ports import Hooks
from partage.extender.rebuild import filled
from partage.model.policy import Policy
from partage.model.reason import ReasonCode, Refusal
from partage.model.request import DeviceRequest
from partage.scheduler.engine import State
from partage.scheduler.events import Event, Quotas, QuotasChanged
from partage.vendors import names
from partage.wire.documents import Document
from partage.wire.snapshot import permuted

HAMI_CARD = json.dumps(
    [
        {
            "id": "GPU-7",
            "index": 0,
            "count": 10,
            "devmem": 16384,
            "devcore": 100,
            "type": "NVIDIA A100",
            "health": True,
        }
    ]
)


def config(name: str, version: int = 1, namespace: str = "kube-system", **data: str) -> Manifest:
    """A ConfigMap; keys with `__` for a dot and `_` for a dash."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": name,
            "resourceVersion": str(version),
        },
        "data": {key.replace("__", ".").replace("_", "-"): value for key, value in data.items()},
    }


def _free(world: World, name: str = "n1") -> list[int]:
    ledger = world.service.books.engine.ledger
    found = [c for type_ in ledger.planes for c in ledger.cards(type_, ledger.index[name])]
    return [c.core_free for c in found if not c.closed]


@run
async def test_a_node_needs_its_node_and_gets_its_cards_from_its_device_object() -> None:
    """A Device object alone is no place for pods; the books keep it until its Node exists."""
    world = await World().start()

    world.service.changed(document(device()))
    assert world.service.books.engine.ledger.index == {}
    world.service.changed(document(node()))
    assert _free(world) == [1000, 1000]
    world.service.gone(document(device()))
    assert _free(world) == []
    world.service.gone(document(node()))
    assert world.service.books.engine.ledger.index == {}


@run
async def test_an_older_state_of_an_object_is_left_out() -> None:
    """Watches restart; late deliveries must not undo known changes."""
    world = await World().start(node(version=5), device("n1", card(0), card(1), version=5))

    world.service.changed(document(device("n1", card(0), version=4)))
    assert len(_free(world)) == 2
    world.service.changed(document(device("n1", card(0), version=6)))
    assert len(_free(world)) == 1
    world.service.gone(document(device("unknown")))
    world.service.gone(document(node("unknown")))


@run
async def test_a_device_that_becomes_unhealthy_is_closed_at_once() -> None:
    """Health flips reach the next decision."""
    world = await World().start(node(), device())

    world.service.changed(document(device("n1", card(0, health=False), card(1), version=2)))

    assert _free(world) == [1000]
    assert world.filter(world.create(pod("web", whole(2))))["NodeNames"] == []


@run
async def test_a_pod_keeps_its_card_where_its_node_was_known_by_totals_alone() -> None:
    """Its record has a made-up identity; the Device object arrives later, with an agent or on a new node."""
    totals = node()
    totals["status"]["allocatable"] |= {names.QGPU_CORE: "200", names.QGPU_MEMORY: "32"}
    world = await World().start(totals)
    asks = {names.QGPU_CORE: "20", names.QGPU_MEMORY: "4"}
    await world.place(pod("web", asks))

    world.service.changed(document(device()))

    assert _free(world) == [800, 1000]
    assert world.filter(world.create(pod("next", asks)))["NodeNames"] == ["n1"]
    assert world.service.audit().clean


@run
async def test_a_bound_pod_that_comes_before_its_node_is_booked_when_the_node_comes() -> None:
    """HAMi's record names cards that only the node can resolve."""
    text = "GPU-0,NVIDIA,8192,50:;"
    bound = pod(
        "old",
        {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8192", "nvidia.com/gpucores": "50"},
        meta={"annotations": {names.HAMI_ALLOCATED: text, names.HAMI_POD_NODE: "n1"}},
        nodeName="n1",
    )
    world = await World().start()
    world.service.changed(document(bound))
    world.service.changed(document(device()))

    world.service.changed(document(node()))

    assert _free(world) == [500, 1000]
    assert world.service.audit().clean


@run
async def test_a_bound_pod_without_a_record_closes_what_it_may_use() -> None:
    """The books fail closed and report it: the pod's card is unknown, but it has one at most."""
    world = await World().start(node(), device())

    world.service.changed(document(pod("rogue", whole(), nodeName="n1")))

    assert _free(world) == [1000]
    assert "has no record" in world.quarantined[0]
    world.service.changed(document(pod("other", whole(), nodeName="n1")))
    assert _free(world) == []
    assert world.service.audit().clean
    world.service.pod_gone("uid-rogue")
    world.service.pod_gone("uid-other")
    assert _free(world) == [1000, 1000]


SHAPES: dict[str, Manifest] = {
    "a MiB of memory": pod("rogue", {"nvidia.com/gpumem": "1"}),
    "a percent": pod("rogue", {"koordinator.sh/gpu": "1"}),
    "a share of 5": pod("rogue", {"tke.cloud.tencent.com/qgpu-core": "5"}),
    "one card": pod("rogue", {"nvidia.com/gpu": "1"}),
    "a card in percent": pod("rogue", {"nvidia.com/gpu": "100"}),
    "a v1.4 name": pod("rogue", {"kubernetes.io/gpu": "100"}),
    "an annotation that breaks it": pod(
        "rogue",
        {"nvidia.com/gpumem": "1"},
        meta={"annotations": {"partage.io/node-policy": "sideways"}},
    ),
    "two protocols": pod("rogue", {"nvidia.com/gpumem": "1", "koordinator.sh/gpu": "100"}),
    "an amount that is none": pod("rogue", {"tke.cloud.tencent.com/qgpu-core": "7"}),
    "init containers": pod(
        "rogue",
        initContainers=[
            {"name": f"i{number}", "resources": {"limits": {"nvidia.com/gpumem": "1"}}}
            for number in range(5)
        ],
    ),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_pod_that_asks_for_part_of_a_card_closes_one_idle_card(shape: Manifest) -> None:
    """This holds for any small amount and any fault; a card that a pod holds stays open."""

    async def scene() -> None:
        world = await World().start(node(), device())
        await world.place(pod("web", {"koordinator.sh/gpu": "50"}))
        for number in range(100):
            head = {**shape["metadata"], "name": f"rogue-{number}", "uid": f"uid-{number}"}
            spec = {**shape["spec"], "nodeName": "n1"}
            world.service.changed(document({**shape, "metadata": head, "spec": spec}))
            assert _free(world) == [500]
        assert world.service.audit().clean
        for number in range(100):
            world.service.pod_gone(f"uid-{number}")
        assert _free(world) == [500, 1000]

    asyncio.run(scene())


@pytest.mark.parametrize(
    "shape",
    [
        pod("odd", meta={"annotations": {"partage.io/node-policy": "sideways"}}),
        pod("odd", {"nvidia.com/gpumem": "1"}, status={"phase": "Succeeded"}),
        pod("odd", {"koordinator.sh/rdma": "1"}),
        pod("odd", {"dcu.com/gpu": "1"}),
    ],
    ids=["no device", "ended", "another type", "another vendor"],
)
def test_a_pod_that_can_use_no_card_closes_none(shape: Manifest) -> None:
    """This holds for any annotations."""

    async def scene() -> None:
        known = {"node.koordinator.sh/gpu-vendor": "nvidia"}
        world = await World().start(node(), device("n1", card(0), card(1), **known))
        spec = {**shape["spec"], "nodeName": "n1"}
        world.service.changed(document({**shape, "spec": spec}))
        assert _free(world) == [1000, 1000]

    asyncio.run(scene())


@run
async def test_a_pod_that_ends_gives_its_cards_back_and_one_that_is_deleting_does_not() -> None:
    """A deletion timestamp does not show that the containers have ended."""
    world = await World().start(node(), device())
    await world.place(pod("web", whole()))

    world.api.pods["web"]["metadata"]["deletionTimestamp"] = "2026-11-20T10:00:00Z"
    world.seen("web")
    assert _free(world) == [1000]
    world.api.pods["web"]["status"] = {"phase": "Succeeded"}
    world.seen("web")
    assert _free(world) == [1000, 1000]


@run
async def test_a_pod_that_came_anew_under_its_name_is_another_pod() -> None:
    """The old pod's deletion does not affect the new one."""
    world = await World().start(node(), device())
    world.create(pod("web", half(), meta={"uid": "first"}))
    world.create(pod("web", half(), meta={"uid": "second"}))

    world.service.pod_gone("first")

    found = world.service.books.cluster_cache.pod_named("team", "web")
    assert found is not None
    assert found.pod.uid == "second"
    assert "is gone" in world.filter(pod("web", half(), meta={"uid": "first"}))["Error"]


@run
async def test_a_pod_without_devices_is_not_kept() -> None:
    """Most pods of a cluster cost nothing."""
    world = await World().start(node(), device())

    world.create(pod("plain"))
    world.service.pod_gone("uid-plain")

    assert world.service.books.cluster_cache.pods == {}


@run
async def test_a_pod_that_cannot_be_decoded_keeps_what_it_holds() -> None:
    """An unreadable document is a problem to report, not a reason to free cards."""
    world = await World().start(node(), device())
    await world.place(pod("web", whole()))
    broken = dict(world.api.pods["web"])
    broken["spec"] = {
        **broken["spec"],
        "containers": [{"name": "main", "resources": {"limits": {"cpu": "much", **whole()}}}],
    }

    world.service.changed(document(broken))

    assert _free(world) == [1000]
    assert "much" in world.service.books.cluster_cache.problems["Pod team/web"]

    world.service.pod_gone("uid-web")
    assert world.service.books.cluster_cache.problems == {}, "by its uid, as a rebuild does later"


@run
async def test_a_node_and_its_pods_leave_nothing_behind() -> None:
    """Either is deleted first: names of nodes change all the time where an autoscaler makes them."""
    world = await World().start()
    for number, first in enumerate(("node", "pod") * 2):
        await world.start(node(version=10 * number + 1), device(version=10 * number + 1))
        await world.place(pod(f"web-{number}", whole()))
        world.service.gone(document(device()))
        if first == "node":
            world.service.gone(document(node()))
        world.service.pod_gone(f"uid-web-{number}")
        if first == "pod":
            world.service.gone(document(node()))

        assert world.service.books.cluster_cache._places == {}


@run
async def test_a_bound_pod_that_cannot_be_read_holds_what_its_record_says() -> None:
    """This holds after a rebuild too; with only another scheduler's record, the node has no free devices."""
    world = await World().start(node(), device())
    await world.place(pod("web", whole()))
    broken = dict(world.api.pods["web"])
    resources = {"limits": {"cpu": "much", **whole()}}
    broken["spec"] = {**broken["spec"], "containers": [{"name": "main", "resources": resources}]}

    fresh = await World().start(node(), device())
    fresh.service.changed(document(broken))
    assert _free(fresh) == [1000]
    assert "much" in fresh.service.books.cluster_cache.problems["Pod team/web"]
    assert [one.name for one in fresh.service.books.engine.ledger.on_node("n1")] == ["web"]

    fresh.service.changed(
        document(
            world.api.pods["web"]
            | {"metadata": {**world.api.pods["web"]["metadata"], "resourceVersion": "99"}}
        )
    )
    assert _free(fresh) == [1000]
    assert fresh.service.books.cluster_cache.problems == {}

    kept = {names.DEVICE_ALLOCATED: "{}"}
    theirs = {**broken, "metadata": {**broken["metadata"], "uid": "other", "annotations": kept}}
    strange = await World().start(node(), device())
    strange.service.changed(document(theirs))
    assert _free(strange) == []
    cards = card(0), card(1, memory="32Gi")
    strange.service.changed(document(device("n1", *cards, version=2)))
    assert _free(strange) == [], "whatever its cards become"
    strange.service.pod_gone("other")
    assert _free(strange) == [1000, 1000]

    bare = {**broken, "metadata": {**broken["metadata"], "uid": "bare", "annotations": {}}}
    strange.service.changed(document(bare))
    assert _free(strange) == [1000, 1000]


@run
async def test_a_node_that_cannot_be_read_takes_no_pods_and_they_are_told_why() -> None:
    """An unreadable node must not serve as if it were readable, whether or not it was read before."""
    world = await World().start(node(), device())
    odd = node(version=2)
    odd["status"]["allocatable"]["cpu"] = "many"

    world.service.changed(document(odd))
    assert "many" in world.service.books.cluster_cache.problems["Node n1"]
    asked = world.filter(world.create(pod("web", half())))
    assert not asked["NodeNames"]
    assert "it cannot be read" in str(asked["FailedNodes"])
    world.service.changed(document(node(version=3)))
    assert world.service.books.cluster_cache.problems == {}
    assert _free(world) == [1000, 1000]

    world.service.changed(document({**odd, "metadata": node(version=4)["metadata"]}))
    world.service.gone(document(node()))
    assert world.service.books.cluster_cache.problems == {}, "of a node that is gone"

    fresh = await World().start(odd, device())
    assert "it cannot be read" in str(
        fresh.filter(fresh.create(pod("web", half())))["FailedNodes"]
    )
    fresh.service.gone(document(odd))
    assert fresh.service.books.engine.ledger.index == {}


DEVICE_CONFIG = "nvidia:\n  resourceCountName: {name}\n"


@run
async def test_a_config_map_applies_to_pods_and_nodes_that_are_there() -> None:
    """From then on renamed resources are read under their new names and not under the old ones."""
    world = await World().start(node(), device())
    renamed = DEVICE_CONFIG.format(name="example.com/vgpu")

    problem = world.service.changed(
        document(config("hami-scheduler-device", device_config__yaml=renamed))
    )
    asked = world.filter(world.create(pod("web", {"example.com/vgpu": "1"})))

    assert problem == ""
    assert asked["NodeNames"] == ["n1"]
    assert "uid-web" in world.service.books.cycle.holds


@run
async def test_a_bad_config_map_is_refused_and_the_last_good_one_stays() -> None:
    """It is reported by name, and forgotten once it is corrected or deleted."""
    world = await World().start(node(), device())
    good = config("partage-config", 1, policy="spread")
    bad = config("partage-config", 2, policy="sideways")
    world.service.changed(document(good))

    problem = world.service.changed(document(bad))

    assert "sideways" in problem
    assert world.service.books.engine.policy == Policy.parse("spread")
    assert world.service.books.cluster_cache.problems
    world.service.gone(document(bad))
    assert world.service.books.cluster_cache.problems == {}
    assert world.service.books.engine.policy == Policy()


@run
async def test_a_config_map_of_another_namespace_sets_nothing() -> None:
    """A user who may write ConfigMaps in a team's namespace may not configure the cluster."""
    world = await World().start(node(), device())

    world.service.changed(document(config("partage-config", 1, "team", policy="spread")))

    assert world.service.books.engine.policy == Policy()


@run
async def test_bound_pods_are_read_again_when_settings_change() -> None:
    """The books equal those of a rebuild with the new settings."""
    world = await World().start(node(), device())
    await world.place(pod("web", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1024"}))
    scaled = "nvidia:\n  deviceSplitCount: 3\n"

    world.service.changed(document(config("hami-scheduler-device", device_config__yaml=scaled)))

    assert world.service.audit().clean


@run
async def test_a_quota_holds_for_pods_that_come_after_it() -> None:
    """HAMi's memory keys count as granted; a pod beyond them waits with the quota's name."""
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small", "namespace": "team"},
        "spec": {"hard": {"limits.nvidia.com/gpumem": "1000"}},
    }
    world = await World().start(node(), device())
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "2000"}

    world.service.changed(document(quota))
    refused = world.filter(world.create(pod("web", limits)))
    world.service.gone(document(quota))
    passed = world.filter(pod("web", limits))

    assert refused["NodeNames"] == []
    assert world.told == [("web", "QuotaExceeded")]
    assert passed["NodeNames"] == ["n1"]


@run
async def test_a_quota_whose_limits_stay_the_same_is_not_read_again() -> None:
    """Its status changes with every new object there; with 5,000 quotas each change took 28 ms."""
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small", "namespace": "team", "uid": "q", "resourceVersion": "1"},
        "spec": {"hard": {"limits.nvidia.com/gpumem": "1000"}},
    }
    world = await World().start(node(), device(), quota)
    cache = world.service.books.cluster_cache

    def told(version: int, hard: str) -> list[Event]:
        quota["metadata"] |= {"resourceVersion": str(version)}
        return cache.changed(
            document(quota | {"spec": {"hard": {"limits.nvidia.com/gpumem": hard}}})
        )

    assert told(3, "1000") == []
    assert told(2, "2000") == [], "it is older"
    (changed,) = told(4, "2000")
    assert isinstance(changed, QuotasChanged)
    assert told(5, "many") == []
    assert cache.problems
    assert told(6, "2000") == []
    assert not cache.problems, "it is again as it was"


@run
async def test_the_last_good_settings_outlive_a_rebuild() -> None:
    """Those of objects that are still there, and that are broken now; the next leader rebuilds too."""
    broken = config("hami-scheduler-device", 2, device_config__yaml="nvidia: [")
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "small", "namespace": "team", "uid": "q", "resourceVersion": "1"},
        "spec": {"hard": {"limits.nvidia.com/gpumem": "1000"}},
    }
    world = await World().start(
        config("hami-scheduler-device", device_config__yaml="nvidia:\n  deviceMemoryScaling: 2\n"),
        quota,
    )
    odd = {**quota, "metadata": {**quota["metadata"], "resourceVersion": "2"}}
    odd["spec"] = {"hard": {"limits.nvidia.com/gpumem": "many"}}
    for manifest in (broken, odd):
        world.service.changed(document(manifest))
    before = world.service.books

    await world.start(broken, odd)

    after = world.service.books
    assert after.cluster_cache.translation.context.settings.hami.memory_scaling == 2
    assert (
        after.cluster_cache.translation.context.settings
        == before.cluster_cache.translation.context.settings
    )
    assert after.engine.quotas.quotas == before.engine.quotas.quotas
    assert after.cluster_cache.problems.keys() == before.cluster_cache.problems.keys()

    await world.start(broken | {"metadata": broken["metadata"] | {"uid": "another"}})
    assert world.service.books.cluster_cache.translation.context.settings.hami.memory_scaling == 1
    assert not world.service.books.engine.quotas.quotas.by_namespace


@run
async def test_a_fact_that_cannot_be_applied_after_a_rebuild_loses_no_other() -> None:
    """The caller learns of it, and rebuilds the books again."""
    world = await World().start()
    nodes = [document(node(f"n{number}")) for number in range(512)]
    rebuilding = asyncio.create_task(world.service.rebuild(nodes))
    await asyncio.sleep(0)
    assert world.service._late is not None

    world.service._late.append({}.popitem)
    world.service.changed(document(node("late")))

    assert not await rebuilding
    assert world.service.rebuilt
    assert "late" in world.service.books.engine.ledger.index
    assert await world.service.rebuild(nodes)


@run
async def test_others_have_their_turn_in_every_part_of_a_rebuild() -> None:
    """Documents, waiting pods and the pods once more are taken in by pieces."""
    before = Books(ClusterCache(), Hooks())
    documents = [document(pod(f"p{number}", half())) for number in range(1024)]
    for one in documents:
        before.digest(before.cluster_cache.changed(one))
    for entry in before.cluster_cache.pods.values():
        before.waiting.enter(entry, Refusal(ReasonCode.INSUFFICIENT_CARDS, "no card"), 0.0)
    turns = 0
    rebuilding = asyncio.create_task(
        filled(Books(ClusterCache(), Hooks()), documents, before=before)
    )

    while not rebuilding.done():
        await asyncio.sleep(0)
        turns += 1

    assert len((await rebuilding).waiting) == 1024
    assert turns > 3 * (1024 // 512)


@run
async def test_quotas_of_thousands_of_namespaces_are_read_once_each() -> None:
    """A rebuild of 2,000 took a minute when each was read again for each other."""
    read: list[str] = []
    plain = cluster_cache.translate_quotas

    def counted(given: Iterable[Document]) -> tuple[Quotas, tuple[str, ...]]:
        listed = list(given)
        read.extend(one.namespace for one in listed)
        return plain(listed)

    quotas = [
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": name, "namespace": f"t{number}"},
            "spec": {"hard": {"limits.nvidia.com/gpumem": "100"}},
        }
        for number in range(300)
        for name in ("a", "b")
    ]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cluster_cache, "translate_quotas", counted)
        world = await World().start(node(), device(), *quotas)

    in_force = world.service.books.engine.quotas.quotas.by_namespace
    assert len(read) == 3 * 300
    assert [len(found) for found in in_force.values()] == [2] * 300
    world.service.gone(document(quotas[0]))
    world.service.gone(document(quotas[1]))
    in_force = world.service.books.engine.quotas.quotas.by_namespace
    assert len(in_force) == 299


@run
async def test_who_registers_the_nodes_decides_whose_a_lone_count_is() -> None:
    """If HAMi has registered every node, `nvidia.com/gpu` alone is HAMi's."""
    world = await World().start(node(annotations={names.HAMI_REGISTER: HAMI_CARD}))
    world.create(pod("web", {"nvidia.com/gpu": "1"}))

    found = world.service.books.cluster_cache.pods.get("uid-web")

    assert found is not None
    assert [group.protocol for group in found.pod.request.groups] == ["hami"]


@run
async def test_equal_pods_are_read_once() -> None:
    """The copies of a template share their request, by which the engine finds their class."""
    world = await World().start(node(), device())
    for name in ("one", "two"):
        world.create(pod(name, half(), meta={"labels": {"app": "web"}}))
    world.create(pod("three", half(), meta={"annotations": {names.NODE_POLICY: "spread"}}))
    one, two, three = (
        world.service.books.cluster_cache.pods[f"uid-{n}"].pod for n in ("one", "two", "three")
    )

    assert one.request is two.request
    assert (two.uid, two.name) == ("uid-two", "two")
    assert three.request is not one.request


@run
async def test_a_question_about_a_state_that_the_watch_has_shown_is_read_once() -> None:
    """A resourceVersion names one state of a pod, so its contents in the question count only for another one."""
    world = await World().start(node(), device())
    world.create(pod("web", half(), meta={"resourceVersion": "7"}))

    def fits(version: str) -> bool:
        """Whether filter finds a node for the pod, which asks for three cards in this question."""
        asked = pod("web", whole(3), meta={"resourceVersion": version} if version else {})
        return bool(world.filter(asked)["NodeNames"])

    assert fits("7")
    assert not fits("8")
    assert not fits("")


@run
async def test_a_pod_is_asked_about_by_the_registrars_of_today() -> None:
    """A pod may wait since before its node was registered, and its document stays the same."""
    world = await Plugged().start()
    world.create(pod("web", {"nvidia.com/gpu": "1"}, meta={"resourceVersion": "7"}))

    def protocols() -> list[str]:
        """The protocols by which the pod's requests were read last."""
        entry = world.service.books.cluster_cache.pods["uid-web"]
        return [group.protocol for group in entry.pod.request.groups]

    assert protocols() == ["nvidia"]
    world.service.changed(document(node(annotations={names.HAMI_REGISTER: HAMI_CARD})))
    world.filter(world.api.pods["web"])
    assert protocols() == ["hami"]
    world.service.changed(document(node(version=2)))
    world.propose("web")
    assert protocols() == ["nvidia"]


@run
async def test_an_audit_tells_what_leaked_and_what_is_missing() -> None:
    """Against a fresh list, in units; devices of open Bindings are neither."""
    world = await World().start(node(), device())
    await world.place(pod("web", half()))
    unseen = pod("other", half())
    world.create(pod("held", half()))
    world.filter(pod("held", half()))
    world.api.pods["other"] = unseen
    await world.bind("other")

    leaked = world.service.audit([])
    clean = world.service.audit([document(m) for m in world.api.pods.values()])
    grown = dict(world.api.pods["web"], metadata={**world.api.pods["web"]["metadata"], "uid": "x"})
    record = json.loads(grown["metadata"]["annotations"][names.ALLOCATION])
    grown["metadata"]["annotations"] = {names.ALLOCATION: json.dumps({**record, "uid": "x"})}
    missing = world.service.audit([document(m) for m in [*world.api.pods.values(), grown]])

    assert leaked.leaked["core_milli"] == 500
    assert set(leaked.pods) == {"uid-web"}  # the other was bound, and no watch has reported it yet
    assert clean.missing == {}
    assert clean.clean
    assert missing.missing == {"core_milli": 500, "memory_bytes": 8 * 2**30, "slots": 1}


@run
async def test_a_pod_that_is_bound_before_it_is_heard_of_is_no_leak() -> None:
    """kube-scheduler's watch may be ahead of ours; devices of an unseen, deleted pod are released."""
    world = await World().start(node(), device())
    for name in ("stays", "goes"):
        manifest = pod(name, half())
        world.api.pods[name] = manifest
        world.filter(manifest)
        assert await world.bind(name) == ""

    early = await world.service.audit_gently(list)
    del world.api.pods["goes"]  # while the watch was interrupted for too long
    world.clock.pass_time(10.0)
    await world.service.tick()

    ledger = world.service.books.engine.ledger
    assert early is not None
    assert early.clean
    assert {held.name for held in ledger.allocations()} == {"stays"}
    assert world.service.audit().clean
    world.seen("stays")
    assert world.service.audit().clean
    assert not world.service.books.untold("uid-stays")


@run
async def test_nodes_are_ordered_by_a_seed_and_not_by_their_names() -> None:
    """The same objects have the same order, and new names do not change it."""
    old = [node(f"n{i}", creationTimestamp=f"2026-01-0{i}T00:00:00Z") for i in range(1, 8)]
    new = [node(f"z{9 - i}", creationTimestamp=f"2026-01-0{i}T00:00:00Z") for i in range(1, 8)]

    def stamps(manifests: list[Manifest], seed: int) -> list[str | None]:
        nodes = permuted([document(m) for m in manifests], seed)
        return [n.metadata.creation_timestamp for n in nodes]

    assert stamps(old, 1) == stamps(new[::-1], 1)
    assert stamps(old, 1) != stamps(old, 2)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["node", "device", "pod", "end", "gone", "filter", "bind", "tick", "odd"]),
        st.integers(0, 3),
        st.integers(0, 3),
    ),
    min_size=5,
    max_size=40,
)


@given(STEPS)
def test_books_equal_a_rebuild_whatever_happened_in_whatever_order(
    steps: list[tuple[str, int, int]],
) -> None:
    """No card is allocated twice, every hold has an owner, and an audit finds nothing."""
    asyncio.run(_play(steps))


async def _play(steps: list[tuple[str, int, int]]) -> None:
    world = await World("binpack").start(node("n0"), device("n0"), node("n1"), device("n1"))
    asks = [half(), whole(), whole(2), {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000"}]
    service, version = world.service, 10
    for what, one, other in steps:
        name, place = f"p{one}", f"n{other % 2}"
        version += 1
        match what:
            case "node":
                service.changed(document(node(place, version)))
            case "device":
                cards = [card(0), card(1, health=other < 2)]
                service.changed(document(device(place, *cards, version=version)))
            case "pod":
                old = world.api.pods.pop(name, None)
                if old is not None:  # a name is free once its pod is gone
                    service.pod_gone(old["metadata"]["uid"])
                world.create(pod(name, asks[one], meta={"uid": f"uid-{name}-{version}"}))
            case "end" if name in world.api.pods:
                world.api.pods[name]["status"] = {"phase": "Succeeded"}
                world.seen(name)
            case "gone" if name in world.api.pods:
                service.pod_gone(world.api.pods.pop(name)["metadata"]["uid"])
            case "filter" if name in world.api.pods:
                world.filter(world.api.pods[name])
            case "bind" if name in world.api.pods:
                await world.bind(name, place, world.api.pods[name]["metadata"]["uid"])
                world.seen(name)
            case "tick":
                world.clock.pass_time(20.0)
                await service.tick()
            case "odd" if name in world.api.pods:
                service.changed(document(world.api.pods[name]))
        service.books.engine.ledger.validate()
    known = service.books.cluster_cache.pods
    assert all(uid in known for uid in service.books.cycle.holds)
    states = service.books.engine.states
    assert {uid for uid, s in states.items() if s is State.HELD} == set(service.books.cycle.holds)
    assert service.audit([document(m) for m in world.api.pods.values()]).clean


def test_a_device_request_of_the_test_is_what_it_seems() -> None:
    """The builders make the requests of their names."""
    for limits, expected in ((half(), 500), (whole(), 1000)):
        found: list[DeviceRequest] = []

        async def scene(
            limits: dict[str, str] = limits, found: list[DeviceRequest] = found
        ) -> None:
            world = await World().start(node(), device())
            world.create(pod("web", limits))
            entry = world.service.books.cluster_cache.pods.get("uid-web")
            assert entry is not None
            found += [group.request for group in entry.pod.request.groups]

        asyncio.run(scene())
        assert [request.core_milli for request in found] == [expected]


@pytest.mark.parametrize("kind", ["node", "device", "pod", "config"])
def test_the_same_document_twice_changes_nothing(kind: str) -> None:
    """Interrupted watches deliver again."""

    async def scene() -> None:
        world = await World().start(node(), device())
        bound = pod("web", whole(), nodeName="n1")
        manifest = {
            "node": node(),
            "device": device(),
            "pod": bound,
            "config": config("partage-config", policy="spread"),
        }[kind]
        world.service.changed(document(manifest))
        before = world.service.books.engine.ledger.picture()

        world.service.changed(document(manifest))

        assert world.service.books.engine.ledger.picture() == before

    asyncio.run(scene())
