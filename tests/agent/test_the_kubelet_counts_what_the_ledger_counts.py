"""Device plugins beside a kubelet that speaks the real protocol: units, advice, restarts, bad input."""

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
from claims_world import until
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes.kubelet import FakeKubelet, NotAdmitted, NotStarted, fake_kubelet
from partage.agent.kubelet import messages as said
from partage.agent.kubelet.plugin import DevicePlugins
from partage.agent.kubelet.registering import PluginFiles
from partage.agent.kubelet.resources import KubeletSilent, Resources
from partage.agent.kubelet.units import MOST_UNITS, Asked, Offer, Unit, advise, offers
from partage.kube.retry import Backoff
from partage.model.allocation import Grant, GrantMode
from partage.model.device import Device, DeviceType, Topology
from partage.model.node import Node
from partage.vendors import names
from partage.vendors.settings import HamiNodeSettings, HamiSettings, Settings

GIB = 2**30
GPU = "nvidia.com/gpu"
_SOON = Backoff(0.02, cap=0.1)
_NEVER = Backoff(3600, cap=3600, jitter=0)


def _cards(count: int, memory: int = 16, **fields: object) -> tuple[Device, ...]:
    card = Device(
        DeviceType.GPU,
        0,
        "",
        "nvidia",
        "T4",
        memory_bytes=memory * GIB,
        topology=Topology(0, "pci0000:00"),
    )
    made = (
        replace(card, minor=n, uuid=f"GPU-{n:08d}-0000-0000-0000-000000000000")
        for n in range(count)
    )
    return tuple(replace(one, **fields) for one in made)


def _node(cards: tuple[Device, ...], qgpu: str = "enable") -> Node:
    return Node("n1", devices=cards, labels={names.QGPU_ENABLE: qgpu} if qgpu else {})


def _grant(card: int, milli: int = 1000, gib: int = 16, container: str = "main") -> Grant:
    uuid = f"GPU-{card:08d}-0000-0000-0000-000000000000"
    return Grant(
        container, DeviceType.GPU, card, uuid, milli, gib * GIB, GrantMode.SHARE, protocol="qgpu"
    )


# --- what is offered -------------------------------------------------------------------------


def test_a_node_offers_sharers_percents_and_gibibytes() -> None:
    """Two cards of 16 GiB: 2 x 10 sharers, 2 x 100 percents, 2 x 16 gibibytes."""
    found = {one.resource: one for one in offers(_node(_cards(2)), Settings())}

    assert {name: len(one.units) for name, one in found.items()} == {
        GPU: 20,
        names.QGPU_CORE: 200,
        names.QGPU_MEMORY: 32,
    }
    assert found[GPU].units[0] == Unit(
        "GPU-00000000-0000-0000-0000-000000000000::0", _cards(1)[0].uuid, healthy=True, numa=0
    )


@pytest.mark.parametrize("label", ["", "disable", "false"])
def test_qgpu_is_offered_only_where_it_is_switched_on(label: str) -> None:
    """Without the label, or with one that says no, the agent offers the kubelet nothing of qGPU's."""
    assert [one.resource for one in offers(_node(_cards(1), label), Settings())] == [GPU]


def test_settings_of_the_node_count() -> None:
    """The node's own split count and filter, and another name of the resource."""
    own = HamiNodeSettings("n1", split_count=3, filter_indexes=(1,))
    hami = HamiSettings(count_name="example.com/vgpu", nodes={"n1": own})

    (found,) = offers(_node(_cards(2), ""), Settings(hami=hami))

    assert found.resource == "example.com/vgpu"
    assert [unit.card for unit in found.units] == [_cards(1)[0].uuid] * 3


def test_other_vendors_are_left_to_their_plugins() -> None:
    """MetaX cards and network cards bring nothing here."""
    cards = (*_cards(1, vendor="metax"), Device(DeviceType.RDMA, 0, "0000:1f:00.0"))

    assert offers(_node(cards), Settings()) == ()


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 64), st.integers(0, 4096), st.integers(1, 10**9), st.text(max_size=200))
def test_a_list_is_bounded_and_its_identities_are_valid(
    count: int, memory: int, split: int, uuid: str
) -> None:
    """Whatever is reported and configured: far below 4 MiB, identities unique and short."""
    cards = tuple(replace(card, uuid=f"{uuid}{card.minor}") for card in _cards(count, memory))
    for one in offers(_node(cards), Settings(hami=HamiSettings(split_count=split))):
        ids = [unit.id for unit in one.units]
        assert len(ids) <= MOST_UNITS
        assert len(set(ids)) == len(ids)
        assert all(len(unit.encode()) <= 63 for unit in ids)
        assert len(one.listed().encode()) < 2 << 20
        assert (one.dropped > 0) == (
            one.resource != names.QGPU_CORE
            and (split if one.resource == GPU else memory) > MOST_UNITS // count
        )


