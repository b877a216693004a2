"""Consistently replaces names of people and their work in the objects of a snapshot; a list names the words that stay.

A word stays if it is a number, a time, the address, UUID or model of a device, or a word that the program's own readers
know: a key, a field, a choice, a published name. No IP address stays in its usual form, whatever is beside it. Every
other word becomes ten digits of a keyed hash (HMAC-SHA256) at each place. Under the same key a word has the same mask,
also in another snapshot. Without the key, words cannot be guessed by trials. Decisions only compare these words, so a
masked snapshot gives the same decisions as the plain one.

Annotations stay only if the whole key is known. If an annotation of a protocol has no part in decisions, only its
protocol stays, because its presence can show which protocol a pod uses. Documents within texts are parsed, and lose
comments.
"""

import hashlib
import hmac
import importlib.util
import json
import pkgutil
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from types import CodeType
from typing import Any, Final

import msgspec

from partage.vendors import names
from partage.vendors.settings import Settings
from partage.wire.context import Context
from partage.wire.identities import PCI_ADDRESS
from partage.wire.yaml_values import YamlError, yaml_values

_DIGITS: Final = 10
_LETTERS: Final = {"Node": "node", "Device": "node", "Pod": "pod", "ResourceQuota": "quota"}
_ADDRESS: Final = rf"{PCI_ADDRESS}|pci[0-9A-Fa-f]{{4,8}}:[0-9A-Fa-f]{{2}}"
"""A device's address, or its root's. Parts of one do not stay, because a short name may look like them."""
_TIME: Final = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}(?:\.[0-9]+)?(?:Z|[-+][0-9]{2}:[0-9]{2})?"
_PLAIN: Final = re.compile(
    rf"{_ADDRESS}|{_TIME}"
    r"""
    |[-+]?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?(?:n|u|m|k|[KMGTPE]i?|MiB|GiB|%)?  # amounts
    |[0-9]+\.[0-9]+\.[0-9]+                                                    # versions
    |(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}                    # UUIDs of cards and instances
    |[0-9]+c?\.?[0-9]*g\.[0-9]+gb(?:\+[a-z]+)*                                  # profiles of instances
    |gpu-[0-9]+(?:-mig-[0-9]+c?-?[0-9]*g-[0-9]+gb(?:-[a-z-]+)?-[0-9]+)?         # devices of a pool
    |hugepages-[0-9]+[KMG]i""",
    re.VERBOSE,
)
_ENDS: Final = r"\s,;|=\"'\[\]{}()"
"""Characters between words. A colon is one too, but not within an address of IPv6."""
_TOKEN: Final = re.compile(
    rf"(?<![\w:.-])(?:{_ADDRESS}|{_TIME})(?![\w:.-])"
    rf"|[^:{_ENDS}]*:[0-9A-Fa-f.]*:[^{_ENDS}]*"
    rf"|[^:{_ENDS}]+"
)
_IP: Final = re.compile(r"(?:[0-9]+\.){3}[0-9]|:[0-9A-Fa-f.]*:")
"""A part that every IP address has, and no name of a model."""
_LONGEST: Final = 64
_RULES: Final = "permits"
_NAMED_ACCOUNT: Final = "serviceAccountName"
_ACCOUNTS: Final = "serviceAccounts"
_ACCOUNT: Final = "default"
"""The service account of pods that name none; it is left out."""
_PACKAGES: Final = ("partage.model", "partage.vendors", "partage.wire")
_COMMON: Final = frozenset(
    {
        "ephemeral-storage",
        "storage",
        "MemoryPressure",
        "DiskPressure",
        "PIDPressure",
        "PodScheduled",
        "Pending",
        "Running",
        "topology.kubernetes.io/zone",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/rack",
        "kubernetes.io/os",
        "kubernetes.io/arch",
        "linux",
        "amd64",
        "arm64",
        "node.kubernetes.io/unschedulable",
    }
)
"""Kubernetes' own words that no reader here contains."""
_MODELS: Final = (*names.QGPU_MODEL_LABELS, names.GPU_MODEL, names.GPU_VENDOR, names.PCI_PRODUCT)
_TYPE: Final = re.compile(r'"type"\s*:\s*"([^"]*)"')
_SAYS_NOTHING: Final = frozenset(
    {
        names.AGENT_NOTES,
        names.METAX_LOCK,
        names.DSMLU_LOCK,
        names.ORIGINAL_REQUEST,
        names.WOKEN,
        names.TRACEPARENT,
        names.SERVED,
        names.LEASE_DEADLINE,
        names.LEASE_ELECTED,
        names.SIMULATE_LIFETIME,
        names.SIMULATE_UNHEALTHY,
    }
)
"""Annotations that no decision reads."""
_MAPS: Final = (
    "device-plugin",
    "metax-device-config",
    "gpu-shared-resource-templates",
    "scheduler-device",
)
"""Ends of the names of known ConfigMaps."""
_PREFIXES: Final = ("requests.", "limits.", "count/")
"""Prefixes of a quota's keys."""


