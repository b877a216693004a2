"""The table of cards that can be cut into instances says what was published."""

import json
from pathlib import Path
from typing import Any

import pytest

from partage.model.mig import ENGINES, MigAxis, layouts
from partage.vendors.mig import MIG_CARDS, find_card, find_profile, for_driver
from plain_instances import maximal_layouts

FACTS = Path(__file__).parents[2].parent / "shared/data/mig_profiles.json"


def _plain(axis: MigAxis, *more: str) -> list[str]:
    return [p.name for p in axis.profiles if p.plain or p.attributes & set(more)]


@pytest.mark.parametrize(
    ("model", "every", "maximal"),
    [
        ("A100-80GB", 297, 19),
        ("H100-80GB", 297, 19),
        ("B300-269GB", 297, 19),
        ("A30-24GB", 25, 5),
        ("RTX-PRO-6000-Blackwell-96GB", 25, 5),
    ],
)
def test_layouts_are_as_many_as_published(model: str, every: int, maximal: int) -> None:
    """Plain profiles: layouts by position, and those that cannot grow."""
    axis = MIG_CARDS[model].axis

    assert len(list(layouts(axis, _plain(axis)))) == every
    assert len(maximal_layouts(axis, _plain(axis))) == maximal


def test_profiles_of_double_memory_add_layouts() -> None:
    """With 1g of double memory a card has 722 layouts, 78 of them maximal."""
    axis = MIG_CARDS["A100-80GB"].axis
    names = _plain(axis, "double-memory")

    assert len(list(layouts(axis, names))) == 722
    assert len(maximal_layouts(axis, names)) == 78


def test_media_engines_limit_the_layouts_of_a_card_with_twelve_units() -> None:
    """All 11 variants of the RTX PRO 6000: 716 layouts, 302 of them maximal."""
    axis = MIG_CARDS["RTX-PRO-6000-Blackwell-96GB"].axis

    assert axis.length == 12
    assert len(list(layouts(axis))) == 716
    assert len(maximal_layouts(axis)) == 302


def test_drivers_before_510_refuse_4g_beside_3g() -> None:
    """18 maximal layouts instead of 19."""
    axis = for_driver(MIG_CARDS["A100-80GB"].axis, 470)

    assert len(maximal_layouts(axis, _plain(axis))) == 18


def test_an_older_driver_knows_fewer_profiles() -> None:
    """1g of double memory came to the A100 with 40 GB in R525."""
    axis = MIG_CARDS["A100-40GB"].axis

    assert "1g.10gb" not in {p.name for p in for_driver(axis, 515).profiles}
    assert for_driver(axis, 525).profiles == axis.profiles


@pytest.mark.parametrize(
    ("model", "pci", "name"),
    [
        ("A100-80GB", "", "A100-80GB"),
        ("NVIDIA A100-SXM4-80GB", "", "A100-80GB"),
        ("nvidia a100 80gb pcie", "", "A100-80GB"),
        ("NVIDIA-NVIDIA A100-SXM4-80GB", "", None),
        ("H100 80GB HBM3", "", "H100-80GB"),
        ("a name that no table has", "0x233010DE", "H100-80GB"),
        ("NVIDIA H100 80GB HBM3", "20b2", "A100-80GB"),
        ("NVIDIA B300", "", "B300-269GB"),
        ("B300-SXM6-AC", "", "B300-269GB"),
        ("NVIDIA H100", "", None),
        ("A100", "", None),
        ("Tesla V100-SXM2-16GB", "1db1", None),
        ("", "", None),
    ],
)
def test_a_card_is_found_by_product_then_by_name(model: str, pci: str, name: str | None) -> None:
    """The product id counts more than the name; names are compared loosely, never by parts."""
    found = find_card(model, pci)

    assert (None if found is None else found.name) == name


@pytest.mark.parametrize(
    ("model", "written", "meant"),
    [
        ("A100-80GB", "7g.79gb", "7g.80gb"),
        ("A100-80GB", "3g.39gb", "3g.40gb"),
        ("A100-80GB", "1g.10gb", "1g.10gb"),
        ("A100-80GB", "1g.20gb", "1g.20gb"),
        ("A100-80GB", "1g.10gb+me", "1g.10gb+me"),
        ("GB200-186GB", "1g.24gb", "1g.23gb"),
        ("GB200-186GB", "3g.95gb", "3g.93gb"),
        ("A100-80GB", "3g.20gb", None),
        ("A100-80GB", "1g.10gb-me", None),
        ("A100-80GB", "half", None),
        ("A100-80GB", "1g.0gb", None),
    ],
)
def test_drivers_spell_a_profile_differently(model: str, written: str, meant: str | None) -> None:
    """Gigabytes within a tenth mean the same profile; variants are never mixed up."""
    found = find_profile(MIG_CARDS[model].axis, written)

    assert (None if found is None else found.name) == meant


def test_compute_follows_the_multiprocessors() -> None:
    """A 3g of a Hopper card has more than three sevenths of it, rounded down."""
    hopper, unknown = MIG_CARDS["H100-80GB"].axis, MIG_CARDS["B300-269GB"].axis

    assert hopper.profile("3g.40gb").core_milli == 60 * 1000 // 132
    assert unknown.profile("3g.135gb").core_milli == 3 * 1000 // 7


@pytest.mark.skipif(not FACTS.exists(), reason=f"{FACTS.name} is not there to compare with")
def test_the_table_equals_the_collected_facts() -> None:
    """Every model, profile and number of the collection of published output."""
    facts: dict[str, dict[str, Any]] = json.loads(FACTS.read_text("utf-8"))["models"]

    assert list(MIG_CARDS) == list(facts)
    for name, model in facts.items():
        card = MIG_CARDS[name]
        assert list(card.aliases) == model["aliases"]
        assert [f"0x{product}" for product in card.pci] == model["pci_device_ids"]
        assert card.axis.length == (model["memory_slices"] or 0)
        assert [_told(p) for p in model["profiles"]] == [
            {
                "name": p.name,
                "compute": p.compute,
                "starts": list(p.starts),
                "memory": p.memory_bytes >> 20,
                "count": p.count,
                "engines": p.engines and dict(zip(ENGINES, p.engines.counts, strict=True)),
            }
            | ({"size": p.size, "id": p.id, "kind": p.kind} if p.starts else {})
            for p in card.axis.profiles
        ]


def _told(profile: dict[str, Any]) -> dict[str, Any]:
    engines = profile.get("engines")
    keys = dict(zip(("ce", "dec", "enc", "jpeg", "ofa"), ENGINES, strict=True))
    told = {
        "name": profile["name"],
        "compute": profile["slices"],
        "starts": profile["placements"] or [],
        "memory": profile["memory_mib"] or 0,
        "count": profile["max_count"],
        "engines": engines and {keys[key]: count for key, count in engines.items()},
    }
    if profile["placements"]:
        told |= {
            "size": profile["size"],
            "id": profile["smi_profile_id"],
            "kind": profile["nvml_enum"],
        }
    return told
