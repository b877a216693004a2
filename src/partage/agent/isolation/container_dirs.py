"""Rooms: the files on the node that a container's enforcement library reads, and the seats of its cards.

    boot                        the boot of the machine that all other files belong to
    lib/libpartage-isolation-<hash>.so
    seats/<uuid>/               the seats of a card, one file a tenant; mounted read-only into all of them
    private/<id>/account        shared by the processes of one container
    containers/<id>/            one room a container, mounted read-only into it:
        limits, amounts, preload and the library; places to mount account and seats on

No two containers share a file that both may write or take a lease on: each has a copy of the library and writes
only its own seat. Files that a container may write lie on memory of a fixed size (`memory`).

A room is completed under another name and then renamed, so a crash leaves a whole room or none. After a restart the
agent reads the seats from the rooms' limits; no other file records them. Rooms belong to containers, which do
not outlive the machine: after a boot the agent creates everything but the library again.
"""

import contextlib
import hashlib
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

from partage.agent.isolation.amounts import NAME, make_amounts, read_amounts, set_amounts
from partage.agent.isolation.files import TenantFiles
from partage.agent.isolation.library import digest, install
from partage.agent.isolation.limits import VERSION, CardLimits, ContainerLimits, read, write
from partage.agent.isolation.seats import given_seats
from partage.model.device import SEATS
from partage.model.errors import InvalidDocument, InvalidValue
from partage.vendors.wishes import Policy, Priority

INSIDE: Final = "/usr/local/partage/isolation"
"""Where a container sees its room."""
PRELOAD: Final = "/etc/ld.so.preload"
_MOUNTS: Final = "proc/1/mountinfo"
"""The mounts that the host sees: its first process is not in this process's container."""
_BOOT: Final = "proc/sys/kernel/random/boot_id"
_LIMITS_BYTES: Final = 16384
_DIGEST: Final = "digest"
"""Of the limits, in a file beside them: the library accepts no lines that it does not know."""
_NOTE_BYTES: Final = 512


@dataclass(frozen=True, slots=True)
class CardQuota:
    """What a container may use of one card, before a seat is allocated; the fields are those of `CardLimits`."""

    uuid: str
    memory_bytes: int
    core_milli: int
    policy: Policy
    priority: Priority = Priority.ORDINARY
    swap_bytes: int = 0
    context_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Room:
    """One container's room.

    Attributes:
        folder, source: as this process sees it, and as the host does.
        limits: those written when it was made.
        amounts: its cards with the current memory and compute; empty if an older agent made it: they cannot change.
        seats: folder of the seats of all cards.
        spared: why the library is not loaded there; empty if it is.
    """

    folder: Path
    source: str
    library: str
    limits: ContainerLimits
    seats: Path
    account: Path
    spared: str = ""
    amounts: tuple[CardLimits, ...] = ()

    @property
    def cards(self) -> tuple[CardLimits, ...]:
        """What the container may use of its cards now."""
        return self.amounts or self.limits.cards

    @property
    def inside(self) -> str:
        """The library's path in the container."""
        return f"{INSIDE}/{self.library}"

    def seats_of(self, card: CardLimits) -> Path | None:
        """The seats of a card; None if the container has none: it is not gated, or of an older version."""
        if self.limits.version != VERSION or card.policy is Policy.NONE:
            return None
        return self.seats / card.uuid


