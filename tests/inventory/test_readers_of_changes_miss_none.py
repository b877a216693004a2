"""Every reader of the log of changes sees each change, or learns that it must look at everything."""

from hypothesis import given
from hypothesis import strategies as st

from partage.inventory.columns import ChangeLog, distinct


@given(st.lists(st.integers(0, 9), max_size=60), st.integers(1, 8), st.integers(0, 60))
def test_what_is_kept_is_told_and_what_is_not_is_admitted(
    changes: list[int], kept: int, seen: int
) -> None:
    """The latest changes are there in order; older readers must look at every node."""
    log = ChangeLog(kept)
    for index in changes:
        log.append(index)
    seen = min(seen, len(changes))

    found = log.since(seen)

    assert log.count == len(changes)
    if found is None:
        assert len(changes) - seen > kept
    else:
        assert found.tolist() == changes[seen:]


def test_nobody_has_seen_less_than_nothing() -> None:
    """A reader that has never looked must look at everything."""
    assert ChangeLog().since(-1) is None


def test_a_node_that_changed_twice_is_looked_at_once() -> None:
    """`distinct` gives each node once, in order."""
    log = ChangeLog()
    for index in (5, 2, 5, 2, 2):
        log.append(index)
    found = log.since(1)

    assert found is not None
    assert distinct(found).tolist() == [2, 5]
