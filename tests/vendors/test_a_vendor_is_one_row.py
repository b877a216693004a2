"""What is particular to a maker of cards stands in its row, and nowhere else."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import partage
from partage.agent.discovery.models import MODELS
from partage.agent.discovery.search import BACKENDS
from partage.vendors.catalog import ADAPTING, FAMILIES
from partage.vendors.traits import FPGA_MAKER, NVIDIA, ROWS, files_known, traits_of

SOURCE = Path(partage.__file__).parent
ROWS_FILE = SOURCE / "vendors/traits.py"
SPELT = {name for row in ROWS for name in (row.name, *row.aliases)}
NUMBERS = {row.pci for row in ROWS} - {None} | {FPGA_MAKER}
FILES = re.compile(r"/dev/(nvidia|m?kfd|davinci|devmm|hisi|cambricon|xpu|mx[a-z])")
PAGE = Path(__file__).parents[2] / "docs/reference/agent.md"


def _literals(text: str) -> Iterator[tuple[int, object]]:
    """Constants of a module that are not documentation."""
    tree = ast.parse(text)
    told = {
        id(one.value)
        for one in ast.walk(tree)
        if isinstance(one, ast.Expr) and isinstance(one.value, ast.Constant)
    }
    for one in ast.walk(tree):
        if isinstance(one, ast.Constant) and id(one) not in told:
            yield one.lineno, one.value


def _is_a_vendors(value: object) -> bool:
    if isinstance(value, str):
        return value in SPELT or bool(FILES.search(value))
    return isinstance(value, int) and value in NUMBERS


def test_no_other_module_spells_a_vendors_name_number_or_file() -> None:
    """A second place would be forgotten when the row changes."""
    found = [
        f"{path.relative_to(SOURCE)}:{line}: {value!r}"
        for path in sorted(SOURCE.rglob("*.py"))
        # The published documents speak of vendors, as their authors did.
        if path != ROWS_FILE and "testing" not in path.relative_to(SOURCE).parts
        for line, value in _literals(path.read_text())
        if _is_a_vendors(value)
    ]

    assert found == []


@pytest.mark.parametrize("text", ['x = "amd"', "x = 0x10DE", 'x = f"/dev/nvidia{n}"'])
def test_what_the_search_is_for_is_found(text: str) -> None:
    """It would pass over nothing of that kind."""
    assert any(_is_a_vendors(value) for _, value in _literals(text))


def test_rows_are_told_apart() -> None:
    """No two rows share a name, number, resource name, variable, lock or CDI domain."""
    for kind in ("aliases", "counts", "units", "domains", "wakes"):
        every = [one for row in ROWS for one in getattr(row, kind)]
        assert len(every) == len(set(every)), kind
    for kind in ("name", "pci", "variable", "lock"):
        every = [one for row in ROWS if (one := getattr(row, kind))]
        assert len(every) == len(set(every)), kind


def test_a_card_of_no_vendor_is_nvidias_and_one_of_an_unknown_vendor_has_nothing() -> None:
    """Koordinator reads a Device object without the label so."""
    assert traits_of("") is NVIDIA
    assert traits_of("dcu").name == "hygon"
    assert not files_known("acme")
    assert not files_known("habana")


def test_whatever_is_found_simulated_or_adapted_has_a_row_with_files() -> None:
    """Discovery, simulation and families speak of vendors whose cards containers can get."""
    assert [row.name for row in ROWS if row.adapted] != []
    assert {row.name for row in ROWS if row.adapted} == {family.name for family in ADAPTING}
    assert set(ADAPTING) <= set(FAMILIES)
    for vendor in {make.vendor for make in MODELS.values()} | (SPELT & set(BACKENDS)):
        assert files_known(vendor), vendor


def test_own_files_are_protected() -> None:
    """No container has a card's own file without a grant, on a node with cards of its vendor."""
    for row in ROWS:
        pattern = re.compile("|".join(filter(None, (row.tampering, row.shared))) or "$.")
        for path in row.files(0):
            assert pattern.fullmatch(path), path


def test_the_page_names_the_files_of_every_vendor() -> None:
    """The reference says what a container is given."""
    page = PAGE.read_text()
    table = page[page.index("### Device files") :]
    for row in ROWS:
        for path in (*row.own, *row.common):
            plain = path.format(minor="<N>", render="<N>")
            assert f"`{plain}`" in table, f"{row.name}: {plain}"
