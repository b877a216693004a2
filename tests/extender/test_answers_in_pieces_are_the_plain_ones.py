"""Answers put together from kept pieces say what they would say if they were made anew."""

import json
from dataclasses import dataclass

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from partage.extender.response_cache import BEST, ResponseCache

SIZES = st.integers(1, 200)
SEEDS = st.lists(st.tuples(st.integers(0, 2**32), st.floats(0, 1)), min_size=1, max_size=6)


@dataclass(eq=False)
class Asker:
    """Who asks; told from others by identity."""


def _known(size: int) -> ResponseCache:
    """Nodes at every second place, some with names that JSON escapes."""
    pieces = ResponseCache()
    pieces.know({f'n"{index}"é': index for index in range(0, size, 2)}, size)
    return pieces


@given(size=SIZES, steps=SEEDS, unknown=st.integers(0, 3))
def test_scores(size: int, steps: list[tuple[int, float]], unknown: int) -> None:
    """However many scores changed since the last answer, and for names that nobody knows."""
    pieces, asker = _known(size), Asker()
    listed = [f'n"{index}"é' for index in range(0, size, 2)] + ["nobody"] * unknown
    indexes = np.array([*range(0, size, 2), *[-1] * unknown], np.intp)
    scores = np.zeros(len(listed), np.int64)

    for seed, share in steps:
        chance = np.random.default_rng(seed)
        changed = chance.random(scores.size) < share
        scores = np.where(changed, chance.integers(0, BEST + 1, scores.size), scores)
        answer = json.loads(b"[%b]" % pieces.scored((asker,), listed, indexes, scores))

        assert answer == [
            {"Host": name, "Score": score}
            for name, score in zip(listed, scores.tolist(), strict=True)
        ]


@given(size=SIZES, steps=SEEDS)
def test_nodes_that_fit(size: int, steps: list[tuple[int, float]]) -> None:
    """However many nodes came or went since the last answer."""
    pieces, asker = _known(size), Asker()
    fits = np.zeros(size, np.bool_)

    for seed, share in steps:
        chance = np.random.default_rng(seed)
        fits ^= chance.random(size) < share
        fits[1::2] = False  # nobody is there
        fitting = np.flatnonzero(fits)
        answer = json.loads(b"[%b]" % pieces.fitting((asker,), fitting))

        assert answer == [f'n"{index}"é' for index in fitting.tolist()]
        named = pieces.named(fitting)
        assert [*named] == answer
        assert len(named) == len(answer)
        assert named[:1] == answer[:1]


def test_thousands_of_nodes_of_which_one_changed() -> None:
    """Only its piece is made again, and the answer is whole."""
    pieces, asker = ResponseCache(), Asker()
    names = [f"node-{index:05d}" for index in range(5000)]
    pieces.know({name: index for index, name in enumerate(names)}, 6000)
    indexes, scores = np.arange(5000), np.full(5000, 4)
    before = pieces.scored((asker,), names, indexes, scores)

    changed = scores.copy()
    changed[4999] = 9
    after = pieces.scored((asker,), names, indexes, changed)

    assert after != before
    assert json.loads(b"[%b]" % after)[4999] == {"Host": "node-04999", "Score": 9}
    assert json.loads(b"[%b]" % after)[:4999] == json.loads(b"[%b]" % before)[:4999]


def test_nodes_that_were_renamed_answer_under_their_new_names() -> None:
    """What was kept of earlier nodes is not used."""
    pieces, asker = ResponseCache(), Asker()
    pieces.know({"a": 0, "b": 1}, 2)
    pieces.fitting((asker,), np.array([0, 1]))

    pieces.know({"a": 0, "c": 1}, 2)

    assert pieces.fitting((asker,), np.array([0, 1])) == b'"a","c"'


def test_only_so_many_answers_are_kept() -> None:
    """Askers that never come again do not pile up, and those that do are answered rightly."""
    pieces = ResponseCache()
    pieces.know({"a": 0, "b": 1}, 2)
    askers = [Asker() for _ in range(100)]

    answers = [pieces.fitting((each,), np.array([n % 2])) for n, each in enumerate(askers)]
    again = [pieces.fitting((each,), np.array([n % 2])) for n, each in enumerate(askers)]

    assert answers == again == [b'"a"', b'"b"'] * 50
