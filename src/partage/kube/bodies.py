"""The documents that the client writes itself: binding, eviction and delete options."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from partage.kube.clock import time_text


class _OnlyKeys(msgspec.Struct):
    metadata: dict[str, msgspec.Raw] = {}


_ONLY_KEYS: Final = msgspec.json.Decoder(_OnlyKeys)


def encode(body: Any) -> bytes:
    """A body as JSON; bytes are taken to be JSON already."""
    return body if isinstance(body, bytes) else msgspec.json.encode(body)


def has_version(data: bytes) -> bool:
    """Whether a patch holds a resourceVersion, which lets it succeed only once."""
    try:
        return "resourceVersion" in _ONLY_KEYS.decode(data).metadata
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return True


def binding(
    namespace: str,
    pod: str,
    node: str,
    *,
    uid: str,
    annotations: Mapping[str, str] | None,
    labels: Mapping[str, str] | None,
) -> dict[str, Any]:
    """A Binding with its precondition and the metadata to merge into the pod."""
    optional = {"annotations": annotations, "labels": labels}
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod, "namespace": namespace, "uid": uid}
        | {key: value for key, value in optional.items() if value},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


def eviction(namespace: str, pod: str, uid: str | None) -> dict[str, Any]:
    """An Eviction of policy/v1."""
    return {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": pod, "namespace": namespace},
        "deleteOptions": delete_options(uid),
    }


def condition(
    kind: str, status: str, reason: str, message: str, moment: datetime
) -> dict[str, str]:
    """A condition of an object's status, which changes at this moment."""
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": time_text(moment),
    }


def delete_options(uid: str | None, grace_seconds: int | None = None) -> dict[str, Any]:
    """DeleteOptions with only the given fields."""
    options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
    if uid is not None:
        options["preconditions"] = {"uid": uid}
    if grace_seconds is not None:
        options["gracePeriodSeconds"] = grace_seconds
    return options
