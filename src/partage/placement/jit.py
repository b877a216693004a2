"""Compiles loops with numba where it is installed.

Importing this module imports numba, which takes half a second, so only drivers that decide a lot import it.
"""

from collections.abc import Callable
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

try:
    from numba import njit
except ImportError:
    COMPILED = False
else:
    COMPILED = True


def compiled(function: F) -> F:
    """The compiled function, with its machine code cached on disk; unchanged without numba.

    The function makes no arrays: numba then counts no users of them, which takes half of the time here.
    """
    if not COMPILED:
        return function
    settings: dict[str, Any] = {"cache": True, "nogil": True, "_nrt": False}
    return cast("F", njit(**settings, fastmath={"nnan", "nsz"})(function))
