"""One request until it is answered: bounded tries, polite waits, and no change made twice."""

import copy
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from partage.kube.clock import Clock
from partage.kube.config import Config
from partage.kube.errors import ConfigError, Outcome, RequestError, UnknownOutcome
from partage.kube.retry import Backoff, RateLimit, may_retry, wait_before_retry
from partage.kube.transport import Request, Transport, TransportSettings


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The client's patience and restraint; times in seconds."""

    transport: TransportSettings = TransportSettings()
    attempts: int = 5
    """The most tries of one request."""
    backoff: Backoff = Backoff()
    """Between tries, unless the server asks for more."""
    longest_wait: float = 30.0
    """If a server asks for a longer wait, there is no further try."""
    page_size: int = 1000
    """Objects a list request asks for; 0 asks for all at once."""
    field_manager: str = "partage"
    """The name under which managed fields record our changes."""

    def __post_init__(self) -> None:
        if self.attempts < 1:
            raise ValueError(f"attempts must be at least 1, not {self.attempts}")


class Sender:
    """Sends requests by the retry rules of `errors`."""

    def __init__(
        self,
        config: Config,
        settings: ClientSettings,
        *,
        environ: Mapping[str, str],
        clock: Clock,
        chance: Callable[[], float] | None,
    ) -> None:
        self.transport = Transport(
            config, clock=clock, settings=settings.transport, environ=environ
        )
        self.clock = clock
        self.chance = chance or random.Random().random  # noqa: S311 - jitter is no secret
        self._settings = settings
        self.limit: RateLimit | None = None

    def paced(self, limit: RateLimit) -> "Sender":
        """Another sender over the same connections, whose tries wait for tokens of this bucket."""
        other = copy.copy(self)
        other.limit = limit
        return other

    def insistent(self, longest_wait: float) -> "Sender":
        """Another sender over the same connections, that waits at most so many seconds before another try."""
        other = copy.copy(self)
        other._settings = replace(self._settings, longest_wait=longest_wait)  # noqa: SLF001 # a copy of itself
        return other

    async def send(
        self,
        request: Request,
        *,
        idempotent: bool = False,
        failures: list[RequestError] | None = None,
    ) -> bytes:
        """The answer's body.

        Args:
            request: the request; there is no further try after its `until`.
            idempotent: whether a second execution has no further effect.
            failures: receives the error of each failed try.

        Raises:
            UnknownOutcome: one of the tries may have made the change.
            RequestError: any other failure, from the last try.
        """
        settings = self._settings
        failures = [] if failures is None else failures
        while True:
            if self.limit is not None:
                await self.limit.wait()
            try:
                return await self.transport.send(request)
            except ConfigError as error:
                if failures and _in_doubt(request, failures):
                    raise UnknownOutcome(failures[-1]) from error
                raise
            except RequestError as error:
                failures.append(error)
                delay = settings.backoff.delay(len(failures) - 1, self.chance())
                wait = wait_before_retry(error, delay)
                spent = len(failures) >= settings.attempts or wait > settings.longest_wait
                late = request.until is not None and self.clock.monotonic() + wait >= request.until
                if spent or late or not may_retry(error, idempotent=idempotent):
                    if _in_doubt(request, failures):
                        raise UnknownOutcome(error) from error
                    raise
            await self.clock.sleep(wait)


def _in_doubt(request: Request, failures: list[RequestError]) -> bool:
    """Whether some try may have made a change; a final answer removes the doubt."""
    if request.method == "GET" or failures[-1].outcome is Outcome.FINAL:
        return False
    return any(failure.outcome is Outcome.UNKNOWN for failure in failures)
