"""The work queue: once each, one worker a key, later after failures, and a clean end."""

import asyncio
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st
from kube_builders import eventually, started, stopped

from fakes.clock import InstantClock, SteppedClock
from partage.kube.retry import Backoff
from partage.kube.workqueue import WorkQueue, work


def queue_of(clock: SteppedClock | InstantClock) -> WorkQueue[str]:
    """A queue whose delays double from one second, without chance."""
    backoff = Backoff(base=1.0, cap=8.0, jitter=0.0)
    return WorkQueue(clock=clock, chance=lambda: 0.0, backoff=backoff)


async def taken(queue: WorkQueue[str]) -> str:
    """The next key, which must be ready."""
    return await asyncio.wait_for(queue.get(), 240)


async def test_a_waiting_key_is_not_queued_twice() -> None:
    """Keys come in the order in which they were first added."""
    queue = queue_of(SteppedClock())
    for key in "abab":
        queue.add(key)

    assert len(queue) == 2
    assert [await taken(queue), await taken(queue)] == ["a", "b"]


async def test_a_key_at_work_is_worked_on_once_more() -> None:
    """One worker has it at a time: the second run begins when the first is done."""
    queue = queue_of(SteppedClock())
    queue.add("a")
    await taken(queue)
    queue.add("a")
    queue.add("a")
    assert len(queue) == 0

    queue.done("a")

    assert await taken(queue) == "a"
    queue.done("a")
    assert len(queue) == 0


async def test_failures_wait_longer_each_time() -> None:
    """They do so until the key succeeds."""
    queue = queue_of(SteppedClock())

    assert [queue.retry("a") for _ in range(5)] == [1, 2, 4, 8, 8]
    assert queue.failures("a") == 5
    queue.forget("a")
    assert queue.retry("a") == 1


async def test_a_delayed_key_is_handed_out_when_due() -> None:
    """The earliest of several times counts; adding it outright needs no time."""
    clock = SteppedClock()
    queue = queue_of(clock)
    queue.add_after("late", 10)
    queue.add_after("early", 5)
    queue.add_after("late", 3)
    queue.add_after("late", 30)
    queue.add_after("now", 0)
    task = started(queue.get())
    await eventually(task.done)
    assert task.result() == "now"

    task = started(queue.get())
    await clock.advance(2.9)
    assert not task.done()
    await clock.advance(0.2)
    assert task.result() == "late"
    task = started(queue.get())
    await clock.advance(2.0)
    assert task.result() == "early"
    assert len(queue) == 0


async def test_adding_outright_ends_a_delay() -> None:
    """The queue gives it out once, not again when the delay is over."""
    clock = SteppedClock()
    queue = queue_of(clock)
    queue.add_after("a", 5)
    queue.add("a")
    assert await taken(queue) == "a"
    queue.done("a")
    task = started(queue.get())
    await clock.advance(10)

    assert not task.done()
    await stopped(task)


async def test_outdated_delays_do_not_pile_up() -> None:
    """A key set earlier again and again leaves no trail."""
    queue = queue_of(SteppedClock())
    for seconds in range(1000, 0, -1):
        queue.add_after("a", seconds)

    assert len(queue._delayed) < 100


async def test_workers_retry_what_fails_and_isolate_it() -> None:
    """Others go on; the failing key succeeds in the end and its count is forgotten."""
    clock = SteppedClock()
    queue = queue_of(clock)
    seen: list[str] = []
    failures: list[str] = []

    async def handle(key: str) -> None:
        seen.append(key)
        if key == "bad" and seen.count("bad") < 3:
            raise LookupError("boom")

    task = started(
        work(
            queue,
            handle,
            workers=2,
            name="w",
            failed=lambda key, e: failures.append(f"{key}: {e}"),
        )
    )
    for key in ("bad", "good"):
        queue.add(key)
    for _ in range(5):
        await clock.advance(1)
    await stopped(task)

    assert sorted(seen) == ["bad", "bad", "bad", "good"]
    assert failures == ["bad: boom", "bad: boom"]
    assert queue.failures("bad") == 0


async def test_cancelling_workers_leaves_nothing_behind() -> None:
    """A handler at work is cancelled too."""
    queue = queue_of(SteppedClock())
    queue.add("a")
    queue.add_after("b", 5)
    entered = asyncio.Event()

    async def handle(_key: str) -> None:
        entered.set()
        await asyncio.sleep(60)

    task = started(work(queue, handle, workers=3, name="w", failed=lambda _key, _error: None))
    await entered.wait()
    await stopped(task)
    await asyncio.sleep(0)

    assert asyncio.all_tasks() == {asyncio.current_task()}


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["add", "later", "take", "done", "fail", "wait"]), st.sampled_from("abc")
    ),
    max_size=40,
)


@given(STEPS)
def test_any_history_hands_each_key_to_one_worker_and_loses_none(
    steps: Sequence[tuple[str, str]],
) -> None:
    """Against a model: a key that is added after it was taken comes again; no key comes twice at a time."""
    asyncio.run(_replayed(steps))


async def _replayed(steps: Sequence[tuple[str, str]]) -> None:
    clock = InstantClock()
    queue = queue_of(clock)
    wanted: set[str] = set()
    working: list[str] = []
    for step, key in steps:
        if step == "add":
            queue.add(key)
            wanted.add(key)
        elif step == "later":
            queue.add_after(key, 2.0)
            wanted.add(key)
        elif step == "wait":
            clock.pass_time(1.0)
        elif step == "take" and wanted - set(working):
            found = await queue.get()
            assert found in wanted
            assert found not in working
            wanted.discard(found)
            working.append(found)
        elif step in {"done", "fail"} and working:
            ended = working.pop(0)
            if step == "fail":
                queue.retry(ended)
                wanted.add(ended)
            queue.done(ended)
    for key in working:
        queue.done(key)
    while wanted:
        key = await queue.get()
        wanted.remove(key)
        queue.done(key)
    assert len(queue) == 0
