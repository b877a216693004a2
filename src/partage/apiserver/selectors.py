"""Label and field selectors: parses text into predicates over objects."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from partage.apiserver import naming
from partage.apiserver.status import bad_request
from partage.model.selector import Operator, Requirement, Selector, integer

_TOKEN: Final = re.compile(
    r"\s*(?P<not>!)?\s*(?P<key>[^\s=!<>(),]+)\s*"
    r"(?:(?P<op>==|=|!=|<|>)\s*(?P<value>[^\s,()=!<>]*)"
    r"|(?P<set>in|notin)\s*\((?P<values>[^()]*)\))?\s*"
)
_LEXED: Final = re.compile(r"[=!<>]+|[(),]|[^\s=!<>(),]{1,64}")


@lru_cache(maxsize=512)
def parse_selector(text: str) -> Selector:
    """The selector in a query parameter, such as `app=web,tier notin (a,b)`. Raises `ApiError`: 400."""
    found: list[Requirement] = []
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None or (match.end() < len(text) and text[match.end()] != ","):
            rest = text[at if match is None else match.end() :].lstrip()
            odd = _LEXED.match(rest)
            expected = "!, identifier, or" if match is None else "',' or"
            raise bad_request(
                f"found '{odd[0] if odd else ''}', expected: {expected} 'end of string'"
            )
        found.append(_requirement(match))
        at = match.end() + 1
        if at == len(text):
            raise bad_request("unable to parse requirement: found '', expected: identifier")
    return Selector(tuple(found))


def _requirement(match: re.Match[str]) -> Requirement:
    key = match["key"]
    operator = match["op"] or match["set"] or ""
    if match["not"] and operator:
        raise bad_request(f"unable to parse requirement: found '{operator}', expected: ',' or end")
    for why in naming.qualified_name(key):
        raise bad_request(f'unable to parse requirement: <nil>: Invalid value: "{key}": {why}')
    if not operator:
        return Requirement(key, Operator.DOES_NOT_EXIST if match["not"] else Operator.EXISTS)
    if operator in ("<", ">"):
        if integer(match["value"]) is None:
            raise bad_request(
                "unable to parse requirement: values[0]: Invalid value: "
                f"\"{match['value']}\": for 'Gt', 'Lt' operators, the value must be an integer"
            )
        return Requirement(key, Operator.LT if operator == "<" else Operator.GT, (match["value"],))
    listed = match["values"].split(",") if match["set"] else (match["value"],)
    values = tuple(value.strip() for value in listed)
    for value in values:
        for why in naming.label_value(value):
            raise bad_request(
                f'unable to parse requirement: values[0][{key}]: Invalid value: "{value}": {why}'
            )
    return Requirement(
        key, Operator.NOT_IN if operator in ("!=", "notin") else Operator.IN, values
    )


def parse_labels(selector: Mapping[str, Any]) -> Selector:
    """A `LabelSelector` document (matchLabels and matchExpressions) as a predicate."""
    found = [
        Requirement(key, Operator.IN, (value,))
        for key, value in (selector.get("matchLabels") or {}).items()
    ]
    for one in selector.get("matchExpressions") or ():
        known = one.get("operator") in tuple(Operator)
        operator = Operator(one["operator"]) if known else Operator.IN
        found.append(
            Requirement(str(one.get("key", "")), operator, tuple(one.get("values") or ()))
        )
    return Selector(tuple(found))


def labels_text(labels: Any) -> str:
    """Labels as text, sorted: `app=web,tier=front`."""
    return (
        ",".join(f"{k}={labels[k]}" for k in sorted(labels)) if isinstance(labels, Mapping) else ""
    )


def selector_text(selector: Any) -> str:
    """A `LabelSelector` document as text, sorted by label: `app=web,tier in (a,b)`."""
    if not isinstance(selector, Mapping):
        return ""
    found = [(key, f"{key}={value}") for key, value in (selector.get("matchLabels") or {}).items()]
    for one in selector.get("matchExpressions") or ():
        key, values = str(one.get("key")), ",".join(sorted(one.get("values") or ()))
        known = {
            "In": f"{key} in ({values})",
            "NotIn": f"{key} notin ({values})",
            "Exists": key,
            "DoesNotExist": f"!{key}",
        }
        found.append((key, known.get(one.get("operator", ""), "")))
    return ",".join(text for _, text in sorted(found, key=lambda pair: pair[0]) if text)


@dataclass(frozen=True, slots=True)
class FieldSelector:
    """All of some conditions on fields: path, whether equal, value."""

    terms: tuple[tuple[str, bool, str], ...] = ()

    def matches(self, value: Mapping[str, Any]) -> bool:
        """Whether an object is selected."""
        return all((field_value(value, path) == want) is equal for path, equal, want in self.terms)

    def exact(self, path: str) -> str | None:
        """The value that a field must have, if there is one."""
        return next((want for at, equal, want in self.terms if equal and at == path), None)

    @staticmethod
    @lru_cache(maxsize=512)
    def parse(text: str, known: tuple[str, ...], refusal: str) -> "FieldSelector":
        """The selector in a query parameter, such as `spec.nodeName=n1`.

        `refusal`: message about an unknown field; `%s` stands for it. Raises `ApiError`: 400, no selector, or a field
        without a selector for this kind.
        """
        found: list[tuple[str, bool, str]] = []
        for part in re.split(r"(?<!\\),", text):
            if not part:
                continue
            match = re.match(r"([^=!]*)(==|!=|=)(.*)$", part, re.DOTALL)
            if match is None:
                raise bad_request(f"invalid selector: '{text}'; can't understand '{part}'")
            path = match[1]
            if path not in known:
                raise bad_request(refusal % path)
            want = re.sub(r"\\([\\,=])", r"\1", match[3])
            found.append((path, match[2] != "!=", want))
        return FieldSelector(tuple(found))


def field_value(value: Mapping[str, Any], path: str) -> str:
    """The text of a field for selectors; empty if absent."""
    at: Any = value
    for part in path.split("."):
        at = at.get(part) if isinstance(at, Mapping) else None
    if at is None:
        return "false" if path == "spec.unschedulable" else ""
    return str(at).lower() if isinstance(at, bool) else str(at)
