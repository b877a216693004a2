"""Changes amounts of shares while their containers run: the node's next step, and whether the use fits.

The enforced amount never exceeds the record, because the ledger has reserved the record. Each step follows from the pod
and the journal, so an agent that died at any step continues from there:

    lower   page of the containers ──the use fits──> journal ──> report on the pod
    raise   report on the pod, if its record is still the one that was read ──> journal ──> page

The report (`partage.io/enforced`) is a promise: the scheduler lowers the record to it and allocates the rest to others.
The agent therefore lowers the report last, and raises it first.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from partage.agent.isolation.account import Process, read_account
from partage.agent.isolation.container_dirs import Room
from partage.agent.isolation.limits import CardLimits
from partage.agent.isolation.processes import numbers_of, processes_of
from partage.model.adjustment import Grants, adjustable, least
from partage.model.errors import InvalidDocument, InvalidValue
from partage.wire.adjustment import asked


@dataclass(frozen=True, slots=True)
class Aim:
    """What a pod's shares are to be.

    Attributes:
        grants: with the amounts to enforce.
        lowered: the same as far as they are less than now: what is done first.
        answered: all that the pod asks is there once these are enforced; else the scheduler has the next word.
    """

    grants: Grants
    lowered: Grants
    answered: bool


def aim(record: Grants, wish: str, held: Grants) -> Aim:
    """What to enforce: what is asked, as far as the record goes.

    Args:
        record: what the ledger has reserved.
        wish: the pod's annotation; empty for none. One that cannot be followed counts as none: others tell its author.
        held: by the journal.

    Raises:
        InvalidValue: the record is of other devices than the containers were given.
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
    """A container's cards with the amounts of a pod's grants; what has no cap or no quota stays so."""
    amounts = {one.uuid: one for one in grants if one.container == container and adjustable(one)}
    found = []
    for card in cards:
        grant = amounts.get(card.uuid)
        if grant is not None:
            card = replace(  # noqa: PLW2901 # the same card
                card,
                memory_bytes=grant.memory_bytes if card.memory_bytes else 0,
                core_milli=grant.core_milli if card.core_milli else 0,
            )
        found.append(card)
    return tuple(found)


def in_force(rooms: Mapping[str, Room], names: Mapping[str, str], grants: Grants) -> bool:
    """Whether the containers of a pod, by their `names`, are held to these amounts."""
    return all(
        room.cards == as_asked(room.cards, names[container], grants)
        for container, room in rooms.items()
    )


def beyond(
    rooms: Mapping[str, Room],
    used: Mapping[str, Mapping[int, int]],
    proc: Path = Path("/proc"),
) -> str:
    """Why what containers use does not fit what is in force in them, in words; empty where it does. It reads files.

    Args:
        rooms: by container, as they are in force.
        used: bytes by card and process, for cards whose driver tells.
    """
    pids = processes_of(rooms, proc)
    for container, room in rooms.items():
        try:
            processes = read_account(room.account, len(room.limits.cards))
        except (InvalidDocument, OSError) as error:
            return f"what it uses cannot be read: {error}"
        mine = pids.get(container)
        alive = None if mine is None else _identities(mine, proc)
        for index, card in enumerate(room.cards):
            if not card.memory_bytes:
                continue
            counted = _counted(processes, index, alive)
            told = sum(used.get(card.uuid, {}).get(pid, 0) for pid in mine or ())
            if max(counted, told) > card.memory_bytes + card.swap_bytes:
                most = f"{card.memory_bytes / 2**20:g} MiB"
                return f"more than {most} of card {card.uuid} are in use; they are taken back once they are free"
    return ""


def _identities(pids: Iterable[int], proc: Path) -> set[tuple[int, int]]:
    found = (numbers_of(pid, proc) for pid in pids)
    return {(one.inner, one.start) for one in found if one is not None}


def _counted(
    processes: Iterable[Process], card: int, alive: Collection[tuple[int, int]] | None
) -> int:
    """Bytes that a container's processes counted, as the library adds them up; of all, where it is not known who lives."""
    return sum(
        one.cards[card].counted + (one.cards[card].overhead or one.cards[card].allowance)
        for one in processes
        if alive is None or (one.pid, one.start) in alive
    )
