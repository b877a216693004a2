"""The engine's end of the socket to kube-scheduler's plugin.

One kube-scheduler at a time is connected: a newer connection ends the older one, because only a
restarted kube-scheduler connects again. Messages without a question (pods to activate, names of
device resources) are pushes. The next connection makes up for a push that was not read, and the
service repeats wake-ups anyway.
"""

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import msgspec

from partage.extender.attempts import Attempts
from partage.extender.service import SchedulerService
from partage.model.errors import InvalidDocument
from partage.serving.unix import Link, UnixServer
from partage.vendors.names import DRA_DRIVER
from partage.vendors.reserved import RESERVED
from partage.wire import plugin as wire

_LOG: Final = logging.getLogger("partage.daemon")
PLUGIN_SEND: Final = 4.0
"""Seconds for the API server to answer a Binding of the plugin.

A new leader waits a fifth longer than this, from the moment at which the leader before stopped. That
leader stops after two thirds of the Lease, and the new one has waited for its end. So it need not wait longer.
"""
_MOST_ACTIVATED: Final = 1000
"""UIDs of one push."""
_FAILED: Final = "the engine failed in this pod, and its log has the cause; the pod is tried again"
_ENCODER: Final = msgspec.json.Encoder()


@dataclass(frozen=True, slots=True)
class PluginOptions:
    """The socket of the plugin.

    Attributes:
        path: of the socket, in a folder that only the two containers share.
        lease: that kube-scheduler holds, in the namespace of the service's own.
        users: user ids that may connect; our own by default.
    """

    path: Path
    users: frozenset[int] = field(default_factory=lambda: frozenset({os.getuid()}))
    lease: str = "partage-kube-scheduler"


class PluginServer:
    """Listens for kube-scheduler, answers it by `attempts`, and sends it pushes."""

    def __init__(
        self,
        options: PluginOptions,
        service: SchedulerService,
        may_bind: Callable[[], bool],
        claimed: Callable[[bool], None],
        *,
        preempts: bool = True,
        claims: bool = False,
    ) -> None:
        """A server that does not listen yet.

        Args:
            may_bind: whether this instance leads now.
            claimed: called whenever kube-scheduler reports that it holds its Lease, or no longer does.
            preempts: whether less important pods may be evicted for devices.
            claims: whether ResourceClaims are followed, so that nodes can be compared for pods with claims.
        """
        self.service = service
        self._claims = claims
        self.claimed = claimed
        self.attempts = Attempts(service, may_bind, preempts=preempts)
        begin = partial(_Talk, self)
        server = UnixServer(options.path, begin, options.users, wire.MAX_FRAME)
        self.start, self.stop = server.start, server.stop
        self._talk: _Talk | None = None
        self._incarnation = ""
        self._vocabulary: wire.Vocabulary | None = None

    def activate(self, uids: Sequence[str]) -> None:
        """Have kube-scheduler try these pods again now."""
        for first in range(0, len(uids), _MOST_ACTIVATED):
            self._push(wire.Push(activate=list(uids[first : first + _MOST_ACTIVATED])))

    def ready_changed(self) -> None:
        """Push whether the service serves now."""
        self._push(wire.Push(ready=not self.service.closed))

    def rebuilt(self) -> None:
        """Bring reservations into new books, and push the names of device resources if they have changed."""
        self.attempts.rebuilt()
        self.settings_changed()

    def settings_changed(self) -> None:
        """Push the names of device resources, if they have changed."""
        vocabulary = self._words()
        if vocabulary != self._vocabulary:
            self._vocabulary = vocabulary
            self._push(wire.Push(vocabulary=vocabulary))

    def _push(self, push: wire.Push) -> None:
        if self._talk is not None:
            self._talk.send(push)

    def _words(self) -> wire.Vocabulary:
        owners = self.service.books.cluster_cache.translation.context.owners
        return wire.Vocabulary(
            sorted(owners),
            sorted(RESERVED.annotations),
            sorted(RESERVED.prefixes),
            self._claims,
            DRA_DRIVER if self._claims else "",
        )

    def met(self, talk: "_Talk", hello: wire.Hello) -> None:
        """Take in the hello of a kube-scheduler."""
        if self._talk is not None and self._talk is not talk:
            self._talk.close()
            self.left(self._talk)
        if hello.incarnation != self._incarnation:
            self.attempts.forget()
            self._incarnation = hello.incarnation
        self._talk = talk
        self._vocabulary = self._words()
        _LOG.info(
            "kube-scheduler %s connected, plugin %s, incarnation %s",
            hello.kubernetes or "of unknown version",
            hello.plugin or "of unknown version",
            hello.incarnation,
        )

    def left(self, talk: "_Talk") -> None:
        """Take in the end of a connection."""
        if self._talk is talk:
            self._talk = None
            self.claimed(False)
            self.attempts.disconnected()
            _LOG.warning("kube-scheduler disconnected")

    def greet(self) -> None:
        """Push what follows the answer to hello."""
        self._push(wire.Push(vocabulary=self._vocabulary, ready=not self.service.closed))
        self.activate(list(self.service.books.waiting))


