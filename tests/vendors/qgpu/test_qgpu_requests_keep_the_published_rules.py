"""Each published rule of qGPU's resources, kept and broken."""

from collections.abc import Mapping
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.model.policy import CardOrder, Strategy
from partage.model.quantity import Quantity
from partage.model.reason import ReasonCode
from partage.model.request import Phase
from partage.vendors import names
from partage.vendors.base import ContainerView, PodView, Reading
from partage.vendors.families.qgpu import FAMILY
from partage.vendors.settings import Settings

CORE, MEMORY = "tke.cloud.tencent.com/qgpu-core", "tke.cloud.tencent.com/qgpu-memory"
GREEDY, APP_CLASS = "tke.cloud.tencent.com/qgpu-core-greedy", "tke.cloud.tencent.com/app-class"
GIB = 1 << 30

Amounts = Mapping[str, str | int]


def container(
    limits: Amounts | None = None,
    requests: Amounts | None = None,
    *,
    name: str = "main",
    phase: Phase = Phase.MAIN,
) -> ContainerView:
    """A container with these limits and requests."""
    return ContainerView(
        name,
        phase,
        {k: Quantity.parse(v) for k, v in (requests or {}).items()},
        {k: Quantity.parse(v) for k, v in (limits or {}).items()},
    )


def read(*containers: ContainerView, app_class: str | None = None) -> Reading:
    """The reading of a pod of these containers."""
    annotations = {} if app_class is None else {APP_CLASS: app_class}
    pod = PodView("ns", "pod", annotations=annotations, containers=containers)
    return FAMILY.read(pod, containers, Settings())


KEPT = [
    pytest.param({CORE: "30", MEMORY: "5"}, None, (1, 300, 5, False), id="the-seed's-share"),
    pytest.param({CORE: 5, MEMORY: 1}, None, (1, 50, 1, False), id="least"),
    pytest.param({CORE: 100, MEMORY: 8}, None, (1, 1000, 8, False), id="all-compute-some-memory"),
    pytest.param({CORE: 100}, None, (1, 1000, 0, True), id="one-whole-card"),
    pytest.param({CORE: 300}, None, (3, 1000, 0, True), id="three-whole-cards"),
    pytest.param({CORE: 160, MEMORY: 60}, None, (2, 800, 30, False), id="two-cards"),
    pytest.param({CORE: 121, MEMORY: 31}, None, (2, 600, 15, False), id="two-cards-rounded-down"),
    pytest.param({CORE: 165, MEMORY: 2}, None, (2, 820, 1, False), id="halves-off-the-step"),
    pytest.param({CORE: 200, MEMORY: 20}, None, (2, 1000, 10, False), id="two-full-computes"),
    pytest.param({MEMORY: 5}, "online", (1, 0, 5, False), id="online"),
    pytest.param({GREEDY: 30, MEMORY: 5}, "offline", (1, 0, 5, False), id="offline"),
    pytest.param(
        {GREEDY: 100, MEMORY: 5}, "offline", (1, 0, 5, False), id="offline-whole-compute"
    ),
    pytest.param({CORE: 30, MEMORY: 5}, "", (1, 300, 5, False), id="empty-class-is-ordinary"),
]


@pytest.mark.parametrize(("limits", "app_class", "expected"), KEPT)
def test_amounts(limits: Amounts, app_class: str | None, expected: tuple[object, ...]) -> None:
    """Cards, compute in thousandths and memory in GiB of each, and whether they are whole."""
    (group,) = read(container(limits), app_class=app_class).groups

    request = group.request
    found = (request.count, request.core_milli, request.memory_bytes / GIB, request.whole)
    assert found == expected
    assert request.memory_milli == (1000 if request.whole else 0)


