"""The rules for names, label keys and values, and annotations, with their genuine messages."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from partage.apiserver.problems import Problems

LARGEST_ANNOTATIONS: Final = 256 * 1024
"""Most bytes of all annotation keys and values of an object together."""

_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = rf"{_LABEL}(\.{_LABEL})*"
_QUALIFIED: Final = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]"
_SERVICE: Final = "[a-z]([-a-z0-9]*[a-z0-9])?"
_is_label = re.compile(_LABEL).fullmatch
_is_subdomain = re.compile(_SUBDOMAIN).fullmatch
_is_qualified = re.compile(_QUALIFIED).fullmatch
_is_service_word = re.compile("[-a-z0-9]+").fullmatch
_is_service = re.compile(_SERVICE).fullmatch
_is_value = re.compile(f"({_QUALIFIED})?").fullmatch
_SUBDOMAIN_TEXT: Final = (
    "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used "
    f"for validation is '{_SUBDOMAIN}')"
)
_LABEL_TEXT: Final = (
    "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and "
    "must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex "
    f"used for validation is '{_LABEL}')"
)
_SERVICE_TEXT: Final = (
    "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an "
    "alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or "
    f"'abc-123', regex used for validation is '{_SERVICE}')"
)
_QUALIFIED_TEXT: Final = (
    "must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an "
    "alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for "
    f"validation is '{_QUALIFIED}')"
)
_VALUE_TEXT: Final = (
    "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or "
    "'.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or "
    "'my_value',  or '12345', regex used for validation is "
    "'(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')"
)


_Fits = Callable[[str], object]


def _judged(name: str, limit: int, fits: _Fits, rule: str, unit: str = "characters") -> list[str]:
    """Problems of a text with a greatest length and a form."""
    found = [f"must be no more than {limit} {unit}"] if len(name) > limit else []
    return found if fits(name) else [*found, rule]


def subdomain(name: str) -> list[str]:
    """Problems of a DNS-1123 subdomain, the form of most objects' names."""
    return _judged(name, 253, _is_subdomain, _SUBDOMAIN_TEXT)


def domain_label(name: str) -> list[str]:
    """Problems of a DNS-1123 label, the form of names of namespaces and containers."""
    rule = "must not contain dots" if _is_subdomain(name) else _LABEL_TEXT
    return _judged(name, 63, _is_label, rule)


def service_name(name: str) -> list[str]:
    """Problems of a DNS-1035 label, the form of names of services."""
    return _judged(name, 63, _is_service, _SERVICE_TEXT)


def path_segment(name: str) -> list[str]:
    """Problems of a name that only has to fit into a URL, such as a role's."""
    if name in (".", ".."):
        return [f"may not be '{name}'"]
    return [f"may not contain '{sign}'" for sign in "/%" if sign in name]


def qualified_name(key: str) -> list[str]:
    """Problems of a label key, annotation key or resource name."""
    prefix, slash, name = key.rpartition("/")
    if "/" in prefix:
        why = f"a qualified name {_QUALIFIED_TEXT} with an optional DNS subdomain prefix and '/'"
        return [f"{why} (e.g. 'example.com/MyName')"]
    found: list[str] = []
    if slash and not prefix:
        found.append("prefix part must be non-empty")
    elif slash:
        found.extend(f"prefix part {text}" for text in subdomain(prefix))
    if not name:
        found.append("name part must be non-empty")
    return [
        *found,
        *(f"name part {why}" for why in _judged(name, 63, _is_qualified, _QUALIFIED_TEXT)),
    ]


def domain_prefixed(key: str) -> list[str]:
    """Problems of a name that must have a domain, such as a finalizer's."""
    if "/" not in key and key not in ("foregroundDeletion", "orphan", "kubernetes"):
        return ["name is neither a standard finalizer name nor is it fully qualified"]
    return qualified_name(key)


def port_name(name: str) -> list[str]:
    """Problems of the name of a container's port."""
    rule = "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"
    found = _judged(name, 15, _is_service_word, rule)
    if not any("a" <= sign <= "z" for sign in name):
        found.append("must contain at least one letter (a-z)")
    if "--" in name:
        found.append("must not contain consecutive hyphens")
    if name.startswith("-") or name.endswith("-"):
        found.append("must not begin or end with a hyphen")
    return found


def label_value(value: str) -> list[str]:
    """Problems of a label's value."""
    return _judged(value, 63, _is_value, _VALUE_TEXT, "bytes")


def check_labels(labels: Mapping[str, Any] | None, field: str, problems: Problems) -> None:
    """Reports malformed keys and values of labels (or of a selector's matchLabels)."""
    for key, value in (labels or {}).items():
        for why in qualified_name(key):
            problems.invalid(field, key, why.replace("a qualified name", "a valid label key"))
        for why in label_value(value):
            problems.invalid(field, value, why)


def check_annotations(given: Mapping[str, str] | None, field: str, problems: Problems) -> None:
    """Reports malformed annotation keys and annotations that are too large together."""
    annotations, size = given or {}, 0
    for key, value in annotations.items():
        size += len(key) + len(value)
        for why in qualified_name(key.lower()):
            problems.invalid(field, key, why)
    if size > LARGEST_ANNOTATIONS or (
        size * 4 > LARGEST_ANNOTATIONS
        and sum(len(k.encode()) + len(v.encode()) for k, v in annotations.items())
        > LARGEST_ANNOTATIONS
    ):
        problems.too_long(field, LARGEST_ANNOTATIONS)
