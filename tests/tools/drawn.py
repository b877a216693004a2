"""Strategies that are made once: one that is made for each draw is examined for each draw, which takes longer than drawing."""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, TypeVar

from hypothesis import strategies as st

T = TypeVar("T")


def sampled(values: Sequence[T]) -> st.SearchStrategy[T]:
    """One of these, as `st.sampled_from` draws it."""
    try:
        return _kept(*values)
    except TypeError:  # a dictionary is among them, or holds one
        return st.sampled_from(values)


@lru_cache(maxsize=1024, typed=True)
def _kept(*values: Any) -> st.SearchStrategy[Any]:
    return st.sampled_from(values)
