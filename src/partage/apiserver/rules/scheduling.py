"""Rules of the parts of a pod and a node that decide about its place: affinity, tolerations, taints."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from partage.apiserver import naming
from partage.apiserver.problems import Problems

EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_NODE: Final = ("DoesNotExist", "Exists", "Gt", "In", "Lt", "NotIn")
_WITHOUT_VALUES: Final = ("DoesNotExist", "Exists")


def check_toleration(one: Mapping[str, Any], field: str, problems: Problems) -> None:
    """Reports fields of a toleration that do not go together."""
    key, operator = one.get("key", ""), one.get("operator", "")
    for why in naming.qualified_name(key) if key else ():
        problems.invalid(f"{field}.key", key, why)
    if not key and operator != "Exists":
        problems.invalid(
            f"{field}.operator",
            operator,
            'operator must be Exists when `key` is empty, which means "match all values and all '
            'keys"',
        )
    if operator == "Exists" and one.get("value"):
        problems.invalid(
            f"{field}.operator", one["value"], "value must be empty when `operator` is 'Exists'"
        )
    if "tolerationSeconds" in one and one.get("effect") != "NoExecute":
        problems.invalid(
            f"{field}.effect",
            one.get("effect", ""),
            "effect must be 'NoExecute' when `tolerationSeconds` is set",
        )


def check_gates(gates: Any, field: str, problems: Problems) -> None:
    """Reports malformed and repeated scheduling gates."""
    seen: set[str] = set()
    for index, gate in enumerate(gates or ()):
        where, name = f"{field}[{index}]", gate.get("name", "")
        for why in naming.qualified_name(name):
            problems.invalid(where, name, why)
        problems.once(where, name, seen)


def check_spread(constraints: Any, field: str, problems: Problems) -> None:
    """Reports constraints of a pod's spreading that an earlier one repeats."""
    seen: set[str] = set()
    for index, one in enumerate(constraints or ()):
        pair = f"{{{one.get('topologyKey', '')}, {one.get('whenUnsatisfiable', '')}}}"
        problems.once(f"{field}[{index}].{{topologyKey, whenUnsatisfiable}}", pair, seen)


def check_topology(key: Any, field: str, problems: Problems) -> None:
    """Reports a term of affinity between pods without a label of nodes."""
    if not key:
        problems.required(field, "can not be empty")
    for why in naming.qualified_name(key or ""):
        problems.invalid(field, key or "", why)


def check_expression(one: Mapping[str, Any], field: str, problems: Problems) -> None:
    """Reports an operator of a node's selector that is none, or has the wrong number of values."""
    operator, values = one.get("operator", ""), one.get("values") or ()
    if operator not in _NODE:
        problems.invalid(f"{field}.operator", operator, "not a valid selector operator")
    elif operator in _WITHOUT_VALUES and values:
        problems.forbidden(
            f"{field}.values", "may not be specified when `operator` is 'Exists' or 'DoesNotExist'"
        )
    elif operator in ("In", "NotIn") and not values:
        problems.required(
            f"{field}.values", "must be specified when `operator` is 'In' or 'NotIn'"
        )
    elif operator in ("Gt", "Lt") and len(values) != 1:
        problems.required(
            f"{field}.values",
            "must be specified single value when `operator` is 'Lt' or 'Gt'",
        )


def check_taints(taints: Sequence[Any], field: str, problems: Problems) -> None:
    """Reports problems of a node's taints."""
    seen: set[tuple[str, str]] = set()
    for index, taint in enumerate(taints):
        where = f"{field}[{index}]"
        key, effect = taint.get("key", ""), taint.get("effect", "")
        for why in naming.qualified_name(key):
            problems.invalid(f"{where}.key", key, why)
        for why in naming.label_value(taint.get("value", "")):
            problems.invalid(f"{where}.value", taint.get("value", ""), why)
        if effect not in EFFECTS:
            problems.unsupported(f"{where}.effect", effect, EFFECTS)
        if (key, effect) in seen:
            problems.duplicate(where, {"key": key, "effect": effect})
        seen.add((key, effect))