class _Talk:
    def __init__(self, server: PluginServer, link: Link) -> None:
        self._server = server
        self._link = link
        self._met = False
        self._tasks: set[asyncio.Task[None]] = set()

    def send(self, message: msgspec.Struct) -> None:
        self._link.send(_ENCODER.encode(message))

    def close(self) -> None:
        self._link.close()

    def took(self, frame: bytes) -> None:
        """Handle a question; see `serving.unix.Talk`."""
        question = wire.decode_question(frame)
        if isinstance(question, wire.Hello):
            self._hello(question)
            return
        if not self._met:
            raise InvalidDocument("the first message must be hello")
        try:
            self._asked(question)
        except Exception:  # noqa: BLE001 # a fault in one pod must not end the connection of all
            self._failed(question)

    def _failed(self, question: wire.Question) -> None:
        """Log a fault of ours in full; kube-scheduler tries the pod again after a while."""
        _LOG.exception("a question of kube-scheduler failed: %s", type(question).__name__)
        self._answer(wire.Answer(question.id, code=wire.STALE, message=_FAILED))

    def _asked(self, question: wire.Question) -> None:
        attempts = self._server.attempts
        match question:
            case wire.Propose():
                self._answer(attempts.propose(question))
            case wire.Preempt():
                self._later(self._sent(attempts.preempt(question)), question)
            case wire.Reserve():
                self._answer(attempts.reserve(question))
            case wire.Unreserve():
                self._answer(attempts.unreserve(question))
            case wire.Another():
                self._answer(attempts.another(question))
            case wire.Bind():
                self._later(self._sent(attempts.bind(question, self.send)), question)
            case wire.Bound() if not question.id:
                attempts.bound(question)
            case wire.Bound():
                self._later(self._bound(question), question)
            case wire.Leading(leading=leading):
                self._server.claimed(leading)
                self._answer(wire.Answer(question.id, ready=self._ready))
            case wire.Ping():
                self._answer(wire.Answer(question.id, ready=self._ready))

    def _answer(self, answer: wire.Answer) -> None:
        if answer.id:
            self.send(answer)

    def ended(self) -> None:
        """Handle the end of the connection; see `serving.unix.Talk`."""
        self._server.left(self)

    @property
    def _ready(self) -> bool:
        return not self._server.service.closed

    def _hello(self, hello: wire.Hello) -> None:
        if hello.protocol != wire.PROTOCOL:
            message = (
                f"the plugin speaks version {hello.protocol} of the protocol and this engine "
                f"version {wire.PROTOCOL}; {wire.SAME_RELEASE}"
            )
            _LOG.error("%s", message)
            self.send(
                wire.Answer(hello.id, code="Version", message=message, protocol=wire.PROTOCOL)
            )
            self._link.close()
            return
        self._met = True
        self._server.met(self, hello)
        self.send(wire.Answer(hello.id, protocol=wire.PROTOCOL, ready=self._ready))
        self._server.greet()

    async def _sent(self, work: Awaitable[wire.Answer | None]) -> None:
        answer = await work
        if answer is not None:
            self.send(answer)

    async def _bound(self, question: wire.Bound) -> None:
        attempts = self._server.attempts
        attempts.bound(question)
        await self._server.service.bindings.ended(question.uid)
        self.send(attempts.placed(question))

    def _later(self, work: Coroutine[Any, Any, None], question: wire.Question) -> None:
        task = asyncio.ensure_future(self._carried_out(work, question))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _carried_out(self, work: Coroutine[Any, Any, None], question: wire.Question) -> None:
        try:
            await work
        except Exception:  # noqa: BLE001 # its pod is tried again, and the ledger settles by itself
            self._failed(question)
