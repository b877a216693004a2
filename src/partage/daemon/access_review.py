"""Asks the API server whether a caller has the right to get the pods that an explanation concerns.

A TokenReview gives the user of the bearer token, and a SubjectAccessReview the right of that user. The service keeps a
few answers for a short while, under a hash of the token.
An API server that does not answer allows nothing.

Any client may send invented tokens, so questions have turns. A recently valid token counts for its user, any other for
its address. Each of these two sorts has half of the places, and each user or address has its turn. When too many
questions wait, the network with the most of them loses one. So a flood of invented tokens delays only its own
questions.

Source: Kubernetes 1.36, authentication.k8s.io/v1 and authorization.k8s.io/v1.
"""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec
from aiohttp import web

from partage.kube.client import Client
from partage.kube.errors import KubeError
from partage.kube.resources import Resource
from partage.serving.turns import TooMany, Turns

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
        allowed: how long a positive answer stays valid.
        denied: how long a negative answer stays valid.
        remembered: how long a valid token counts for its user.
        kept: most stored answers of each sort, and most stored valid tokens; the least recently used one goes first.
        together: questions to the API server at a time, half for each sort of caller.
        waiting: most waiting questions of each sort of caller.
        of_one: most waiting questions of one user or address.
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


class AccessReviews:
    """Checks access with one API server; see `extender.server.Readers`."""

    def __init__(self, client: Client, settings: ReviewSettings | None = None) -> None:
        """Start without answers; `client` is open and may create the two kinds of review."""
        self._client = client
        self._settings = mine = settings or ReviewSettings()
        self._answers: dict[bool, OrderedDict[_Key, float]] = {
            True: OrderedDict(),
            False: OrderedDict(),
        }
        self._good: OrderedDict[bytes, tuple[str, float]] = OrderedDict()
        self._asking: dict[_Key, asyncio.Task[bool]] = {}
        # By whether the caller's token was valid recently.
        share = max(1, mine.together // 2)
        self._turns = {good: Turns(share, mine.waiting, mine.of_one) for good in (True, False)}

    async def may_read(self, authorization: str, namespace: str, address: str = "") -> bool:
        """Whether the bearer of this `Authorization` header may read pods of the namespace.

        `namespace`: of the pods; empty for all namespaces. Raises `web.HTTPTooManyRequests`: too many questions of this
        caller wait.
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
        task = self._asking.get(key)
        if task is None:
            task = asyncio.create_task(self._ask(key, token, address), name="readers:ask")
            self._asking[key] = task
            task.add_done_callback(lambda done: self._asked(key, done))
        # A caller that disconnects must not cancel the answer to others with the same question.
        return await asyncio.shield(task)

    def _asked(self, key: _Key, done: asyncio.Task[bool]) -> None:
        del self._asking[key]
        if not done.cancelled():
            done.exception()  # the caller has the error, or has disconnected

    async def _ask(self, key: _Key, token: str, address: str) -> bool:
        user, until = self._good.get(key[0], ("", 0.0))
        good = self._client.clock.monotonic() < until
        if good:
            self._good.move_to_end(key[0])
        try:
            async with self._turns[good].turn(user if good else address):
                allowed = await self._review(key, token)
        except TooMany as error:
            headers = {"Retry-After": "1"}
            raise web.HTTPTooManyRequests(text=str(error), headers=headers) from error
        except KubeError as error:
            _LOG.warning("cannot find out whether a user may read namespace %s: %s", key[1], error)
            return False
        mine = self._settings
        until = self._client.clock.monotonic() + (mine.allowed if allowed else mine.denied)
        self._answers[not allowed].pop(key, None)
        _put(self._answers[allowed], key, until, mine.kept)
        return allowed

    async def _review(self, key: _Key, token: str) -> bool:
        told = await self._client.create(
            _TOKENS, _body(_TOKENS, "TokenReview", {"token": token}), into=_TokenReview
        )
        user = told.status.user
        if not told.status.authenticated or not user.username:
            self._good.pop(key[0], None)
            return False
        until = self._client.clock.monotonic() + self._settings.remembered
        _put(self._good, key[0], (user.username, until), self._settings.kept)
        spec = {
            "user": user.username,
            "uid": user.uid,
            "groups": user.groups or [],
            "extra": user.extra or {},
            "resourceAttributes": {"namespace": key[1], "verb": "get", "resource": "pods"},
        }
        found = await self._client.create(
            _ACCESS, _body(_ACCESS, "SubjectAccessReview", spec), into=_AccessReview
        )
        return found.status.allowed and not found.status.denied


def _put(kept: OrderedDict[_K, _V], key: _K, value: _V, most: int) -> None:
    kept[key] = value
    kept.move_to_end(key)
    if len(kept) > most:
        kept.popitem(last=False)


def _body(resource: Resource, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": resource.api_version, "kind": kind, "metadata": {}, "spec": spec}
