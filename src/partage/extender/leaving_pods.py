"""Pods that are being deleted, and when each should be gone.

Nothing makes a deletion end: a user may choose a grace period of years, a kubelet may be dead, and a container may outlive
its signal. So plans for preemption count the room of a leaving pod only if it should come before long, and evict others
beside it only if it should come soon. Otherwise pods that never end would cost others theirs, in vain.

The time counts from the first report of a grace period on this service's own clock, because clocks of machines differ.
The kubelet, too, counts a shorter one from a later deletion on.
"""

from typing import Final, NamedTuple

_LATE: Final = 60.0
"""Seconds after the end of its grace period by which a pod should be gone, and before it from which that is soon."""
_LONGEST: Final = 600.0
"""The most seconds of grace left for which room is waited for: as long as room is kept for a nominated pod."""
_MOST: Final = 2**63
"""The longest grace period that Kubernetes knows; a document may contain any number."""


class _Leaving(NamedTuple):
    since: float
    grace: float


class LeavingPods(dict[str, _Leaving]):
    """Pods that are being deleted, by uid. `now` is the time of the latest news, in seconds on a steady clock."""

    now = 0.0

    def seen(self, uid: str, grace: int | None, now: float) -> None:
        """Take in that a pod is being deleted; a later deletion may shorten its `grace`, in seconds."""
        self.now = max(now, self.now)
        left = min(max(0, grace or 0), _MOST)
        before = self.get(uid)
        if before is None or left < before.grace:
            self[uid] = _Leaving(now, left)

    def comes(self, uid: str, within: float = _LONGEST) -> bool:
        """Whether a pod's room should come within so many seconds; of a pod that is only about to be deleted it should."""
        one = self.get(uid)
        if one is None:
            return True
        left = one.since + one.grace - self.now
        return -_LATE < left <= within

    def comes_soon(self, uid: str) -> bool:
        """Whether a pod's room should come so soon that others may be evicted for the rest of a place."""
        return self.comes(uid, _LATE)
