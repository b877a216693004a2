"""Label rules for nodes and devices: Kubernetes' selectors as values.

Empty selectors match everything; a term list is an OR of ANDs. Matching is pure and total: an operator that needs a
number never matches a label that is not a number.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

_MOST_TOLD: Final = 16
"""The most values that a sentence repeats."""
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,20}")


class Operator(StrEnum):
    """How a requirement compares a label with its values."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


@dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether `labels` meet the condition."""
        value = labels.get(self.key)
        match self.operator:
            case Operator.IN:
                return value is not None and value in self.values
            case Operator.NOT_IN:
                return value is None or value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.DOES_NOT_EXIST:
                return value is None
            case Operator.GT | Operator.LT:
                return self._compares(value)

    def __str__(self) -> str:
        """The text for people: `zone=a`, `zone in (a, b)`, `!zone`."""
        match self.operator:
            case Operator.IN if len(self.values) == 1:
                return f"{self.key}={self.values[0]}"
            case Operator.IN:
                return f"{self.key} in ({self._listed()})"
            case Operator.NOT_IN:
                return f"{self.key} not in ({self._listed()})"
            case Operator.EXISTS:
                return self.key
            case Operator.DOES_NOT_EXIST:
                return f"!{self.key}"
            case Operator.GT | Operator.LT:
                sign = ">" if self.operator is Operator.GT else "<"
                return f"{self.key} {sign} {self._listed()}"

    def _listed(self) -> str:
        told = ", ".join(self.values[:_MOST_TOLD])
        more = len(self.values) - _MOST_TOLD
        return f"{told} and {more} more" if more > 0 else told

    @property
    def bound(self) -> int | None:
        """The number with which `Gt` and `Lt` compare; None if there is none, so that nothing matches."""
        return integer(self.values[0]) if self.values else None

    def _compares(self, value: str | None) -> bool:
        have, bound = integer(value or ""), self.bound
        if have is None or bound is None:
            return False
        return have > bound if self.operator is Operator.GT else have < bound


def integer(text: str) -> int | None:
    """A label's value as a number; None if it is not a number of 64 bits."""
    if not _INTEGER.fullmatch(text):
        return None
    found = int(text)
    return found if abs(found) < 2**63 else None


@dataclass(frozen=True, slots=True)
class Selector:
    """All of these requirements."""

    requirements: tuple[Requirement, ...] = ()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether every requirement holds."""
        return all(requirement.matches(labels) for requirement in self.requirements)


@dataclass(frozen=True, slots=True)
class NodeTerm:
    """Requirements on a node's labels and on its fields (`metadata.name`)."""

    labels: tuple[Requirement, ...] = ()
    fields: tuple[Requirement, ...] = ()

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether the node meets the term; an empty term matches nothing, as in Kubernetes."""
        if not self.labels and not self.fields:
            return False
        identity = {"metadata.name": name}
        return all(r.matches(labels) for r in self.labels) and all(
            r.matches(identity) for r in self.fields
        )

    def __str__(self) -> str:
        """The text for people: `zone=a, disk`."""
        return ", ".join(str(r) for r in (*self.labels, *self.fields)) or "nothing"


@dataclass(frozen=True, slots=True)
class NodeConstraint:
    """The nodes that a pod may use by labels: nodeSelector and required node affinity together.

    Attributes:
        selector: from `nodeSelector`.
        terms: required node affinity, any of them; None if there is none.
        preferred: weight and term of preferred node affinity.
    """

    selector: Selector = Selector()
    terms: tuple[NodeTerm, ...] | None = None
    preferred: tuple[tuple[int, NodeTerm], ...] = ()

    def matches(self, name: str, labels: Mapping[str, str]) -> bool:
        """Whether the node is allowed."""
        return self.selector.matches(labels) and (
            self.terms is None or any(term.matches(name, labels) for term in self.terms)
        )


@dataclass(frozen=True, slots=True)
class Taint:
    """A node's taint."""

    key: str
    value: str
    effect: str

    @property
    def repels(self) -> bool:
        """Whether it keeps away pods that do not tolerate it (PreferNoSchedule only asks)."""
        return self.effect in ("NoSchedule", "NoExecute")

    def __str__(self) -> str:
        value = f"={self.value}" if self.value else ""
        return f"{self.key}{value}:{self.effect}"


@dataclass(frozen=True, slots=True)
class Toleration:
    """A pod's toleration; an empty key with `Exists` tolerates everything."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Whether this toleration covers the taint."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.operator == "Exists":
            return True
        equal = self.operator in ("", "Equal") and self.value == taint.value
        return equal and bool(self.key)
