"""What a card in mode mig may be cut into: by its model, its driver, and the operator's tables."""

from dataclasses import replace

import pytest

from partage.model.mig import MigAxis, MigProfile, MigSlice
from partage.vendors.families.hami.bounds import CardFacts, cutting_of
from partage.vendors.families.hami.cards import RegisteredPlace, RegisteredProfile
from partage.vendors.mig import MIG_CARDS
from partage.vendors.settings import HamiSettings, MigGeometry

MIB = 1 << 20
GIB = 1 << 30
TABLE = MigGeometry(
    ("A100-SXM4-80GB",),
    (
        (("1g.10gb", 10240, 7),),
        (("2g.20gb", 20480, 3), ("1g.10gb", 10240, 1)),
        (("7g.79gb", 80896, 1),),
    ),
)


def facts(model: str = "NVIDIA A100-SXM4-80GB", gib: int = 80, **more: object) -> CardFacts:
    """What is known of a card."""
    return CardFacts(model, memory_bytes=gib * GIB, core_milli=1000, **{"product": "", **more})  # type: ignore[arg-type]


STOCK = [
    pytest.param("H100-SXM5-80GB", "NVIDIA H100 80GB HBM3", "", True, id="h100-sxm"),
    pytest.param("H100-PCIE-80GB", "NVIDIA H100 PCIe", "", True, id="h100-pcie"),
    pytest.param("H100-SXM5-94GB", "NVIDIA H100 80GB HBM3", "", False, id="other-memory"),
    pytest.param("A100-40GB-PCIe", "NVIDIA A100-PCIE-40GB", "", True, id="a100-words-turned"),
    pytest.param("A100-SXM4-40GB", "NVIDIA A100-SXM4-80GB", "", False, id="a100-other-memory"),
    pytest.param("A30", "NVIDIA A30", "", True, id="a30"),
    pytest.param("A30", "NVIDIA A100-SXM4-80GB", "0x20B7", True, id="product-before-name"),
    pytest.param("H200-SXM5", "NVIDIA H200", "", True, id="h200"),
]


@pytest.mark.parametrize(("named", "model", "product", "matches"), STOCK)
def test_stock_cards_match_the_tables(
    named: str, model: str, product: str, *, matches: bool
) -> None:
    """A table's entry means the model, whatever the driver calls the card."""
    known, _ = cutting_of(facts(model, product=product), HamiSettings())
    assert known is not None
    smallest = known.axis.profiles[0].name
    entry = MigGeometry((named,), (((smallest, 1024, 1),),))

    cutting, _ = cutting_of(facts(model, product=product), HamiSettings(geometries=(entry,)))

    assert cutting is not None
    assert bool(cutting.geometries) is matches


def test_a_table_names_and_measures_profiles() -> None:
    """Names and memory are the table's; compute is the card's own."""
    cutting, note = cutting_of(facts(), HamiSettings(geometries=(TABLE,)))

    assert cutting is not None
    assert note == ""
    whole = cutting.axis.profile("7g.79gb")
    assert (whole.memory_bytes, whole.core_milli, whole.size) == (80896 * MIB, 1000, 8)
    assert cutting.axis.profile("2g.20gb").core_milli == 285
    assert [geometry.number for geometry in cutting.geometries] == [0, 1, 2]
    assert [(one.profile, one.start) for one in cutting.geometries[1].usual] == [
        ("2g.20gb", 4),
        ("2g.20gb", 2),
        ("2g.20gb", 0),
        ("1g.10gb", 6),
    ]


def test_no_layout_counts_more_than_the_card() -> None:
    """A table that rounds up is cut down to each instance's part of the card."""
    cutting, _ = cutting_of(facts(gib=79), HamiSettings(geometries=(TABLE,)))

    assert cutting is not None
    assert cutting.axis.profile("1g.10gb").memory_bytes == 79 * GIB // 8


def test_unknown_memory_is_the_part_of_the_axis() -> None:
    """The memory of an H20's instances is not published."""
    cutting, _ = cutting_of(facts("NVIDIA H20", 96), HamiSettings())

    assert cutting is not None
    assert cutting.axis.profile("2g.24gb").memory_bytes == 24 * GIB


@pytest.mark.parametrize("allowed", [(), ("3g.40gb",), ("3g.39gb",)])
def test_one_profile_may_be_spelled_in_several_ways(allowed: tuple[str, ...]) -> None:
    """Each spelling means the profile: no geometry is lost, and an allowlist may differ from the table."""
    table = MigGeometry(("A100",), ((("3g.39gb", 40192, 2),), (("3g.40gb", 0, 1),)))
    settings = HamiSettings(geometries=(table,), mig_allowlist=((("A100",), allowed),))

    cutting, note = cutting_of(facts(), settings)

    assert cutting is not None
    assert note == ""
    assert [geometry.number for geometry in cutting.geometries] == [0, 1]
    assert {one.profile for one in cutting.geometries[0].usual} <= cutting.offered
    assert cutting.axis.profile("3g.40gb").memory_bytes == 40192 * MIB


def test_an_allowlist_narrows_profiles_and_opens_special_ones() -> None:
    """Only named profiles are made; a special one that is named may be chosen by amounts."""
    allowed = ((("A100-SXM4-80GB",), ("1g.10gb", "1g.20gb")),)

    cutting, _ = cutting_of(facts(), HamiSettings(mig_allowlist=allowed))

    assert cutting is not None
    assert cutting.offered == cutting.allowed == {"1g.10gb", "1g.20gb"}


