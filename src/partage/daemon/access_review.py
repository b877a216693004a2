"""Who may read explanations: a user who may get pods of the namespace, as the API server says.

A caller's bearer token is shown to the API server (TokenReview), and what that user may do is asked
(SubjectAccessReview). Answers are kept for a short while, few of them, under a hash of the token.
An API server that does not answer allows nothing.

Anybody may send made-up tokens, so questions have turns. A token that was good lately counts for its user, any
other for its address; both sorts get half of the questions when both wait, and each user or address is asked for
in turn. Where too many wait, the network with most gives one up. So a stranger's flood delays its own questions.

Source: Kubernetes 1.36, authentication.k8s.io/v1 and authorization.k8s.io/v1.
"""

import asyncio
import hashlib
import logging
from collections import Counter, OrderedDict
from dataclasses import dataclass
from ipaddress import ip_address, ip_network
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web

from partage.kube.client import Client
from partage.kube.errors import KubeError
from partage.kube.resources import Resource

__all__ = ["AccessReviews", "ReviewSettings"]

_LOG: Final = logging.getLogger("partage.daemon")
_TOKENS: Final = Resource("authentication.k8s.io", "v1", "tokenreviews", namespaced=False)
_ACCESS: Final = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", namespaced=False)
_LONGEST: Final = 16_384  # characters of a token
_K = TypeVar("_K")
_V = TypeVar("_V")


@dataclass(frozen=True, slots=True)
class ReviewSettings:
    """Bounds and times in seconds.

    Attributes:
        allowed: how long a yes is believed.
        denied: how long a no is.
        remembered: how long a token that was good counts for its user.
        kept: answers of each sort, and good tokens, that are kept; the one that was not asked for longest goes first.
        together: questions to the API server at a time. Each sort of caller leaves the other a quarter of them.
        waiting: questions of each sort that wait at a time.
        of_one: those of one user or address.
    """

    allowed: float = 60.0
    denied: float = 10.0
    remembered: float = 600.0
    kept: int = 1024
    together: int = 8
    waiting: int = 64
    of_one: int = 16


class _User(msgspec.Struct, frozen=True):
    username: str = ""
    uid: str = ""
    groups: list[str] | None = None
    extra: dict[str, list[str]] | None = None


class _TokenStatus(msgspec.Struct, frozen=True):
    authenticated: bool = False
    user: _User = _User()


class _TokenReview(msgspec.Struct, frozen=True):
    status: _TokenStatus = _TokenStatus()


class _AccessStatus(msgspec.Struct, frozen=True):
    allowed: bool = False
    denied: bool = False


class _AccessReview(msgspec.Struct, frozen=True):
    status: _AccessStatus = _AccessStatus()


_Key = tuple[bytes, str]


@dataclass(slots=True, eq=False)
class _Question:
    """What is asked for a caller, and for all who ask the same meanwhile."""

    key: _Key
    token: str
    asker: str
    network: str
    answer: asyncio.Future[bool]


