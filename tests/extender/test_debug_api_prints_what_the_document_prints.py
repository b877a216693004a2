"""Koordinator's debug documents, explanations, and the pages beside them."""

import json

import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from wire_client import Running
from world import World, card, device, document, half, node, pod, run, whole

from partage.extender.explain import explain
from partage.extender.server import may_read
from partage.extender.summaries import summaries, summary

PATH = "/apis/v1/plugins/DeviceShare/nodeDeviceSummaries"
MEMORY = "12508288Ki"


def _amounts(core: str, memory: str, ratio: str, domain: str = "kubernetes.io") -> dict[str, str]:
    return {
        f"{domain}/gpu-core": core,
        f"{domain}/gpu-memory": memory,
        f"{domain}/gpu-memory-ratio": ratio,
    }


def test_the_summary_of_the_document_comes_out() -> None:
    """The printed node: one card, taken by the printed pod."""
    full, none = _amounts("100", MEMORY, "100"), _amounts("0", "0", "0")
    manifest = pod("gpu-pod7", {"kubernetes.io/gpu": "100"}, meta={"namespace": "xlf"})
    with Running(
        node("host04"), device("host04", card(0, MEMORY, "kubernetes.io")), node("bare")
    ) as site:
        body = {"PodName": "gpu-pod7", "PodNamespace": "xlf", "PodUID": "uid-gpu-pod7"}
        site.world.create(manifest)
        site.post("/scheduler/bind", {**body, "Node": "host04"})

        status, headers, answer = site.get(f"{PATH}/host04")
        everything = json.loads(site.get(PATH)[2])
        missing = site.get(f"{PATH}/nobody")

    assert status == 200
    assert headers["content-type"].startswith("application/json")
    assert json.loads(answer) == {
        "allocateSet": {"gpu": {"xlf/gpu-pod7": {"0": full}}},
        "deviceFree": none,
        "deviceFreeDetail": {"gpu": {"0": none}},
        "deviceTotal": full,
        "deviceTotalDetail": {"gpu": {"0": full}},
        "deviceUsed": full,
        "deviceUsedDetail": {"gpu": {"0": full}},
    }
    assert everything == {"host04": json.loads(answer)}
    assert (missing[0], json.loads(missing[2])) == (404, {"message": "cannot find node nobody"})


@run
async def test_names_are_todays_where_the_device_object_uses_them() -> None:
    """A summary uses one dialect, whatever the pods' dialects are, so that free and used add up."""
    world = await World().start(node(), device("n1", card(0), card(1)))
    await world.place(
        pod("old", {"kubernetes.io/gpu-core": "50", "kubernetes.io/gpu-memory": "4Gi"})
    )

    found = summary(world.service.books, "n1")

    assert found is not None
    today = "koordinator.sh"
    assert found["deviceTotal"] == _amounts("200", "32Gi", "200", today)
    assert found["deviceUsed"] == _amounts("50", "4Gi", "25", today)
    assert found["deviceFree"] == _amounts("150", "28Gi", "175", today)
    assert list(found["deviceUsedDetail"]["gpu"]) == ["0"]
    assert found["allocateSet"]["gpu"] == {"team/old": {"0": _amounts("50", "4Gi", "25", today)}}


KOORDINATOR_PERCENT = {"koordinator.sh/gpu": "10"}
KOORDINATOR_BYTES = {"koordinator.sh/gpu-core": "10", "koordinator.sh/gpu-memory": "29Gi"}
HAMI_PERCENT = {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "10"}


