"""ResourceClaims, their templates and DeviceClasses: what is filled in and refused.

Source: Kubernetes v1.36.4, `pkg/apis/resource` (defaults, validation).
"""

from collections.abc import Iterator, Mapping
from typing import Any

from partage.apiserver import naming
from partage.apiserver.problems import Problems


def fill_claim(value: dict[str, Any]) -> None:
    """Fills in a ResourceClaim, in place."""
    _fill(value.setdefault("spec", {}))


def fill_template(value: dict[str, Any]) -> None:
    """Fills in a ResourceClaimTemplate, in place."""
    _fill(value.setdefault("spec", {}).setdefault("spec", {}))


def check_claim(value: Mapping[str, Any], problems: Problems) -> None:
    """Reports what is wrong with a ResourceClaim."""
    _check(value.get("spec") or {}, "spec", problems)


def check_template(value: Mapping[str, Any], problems: Problems) -> None:
    """Reports what is wrong with a ResourceClaimTemplate."""
    _check((value.get("spec") or {}).get("spec") or {}, "spec.spec", problems)


def check_spec_update(new: Mapping[str, Any], old: Mapping[str, Any], problems: Problems) -> None:
    """Reports changes of what a claim or a template asks for."""
    if new.get("spec") != old.get("spec"):
        problems.invalid("spec", new.get("spec"), "field is immutable")


def _fill(spec: dict[str, Any]) -> None:
    for request in (spec.get("devices") or {}).get("requests") or ():
        exactly = request.get("exactly")
        for one in ([exactly] if exactly else []) + list(request.get("firstAvailable") or ()):
            one.setdefault("allocationMode", "ExactCount")
            if one["allocationMode"] == "ExactCount":
                one.setdefault("count", 1)


def _check(spec: Mapping[str, Any], where: str, problems: Problems) -> None:
    for number, request in enumerate((spec.get("devices") or {}).get("requests") or ()):
        path = f"{where}.devices.requests[{number}]"
        name = request.get("name") or ""
        for why in naming.domain_label(name):
            problems.invalid(f"{path}.name", name, why)
        for part, one in _asked(path, request):
            if not one.get("deviceClassName"):
                problems.required(f"{part}.deviceClassName")


def _asked(path: str, request: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if request.get("exactly"):
        yield f"{path}.exactly", request["exactly"]
    for number, one in enumerate(request.get("firstAvailable") or ()):
        yield f"{path}.firstAvailable[{number}]", one
