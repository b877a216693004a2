import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.sim.kernel import Kernel

moments = st.tuples(st.integers(0, 5), st.integers(-1, 1))


@given(st.lists(moments))
def test_time_then_priority_then_order_of_scheduling(plan: list[tuple[int, int]]) -> None:
    """Events come sorted by time and priority; equal ones in the order they were scheduled."""
    kernel: Kernel[int] = Kernel()
    for number, (time, priority) in enumerate(plan):
        kernel.at(time, number, priority)

    taken = list(kernel.run())

    assert taken == sorted(range(len(plan)), key=lambda n: (*plan[n], n))
    assert len(kernel) == 0


def test_events_may_schedule_more() -> None:
    """What is scheduled while an event is taken comes in its turn."""
    kernel: Kernel[str] = Kernel(start=1.0)
    kernel.at(2.0, "first")
    kernel.at(5.0, "last")
    seen = []

    for event in kernel.run():
        seen.append((kernel.now, event))
        if event == "first":
            kernel.at(3.0, "between")

    assert seen == [(2.0, "first"), (3.0, "between"), (5.0, "last")]


@pytest.mark.parametrize("time", [0.5, float("nan")], ids=["past", "nan"])
def test_nothing_happens_in_the_past(time: float) -> None:
    """An event before now, or at no time, is refused."""
    kernel: Kernel[str] = Kernel(start=1.0)

    with pytest.raises(ValueError, match="an event at"):
        kernel.at(time, "late")
