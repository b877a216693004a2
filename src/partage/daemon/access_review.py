"""Who may read explanations: a user who may get pods of the namespace, as the API server says.

A caller's bearer token is shown to the API server (TokenReview), and what that user may do is asked
(SubjectAccessReview). Answers are kept for a short while, few of them, under a hash of the token.
An API server that does not answer allows nothing.

Source: Kubernetes 1.36, authentication.k8s.io/v1 and authorization.k8s.io/v1.
"""

import asyncio
import hashlib
import logging
from collections import OrderedDict
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from partage.kube.client import Client
from partage.kube.errors import KubeError
from partage.kube.resources import Resource

__all__ = ["AccessReviews", "ReviewSettings"]

_LOG: Final = logging.getLogger("partage.daemon")
_TOKENS: Final = Resource("authentication.k8s.io", "v1", "tokenreviews", namespaced=False)
_ACCESS: Final = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", namespaced=False)
_LONGEST: Final = 16_384  # characters of a token


@dataclass(frozen=True, slots=True)
class ReviewSettings:
    """Bounds and times in seconds.

    Attributes:
        allowed: how long a yes is believed.
        denied: how long a no is.
        kept: answers that are kept; the one that was not asked for longest goes first.
        together: questions to the API server at a time; further callers wait.
        waiting: questions that are asked or wait at a time. Who asks beyond may not read: callers need
            no right to send made-up tokens.
    """

    allowed: float = 60.0
    denied: float = 10.0
    kept: int = 1024
    together: int = 8
    waiting: int = 64


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
    """Asks one API server; see `extender.server.Readers`."""

    def __init__(self, client: Client, settings: ReviewSettings | None = None) -> None:
        """Nothing is known yet.

        Args:
            client: an open client, which may create the two kinds of review.
            settings: bounds and times.
        """
        self._client = client
        self._settings = settings or ReviewSettings()
        self._answers: OrderedDict[_Key, tuple[bool, float]] = OrderedDict()
        self._asking: dict[_Key, asyncio.Task[bool]] = {}
        self._gate = asyncio.Semaphore(self._settings.together)

    async def may_read(self, authorization: str, namespace: str) -> bool:
        """Whether the bearer of this `Authorization` header may read pods of the namespace."""
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > _LONGEST:
            return False
        key = (hashlib.sha256(token.encode(errors="replace")).digest(), namespace)
        known = self._answers.get(key)
        if known is not None and self._client.clock.monotonic() < known[1]:
            self._answers.move_to_end(key)
            return known[0]
        task = self._asking.get(key)
        if task is None:
            if len(self._asking) >= self._settings.waiting:
                return False
            task = asyncio.create_task(self._ask(key, token), name="readers:ask")
            self._asking[key] = task
            task.add_done_callback(lambda _: self._asking.pop(key, None))
        # Who goes away must not take the answer from those who asked the same.
        return await asyncio.shield(task)

    async def _ask(self, key: _Key, token: str) -> bool:
        try:
            async with self._gate:
                allowed = await self._review(token, key[1])
        except KubeError as error:
            _LOG.warning("who may read namespace %s cannot be told: %s", key[1], error)
            return False
        span = self._settings.allowed if allowed else self._settings.denied
        self._answers[key] = (allowed, self._client.clock.monotonic() + span)
        self._answers.move_to_end(key)
        while len(self._answers) > self._settings.kept:
            self._answers.popitem(last=False)
        return allowed

    async def _review(self, token: str, namespace: str) -> bool:
        told = await self._client.create(
            _TOKENS, _body(_TOKENS, "TokenReview", {"token": token}), into=_TokenReview
        )
        user = told.status.user
        if not told.status.authenticated or not user.username:
            return False
        spec = {
            "user": user.username,
            "uid": user.uid,
            "groups": user.groups or [],
            "extra": user.extra or {},
            "resourceAttributes": {"namespace": namespace, "verb": "get", "resource": "pods"},
        }
        found = await self._client.create(
            _ACCESS, _body(_ACCESS, "SubjectAccessReview", spec), into=_AccessReview
        )
        return found.status.allowed and not found.status.denied


def _body(resource: Resource, kind: str, spec: dict[str, Any]) -> dict[str, Any]:
    return {"apiVersion": resource.api_version, "kind": kind, "metadata": {}, "spec": spec}
