"""Holds back the garbage collector while the books are made.

A rebuild creates hundreds of thousands of objects, and all of them stay. Repeated searches for cycles among them would
take a good part of its time, and so would every later full collection. So the collector runs rarely meanwhile, and
later collections skip the objects that exist at the end; a service searches all again when those are a quarter more.
"""

import contextlib
import gc
from collections.abc import Iterator
from typing import Final

_RARELY: Final = 1_000_000
"""New objects between two collections. The collector is never off, because the API server may be away for long."""


@contextlib.contextmanager
def collecting_later() -> Iterator[None]:
    """Collect rarely inside this context, and exclude the objects that exist at its end from later collections."""
    before = gc.get_threshold()
    gc.unfreeze()
    gc.set_threshold(_RARELY, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.freeze()
