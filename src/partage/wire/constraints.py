"""The nodes that labels and taints allow a pod: its selectors, affinity and tolerations as values.

Source: Kubernetes API v1.36, PodSpec.
"""

from collections.abc import Iterable, Sequence
from typing import Final

from partage.model.errors import InvalidValue
from partage.model.selector import (
    NodeConstraint,
    NodeTerm,
    Operator,
    Requirement,
    Selector,
    Taint,
    Toleration,
)
from partage.wire import shapes

_FIELDS: Final = ("metadata.name",)
_HEAVIEST: Final = 100


def constraint_of(spec: shapes.PodSpec) -> NodeConstraint:
    """The pod's `nodeSelector` and node affinity. Raises `InvalidValue`: an operator, field or weight is none."""
    selector = Selector(_equal(spec.node_selector))
    affinity = spec.affinity.node_affinity if spec.affinity else None
    if affinity is None:
        return NodeConstraint(selector)
    terms = affinity.required.terms or () if affinity.required else None
    return NodeConstraint(
        selector,
        None if terms is None else tuple(_term(term, "required") for term in terms),
        tuple(
            (_weight(preferred), _term(preferred.preference, "preferred"))
            for preferred in affinity.preferred or ()
            if preferred.preference
        ),
    )


def taints_of(given: Iterable[shapes.Taint] | None) -> tuple[Taint, ...]:
    """The taints of a node or a device."""
    return tuple(Taint(one.key or "", one.value or "", one.effect or "") for one in given or ())


def tolerations_of(spec: shapes.PodSpec) -> tuple[Toleration, ...]:
    """The taints that the pod accepts."""
    return tuple(
        Toleration(one.key or "", one.operator or "Equal", one.value or "", one.effect or "")
        for one in spec.tolerations or ()
    )


def selector_of(given: shapes.LabelSelector) -> Selector:
    """A label selector; an empty one matches everything. Raises `InvalidValue`: an operator is unknown."""
    expressions = _requirements(given.match_expressions, "label selector")
    return Selector(_equal(given.match_labels) + expressions)


def _equal(labels: shapes.Texts) -> tuple[Requirement, ...]:
    given = (labels or {}).items()
    return tuple(Requirement(key, Operator.IN, (value or "",)) for key, value in given)


def _weight(preferred: shapes.PreferredTerm) -> int:
    weight = preferred.weight or 0
    if not 1 <= weight <= _HEAVIEST:
        raise InvalidValue(f"preferred node affinity: weight {weight} is not in 1 to {_HEAVIEST}")
    return weight


def _term(term: shapes.SelectorTerm, where: str) -> NodeTerm:
    fields = _requirements(term.match_fields, where)
    for requirement in fields:
        if requirement.key not in _FIELDS:
            raise InvalidValue(
                f"{where} node affinity: field {requirement.key!r} is not one of {', '.join(_FIELDS)}"
            )
    return NodeTerm(_requirements(term.match_expressions, where), fields)


def _requirements(
    expressions: Sequence[shapes.Expression] | None, where: str
) -> tuple[Requirement, ...]:
    for one in expressions or ():
        if one.operator not in tuple(Operator):
            raise InvalidValue(
                f"{where} node affinity: operator {one.operator!r} of key {one.key!r}"
                f" is not one of {', '.join(Operator)}"
            )
    return tuple(
        Requirement(one.key or "", Operator(one.operator or ""), tuple(one.values or ()))
        for one in expressions or ()
    )
