"""Compiles loops with numba where it is installed.

Importing this module imports numba, which takes half a second, so only drivers that decide a lot import it.
"""

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

try:
    from numba import njit
except ImportError:
    COMPILED = False
else:
    COMPILED = True


_UNCOUNTED: Final[dict[str, Any]] = {
    "cache": True,
    "nogil": True,
    "_nrt": False,
    "fastmath": {"nnan", "nsz"},
}


def compiled(function: F) -> F:
    """The compiled function, with its machine code cached on disk; unchanged without numba."""
    if not COMPILED:
        return function
    return cast("F", njit(cache=True, nogil=True)(function))


def compiled_uncounted(function: F) -> F:
    """The same for a function that makes no arrays: numba then counts no users of them, half of the time here."""
    if not COMPILED:
        return function
    return cast("F", njit(**_UNCOUNTED)(function))
