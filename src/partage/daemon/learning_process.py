"""The process in which prices are made.

It imports this module first, so this module imports nothing that prices do not need.

An image brings machine code of the loops in which prices are rehearsed, so that no container compiles them. Its build
calls `python -m partage.daemon.learning_process FOLDER`.
"""

import gc
import os
import re
import sys
from collections.abc import MutableMapping
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import suppress
from multiprocessing import get_context, parent_process
from pathlib import Path
from threading import Thread
from typing import Final

_NICE: Final = 10
MACHINE_CODE: Final = "PARTAGE_MACHINE_CODE"
"""The variable with the folder of machine code."""
_CACHE: Final = "NUMBA_CACHE_DIR"
_COMMON: Final = {"NUMBA_CPU_NAME": "x86-64-v3", "NUMBA_CPU_FEATURES": ""}
"""The processors for which it is made: those of servers since about 2015. Loops for every x86-64 take half as long again."""
_NEEDED: Final = frozenset(("avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe"))
"""What such a processor says about itself in /proc/cpuinfo."""
_ADDRESS: Final = re.compile(rb"(?<= at 0x)[0-9a-f]+(?=>)")
_ONE_CARD: Final = 1000, 1024, 1, 1000


def process() -> Executor:
    """A separate process of low priority; it ends with ours, even if ours is killed."""
    context = get_context("spawn")
    return ProcessPoolExecutor(1, mp_context=context, initializer=_begun, initargs=(_NICE,))


def _begun(nice: int) -> None:
    os.nice(nice)
    use_machine_code(os.environ, abilities())
    gc.disable()  # it ends soon; looking for cycles while modules are loaded is a tenth of its work
    Thread(target=_end_with_parent, name="learning:parent", daemon=True).start()


def _end_with_parent() -> None:
    """End with the parent: a killed process does not stop its workers, which would compute on or wait forever."""
    parent = parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def abilities(file: Path = Path("/proc/cpuinfo")) -> frozenset[str]:
    """What the processor can do, in Linux's words; empty if Linux does not say it so."""
    with suppress(OSError):
        for line in file.read_text(encoding="utf-8").splitlines():
            name, _, words = line.partition(":")
            if name.strip() == "flags":
                return frozenset(words.split())
    return frozenset()


def use_machine_code(variables: MutableMapping[str, str], able: frozenset[str]) -> None:
    """Let numba, which is not imported yet, find the machine code of the image, if the processor can run it.

    Numba only reads a folder that it can also write, so the files are linked into its own one.
    """
    made, cache = variables.get(MACHINE_CODE), variables.get(_CACHE)
    if not made or not cache or not able >= _NEEDED or _COMMON.keys() & variables.keys():
        return
    variables.update(_COMMON)
    for folder, _, names in os.walk(made):
        place = Path(cache, Path(folder).relative_to(made))
        with suppress(OSError):  # numba compiles what it does not find
            place.mkdir(parents=True, exist_ok=True)
            for name in names:
                with suppress(FileExistsError):
                    (place / name).symlink_to(Path(folder, name))


def _make_machine_code(folder: str) -> None:
    """Compile the loops by making prices for one pod on one node."""
    if not abilities() >= _NEEDED:
        sys.stderr.write("learning_process: no machine code is made on such a processor\n")
        return
    os.environ.update({**_COMMON, _CACHE: folder})
    import numpy as np  # noqa: PLC0415 # reads the variables

    from partage.placement.mix import Ask, Mix, Stock  # noqa: PLC0415
    from partage.placement.selection import chosen  # noqa: PLC0415

    cpu, memory, cards, milli = _ONE_CARD
    room = [np.array([n], np.int64) for n in (cpu, memory, cards, 0)]
    stock = Stock(room[0], room[1], room[2], room[3], ("",))
    chosen(Mix.of({Ask(cpu, memory, cards, milli): 1}, stock), stock)
    # Comments in the files name where functions lay in memory; without that the same sources make the same image.
    for file in Path(folder).rglob("*.nbc"):
        file.write_bytes(_ADDRESS.sub(lambda found: b"0" * len(found[0]), file.read_bytes()))


if __name__ == "__main__":
    _make_machine_code(sys.argv[1])
