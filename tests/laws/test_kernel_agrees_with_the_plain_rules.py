"""The vectorised rules give the plain rules' answers, card by card and node by node."""

from dataclasses import replace
from itertools import product

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st
from ledgers import ledgers
from worlds import PROTOCOLS, device_requests, node_lists

import plain_kernel
from partage.inventory.ledger import Ledger
from partage.model.allocation import GrantMode
from partage.model.device import DeviceType, SliceMode
from partage.model.policy import Scoring, Strategy
from partage.model.reason import NodeReason, ReasonCode
from partage.model.request import ContainerAsk, DeviceRequest, PodRequest, RequestGroup
from partage.placement import kernel
from partage.placement.card import refusal, serves, taken_up, unsuitable
from partage.placement.instance_kernel import pool_ranks
from partage.placement.kernel import choose, is_plain, simple
from partage.placement.node import BEYOND_SCORES, Scene, node_scores
from partage.placement.picks import pool_reason
from partage.placement.pod import place
from partage.placement.reasons import LEADING, WRONG
from partage.placement.tables import Tables

EVERY_NODE = slice(None)
SCORINGS = (Scoring(), Scoring(sharers=True), Scoring(left=True), Scoring(topology=True))
OURS = (Strategy.BINPACK, Strategy.SPREAD, Strategy.FIRST_FIT, Strategy.PARTAGE)


def _cases(data: st.DataObject) -> tuple[Ledger, DeviceRequest, str]:
    nodes = data.draw(node_lists(2))
    ledger = data.draw(ledgers(nodes))
    type_ = data.draw(st.sampled_from([DeviceType.GPU, DeviceType.GPU, DeviceType.RDMA]))
    request = replace(data.draw(device_requests(type_)), beside=data.draw(st.integers(0, 2)))
    return ledger, request, data.draw(st.sampled_from(PROTOCOLS))


@given(st.data())
def test_each_card_is_judged_alike(data: st.DataObject) -> None:
    """`suited`, `fitting` and `classify` say what `unsuitable` and `refusal` say."""
    ledger, request, protocol = _cases(data)
    suits = kernel.suited(ledger, request, protocol, EVERY_NODE)
    fits = kernel.fitting(ledger, request, suits, EVERY_NODE)
    ranks = kernel.classify(ledger, request, protocol)

    for index in ledger.index.values():
        alone = kernel.classify(ledger, request, protocol, None, np.array([index]))
        assert (alone[:, 0] == ranks[:, index]).all()
        cards = ledger.cards(request.type, index)
        assert (ranks[len(cards) :, index] == -1).all()
        assert not fits[len(cards) :, index].any()
        for card in cards:
            reason = refusal(card, request, protocol)
            assert serves(card, request) is (taken_up(card, request) is None)
            if reason is not None and "virtual function" in reason.detail:
                reason = None  # the kernel leaves virtual functions to the exact rule
            code = (
                LEADING[ranks[card.row, index]] if ranks[card.row, index] < kernel.FITS else None
            )
            assert suits[card.row, index] == (
                unsuitable(card.device, request.filter, protocol) is None
            )
            assert fits[card.row, index] == (reason is None), reason
            assert code == (reason.code if reason else None)


@given(st.data())
def test_each_card_of_one_pool_is_judged_alike(data: st.DataObject) -> None:
    """`pool_ranks` says what `pool_reason` says, where shares and instances may serve."""
    ledger, request, protocol = _cases(data)
    assume(request.filter.functions is None)  # the kernel leaves those to the exact rule
    request = replace(request, instances=True, type=DeviceType.GPU)
    ranks = kernel.classify(ledger, request, protocol)
    pooled = pool_ranks(ledger, request, protocol, ranks, {})

    for index in ledger.index.values():
        here = np.array([index])
        alone = pool_ranks(ledger, request, protocol, ranks[:, here], {}, here)
        assert (alone[:, 0] == pooled[:, index]).all()
        cards = ledger.cards(DeviceType.GPU, index)
        if all(card.device.mode is SliceMode.SHARE for card in cards):
            assert (pooled[:, index] == ranks[:, index]).all()
            continue
        assert (pooled[len(cards) :, index] == -1).all()
        for card in cards:
            rank = pooled[card.row, index]
            reason = pool_reason(card, request, protocol)
            assert (LEADING[rank] if rank < kernel.FITS else None) is (reason and reason.code)


