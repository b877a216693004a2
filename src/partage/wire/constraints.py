"""The nodes that labels and taints allow a pod: its selectors, affinity and tolerations as values.

Source: Kubernetes API v1.36, PodSpec.
"""

from collections.abc import Sequence
from typing import Final

from partage.model.errors import InvalidValue
from partage.model.selector import (
    NodeConstraint,
    NodeTerm,
    Operator,
    Requirement,
    Selector,
    Toleration,
)
from partage.wire import shapes

_FIELDS: Final = ("metadata.name",)
_HEAVIEST: Final = 100


def constraint_of(spec: shapes.PodSpec) -> NodeConstraint:
    """The pod's `nodeSelector` and node affinity. Raises `InvalidValue`: an operator, field or weight is none."""
    selector = Selector(
        tuple(
            Requirement(key, Operator.IN, (value or "",))
            for key, value in (spec.node_selector or {}).items()
        )
    )
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


def tolerations_of(spec: shapes.PodSpec) -> tuple[Toleration, ...]:
    """The taints that the pod accepts."""
    return tuple(
        Toleration(
            key=toleration.key or "",
            operator=toleration.operator or "Equal",
            value=toleration.value or "",
            effect=toleration.effect or "",
        )
        for toleration in spec.tolerations or ()
    )


def selector_of(given: shapes.LabelSelector) -> Selector:
    """A label selector; an empty one matches everything. Raises `InvalidValue`: an operator is unknown."""
    labels = (given.match_labels or {}).items()
    equal = tuple(Requirement(key, Operator.IN, (value or "",)) for key, value in labels)
    return Selector(equal + _requirements(given.match_expressions, "label selector"))


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
    return tuple(_requirement(expression, where) for expression in expressions or ())


def _requirement(expression: shapes.Expression, where: str) -> Requirement:
    try:
        operator = Operator(expression.operator or "")
    except ValueError:
        raise InvalidValue(
            f"{where} node affinity: operator {expression.operator!r} of key {expression.key!r}"
            f" is not one of {', '.join(Operator)}"
        ) from None
    return Requirement(expression.key or "", operator, tuple(expression.values or ()))
