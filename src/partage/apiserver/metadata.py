"""The server's own changes to an object's metadata: identity, times, generations, deletion.

Pure functions; `Ambient` supplies the clock and random values.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from partage.apiserver import naming
from partage.apiserver.problems import Problems

_LONGEST_GENERATED: Final = 58
_LAST: Final = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC).timestamp()
_SERVER_OWNED: Final = (
    "uid",
    "creationTimestamp",
    "generation",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "selfLink",
)


@dataclass(frozen=True, slots=True)
class Ambient:
    """Inputs from outside: `now` in seconds since 1970 (UTC), `suffix` of five new characters for `generateName`."""

    now: Callable[[], float]
    uid: Callable[[], str]
    suffix: Callable[[], str]


def timestamp(seconds: float) -> str:
    """A time in Kubernetes' format, to the second; at most the end of 9999, which a pod's grace may exceed."""
    return datetime.fromtimestamp(min(seconds, _LAST), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def born(metadata: Mapping[str, Any], namespace: str, ambient: Ambient) -> dict[str, Any]:
    """The metadata of a new object."""
    found = {key: value for key, value in metadata.items() if key not in _SERVER_OWNED}
    found.pop("resourceVersion", None)
    if not found.get("name") and found.get("generateName"):
        found["name"] = found["generateName"][:_LONGEST_GENERATED] + ambient.suffix()
    if namespace:
        found["namespace"] = namespace
    else:
        found.pop("namespace", None)
    found["uid"] = ambient.uid()
    found["creationTimestamp"] = timestamp(ambient.now())
    return found


def carried(new: Mapping[str, Any], old: Mapping[str, Any]) -> dict[str, Any]:
    """The metadata of an update; the server's own fields stay unchanged."""
    found = {key: value for key, value in new.items() if key not in _SERVER_OWNED}
    found.update((key, old[key]) for key in _SERVER_OWNED if key in old)
    for key in ("name", "namespace", "generateName"):
        if key in old:
            found.setdefault(key, old[key])
    found["resourceVersion"] = old.get("resourceVersion", "")
    return found


def begun(
    value: Mapping[str, Any], grace: int, now: float, finalizers: list[str]
) -> dict[str, Any]:
    """The object after the start of its deletion, with these finalizers; it should be gone in `grace` seconds.

    A later request changes neither the start nor the generation.
    """
    metadata = {**value["metadata"], "finalizers": finalizers}
    if not finalizers:
        del metadata["finalizers"]
    if (ends := metadata.get("deletionTimestamp")) is not None:
        now = datetime.fromisoformat(ends).timestamp()
        now -= metadata.get("deletionGracePeriodSeconds") or 0
    elif "generation" in metadata:
        metadata["generation"] = int(metadata["generation"]) + 1
    metadata["deletionTimestamp"] = timestamp(now + grace)
    metadata["deletionGracePeriodSeconds"] = grace
    return {**value, "metadata": metadata}


def finished(value: Mapping[str, Any]) -> bool:
    """Whether nothing keeps an object in deletion any longer."""
    metadata = value["metadata"]
    return bool(
        metadata.get("deletionTimestamp")
        and not metadata.get("finalizers")
        and not metadata.get("deletionGracePeriodSeconds")
    )


def check(
    metadata: Mapping[str, Any],
    problems: Problems,
    rule: Callable[[str], list[str]],
    *,
    namespaced: bool,
) -> None:
    """Reports problems of metadata."""
    name = metadata.get("name", "")
    if not name:
        problems.required("metadata.name", "name or generateName is required")
    for why in rule(problems.name(name)) if name else ():
        problems.invalid("metadata.name", name, why)
    prefix = metadata.get("generateName", "")
    for why in rule(problems.name(prefix.rstrip("-.")) + "x") if prefix else ():
        problems.invalid("metadata.generateName", prefix, why)
    if namespaced:
        for why in naming.domain_label(metadata.get("namespace", "")):
            problems.invalid("metadata.namespace", metadata.get("namespace", ""), why)
    naming.check_labels(metadata.get("labels"), "metadata.labels", problems)
    naming.check_annotations(metadata.get("annotations"), "metadata.annotations", problems)
    for owner in metadata.get("ownerReferences") or []:
        for key in ("apiVersion", "kind", "name", "uid"):
            if not owner.get(key):
                problems.invalid(f"metadata.ownerReferences.{key}", "", "must not be empty")
    controllers = [o for o in metadata.get("ownerReferences") or [] if o.get("controller")]
    if len(controllers) > 1:
        problems.invalid(
            "metadata.ownerReferences",
            controllers,
            "Only one reference can have Controller set to true. Found "
            f'"true" in references for {controllers[0].get("name")} and '
            f"{controllers[1].get('name')}",
        )
    for index, finalizer in enumerate(metadata.get("finalizers") or []):
        for why in naming.domain_prefixed(finalizer):
            problems.invalid(f"metadata.finalizers[{index}]", finalizer, why)
