"""Which agents are silent, by looks at leases: by changes alone, and only while the controller can look."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from partage.controllers.heartbeats import Heartbeats, Heeded

LIMIT, GAP = 60.0, 25.0
SHORT = 20.0
"""Of the law, so that silence is as common as all else."""


def test_an_agent_is_silent_after_the_limit_and_heard_at_the_next_change() -> None:
    """The node is closed once and opened once."""
    beats = Heartbeats(LIMIT, GAP)
    for now in range(0, 60, 10):
        assert beats.look({"a": "1", "b": str(now)}, (), now, now) == Heeded()

    found = beats.look({"a": "1", "b": "60"}, (), 60, 60)
    again = beats.look({"a": "1", "b": "70"}, {"a"}, 70, 70)
    back = beats.look({"a": "2", "b": "70"}, {"a"}, 80, 80)

    assert (found.close, found.silent) == ({"a": 60.0}, 1)
    assert (again.close, again.open, again.silent) == ({}, frozenset(), 1)
    assert (back.close, back.open, back.silent) == ({}, {"a"}, 0)
    assert len(beats) == 2


def test_an_agent_that_crashes_again_and_again_opens_its_node_with_each_start() -> None:
    """It renews once and ends; pauses of less than the limit leave the node open."""
    starts = [0, 15, 40, 85, 170, 335, 640]
    beats, closed, told = Heartbeats(LIMIT, GAP), False, []
    for now in range(0, 740, 10):
        mark = str(max(one for one in starts if one <= now))
        found = beats.look({"a": mark}, {"a"} if closed else (), now, now)
        if found.close or found.open:
            closed = bool(found.close)
            told.append((now, closed))

    assert told == [
        (150, True),
        (170, False),
        (230, True),
        (340, False),
        (400, True),
        (640, False),
        (700, True),
    ]


def test_a_slow_answer_is_never_counted_against_an_agent() -> None:
    """A lease that was first seen in an answer is as young as the answer, and as old as the question."""
    beats = Heartbeats(LIMIT, 1000)
    beats.look({"a": "1"}, (), 0, 20)

    assert beats.look({"a": "1"}, (), 79, 95).close == {}
    assert beats.look({"a": "1"}, (), 80, 96).close == {"a": 60.0}


def test_silence_is_counted_afresh_after_an_outage() -> None:
    """No agent could renew while the API server was away; no node is closed on its return."""
    beats = Heartbeats(LIMIT, GAP)
    beats.look({"a": "1", "b": "1"}, (), 0, 0)
    for _ in range(30):
        beats.missed()

    assert beats.look({"a": "1", "b": "1"}, (), 300, 300) == Heeded()
    for now in range(310, 360, 10):
        assert beats.look({"a": "1", "b": str(now)}, (), now, now) == Heeded()
    assert beats.look({"a": "1", "b": "360"}, (), 360, 360).close == {"a": 60.0}


def test_silence_is_counted_afresh_when_we_stood_still() -> None:
    """A process that was stopped has looked at nothing meanwhile."""
    beats = Heartbeats(LIMIT, GAP)
    beats.look({"a": "1"}, (), 0, 0)

    assert beats.look({"a": "1"}, (), 600, 600) == Heeded()


def test_a_new_leader_keeps_what_is_closed_until_it_hears_the_agent() -> None:
    """It closes no node before it has looked for as long as the limit."""
    beats = Heartbeats(LIMIT, GAP)

    first = beats.look({"a": "1", "b": "1"}, {"a"}, 0, 0)
    then = beats.look({"a": "2", "b": "1"}, {"a"}, 10, 10)

    assert (first.close, first.open, first.silent) == ({}, frozenset(), 1)
    assert (then.close, then.open, then.silent) == ({}, {"a"}, 0)


def test_a_gap_opens_nobody() -> None:
    """Counting silence from the beginning is no sign of life."""
    beats = Heartbeats(10, GAP)
    for now in (0, 10):
        beats.look({"a": "1"}, (), now, now)
    beats.missed()

    assert beats.look({"a": "1"}, {"a"}, 20, 20).open == frozenset()
    assert beats.look({"a": "2"}, {"a"}, 30, 30).open == {"a"}


def test_a_node_without_a_lease_is_nobodys() -> None:
    """A node that never had an agent is not closed; one whose lease was deleted is opened."""
    beats = Heartbeats(LIMIT, GAP)

    assert beats.look({}, {"a"}, 0, 0).open == {"a"}


@dataclass
class Plain:
    """The rule by its words, over all that was ever seen."""

    looks: list[tuple[float, float, Mapping[str, str]] | None] = field(default_factory=list)

    def _run(self) -> Sequence[tuple[float, float, Mapping[str, str]]]:
        """The last looks that belong together, newest last."""
        run: list[tuple[float, float, Mapping[str, str]]] = []
        for one in reversed(self.looks):
            if one is None or (run and run[-1][1] - one[1] > GAP):
                break
            run.append(one)
        return run[::-1]

    def silent(self, node: str) -> bool:
        """Whether the newest looks, one after the other, saw the same for as long as the limit."""
        run = self._run()
        mark, first = run[-1][2].get(node), 0.0
        if mark is None:
            return False
        for one in reversed(run):
            if one[2].get(node) != mark:
                break
            first = one[1]
        return run[-1][0] - first >= SHORT

    def back(self, node: str) -> bool:
        """Whether a change was seen since the agent was last silent, or first seen."""
        changed, before = False, None
        for number, one in enumerate(self.looks):
            if one is None:
                continue
            mark = one[2].get(node)
            if mark is None or before is None:
                changed = False
            elif mark != before:
                changed = True
            if Plain(self.looks[: number + 1]).silent(node):
                changed = False
            before = mark
        return changed


MARKS = st.dictionaries(st.sampled_from("ab"), st.sampled_from("12"))
STEPS = st.lists(
    st.tuples(st.sampled_from([0, 5, 10, 15, 40]), st.sampled_from([0, 5]), st.none() | MARKS),
    max_size=25,
)


@given(STEPS, st.sets(st.sampled_from("abc")))
def test_every_answer_is_that_of_the_plain_rule(
    steps: Sequence[tuple[int, int, Mapping[str, str] | None]], closed: set[str]
) -> None:
    """Both agree over any looks, failures and pauses, with nodes closed and opened as was said."""
    beats, plain, now = Heartbeats(SHORT, GAP), Plain(), 0.0
    for pause, takes, marks in steps:
        asked = now + pause
        now = asked + takes
        plain.looks.append(None if marks is None else (asked, now, marks))
        if marks is None:
            beats.missed()
            continue

        found = beats.look(marks, closed, asked, now)

        assert found.close.keys() == {n for n in marks if n not in closed and plain.silent(n)}
        assert found.open == {n for n in closed if n not in marks or plain.back(n)}
        closed = (closed | found.close.keys()) - found.open
