"""Laws of the totals: whatever was there before, one patch makes it right, and then there is none."""

from typing import Any

from controllers_world import Manifest, card, device, document, node
from hypothesis import given
from hypothesis import strategies as st

from partage.apiserver.patch import merge_patch
from partage.controllers.totals import node_label_changes, totals_patch
from partage.vendors.catalog import FAMILIES, koordinator_reports
from partage.vendors.settings import HamiSettings, Settings
from partage.wire.context import Context
from partage.wire.nodes import device_totals, translate_node

OURS = sorted(koordinator_reports(Settings()))
FOREIGN = [
    "cpu",
    "nvidia.com/gpu",
    "metax-tech.com/sgpu",
    "example.com/x",
    "kubernetes.io/batch-cpu",
    "tke.cloud.tencent.com/qgpu-core",
    "tke.cloud.tencent.com/qgpu-memory",
]
AMOUNTS = st.sampled_from(["0", "7", "100", "200", "16Gi", "2e2", "0.1k"])
TOTALS = st.dictionaries(st.sampled_from([*OURS, *FOREIGN]), AMOUNTS, max_size=8)
CARDS = st.lists(
    st.builds(
        lambda memory, health, domain: {"memory": memory, "health": health, "domain": domain},
        st.sampled_from(["16Gi", "80Gi", "0"]),
        st.booleans(),
        st.sampled_from(["koordinator.sh", "kubernetes.io"]),
    ),
    max_size=4,
)
VENDORS = st.sampled_from(["", "nvidia", "metax", "huawei"])
SCALING = st.sampled_from([1.0, 1.5, 2.0])


def reported(cards: list[dict[str, Any]], vendor: str) -> Manifest:
    """A Device object with these cards."""
    made = [
        card(minor, one["memory"], one["domain"], health=one["health"])
        for minor, one in enumerate(cards)
    ]
    found = device("n1", *made, **{"node.koordinator.sh/gpu-vendor": vendor})
    return {**found, "spec": {"devices": made}}


@given(TOTALS, TOTALS, CARDS, VENDORS, SCALING, st.booleans())
def test_one_patch_makes_any_node_right(
    capacity: dict[str, str],
    allocatable: dict[str, str],
    cards: list[dict[str, Any]],
    vendor: str,
    scaling: float,
    described: bool,  # noqa: FBT001 # whether there is a Device object at all
) -> None:
    """After it the names are those of the devices, foreign ones are as before, nothing is left."""
    context = Context.of(Settings(hami=HamiSettings(memory_scaling=scaling)), FAMILIES)
    manifest = {**node(), "status": {"capacity": capacity, "allocatable": allocatable}}
    one, two = document(manifest), document(reported(cards, vendor)) if described else None
    read = translate_node(one, two, context).node

    patch = totals_patch(one, two, read, context.settings)

    after = {**manifest, "status": merge_patch(manifest["status"], patch)}
    assert totals_patch(document(after), two, read, context.settings) == {}
    wanted = device_totals(read)
    for part, before in (("capacity", capacity), ("allocatable", allocatable)):
        found = after["status"].get(part, {})
        assert {key: found.get(key) for key in FOREIGN} == {k: before.get(k) for k in FOREIGN}
        domains = ("koordinator.sh/", "kubernetes.io/")
        names = {n for n in found if n in OURS and n.startswith(domains)}
        assert names == {name for name in wanted if name.startswith(domains)}


LABELS = st.dictionaries(
    st.sampled_from(["node.koordinator.sh/gpu-vendor", "qgpu-device-enable", "team"]),
    st.sampled_from(["nvidia", "disable", "x"]),
)


@given(TOTALS, LABELS, VENDORS)
def test_labels_are_right_after_one_change(
    totals: dict[str, str], labels: dict[str, str], vendor: str
) -> None:
    """What the operator set stays; a second look changes nothing."""
    manifest = node(labels=labels, totals=totals)
    two = document(reported([], vendor))

    changes = node_label_changes(document(manifest), two)

    after = {**labels, **changes}
    assert node_label_changes(document(node(labels=after, totals=totals)), two) == {}
    assert {
        k: v for k, v in after.items() if k in labels and k != "node.koordinator.sh/gpu-vendor"
    } == {k: v for k, v in labels.items() if k != "node.koordinator.sh/gpu-vendor"}