@given(st.data())
def test_each_node_has_the_same_leading_reason(data: st.DataObject) -> None:
    """Where too few cards fit, `leading` names the code that `place` gives."""
    ledger, request, protocol = _cases(data)
    lead = kernel.leading(kernel.classify(ledger, request, protocol))
    ranks = kernel.classify(ledger, request, protocol)
    group = RequestGroup(protocol, request, (ContainerAsk("c"),))

    for name, index in ledger.index.items():
        cards = ledger.cards(request.type, index)
        if (
            request.every
            or request.templated
            or request.instances  # judged card by card; `classify` knows shares only
            or request.filter.functions is not None  # the kernel leaves those to the exact rule
            or (ranks[:, index] == kernel.FITS).sum() >= request.count
        ):
            continue
        found = place(
            ledger.node_at(index), {request.type: cards}, PodRequest((group,)), Strategy.BINPACK
        )
        assert isinstance(found, NodeReason), name
        wrong = any(
            code in WRONG for r in ranks[:, index] if 0 <= r < kernel.FITS for code in [LEADING[r]]
        )
        if request.count > len(cards) and not wrong:
            gpu = request.type is DeviceType.GPU
            none = ReasonCode.INSUFFICIENT_CARDS if gpu else ReasonCode.INSUFFICIENT_DEVICES
            assert found.code is none
        else:
            assert found.code is LEADING[lead[index]]


@given(st.data())
def test_each_node_is_scored_alike(data: st.DataObject) -> None:
    """`node_scores` gives the numbers of the plain twin under our own strategies."""
    ledger, request, protocol = _cases(data)
    suits = kernel.suited(ledger, request, protocol, EVERY_NODE)
    fits = kernel.fitting(ledger, request, suits, EVERY_NODE)

    for strategy, compared in product(OURS, SCORINGS):
        scene = Scene(ledger, {}, request, fits, EVERY_NODE, Tables(), scoring=compared)
        scores = node_scores(scene, strategy)
        plain = node_scores(Scene(ledger, {}, None, None, EVERY_NODE, Tables()), strategy)
        for index in ledger.index.values():
            cards = ledger.cards(request.type, index)
            assert scores[index] == plain_kernel.score(cards, strategy, compared)
            assert plain[index] == plain_kernel.host_score(ledger, index, strategy)


@given(st.data())
def test_scores_leave_room_for_the_order_of_nodes(data: st.DataObject) -> None:
    """Every strategy's scores are at least 0 and below the ceiling."""
    ledger, request, protocol = _cases(data)
    suits = kernel.suited(ledger, request, protocol, EVERY_NODE)
    fits = kernel.fitting(ledger, request, suits, EVERY_NODE)

    for strategy, compared in product(Strategy, SCORINGS):
        scene = Scene(ledger, {}, request, fits, EVERY_NODE, Tables(), scoring=compared)
        scores = node_scores(scene, strategy)
        assert scores.min(initial=0) >= 0
        assert scores.max(initial=0) < BEYOND_SCORES


@given(st.data())
def test_a_selection_of_nodes_is_answered_as_the_whole(data: st.DataObject) -> None:
    """Asking about some nodes gives the same as asking about all and selecting."""
    ledger, request, protocol = _cases(data)
    some = np.asarray(sorted(ledger.index.values()), np.intp)[::-1]
    suits = kernel.suited(ledger, request, protocol, EVERY_NODE)
    fits = kernel.fitting(ledger, request, suits, EVERY_NODE)

    assert (kernel.suited(ledger, request, protocol, some) == suits[:, some]).all()
    assert (kernel.fitting(ledger, request, suits, some) == fits[:, some]).all()
    for strategy, compared in product(Strategy, SCORINGS):
        every = Scene(ledger, {}, request, fits, EVERY_NODE, Tables(), scoring=compared)
        few = Scene(ledger, {}, request, fits[:, some], some, Tables(), scoring=compared)
        whole, part = node_scores(every, strategy), node_scores(few, strategy)
        assert (whole[some] == part).all()


@given(st.data())
def test_the_short_cut_chooses_what_the_search_chooses(data: st.DataObject) -> None:
    """`kernel.choose` gives the grants of `place` for plain requests on flat nodes."""
    ledger, request, protocol = _cases(data)
    request = replace(request, beside=0)
    group = RequestGroup(protocol, request, (ContainerAsk("c"),))
    pods = [PodRequest((group,), scoring=compared) for compared in SCORINGS]
    suits = kernel.suited(ledger, request, protocol, EVERY_NODE)
    assume(is_plain(pods[0]))

    for index in ledger.index.values():
        if not simple(ledger, request, index):
            continue
        for strategy, pod in product(Strategy, pods):
            mine = suits[:, index].tolist()
            chosen = choose(ledger, group, mine, index, strategy, None, pod.scoring)
            cards = {request.type: ledger.cards(request.type, index)}
            found = place(ledger.node_at(index), cards, pod, strategy)
            shares = () if isinstance(found, NodeReason) else found
            if not chosen and request.instances:
                shares = tuple(grant for grant in shares if grant.mode is not GrantMode.MIG)
            assert chosen == shares