BROKEN = [
    pytest.param({CORE: 3, MEMORY: 1}, None, f"{CORE}: 3 must be at least 5", id="rule-1-least"),
    pytest.param({CORE: 33, MEMORY: 1}, None, "multiple of 5 up to 100", id="rule-1-step"),
    pytest.param({CORE: "7.5", MEMORY: 1}, None, "whole number of percent", id="rule-1-part"),
    pytest.param({CORE: "1500m", MEMORY: 1}, None, "whole number of percent", id="rule-1-milli"),
    pytest.param({CORE: -5, MEMORY: 1}, None, "at least 5", id="rule-1-negative"),
    pytest.param({CORE: 0, MEMORY: 1}, None, "at least 5", id="rule-1-zero"),
    pytest.param({CORE: "10G"}, None, "whole number of percent", id="rule-1-huge"),
    pytest.param({CORE: 30, MEMORY: 0}, None, "whole number of GiB from 1", id="rule-2-least"),
    pytest.param({CORE: 30, MEMORY: "0.5"}, None, "whole number of GiB", id="rule-2-part"),
    pytest.param({CORE: 30, MEMORY: "1500m"}, None, "whole number of GiB", id="rule-2-milli"),
    pytest.param({CORE: 30, MEMORY: "16Gi"}, None, "without a size suffix", id="rule-2-bytes"),
    pytest.param({CORE: 30, MEMORY: -1}, None, "from 1", id="rule-2-negative"),
    pytest.param({CORE: 30}, None, f"needs {MEMORY} as well", id="rule-3-no-memory"),
    pytest.param({MEMORY: 5}, None, f"{CORE} is missing", id="rule-3-no-core"),
    pytest.param({CORE: 150}, None, "multiple of 100 for whole cards", id="rule-4"),
    pytest.param({CORE: 250, MEMORY: 30}, None, "at most 2", id="rule-10-three-cards"),
    pytest.param({CORE: 300, MEMORY: 30}, None, "at most 2", id="rule-10-three-full-computes"),
    pytest.param({CORE: 150, MEMORY: 1}, None, "less than 1 GiB for each", id="rule-10-memory"),
    pytest.param(
        {CORE: 30, MEMORY: 5}, "online", f"online pod asks {MEMORY}", id="rule-11-online"
    ),
    pytest.param({GREEDY: 5}, "online", f"online pod asks {MEMORY}", id="rule-11-online-greedy"),
    pytest.param({MEMORY: "0.5"}, "online", "whole number of GiB", id="rule-11-online-memory"),
    pytest.param({CORE: 30, MEMORY: 5}, "offline", "offline pod asks", id="rule-11-offline-core"),
    pytest.param({GREEDY: 30}, "offline", "offline pod asks", id="rule-11-offline-no-memory"),
    pytest.param({GREEDY: 101, MEMORY: 5}, "offline", "from 1 to 100", id="rule-11-greedy-most"),
    pytest.param({GREEDY: 0, MEMORY: 5}, "offline", "from 1 to 100", id="rule-11-greedy-least"),
    pytest.param({GREEDY: "1.5", MEMORY: 5}, "offline", "whole number", id="rule-11-greedy-part"),
    pytest.param({GREEDY: 30, MEMORY: 5}, None, "for offline pods only", id="rule-11-no-class"),
    pytest.param({CORE: 30, MEMORY: 5}, "batch", "'batch'", id="rule-11-unknown-class"),
]


@pytest.mark.parametrize(("limits", "app_class", "message"), BROKEN)
def test_a_broken_rule_is_told(limits: Amounts, app_class: str | None, message: str) -> None:
    """The message names the container or annotation, the value and the rule."""
    fault = read(container(limits, name="trainer"), app_class=app_class).fault

    assert fault is not None
    assert fault.code is ReasonCode.INVALID_REQUEST
    assert message in fault.message
    assert ("container trainer" in fault.message) is (app_class != "batch")


EQUAL = [
    pytest.param({CORE: 30, MEMORY: 5}, {CORE: 30, MEMORY: 5}, id="equal"),
    pytest.param({CORE: 30, MEMORY: 5}, {CORE: "3e1"}, id="equal-in-another-writing"),
    pytest.param({}, {CORE: 30, MEMORY: 5}, id="requests-alone"),
]


@pytest.mark.parametrize(("limits", "requests"), EQUAL)
def test_requests_equal_limits(limits: Amounts, requests: Amounts) -> None:
    """Rule 5: equal, or one of them left out."""
    reading = read(container(limits, requests))

    assert reading.fault is None
    assert reading.groups[0].request.core_milli == 300


