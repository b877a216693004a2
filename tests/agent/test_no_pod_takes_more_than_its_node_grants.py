"""What a pod asks beyond its node's policy is cut down to that, said and counted."""

from itertools import product
from pathlib import Path

import pytest
from msgspec import structs

from partage.agent.isolation.node_scan import Sight
from partage.agent.isolation.providers import HamiCore, Mps, OwnLibrary, Provider, Shares
from partage.agent.isolation.statements import survey
from partage.agent.journal import Entry, Journal
from partage.cli.agent import agent
from partage.cli.agent_options import isolation_of
from partage.model.allocation import Grant, GrantMode
from partage.model.device import DeviceType
from partage.model.request import Phase
from partage.vendors import names
from partage.vendors.wishes import Policy, Priority, Wishes, bounded

SHARE = Grant(
    container="main",
    phase=Phase.MAIN,
    protocol="hami",
    type=DeviceType.GPU,
    minor=0,
    uuid="GPU-0",
    core_milli=50,
    memory_bytes=2**30,
    mode=GrantMode.SHARE,
)
ORDER = [Policy.FIXED_SHARE, Policy.BURST_SHARE, Policy.BEST_EFFORT]
GREEDY = {names.COMPUTE_POLICY: "best-effort", names.QGPU_APP_CLASS: "online"}
VARIABLES = {"GPU_CORE_UTILIZATION_POLICY": "disable", "CUDA_TASK_PRIORITY": "0"}


def shares(
    annotations: dict[str, str] | None = None,
    known: dict[str, str] | None = None,
    policy: str = "fixed-share",
    *,
    online: bool = False,
) -> Shares:
    """A share of a card beside others."""
    return Shares("u", "main", annotations or {}, known or {}, {}, policy, (SHARE,), online)


@pytest.mark.parametrize(("asked", "most"), [*product(ORDER, ORDER)])
def test_the_less_of_both_is_given(asked: Policy, most: Policy) -> None:
    """A pod may ask for less than its node gives, never for more; what is cut is said."""
    found, said = bounded(Wishes(asked), most, may_be_online=False)

    assert found.policy is min(asked, most, key=ORDER.index)
    assert bool(said) is (ORDER.index(asked) > ORDER.index(most))
    assert bounded(Wishes(asked), None, may_be_online=False)[0].policy is asked


@pytest.mark.parametrize(
    "how", [{"annotations": GREEDY}, {"known": VARIABLES}], ids=["annotations", "variables"]
)
def test_no_two_words_take_the_whole_card(how: dict[str, dict[str, str]]) -> None:
    """Neither the node's label nor the agent's own policy is overruled."""
    for policy, agents in (("fixed-share", Policy.BEST_EFFORT), ("", Policy.FIXED_SHARE)):
        kept = OwnLibrary(agents, compute=True).keep(shares(policy=policy, **how))

        assert kept.quota is not None
        (card,) = kept.quota.cards
        assert (card.policy, card.priority) == (Policy.FIXED_SHARE, Priority.ORDINARY)
        assert card.core_milli == 50
        assert len(kept.cut) == 2


@pytest.mark.parametrize(
    "how", [{"annotations": GREEDY}, {"known": VARIABLES}], ids=["annotations", "variables"]
)
def test_other_providers_are_told_no_more(how: dict[str, dict[str, str]]) -> None:
    """HAMi's library does not find what the container's own variables say; MPS holds the threads."""
    kept = HamiCore().keep(shares(**how))
    assert kept.env["GPU_CORE_UTILIZATION_POLICY"] == "force"
    assert kept.env["CUDA_TASK_PRIORITY"] == "1"

    held = Mps().keep(shares(**how))
    assert held.env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] == "5"
    assert held.cut


@pytest.mark.parametrize(
    "provider", [OwnLibrary(compute=True), HamiCore(), Mps()], ids=lambda one: one.name
)
def test_who_may_is_cut_by_nothing(provider: Provider) -> None:
    """A namespace that the operator names, and a policy that the node has."""
    assert not provider.keep(shares(GREEDY, policy="best-effort", online=True)).cut
    assert not provider.keep(shares({names.COMPUTE_POLICY: "fs"}, policy="best-effort")).cut
    assert not provider.keep(shares({names.QGPU_APP_CLASS: "offline"})).cut
    assert not provider.keep(shares()).cut


def test_it_is_said_of_the_container(tmp_path: Path) -> None:
    """As long as the container lives, restarts of the agent included."""
    entry = Entry("c1", "u", "team/p", "main", "{}", "none", cut="online is not granted")
    Journal(tmp_path).give(entry)
    entries = Journal(tmp_path).entries
    (said,) = survey(entries, {}, Sight())
    (plain,) = survey({"c1": structs.replace(entry, cut="")}, {}, Sight())

    assert said.cut
    assert said.message.endswith("; online is not granted")
    assert not plain.cut


def test_the_operator_names_the_namespaces() -> None:
    """By an option that may be repeated; none by default."""
    for words, expected in (([], set()), (["--online", "a", "--online", "*"], {"a", "*"})):
        given = agent.make_context("agent", ["--node", "n", *words]).params
        assert isolation_of(given).online == expected
