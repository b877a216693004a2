"""Series of hardware instances come out as the HAMi document prints them."""

import pytest

from partage.extender.exposition_mig import foreign_series, mig_series
from partage.inventory.ledger import Ledger
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import Device, DeviceType, ForeignInstance, SliceMode
from partage.model.mig import MigSlice
from partage.model.node import Node
from partage.vendors.families.hami.bounds import CardFacts, cutting_of
from partage.vendors.settings import HamiSettings, MigGeometry

GIB = 1 << 30
MODEL = "NVIDIA A100-SXM4-40GB"
TABLE = MigGeometry(
    (MODEL,),
    (
        (("1g.5gb", 5120, 7),),
        (("2g.10gb", 10240, 3), ("1g.5gb", 5120, 1)),
        (("3g.20gb", 20480, 2),),
    ),
)
FIRST = "GPU-936619fc-f6a1-74a8-0bc6-ecf6b3269313"
SECOND = "GPU-30f90f49-43ab-0a78-bf5c-93ed41ef2da2"
PRINTED = f"""\
# HELP nodeGPUMigInstance GPU Sharing mode. 0 for hami-core, 1 for mig, 2 for mps
# TYPE nodeGPUMigInstance gauge
nodeGPUMigInstance{{deviceidx="0",deviceuuid="{FIRST}",migname="3g.20gb-0",nodeid="aio-node15",zone="vGPU"}} 1
nodeGPUMigInstance{{deviceidx="0",deviceuuid="{FIRST}",migname="3g.20gb-1",nodeid="aio-node15",zone="vGPU"}} 0
nodeGPUMigInstance{{deviceidx="1",deviceuuid="{SECOND}",migname="3g.20gb-0",nodeid="aio-node15",zone="vGPU"}} 1
nodeGPUMigInstance{{deviceidx="1",deviceuuid="{SECOND}",migname="3g.20gb-1",nodeid="aio-node15",zone="vGPU"}} 1
"""


def _ledger(
    settings: HamiSettings,
    held: dict[str, list[MigSlice]],
    others: tuple[ForeignInstance, ...] = (),
) -> Ledger:
    cutting, _ = cutting_of(CardFacts(MODEL, "", 40 * GIB, 1000), settings)
    cards = tuple(
        Device(
            DeviceType.GPU,
            minor,
            uuid,
            "nvidia",
            MODEL,
            memory_bytes=40 * GIB,
            mode=SliceMode.MIG,
            cutting=cutting,
            foreign=others if uuid == FIRST else (),
        )
        for minor, uuid in enumerate((FIRST, SECOND, "GPU-idle"))
    )
    ledger = Ledger()
    ledger.upsert_node(Node("aio-node15", devices=cards))
    for minor, (uuid, instances) in enumerate(held.items()):
        for one in instances:
            grant = Grant("main", DeviceType.GPU, minor, uuid, 1, 1, GrantMode.MIG, mig=one)
            name = f"{uuid}-{one.start}"
            ledger.apply(Allocation(name, "default", name, "aio-node15", (grant,)))
    return ledger


def _old(ledger: Ledger) -> str:
    return b"".join(mig_series(ledger)).decode().partition("# HELP hami")[0]


def _today(ledger: Ledger) -> str:
    return b"".join(mig_series(ledger)).decode().removeprefix(_old(ledger))


def test_a_geometrys_slots_are_printed_as_the_document_prints_them() -> None:
    """Every slot of a card in use is 1 if used and 0 if free; an idle card has no slots."""
    high, low = MigSlice("3g.20gb", 4, 4), MigSlice("3g.20gb", 0, 4)
    ledger = _ledger(HamiSettings(geometries=(TABLE,)), {FIRST: [high], SECOND: [low, high]})

    assert _old(ledger) == PRINTED


def test_a_piece_has_the_instances_of_few_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tasks run between two pieces, however many cards are cut."""
    held = {FIRST: [MigSlice("3g.20gb", 4, 4)], SECOND: [MigSlice("3g.20gb", 0, 4)]}
    ledger = _ledger(HamiSettings(geometries=(TABLE,)), held)
    monkeypatch.setattr("partage.extender.exposition_mig._PIECE", 1)

    pieces = [one.decode() for one in mig_series(ledger)]

    assert [one.count("\n") for one in pieces] == [2, 2, 2, 2, 1, 1]


def test_a_slot_keeps_its_number_in_the_tables_order() -> None:
    """Slots of the second geometry: three 2g from the highest start down, then the 1g."""
    ledger = _ledger(HamiSettings(geometries=(TABLE,)), {FIRST: [MigSlice("2g.10gb", 2, 2)]})

    lines = _old(ledger).splitlines()[2:]

    found = [(line.split('migname="')[1].split('"')[0], line[-1]) for line in lines]
    assert found == [("2g.10gb-0", "0"), ("2g.10gb-1", "1"), ("2g.10gb-2", "0"), ("1g.5gb-3", "0")]


def test_without_a_table_the_instances_are_numbered_by_start() -> None:
    """Only existing instances appear, each with 1."""
    held = {FIRST: [MigSlice("1g.5gb", 6, 1), MigSlice("3g.20gb", 0, 4)]}
    ledger = _ledger(HamiSettings(), held)

    lines = _old(ledger).splitlines()[2:]

    found = [(line.split('migname="')[1].split('"')[0], line[-1]) for line in lines]
    assert found == [("3g.20gb-0", "1"), ("1g.5gb-1", "1")]


def test_todays_name_tells_the_place() -> None:
    """HAMi 2.10's series: one for each instance, with its exact place."""
    ledger = _ledger(HamiSettings(), {FIRST: [MigSlice("3g.20gb", 4, 4)]})

    line = _today(ledger).splitlines()[2]

    assert line.startswith("hami_node_gpu_mig_instance_info{")
    assert line.endswith("} 1")
    for label in ('placement_start="4"', 'placement_size="4"', 'profile="3g.20gb"'):
        assert label in line


def test_anothers_instance_is_used_and_has_a_series_of_its_own() -> None:
    """Its slot is not free; HAMi 2.10's name is only for instances of pods."""
    other = ForeignInstance(MigSlice("3g.20gb", 4, 4), ("MIG-x",))
    table, exact = HamiSettings(geometries=(TABLE,)), HamiSettings()

    for settings, wanted in (
        (table, [("3g.20gb-0", "1"), ("3g.20gb-1", "0")]),
        (exact, [("3g.20gb-0", "1")]),
    ):
        lines = _old(_ledger(settings, {}, (other,)))
        found = [
            (line.split('migname="')[1].split('"')[0], line[-1]) for line in lines.splitlines()[2:]
        ]
        assert found == wanted
    ledger = _ledger(exact, {}, (other,))
    assert len(_today(ledger).splitlines()) == 2
    (line,) = foreign_series(ledger).decode().splitlines()[2:]
    assert line == (
        f'partage_foreign_instance_info{{device_index="0",device_uuid="{FIRST}",mig_uuid="MIG-x",'
        'node="aio-node15",placement_size="4",placement_start="4",profile="3g.20gb"} 1'
    )


def test_an_instance_that_a_pods_record_names_is_no_others() -> None:
    """An instance that HAMi made before Partage is shown once."""
    here = MigSlice("3g.20gb", 4, 4)
    ledger = _ledger(HamiSettings(), {FIRST: [here]}, (ForeignInstance(here, ("MIG-x",)),))

    assert len(_old(ledger).splitlines()) == 3
    assert len(foreign_series(ledger).decode().splitlines()) == 2
