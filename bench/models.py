"""Frameworks' programs on the modelled cards, in every mode: the table of docs/modelled-isolation.md.

Usage: python bench/models.py [PROGRAM ...]        after `make native`

Time is virtual, so the figures depend on the library and the models, and on no machine.
"""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

REPLAY = Path(__file__).parents[1] / "build" / "native" / "replay"
MODELS = ("optimistic", "measured", "crowded", "hostile")
MODES = ("bare", "memory", "best-effort", "fixed-share", "burst-share")
PROGRAMS = {
    "eager": "eager (PyTorch)",
    "serving": "serving (vLLM)",
    "engine": "engine (TensorRT)",
    "compiled": "compiled (JAX)",
    "ranks": "ranks on two cards (NCCL)",
    "persistent": "persistent kernel",
}
TENANTS = {1: "alone", 2: "two"}


def steps(program: str, model: str, tenants: int, mode: str, replay: Path = REPLAY) -> int:
    """Steps a second of all tenants; the same number of tenants gives the same figure every time."""
    command = [str(replay), f"trace-{program}", model, "1", str(tenants), mode]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return int(dict(line.split() for line in done.stdout.splitlines())["steps"])


def row(program: str, tenants: int, replay: Path = REPLAY) -> str:
    """One program's line: steps on the bare driver, and the percent that remains in each mode, for each model."""
    # On a model without overlapping streams, a kernel that stays blocks its own program.
    models = MODELS[1:] if program == "persistent" else MODELS
    cells = []
    bare: list[int] = []
    for mode in MODES:
        found = [steps(program, model, tenants, mode, replay) for model in models]
        bare = bare or found
        left = [f"{100 * one / of:.1f}" for one, of in zip(found, bare, strict=True)]
        none = ["-"] * (len(MODELS) - len(models))
        cells.append(" / ".join(none + (left if mode != "bare" else [str(one) for one in found])))
    return f"| {PROGRAMS[program]}, {TENANTS[tenants]} | {' | '.join(cells)} |"


def main() -> None:
    """Print the table."""
    programs = sys.argv[1:] or list(PROGRAMS)
    print(
        "| program | bare, steps a second | memory cap alone, % | "
        + ", % | ".join(MODES[2:])
        + ", % |"
    )
    print("| --- " * (len(MODES) + 1) + "|")
    with ThreadPoolExecutor(2) as pool:
        for line in pool.map(
            lambda of: row(*of),
            [(program, tenants) for tenants in TENANTS for program in programs],
        ):
            print(line, flush=True)


if __name__ == "__main__":
    main()
