"""ConfigMaps as settings: those that operators of the four systems already have in their clusters.

This module reads HAMi's device-config and node configuration, MetaX's device-config, Koordinator's
templates of shared NPUs, and Partage's own `partage-config`. It reports a value that breaks its rule
with ConfigMap, key, field and rule, and uses nothing of its key. This is a note offline and an error
in a live cluster, where the previous settings stay in force.

Source: the MetaX and HAMi documents; docs/sources/hami.md 2; docs/sources/koordinator.md 3.5 and 5.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

import msgspec

from partage.model.errors import InvalidDocument, InvalidValue, meant
from partage.model.policy import Policy, Strategy
from partage.model.quantity import Quantity
from partage.vendors.settings import IsolationSettings, PermitRule, Settings
from partage.vendors.wishes import POLICIES
from partage.wire import shapes
from partage.wire.config_hami import convert, device_config, node_config, unknown_fields
from partage.wire.documents import Document, texts
from partage.wire.yaml_values import TEMPLATE, YamlError, yaml_values

_MODES: Final = ("native", "sgpu", "shared", "vgpu")
_REQUIRED: Final[Mapping[str, IsolationSettings]] = {
    "none": IsolationSettings(),
    "memory": IsolationSettings(memory=True),
    "compute": IsolationSettings(memory=True, compute=True),
}
_MEMORY_NAMES: Final = ("koordinator.sh/gpu-memory", "kubernetes.io/gpu-memory")
_MOST_PERMITS: Final = 64
_MOST_NAMED: Final = 256
_MOST_PODS: Final = 1_000_000
"""Rules of permits, names in one list of a rule, and pods that a rule may count: generous, but finite."""
_OURS: Final = "partage-config"
_NODE_CONFIG: Final = "config.json"
_WHOLE: Final = "policy"
"""The key of which two others set a part."""
_LONGEST_KEY: Final = 64
"""Characters of a key that a note repeats."""
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_OBJECT_NAME: Final = re.compile(r"[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?")
_PERCENTAGE: Final = re.compile(r"(100|[0-9]{1,2})%", re.ASCII)
_THOUSANDTHS: Final = 10


@dataclass(frozen=True, slots=True)
class Configuration:
    """The joint settings of the ConfigMaps; `policy` is None if none is given, `notes` are on repeated ConfigMaps."""

    settings: Settings = Settings()
    policy: Policy | None = None
    notes: tuple[str, ...] = ()


_Reader = Callable[[Configuration, str], Configuration]


def translate_config(documents: Iterable[Document], *, strict: bool = True) -> Configuration:
    """The settings from the ConfigMaps among the documents; others are ignored.

    If two ConfigMaps set the same thing, the later one holds. In one ConfigMap `node-policy` and `card-policy` hold
    beside `policy`, in any order. `strict`: whether a value that breaks its rule is an error; otherwise its key is left
    out with a note, and the published defaults or an earlier ConfigMap hold. Raises `InvalidDocument`: a value breaks
    its rule, or still is a template's placeholder.
    """
    result = Configuration()
    seen: dict[str, str] = {}
    notes: list[str] = []
    for document in documents:
        if not isinstance(document.shape, shapes.ConfigMap):
            continue
        data = texts(document.shape.data).items()
        for key, text in sorted(data, key=lambda one: one[0] != _WHOLE):
            found = _reader(document.name, key)
            if found is None:
                if document.name == _OURS:
                    shown = key[:_LONGEST_KEY]
                    rule = f"is not known and does nothing{meant(shown, _PARTAGE)}"
                    notes.append(str(document.invalid(f"data[{shown}]", rule)))
                continue
            reader, name = found
            what = f"{name} ({key})"
            holder = seen.get(what)
            try:
                result = reader(result, text)
            except InvalidValue as error:
                refused = _refused(document, key, text, error)
                if strict:
                    raise refused from error
                stays = f"the {what} of {holder}" if holder else "the published defaults"
                notes.append(f"{refused}; it is left out, and {stays} hold")
                continue
            seen[what] = document.label
            if holder:
                notes.append(f"{document.where}: replaces the {what} of {holder}")
        notes += _unknown_fields(document)
    return replace(result, notes=tuple(notes))


def _unknown_fields(document: Document) -> Iterator[str]:
    """Notes on fields of HAMi's configuration of single nodes that mean nothing."""
    text = node_config_of(document)
    try:
        for field, near in unknown_fields(text) if text else ():
            hint = f"; did you mean {near}?" if near else ""
            told = f"field {field} is not known and does nothing{hint}"
            yield str(document.invalid(f"data[{_NODE_CONFIG}]", told))
    except InvalidValue:
        return  # it is refused, which has a note of its own


