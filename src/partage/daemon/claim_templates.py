"""Creates the ResourceClaimTemplates that translated pods name, and deletes those that no pod names.

    a pod's annotation ──> shapes that are in use ──┬── missing: create
    list by label, every now and then ──────────────┴── of another spec, or unused twice: delete, by uid

All state is in the API server, so the next list finds all templates that an ended webhook or leader has left. Every
instance follows pods; only the leader looks and writes, one step at a time. A pod whose template is missing for a
moment waits, and Kubernetes' controller of claims tries again. Existing claims no longer need their template.

The DeviceClass owns the templates, so that Kubernetes deletes them when the chart is uninstalled.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Final

import msgspec

from partage.extender.books import Books
from partage.kube.client import Client
from partage.kube.clock import sleep_until
from partage.kube.errors import AlreadyExists, Conflict, KubeError, NotFound
from partage.kube.resources import Resource, Scope
from partage.model.errors import InvalidValue
from partage.model.node import Node
from partage.vendors import names
from partage.wire import shapes
from partage.wire.claim_shapes import Shape, decode_translated
from partage.wire.claim_specs import (
    API_VERSION,
    SPEC_MARK,
    Kind,
    claim_spec,
    kinds,
    mark,
    template,
)
from partage.wire.documents import Document
from partage.wire.pod_phase import finished

_LOG: Final = logging.getLogger("partage.daemon")
TEMPLATES: Final = Resource("resource.k8s.io", "v1", "resourceclaimtemplates")
CLASSES: Final = Resource("resource.k8s.io", "v1", "deviceclasses", namespaced=False)
_MOST: Final = 1000
"""Most templates of one namespace, because a user's pods may name any number of shapes."""
_ALL: Final = "*"
"""In place of a template's name, for messages about a whole namespace."""
_LINES: Final = 20
"""Most lines of the log about templates of one namespace between two lists."""
_PIECE: Final = 50
"""Specs in a row, before other tasks have their turn."""
_OURS: Final = f"{names.CLAIMS_LABEL}={names.CLAIMS_TRANSLATE}"

_Key = tuple[str, str]
"""Namespace and name of a template."""


class _Template(msgspec.Struct, frozen=True):
    metadata: shapes.Metadata = shapes.Metadata()


@dataclass(frozen=True, slots=True)
class _Stored:
    """A template in the API server.

    Attributes:
        uid: of the template; empty if it is unknown, or if another object has the name.
        mark: of the spec with which the template was created.
    """

    uid: str
    mark: str


class Cards:
    """The cards of the cluster by kind; a look counts only the cards of nodes that have changed."""

    def __init__(self) -> None:
        self._nodes: list[Node | None] = []
        self._kinds: Counter[Kind] = Counter()

    def of(self, nodes: Iterable[Node | None]) -> Mapping[Kind, int]:
        """The number of cards of each kind. A changed node is another object in `nodes`."""
        now = list(nodes)
        changed = [
            (before, after)
            for before, after in zip_longest(self._nodes, now)
            if before is not after
        ]
        for before, after in changed:
            self._kinds.update(kinds(after.devices if after else ()))
            self._kinds.subtract(kinds(before.devices if before else ()))
        if changed:
            self._nodes, self._kinds = now, +self._kinds  # without kinds that have no card left
        return self._kinds