class _Lane:
    """Questions of one sort of callers that wait, and how many are being asked.

    Attributes:
        asked: questions that are being asked.
    """

    def __init__(self, most: int, of_one: int, together: int) -> None:
        self._most = most
        self._of_one = of_one
        self._together = together
        self._rows: OrderedDict[str, list[_Question]] = OrderedDict()  # whose turn is next first
        self._waiting: Counter[str] = Counter()  # by network
        self._asked_of: Counter[str] = Counter()
        self.asked = 0

    def enter(self, question: _Question) -> _Question | None:
        """Have a question wait; the one that gives up its place for it, which may be itself."""
        row = self._rows.get(question.asker, [])
        if len(row) >= self._of_one:
            return question
        self._rows.setdefault(question.asker, row).append(question)
        self._waiting[question.network] += 1
        if self._waiting.total() <= self._most:
            return None
        most = max(self._rows.values(), key=lambda row: (self._waiting[row[0].network], len(row)))
        return self._out(most, -1)

    def _out(self, row: list[_Question], position: int) -> _Question:
        """Take a question out of its row."""
        question = row.pop(position)
        if not row:
            del self._rows[question.asker]
        self._waiting[question.network] -= 1
        if not self._waiting[question.network]:
            del self._waiting[question.network]
        return question

    def next(self) -> _Question | None:
        """The question whose turn it is; it counts as asked until `over`."""
        if self.asked >= self._together:
            return None
        free = (one for one in self._rows if self._asked_of[one] < max(1, self._together // 2))
        asker = next(free, None)
        if asker is None:
            return None
        self._rows.move_to_end(asker)
        question = self._out(self._rows[asker], 0)
        self.asked += 1
        self._asked_of[asker] += 1
        return question

    def over(self, question: _Question) -> None:
        """A question has its answer."""
        self.asked -= 1
        self._asked_of[question.asker] -= 1
        if not self._asked_of[question.asker]:
            del self._asked_of[question.asker]


def _network(address: str) -> str:
    """The network of an address, as far as one owner usually has it; what is no address is its own."""
    try:
        bits = 24 if ip_address(address).version == 4 else 64
        return str(ip_network(f"{address}/{bits}", strict=False))
    except ValueError:
        return address


class AccessReviews:
    """Asks one API server; see `extender.server.Readers`."""

    def __init__(self, client: Client, settings: ReviewSettings | None = None) -> None:
        """Nothing is known yet.

        Args:
            client: an open client, which may create the two kinds of review.
            settings: bounds and times.
        """
        self._client = client
        self._settings = mine = settings or ReviewSettings()
        self._answers: dict[bool, OrderedDict[_Key, float]] = {
            True: OrderedDict(),
            False: OrderedDict(),
        }
        self._good: OrderedDict[bytes, tuple[str, float]] = OrderedDict()
        self._open: dict[_Key, _Question] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        share = max(1, mine.together * 3 // 4)
        # Whose turn is next first: those with a token that was good, and strangers.
        self._lanes = {good: _Lane(mine.waiting, mine.of_one, share) for good in (True, False)}

    async def may_read(self, authorization: str, namespace: str, address: str = "") -> bool:
        """Whether the bearer of this `Authorization` header may read pods of the namespace.

        Args:
            authorization: the header.
            namespace: whose pods; empty for those of all.
            address: the caller's.

        Raises:
            web.HTTPTooManyRequests: too many questions of this caller wait.
        """
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > _LONGEST:
            return False
        key = (hashlib.sha256(token.encode(errors="replace")).digest(), namespace)
        now = self._client.clock.monotonic()
        for allowed, answers in self._answers.items():
            if now < answers.get(key, now):
                answers.move_to_end(key)
                return allowed
        question = self._open.get(key)
        if question is None:
            question = self._enter(key, token, address)
        # Who goes away must not take the answer from those who asked the same.
        return await asyncio.shield(question.answer)

    def _enter(self, key: _Key, token: str, address: str) -> _Question:
        """Have a question wait for its turn."""
        user, until = self._good.get(key[0], ("", 0.0))
        good = self._client.clock.monotonic() < until
        if good:
            self._good.move_to_end(key[0])
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        future.add_done_callback(_seen)
        question = self._open[key] = _Question(
            key, token, *((user, user) if good else (address, _network(address))), future
        )
        gone = self._lanes[good].enter(question)
        if gone is not None:
            del self._open[gone.key]
            text = "too many callers' tokens wait to be reviewed; try again"
            gone.answer.set_exception(
                web.HTTPTooManyRequests(text=text, headers={"Retry-After": "1"})
            )
        self._advance()
        return question

    def _advance(self) -> None:
        """Ask what may be asked now."""
        while sum(lane.asked for lane in self._lanes.values()) < self._settings.together:
            found = ((good, lane, lane.next()) for good, lane in self._lanes.items())
            good, lane, question = next((one for one in found if one[2]), (False, None, None))
            if lane is None or question is None:
                return
            del self._lanes[good]
            self._lanes[good] = lane
            task = asyncio.create_task(self._ask(lane, question), name="readers:ask")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def _ask(self, lane: _Lane, question: _Question) -> None:
        allowed = False
        try:
            allowed = await self._review(question)
            self._keep(question.key, allowed=allowed)
        except KubeError as error:
            _LOG.warning("who may read namespace %s cannot be told: %s", question.key[1], error)
        finally:
            del self._open[question.key]
            if not question.answer.done():
                question.answer.set_result(allowed)
            lane.over(question)
            self._advance()

    def _keep(self, key: _Key, *, allowed: bool) -> None:
        span = self._settings.allowed if allowed else self._settings.denied
        self._answers[not allowed].pop(key, None)
        _put(
            self._answers[allowed], key, self._client.clock.monotonic() + span, self._settings.kept
        )

    async def _review(self, question: _Question) -> bool:
        told = await self._client.create(
            _TOKENS, _body(_TOKENS, "TokenReview", {"token": question.token}), into=_TokenReview
        )
        user = told.status.user
        if not told.status.authenticated or not user.username:
            self._good.pop(question.key[0], None)
            return False
        until = self._client.clock.monotonic() + self._settings.remembered
        _put(self._good, question.key[0], (user.username, until), self._settings.kept)
        spec = {
            "user": user.username,
            "uid": user.uid,
            "groups": user.groups or [],
            "extra": user.extra or {},
            "resourceAttributes": {
                "namespace": question.key[1],
                "verb": "get",
                "resource": "pods",
            },
        }
        found = await self._client.create(
            _ACCESS, _body(_ACCESS, "SubjectAccessReview", spec), into=_AccessReview
        )
        return found.status.allowed and not found.status.denied


def _put(kept: OrderedDict[_K, _V], key: _K, value: _V, most: int) -> None:
    """Keep a value as the newest, and no more than so many."""
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > most:
        kept.popitem(last=False)


def _seen(answer: asyncio.Future[bool]) -> None:
    """Take note of a refusal whose caller went away, which asyncio warns of otherwise."""
    if not answer.cancelled():
        answer.exception()


def _body(resource: Resource, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": resource.api_version, "kind": kind, "metadata": {}, "spec": spec}