def keys_read(document: Document) -> tuple[str, ...]:
    """The keys of a ConfigMap that set something, in order; empty for any other document."""
    shape = document.shape
    if not isinstance(shape, shapes.ConfigMap):
        return ()
    return tuple(sorted(key for key in shape.data or () if _reader(document.name, key)))


def node_config_of(document: Document) -> str | None:
    """HAMi's configuration of single nodes in a ConfigMap; None for any other document."""
    if not isinstance(document.shape, shapes.ConfigMap):
        return None
    found = _reader(document.name, _NODE_CONFIG)
    return texts(document.shape.data).get(_NODE_CONFIG) if found else None


def _refused(document: Document, key: str, text: str, error: InvalidValue) -> InvalidDocument:
    rule = str(error)
    if TEMPLATE in text and "{{" not in rule:
        rule += "; the text still holds {{ … }} of a template: render the chart first"
    return document.invalid(f"data[{key}]", rule)


def _reader(name: str, key: str) -> tuple[_Reader, str] | None:
    """The reader of a ConfigMap's key, and its setting; charts put their release's name before the maps'."""
    if key == "device-config.yaml" or (key == _NODE_CONFIG and name.endswith("device-plugin")):
        return _HAMI[key]
    if name.endswith("metax-device-config"):
        return _METAX.get(key)
    if key == "data.yaml" and name.endswith("gpu-shared-resource-templates"):
        return _templates, "templates"
    if name == _OURS:
        return _PARTAGE.get(key)
    return None


def _with(known: Configuration, **parts: Any) -> Configuration:
    return replace(known, settings=replace(known.settings, **parts))


# --- MetaX -----------------------------------------------------------------------------------
class _Mode(msgspec.Struct, frozen=True):
    mode: str | None = None


class _NodeMode(msgspec.Struct, frozen=True, rename="camel"):
    node_name: str
    mode: str


def _metax_cluster(known: Configuration, text: str) -> Configuration:
    mode = convert(_yaml(text), _Mode | None)
    mode = _known_mode("mode", mode and mode.mode)
    return _with(known, metax=replace(known.settings.metax, cluster_mode=mode))


def _metax_nodes(known: Configuration, text: str) -> Configuration:
    nodes: list[_NodeMode] = convert(_yaml(text), list[_NodeMode] | None) or []
    modes = {
        node.node_name: _known_mode(f"[{index}].mode", node.mode)
        for index, node in enumerate(nodes)
    }
    return _with(known, metax=replace(known.settings.metax, node_modes=modes))


def _known_mode(field: str, mode: str | None) -> str:
    if mode and mode not in _MODES:
        raise InvalidValue(f"field {field}: {mode!r} is not one of {', '.join(_MODES)}")
    return mode or ""


# --- Koordinator -----------------------------------------------------------------------------
def _templates(known: Configuration, text: str) -> Configuration:
    """Templates of shared NPUs: `<vendor>-<model>` to template name to resource list."""
    given = convert(_yaml(text), dict[str, dict[str, dict[str, str | int | float]]] | None) or {}
    tables = {
        model: {name: _template(f"{model}.{name}", resources) for name, resources in table.items()}
        for model, table in given.items()
    }
    return _with(known, koordinator=replace(known.settings.koordinator, templates=tables))


def _template(field: str, resources: Mapping[str, str | float]) -> tuple[tuple[str, int], ...]:
    units: dict[str, int] = {}
    for name, value in resources.items():
        try:
            amount = Quantity.parse(value)
        except InvalidValue as error:
            raise InvalidValue(f"field {field}.{name}: {error}") from error
        if amount.nano < 0 or not amount.integral:
            raise InvalidValue(f"field {field}.{name}: {amount} is not a whole number from 0")
        units["memory" if name in _MEMORY_NAMES else name] = amount.floor()
    return tuple(sorted((unit, amount) for unit, amount in units.items() if amount))


# --- Partage ---------------------------------------------------------------------------------
def _isolation_require(known: Configuration, text: str) -> Configuration:
    required = _REQUIRED.get(text.strip())
    if required is None:
        raise InvalidValue(f"{text.strip()[:64]!r} is not one of {', '.join(_REQUIRED)}")
    permits = known.settings.isolation.permits
    return _with(known, isolation=replace(required, permits=permits))


class _Permit(msgspec.Struct, frozen=True, rename="camel", forbid_unknown_fields=True):
    name: str
    namespaces: list[str]
    service_accounts: list[str] = []
    online: bool = False
    online_pods: int | None = None
    online_cards: str | None = None
    policy: str = ""


