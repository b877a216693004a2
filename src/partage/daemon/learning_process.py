"""The process in which prices are made.

It imports this module first, so this module imports nothing that prices do not need.
"""

import gc
import os
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context, parent_process
from threading import Thread
from typing import Final

_NICE: Final = 10


def process() -> Executor:
    """A separate process of low priority; it ends with ours, even if ours is killed."""
    context = get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=context, initializer=_begun, initargs=(_NICE,))


def _begun(nice: int) -> None:
    os.nice(nice)
    gc.disable()  # it ends soon; looking for cycles while modules are loaded is a tenth of its work
    Thread(target=_end_with_parent, name="learning:parent", daemon=True).start()


def _end_with_parent() -> None:
    """End with the parent: a killed process does not stop its workers, which would compute on or wait forever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
