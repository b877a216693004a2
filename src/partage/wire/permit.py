"""The part of its wishes that a pod gets, as the annotation `partage.io/permit` beside the record.

    {"v":1,"uid":"…","rule":"shop","online":true,"policy":"fixed-share","why":"…"}

It is separate from the record, because earlier programs refuse a record with an unknown field and must still be able
to read it. A pod without the annotation was bound when no operator had made a rule, and its node decides. Only
Partage may write it (`vendors.reserved`); one that cannot be trusted gives nothing.
"""

import contextlib
from collections.abc import Mapping
from typing import Final

import msgspec

from partage.model.errors import UNREADABLE, InvalidValue
from partage.model.permit import Permit
from partage.vendors import names
from partage.vendors.wishes import Policy, bounded, read_wishes

VERSION: Final = 1
_NOTHING: Final = Permit(why=f"annotation {names.PERMIT} cannot be read, or is another pod's")


class _Document(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    v: int
    uid: str
    rule: str = ""
    online: bool = False
    policy: str = ""
    why: str = ""


_READER: Final = msgspec.json.Decoder(_Document)


def encode(permit: Permit, uid: str) -> str:
    """The annotation's text."""
    document = _Document(VERSION, uid, permit.rule, permit.online, permit.policy, permit.why)
    return msgspec.json.encode(document).decode()


def read(annotations: Mapping[str, str], uid: str) -> Permit | None:
    """The permit of a pod's annotation; None without one. Never raises."""
    text = annotations.get(names.PERMIT)
    if text is None:
        return None
    try:
        document = _READER.decode(text)
    except UNREADABLE:
        return _NOTHING
    if document.v != VERSION or document.uid != uid:
        return _NOTHING
    return Permit(document.rule, document.online, document.policy, document.why)


def cut(permit: Permit | None, annotations: Mapping[str, str]) -> tuple[str, ...]:
    """The wishes that a pod does not get by its permit, in words; the node may cut more.

    `permit`: the pod's; None if no rule was made. `annotations`: of the pod.
    """
    if permit is None:
        return ()
    with contextlib.suppress(InvalidValue):
        wishes = read_wishes(annotations, {}, None)
        _, said = bounded(wishes, Policy.BEST_EFFORT, permit)
        return tuple(dict.fromkeys((*said, *filter(None, (permit.why,)))))
    return ()
