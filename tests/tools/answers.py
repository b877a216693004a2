"""What tests ask of the product beyond what it needs itself."""

from importlib.util import find_spec
from typing import Final

from partage.inventory.plane import Bools
from partage.model.pod import Pod
from partage.scheduler.engine import Engine

SOLVER_THERE: Final = find_spec("highspy") is not None
"""Whether prices can be learnt here."""


def feasible(engine: Engine, pod: Pod, among: Bools | None = None) -> dict[str, int]:
    """Every node (`among` these by index) that can host the pod now, in the explicit order, with its score."""
    found, scores = engine.candidates(pod, among)
    told = sorted(
        zip(found.tolist(), scores.tolist(), strict=True), key=lambda one: engine.rank_at(one[0])
    )
    return {engine.ledger.node_at(index).name: score for index, score in told}