@pytest.mark.parametrize(
    ("size", "asked", "recorded"),
    [
        ("16Gi", KOORDINATOR_PERCENT, 10),
        ("16Gi", HAMI_PERCENT, 10),
        ("100Gi", KOORDINATOR_BYTES, 28),  # exactly 29 %, which upstream's record calls 28
        ("16Gi", {"koordinator.sh/gpu-memory": "3Gi"}, 18),
    ],
)
@run
async def test_percent_is_added_up_from_the_records(
    size: str, asked: dict[str, str], recorded: int
) -> None:
    """10 % of 16Gi is 9.99 % in bytes; the used amount is the sum of the pods' annotations."""
    world = await World().start(node(), device("n1", card(0, size)))
    first, second = (pod(name, asked) for name in ("first", "second"))
    await world.place(first)
    world.filter(world.create(second))

    held = summary(world.service.books, "n1")
    await world.place(second)
    found = summary(world.service.books, "n1")

    ratio = "koordinator.sh/gpu-memory-ratio"
    assert held == found
    assert found is not None
    assert found["allocateSet"]["gpu"]["team/first"]["0"][ratio] == str(recorded)
    assert found["deviceUsed"][ratio] == str(2 * recorded)
    assert found["deviceFreeDetail"]["gpu"]["0"][ratio] == str(100 - 2 * recorded)


@run
async def test_an_init_container_of_another_protocol_is_not_added_to_what_runs_after_it() -> None:
    """The larger of an init container and its successors counts, so no card is beyond its amounts."""
    world = await World().start(node(), device("n1", card(0, "16Gi")))
    mixed = pod("mixed", {"koordinator.sh/gpu-core": "40", "koordinator.sh/gpu-memory": "4Gi"})
    before = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8192", "nvidia.com/gpucores": "70"}
    mixed["spec"]["initContainers"] = [{"name": "before", "resources": {"limits": before}}]
    await world.place(mixed)

    found = summary(world.service.books, "n1")

    assert found is not None
    assert found["deviceUsed"] == _amounts("70", "8Gi", "50", "koordinator.sh")
    assert found["deviceFree"] == _amounts("30", "8Gi", "50", "koordinator.sh")


@run
async def test_idle_unhealthy_and_other_devices_are_printed_as_upstream_does() -> None:
    """An idle node has empty maps, an unhealthy card no amounts; RDMA and FPGA have their names."""
    nic = {
        "type": "rdma",
        "id": "0000:1f:00.0",
        "minor": 1,
        "health": True,
        "resources": {"koordinator.sh/rdma": "100"},
    }
    fpga = {
        "type": "fpga",
        "id": "f0",
        "minor": 0,
        "health": True,
        "resources": {"koordinator.sh/fpga": "100"},
    }
    world = await World().start(node(), device("n1", card(0, health=False), nic, fpga))

    idle = summary(world.service.books, "n1")
    await world.place(pod("net", {"koordinator.sh/rdma": "40", "koordinator.sh/fpga": "100"}))
    used = (await summaries(world.service.books))["n1"]

    assert idle is not None
    assert idle["allocateSet"] == idle["deviceUsed"] == idle["deviceUsedDetail"] == {}
    assert idle["deviceTotalDetail"]["gpu"] == {"0": {}}
    assert used["deviceUsedDetail"] == {
        "rdma": {"1": {"koordinator.sh/rdma": "40"}},
        "fpga": {"0": {"koordinator.sh/fpga": "100"}},
    }
    assert used["deviceFree"] == {"koordinator.sh/rdma": "60", "koordinator.sh/fpga": "0"}


@run
async def test_a_device_that_vanished_under_a_pod_does_not_break_the_summary() -> None:
    """It stays listed without capacity, like an unhealthy one, and closes no other card."""
    world = await World().start(node(), device())
    await world.place(pod("web", whole(2)))

    world.service.changed(document(device("n1", card(0), version=2)))

    found = summary(world.service.books, "n1")
    assert found is not None
    assert list(found["deviceTotalDetail"]["gpu"]) == ["0", "1"]
    assert found["deviceTotalDetail"]["gpu"]["1"] == {}
    assert not world.quarantined