def test_sixteen_large_cards_are_far_from_the_limit() -> None:
    """16 x 192 GiB: the longest list is a twentieth of what gRPC takes."""
    sizes = [len(one.listed().encode()) for one in offers(_node(_cards(16, 192)), Settings())]

    assert max(sizes) < (4 << 20) // 18


# --- what is advised -------------------------------------------------------------------------


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_whoever_is_served_first_the_cards_are_used_as_recorded(data: st.DataObject) -> None:
    """Containers with records are admitted in any order: in the end each card's units agree."""
    cards = _cards(3)
    offer = {o.resource: o for o in offers(_node(cards), Settings())}[names.QGPU_CORE]
    room = dict.fromkeys(range(3), 20)
    asked: list[Asked] = []
    expected: dict[str, int] = {}
    for number in range(data.draw(st.integers(1, 12))):
        places = data.draw(
            st.lists(st.sampled_from(range(3)), min_size=1, max_size=2, unique=True)
        )
        steps = [min(data.draw(st.integers(1, 6)), room[card]) for card in places]
        grants = tuple(
            _grant(card, 50 * n, 1, f"c{number}")
            for card, n in zip(places, steps, strict=True)
            if n
        )
        for grant, n in zip(grants, [n for n in steps if n], strict=True):
            room[grant.minor] -= n
            expected[grant.uuid] = expected.get(grant.uuid, 0) + 5 * n
        if grants:
            size = sum(one.core_milli for one in grants) // 10
            asked.append(Asked({names.QGPU_CORE: size}, grants))
    free = [unit.id for unit in offer.units]
    card_of = {unit.id: unit.card for unit in offer.units}
    used: dict[str, int] = {}

    for number in data.draw(st.permutations(range(len(asked)))):
        size = asked[number].requests[names.QGPU_CORE]
        chosen = advise(offer, size, free, (), asked)
        assert len(chosen) == len(set(chosen)) == size
        asked[number] = replace(asked[number], held={names.QGPU_CORE: chosen})
        free = [unit for unit in free if unit not in chosen]
        for unit in chosen:
            used[card_of[unit]] = used.get(card_of[unit], 0) + 1

    assert used == expected


def test_advice_keeps_what_must_be_kept_and_fills_up() -> None:
    """Units that an init container has come first; other cards replace one that is used up."""
    (offer,) = offers(_node(_cards(2), ""), Settings(hami=HamiSettings(split_count=2)))
    ids = [unit.id for unit in offer.units]
    two = Asked({GPU: 2}, (_grant(1), _grant(1)))

    assert advise(offer, 2, ids, (), [two]) == tuple(ids[2:])
    assert advise(offer, 2, ids[1:], (ids[3],), [two]) == (ids[3], ids[2])
    assert advise(offer, 2, ids[:3], (), [two]) == (ids[2], ids[0])
    assert advise(offer, 1, ids, (), [two]) == ()


# --- the protocol ----------------------------------------------------------------------------


async def _nothing(_offer: Offer, _asked: said.ContainerPreference) -> tuple[str, ...]:
    return ()


async def _yes() -> str:
    return ""


@contextlib.asynccontextmanager
async def _serving(
    folder: Path,
    node: Node,
    advice: Callable[[Offer, said.ContainerPreference], Awaitable[tuple[str, ...]]] = _nothing,
    allow: Callable[[], Awaitable[str]] = _yes,
    again: Backoff = _SOON,
    listening: float = 60,
) -> AsyncIterator[DevicePlugins]:
    files = PluginFiles(folder / "device-plugins", look=0.02, listening=listening, again=again)
    plugins = DevicePlugins(files, advice, allow, lambda: 0.5)
    plugins.take(offers(node, Settings()))
    task = asyncio.create_task(plugins.run())
    try:
        yield plugins
    finally:
        task.cancel()
        await asyncio.wait((task,))


async def test_resources_with_the_same_last_part_are_served_side_by_side(folder: Path) -> None:
    """A node with cards of two vendors: each resource has a socket and a mark of its own."""
    other = replace(_cards(3)[2], vendor="amd")

    async with (
        fake_kubelet(folder) as kubelet,
        _serving(folder, _node((*_cards(1), other), "")) as plugins,
    ):
        await kubelet.until(GPU, 10)
        await kubelet.until(names.COUNT_AMD, 1)
        await asyncio.sleep(0.5)
        assert plugins.registered == {GPU, names.COUNT_AMD}
        assert len(kubelet.registrations) == 2
        marks = [
            key for resource in (GPU, names.COUNT_AMD) for key in (await _given(kubelet, resource))
        ]
        assert len(set(marks)) == 2


