"""On which drivers the enforcement library was tried on a genuine card.

A new branch of the driver may bring functions that take memory by a way that the library does not know; what it does
not know it lets pass. So a node with an untried driver is reported, and isolation goes on.
"""

from typing import Final

TRIED: Final[tuple[int, ...]] = (580,)
"""Branches of NVIDIA's driver (580 of `580.82.07`) on which every row of `bench/gpu.py` came out as required: 580.159.04 on an H200."""


def untried(driver: str, tried: tuple[int, ...] = TRIED) -> str:
    """What is to be said of a node's driver; empty where its branch was tried, or its version is not known."""
    branch = driver.partition(".")[0]
    if not branch.isdecimal() or int(branch) in tried:
        return ""
    known = ", ".join(map(str, sorted(tried))) or "none yet"
    newer = bool(tried) and int(branch) > max(tried)
    return (
        f"driver {driver}: Partage's library was not tried on branch {branch}"
        f"{', which is newer than all that were' if newer else ''} (tried: {known}); "
        "bench/gpu.py tries it"
    )