@pytest.mark.parametrize(
    ("limits", "requests", "shown"),
    [
        pytest.param({CORE: 30, MEMORY: 5}, {CORE: 20, MEMORY: 5}, "which is 30", id="smaller"),
        pytest.param({CORE: 100}, {CORE: 100, MEMORY: 5}, "which is missing", id="no-limit"),
    ],
)
def test_requests_that_differ_are_refused(limits: Amounts, requests: Amounts, shown: str) -> None:
    """Rule 5, with both values."""
    fault = read(container(limits, requests)).fault

    assert fault is not None
    assert "must equal the limit" in fault.message
    assert shown in fault.message


def test_sixteen_sharers_and_nvidia_cards() -> None:
    """Rule 6: the limit is part of the request."""
    (group,) = read(container({CORE: 30, MEMORY: 5})).groups

    assert group.request.sharers == 16
    assert group.request.filter.vendors == ("nvidia",)
    assert not group.request.claims_core


def test_requests_are_by_container() -> None:
    """Rule 8: each container on its own, init containers last; nothing asked is no group."""
    reading = read(
        container({CORE: 100}, name="init", phase=Phase.INIT),
        container({CORE: 0, MEMORY: 0}, name="none"),
        container({CORE: 30, MEMORY: 5}, name="a"),
        container({CORE: 50, MEMORY: 9}, name="b"),
    )

    assert [g.containers[0].name for g in reading.groups] == ["a", "b", "init"]
    assert {g.protocol for g in reading.groups} == {"qgpu"}


def test_a_broken_container_does_not_hide_the_others() -> None:
    """The first broken rule is the fault."""
    reading = read(
        container({CORE: 1, MEMORY: 5}, name="a"),
        container({CORE: 2, MEMORY: 5}, name="b"),
        container({CORE: 30, MEMORY: 5}, name="c"),
    )

    assert reading.fault is not None
    assert "container a" in reading.fault.message
    assert len(reading.groups) == 1


def test_what_rounding_drops_is_noted() -> None:
    """A share of two cards says what each gets."""
    assert read(container({CORE: 121, MEMORY: 31})).notes == (
        "container main: 121 % and 31 GiB over 2 cards: 60 % and 15 GiB each",
    )


@pytest.mark.parametrize(
    ("app_class", "limits", "order"),
    [
        ("online", {MEMORY: 5}, CardOrder(Strategy.SPREAD)),
        ("offline", {GREEDY: 5, MEMORY: 5}, CardOrder(Strategy.BINPACK)),
        ("", {CORE: 5, MEMORY: 5}, CardOrder()),
    ],
)
def test_classes_order_cards(app_class: str, limits: Amounts, order: CardOrder) -> None:
    """Online pods spread, offline ones pack; the class is the group's dialect."""
    reading = read(container(limits), app_class=app_class)

    assert reading.card_order == order
    assert reading.groups[0].dialect == app_class


def test_nothing_asked_reads_as_nothing() -> None:
    """All amounts 0."""
    assert read(container({CORE: 0})) == Reading()


def test_the_three_names_are_owned() -> None:
    """They never change."""
    assert FAMILY.owned(Settings()) == {CORE, MEMORY, GREEDY}


QUANTITIES = st.one_of(
    st.integers(-(10**18), 10**18),
    st.sampled_from(["0", "5", "100", "160", "8Gi", "500m", "0.5", "1e3", "-0", "9E"]),
).map(Quantity.parse)
LISTS = st.dictionaries(st.sampled_from([CORE, MEMORY, GREEDY]), QUANTITIES)


@given(limits=LISTS, requests=LISTS, app_class=st.sampled_from(["", "online", "offline", "?"]))
def test_any_pod_is_read_or_refused(
    limits: dict[str, Quantity], requests: dict[str, Quantity], app_class: str
) -> None:
    """Nothing raises, and what is read is within bounds."""
    view = replace(container(), limits=limits, requests=requests)

    reading = read(view, app_class=app_class)

    for group in reading.groups:
        assert 0 <= group.request.core_milli <= 1000
        assert group.request.memory_bytes < 2**63
        assert group.request.whole or group.request.memory_bytes >= GIB


@given(core=st.integers(1, 20), memory=st.integers(1, 10**6))
def test_every_step_is_a_share(core: int, memory: int) -> None:
    """Any multiple of 5 up to 100 with any whole GiB is read as written."""
    (group,) = read(container({names.QGPU_CORE: core * 5, names.QGPU_MEMORY: memory})).groups

    assert (group.request.core_milli, group.request.memory_bytes) == (core * 50, memory * GIB)
