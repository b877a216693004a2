"""The rules of retries and their delays: plain values and arithmetic."""

from dataclasses import dataclass
from typing import Final

from partage.kube.clock import Clock
from partage.kube.errors import ApiError, Outcome, RequestError

_LARGEST_EXPONENT: Final = 64
"""Beyond this the delay is at its cap for any sensible factor. The bound keeps the power finite."""


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential delays, shortened by chance so that clients do not retry at the same moment."""

    base: float = 0.1
    """Seconds before the first retry."""
    factor: float = 2.0
    """Growth from one retry to the next."""
    cap: float = 10.0
    """Longest delay in seconds."""
    jitter: float = 0.5
    """The share of a delay that chance may take away, 0 to 1."""

    def delay(self, attempt: int, chance: float) -> float:
        """Seconds to wait after this many earlier failures (0 for the first). `chance`: random, 0 <= chance < 1."""
        full = min(self.cap, self.base * self.factor ** min(attempt, _LARGEST_EXPONENT))
        return full * (1.0 - self.jitter * chance)


def may_retry(error: RequestError, *, idempotent: bool) -> bool:
    """Whether the same request may be sent again after this error."""
    if error.outcome is Outcome.REFUSED:
        return True
    return idempotent and error.outcome is Outcome.UNKNOWN


def wait_before_retry(error: RequestError, delay: float) -> float:
    """Seconds to wait: ours, or the server's if it asks for more."""
    asked = error.retry_after if isinstance(error, ApiError) else None
    return max(delay, asked or 0.0)


class RateLimit:
    """A token bucket: at most `burst` requests at once and `rate` a second in the long run."""

    def __init__(self, rate: float, burst: int, clock: Clock) -> None:
        if rate <= 0 or burst < 1:
            raise ValueError(f"rate {rate} and burst {burst} must be positive")
        self._rate = rate
        self._burst = burst
        self._clock = clock
        # The moment at which the bucket would be full again: this number is its whole state.
        self._full_at = clock.monotonic()

    @property
    def full(self) -> bool:
        """Whether no token is taken."""
        return self._full_at <= self._clock.monotonic()

    def reserve(self, tokens: float = 1.0) -> float:
        """Take one token, or as many as given; returns the seconds until their use."""
        now = self._clock.monotonic()
        self._full_at = max(self._full_at, now) + tokens / self._rate
        return max(0.0, self._full_at - now - self._burst / self._rate)

    def ready(self) -> bool:
        """Whether a token may be used at once."""
        return (
            self._full_at + 1.0 / self._rate <= self._clock.monotonic() + self._burst / self._rate
        )

    async def wait(self) -> None:
        """Take one token, and wait for it if necessary."""
        seconds = self.reserve()
        if seconds > 0:
            await self._clock.sleep(seconds)
