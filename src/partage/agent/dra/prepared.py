"""Claims that are prepared on this node: written to disk, and named to the container runtime.

    <journal>/claims/<uid>.json          the claim's devices, with a check (`seal`), kept until it is unprepared
    <cdi>/partage.io-claim_<uid>.json    one CDI device for each of its devices

The journal's file is written first and removed last. A crash may leave a claim that reserves devices and cannot be
used yet, but never a claim in use that is unknown. After a boot the CDI folder is empty and is restored from it.

A CDI device gives a container only a mark. The plugin of the runtime, which sees the container, adds the claim's
devices in the same way as for pods with a record, and removes the mark. A container that is created while that plugin
is away has the mark and no device. A mark is a secret of this node that other containers do not see, so no tenant
can write one into a pod.
"""

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from partage.agent.container_edits import MARK
from partage.agent.dra.allocated import Allocated, Part
from partage.agent.mig.journal import flush_folder, replace_file
from partage.agent.seal import sealed, unsealed
from partage.model.allocation import Allocation
from partage.model.errors import UNREADABLE, InvalidDocument, InvalidValue
from partage.wire.record import decode, encode

KIND: Final = "partage.io/claim"
_MARK: Final = f"{MARK}CLAIM_"
_CDI_VERSION: Final = "0.3.0"
_PREFIX: Final = "partage.io-claim_"
_VERSION: Final = 1
_UID: Final = re.compile(r"[0-9A-Za-z][-0-9A-Za-z]{0,62}")
_LARGEST: Final = 1 << 20
_PRIVATE: Final = 0o600