def _permits(known: Configuration, text: str) -> Configuration:
    given: list[_Permit] = convert(_yaml(text), list[_Permit] | None) or []
    if len(given) > _MOST_PERMITS:
        raise InvalidValue(f"{len(given)} rules, and {_MOST_PERMITS} are the most")
    rules = tuple(_permit(f"[{index}]", one) for index, one in enumerate(given))
    for index, rule in enumerate(rules):
        if any(rule.name == other.name for other in rules[:index]):
            raise InvalidValue(f"field [{index}].name: {rule.name} is the name of a rule before")
    return _with(known, isolation=replace(known.settings.isolation, permits=rules))


def _permit(field: str, given: _Permit) -> PermitRule:
    """One rule with every field checked, because a misread field would let pods have more than intended."""
    if not _NAME.fullmatch(given.name):
        raise InvalidValue(f"field {field}.name: {given.name[:64]!r} is no name in a-z, 0-9 and -")
    for key, listed, every in (
        ("namespaces", given.namespaces, ("*",)),
        ("serviceAccounts", given.service_accounts, ()),
    ):
        if len(listed) > _MOST_NAMED or (every and not listed):
            raise InvalidValue(f"field {field}.{key}: {len(listed)} names, 1 to {_MOST_NAMED} do")
        for name in listed:
            if name not in every and not _OBJECT_NAME.fullmatch(name):
                raise InvalidValue(f"field {field}.{key}: {name[:64]!r} is no object's name")
    if not given.online and (given.online_pods, given.online_cards) != (None, None):
        raise InvalidValue(
            f"field {field}: onlinePods and onlineCards count nothing without online"
        )
    if given.online_pods is not None and not 0 <= given.online_pods <= _MOST_PODS:
        raise InvalidValue(
            f"field {field}.onlinePods: {given.online_pods} is not 0 to {_MOST_PODS}"
        )
    cards = None
    if given.online_cards is not None:
        percent = _PERCENTAGE.fullmatch(given.online_cards)
        if percent is None:
            why = f"{given.online_cards[:64]!r} is no percentage of a node's cards such as 25%"
            raise InvalidValue(f"field {field}.onlineCards: {why}")
        cards = int(percent[1]) * _THOUSANDTHS
    if given.policy and given.policy not in POLICIES:
        known = ", ".join(POLICIES)
        raise InvalidValue(f"field {field}.policy: {given.policy[:64]!r} is not one of {known}")
    return PermitRule(
        given.name,
        tuple(given.namespaces),
        tuple(given.service_accounts),
        given.online,
        given.online_pods,
        cards,
        POLICIES[given.policy].value if given.policy else "",
    )


def _part(part: str, known: Configuration, text: str) -> Configuration:
    """The configuration with the strategy of one part of its policy."""
    if text.strip().lower() not in tuple(Strategy):
        raise InvalidValue(f"{text.strip()!r} is not one of {', '.join(Strategy)}")
    parts: dict[str, Any] = {part: Strategy(text.strip().lower())}
    return replace(known, policy=replace(known.policy or Policy(), **parts))


_HAMI: Final[Mapping[str, tuple[_Reader, str]]] = {
    "device-config.yaml": (
        lambda known, text: _with(known, hami=device_config(_yaml(text), known.settings.hami)),
        "hami device config",
    ),
    _NODE_CONFIG: (
        lambda known, text: _with(known, hami=node_config(text, known.settings.hami)),
        "hami node config",
    ),
}
_METAX: Final[Mapping[str, tuple[_Reader, str]]] = {
    "cluster-config": (_metax_cluster, "metax cluster"),
    "nodes-config": (_metax_nodes, "metax nodes"),
}
_PARTAGE: Final[Mapping[str, tuple[_Reader, str]]] = {
    _WHOLE: (lambda known, text: replace(known, policy=Policy.parse(text.strip())), "policy"),
    "node-policy": (partial(_part, "node"), "node policy"),
    "card-policy": (partial(_part, "card"), "card policy"),
    "isolation-require": (_isolation_require, "isolation require"),
    "permits": (_permits, "permits"),
}


# --- Texts inside ConfigMaps -----------------------------------------------------------------
def _yaml(text: str) -> Any:
    try:
        documents = yaml_values(text.encode(errors="surrogatepass"))
    except YamlError as error:
        raise InvalidValue(str(error)) from error
    if len(documents) > 1:
        raise InvalidValue(f"{len(documents)} YAML documents where one is expected")
    return documents[0] if documents else None
