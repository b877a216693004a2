"""Disruption budgets as preemption needs them: the pods that each counts, and how many may go.

Source: Kubernetes API v1.36, policy/v1 PodDisruptionBudget. An empty selector counts every pod of
the namespace, an absent one counts none.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from partage.model.errors import InvalidValue
from partage.model.selector import Selector
from partage.wire import shapes
from partage.wire.constraints import selector_of

_MOST: Final = 256
"""Labels, expressions and values of a selector."""


@dataclass(frozen=True, slots=True)
class Budget:
    """A disruption budget.

    Attributes:
        key: `namespace/name`.
        selector: of its pods; None for none.
        allowed: how many more may go now.
        going: names of pods that it has let go already; kube-scheduler no longer counts them.
    """

    key: str
    namespace: str
    selector: Selector | None
    allowed: int = 0
    going: frozenset[str] = frozenset()

    def counts(self, namespace: str, name: str, labels: Mapping[str, str]) -> bool:
        """Whether the budget counts the pod, and has not let it go already."""
        return (
            self.selector is not None
            and namespace == self.namespace
            and name not in self.going
            and self.selector.matches(labels)
        )


def translate_budget(shape: shapes.DisruptionBudget) -> Budget:
    """The budget of a document.

    A budget that was not counted since its last change, or cannot be read, lets no pod go: its state is unknown.
    A budget with too many comparisons lets none go either: each possible victim is compared with it.
    """
    head = shape.metadata or shapes.DisruptionMetadata()
    namespace = head.namespace or "default"
    key = f"{namespace}/{head.name or ''}"
    status = shape.status or shapes.DisruptionStatus()
    going = frozenset(status.disrupted_pods or ())
    try:
        given = shape.spec.selector if shape.spec else None
        selector = None if given is None else selector_of(given)
        if selector and sum(1 + len(one.values) for one in selector.requirements) > _MOST:
            return Budget(key, namespace, Selector())
    except InvalidValue:
        return Budget(key, namespace, Selector())
    counted = (status.observed_generation or 0) >= (head.generation or 0)
    allowed = max(0, status.disruptions_allowed or 0) if counted else 0
    return Budget(key, namespace, selector, allowed, going)
