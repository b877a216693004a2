"""Compares a real card's profiles and places with the package's table; changes nothing.

Reads NVML only: MIG mode, profiles, places and instances of every card of this machine. Prints a profile that the
table lacks or has differently. Memory and names differ by driver, so it separates those from the values that must agree
(slices, size, starts, count). Needs the extra `nvidia`.

    python bench/mig_hardware.py

Exit: 0 all agree, or no card can be cut; 1 a value that must agree does not; 2 no driver.
"""

import sys

from partage.agent.mig.driver import NvidiaDriver
from partage.agent.mig.nvml import CardFacts
from partage.model.errors import PartageError
from partage.model.mig import MigAxis, MigProfile
from partage.vendors.mig import find_card

MUST = ("compute", "size", "starts", "count")
MAY = ("name", "id", "memory_bytes", "core_milli", "engines", "attributes")


def main() -> None:
    try:
        driver = NvidiaDriver.open()
        cards = driver.cards()
    except PartageError as error:
        print(error)
        sys.exit(2)
    print(f"driver {driver.version()}, {len(cards)} cards")
    wrong = sum([look(driver, card) for card in cards])
    driver.close()
    sys.exit(1 if wrong else 0)


def look(driver: NvidiaDriver, card: CardFacts) -> int:
    """Print one card; returns the number of differences in values that must agree."""
    mode, axis = driver.mode(card.uuid), driver.axis(card.uuid)
    print(f"\n{card.name} ({card.pci}), {card.uuid}: MIG mode {'on' if mode.current else 'off'}")
    if not axis.profiles:
        print("  cannot be cut")
        return 0
    for one in driver.instances(card.uuid):
        uuids = ", ".join(compute.uuid for compute in one.computes)
        print(f"  instance {one.id}: profile {one.profile}, units {one.start}+{one.size} {uuids}")
    known = find_card(card.name, card.pci)
    if known is None:
        print("  the table has no such model; its driver says:")
        for profile in axis.profiles:
            print(f"    {profile}")
        return 1
    return compare(axis, known.axis)


def compare(axis: MigAxis, table: MigAxis) -> int:
    there = {profile.kind: profile for profile in axis.profiles}
    known = {profile.kind: profile for profile in table.profiles}
    wrong = 0
    for kind in sorted({*there, *known}):
        one, other = there.get(kind), known.get(kind)
        if one is None or other is None:
            wrong += one is not None
            print(f"  kind {kind}: driver {name(one)}, table {name(other)}")
            continue
        for field in (*MUST, *MAY):
            if getattr(one, field) != getattr(other, field):
                wrong += field in MUST
                said = f"driver {getattr(one, field)}, table {getattr(other, field)}"
                print(f"  {other.name} {field}: {said}{'  <-- WRONG' if field in MUST else ''}")
    print(
        f"  compared {len(there)} profiles with {table.model}: {wrong} differences that must not be"
    )
    return wrong


def name(profile: MigProfile | None) -> str:
    return "has none" if profile is None else profile.name


if __name__ == "__main__":
    main()
