"""Containers of one pod obey the same rules on a card as containers of different pods."""

import pytest

from fakes.builders import GIB, card, make_node, make_pod, share, whole
from partage.inventory.ledger import Ledger
from partage.model.allocation import Grant
from partage.model.device import Device, DeviceType
from partage.model.policy import Strategy
from partage.model.reason import NodeReason, ReasonCode
from partage.model.request import CardFilter, ContainerAsk, Phase, PodRequest, RequestGroup
from partage.placement.pod import place


def placed(
    request: PodRequest, *devices: Device, **node: object
) -> tuple[Grant, ...] | NodeReason:
    """The pod placed on an idle node of these devices, by binpack."""
    host = make_node(devices=devices, **node)
    ledger = Ledger()
    ledger.upsert_node(host)
    cards = {t: ledger.cards(t, 0) for t in DeviceType}
    before = str(cards)
    found = place(host, cards, request, Strategy.BINPACK)
    assert str(cards) == before
    return found


def minors(found: tuple[Grant, ...] | NodeReason) -> list[int]:
    """The cards that were chosen."""
    assert isinstance(found, tuple), found
    return [grant.minor for grant in found]


def test_a_limit_of_sharers_binds_the_pods_next_container() -> None:
    """A container that does not share keeps its card from the pod's other container."""
    pod = make_pod("a", share(10, 1, sharers=1), share(10, 1))

    found = placed(pod.request, card(0), card(1))

    assert minors(found) == [0, 1]


def test_a_whole_card_is_closed_to_the_pods_next_container() -> None:
    """A request for nothing does not join a card either that another container has whole."""
    pod = make_pod("a", whole(), share())

    assert minors(placed(pod.request, card(0), card(1))) == [0, 1]
    refused = placed(pod.request, card(0))
    assert isinstance(refused, NodeReason)
    assert refused.code is ReasonCode.INSUFFICIENT_SLOTS


def test_an_init_container_goes_beside_a_sidecar_of_a_shared_request() -> None:
    """A sidecar among the containers of a pod-wide request is counted beside init containers."""
    mixed = RequestGroup(
        "koordinator",
        whole(),
        (ContainerAsk("s", Phase.SIDECAR, 500), ContainerAsk("m", Phase.MAIN, 500)),
    )
    first = RequestGroup("hami", whole(), (ContainerAsk("i", Phase.INIT),), Phase.INIT)

    found = placed(PodRequest((mixed, first)), card(0), card(1))

    assert isinstance(found, tuple)
    assert [(g.container, g.minor) for g in found] == [("s", 0), ("m", 0), ("i", 1)]


def test_an_init_container_takes_turns_on_the_pods_own_card() -> None:
    """Init containers reuse the cards of the main containers, which run later."""
    pod = make_pod("a", share(60, 10))
    first = RequestGroup("test", share(80, 12), (ContainerAsk("i", Phase.INIT),), Phase.INIT)

    found = placed(PodRequest((*pod.request.groups, first)), card(0), card(1))

    assert minors(found) == [0, 0]


@pytest.mark.parametrize(
    ("free", "asked", "expected"),
    [
        pytest.param([30, 60], [30, 60], [0, 1], id="as listed"),
        pytest.param([60, 30], [30, 60], [1, 0], id="tightest first"),
        pytest.param([50, 50], [30, 20, 50], [0, 0, 1], id="three on two"),
        pytest.param([60, 40], [20, 20, 60], [1, 1, 0], id="fill the small one"),
        pytest.param([70, 60], [40, 30, 30, 30], [0, 0, 1, 1], id="four on two"),
    ],
)
def test_containers_are_tried_on_every_card(
    free: list[int], asked: list[int], expected: list[int]
) -> None:
    """Where the first choice leaves no room for a later container, it is taken back."""
    devices = [card(i, core_milli=percent * 10) for i, percent in enumerate(free)]
    pod = make_pod("a", *(share(percent) for percent in asked))

    found = placed(pod.request, *devices)

    assert minors(found) == expected


def test_a_later_container_that_names_its_card_gets_it() -> None:
    """The first container gives way where the second may use only one card."""
    pod = make_pod("a", whole(), whole(filter=CardFilter(use_uuids=("GPU-0",))))

    assert minors(placed(pod.request, card(0), card(1))) == [1, 0]


def test_too_many_containers_are_refused_with_the_first_shortage() -> None:
    """Four halves and one more do not fit on two cards; the reason names the shortage."""
    pod = make_pod("a", *(share(50, 8) for _ in range(5)))

    found = placed(pod.request, card(0), card(1))

    assert isinstance(found, NodeReason)
    assert found.code is ReasonCode.INSUFFICIENT_MEMORY
    assert found.asked == 8 * GIB
