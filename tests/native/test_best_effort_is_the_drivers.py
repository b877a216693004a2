"""The library itself: launches of a tenant with best-effort pass unseen, until one with a quota has a part of the card."""

import struct
import subprocess

from native_world import Tenant, World, attempts

from partage.agent.isolation.held_files import HeldFiles
from partage.agent.isolation.seats import free_seat
from partage.vendors.wishes import Policy

_SERVED_AT = 64 + 16
"""In an account: after its head, the third word of the first card's books (native/include/page.h)."""


def _counted(tenant: Tenant) -> int:
    """Device ns that the library counted."""
    (served,) = struct.unpack_from("<Q", (tenant.folder / "account").read_bytes(), _SERVED_AT)
    return int(served)


def test_turns_begin_with_a_grant_and_end_with_it(world: World) -> None:
    """The agent's word on the card's tenants decides; a program that runs goes on, counted or not."""
    tenant = world.tenant(policy=Policy.BEST_EFFORT)
    process = tenant.start("load", "--seconds", "600", "--depth", "2", "--size", "1000000")
    try:
        world.meter.until(50e6, process)
        assert _counted(tenant) == 0

        world.tenant(1, core=300, policy=Policy.FIXED_SHARE)  # granted; it need not run

        assert next(number for number in attempts() if _grows(world, tenant, process)) >= 0
        free_seat(world.folder / "card-0", 1, HeldFiles())
        assert next(number for number in attempts() if not _grows(world, tenant, process)) >= 0
    finally:
        process.kill()
        process.communicate()


def _grows(world: World, tenant: Tenant, process: subprocess.Popen[str]) -> bool:
    """Whether device time is counted while the card gives 50 ms of it."""
    before, (served,) = _counted(tenant), world.meter.served(process)
    world.meter.until(served + 50e6, process)
    return _counted(tenant) > before
