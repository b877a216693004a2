"""`isolation-require` of `partage-config`: a node whose provider does not hold what a pod needs refuses it, and says so."""

from typing import Any

import pytest
from manifests import card, cluster, config_map, container, device, documents, node, pod

from partage.model.errors import InvalidDocument
from partage.model.reason import ReasonCode
from partage.sim.offline import schedule
from partage.vendors import names
from partage.wire.config import translate_config

HALF = {
    "koordinator.sh/gpu.shared": "1",
    "koordinator.sh/gpu-core": "50",
    "koordinator.sh/gpu-memory": "4Gi",
}
WHOLE = {"koordinator.sh/gpu": "100"}
MAKER = {names.GPU_VENDOR: "nvidia"}
MEMORY = {names.ISOLATION_MEMORY: "true", names.ISOLATION_COMPUTE: "false"}
BOTH = {names.ISOLATION_MEMORY: "true", names.ISOLATION_COMPUTE: "true"}
NEITHER = {names.ISOLATION_MEMORY: "false", names.ISOLATION_COMPUTE: "false"}


def _refused(require: str, labels: dict[str, str], limits: Any, policy: str = "") -> str:
    """Why the pod waits; empty where it got a place."""
    meta = {"annotations": {names.COMPUTE_POLICY: policy}} if policy else {}
    found = schedule(
        cluster(
            config_map("partage-config", isolation_require=require),
            node("n1", labels=labels),
            device("n1", card(0), meta={"labels": MAKER}),
            pod("web", container(limits=limits), meta=meta),
        )
    )
    (outcome,) = found.pods
    if outcome.refusal is None:
        return ""
    assert outcome.refusal.code is ReasonCode.ISOLATION_PROVIDER
    return str(outcome.refusal)


@pytest.mark.parametrize(
    ("require", "labels", "policy", "needed"),
    [
        ("none", {}, "fixed-share", ""),
        ("memory", MEMORY, "fixed-share", ""),
        ("memory", NEITHER, "", names.ISOLATION_MEMORY),
        ("memory", {}, "", names.ISOLATION_MEMORY),
        ("compute", MEMORY, "fixed-share", names.ISOLATION_COMPUTE),
        ("compute", MEMORY, "burst-share", names.ISOLATION_COMPUTE),
        ("compute", MEMORY, "best-effort", ""),
        ("compute", MEMORY, "", ""),
        ("compute", BOTH, "fixed-share", ""),
        ("compute", NEITHER, "best-effort", names.ISOLATION_MEMORY),
    ],
)
def test_a_share_waits_for_a_node_that_holds_what_it_needs(
    require: str, labels: dict[str, str], policy: str, needed: str
) -> None:
    """Memory for every share, compute for those that chose a quota; the reason names the label."""
    said = _refused(require, {**MAKER, **labels}, HALF, policy)

    assert bool(said) is bool(needed)
    assert needed in said


def test_whole_cards_go_anywhere() -> None:
    """No provider has to hold them."""
    assert _refused("compute", {**MAKER, **NEITHER}, WHOLE) == ""


def test_another_word_is_an_error() -> None:
    """It names the words that there are."""
    with pytest.raises(InvalidDocument, match="'gpu' is not one of none, memory, compute"):
        translate_config(documents(config_map("partage-config", isolation_require="gpu")))


SMALL = {"koordinator.sh/gpu-core": "1", "koordinator.sh/gpu-memory": "64Mi"}
TURNS = {**MAKER, **BOTH, names.ISOLATION_PROVIDER: "partage"}


def _codes(labels: dict[str, str], *shared_by: int) -> list[ReasonCode | None]:
    """Why each pod waits; None where it got a place. Each has as many containers as named, each with a small share."""
    found = schedule(
        cluster(
            node("n1", labels=labels),
            device("n1", card(0), meta={"labels": MAKER}),
            *(
                pod(f"p{i:03}", *(container(f"c{c}", limits=SMALL) for c in range(containers)))
                for i, containers in enumerate(shared_by)
            ),
        )
    )
    return [one.refusal.code if one.refusal else None for one in found.pods]


def test_as_many_take_turns_as_there_are_seats() -> None:
    """The 64th would be placed on a card where the library has no seat for it; elsewhere a card takes 100."""
    assert _codes(TURNS, *[1] * 64) == [*[None] * 63, ReasonCode.INSUFFICIENT_SLOTS]
    assert _codes({**TURNS, names.ISOLATION_COMPUTE: "false"}, *[1] * 64) == [None] * 64
    assert _codes({**TURNS, names.ISOLATION_PROVIDER: "vendor"}, *[1] * 64) == [None] * 64


def test_each_container_of_a_pod_takes_a_seat() -> None:
    """Koordinator's request is the pod's, but each of its containers takes turns for itself."""
    full = ReasonCode.INSUFFICIENT_SLOTS
    assert _codes(TURNS, *[3] * 20, 4, 3, 1) == [*[None] * 20, full, None, full]
    assert _codes(MAKER, *[3] * 22) == [None] * 22