class Rooms:
    """The node's `rooms`, by the runtime's identity of their container, and the `library` of new ones; for one process."""

    def __init__(self, built: Path, here: Path, host: str, root: Path = Path("/")) -> None:
        """Take over the rooms of an earlier agent, or begin.

        `built`: the library as it was built. `here`: folder of all this, as this process sees it; `host`: as the host
        does. Raises `InvalidDocument`: the library cannot be read or a folder cannot be made; the text says which.
        """
        self._here, self._host = here, host
        self.rooms: dict[str, Room] = {}
        self._strange: set[str] = set()
        self.problems: list[str] = []
        try:
            for name in ("", "lib", "containers"):
                (here / name).mkdir(mode=0o755, parents=True, exist_ok=True)
            self._files = TenantFiles(here, host, root / _MOUNTS)
            if self._files.problem:
                self.problems.append(self._files.problem)
            self.library = install(built, here / "lib")
            self._after_boot((root / _BOOT).read_text("ascii", "replace").strip())
            self._tidy()
            self._take_up()
        except OSError as error:
            raise InvalidDocument(
                f"isolation: {error.filename or here}: {error.strerror or error}"
            ) from error

    def open(self, container: str, quota: Sequence[CardQuota]) -> Room:
        """Make a container's room, and replace an earlier one.

        Raises `InvalidValue`: a card has no seat left, or an amount is out of its range; `OSError`.
        """
        _check(container)
        self._read_again()
        if container in self._strange:
            raise InvalidValue(f"the folder of container {container} is there and cannot be read")
        self.close(container)
        draft = self._here / "containers" / f".{container}"
        folder = self._here / "containers" / container
        given: list[CardLimits] = []
        try:
            for index, card in enumerate(quota):
                given.append(self._seated(index, card))  # these are freed again after an error
            limits = ContainerLimits(_identity(container), tuple(given))
            room = replace(self._room(folder, self.library.name, limits), amounts=limits.cards)
            shutil.rmtree(draft, ignore_errors=True)
            draft.mkdir(mode=0o755)
            self._files.open_account(container)
            for one in limits.cards:
                (draft / one.seats).mkdir(mode=0o755)
            shutil.copyfile(self.library, draft / self.library.name)
            (draft / self.library.name).chmod(0o555)
            _put(draft / limits.account, "")
            _put(draft / "preload", f"{INSIDE}/{self.library.name}\n")
            write(draft / "limits", limits)
            _put(draft / _DIGEST, f"{digest(draft / 'limits')}\n")
            make_amounts(draft / NAME, limits.cards)
            draft.rename(folder)
        except (OSError, InvalidDocument, InvalidValue) as error:
            shutil.rmtree(draft, ignore_errors=True)
            self._freed(given, seated=True)
            self._files.close_account(container)
            if isinstance(error, InvalidDocument):
                raise InvalidValue(str(error)) from error
            raise
        self.rooms[container] = room
        return room

    def adjust(self, container: str, cards: tuple[CardLimits, ...]) -> None:
        """Put other amounts in force, also for running programs; a crash leaves each at its old or its new value.

        `cards`: the room's with the new amounts. Raises `InvalidValue`: an older agent made the room; `OSError`.
        """
        room = self.rooms[container]
        if not room.amounts:
            raise InvalidValue("its limits are of an older agent, and change with its next start")
        try:
            for index, card in enumerate(cards):
                set_amounts(room.folder / NAME, index, card)
                self._tell_others(room, card)
        except (OSError, InvalidDocument) as error:
            with contextlib.suppress(OSError, InvalidDocument):  # some may be in force
                cards = read_amounts(room.folder / NAME, room.limits.cards)
                self.rooms[container] = replace(room, amounts=cards)
            if isinstance(error, InvalidDocument):
                raise InvalidValue(str(error)) from error
            raise
        self.rooms[container] = replace(room, amounts=cards)

    def _tell_others(self, room: Room, card: CardLimits) -> None:
        if room.seats_of(card) is not None:
            self._files.tell(card)

    def spare(self, container: str, why: str) -> None:
        """Keep the library out of a container before its start: its loader finds an empty list. Raises `OSError`."""
        room = self.rooms[container]
        (room.folder / "preload").chmod(0o644)
        (room.folder / "spared").write_text(why[:_NOTE_BYTES], encoding="utf-8")
        # In place: the container has this file mounted.
        (room.folder / "preload").write_text("", encoding="ascii")
        self.rooms[container] = replace(room, spared=why[:_NOTE_BYTES])

    def close(self, container: str) -> None:
        """Release the seats of an ended container, if it has a room, which stays if this raises `OSError`."""
        room = self.rooms.get(container)
        if room is None:
            return
        gone = room.folder.with_name(f".{container}")
        shutil.rmtree(gone, ignore_errors=True)
        with contextlib.suppress(FileNotFoundError):
            room.folder.rename(gone)
        del self.rooms[container]
        shutil.rmtree(gone, ignore_errors=True)
        self._freed(room.limits.cards, seated=room.limits.version == VERSION)
        self._files.close_account(container)

    def _freed(self, cards: Iterable[CardLimits], *, seated: bool) -> None:
        """Release the seats of a room that does not exist (any more)."""
        for card in cards:
            if not self._strange and not any(self._tenants(card.uuid)):
                self._files.close_card(card.uuid)
            elif seated and card.policy is not Policy.NONE:
                self._files.close_seat(card)

    def mend(self) -> None:
        """Restore the size of seats, and of accounts that containers made longer."""
        self._files.mend(list(self.rooms))

    def keep(self, containers: Collection[str]) -> list[str]:
        """Close all other rooms and return their containers. Raises `OSError`."""
        self._read_again()
        for container in self._strange.difference(containers):
            shutil.rmtree(self._here / "containers" / container, ignore_errors=True)
            self._files.close_account(container)
            self._strange.discard(container)
        gone = [container for container in self.rooms if container not in containers]
        problem: OSError | None = None
        for container in gone:
            try:
                self.close(container)
            except OSError as error:
                problem = error  # of one room: the other containers have ended as well
        if problem is not None:
            raise problem
        return gone

    def _tenants(self, uuid: str) -> Iterator[CardLimits]:
        for room in self.rooms.values():
            yield from (card for card in room.limits.cards if card.uuid == uuid)

    def _seated(self, index: int, card: CardQuota) -> CardLimits:
        """A card of a container, with the first usable seat: tenants may have spoilt some."""
        _check(card.uuid)
        gated = card.policy is not Policy.NONE
        # Containers without turns open no seat. The number of seats does not limit them, and they leave all to others.
        taken = {
            theirs.slot
            for theirs in self._tenants(card.uuid)
            if gated and theirs.policy is not Policy.NONE
        }
        if self._strange and gated:
            # This covers the seat of an unreadable room. Older agents did not mark every seat, but allocated the first
            # ones.
            taken |= given_seats(self._files.seats / card.uuid)
        slots = reversed(range(SEATS)) if self._strange else range(SEATS)
        if gated:
            self._files.open_card(card.uuid)
        problem: OSError | InvalidDocument | InvalidValue = InvalidValue(
            f"card {card.uuid}: all its {SEATS} seats are taken"
        )
        for slot in slots:
            if slot in taken:
                continue
            found = CardLimits(seats=f"card-{index}", slot=slot, **asdict(card))
            try:
                if gated:
                    self._files.open_seat(found)
            except (OSError, InvalidDocument) as error:
                problem = error
                continue
            return found
        raise problem

    # --- from one run to the next ------------------------------------------------------------

    def _after_boot(self, boot: str) -> None:
        # Two files: if a disk changed a single one, running containers would lose their rooms.
        notes = [self._here / name for name in ("boot", "boot.2")]
        said = [
            note.read_text("ascii", "replace").strip() if note.exists() else "" for note in notes
        ]
        if boot not in said:
            self._files.tidy((), ())
            shutil.rmtree(self._here / "containers")
            (self._here / "containers").mkdir(mode=0o755)
        for note, before in zip(notes, said, strict=True):
            if before != boot:
                draft = self._here / ".boot"
                draft.write_text(f"{boot}\n", encoding="ascii")
                draft.replace(note)

    def _tidy(self) -> None:
        """Remove half-made files of a crash, and libraries that no room uses any more."""
        for folder in ("containers", "lib"):
            for path in (self._here / folder).glob(".*"):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
        for path in (self._here / "lib").iterdir():
            if path != self.library:
                path.unlink()  # rooms have copies

    def _take_up(self) -> None:
        for folder in sorted((self._here / "containers").iterdir()):
            try:
                room = self._read(folder)
            except (OSError, InvalidDocument, StopIteration) as error:
                # A later agent may have made it; its container continues with it.
                self.problems.append(
                    f"the folder of container {folder.name} cannot be read and is left: {error}"
                )
                self._strange.add(folder.name)
                continue
            self.rooms[folder.name] = room
        cards = {card.uuid for room in self.rooms.values() for card in room.limits.cards}
        for uuid in cards:
            self._files.hold_card(uuid)
        if self._strange:
            return
        self._files.tidy(self.rooms, cards)
        for room in self.rooms.values():
            for card in room.amounts:
                with contextlib.suppress(OSError, InvalidDocument):
                    self._tell_others(room, card)  # a crash may have preceded it
        if all(room.limits.version == VERSION for room in self.rooms.values()):
            # Pages of cards that libraries of version 1 shared.
            shutil.rmtree(self._here / "cards", ignore_errors=True)

    def _read_again(self) -> None:
        """Take over rooms that could not be read before, because a disk failed for a moment."""
        for name in sorted(self._strange):
            with contextlib.suppress(OSError, InvalidDocument, StopIteration):
                self.rooms[name] = self._read(self._here / "containers" / name)
                self._strange.discard(name)
                for card in self.rooms[name].limits.cards:
                    self._files.hold_card(card.uuid)

    def _room(self, folder: Path, library: str, limits: ContainerLimits, why: str = "") -> Room:
        account = folder / limits.account
        if limits.version == VERSION:
            account = self._files.account_of(folder.name)
        source = f"{self._host}/containers/{folder.name}"
        return Room(folder, source, library, limits, self._files.seats, account, why)

    def _read(self, folder: Path) -> Room:
        path, check = folder / "limits", folder / _DIGEST
        with path.open("rb") as file:
            limits = read(file.read(_LIMITS_BYTES + 1).decode("ascii", "replace"), str(path))
        if check.exists() and check.read_text("ascii", "replace") != f"{digest(path)}\n":
            raise InvalidDocument(f"{path}: not as it was written: its digest is another one")
        library = next(path.name for path in sorted(folder.iterdir()) if path.suffix == ".so")
        spared = folder / "spared"
        why = spared.read_text("utf-8", "replace") if spared.exists() else ""
        room = self._room(folder, library, limits, why)
        page = folder / NAME
        return replace(room, amounts=read_amounts(page, limits.cards)) if page.exists() else room


def _check(name: str) -> None:
    """Refuse names that lead out of the folder."""
    if not name or name.startswith(".") or "/" in name or "\0" in name:
        raise InvalidValue(f"{name[:64]!r} cannot be the name of a file")


def _put(path: Path, text: str) -> None:
    path.write_text(text, encoding="ascii")
    path.chmod(0o444)


def _identity(container: str) -> int:
    """A number that identifies the container on its cards; never 0."""
    return int.from_bytes(hashlib.sha256(container.encode()).digest()[:8]) or 1