class Mask:
    """One consistent replacement."""

    def __init__(self, key: bytes, nodes: Iterable[Mapping[str, Any]]) -> None:
        """A mask.

        `key`: secret; the same key gives the same masks. `nodes`: Node and Device objects; their names are masked as
        nodes, and the models of their cards stay.
        """
        self._key = key
        self._nodes: dict[str, str] = {}
        models: set[str] = set()
        for one in nodes:
            head = one.get("metadata", {})
            self._nodes[head.get("name", "")] = self._masked("node", head.get("name", ""))
            models |= set(_models(one))
        self._models = frozenset(
            model.lower() for model in models if len(model) <= _LONGEST and not _IP.search(model)
        )
        self._all_models = " ".join(self._models)
        self._known: dict[str, str] = {}

    def object(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """A copy of the object with its names replaced."""
        kind, head = given["kind"], given.get("metadata", {})
        found: dict[str, Any] = {
            key: self._value(item)
            for key, item in given.items()
            if key not in ("kind", "apiVersion", "metadata", "data")
        }
        if "data" in given:
            texts = {
                key: self._document(text, rules=key == _RULES)
                for key, text in given["data"].items()
            }
            found["data"] = {key: text for key, text in texts.items() if text is not None}
        kept = {"apiVersion": given.get("apiVersion", "v1"), "kind": kind}
        return kept | {"metadata": self._metadata(kind, head)} | found

    def _masked(self, letter: str, text: str) -> str:
        digest = hmac.new(self._key, f"{letter}/{text}".encode(), hashlib.sha256).hexdigest()
        return f"{letter}-{digest[:_DIGITS]}"

    def _metadata(self, kind: str, given: Mapping[str, Any]) -> dict[str, Any]:
        own = ("generateName", "ownerReferences", "name", "namespace", "uid", "annotations")
        found: dict[str, Any] = self._value({k: v for k, v in given.items() if k not in own})
        if "name" in given:
            found["name"] = self._name(kind, given["name"])
        if given.get("namespace"):
            found["namespace"] = self._masked("ns", given["namespace"])
        if given.get("uid"):
            found["uid"] = self._word(given["uid"])
        if "annotations" in given:
            found["annotations"] = dict(
                self._annotation(key, text) for key, text in given["annotations"].items()
            )
        return found

    def _name(self, kind: str, name: str) -> str:
        if kind == "ConfigMap":
            end = next((one for one in _MAPS if name.endswith(one)), "")
            known = name in _words() or name == end
            return name if known else "-".join(filter(None, (self._masked("map", name), end)))
        letter = _LETTERS.get(kind)
        if letter == "node":
            return self._nodes.get(name) or self._masked("node", name)
        return self._masked(letter, name) if letter else self._word(name)

    def _annotation(self, key: str, text: str) -> tuple[str, str]:
        if key.startswith(names.QGPU_CARDS):
            container = key.removeprefix(names.QGPU_CARDS)
            return f"{names.QGPU_CARDS}{self._word(container)}", self._text(text)
        if key in _SAYS_NOTHING or key not in _words():
            domain = key.partition("/")[0]
            return (key if key in _words() else f"{domain}/{self._masked('x', key)}"), ""
        if text[:1] in ("{", "["):
            try:
                return key, json.dumps(self._value(json.loads(text)), separators=(",", ":"))
            except (ValueError, RecursionError):
                pass
        return key, self._text(text)

    def _document(self, text: str, *, rules: bool = False) -> str | None:
        """A ConfigMap's text, masked part by part; None for one that cannot be read.

        `rules`: those of `permits`, whose namespaces and accounts are masked like those of pods.
        """
        try:
            (value,) = yaml_values(text.encode())
        except (YamlError, ValueError):
            return None
        if isinstance(value, str):
            return self._text(value)
        masked = self._value(value)
        for rule, kept in (
            zip(value, masked, strict=True) if rules and isinstance(value, list) else ()
        ):
            for key, letter, stays in (
                ("namespaces", "ns", "*"),
                (_ACCOUNTS, "account", _ACCOUNT),
            ):
                listed = rule.get(key) if isinstance(rule, dict) else None
                if isinstance(listed, list):
                    kept[key] = [
                        one if one == stays else self._masked(letter, str(one)) for one in listed
                    ]
        return json.dumps(masked)

    def _value(self, value: Any) -> Any:
        """A value without sentences and without selectors of pods, with every word checked."""
        if isinstance(value, Mapping):
            return {
                self._word(str(key)): self._masked("account", str(item))
                if key == _NAMED_ACCOUNT
                else self._value(item)
                for key, item in value.items()
                if key not in ("message", "labelSelector", "namespaces", "namespaceSelector")
                and (key, item) != (_NAMED_ACCOUNT, _ACCOUNT)
            }
        if isinstance(value, list | tuple):
            return [self._value(item) for item in value]
        return self._text(value) if isinstance(value, str) else value

    def _text(self, text: str) -> str:
        whole = text.strip().lower()
        if whole in _words_in_small() or whole in self._models:
            return text
        return _TOKEN.sub(lambda found: self._word(found[0]), text)

    def _word(self, word: str) -> str:
        found = self._known.get(word)
        if found is None:
            found = self._known[word] = self._judged(word)
        return found

    def _judged(self, word: str) -> str:
        if word in self._nodes:
            return self._nodes[word]
        small = word.lower()
        if not word or small in _words_in_small() or small in self._models:
            return word
        if len(word) <= _LONGEST and _PLAIN.fullmatch(word):
            return word
        if len(word) > 1 and small in self._all_models:
            return word  # a pod may choose its cards by a part of their model's name
        for prefix in _PREFIXES:
            rest = word.removeprefix(prefix)
            # A key has one, a tenant's word any number.
            if rest != word and not rest.startswith(_PREFIXES):
                return f"{prefix}{self._word(rest)}"
        mask = self._masked("x", word)
        return f"masked.invalid/{mask}" if "/" in word else mask


def _models(one: Mapping[str, Any]) -> Iterator[str]:
    """Words that name the models of a node's cards and their drivers."""
    head = one.get("metadata", {})
    labels = [head.get("labels") or {}]
    labels += [card.get("labels") or {} for card in one.get("spec", {}).get("devices") or ()]
    told = [held[key] for held in labels for key in _MODELS if key in held]
    register = (head.get("annotations") or {}).get(names.HAMI_REGISTER, "")
    told += _TYPE.findall(register)
    told += [fields[4] for card in register.split(":") if len(fields := card.split(",")) > 6]
    for text in told:
        yield text
        yield from _TOKEN.findall(text)


@cache
def _words() -> frozenset[str]:
    """Words that the readers of documents contain, as constants or as names of fields."""
    context = Context.of(Settings())
    found = {*_COMMON, *context.owners, *context.triggers}
    for package in _PACKAGES:
        for one in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            spec = importlib.util.find_spec(one.name)
            loader = getattr(spec, "loader", None)
            code = loader.get_code(one.name) if loader is not None else None
            found |= set(_constants(code)) if code is not None else set()
            try:
                module = importlib.import_module(one.name)
            except ModuleNotFoundError:  # the module is part of an extra that is not installed
                continue
            for held in vars(module).values():
                if isinstance(held, type) and issubclass(held, msgspec.Struct):
                    found |= set(held.__struct_encode_fields__)
    return frozenset(word for word in found if word and len(word) <= _LONGEST and "\n" not in word)


@cache
def _words_in_small() -> frozenset[str]:
    return frozenset(word.lower() for word in _words())


def _constants(value: object) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, CodeType):
        for one in value.co_consts:
            yield from _constants(one)
    elif isinstance(value, tuple | frozenset):
        for one in value:
            yield from _constants(one)