class Prepared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One claim.

    Attributes:
        token: marks its containers.
        record: the sum of its parts, in the form of a pod's `partage.io/allocation`; its containers are the numbers of
            the parts.
    """

    v: int
    uid: str
    namespace: str
    name: str
    token: str
    parts: tuple[Part, ...]
    record: str

    @property
    def key(self) -> str:
        """`namespace/name`."""
        return f"{self.namespace}/{self.name}"

    def cdi(self, number: int) -> str:
        """The CDI name of one of its devices."""
        return f"{KIND}={_device(self.uid, number)}"


class Claims:
    """The prepared claims of one node; for one thread at a time. While any file is `damaged`, no card is free."""

    def __init__(self, folder: Path, cdi: Path, node: str, token: Callable[[], str]) -> None:
        """Take over an earlier agent's claims. Raises `OSError`: a folder cannot be used.

        `folder`: of the claims' files. `cdi`: of the specifications that the runtime watches. `token`: makes a secret.
        """
        self._folder, self._cdi, self._node, self._token = folder, cdi, node, token
        self._held: dict[str, tuple[Prepared, Allocation]] = {}
        self.damaged: dict[str, str] = {}
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        cdi.mkdir(parents=True, exist_ok=True)
        # Left by a killed agent: a claim never has the same name again.
        for path in (*_listed(folder, ".", ".new"), *_listed(cdi, f".{_PREFIX}", ".new")):
            path.unlink(missing_ok=True)
        for path in sorted(_listed(folder, "", ".json")):
            try:
                one, allocation = self._read(path)
            except (OSError, InvalidDocument, *UNREADABLE) as error:
                self.damaged[path.name] = str(error)
            else:
                self._held[one.uid] = one, allocation
        self._name_all()

    @property
    def prepared(self) -> Mapping[str, Prepared]:
        """By uid; callable from any thread."""
        return {uid: one for uid, (one, _) in list(self._held.items())}

    @property
    def allocations(self) -> list[Allocation]:
        """Their allocations; callable from any thread."""
        return [allocation for _, allocation in list(self._held.values())]

    def closed(self, beside: str = "") -> str:
        """Why no card is known to be free, except for one uid's claim; usually empty."""
        others = ((name, why) for name, why in self.damaged.items() if name != f"{beside}.json")
        return next((f"claim file {name}: {why}" for name, why in others), "")

    def put(self, one: Allocated) -> Prepared:
        """Record a claim, and name its devices to the runtime; an existing claim stays unchanged.

        Raises `InvalidValue`: its uid is invalid; `OSError`: the disk refuses it. A claim that is recorded already is
        held, and named at the next request.
        """
        uid = one.allocation.uid
        if (known := self.again(uid)) is not None:
            return known
        if not _UID.fullmatch(uid):
            raise InvalidValue(f"uid {uid[:80]!r} of a ResourceClaim is none")
        key, record = (one.allocation.namespace, one.allocation.name), encode(one.allocation)
        made = Prepared(_VERSION, uid, *key, self._token(), one.parts, record)
        text = sealed(msgspec.json.encode(made))
        replace_file(self._folder / f"{uid}.json", text, mode=_PRIVATE)
        self._held[uid] = made, one.allocation
        self.damaged.pop(f"{uid}.json", None)
        self._name(made)
        return made

    def again(self, uid: str) -> Prepared | None:
        """An existing claim, named to the runtime if it was not; None if there is none. Raises `OSError`."""
        known = self._held.get(uid)
        if known is None:
            return None
        self._name(known[0])
        return known[0]

    def drop(self, uid: str) -> bool:
        """Forget a claim; return whether it existed. Raises `OSError`: it is still held, or its end is not flushed."""
        if not _UID.fullmatch(uid):
            return False
        (self._cdi / f"{_PREFIX}{uid}.json").unlink(missing_ok=True)
        (self._folder / f"{uid}.json").unlink(missing_ok=True)
        self.damaged.pop(f"{uid}.json", None)
        held = self._held.pop(uid, None) is not None
        # Otherwise a machine that stops now restores it, and the kubelet, which got its answer, would not ask again.
        flush_folder(self._folder)
        return held

    def of(self, env: Iterable[str]) -> list[tuple[Prepared, Allocation, int]]:
        """The devices of the marks in a container's `NAME=value`. Raises `InvalidValue`: a mark is not of this node."""
        by_token = {one.token: (one, allocation) for one, allocation in self._held.values()}
        found = []
        for name, value in marks(env):
            one, allocation = by_token.get(value, (None, None))
            numbers = range(len(one.parts)) if one is not None else ()
            mine = [number for number in numbers if one and name == _name_of(one.uid, number)]
            if one is None or allocation is None or not mine:
                raise InvalidValue(
                    f"variable {name[:80]} marks it as having a ResourceClaim that is not prepared here"
                )
            found.append((one, allocation, mine[0]))
        return found

    # --- files -------------------------------------------------------------------------------

    def _read(self, path: Path) -> tuple[Prepared, Allocation]:
        if path.stat().st_size > _LARGEST:
            raise InvalidValue(f"more than {_LARGEST} bytes")
        one = msgspec.json.decode(unsealed(path.read_bytes()), type=Prepared)
        if one.v != _VERSION or path.name != f"{one.uid}.json":
            raise InvalidValue(f"of version {one.v}, for claim {one.uid[:80]!r}")
        record = decode(one.record, one.uid, self._node)
        if record.problem:
            raise InvalidValue(record.problem)
        return one, Allocation(one.uid, one.namespace, one.name, self._node, record.grants)

    def _name_all(self) -> None:
        """Name exactly the held claims."""
        for path in _listed(self._cdi, _PREFIX, ".json"):
            uid = path.stem.removeprefix(_PREFIX)
            if uid not in self._held:
                path.unlink(missing_ok=True)
        for one, _ in self._held.values():
            self._name(one)

    def _name(self, one: Prepared) -> None:
        document: dict[str, Any] = {
            "cdiVersion": _CDI_VERSION,
            "kind": KIND,
            "devices": [
                {
                    "name": _device(one.uid, number),
                    "containerEdits": {"env": [f"{_name_of(one.uid, number)}={one.token}"]},
                }
                for number in range(len(one.parts))
            ],
        }
        self._cdi.mkdir(parents=True, exist_ok=True)
        path = self._cdi / f"{_PREFIX}{one.uid}.json"
        replace_file(path, msgspec.json.encode(document), mode=_PRIVATE)


def _listed(folder: Path, start: str, end: str) -> list[Path]:
    """Files of a folder; `Path.glob` would find none in a folder that cannot be read. Raises `OSError`."""
    return [
        one for one in folder.iterdir() if one.name.startswith(start) and one.name.endswith(end)
    ]


def marks(env: Iterable[str]) -> list[tuple[str, str]]:
    """Marks of claims among a container's variables; a removed mark is an empty variable and does not count."""
    parts = (text.partition("=") for text in env)
    return [(name, value) for name, _, value in parts if name.startswith(_MARK) and value]


def _device(uid: str, number: int) -> str:
    """The name of a device; before CDI 0.5.0 a name starts with a letter, which most uids do not."""
    return f"claim-{uid}-{number}"


def _name_of(uid: str, number: int) -> str:
    return f"{_MARK}{uid.upper().replace('-', '_')}_{number}"
