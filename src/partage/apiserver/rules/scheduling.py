"""Validation of a pod's scheduling fields: selectors, affinity, tolerations, gates."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from partage.apiserver import naming
from partage.apiserver.problems import Problems

_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_TOLERATION: Final = ("Equal", "Exists")
_NODE: Final = ("DoesNotExist", "Exists", "Gt", "In", "Lt", "NotIn")
_WITHOUT_VALUES: Final = ("DoesNotExist", "Exists")


def check_placement(spec: Mapping[str, Any], field: str, problems: Problems) -> None:
    """Reports problems of a pod's scheduling fields."""
    naming.check_labels(spec.get("nodeSelector") or {}, f"{field}.nodeSelector", problems)
    for index, one in enumerate(spec.get("tolerations") or ()):
        _check_toleration(one, f"{field}.tolerations[{index}]", problems)
    _check_gates(spec, field, problems)
    _check_spread(spec.get("topologySpreadConstraints") or (), field, problems)
    for kind in ("podAffinity", "podAntiAffinity"):
        _check_neighbours(
            (spec.get("affinity") or {}).get(kind) or {}, f"{field}.affinity.{kind}", problems
        )
    affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    where = f"{field}.affinity.nodeAffinity"
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required is not None:
        inner = f"{where}.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms"
        if not required.get("nodeSelectorTerms"):
            problems.required(inner, "must have at least one node selector term")
        for index, term in enumerate(required.get("nodeSelectorTerms") or ()):
            _check_term(term, f"{inner}[{index}]", problems)
    soft = affinity.get("preferredDuringSchedulingIgnoredDuringExecution") or ()
    for index, one in enumerate(soft):
        inner = f"{where}.preferredDuringSchedulingIgnoredDuringExecution[{index}]"
        if not 1 <= one.get("weight", 0) <= 100:
            problems.invalid(f"{inner}.weight", one.get("weight", 0), "must be in the range 1-100")
        _check_term(one.get("preference") or {}, f"{inner}.preference", problems)


def _check_toleration(one: Mapping[str, Any], field: str, problems: Problems) -> None:
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
    if operator and operator not in _TOLERATION:
        problems.unsupported(f"{field}.operator", operator, _TOLERATION)
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


def _check_gates(spec: Mapping[str, Any], field: str, problems: Problems) -> None:
    names: set[str] = set()
    for index, gate in enumerate(spec.get("schedulingGates") or ()):
        where = f"{field}.schedulingGates[{index}]"
        name = gate.get("name", "")
        for why in naming.qualified_name(name):
            problems.invalid(where, name, why)
        if name in names:
            problems.duplicate(where, name)
        names.add(name)
    if names and spec.get("nodeName"):
        problems.forbidden(
            f"{field}.nodeName", "cannot be set until all schedulingGates have been cleared"
        )


def _check_spread(constraints: Sequence[Any], field: str, problems: Problems) -> None:
    seen: set[tuple[str, str]] = set()
    for index, one in enumerate(constraints):
        where = f"{field}.topologySpreadConstraints[{index}]"
        if one.get("maxSkew", 0) <= 0:
            problems.invalid(
                f"{where}.maxSkew", one.get("maxSkew", 0), "must be greater than zero"
            )
        if not one.get("topologyKey"):
            problems.required(f"{where}.topologyKey", "can not be empty")
        pair = (one.get("topologyKey", ""), one.get("whenUnsatisfiable", ""))
        if pair in seen:
            problems.duplicate(
                f"{where}.{{topologyKey, whenUnsatisfiable}}", f"{{{pair[0]}, {pair[1]}}}"
            )
        seen.add(pair)


def _check_neighbours(affinity: Mapping[str, Any], field: str, problems: Problems) -> None:
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    for index, term in enumerate(affinity.get(required) or ()):
        _check_topology(term, f"{field}.{required}[{index}]", problems)
    for index, one in enumerate(affinity.get(preferred) or ()):
        where = f"{field}.{preferred}[{index}]"
        if not 1 <= one.get("weight", 0) <= 100:
            problems.invalid(f"{where}.weight", one.get("weight", 0), "must be in the range 1-100")
        _check_topology(one.get("podAffinityTerm") or {}, f"{where}.podAffinityTerm", problems)


def _check_topology(term: Mapping[str, Any], field: str, problems: Problems) -> None:
    key = term.get("topologyKey", "")
    if not key:
        problems.required(f"{field}.topologyKey", "can not be empty")
    for why in naming.qualified_name(key):
        problems.invalid(f"{field}.topologyKey", key, why)


def _check_term(term: Mapping[str, Any], field: str, problems: Problems) -> None:
    for group in ("matchExpressions", "matchFields"):
        for index, one in enumerate(term.get(group) or ()):
            _check_expression(one, f"{field}.{group}[{index}]", problems)


def _check_expression(one: Mapping[str, Any], field: str, problems: Problems) -> None:
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
        if effect not in _EFFECTS:
            problems.unsupported(f"{where}.effect", effect, _EFFECTS)
        if (key, effect) in seen:
            problems.duplicate(where, {"key": key, "effect": effect})
        seen.add((key, effect))
