"""Applying and undoing are inverse, and the order of facts does not matter."""

from hypothesis import given
from hypothesis import strategies as st
from ledgers import allocations, ledgers
from worlds import node_lists

from partage.inventory.ledger import Ledger
from partage.model.device import DeviceType


def _columns(ledger: Ledger) -> dict[str, object]:
    result: dict[str, object] = {}
    for type_ in DeviceType:
        plane = ledger.planes[type_]
        for name in ("core_free", "memory_free", "slots_free", "tenants", "open", "closed"):
            result[f"{type_} {name}"] = getattr(plane, name).tolist()
        for unit, (_total, free) in plane.extras.items():
            result[f"{type_} {unit}"] = free.tolist()
    for resource, column in ledger.host_free.items():
        result[resource] = column.tolist()
    return result


@given(st.data())
def test_apply_then_undo_changes_nothing(data: st.DataObject) -> None:
    """What a pod took is released exactly, in every column."""
    nodes = data.draw(node_lists(2))
    ledger = data.draw(ledgers(nodes))
    extra = data.draw(allocations("extra", [node.name for node in nodes]))
    picture = ledger.picture()
    # Columns as they are with the room that ghosts made, which is never taken back.
    ledger.apply(extra)
    ledger.undo("extra")
    columns = _columns(ledger)

    ledger.apply(extra)
    ledger.validate()
    given_back = ledger.undo("extra")

    assert given_back == extra
    assert ledger.picture() == picture
    assert _columns(ledger) == columns
    ledger.validate()


@given(st.data())
def test_what_is_derived_step_by_step_is_what_a_card_derives_afresh(data: st.DataObject) -> None:
    """Free slots and whether a card is open follow from its device and tenants alone."""
    ledger = data.draw(ledgers(data.draw(node_lists(2))))
    columns = _columns(ledger)

    for index in ledger.index.values():
        for type_, devices in ledger._rows[index].items():
            for row in range(len(devices)):
                ledger._refresh(type_, index, row)

    assert _columns(ledger) == columns


@given(st.data())
def test_the_order_of_facts_does_not_matter(data: st.DataObject) -> None:
    """Nodes, allocations and removals in any order give the same picture."""
    nodes = data.draw(node_lists(2))
    names = [node.name for node in nodes]
    facts = [
        data.draw(allocations(f"pod-{i}", names)) for i in range(data.draw(st.integers(0, 4)))
    ]
    steps = [*nodes, *facts]
    pictures = []

    for order in (steps, data.draw(st.permutations(steps))):
        ledger = Ledger()
        for step in order:
            if step in nodes:
                ledger.upsert_node(step)  # type: ignore[arg-type]
            else:
                ledger.apply(step)  # type: ignore[arg-type]
        ledger.validate()
        pictures.append(ledger.picture())

    assert pictures[0] == pictures[1]


@given(st.data())
def test_a_node_that_changes_is_booked_again(data: st.DataObject) -> None:
    """Removing, changing and restoring a node leads back to the same picture."""
    nodes = data.draw(node_lists(2))
    ledger = data.draw(ledgers(nodes))
    picture = ledger.picture()
    other = data.draw(node_lists(1))[0]

    if data.draw(st.booleans()):
        ledger.remove_node(nodes[0].name)
        ledger.validate()
    if other.name == nodes[0].name:
        ledger.upsert_node(other)
        ledger.validate()
    ledger.upsert_node(nodes[0])

    ledger.validate()
    assert ledger.picture() == picture
