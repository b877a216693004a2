"""The garbage collector kept out of the way while the books are made.

A rebuild makes hundreds of thousands of objects, all of which stay. Looking for cycles among them
again and again takes a good part of its time, and would take it again at every full collection
afterwards; so it is done rarely meanwhile, and what is there at the end is set aside for good.
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