class ClaimTemplates:
    """The templates of a cluster; a companion of the scheduler daemon."""

    def __init__(
        self, client: Client, books: Callable[[], Books | None], period: float = 30.0
    ) -> None:
        """Start without templates; `books` contain the cluster's cards, and are None while they are made."""
        self._client, self._books, self._period = client, books, period
        self._users: dict[str, frozenset[_Key]] = {}
        self._uses: Counter[_Key] = Counter()
        self._shapes: dict[_Key, Shape] = {}
        self._there: dict[_Key, _Stored] = {}
        self._full: Counter[str] = Counter()  # templates by namespace
        self._missing: dict[str, dict[_Key, None]] = {}  # to be made, by namespace
        self._superfluous: dict[_Key, bool] = {}  # to be deleted; whether another one replaces it
        self._unused: set[_Key] = set()
        self._impossible: set[_Key] = set()  # no card can give them
        self._refused: set[str] = set()  # namespaces
        self._owner: dict[str, Any] | None = None
        self._listed: float | None = None
        self._news = asyncio.Event()
        self._told: dict[_Key, str] = {}
        self._lines: Counter[str] = Counter()  # by namespace, since the last list
        self._taken: set[_Key] = set()
        self._cards = Cards()
        self._kinds: Mapping[Kind, int] = {}

    # --- facts -------------------------------------------------------------------------------

    def changed(self, document: Document) -> None:
        """Take in a new or changed object. Only pods matter here: `look` reads the cards."""
        if document.kind != "Pod":
            return
        uid, shape = document.metadata.uid or "", document.shape
        text = document.annotations.get(names.TRANSLATED, "")
        if not isinstance(shape, shapes.Pod) or finished(shape):
            self._leave(uid)
        elif text and uid not in self._users and (named := _named(shape)):
            self._use(uid, text, document.namespace, named)

    def gone(self, document: Document) -> None:
        """Take in a deleted object."""
        self._leave(document.metadata.uid or "")

    def _leave(self, uid: str) -> None:
        for key in self._users.pop(uid, ()):
            self._uses[key] -= 1
            if not self._uses[key]:
                del self._uses[key], self._shapes[key]
                self._impossible.discard(key)
                self._waits_no_more(key)

    def _waits(self, key: _Key) -> None:
        self._missing.setdefault(key[0], {})[key] = None

    def _waits_no_more(self, key: _Key) -> None:
        waiting = self._missing.get(key[0], {})
        waiting.pop(key, None)
        if not waiting:
            self._missing.pop(key[0], None)

    def _use(self, uid: str, text: str, namespace: str, named: frozenset[str]) -> None:
        try:
            told = decode_translated(text)
        except InvalidValue as error:
            _LOG.info("annotation %s of a pod in %s: %s", names.TRANSLATED, namespace, error)
            told = {}
        wanted = {one.shape.template: one.shape for one in told.values()}
        found = {(namespace, name): one for name, one in wanted.items() if name in named}
        self._users[uid] = frozenset(found)
        for key, shape in found.items():
            self._uses[key] += 1
            self._shapes[key] = shape
            if key not in self._there and key not in self._impossible:
                self._waits(key)
                self._news.set()

    # --- work --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Work until cancelled, and first list the templates of earlier leaders."""
        self._listed, self._unused = None, set()
        while True:
            self._news.clear()
            try:
                await self.look()
            except KubeError as error:
                _LOG.warning("cannot bring ResourceClaimTemplates up to date: %s", error)
                self._listed = None
                await self._client.clock.sleep(1.0)
                self._news.set()  # try again now, not after a period
            except Exception:  # noqa: BLE001 # logged; the service goes on
                _LOG.exception("cannot bring ResourceClaimTemplates up to date")
                self._listed = None
            await sleep_until(self._client.clock, self._period, self._news)

    async def look(self) -> None:
        """Create missing templates and delete superfluous ones; once a period, list all. Raises `KubeError`.

        Each namespace has one template made in turn, and then one is deleted. So no namespace delays the others.
        """
        current = False
        while True:
            books = self._books()
            if books is None:
                self._listed = None
                return
            now = self._client.clock.monotonic()
            sweep = self._listed is None or now >= self._listed + self._period
            if sweep:
                await self._list()
            if sweep or not current:
                self._count(books)
                current = True
            if sweep:
                await self._compare()
                self._listed = now
            if not self._missing and not self._superfluous:
                return
            for namespace in list(self._missing):
                await self._next_made(namespace)
            if self._superfluous:
                key, outdated = self._superfluous.popitem()
                if outdated or key not in self._shapes:
                    await self._delete(key)
            await asyncio.sleep(0)  # other tasks have their turn

    def _count(self, books: Books) -> None:
        cards = dict(self._cards.of(books.engine.ledger.nodes))
        if cards.keys() != self._kinds.keys():
            self._impossible.clear()
        self._kinds = cards

    async def _list(self) -> None:
        self._taken = {key for key, stored in self._there.items() if not stored.uid}
        found = await self._client.list_all(Scope(TEMPLATES, labels=_OURS), into=_Template)
        self._there = {
            (one.metadata.namespace or "", one.metadata.name or ""): _Stored(
                one.metadata.uid or "", str((one.metadata.annotations or {}).get(SPEC_MARK, ""))
            )
            for one in found.items
        }
        self._full = Counter(key[0] for key, stored in self._there.items() if stored.uid)
        self._owner, self._refused = None, set()
        self._lines.clear()
        spaces = {namespace for namespace, _ in self._shapes}
        self._told = {
            (namespace, name): told
            for (namespace, name), told in self._told.items()
            if (namespace, name) in self._shapes or (name == _ALL and namespace in spaces)
        }

    async def _compare(self) -> None:
        """Find templates to make, and those to delete: unused for a period, or outdated by the cluster's cards."""
        ours = {key: stored for key, stored in self._there.items() if stored.uid}
        unused = {key for key in ours if key not in self._shapes}
        self._superfluous = dict.fromkeys(unused & self._unused, False)
        self._unused = unused
        self._missing.clear()
        for key in self._shapes:  # the one that was named first is made first
            if key not in self._there and key not in self._impossible:
                self._waits(key)
        for number, (key, stored) in enumerate(ours.items(), 1):
            if number % _PIECE == 0:
                await asyncio.sleep(0)  # other tasks have their turn
            shape = self._shapes.get(key)
            spec = None if shape is None else claim_spec(shape, self._kinds)
            if isinstance(spec, dict) and mark(spec) != stored.mark:
                self._superfluous[key] = True

    async def _delete(self, key: _Key) -> None:
        namespace, name = key
        try:
            await self._client.delete(
                TEMPLATES, name, namespace=namespace, uid=self._there[key].uid
            )
        except (NotFound, Conflict):
            pass  # it is deleted or replaced, and the next list shows that
        except KubeError as error:
            self._say(key, f"cannot be removed: {error}")
            return
        del self._there[key]
        self._full[namespace] -= 1
        if key in self._shapes:
            self._waits(key)

    async def _next_made(self, namespace: str) -> None:
        """Make the next missing template of a namespace, or note why not."""
        key = next(iter(self._missing.get(namespace, ())), None)
        if key is None:
            return  # its pods are gone meanwhile
        if self._full[namespace] >= _MOST:
            # All wait for the next list, so that none takes the place of an earlier one.
            del self._missing[namespace]
            self._say((namespace, _ALL), f"is not made: namespace {namespace} has {_MOST}")
            return
        self._waits_no_more(key)
        shape = self._shapes[key]
        if key in self._there or namespace in self._refused:
            return  # the namespace refuses templates until the next list
        spec = claim_spec(shape, self._kinds)
        if isinstance(spec, str):
            self._impossible.add(key)
            self._say(key, f"is not made: {spec}")
            return
        body = template(shape, namespace, spec, await self._owning())
        try:
            made = await self._client.create(TEMPLATES, body, namespace=namespace, into=_Template)
            self._there[key] = _Stored(made.metadata.uid or "", mark(spec))
            self._full[namespace] += 1
        except AlreadyExists:
            # An earlier leader made it, or another object has the name; the next list shows which.
            if key in self._taken:
                self._say(key, "is not made: another object has the name")
            self._there[key] = _Stored("", "")
        except KubeError as error:
            self._say(key, f"is not made: {error}")
            self._refused.add(namespace)

    async def _owning(self) -> dict[str, Any]:
        """The reference to the templates' owner, read once a period."""
        if self._owner is None:
            class_ = await self._client.get(CLASSES, names.SHARE_CLASS, into=_Template)
            self._owner = {
                "apiVersion": API_VERSION,
                "kind": "DeviceClass",
                "name": names.SHARE_CLASS,
                "uid": class_.metadata.uid,
            }
        return self._owner

    def _say(self, key: _Key, told: str) -> None:
        """Log a message, unless it repeats the last one about the template, or its namespace has had its lines."""
        if self._told.get(key) == told:
            return
        self._told[key] = told
        self._lines[key[0]] += 1
        if self._lines[key[0]] <= _LINES:
            _LOG.warning("ResourceClaimTemplate %s %s", "/".join(key), told)
        elif self._lines[key[0]] == _LINES + 1:
            _LOG.warning("more lines about templates of namespace %s are left out for now", key[0])


def _named(pod: shapes.Pod) -> frozenset[str]:
    """Templates that a pod's claims name. They never change; its annotations do."""
    claims = (pod.spec and pod.spec.resource_claims) or ()
    return frozenset(filter(None, (one.resource_claim_template_name for one in claims)))
