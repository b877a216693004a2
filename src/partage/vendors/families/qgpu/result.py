"""Writes qGPU's keys on a pod for its allocation, and reads them back.

The product's keys are not public. These are the keys that its maker's own command-line tool reads: a mark that the pod
has cards, and the card indexes of each container. Amounts are not written; they are the pod's requests. The same keys
are written as labels with indexes separated by `_`, because a label's value may hold no comma.

A key's name part may have 63 characters. A container with a longer name is written with its first 44 characters and
eight digits of the SHA-256 of the whole name.

Source: docs/sources/qgpu.md 1.6.
"""

import hashlib
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from partage.model.allocation import Grant, GrantMode
from partage.model.device import Device, DeviceType
from partage.model.errors import InvalidRecord
from partage.model.node import Node
from partage.model.pod import Record
from partage.model.request import RequestGroup
from partage.vendors import names
from partage.vendors.base import PlacedPod, PodView, Reading, Rendering
from partage.vendors.families.qgpu.registration import is_synthetic
from partage.vendors.families.qgpu.request import NAME, asking, read
from partage.vendors.families.qgpu.rules import OFFLINE, ONLINE
from partage.vendors.settings import Settings

_LONGEST_NAME: Final = 63 - len(names.QGPU_CARDS.partition("/")[2])
_DIGEST: Final = 8
_CLASSES: Final = ("", ONLINE, OFFLINE)
_INDEX: Final = re.compile(r"[0-9]{1,5}")
_TRUE: Final = "true"


def cards_key(container: str) -> str:
    """The annotation (and label) key that holds a container's card indexes."""
    if len(container) > _LONGEST_NAME:
        digest = hashlib.sha256(container.encode()).hexdigest()[:_DIGEST]
        container = f"{container[: _LONGEST_NAME - _DIGEST - 1]}-{digest}"
    return names.QGPU_CARDS + container


def render(placed: PlacedPod, settings: Settings) -> Rendering:
    """Annotations, labels and visible cards; nothing without grants."""
    grants = placed.grants(NAME)
    if not grants:
        return Rendering()
    annotations = {names.QGPU_ALLOCATED: _TRUE}
    env: dict[str, dict[str, str]] = {}
    for container in placed.pod.containers:
        held = [grant for grant in grants if grant.container == container.name]
        if not held:
            continue
        annotations[cards_key(container.name)] = ",".join(str(grant.minor) for grant in held)
        cards = (str(one.minor) if is_synthetic(one.uuid) else one.uuid for one in held)
        env[container.name] = {"NVIDIA_VISIBLE_DEVICES": ",".join(cards)}
    return Rendering(annotations=annotations, labels=labels(placed, settings), env=env)


def labels(placed: PlacedPod, _settings: Settings) -> Mapping[str, str]:
    """The same as labels, whose values may hold no comma."""
    found: dict[str, str] = {}
    for grant in placed.grants(NAME):
        found[names.QGPU_ALLOCATED] = _TRUE
        key = cards_key(grant.container)
        found[key] = f"{found[key]}_{grant.minor}" if key in found else str(grant.minor)
    return found


def recover(pod: PodView, node: Node, settings: Settings) -> Record | None:
    """The grants of a bound pod: cards from its annotations, amounts from its requests.

    None if there is no annotation of qGPU. Any contradiction is the record's problem.
    """
    written = {key for key in pod.annotations if key.startswith(names.QGPU_CARDS)}
    if names.QGPU_ALLOCATED not in pod.annotations and not written:
        return None
    try:
        return Record(grants=_recovered(pod, written, node, settings), source=NAME)
    except InvalidRecord as error:
        return Record(source=NAME, problem=str(error))


def _recovered(
    pod: PodView, written: set[str], node: Node, settings: Settings
) -> tuple[Grant, ...]:
    reading = _asked(pod, settings)
    if reading.fault is not None:
        raise InvalidRecord(f"the pod's own request cannot be read: {reading.fault.message}")
    cards = {device.minor: device for device in node.devices if device.type is DeviceType.GPU}
    grants: list[Grant] = []
    for group in reading.groups:
        key = cards_key(group.containers[0].name)
        if key not in written:
            raise InvalidRecord(f"annotation {key} is missing")
        written.discard(key)
        grants += _grants(group, key, pod.annotations[key], cards)
    if written:
        raise InvalidRecord(
            f"annotation {min(written)} belongs to no container that asks for qGPU"
        )
    if not grants:
        raise InvalidRecord(f"annotation {names.QGPU_ALLOCATED}: the pod asks for no qGPU")
    return tuple(grants)


def _asked(pod: PodView, settings: Settings) -> Reading:
    """The pod's request when it was placed.

    Its author may have changed its class since, but not its amounts. If they do not match, the first class that matches
    the amounts is taken, so no annotation of a running pod closes its node.
    """
    asking_now = asking(pod)
    reading = now = read(pod, asking_now, settings)
    for one in _CLASSES:
        if reading.fault is None:
            break
        annotations = {**pod.annotations, names.QGPU_APP_CLASS: one}
        reading = read(replace(pod, annotations=annotations), asking_now, settings)
    return now if reading.fault is not None else reading


def _grants(group: RequestGroup, key: str, text: str, cards: dict[int, Device]) -> list[Grant]:
    indexes = [part.strip() for part in text.split(",")]
    if not all(_INDEX.fullmatch(index) for index in indexes):
        raise InvalidRecord(f"annotation {key} is {text[:80]!r}, not a list of card indexes")
    minors = [int(index) for index in indexes]
    if len(set(minors)) != len(minors) or len(minors) != group.request.count:
        raise InvalidRecord(
            f"annotation {key} is {text[:80]!r}; the container asks for {group.request.count} distinct cards"
        )
    for minor in minors:
        if minor not in cards:
            raise InvalidRecord(f"annotation {key}: card {minor} is not on the node")
    return [_grant(group, cards[minor]) for minor in minors]


def _grant(group: RequestGroup, card: Device) -> Grant:
    container, request = group.containers[0], group.request
    return Grant(
        container=container.name,
        phase=container.phase,
        protocol=NAME,
        type=DeviceType.GPU,
        minor=card.minor,
        uuid=card.uuid,
        core_milli=card.core_milli if request.whole else request.core_milli,
        memory_bytes=card.memory_bytes if request.whole else request.memory_bytes,
        mode=GrantMode.WHOLE if request.whole else GrantMode.SHARE,
        sharers=request.sharers,
    )
