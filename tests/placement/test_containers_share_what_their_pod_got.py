"""A request of the whole pod is shared out among its containers, and counts right in the books."""

import pytest

from fakes.builders import GIB, card, make_node, share, whole
from partage.inventory.ledger import Ledger
from partage.model.allocation import Grant, charges_of
from partage.model.device import Device, DeviceType
from partage.model.policy import Strategy
from partage.model.request import ContainerAsk, DeviceRequest, Phase, PodRequest, RequestGroup
from partage.placement.kernel import choose, is_plain
from partage.placement.pod import place

INIT, SIDECAR, MAIN = Phase.INIT, Phase.SIDECAR, Phase.MAIN


def grants_for(
    request: DeviceRequest, *containers: tuple[str, Phase, int], devices: tuple[Device, ...] = ()
) -> tuple[Grant, ...]:
    """Grants of one group on a node with two 16 GiB cards, containers as (name, phase, core)."""
    node = make_node(devices=devices or (card(0), card(1)))
    ledger = Ledger()
    ledger.upsert_node(node)
    asks = tuple(
        ContainerAsk(name, phase, core, position=i)
        for i, (name, phase, core) in enumerate(containers)
    )
    group = RequestGroup("koordinator", request, asks)
    cards = {t: ledger.cards(t, 0) for t in DeviceType}
    found = place(node, cards, PodRequest((group,)), Strategy.BINPACK)
    assert isinstance(found, tuple), found
    return found


def summary(grants: tuple[Grant, ...]) -> list[tuple[str, int, int, float]]:
    """Container, card, compute in percent and memory in GiB of each grant."""
    return [(g.container, g.minor, g.core_milli // 10, g.memory_bytes / GIB) for g in grants]


@pytest.mark.parametrize("request_", [whole(), share(50, 8)])
@pytest.mark.parametrize("phase", [SIDECAR, MAIN])
def test_a_container_alone_keeps_its_phase(request_: DeviceRequest, phase: Phase) -> None:
    """On the short path too: the agent takes a sidecar's grant for what it is."""
    ledger = Ledger()
    ledger.upsert_node(make_node(devices=(card(0), card(1))))
    group = RequestGroup("koordinator", request_, (ContainerAsk("s", phase),))
    short = choose(ledger, group, (True, True), 0, Strategy.BINPACK, None)

    assert is_plain(PodRequest((group,)))
    assert [(grant.container, grant.phase) for grant in short] == [("s", phase)]
    assert [grant.phase for grant in grants_for(request_, ("s", phase, 0))] == [phase]


@pytest.mark.parametrize(
    ("request_", "containers", "expected"),
    [
        pytest.param(
            whole(2),
            [("a", MAIN, 1000), ("b", MAIN, 1000)],
            [("a", 0, 100, 16), ("b", 1, 100, 16)],
            id="a card each",
        ),
        pytest.param(
            whole(2),
            [("a", MAIN, 500), ("b", MAIN, 1500)],
            [("a", 0, 50, 8), ("b", 0, 50, 8), ("b", 1, 100, 16)],
            id="a card and a half",
        ),
        pytest.param(
            share(60, 6),
            [("a", MAIN, 200), ("b", MAIN, 200), ("c", MAIN, 200)],
            [("a", 0, 20, 2), ("b", 0, 20, 2), ("c", 0, 20, 2)],
            id="a share in three",
        ),
        pytest.param(
            whole(),
            [("i", INIT, 1000), ("a", MAIN, 500)],
            [("i", 0, 100, 16), ("a", 0, 50, 8)],
            id="init and main take turns",
        ),
        pytest.param(
            whole(),
            [("i", INIT, 1000), ("j", INIT, 500)],
            [("i", 0, 100, 16), ("j", 0, 50, 8)],
            id="init containers alone",
        ),
        pytest.param(
            whole(),
            [("s", SIDECAR, 250), ("i", INIT, 750), ("a", MAIN, 500)],
            [("s", 0, 25, 4), ("i", 0, 75, 12), ("a", 0, 50, 8)],
            id="init beside a sidecar",
        ),
        pytest.param(
            share(90, 9),
            [("i", INIT, 900), ("s", SIDECAR, 300), ("a", MAIN, 500)],
            [("i", 0, 90, 9), ("s", 0, 30, 3), ("a", 0, 50, 5)],
            id="a sidecar after a large init gets what it asked",
        ),
        pytest.param(
            whole(),
            [("s", SIDECAR, 250), ("i", INIT, 750)],
            [("s", 0, 25, 4), ("i", 0, 75, 12)],
            id="init and sidecar alone",
        ),
        pytest.param(
            whole(2),
            [("s", SIDECAR, 1000), ("i", INIT, 1000)],
            [("s", 0, 100, 16), ("i", 1, 100, 16)],
            id="sidecar and init on different cards",
        ),
    ],
)
def test_containers_get_their_part(
    request_: DeviceRequest,
    containers: list[tuple[str, Phase, int]],
    expected: list[tuple[str, int, int, float]],
) -> None:
    """Parts follow what containers asked, and the books count each card once and in full."""
    grants = grants_for(request_, *containers)

    assert summary(grants) == expected
    per_card = request_.core_milli
    charges = charges_of(grants)
    assert [(c.core_milli, c.slots) for c in charges] == [(per_card, 1)] * request_.count


def test_rounding_stays_with_the_last_container() -> None:
    """Amounts that do not divide are still allocated to the last unit."""
    grants = grants_for(
        share(core_milli=100, memory_bytes=GIB + 1), ("a", MAIN, 1), ("b", MAIN, 1), ("c", MAIN, 1)
    )

    assert [g.core_milli for g in grants] == [33, 33, 34]
    assert sum(g.memory_bytes for g in grants) == GIB + 1


def test_native_units_go_with_the_first_container() -> None:
    """Units that cannot be divided are counted once, with the slot."""
    npu = card(0, extras=(("npu", 8),))
    asked = share(memory=2, extras=(("npu", 4),), core_unit="npu")

    grants = grants_for(asked, ("s", SIDECAR, 1), ("i", INIT, 1), ("a", MAIN, 1), devices=(npu,))

    assert [g.extras for g in grants] == [(("npu", 4),), (), ()]
    assert charges_of(grants)[0].extras == (("npu", 4),)


@pytest.mark.parametrize(
    "containers",
    [
        [ContainerAsk("a", MAIN, memory_milli=250), ContainerAsk("b", MAIN, memory_milli=750)],
        [
            ContainerAsk("a", MAIN, memory_bytes=4 * GIB),
            ContainerAsk("b", MAIN, memory_bytes=12 * GIB),
        ],
    ],
    ids=["as a share", "in bytes"],
)
def test_memory_weighs_where_no_compute_is_asked(containers: list[ContainerAsk]) -> None:
    """Containers that ask for memory alone are weighed by it."""
    node = make_node(devices=[card(0)])
    ledger = Ledger()
    ledger.upsert_node(node)
    group = RequestGroup("koordinator", whole(), tuple(containers))

    found = place(
        node,
        {DeviceType.GPU: ledger.cards(DeviceType.GPU, 0)},
        PodRequest((group,)),
        Strategy.SPREAD,
    )

    assert isinstance(found, tuple)
    assert [g.memory_bytes // GIB for g in found] == [4, 12]