def test_what_the_driver_says_goes_before_the_table() -> None:
    """HAMi 2.10 registers profiles with their places; nothing is assumed of the model."""
    told = (
        RegisteredProfile("1g.9gb", 9000, 34, 1, tuple(RegisteredPlace(s, 1) for s in (0, 1, 2))),
        RegisteredProfile("3g.27gb", 27000, 100, 3, (RegisteredPlace(0, 3),)),
    )

    cutting, _ = cutting_of(facts("NVIDIA X", 27, profiles=told), HamiSettings())

    assert cutting is not None
    assert cutting.axis.length == 3
    assert cutting.axis.profile("1g.9gb").starts == (0, 1, 2)


def test_an_old_driver_does_not_mix_4g_and_3g() -> None:
    """Before R510 these two are never on one card."""
    new, _ = cutting_of(facts(branch=535), HamiSettings())
    old, _ = cutting_of(facts(branch=470), HamiSettings())

    assert new is not None
    assert old is not None
    both = [new.axis.profile("4g.40gb").at(0), new.axis.profile("3g.40gb").at(4)]
    assert new.axis.fault(both) == ""
    assert "4g.40gb" in old.axis.fault(both)


def test_an_old_driver_does_not_mix_them_under_other_names() -> None:
    """The operator's names replace those of the rule too."""
    allowed = ((("A100",), ("3g.39gb", "4g.39gb")),)

    cutting, _ = cutting_of(facts(branch=470), HamiSettings(mig_allowlist=allowed))

    assert cutting is not None
    assert cutting.axis.fault((MigSlice("4g.39gb", 0, 4), MigSlice("3g.39gb", 4, 4)))


REFUSED = [
    pytest.param("Tesla V100-SXM2-32GB", HamiSettings(), "Ampere or newer", id="before-ampere"),
    pytest.param("NVIDIA RTX PRO 5000 Blackwell", HamiSettings(), "not published", id="no-starts"),
    pytest.param(
        "NVIDIA A100-SXM4-80GB",
        HamiSettings(geometries=(MigGeometry(("A100",), ((("2g.20gb", 1, 4),),)),)),
        "geometry 0 of knownMigGeometries cannot be made",
        id="impossible-geometry",
    ),
    pytest.param(
        "NVIDIA A100-SXM4-80GB",
        HamiSettings(mig_allowlist=((("A100",), ("5g.50gb",)),)),
        "has no profile 5g.50gb",
        id="unknown-profile",
    ),
]


@pytest.mark.parametrize(("model", "settings", "told"), REFUSED)
def test_a_card_that_cannot_be_cut_says_why(model: str, settings: HamiSettings, told: str) -> None:
    """Nothing is offered, and the note names the reason."""
    cutting, note = cutting_of(facts(model), settings)

    assert cutting is None
    assert told in note


def _told(model: str, **amounts: object) -> MigAxis:
    """What a driver says of a published model, with other amounts."""
    table = MIG_CARDS[model].axis
    return MigAxis("driver", tuple(replace(p, **amounts) for p in table.profiles))  # type: ignore[arg-type]


def test_the_nodes_own_driver_is_the_truth() -> None:
    """Its memory counts, and its compute; the published names stay, because records have them."""
    told = _told("A100-80GB", memory_bytes=9 * GIB, core_milli=100)
    renamed = replace(
        told,
        profiles=tuple(replace(p, name=p.name.replace(".40gb", ".39gb")) for p in told.profiles),
    )

    cutting, note = cutting_of(facts(axis=renamed), HamiSettings())

    assert (note, cutting is not None) == ("", True)
    assert cutting is not None
    assert [p.name for p in cutting.axis.profiles] == [
        p.name for p in MIG_CARDS["A100-80GB"].axis.profiles
    ]
    assert cutting.axis.profile("3g.40gb").memory_bytes == 9 * GIB
    assert cutting.axis.profile("3g.40gb").core_milli == 100
    assert not cutting.axis.profile("1g.10gb+me").plain


def test_a_model_whose_positions_nobody_published_is_cut_by_its_drivers_word() -> None:
    """An RTX PRO 5000 takes no instance by the table alone."""
    model = "NVIDIA RTX PRO 5000 Blackwell"
    half = MigProfile("1g.24gb", 1, 2, (0, 2), 24 * GIB, 500, 2)
    axis = MigAxis("driver", (half, MigProfile("2g.48gb", 2, 4, (0,), 48 * GIB, 1000, 1)))

    silent, why = cutting_of(facts(model, 48), HamiSettings())
    spoken, note = cutting_of(facts(model, 48, axis=axis), HamiSettings())

    assert silent is None
    assert "not published" in why
    assert spoken is not None
    assert (note, spoken.axis.length) == ("", 4)
    assert spoken.offered == {"1g.24gb", "2g.48gb"}


def test_a_card_before_510_keeps_4g_and_3g_apart_whoever_tells() -> None:
    """No call of the driver says so."""
    cutting, _ = cutting_of(facts(axis=_told("A100-80GB"), branch=470), HamiSettings())

    assert cutting is not None
    assert cutting.axis.fault((MigSlice("4g.40gb", 0, 4), MigSlice("3g.40gb", 4, 4)))


def test_a_word_that_no_table_could_hold_is_not_taken() -> None:
    """What a broken driver or a forger says cannot stop the scheduler: the published table counts."""
    absurd = MigAxis(
        "x",
        tuple(MigProfile(f"{n}g.1gb", n, 1, tuple(range(16)), GIB, 10, 16) for n in (1, 2, 3, 4)),
    )

    cutting, _ = cutting_of(facts(axis=absurd), HamiSettings())

    assert cutting is not None
    assert cutting.axis.length == 8
