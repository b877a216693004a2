"""Fills, and copies from the card to itself, are measured and charged as launches are; copies over the link are not."""

import pytest
from native_world import World

from partage.agent.isolation.seats import read_seat
from partage.vendors.wishes import Policy

FILLS = [
    f"cuMemset{kind}{form}"
    for kind in ("D8", "D16", "D32", "D2D8", "D2D16", "D2D32")
    for form in ("_v2", "_v2_ptds", "Async", "Async_ptsz")
]
COPIES = [
    *(
        f"cuMemcpy{kind}{form}"
        for kind in ("DtoD", "DtoA", "AtoD", "AtoA")
        for form in ("_v2", "_v2_ptds")
    ),
    *("cuMemcpyDtoDAsync_v2", "cuMemcpyDtoDAsync_v2_ptsz"),
]
TOLD = [
    "cuMemcpy2D_v2",
    "cuMemcpy2D_v2_ptds",
    "cuMemcpy2DUnaligned_v2",
    "cuMemcpy2DUnaligned_v2_ptds",
    "cuMemcpy2DAsync_v2",
    "cuMemcpy2DAsync_v2_ptsz",
    "cuMemcpy3D_v2",
    "cuMemcpy3D_v2_ptds",
    "cuMemcpy3DAsync_v2",
    "cuMemcpy3DAsync_v2_ptsz",
]
"""Copies whose description tells where the ends lie, or leaves it to the driver."""
UNTOLD = [
    "cuMemcpy",
    "cuMemcpy_ptds",
    "cuMemcpyAsync",
    "cuMemcpyAsync_ptsz",
    "cuMemcpyWithAttributesAsync",
    "cuMemcpyWithAttributesAsync_ptsz",
    *(
        f"cuMemcpy{kind}Peer{form}"
        for kind in ("", "3D")
        for form in ("", "_ptds", "Async", "Async_ptsz")
    ),
    *(
        f"cuMemcpy{kind}BatchAsync{form}"
        for kind in ("", "3D")
        for form in ("", "_ptsz", "_v2", "_v2_ptsz")
    ),
    *("cuMemcpy3DWithAttributesAsync", "cuMemcpy3DWithAttributesAsync_ptsz"),
]
"""Copies that let the driver find out. Lists have a copy from the host as well."""


def charged(world: World, *command: str) -> int:
    """Device ns that the tenant of a program paid for (native/tests/moves.c)."""
    tenant = world.tenant(core=500, policy=Policy.BURST_SHARE)

    done = tenant.run("moves", *command)

    assert done.returncode == 0, done.stderr
    seat = read_seat(tenant.folder / "card-0", 0)
    return seat.served_ns if seat else 0  # nothing was ever gated


@pytest.mark.parametrize(
    ("name", "where"),
    [
        *((name, "card") for name in [*FILLS, *COPIES, *TOLD]),
        *((name, "unified") for name in [*TOLD, *UNTOLD]),
    ],
)
def test_what_the_card_does_for_it_is_charged(world_by_work: World, name: str, where: str) -> None:
    """Ten calls of 2 ms, by every entry point; how much of each is judged in virtual time."""
    assert 0 < charged(world_by_work, name, where) < 40e6


@pytest.mark.parametrize("name", [*TOLD, *UNTOLD])
def test_copies_from_the_host_are_not(world_by_work: World, name: str) -> None:
    """The link bounds them, and they run beside the work of the card."""
    assert charged(world_by_work, name, "host") == 0


def test_captured_ones_are_charged_with_their_graph(world_by_work: World) -> None:
    """Three launches of a graph of 6 ms; the capture itself is not disturbed, and costs nothing."""
    assert 0 < charged(world_by_work, "captured") < 40e6
