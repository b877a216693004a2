"""Every case, in the order of the documents."""

from typing import Final

from published import seed000, seed001, seed002, seed003
from published.case import Case, Elsewhere, Misprint

__all__ = ["CASES", "ELSEWHERE", "MISPRINTS", "PAGES", "TITLES"]

TITLES: Final = {
    "000": "MetaX sGPU through Koordinator",
    "001": "Tencent qGPU",
    "002": "HAMi dynamic MIG",
    "003": "Koordinator device scheduling, v1.4",
}
PAGES: Final = {"000": "metax", "001": "qgpu", "002": "hami", "003": "koordinator"}
"""Names of their pages below docs/conformance."""

CASES: Final[tuple[Case, ...]] = (*seed000.CASES, *seed001.CASES, *seed002.CASES, *seed003.CASES)
ELSEWHERE: Final[tuple[Elsewhere, ...]] = (
    *seed000.ELSEWHERE,
    *seed001.ELSEWHERE,
    *seed002.ELSEWHERE,
    *seed003.ELSEWHERE,
)
MISPRINTS: Final[tuple[Misprint, ...]] = (
    *seed000.MISPRINTS,
    *seed001.MISPRINTS,
    *seed002.MISPRINTS,
    *seed003.MISPRINTS,
)
