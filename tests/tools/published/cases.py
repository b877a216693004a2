"""Every case, in the order of the documents."""

from typing import Final

from published import hami, koordinator, metax, qgpu
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

CASES: Final[tuple[Case, ...]] = (*metax.CASES, *qgpu.CASES, *hami.CASES, *koordinator.CASES)
ELSEWHERE: Final[tuple[Elsewhere, ...]] = (
    *metax.ELSEWHERE,
    *qgpu.ELSEWHERE,
    *hami.ELSEWHERE,
    *koordinator.ELSEWHERE,
)
MISPRINTS: Final[tuple[Misprint, ...]] = (
    *metax.MISPRINTS,
    *qgpu.MISPRINTS,
    *hami.MISPRINTS,
    *koordinator.MISPRINTS,
)
