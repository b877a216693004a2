"""An init container shares its cards with the sidecars before it, not with those after it."""

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fakes.builders import card, make_node, share
from partage.inventory.ledger import Ledger
from partage.model.allocation import Grant, charges_of
from partage.model.device import DeviceType
from partage.model.policy import Strategy
from partage.model.reason import NodeReason
from partage.model.request import ContainerAsk, Phase, PodRequest, RequestGroup
from partage.placement import pod
from partage.placement.card import Work
from partage.placement.pod import place

INIT, SIDECAR, MAIN = Phase.INIT, Phase.SIDECAR, Phase.MAIN


def _group(name: str, phase: Phase, core: int, *positions: int) -> RequestGroup:
    """A group of containers that share one card; the amount in percent of compute."""
    asks = tuple(ContainerAsk(f"{name}{at}", phase, position=at) for at in positions)
    return RequestGroup("hami", share(core, core / 10), asks, phase)


def _place(groups: list[RequestGroup], work: Work | None = None) -> tuple[Grant, ...] | NodeReason:
    """The groups on a node of one card, which is left as it was."""
    groups = sorted(groups, key=lambda group: group.phase is INIT)
    ledger = Ledger()
    ledger.upsert_node(make_node(devices=[card(0)]))
    cards = {DeviceType.GPU: ledger.cards(DeviceType.GPU, 0)}
    found = place(ledger.node_at(0), cards, PodRequest(tuple(groups)), Strategy.BINPACK, work=work)
    assert cards == {DeviceType.GPU: ledger.cards(DeviceType.GPU, 0)}
    return found


def _placed(*containers: tuple[str, Phase, int]) -> tuple[Grant, ...] | NodeReason:
    """One group a container on one card, in the pod's order; amounts in percent of compute."""
    return _place(
        [_group(name, phase, core, i) for i, (name, phase, core) in enumerate(containers)]
    )


def test_a_sidecar_after_a_large_init_container_does_not_count_beside_it() -> None:
    """max(90, 30 + 50) = 90: the pod fits on one card."""
    grants = _placed(("i", INIT, 90), ("s", SIDECAR, 30), ("m", MAIN, 50))

    assert isinstance(grants, tuple)
    assert [grant.container for grant in grants] == ["i0", "s1", "m2"]
    assert [charge.core_milli for charge in charges_of(grants)] == [900]


def test_a_sidecar_before_an_init_container_counts_beside_it() -> None:
    """30 + 90 is more than a card."""
    assert isinstance(_placed(("s", SIDECAR, 30), ("i", INIT, 90)), NodeReason)

    grants = _placed(("s", SIDECAR, 30), ("i", INIT, 70), ("m", MAIN, 20))

    assert isinstance(grants, tuple)
    assert [charge.core_milli for charge in charges_of(grants)] == [1000]


@given(st.data())
def test_the_order_in_which_init_containers_are_placed_does_not_matter(
    data: st.DataObject,
) -> None:
    """A pod fits where its busiest moment does: its end, or an init container beside the sidecars before it."""
    positions = data.draw(st.permutations(range(8)))
    groups, spent = [], 0
    while spent < len(positions):
        size = data.draw(st.integers(1, 2))
        phase = data.draw(st.sampled_from((INIT, SIDECAR, SIDECAR)))
        group = _group("c", phase, data.draw(st.integers(5, 60)), *positions[spent : spent + size])
        sharers = data.draw(st.sampled_from((None, None, None, 2, 4)))
        groups.append(replace(group, request=replace(group.request, sharers=sharers)))
        spent += size

    def first(group: RequestGroup) -> int:
        return min(container.position for container in group.containers)

    def last(group: RequestGroup) -> int:
        return max(container.position for container in group.containers)

    sidecars = [group for group in groups if group.phase is SIDECAR]
    moments = [sidecars] + [
        [group, *(other for other in sidecars if first(other) <= last(group))]
        for group in groups
        if group.phase is INIT
    ]
    fits = all(
        sum(group.request.core_milli for group in moment) <= 1000
        and len(moment) <= min((group.request.sharers or 100 for group in moment), default=100)
        for moment in moments
    )

    assert isinstance(_place(groups), tuple) == fits


def test_a_sidecar_is_taken_once_for_all_init_containers_behind_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A tenant chooses the numbers of both, so their product must not cost time that nothing counts."""
    taken: Counter[str] = Counter()
    original = pod.take

    def counted(*given: object) -> object:
        taken["all"] += 1
        return original(*given)

    monkeypatch.setattr(pod, "take", counted)
    groups = [_group("s", SIDECAR, 1, at) for at in range(20)]
    groups += [_group("i", INIT, 1, 20 + at) for at in range(30)]

    assert isinstance(_place(groups), tuple)
    assert taken["all"] == 2 * 20


def test_sidecars_that_are_taken_again_are_counted_as_work() -> None:
    """Init containers in falling order end the sidecars of the one before."""
    groups = [_group("s", SIDECAR, 1, 2 * at) for at in range(20)]
    few, many = Work(), Work()
    rising = [_group("i", INIT, 1, 2 * at + 1) for at in range(20)]
    assert isinstance(_place(groups + rising, few), tuple)
    assert isinstance(_place(groups + rising[::-1], many), tuple)

    assert many.done >= few.done + 150