async def _given(kubelet: FakeKubelet, resource: str) -> dict[str, str]:
    units = (kubelet.units(resource)[0].id,)
    asked = said.UnitsOfContainers((said.ContainerIds(units),))
    answer = said.AllocateResponse.decode(await kubelet.ask(resource, "Allocate", asked))
    return dict(answer.containers[0].envs)


async def test_the_kubelet_is_told_of_units_and_of_their_health(folder: Path) -> None:
    """Registered by the published protocol; a card that fails takes its units with it, and back."""
    async with (
        fake_kubelet(folder) as kubelet,
        _serving(folder, _node(_cards(2))) as plugins,
    ):
        await kubelet.registered(3)
        await kubelet.until(GPU, 20, healthy=20)
        await kubelet.until(names.QGPU_MEMORY, 32)
        assert {one.version for one in kubelet.registrations} == {"v1beta1"}
        assert all(
            one.options and one.options.preferred_available for one in kubelet.registrations
        )
        topology = kubelet.units(GPU)[0].topology
        assert topology is not None
        assert [one.id for one in topology.nodes] == [0]

        good, bad = _cards(2)
        plugins.take(offers(_node((good, replace(bad, healthy=False))), Settings()))
        await kubelet.until(GPU, 20, healthy=10)
        plugins.take(offers(_node((good, bad)), Settings()))
        await kubelet.until(GPU, 20, healthy=20)
        plugins.take(offers(_node((good,), ""), Settings()))
        await kubelet.until(GPU, 10)
        await kubelet.until(names.QGPU_CORE, 0)
        assert plugins.registered == {GPU, names.QGPU_CORE, names.QGPU_MEMORY}
        assert len(kubelet.registrations) == 3


async def test_a_kubelet_that_comes_late_goes_and_returns_is_served(folder: Path) -> None:
    """Restarts empty the folder of sockets; hanging up alone is noticed as well."""
    kubelet = FakeKubelet(folder)
    async with _serving(folder, _node(_cards(1), "")) as plugins:
        await asyncio.sleep(0)
        for time in range(1, 4):
            await kubelet.start()
            await kubelet.registered(time)
            await kubelet.until(GPU, 10)
            held = await kubelet.admit("team", f"p{time}", "main", GPU, 1)
            assert len(held) == 1
            await kubelet.stop()
        await kubelet.start()
        await kubelet.registered(4)
        await kubelet.until(GPU, 10)
        await kubelet.forget(GPU)
        await kubelet.registered(5)
        await kubelet.until(GPU, 10)
        assert plugins.registered == {GPU}
        await kubelet.stop()