@run
async def test_an_explanation_tells_state_cards_and_how_the_request_was_read() -> None:
    """The pods are bound, held, waiting and finished, with the facts of each."""
    world = await World().start(node(), device())
    await world.place(pod("bound", whole()))
    world.filter(world.create(pod("held", half())))
    world.filter(world.create(pod("waits", whole(2))))
    world.create(pod("fits", half()))
    world.create(pod("done", half(), status={"phase": "Succeeded"}))

    told = {
        name: explain(world.service.books, "team", name)
        for name in ("bound", "held", "waits", "fits", "done", "nobody")
    }

    states = {name: one and one["state"] for name, one in told.items()}
    assert states == {
        "bound": "bound",
        "held": "held",
        "waits": "waiting",
        "fits": "waiting",
        "done": "finished",
        "nobody": None,
    }
    bound, waits, fits = told["bound"], told["waits"], told["fits"]
    assert bound is not None
    assert bound["node"] == "n1"
    assert bound["allocations"][0]["mode"] == "whole"
    assert bound["record"] == {"source": "partage", "problem": None}
    assert bound["request"][0]["protocol"] == "koordinator"
    assert waits is not None
    assert waits["reason"]["code"] == "CardNotIdle"
    assert waits["reason"]["nodes"]["n1"]["cards"]
    assert waits["last_refusal"]["message"] == waits["reason"]["message"]
    assert fits is not None
    assert (fits["reason"], fits["fits_now_on"]) == (None, "n1")


@pytest.mark.parametrize(
    ("scheduler", "told"),
    [("my-own", True), ("hami-scheduler", False), ("default-scheduler", False), ("", False)],
)
@run
async def test_a_scheduler_that_may_be_anothers_is_told(scheduler: str, told: bool) -> None:  # noqa: FBT001 # a row of the table
    """There is room, but no part of Partage is asked about the pod."""
    world = await World().start(node(), device())
    manifest = pod("web", half())
    manifest["spec"]["schedulerName"] = scheduler
    world.create(manifest)

    found = explain(world.service.books, "team", "web")

    assert found is not None
    assert found["fits_now_on"] == "n1"
    notes = [note for note in found["notes"] if note.startswith("schedulerName is my-own: ")]
    assert bool(notes) is told


@run
async def test_a_pod_on_a_device_that_fails_is_told_so() -> None:
    """It is still bound, but cannot work any more."""
    world = await World().start(node(), device())
    await world.place(pod("web", whole(2)))

    def problems() -> object:
        found = explain(world.service.books, "team", "web")
        return found and found["device_problems"]

    assert problems() == []
    ill = device("n1", card(0, health=False), card(1), version=2)
    world.service.changed(document(ill))
    assert problems() == ["gpu 0 of container main is unhealthy: there is no reason"]


@run
async def test_another_model_is_advised_alone_only_where_one_is_large_enough() -> None:
    """A card is asked by its model, and with more memory than any has."""
    world = await World().start(node(), device())
    told = {}
    for memory in (1000, 10**6):
        limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": memory}
        notes = {"nvidia.com/use-gputype": "H200"}
        one = pod(f"p{memory}", limits, meta={"annotations": notes})
        world.filter(world.create(one))
        found = explain(world.service.books, "team", f"p{memory}")
        assert found is not None
        assert found["reason"]["code"] == "TypeMismatch"
        told[memory] = found["next"]

    assert told[1000] == "change `use-gputype` or the resource name"
    assert told[10**6].startswith("change `use-gputype` or the resource name; ask for less too")


@run
async def test_without_a_node_asking_for_less_is_no_help() -> None:
    """The remedy is to add a node."""
    world = await World().start()
    world.filter(world.create(pod("web", half())))

    found = explain(world.service.books, "team", "web")

    assert found is not None
    assert found["next"].startswith("add a node with devices")


@run
async def test_a_pod_known_to_kube_scheduler_alone_is_explained_too() -> None:
    """Its event may be late."""
    world = await World().start(node(), device())
    world.filter(pod("early", whole(5)))

    told = explain(world.service.books, "team", "early")

    assert told is not None
    assert told["reason"]["code"] == "InsufficientCards"
    assert explain(world.service.books, "other", "early") is None


@run
async def test_explaining_changes_nothing() -> None:
    """Two questions get the same answer, and nothing is reserved."""
    world = await World().start(node(), device())
    world.create(pod("web", whole()))
    before = world.service.books.engine.ledger.picture()

    first = explain(world.service.books, "team", "web")

    assert explain(world.service.books, "team", "web") == first
    assert world.service.books.engine.ledger.picture() == before


