"""Checks of HAMi's configuration of single nodes (`config.json`): each name in it means something.

HAMi and Partage alike ignore an entry of a node that does not exist, and a field that they do not know. So a misspelt
one changes nothing, and no other part reports it.
"""

import difflib
from collections.abc import Iterable, Iterator
from typing import Final

from partage.doctor.finding import ClusterFacts, Finding, Object, named, some, warning
from partage.model.errors import InvalidValue
from partage.vendors.settings import HamiNodeSettings
from partage.wire.config_hami import node_entries, unknown_fields

_LONGEST: Final = 253


def written(facts: ClusterFacts) -> Iterator[Finding]:
    """Nodes, fields and cards that the configuration names exist."""
    nodes = {named(node) for node in facts.nodes}
    cards = {named(one): one for one in facts.devices or ()}
    for name, text in facts.node_configs:
        try:
            entries, fields = node_entries(text), list(unknown_fields(text))
        except InvalidValue:
            continue  # it is refused, which is a finding of its own
        namespace, _, short = name.partition("/")
        edit = f"kubectl -n {namespace} edit configmap {short}"
        if fields:
            yield warning(
                "node-config-field",
                f"ConfigMap {name}",
                f"every field of config.json must be one that is known, or it does nothing: {some(map(_near, fields))}",
                f"{edit}, and correct the field",
            )
        strange = [one.name for one in entries if one.name not in nodes]
        if strange:
            yield warning(
                "node-config-node",
                f"ConfigMap {name}",
                "every entry of config.json must name a node, or it does nothing: "
                + some(_near((one[:_LONGEST], _alike(one, nodes))) for one in strange),
                f"{edit}, and correct the name (kubectl get nodes lists them), or delete the entry of a node that is gone",
            )
        yield from _twice(name, edit, entries)
        for one in entries:
            missed = _missed(one, cards.get(one.name))
            if missed:
                yield warning(
                    "node-config-card",
                    f"ConfigMap {name}",
                    f"filterdevices of node {one.name} must name its cards, and there is none of these: {some(missed)}",
                    f"{edit}, and write UUIDs or indexes of that node's cards (partage top cards -o wide lists them)",
                )


def _twice(name: str, edit: str, entries: Iterable[HamiNodeSettings]) -> Iterator[Finding]:
    listed = [one.name for one in entries]
    twice = [one for one in dict.fromkeys(listed) if listed.count(one) > 1]
    if twice:
        yield warning(
            "node-config-node",
            f"ConfigMap {name}",
            f"config.json must have one entry for each node; the last one counts for {some(twice)}",
            f"{edit}, and make one entry of them",
        )


def _missed(entry: HamiNodeSettings, device: Object | None) -> list[str]:
    """UUIDs and indexes that no card of the node has; empty where no Device object lists them."""
    if device is None:
        return []
    there = [
        one for one in device.get("spec", {}).get("devices") or () if one.get("type") == "gpu"
    ]
    uuids, minors = {one.get("id") for one in there}, {one.get("minor", 0) for one in there}
    return [one for one in entry.filter_uuids if one not in uuids] + [
        str(one) for one in entry.filter_indexes if one not in minors
    ]


def _alike(name: str, nodes: Iterable[str]) -> str:
    near = difflib.get_close_matches(name[:_LONGEST], nodes, n=1, cutoff=0.8)
    return near[0] if near else ""


def _near(found: tuple[str, str]) -> str:
    name, near = found
    return f"{name} (did you mean {near}?)" if near else name
