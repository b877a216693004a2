"""Whether one card serves a request, and why not: the plain rules one after another, within a limit of work.

This is the reference for the vectorised `kernel`, which must agree with it card by card. Reasons are given in the order
of the checks: first the card's properties, then whether it is open, then its free amounts.

`Work` limits the cost of any decision. One unit is one card judged for one group, or one set of cards compared. It
takes a few microseconds (`bench/hostile.py` measures it). A count never depends on a clock, so the same question stops
at the same place on every machine.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from operator import attrgetter
from typing import Final

import msgspec

from partage.inventory.card import Card
from partage.model.allocation import Grant, GrantMode
from partage.model.device import MILLI, Device, SliceMode, VirtualFunction
from partage.model.mig import MigSlice
from partage.model.reason import CardReason, ReasonCode
from partage.model.request import CardFilter, ContainerAsk, DeviceRequest, Phase, RequestGroup
from partage.model.selector import Selector
from partage.placement.reasons import none_left

_LABELS: Final = attrgetter("labels")
_MOST_NAMED: Final = 8
"""The most models or UUIDs of a request that a reason repeats."""

MOST: Final = 6_000
"""Units that one decision may take over all nodes; then only the most promising nodes are tried.

A pod that finds no place then gets `SearchLimit`, and is tried again like any other when room appears.
"""

MOST_A_NODE: Final = 2_000
"""Units that the exact rule may take on one node."""

FEW: Final = 400
"""Units that are enough for ordinary pods: one or a few requests for devices, on any node."""


class Work:
    """The limit of work, and the work done; all searches for one answer share it.

    Attributes:
        limit: units that may be done.
        few: whether that is less than for a decision: enough for ordinary pods, without a search.
        done: units done, including remembered ones that count as if done again.
        recalled: the remembered units among them.
        aside: work that does not count against the limit: score updates, and sentences.
        began: units that were done when the last decision began.
    """

    __slots__ = ("aside", "began", "done", "few", "limit", "recalled")

    def __init__(self, limit: int = MOST) -> None:
        self.limit, self.few = limit, limit < MOST
        self.done = self.recalled = self.aside = self.began = 0

    @property
    def spent(self) -> bool:
        """Whether the limit is reached."""
        return self.done >= self.limit

    @property
    def taken(self) -> int:
        """The units really done."""
        return self.done - self.recalled + self.aside

    def go_on(self, *, listing: bool = False) -> None:
        """Begin a further search for the same answer, which has what is left.

        Where little work is granted, that much is granted again.

        Args:
            listing: it adds nodes to a decision that is taken, so it need not count remembered units.
        """
        if listing:
            self.done -= self.recalled
            self.recalled = 0
        if self.few:
            self.limit = self.done + FEW

    def include(self, part: "Work") -> None:
        """Add work that had its own limit."""
        self.done += part.done
        self.recalled += part.recalled


class Need(msgspec.Struct, frozen=True, gc=False):
    """The amounts that a request takes of one card, in base units.

    Attributes:
        extras: native units (name, amount).
        slots: sharers it counts for.
        room: sharers that the card must have free; more than `slots` if the request limits other tenants.
        instance: the hardware instance that it takes, if any.
    """

    core_milli: int
    memory_bytes: int
    extras: tuple[tuple[str, int], ...] = ()
    slots: int = 1
    room: int = 1
    instance: MigSlice | None = None


def sharers_on(request: DeviceRequest, device: Device) -> int | None:
    """The most tenants that the pod's protocol allows on a device; None if its slots decide."""
    registered = request.registrar and device.registrar == request.registrar
    return None if registered else request.sharers


def slots_on(request: DeviceRequest, device: Device) -> int:
    """How many sharers of a device the request counts for."""
    return 1 + request.beside if device.seated and not request.whole else 1


