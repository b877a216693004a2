"""An instance that may have been replaced reports nothing about cards, because its books are old."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from fakes.builders import card as model_card
from fakes.builders import make_node
from fakes.clock import SteppedClock
from partage.daemon.events_and_wakeups import Notices
from partage.extender.books import Books
from partage.extender.cluster_cache import ClusterCache
from partage.extender.ports import Hooks
from partage.model.allocation import Grant, GrantMode
from partage.model.device import DeviceType, SliceMode
from partage.model.pod import Pod, Record
from partage.model.reason import ReasonCode, Refusal
from partage.scheduler.events import NodeSeen, PodSeen, Quarantined, Unserviceable

GRANT = Grant("main", DeviceType.GPU, 0, "GPU-0", 1000, 2**30, GrantMode.SHARE)
POD: Any = SimpleNamespace(
    pod=SimpleNamespace(uid="u", key="default/p", name="p", namespace="default", node=None)
)


class Api:
    """Takes events, and counts them.

    Attributes:
        written: their reasons.
    """

    def __init__(self) -> None:
        self.clock = SteppedClock()
        self.written: list[str] = []

    async def create(self, _kind: object, body: Any, **_: Any) -> None:
        """An event is new."""
        self.written.append(body["reason"])

    async def patch(self, _kind: object, _name: str, body: Any, **_: Any) -> None:
        """A pod or an event is changed."""
        self.written.append(str(body))


def tell_all(hooks: Hooks) -> None:
    """Everything that the books may say of cards."""
    hooks.quarantined(Quarantined("u", "n", "over-committed by a/b", "over-committed by 3 pods"))
    hooks.unserviceable(Unserviceable("n", "cards serve nothing"))
    hooks.refused(POD, Refusal(ReasonCode.INSUFFICIENT_CARDS, "no card is free", {}))


@pytest.mark.parametrize("paused", ["before it tells", "before it writes"])
async def test_a_leader_that_was_paused_is_silent(paused: str) -> None:
    """The pause begins before the fact is found, or between that and the write."""
    api, lead = Api(), [True]
    client: Any = api
    notices = Notices(client, "test", lambda _uid: POD, lambda: lead[0])
    notices.speaks = True  # its task has not been cancelled yet
    lead[0] = paused != "before it tells"
    tell_all(notices.hooks)
    lead[0] = False
    running = asyncio.create_task(notices.run())
    await api.clock.advance(1.0)

    assert api.written == []
    lead[0] = True  # what was not said then is of the past
    await api.clock.advance(100.0)
    assert api.written == []
    tell_all(notices.hooks)
    await api.clock.advance(1.0)
    assert "Quarantined" in api.written
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


@pytest.mark.parametrize("speaks", [True, False])
async def test_who_leads_tells(speaks: bool) -> None:  # noqa: FBT001 # a parameter of the test
    """A standby does not, whatever its Lease contains."""
    api = Api()
    client: Any = api
    notices = Notices(client, "test", lambda _uid: POD)
    notices.speaks = speaks
    tell_all(notices.hooks)
    running = asyncio.create_task(notices.run())
    await api.clock.advance(1.0)

    assert bool(api.written) is speaks
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


def overbooked(name: str) -> Pod:
    """A bound pod that says that it has the whole of the only card."""
    return Pod(f"uid-{name}", "default", name, node="n", record=Record((GRANT,), "test"))


def test_books_of_who_does_not_lead_count_and_log_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Facts found meanwhile are reported once when the instance leads, and never after a lost Lease."""
    lead, told = [False], list[str]()
    hooks = Hooks(
        quarantined=lambda action: told.append(action.message),
        unserviceable=lambda action: told.append(action.message),
        leads=lambda: lead[0],
    )
    books = Books(ClusterCache(), hooks)
    broken = model_card(1, mode=SliceMode.MIG)
    books.take([NodeSeen(make_node("n", [model_card(0), broken]))], 0.0)
    books.take([PodSeen(overbooked("one")), PodSeen(overbooked("two"))], 0.0)
    books.tick(1.0)
    assert books.engine.ledger.overbooked("uid-two")
    assert (books.counts["quarantined"], told, caplog.messages) == (0, [], [])

    lead[0] = True
    for second in (2.0, 3.0):
        books.tick(second)
        assert books.counts["quarantined"] == 1
        assert len([text for text in caplog.messages if "over-committed" in text]) == 1
        assert len([text for text in caplog.messages if "serve no pod" in text]) == 1
        assert len(told) == 2  # once by a hook, which writes the event
    lead[0] = False
    books.take([PodSeen(overbooked("three"))], 4.0)
    assert books.counts["quarantined"] == 1
    lead[0] = True
    books.take([PodSeen(overbooked("four"))], 5.0)
    assert books.counts["quarantined"] == 2
    assert len(told) == 3
