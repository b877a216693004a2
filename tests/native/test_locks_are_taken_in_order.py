"""The order of the library's locks is held by builds with checks, and costs others nothing."""

import shutil
import subprocess
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
PROGRAM = """
#include "lock.h"
#ifdef PARTAGE_CHECKED
_Thread_local uint32_t locks_held;
#endif
static struct lock first, second;
int main(void)
{
    lock_take(&first, LOCK_%s);
    lock_take(&second, LOCK_%s);
    lock_give(&second, LOCK_%s);
    lock_give(&first, LOCK_%s);
    lock_take(&second, LOCK_%s);
    return 0;
}
"""


def _ends(folder: Path, first: str, second: str, *options: str) -> int:
    compiler = shutil.which("gcc")
    if compiler is None:
        pytest.skip("gcc is not installed")
    source, program = folder / "locks.c", folder / "locks"
    source.write_text(PROGRAM % (first, second, second, first, second))
    include = [f"-I{NATIVE / name}" for name in ("src", "include")]
    command = [compiler, "-std=gnu11", "-D_GNU_SOURCE", *options, *include, "-o", program, source]
    subprocess.run(command, check=True)
    return subprocess.run([program], check=False).returncode


@pytest.mark.parametrize(
    ("first", "second", "good"),
    [
        ("HOLDERS", "SETTINGS", True),
        ("PHYSICAL", "LEDGER", True),
        ("LEDGER", "OPENING", True),
        ("LEDGER", "PHYSICAL", False),
        ("GATE", "LEDGER", False),
        ("POOLS", "POOLS", False),
    ],
)
def test_a_lock_that_comes_too_early_ends_the_process(
    tmp_path: Path, first: str, second: str, *, good: bool
) -> None:
    """The check ends the program at the call that takes it; no other thread need be in the way."""
    assert (_ends(tmp_path, first, second, "-DPARTAGE_CHECKED") == 0) == good
    assert _ends(tmp_path, first, second) == 0