class OnlyTeam:
    """Lets bearers of one token read one namespace."""

    async def may_read(self, authorization: str, namespace: str, address: str = "") -> bool:
        """See `Readers`."""
        del address
        return (authorization, namespace) == ("Bearer me", "team")


def test_explanations_are_read_by_those_who_may_read_the_namespace() -> None:
    """Other users must not learn the places and reasons of its pods."""
    with Running(node(), device(), readers=OnlyTeam()) as site:
        site.world.create(pod("web", whole()))

        assert site.get("/api/explain/team/web")[0] == 403
        assert site.get("/api/explain/other/web", Authorization="Bearer me")[0] == 403
        status, _, body = site.get("/api/explain/team/web", Authorization="Bearer me")
        missing = site.get("/api/explain/team/nobody", Authorization="Bearer me")

    assert (status, json.loads(body)["name"]) == (200, "web")
    assert missing[0] == 404


class Everybody:
    """Lets bearers of one token read everything."""

    async def may_read(self, authorization: str, namespace: str, address: str = "") -> bool:
        """See `Readers`."""
        del address
        return (authorization, namespace) == ("Bearer me", "")


@pytest.mark.parametrize("path", [PATH, f"{PATH}/n1", "/metrics"])
def test_names_are_shown_to_those_who_may_read_all_pods(path: str) -> None:
    """All callers get amounts; names of pods, namespaces and quotas need a token that may get all pods."""
    quota = {
        "apiVersion": "v1",
        "kind": "ResourceQuota",
        "metadata": {"name": "q", "namespace": "team"},
        "spec": {"hard": {"limits.nvidia.com/gpu": "8"}},
    }
    with Running(node("n1"), device("n1"), quota, readers=Everybody(), pod_series=True) as site:
        site.run(site.world.place(pod("web", whole())))
        told = site.get(path)[2].decode()
        named = site.get(path, Authorization="Bearer me")[2].decode()
        forged = site.get(path, Authorization="Bearer you")[2].decode()

    assert "team" in named
    assert "web" in named
    for text in (told, forged):
        assert "team" not in text
        assert '"web"' not in text
        assert "/web" not in text
    if path != "/metrics":
        kept = [json.dumps(json.loads(text)).replace("team/web", "-/1") for text in (told, named)]
        assert kept[0] == kept[1]


@run
async def test_a_token_by_plain_http_is_refused_and_not_reviewed() -> None:
    """Except from this machine, as through a forwarded port: others on the path could read the token."""

    class Asked(Everybody):
        asked = 0

        async def may_read(self, authorization: str, namespace: str, address: str = "") -> bool:
            self.asked += 1
            return await super().may_read(authorization, namespace, address)

    readers = Asked()
    app = web.Application()
    request = make_mocked_request("GET", "/metrics", {"Authorization": "Bearer me"}, app=app)
    with pytest.raises(web.HTTPForbidden) as refused:
        await may_read(readers, request.clone(remote="10.0.0.1", scheme="http"), "")
    assert "plain HTTP" in str(refused.value.text)
    assert not readers.asked
    for remote, scheme in (("10.0.0.1", "https"), ("127.0.0.1", "http"), ("::1", "http")):
        assert await may_read(readers, request.clone(remote=remote, scheme=scheme), "")


def test_a_broken_law_of_the_ledger_makes_the_service_unready() -> None:
    """No answer is better than one from books that cannot be correct."""
    with Running(node(), device()) as site:
        plane = next(iter(site.world.service.books.engine.ledger.planes.values()))
        site.world.service.audit()
        assert site.get("/readyz")[0] == 200
        plane.core_free[0, 0] -= 1
        site.world.service.audit()

        status, _, body = site.get("/readyz")

    assert status == 503
    assert b"rule of the ledger" in body


@pytest.mark.parametrize("path", ["/api/explain/a", "/api/explain/a/b/c", f"{PATH}/a/b", "/api"])
def test_paths_that_do_not_exist_are_not_found(path: str) -> None:
    """A similar path is no page."""
    with Running(node(), device()) as site:
        assert site.get(path)[0] == 404
