"""Changes amounts of shares while their containers run: the node's next step, and whether the use fits.

The enforced amount never exceeds the record, because the ledger has reserved the record. Each step follows from the pod
and the journal, so an agent that died at any step continues from there:

    lower   page of the containers ──the use fits──> journal ──> report on the pod
    raise   report on the pod, if its record is still the one that was read ──> journal ──> page

The report (`partage.io/enforced`) is a promise: the scheduler lowers the record to it and allocates the rest to others.
The agent therefore lowers the report last, and raises it first.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from partage.agent.isolation.account import read_account, read_holders
from partage.agent.isolation.container_dirs import Room
from partage.agent.isolation.limits import CardLimits
from partage.agent.isolation.processes import listed, numbers_of
from partage.agent.isolation.shared import without_place
from partage.model.adjustment import Grants, adjustable, least
from partage.model.errors import InvalidDocument, InvalidValue
from partage.wire.adjustment import asked


@dataclass(frozen=True, slots=True)
class Aim:
    """The amounts that a pod's shares must get.

    Attributes:
        grants: with the amounts to enforce.
        lowered: the same, but only where they are smaller than now: these are enforced first.
        answered: the whole wish of the pod is fulfilled once these are enforced; otherwise the scheduler acts next.
    """

    grants: Grants
    lowered: Grants
    answered: bool


def aim(record: Grants, wish: str, held: Grants) -> Aim:
    """The amounts to enforce: the wish, as far as the record allows. Raises `InvalidValue`: they are of other devices.

    `record`: the ledger's reservation. `wish`: the pod's annotation; an invalid one counts as none, because other code
    reports it to its author. `held`: by the journal.
    """
    wanted = record
    if wish:
        try:
            wanted = asked(wish, record)
        except InvalidValue:
            wish = ""
    grants = least(record, wanted)
    return Aim(grants, least(grants, held), bool(wish) and grants == wanted)


def as_asked(
    cards: tuple[CardLimits, ...], container: str, grants: Grants
) -> tuple[CardLimits, ...]:
    """A container's cards with the amounts of a pod's grants; a card without cap or quota stays without."""
    amounts = {one.uuid: one for one in grants if one.container == container and adjustable(one)}
    return tuple(
        replace(
            card,
            memory_bytes=grant.memory_bytes if card.memory_bytes else 0,
            core_milli=grant.core_milli if card.core_milli else 0,
        )
        if (grant := amounts.get(card.uuid)) is not None
        else card
        for card in cards
    )


def in_force(rooms: Mapping[str, Room], names: Mapping[str, str], grants: Grants) -> bool:
    """Whether the containers of a pod, by their `names`, have these amounts in force."""
    return all(
        room.cards == as_asked(room.cards, names[container], grants)
        for container, room in rooms.items()
    )


def beyond(
    rooms: Mapping[str, Room], used: Mapping[str, Mapping[int, int]], proc: Path = Path("/proc")
) -> str:
    """Why the containers' use does not fit the amounts in force, in words; empty if it fits. It reads files.

    `used`: bytes by card and process, for cards whose driver reports them.
    """
    pids, whole = listed(rooms, proc)
    if not whole:
        return "what it uses cannot be read: the node has more processes than one look can list"
    for container, room in rooms.items():
        mine, cards = pids.get(container), len(room.limits.cards)
        try:
            if mine is None:  # all count if live ones are unknown
                processes = read_account(room.account, cards)
            else:
                numbers = (numbers_of(pid, proc) for pid in mine)
                alive = {(one.inner, one.start) for one in numbers if one is not None}
                processes = read_holders(room.account, cards, alive)
        except (InvalidDocument, OSError) as error:
            return (
                f"what it uses cannot be read: its account: {without_place(error, room.account)}"
            )
        for index, card in enumerate(room.cards):
            if not card.memory_bytes:
                continue
            parts = [one.cards[index] for one in processes]  # summed as the library does
            counted = sum(one.counted + (one.overhead or one.allowance) for one in parts)
            told = sum(used.get(card.uuid, {}).get(pid, 0) for pid in mine or ())
            if max(counted, told) > card.memory_bytes + card.swap_bytes:
                most = f"{card.memory_bytes / 2**20:g} MiB"
                return f"more than {most} of card {card.uuid} are in use; they are taken back once they are free"
    return ""
