"""The folders of files that containers may write: the seats of each card, the account of each container.

Each lies on memory that has room for it and little else, if the host sees the mounts of this process. Otherwise it
lies on the disk, and `problem` reports this.
"""

import contextlib
import errno
import logging
import os
import shutil
from collections.abc import Collection
from pathlib import Path
from typing import Final

from partage.agent.isolation import seats
from partage.agent.isolation.account import ACCOUNT_BYTES, make_account
from partage.agent.isolation.held_files import HeldFiles
from partage.agent.isolation.limits import CardLimits
from partage.agent.isolation.memory import bound, enlarge, is_seen, mounted, unbind
from partage.agent.isolation.seats import SEAT_BYTES
from partage.agent.isolation.shared import mend, opened
from partage.model.device import SEATS
from partage.model.errors import InvalidDocument

_LOG: Final = logging.getLogger("partage.agent")
_SEATS: Final = "seats"
_PRIVATE: Final = "private"
_ACCOUNT: Final = "account"
_PROBE: Final = ".probe"


class TenantFiles:
    """The files of one node; for one process. If they are not `in_memory` of a fixed size, `problem` says why.

    Methods raise `InvalidDocument` if a file is not the agent's, and `OSError` if it cannot be made, opened or written.
    """

    def __init__(self, here: Path, host: str, mounts: Path) -> None:
        """Take the folders as they are, all in `here`, which is `host` to the host. Raises `OSError`."""
        self.seats = here / _SEATS
        self._private = here / _PRIVATE
        self._host, self._mounts = host, mounts
        self._held = HeldFiles()
        for folder in (self.seats, self._private):
            folder.mkdir(mode=0o755, exist_ok=True)
        probe = self._private / _PROBE
        probe.mkdir(exist_ok=True)
        why = self._bound(probe, f"{_PRIVATE}/{_PROBE}", ACCOUNT_BYTES, 1)
        with contextlib.suppress(OSError):
            unbind(probe)
            probe.rmdir()
        self.in_memory = not why
        self.problem = why and (
            "files that containers may write lie on the disk, which a hostile one could fill between two looks: "
            f"memory of their size cannot be mounted ({why})"
        )

    def account_of(self, container: str) -> Path:
        """The path of a container's account."""
        return self._private / container / _ACCOUNT

    def open_account(self, container: str) -> None:
        """Make a container's account. Raises `OSError`."""
        folder = self._private / container
        _removed(folder)  # of an account that could not be made or removed
        folder.mkdir(mode=0o755)
        why = self.in_memory and self._bound(folder, f"{_PRIVATE}/{container}", ACCOUNT_BYTES, 1)
        if why:
            raise OSError(errno.EIO, why, str(folder))
        make_account(folder / _ACCOUNT, sparse=self.in_memory)

    def close_account(self, container: str) -> None:
        """Remove it; nothing happens if there is none."""
        _removed(self._private / container)

    def open_card(self, uuid: str) -> None:
        """Make the seats of a card, unless they exist. Raises `InvalidDocument`: not the agent's file; `OSError`."""
        folder = self.seats / uuid
        if not folder.exists():
            folder.mkdir(mode=0o755)
        # Not over files in use by tenants: an agent that could not mount made them.
        if self.in_memory and not any(folder.iterdir()):
            # Twice: a former tenant may hold each seat's former file, and the agent holds it for a while.
            why = self._bound(folder, f"{_SEATS}/{uuid}", SEAT_BYTES, 2 * (SEATS + 1))
            if why:
                raise OSError(errno.EIO, why, str(folder))
        seats.make_seats(folder)
        self.hold_card(uuid)

    def hold_card(self, uuid: str) -> None:
        """Open the seats of a card that tenants have, so that no other process can take a lease on them."""
        with contextlib.suppress(OSError):
            seats.remove_drafts(self.seats / uuid)
        self._held.hold(seats.files_of(self.seats / uuid))

    def open_seat(self, card: CardLimits) -> None:
        """Allocate its seat to a container. Raises `InvalidDocument`: a file there is not the agent's; `OSError`."""
        folder = self.seats / card.uuid
        while True:
            try:
                seats.give_seat(folder, card, self._held)
            except OSError as error:
                if error.errno != errno.ENOSPC or not enlarge(folder):
                    raise
            else:
                return

    def tell(self, card: CardLimits) -> None:
        """Write the current terms of one tenant for all tenants of its card."""
        seats.tell_terms(self.seats / card.uuid, card, self._held)

    def close_seat(self, card: CardLimits) -> None:
        """Release a seat; if this fails, the seat gets its next file at its next allocation."""
        with contextlib.suppress(OSError, InvalidDocument):
            seats.free_seat(self.seats / card.uuid, card.slot, self._held)

    def close_card(self, uuid: str) -> None:
        """Remove the seats of a card without tenants; nothing happens if there are none."""
        self._held.let_go(self.seats / uuid)
        _removed(self.seats / uuid)

    def mend(self, containers: Collection[str]) -> None:
        """Restore the size of all seats, and of accounts that were made longer.

        A file that cannot be restored now is tried again the next time. An account that was truncated stays so: its
        counts are lost, and zeros in their place would hide this. The container's condition reports it instead.
        """
        with contextlib.suppress(OSError):
            self._held.again()
            for folder in self.seats.iterdir():
                seats.mend_seats(folder, self._held)
        for container in containers:
            with contextlib.suppress(OSError, InvalidDocument):
                account = self.account_of(container)
                if account.stat().st_size > ACCOUNT_BYTES:
                    with opened(account, write=True) as descriptor:
                        mend(descriptor, ACCOUNT_BYTES)

    def tidy(self, containers: Collection[str], cards: Collection[str]) -> None:
        """Remove all but the accounts of these containers and the seats of these cards. Raises `OSError`."""
        for top, kept in ((self._private, containers), (self.seats, cards)):
            for folder in top.iterdir():
                if folder.name not in kept:
                    self._held.let_go(folder)
                    _removed(folder)

    def _bound(self, folder: Path, name: str, file_bytes: int, files: int) -> str:
        """Why a folder is not memory of a fixed size; empty if it is."""
        try:
            bound(folder, file_bytes, files)
        except OSError as error:
            return error.strerror or str(error)
        if is_seen(folder, os.path.join(self._host, name), self._mounts):  # noqa: PTH118 # the host's path
            return ""
        unbind(folder)
        return "the host does not see what is mounted here"


def _removed(folder: Path) -> None:
    """Remove a folder, mounted or not; processes that have its files mounted or mapped keep them.

    Nothing is removed through a mount that stays: the files behind it may belong to others, or be in use. A
    warning names the folder; the next tidying tries again.
    """
    try:
        unbind(folder)
        still = mounted(folder)
    except OSError as error:
        _LOG.warning("folder %s is left: it cannot be unmounted: %s", folder, error)
        return
    if still:
        _LOG.warning("folder %s is left: something is mounted at %s", folder, still)
        return
    shutil.rmtree(folder, ignore_errors=True)
