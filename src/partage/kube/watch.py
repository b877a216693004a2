"""Makes endless changes from the bytes of a watch: each generator adds one concern.

    bytes --`WatchDecoder`--> events --`watch_once`--> events of one request
          --`Mirror`--> changes --`follow`--> changes for ever, over gaps, errors and relists

`follow` promises three things. After each `Synced` and the changes before it, its mirror equals a list
from the server. Every object once seen is reported gone, even if its deletion fell in a gap. No error
ends it, since a server that answers 403 or 404 now may have the role or the definition a minute
later. Each failure is reported as `Interrupted`.
"""

import contextlib
import math
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final, TypeVar

from partage.kube.client import Client
from partage.kube.errors import (
    ApiError,
    Expired,
    KubeError,
    Outcome,
    ProtocolError,
    RequestError,
    TransportError,
    error_of_status,
)
from partage.kube.frames import Failed, Frame, WatchDecoder
from partage.kube.mirror import Change, Interrupted, Mirror, is_older
from partage.kube.objects import HasMeta
from partage.kube.resources import Scope
from partage.kube.retry import Backoff, wait_before_retry

T = TypeVar("T", bound=HasMeta)

_LONGEST: Final = 60.0
"""Seconds. If a server asks for a longer wait, the client asks again after this, because callers act on the data."""
_TOO_SHORT: Final = 1.0
"""Seconds; a watch that ends sooner is a failure, otherwise the loop would spin."""
_LASTING: Final = 10.0
"""Seconds; after a watch that lasted as long, failures are counted anew. An event alone is no success: a server may send
one, and then an error, for each list."""
_SOON: Final = 1.0
"""Seconds until the next try at most, if the watch brought events."""
_FOR_EVER: Final = 5
"""Refusals in a row after which the objects are listed."""
_BUSY: Final = frozenset({429, 503, 504})


class EndedEarly(KubeError):
    """A watch that the server ended at once."""


@dataclass(frozen=True, slots=True)
class WatchSettings:
    """Times in seconds."""

    duration: int = 300
    """The server is asked to end a watch after one to two times this, by chance, so that not all
    clients return at once."""
    idle: float = 150.0
    """After so long without a byte the connection counts as lost. Servers send a bookmark about every
    minute, and a restart from the last version costs little."""
    backoff: Backoff = Backoff(base=0.2, cap=30.0)
    """Between failed tries."""


async def watch_once(
    client: Client,
    scope: Scope,
    *,
    into: type[T],
    resource_version: str,
    settings: WatchSettings = WatchSettings(),
) -> AsyncGenerator[list[Frame[T]], None]:
    """The events of one watch request, as they arrive; ends when the server ends the request.

    The first batch is empty: the server has accepted the watch.

    Args:
        resource_version: the watch reports changes after this version.

    Raises:
        Expired: the server no longer keeps the version; list afresh.
        RequestError: refused, interrupted, or the server reports an error in the stream.
        ProtocolError: the stream is not a watch.
    """
    decoder = WatchDecoder(into)
    seconds = settings.duration + int(settings.duration * client.chance())
    async with client.watch_stream(
        scope, resource_version, seconds=seconds, idle_seconds=settings.idle
    ) as pieces:
        yield []
        async for piece in pieces:
            frames = decoder.feed(piece)
            last = next((frame for frame in frames if isinstance(frame, Failed)), None)
            before = frames if last is None else frames[: frames.index(last)]
            if before:
                yield before
            if last is not None:
                raise error_of_status("GET", scope.path, last.object)


async def follow(
    client: Client,
    scope: Scope,
    *,
    into: type[T],
    mirror: Mirror[T] | None = None,
    settings: WatchSettings = WatchSettings(),
) -> AsyncGenerator[list[Change[T]], None]:
    """Every change of a scope, for ever.

    The mirror changes before the changes are yielded. Changes arrive in batches, as the network delivered them. `into`:
    the type of an object; fields that it lacks cost nothing. `mirror`: keeps the objects; a new one by default.
    """
    mirror = Mirror() if mirror is None else mirror
    clock = client.clock
    failures = 0
    while True:
        tried, heard, began, failed = clock.monotonic(), False, math.inf, None
        try:
            rounds = _list_then_watch(client, scope, into, mirror, settings)
            async with contextlib.aclosing(rounds) as batches:
                async for changes in batches:
                    # A list alone does not show success, because the server may refuse the watch.
                    heard = began < math.inf
                    if not changes and not heard:
                        began = clock.monotonic()
                    if changes:
                        yield changes
        except KubeError as error:
            failed = error
        lasted = clock.monotonic() - (tried if _not_reached(failed) else began)
        if failed is None or lasted >= _LASTING:
            failures = 0
        if failed is None:
            continue
        failures += 1
        lists = isinstance(failed, Expired | ProtocolError) or _never(failed, failures)
        if lists:
            # The version is too old, or its events cannot be read.
            mirror.expire()
        if failures == 1 and isinstance(failed, Expired | EndedEarly):
            continue
        delay = settings.backoff.delay(failures - 1, client.chance())
        if heard and not lists:
            # A watch that is cut again and again still brings all changes.
            delay = min(delay, _SOON)
        if isinstance(failed, RequestError):
            delay = min(wait_before_retry(failed, delay), _LONGEST)
        yield [Interrupted(failed, delay)]
        await clock.sleep(delay)


def _not_reached(failed: KubeError | None) -> bool:
    """Whether no connection was made: many seconds of tries cost the server nothing, and the next one is soon."""
    return isinstance(failed, TransportError) and failed.outcome is Outcome.REFUSED


def _never(failed: KubeError, failures: int) -> bool:
    """Whether a server may refuse this watch for ever, from this version at least; a list is no more than it can bear."""
    return isinstance(failed, ApiError) and failed.status not in _BUSY and failures >= _FOR_EVER


async def _list_then_watch(
    client: Client,
    scope: Scope,
    into: type[T],
    mirror: Mirror[T],
    settings: WatchSettings,
) -> AsyncGenerator[list[Change[T]], None]:
    """One list if there is no version to start from, then one watch; may yield empty batches.

    The first empty batch shows that the server has accepted the watch.

    After a restore from a backup, a server sends nothing at all to a watch from a version that its store has not
    reached yet.
    """
    version = mirror.resource_version
    if version and is_older(await client.newest_version(scope), version):
        mirror.expire()
    if not mirror.resource_version:
        listing = await client.list_all(scope, into=into)
        yield mirror.replace(listing)
    started = client.clock.monotonic()
    version = mirror.resource_version
    async with contextlib.aclosing(
        watch_once(client, scope, into=into, resource_version=version, settings=settings)
    ) as events:
        async for frames in events:
            disorder = mirror.disorder(frames)
            yield mirror.apply(frames)
            if disorder:
                raise ProtocolError(f"GET {scope.path}: {disorder}")
    if client.clock.monotonic() - started < _TOO_SHORT:
        raise EndedEarly(f"GET {scope.path}: the watch ended as soon as it began")
