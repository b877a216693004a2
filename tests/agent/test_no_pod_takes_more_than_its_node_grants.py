"""What a pod asks beyond its node's policy is cut down to that, said and counted."""

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from msgspec import structs

from fakes.builders import card, make_node
from partage.agent.container_edits import HostFacts, Instance, gifts
from partage.agent.isolation.node_scan import Sight
from partage.agent.isolation.providers import HamiCore, Mps, OwnLibrary, Provider, Shares
from partage.agent.isolation.statements import survey
from partage.agent.journal import Entry, Journal
from partage.cli.agent import agent
from partage.cli.agent_options import isolation_of
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import DeviceType
from partage.model.permit import Permit
from partage.model.request import Phase, PodRequest
from partage.vendors import names
from partage.vendors.base import PlacedPod, PodView
from partage.vendors.settings import Settings
from partage.vendors.wishes import POLICIES, Policy, Priority, Wishes, bounded
from partage.wire import permit

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
    """A pod may ask for less than its node gives, never for more; the agent reports what it cuts."""
    found, said = bounded(Wishes(asked), most, may_be_online=False)

    assert found.policy is min(asked, most, key=ORDER.index)
    assert bool(said) is (ORDER.index(asked) > ORDER.index(most))
    assert bounded(Wishes(asked), None, may_be_online=False)[0].policy is asked


@pytest.mark.parametrize(
    "how", [{"annotations": GREEDY}, {"known": VARIABLES}], ids=["annotations", "variables"]
)
def test_no_two_words_take_the_whole_card(how: dict[str, dict[str, str]]) -> None:
    """The node's label and the agent's own policy both stay in force."""
    for policy, agents in (("fixed-share", Policy.BEST_EFFORT), ("", Policy.FIXED_SHARE)):
        kept = OwnLibrary(agents, compute=True).keep(shares(policy=policy, **how))

        assert kept.quota is not None
        (card,) = kept.quota
        assert (card.policy, card.priority) == (Policy.FIXED_SHARE, Priority.ORDINARY)
        assert card.core_milli == 50
        assert len(kept.cut) == 2


@pytest.mark.parametrize(
    "how", [{"annotations": GREEDY}, {"known": VARIABLES}], ids=["annotations", "variables"]
)
def test_other_providers_are_told_no_more(how: dict[str, dict[str, str]]) -> None:
    """HAMi's library does not find what the container's own variables say; MPS limits the threads."""
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


@pytest.mark.parametrize(
    "provider", [OwnLibrary(compute=True), HamiCore(), Mps()], ids=lambda one: one.name
)
def test_a_permit_goes_before_the_nodes_own_word(provider: Provider) -> None:
    """Both ways: it lets pods of a namespace be online that the node does not name, and holds those that it names."""
    asked = {names.QGPU_APP_CLASS: "online"}
    given = replace(shares(asked), permit=Permit("shop", online=True))
    assert not provider.keep(given).cut

    for denied in (Permit("shop", why="3 of 3 are online"), Permit(why="no rule")):
        kept = provider.keep(replace(shares(asked, online=True), permit=denied))
        assert kept.cut == (denied.why,)
        assert kept.env.get("CUDA_TASK_PRIORITY") != "0"
        if kept.quota is not None:
            assert kept.quota[0].priority is Priority.ORDINARY


def test_a_wish_that_the_scheduler_could_not_see_is_cut_and_says_how_to_ask() -> None:
    """A variable of the pod, or an annotation that came after the Binding."""
    for how in ({"known": VARIABLES}, {"annotations": GREEDY}):
        kept = OwnLibrary(compute=True).keep(replace(shares(**how), permit=Permit("shop")))  # type: ignore[arg-type]
        assert kept.quota is not None
        assert kept.quota[0].priority is Priority.ORDINARY
        assert any("the scheduler saw no wish" in one for one in kept.cut)


@pytest.mark.parametrize("node", ["", "best-effort", "burst-share", "fixed-share"])
@pytest.mark.parametrize("rule", ["", "fixed-share", "burst-share", "best-effort"])
@pytest.mark.parametrize("asked", ["", "fixed-share", "burst-share", "best-effort"])
def test_a_rules_policy_bounds_what_is_asked_and_what_is_not(
    asked: str, rule: str, node: str
) -> None:
    """The least of wish, rule and node; a pod that asks for nothing gets no more than the rule either."""
    annotations = {names.COMPUTE_POLICY: asked} if asked else {}
    given = replace(shares(annotations, policy=node), permit=Permit("shop", policy=rule))
    kept = OwnLibrary(Policy.BURST_SHARE, compute=True).keep(given)

    assert kept.quota is not None
    words = [POLICIES[one] for one in (asked, rule, node or "burst-share") if one]
    assert kept.quota[0].policy is min(words, key=ORDER.index)
    assert bool(kept.cut) is (bool(asked) and kept.quota[0].policy != asked)


def test_a_container_is_given_by_the_permit_of_its_pod() -> None:
    """The permit stands beside the record; one of another pod gives nothing, and without one the node decides."""
    good = permit.encode(Permit("shop", online=True), "uid")
    for text, named, online in (
        (good, False, True),
        (permit.encode(Permit("shop", online=True), "another"), True, False),
        ("nonsense", True, False),
        (None, True, True),
        (None, False, False),
    ):
        annotations = {names.QGPU_APP_CLASS: "online"}
        if text is not None:
            annotations[names.PERMIT] = text
        node = make_node("n1", [card(0, uuid=SHARE.uuid)])
        view = PodView("team", "p", "uid", "n1", annotations=annotations)
        placed = PlacedPod(
            view, PodRequest(), Allocation("uid", "team", "p", "n1", (SHARE,)), node, 0
        )
        host = HostFacts(
            instance=lambda *_: Instance(),
            provider=OwnLibrary(compute=True),
            online=frozenset({"team"} if named else ()),
        )
        quota = gifts(placed, Settings(), (), host)["main"].quota
        assert quota is not None
        assert (quota[0].priority is Priority.ONLINE) is online


def test_it_is_said_of_the_container(tmp_path: Path) -> None:
    """It is said for as long as the container lives, restarts of the agent included."""
    entry = Entry("c1", "u", "team/p", "main", "{}", "none", cut="online is not granted")
    Journal(tmp_path).give(entry)
    entries = Journal(tmp_path).entries
    (said,) = survey(entries, {}, Sight())
    (plain,) = survey({"c1": structs.replace(entry, cut="")}, {}, Sight())

    assert said.cut
    assert said.message.endswith("; online is not granted")
    assert not plain.cut


def test_the_operator_names_the_namespaces() -> None:
    """The option may be repeated; it is empty by default."""
    for words, expected in (([], set()), (["--online", "a", "--online", "*"], {"a", "*"})):
        given = agent.make_context("agent", ["--node", "n", *words]).params
        assert isolation_of(given).online == expected
