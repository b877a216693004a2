"""Replaces what names people and their work in the objects of a snapshot, consistently.

Every name becomes a kind's letter and ten digits of a keyed hash (HMAC-SHA256): the same name gives
the same mask under the same key, also in another snapshot, and nobody without the key can try
names. Decisions do not depend on names, so a masked snapshot decides as the plain one does.

Masked: names and namespaces of nodes, pods and quotas wherever they stand; values of labels that
no rule reads; texts of conditions. Kept, because rules read them: keys, values of labels that a
protocol, a selector, an affinity or a spreading constraint reads, taints, priority classes,
scheduler names, device identities and models, uids, containers' names.
"""

import hashlib
import hmac
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final

from partage.vendors import names
from partage.wire.snapshot import ours

__all__ = ["Mask", "keys_of_selectors"]

_DIGITS: Final = 10
_NODE: Final = re.compile(r'("node"\s*:\s*")([^"]*)(")')
_TOKEN: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9.-]*")
_LETTERS: Final = {"Node": "node", "Device": "node", "Pod": "pod", "ResourceQuota": "quota"}


class Mask:
    """One consistent replacement."""

    def __init__(self, key: bytes, nodes: Iterable[str], selected: Iterable[str] = ()) -> None:
        """A mask.

        Args:
            key: secret; the same key gives the same masks.
            nodes: names of all nodes.
            selected: keys of labels that pods select by.
        """
        self._key = key
        self._nodes = {name: self._masked("node", name) for name in nodes}
        self._selected = frozenset(selected)

    def _masked(self, letter: str, text: str) -> str:
        digest = hmac.new(self._key, f"{letter}/{text}".encode(), hashlib.sha256).hexdigest()
        return f"{letter}-{digest[:_DIGITS]}"

    def _node(self, name: str) -> str:
        return self._nodes.get(name) or self._masked("node", name)

    def object(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """The object with its names replaced; the one given is not changed."""
        kind = given["kind"]
        found = {**given, "metadata": self._metadata(kind, given.get("metadata", {}))}
        if "data" in given:
            found["data"] = {key: self._config(text) for key, text in given["data"].items()}
        if kind == "Pod":
            found["spec"] = self._pod_spec(given.get("spec", {}))
        if kind == "Device":
            found["spec"] = _silent(given.get("spec", {}))
        if "status" in given:
            found["status"] = self._status(given["status"])
        return found

    def _metadata(self, kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
        found = {k: v for k, v in given.items() if k not in ("generateName", "ownerReferences")}
        if kind in _LETTERS and "name" in found:
            name = found["name"]
            letter = _LETTERS[kind]
            found["name"] = self._node(name) if letter == "node" else self._masked(letter, name)
        if found.get("namespace"):
            found["namespace"] = self._masked("ns", found["namespace"])
        if "labels" in found:
            found["labels"] = {k: self._label(k, v) for k, v in found["labels"].items()}
        if "annotations" in found:
            found["annotations"] = {
                key: self._annotation(text) for key, text in found["annotations"].items()
            }
        return found

    def _label(self, key: str, value: str) -> str:
        if value in self._nodes:
            return self._nodes[value]
        if ours(key) or key in self._selected or not value:
            return value
        return self._masked("label", value)

    def _annotation(self, text: str) -> str:
        if text in self._nodes:
            return self._nodes[text]
        return _NODE.sub(lambda m: m[1] + (self._node(m[2]) if m[2] else "") + m[3], text)

    def _config(self, text: str) -> str:
        return _TOKEN.sub(lambda m: self._nodes.get(m[0], m[0]), text)

    def _status(self, given: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = _silent(given)
        if found.get("nominatedNodeName"):
            found["nominatedNodeName"] = self._node(found["nominatedNodeName"])
        return found

    def _pod_spec(self, given: Mapping[str, Any]) -> dict[str, Any]:
        found: dict[str, Any] = dict(given)
        if found.get("nodeName"):
            found["nodeName"] = self._node(found["nodeName"])
        for key in ("nodeSelector", "affinity"):
            if key in found:
                found[key] = self._selectors(found[key])
        found.pop("topologySpreadConstraints", None)
        if "topologySpreadConstraints" in given:
            found["topologySpreadConstraints"] = [
                {k: v for k, v in one.items() if k != "labelSelector"}
                for one in given["topologySpreadConstraints"]
            ]
        return found

    def _selectors(self, value: Any) -> Any:
        """Names of nodes within selectors; what selects pods loses its selector."""
        if isinstance(value, dict):
            return {
                key: self._selectors(item)
                for key, item in value.items()
                if key not in ("labelSelector", "namespaces", "namespaceSelector")
            }
        if isinstance(value, list):
            return [self._selectors(item) for item in value]
        return self._nodes.get(value, value) if isinstance(value, str) else value


def _silent(value: Any) -> Any:
    """The value without sentences, which may hold anything."""
    if isinstance(value, dict):
        return {key: _silent(item) for key, item in value.items() if key != "message"}
    return [_silent(item) for item in value] if isinstance(value, list) else value


def keys_of_selectors(pods: Iterable[Mapping[str, Any]]) -> set[str]:
    """Keys of node labels that pods select or spread by."""
    found = {names.HOSTNAME}
    for pod in pods:
        spec = pod.get("spec", {})
        found |= set(spec.get("nodeSelector", {}))
        found |= set(_keys(spec.get("affinity", {})))
        found |= {one.get("topologyKey", "") for one in spec.get("topologySpreadConstraints", [])}
    return found


def _keys(value: Any) -> Iterable[str]:
    if isinstance(value, dict):
        for key, item in value.items():
            if key in ("key", "topologyKey") and isinstance(item, str):
                yield item
            else:
                yield from _keys(item)
    elif isinstance(value, list):
        for item in value:
            yield from _keys(item)
