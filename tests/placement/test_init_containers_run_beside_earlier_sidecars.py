"""An init container shares its cards with the sidecars before it, not with those after it."""

from fakes.builders import card, make_node, share
from partage.inventory.ledger import Ledger
from partage.model.allocation import Grant, charges_of
from partage.model.device import DeviceType
from partage.model.policy import Strategy
from partage.model.reason import NodeReason
from partage.model.request import ContainerAsk, Phase, PodRequest, RequestGroup
from partage.placement.pod import place

INIT, SIDECAR, MAIN = Phase.INIT, Phase.SIDECAR, Phase.MAIN


def _placed(*containers: tuple[str, Phase, int]) -> tuple[Grant, ...] | NodeReason:
    """One group a container on one card, in the pod's order; amounts in percent of compute."""
    groups = [
        RequestGroup(
            "hami",
            share(core, core / 10),
            (ContainerAsk(name, phase, position=i),),
            INIT if phase is INIT else phase,
        )
        for i, (name, phase, core) in enumerate(containers)
    ]
    groups.sort(key=lambda group: group.phase is INIT)
    ledger = Ledger()
    ledger.upsert_node(make_node(devices=[card(0)]))
    cards = {DeviceType.GPU: ledger.cards(DeviceType.GPU, 0)}
    return place(ledger.node_at(0), cards, PodRequest(tuple(groups)), Strategy.BINPACK)


def test_a_sidecar_after_a_large_init_container_does_not_count_beside_it() -> None:
    """max(90, 30 + 50) = 90: the pod fits on one card."""
    grants = _placed(("i", INIT, 90), ("s", SIDECAR, 30), ("m", MAIN, 50))

    assert isinstance(grants, tuple)
    assert [grant.container for grant in grants] == ["i", "s", "m"]
    assert [charge.core_milli for charge in charges_of(grants)] == [900]


def test_a_sidecar_before_an_init_container_counts_beside_it() -> None:
    """30 + 90 is more than a card."""
    assert isinstance(_placed(("s", SIDECAR, 30), ("i", INIT, 90)), NodeReason)

    grants = _placed(("s", SIDECAR, 30), ("i", INIT, 70), ("m", MAIN, 20))

    assert isinstance(grants, tuple)
    assert [charge.core_milli for charge in charges_of(grants)] == [1000]
