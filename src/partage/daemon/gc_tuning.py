"""The garbage collector kept out of the way while the books are made.

A rebuild creates hundreds of thousands of objects, all of which stay. Repeated search for cycles among them takes a
good part of its time, and so would every later full collection. So the collector runs rarely meanwhile, and the
objects that exist at the end are exempt for good.
"""

import contextlib
import gc
from collections.abc import Iterator
from typing import Final

_RARELY: Final = 1_000_000
"""New objects between two collections; never quite off, because an API server may be long away."""


@contextlib.contextmanager
def collecting_later() -> Iterator[None]:
    """Collect rarely inside, and leave alone afterwards what was made there."""
    before = gc.get_threshold()
    gc.unfreeze()
    gc.set_threshold(_RARELY, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.freeze()
