"""Every case, in the order of the documents."""

from typing import Final

from partage.testing.conformance import seed000, seed001, seed002, seed003
from partage.testing.conformance.case import Case, Later, Misprint

__all__ = ["CASES", "LATER", "MISPRINTS", "TITLES"]

TITLES: Final = {
    "000": "Seed 000: MetaX sGPU through Koordinator",
    "001": "Seed 001: Tencent qGPU",
    "002": "Seed 002: HAMi dynamic MIG",
    "003": "Seed 003: Koordinator device scheduling, v1.4",
}

CASES: Final[tuple[Case, ...]] = (*seed000.CASES, *seed001.CASES, *seed002.CASES, *seed003.CASES)
LATER: Final[tuple[Later, ...]] = (*seed000.LATER, *seed001.LATER, *seed002.LATER, *seed003.LATER)
MISPRINTS: Final[tuple[Misprint, ...]] = (
    *seed000.MISPRINTS,
    *seed001.MISPRINTS,
    *seed002.MISPRINTS,
    *seed003.MISPRINTS,
)