def need_of(device: Device, request: DeviceRequest) -> Need:
    """The request's amounts on the card: all of a whole card, the asked part for a share.

    A share of the memory is rounded down to bytes, as Koordinator writes it (docs/sources/koordinator.md 2.5). Compute
    asked in native units is that part of the card's total, rounded up.
    """
    if request.whole:
        return Need(device.core_milli, device.memory_bytes, device.extras)
    memory = request.memory_bytes or device.memory_bytes * request.memory_milli // MILLI
    core = request.core_milli
    if request.core_unit:
        total = dict(device.extras).get(request.core_unit, 0)
        asked = dict(request.extras).get(request.core_unit, 0)
        core = min(MILLI, -(-asked * MILLI // total)) if total else MILLI
    slots = slots_on(request, device)
    return Need(core, memory, request.extras, slots, slots)


def grant_of(
    group: RequestGroup,
    device: Device,
    container: ContainerAsk | None = None,
    function: tuple[int, str] | None = None,
    template: str = "",
) -> Grant:
    """The grant of a whole device or a share, to a container or to none yet."""
    request = group.request
    need = need_of(device, request)
    if request.whole:
        mode = GrantMode.WHOLE
    elif template or device.vendor_cut:
        mode = GrantMode.VENDOR
    else:
        mode = GrantMode.SHARE
    return Grant(
        container=container.name if container else "",
        phase=container.phase if container else Phase.MAIN,
        type=device.type,
        minor=device.minor,
        uuid=device.uuid,
        core_milli=need.core_milli,
        memory_bytes=need.memory_bytes,
        mode=mode,
        protocol=group.protocol,
        extras=need.extras,
        exclusive=request.exclusive,
        sharers=sharers_on(request, device),
        function=function,
        template=template,
        fence=request.scope_exclusive,
    )


def unsuitable(
    device: Device, wanted: CardFilter, protocol: str, *, by_instance: bool = False
) -> CardReason | None:
    """Why a request with this filter does not accept a card, regardless of its free amounts, or None.

    Args:
        by_instance: whether the card should serve by a hardware instance, not by a share or as a whole.
    """
    found = _problem(device, wanted, protocol, by_instance=by_instance)
    return CardReason(found[0], device.minor, detail=found[1]) if found else None


def _problem(
    device: Device, wanted: CardFilter, protocol: str, *, by_instance: bool
) -> tuple[ReasonCode, str] | None:
    if protocol in device.hidden_from:
        return ReasonCode.CORDONED, f"closed to {protocol} pods"
    if vendor := _vendor_problem(device.vendor, wanted):
        return ReasonCode.TYPE_MISMATCH, vendor
    if wanted.use_types and not _named(wanted.use_types, device.model):
        model, asked = device.model or "of unknown model", alternatives(wanted.use_types)
        return ReasonCode.TYPE_MISMATCH, f"it is {model}, asked {asked}"
    if _named(wanted.avoid_types, device.model):
        return ReasonCode.TYPE_MISMATCH, f"{device.model} is refused"
    if mode := _mode_problem(device, wanted, by_instance=by_instance):
        return ReasonCode.MODE_MISMATCH, mode
    if wanted.use_uuids and device.uuid not in wanted.use_uuids:
        asked = alternatives(wanted.use_uuids)
        return ReasonCode.UUID_MISMATCH, f"it is {device.uuid}, asked {asked}"
    if device.uuid in wanted.avoid_uuids:
        return ReasonCode.UUID_MISMATCH, f"{device.uuid} is refused"
    if wanted.selector is not None and not wanted.selector.matches(device.labels):
        return ReasonCode.INSUFFICIENT_DEVICES, "its labels do not match the selector"
    cut = ""
    if by_instance and device.cutting is None:
        cut = f"{device.model or 'the card'} cannot be cut into instances"
    elif not by_instance and device.mode is SliceMode.MIG:
        cut = "the card is cut into instances only"
    return (ReasonCode.MIG_PLACEMENT, cut) if cut else None


def alternatives(asked: Sequence[str]) -> str:
    """The values that a pod accepts, in one phrase; a list may be long."""
    more = len(asked) - _MOST_NAMED
    # An invisible character would make a value look like the card's own.
    words = [one if one.isprintable() else repr(one) for one in asked[:_MOST_NAMED]]
    return " or ".join([*words, *([f"{more} more"] if more > 0 else [])])


@lru_cache(maxsize=256)
def _named(words: tuple[str, ...], model: str) -> bool:
    """Whether a model's name contains one of the words; asked for card after card, so it is remembered."""
    folded = model.lower()
    return any(word.lower() in folded for word in words)


def _mode_problem(device: Device, wanted: CardFilter, *, by_instance: bool) -> str:
    """Why a card of this mode is not accepted; a card in mode either matches any asked mode."""
    mode = device.mode
    if mode is SliceMode.EITHER:
        mode = SliceMode.MIG if by_instance else SliceMode.SHARE
    elif by_instance and mode is SliceMode.SHARE:
        return f"it is in mode {mode}"
    if wanted.modes and mode not in wanted.modes:
        return f"it is in mode {device.mode}, asked {' or '.join(wanted.modes)}"
    return ""


def _vendor_problem(vendor: str, wanted: CardFilter) -> str:
    """Why a card of this vendor is not accepted; a card of an unknown vendor always is."""
    card = f"{'an' if vendor[:1] in 'aeino' else 'a'} {vendor} card"
    if vendor and wanted.vendors and vendor not in wanted.vendors:
        return f"{card}, asked {' or '.join(wanted.vendors)}"
    if vendor and vendor in wanted.avoid_vendors:
        return f"{card}, whose plugin serves only pods that name its own resource"
    return ""


def refusal(card: Card, request: DeviceRequest, protocol: str) -> CardReason | None:
    """Why the card cannot serve the request now, or None if it can."""
    return unsuitable(card.device, request.filter, protocol) or taken_up(card, request)


def taken_up(card: Card, request: DeviceRequest) -> CardReason | None:
    """Why an accepted card cannot serve the request now, or None if it can."""
    minor = card.device.minor
    if card.closed not in (None, ReasonCode.CARD_NOT_IDLE):
        return CardReason(card.closed, minor, detail=card.closed_detail)
    if request.whole or request.unused or request.exclusive:
        reason = _busy(card)
        if reason is not None:
            return reason
    return _short(card, request) or _held(card, request)


def serves(card: Card, request: DeviceRequest) -> bool:
    """Whether `taken_up` finds nothing, but without a text: a search asks this card after card."""
    need, sharers = need_of(card.device, request), sharers_on(request, card.device)
    tenants, slots = card.tenants, card.slots_free
    if sharers is not None and sharers - tenants < slots:
        slots = sharers - tenants
    if (
        slots < need.slots
        or card.closed is not None
        or card.instances
        or need.memory_bytes > card.memory_free
        or need.core_milli > card.core_free
        or (tenants and (request.whole or request.unused or request.exclusive))
        or (request.claims_core and need.core_milli == 0 and card.core_free <= 0)
    ):
        return False
    if request.extras:
        free = card.extras_free or {}
        if any(amount > free.get(unit, 0) for unit, amount in request.extras):
            return False
    return request.filter.functions is None or has_function(card, request)


def bare_amounts(request: DeviceRequest) -> tuple[int, int] | None:
    """Compute and memory of a share that are the same on each card, if `serves` checks nothing else of it.

    None if it does: whole and idle cards, several containers, native units, functions, parts of a card's memory, no
    compute.
    """
    alone = request.whole or request.unused or request.exclusive or request.beside
    if alone or request.extras or request.core_unit or request.filter.functions is not None:
        return None
    if not request.core_milli or not request.memory_bytes:
        return None
    return request.core_milli, request.memory_bytes


def _busy(card: Card) -> CardReason | None:
    if card.tenants == 0 and card.closed is None:
        return None
    full = card.memory_free <= 0 or card.core_free <= 0
    code = none_left(card.device.type) if full else ReasonCode.CARD_NOT_IDLE
    many = card.tenants
    shared = "1 container is on it" if many == 1 else f"{many} containers are on it"
    return CardReason(code, card.device.minor, detail=card.closed_detail or shared)


def _short(card: Card, request: DeviceRequest) -> CardReason | None:
    need, minor = need_of(card.device, request), card.device.minor
    slots = card.slots_free
    sharers = sharers_on(request, card.device)
    if sharers is not None:
        slots = min(slots, sharers - card.tenants)
    if slots < need.slots:
        return CardReason(ReasonCode.INSUFFICIENT_SLOTS, minor, need.slots, max(slots, 0))
    if need.memory_bytes > card.memory_free:
        return CardReason(
            ReasonCode.INSUFFICIENT_MEMORY, minor, need.memory_bytes, card.memory_free
        )
    if need.core_milli > card.core_free:
        return CardReason(ReasonCode.INSUFFICIENT_CORE, minor, need.core_milli, card.core_free)
    if request.claims_core and need.core_milli == 0 and card.core_free <= 0:
        return CardReason(
            ReasonCode.INSUFFICIENT_CORE, minor, 0, 0, "all compute is taken, and none was asked"
        )
    free = card.extras_free or {}
    for unit, amount in request.extras:
        if amount > free.get(unit, 0):
            return CardReason(
                ReasonCode.INSUFFICIENT_DEVICES, minor, amount, free.get(unit, 0), unit
            )
    return None


def _held(card: Card, request: DeviceRequest) -> CardReason | None:
    minor = card.device.minor
    if card.closed is not None:
        return CardReason(card.closed, minor, detail=card.closed_detail)
    if card.instances:
        return CardReason(ReasonCode.CARD_NOT_IDLE, minor, detail="it is cut into instances")
    if request.filter.functions is not None and not has_function(card, request):
        return CardReason(
            ReasonCode.INSUFFICIENT_DEVICES, minor, detail="no free virtual function matches"
        )
    return None


def has_function(card: Card, request: DeviceRequest) -> bool:
    """Whether a virtual function that the request accepts is free."""
    return next(_free_functions(card, request), None) is not None


def first_function(card: Card, request: DeviceRequest) -> tuple[int, str] | None:
    """Minor and PCI address of the free virtual function with the smallest address that the request accepts."""
    free = min(_free_functions(card, request), key=lambda function: function.bus_id, default=None)
    return None if free is None else (free.minor, free.bus_id)


def _free_functions(card: Card, request: DeviceRequest) -> Iterator[VirtualFunction]:
    selector = request.filter.functions
    if selector is not None:
        for function in accepted(card.device.functions, selector):
            if function.bus_id not in card.functions_taken:
                yield function


def accepted(
    functions: Iterable[VirtualFunction], selector: Selector
) -> Iterator[VirtualFunction]:
    """The functions that a selector accepts; a group has the same labels, so it is tested once."""
    for labels, members in groups_of(functions):
        if selector.matches(labels):
            yield from members


def groups_of(
    functions: Iterable[VirtualFunction],
) -> Iterator[tuple[Mapping[str, str], Iterator[VirtualFunction]]]:
    """Rows of virtual functions with the same labels; an unread row has almost no cost."""
    return groupby(functions, key=_LABELS)


def take(card: Card, request: DeviceRequest, functions: tuple[str, ...] = ()) -> Need:
    """Apply a request to a scratch copy of a card; returns the changes."""
    need = need_of(card.device, request)
    room = _room(card, request, need.slots)
    if room != need.room:
        need = msgspec.structs.replace(need, room=room)
    card.core_free -= need.core_milli
    card.memory_free -= need.memory_bytes
    card.slots_free -= need.room
    card.tenants += need.slots
    if need.extras:
        free = card.extras_free or {}
        card.extras_free = {**free, **{u: free.get(u, 0) - a for u, a in need.extras}}
    if functions:
        card.functions_taken |= frozenset(functions)
    return need


def _room(card: Card, request: DeviceRequest, slots: int) -> int:
    after, sharers = card.slots_free - slots, sharers_on(request, card.device)
    if request.whole:
        after = min(after, 0)
    elif sharers is not None:
        after = min(after, sharers - card.tenants - slots)
    return card.slots_free - after


def give(card: Card, need: Need, functions: tuple[str, ...] = ()) -> None:
    """Undo the changes of `take`."""
    card.core_free += need.core_milli
    card.memory_free += need.memory_bytes
    card.slots_free += need.room
    card.tenants -= need.slots
    if need.extras:
        free = card.extras_free or {}
        card.extras_free = {**free, **{u: free.get(u, 0) + a for u, a in need.extras}}
    if functions:
        card.functions_taken -= frozenset(functions)
    if need.instance is not None:
        place = len(card.instances) - 1 - card.instances[::-1].index(need.instance)
        card.instances = (*card.instances[:place], *card.instances[place + 1 :])