async def test_a_refused_registration_is_tried_again(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The kubelet's own words are in the log, once."""
    async with fake_kubelet(folder) as kubelet:
        kubelet.refusal = "the node is being drained"
        async with _serving(folder, _node(_cards(1), "")):
            async with asyncio.timeout(240):
                while "the node is being drained" not in caplog.text:  # noqa: ASYNC110 # a log has no event
                    await asyncio.sleep(0.01)
            kubelet.refusal = ""
            await kubelet.until(GPU, 10)

    assert caplog.text.count("not registered") == 1


async def test_units_come_marked_and_nothing_else(folder: Path) -> None:
    """Allocate knows no pod and gives none a card: the runtime's side does, by the record."""
    async with fake_kubelet(folder) as kubelet, _serving(folder, _node(_cards(1), "")):
        await kubelet.until(GPU, 10)
        await kubelet.admit("team", "a", "main", GPU, 2)
        assert kubelet.given["team", "a", "main", GPU] == {"PARTAGE_DEVICES_GPU": "1"}
        with pytest.raises(NotAdmitted, match="9 asked, 8 left"):
            await kubelet.admit("team", "b", "main", GPU, 9)


async def test_a_start_between_our_socket_and_our_registration_costs_no_time(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The kubelet dials a socket that it has just removed: a new one is registered, nothing is waited out."""
    caplog.set_level("INFO", logger="partage.agent")

    async with fake_kubelet(folder) as kubelet:
        kubelet.removes = 3
        async with _serving(folder, _node(_cards(1), ""), again=_NEVER):
            await kubelet.until(GPU, 10)
            await kubelet.admit("team", "a", "main", GPU, 1)

    assert caplog.text.count("has restarted") == 3
    assert "not registered" not in caplog.text


async def test_a_registration_that_nobody_listens_to_is_made_again(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The kubelet took it and dropped it with an earlier one, without a word."""
    async with fake_kubelet(folder) as kubelet:
        kubelet.deaf = 1
        async with _serving(folder, _node(_cards(1), ""), listening=0.5) as plugins:
            await kubelet.registered(1)
            assert plugins.registered == frozenset()
            await kubelet.until(GPU, 10)
            assert plugins.registered == {GPU}

    assert "the kubelet accepted it and does not listen" in caplog.text


async def test_a_socket_that_a_kubelet_left_is_not_waited_on(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """No kubelet answers there; the next kubelet's own socket ends the pause, however long."""
    caplog.set_level("DEBUG", logger="partage.agent")
    growing = Backoff(0.02, factor=10**6, cap=3600, jitter=0)  # the second pause is an hour

    left = folder / "device-plugins/kubelet.sock"
    left.parent.mkdir()
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(left))
    async with _serving(folder, _node(_cards(1), ""), again=growing):
        await until(lambda: caplog.text.count("trying again") == 2)
        async with fake_kubelet(folder) as kubelet:
            await kubelet.until(GPU, 10)


async def test_two_agents_do_not_keep_each_other_busy(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """An agent that finds another's socket in place of its own says so, and rests before it takes the place back."""
    async with (
        fake_kubelet(folder) as kubelet,
        _serving(folder, _node(_cards(1), ""), again=_NEVER),
    ):
        await kubelet.until(GPU, 10)
        async with _serving(folder, _node(_cards(2), "")):
            await until(lambda: "another process serves" in caplog.text)
            await kubelet.until(GPU, 20)
            assert len(kubelet.registrations) <= 4


async def test_units_are_given_at_once_and_starts_wait_for_who_injects(folder: Path) -> None:
    """A refusal of units fails a pod for good; one of the start says why, and is tried again."""
    why = "the container runtime does not ask the agent"

    async def allow() -> str:
        return why

    async with fake_kubelet(folder) as kubelet:
        async with _serving(folder, _node(_cards(1), ""), allow=allow):
            await kubelet.until(GPU, 10)
            await kubelet.admit("team", "a", "main", GPU, 1)
            with pytest.raises(NotStarted, match="UNAVAILABLE: partage: the container runtime"):
                await kubelet.start_container("team", "a", "main", GPU)
            why = ""
            await kubelet.start_container("team", "a", "main", GPU)
        await kubelet.until(GPU, 0)
        with pytest.raises(NotStarted, match="endpoint stopped"):
            await kubelet.start_container("team", "a", "main", GPU)


async def _answer(kubelet: FakeKubelet, method: str, request: bytes) -> str:
    try:
        await kubelet.ask(GPU, method, request)
    except NotAdmitted as error:
        return str(error).partition(":")[0]
    return ""


async def test_nonsense_is_refused_and_the_next_call_is_served(folder: Path) -> None:
    """Random bytes, units that are not there, methods that do not exist: an error each, and no end."""
    chance = random.Random(7)  # noqa: S311 # repeatable
    requests = [chance.randbytes(chance.randrange(1, 60)) for _ in range(200)]
    good = said.UnitsOfContainers((said.ContainerIds(()),)).encode()
    requests += [good[:cut] + chance.randbytes(3) for cut in range(len(good))]

    async with fake_kubelet(folder) as kubelet, _serving(folder, _node(_cards(1), "")):
        await kubelet.until(GPU, 10)
        for request in requests:
            for method in ("Allocate", "GetPreferredAllocation", "PreStartContainer"):
                assert await _answer(kubelet, method, request) in {"", "INVALID_ARGUMENT"}
        unknown = said.UnitsOfContainers((said.ContainerIds(("GPU-z::0",)),))
        with pytest.raises(NotAdmitted, match="has no unit 'GPU-z::0'"):
            await kubelet.ask(GPU, "Allocate", unknown)
        with pytest.raises(NotAdmitted, match="UNIMPLEMENTED"):
            await kubelet.ask(GPU, "NoSuchMethod", b"")
        await kubelet.admit("team", "a", "main", GPU, 10)


async def test_who_holds_units_is_told_by_the_kubelet(folder: Path) -> None:
    """The list of its pods; a kubelet that is not there is an error that says so."""
    async with fake_kubelet(folder) as kubelet, _serving(folder, _node(_cards(1), "")):
        await kubelet.until(GPU, 10)
        await kubelet.admit("team", "a", "main", GPU, 1)
        await kubelet.admit("team", "a", "side", GPU, 2)
        resources = Resources(folder / "pod-resources/kubelet.sock")
        try:
            (pod,) = await resources.pods()
            assert [len(one.devices) for one in pod.containers] == [1, 2]
            await kubelet.stop()
            with pytest.raises(KubeletSilent, match="PodResources List"):
                await resources.pods()
        finally:
            await resources.close()
