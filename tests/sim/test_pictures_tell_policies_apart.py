"""Pictures begin where policies part, and name each line where it ends; what an SVG says is read."""

import re
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from partage.sim.metrics import Curves
from partage.sim.plots import apart, plot_loads

pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
SVG = "{http://www.w3.org/2000/svg}"
NAMES = ("fgd", "bestfit", "first-fit", "gpupacking", "dot-product", "random", "spread", "partage")


def curves(last: int, behind: float) -> Curves:
    """What arrives is allocated until 90 % of load; from there on less, by policy."""
    allocation = {
        load: load if load <= 90 else 90 + (load - 90) / 10 - behind for load in range(last + 1)
    }
    frag = {load: load / 20 + behind for load in range(last + 1)}
    return Curves(allocation, frag, {}, {})


def drawn(folder: Path, last: int = 130, most: float | None = 95.5) -> ET.Element:
    """The picture of eight policies that end within a point of each other."""
    path = folder / "picture.svg"
    runs = [(name, curves(last, number / 8)) for number, name in enumerate(NAMES)]
    plot_loads(path, "openb", runs, most)
    return ET.fromstring(path.read_text(encoding="utf-8"))  # noqa: S314 # drawn here


def part(picture: ET.Element, *ids: str) -> ET.Element:
    """The group with an id within the group with the id before."""
    for name in ids:
        found = picture.find(f".//{SVG}g[@id='{name}']")
        assert found is not None, name
        picture = found
    return picture


def texts(picture: ET.Element) -> list[tuple[str, float]]:
    """Each text with its height in points from above."""
    found = []
    for text in picture.iter(f"{SVG}text"):
        at = text.get("y")
        if at is None:
            moved = re.search(r"translate\([\d.-]+ ([\d.-]+)\)", text.get("transform") or "")
            at = moved[1] if moved else "nan"
        found.append(("".join(text.itertext()), float(at)))
    return found


def ticks(picture: ET.Element, axes: int, axis: int) -> list[float]:
    """Numbers at an axis; matplotlib numbers the axes of a picture through."""
    group = part(picture, f"axes_{axes}", f"matplotlib.axis_{2 * axes - 2 + axis}")
    numbers = (text.replace("\N{MINUS SIGN}", "-") for text, _ in texts(group))
    return [float(text) for text in numbers if re.fullmatch(r"-?[\d.]+", text)]


def styles(picture: ET.Element) -> list[tuple[str, str]]:
    """Colour and dashes of each line of the first axes, the frame and grid left out."""
    found = []
    for group in part(picture, "axes_1"):
        path = group.find(f"{SVG}path")
        if (group.get("id") or "").startswith("line2d") and path is not None:
            style = {
                key.strip(): value.strip()
                for key, value in (
                    pair.split(":", 1) for pair in (path.get("style") or "").split(";") if pair
                )
            }
            found.append((style["stroke"], style.get("stroke-dasharray", "")))
    return found


def test_it_begins_where_policies_part(tmp_path: Path) -> None:
    """Loads and heights are those that data have from 88 % on, the bound included."""
    picture = drawn(tmp_path)

    for axes in (1, 2):
        loads = ticks(picture, axes, 1)
        assert loads[0] >= 88
        assert loads[-1] == 130
    heights = ticks(picture, 1, 2)
    assert heights[0] >= 87
    assert 95 <= heights[-1] <= 96
    assert ticks(picture, 2, 2)[0] >= 4


def test_a_short_run_is_shown_whole(tmp_path: Path) -> None:
    """Where data do not reach 88 %, all are drawn."""
    picture = drawn(tmp_path, last=60, most=None)

    assert ticks(picture, 1, 1)[0] == 0
    assert ticks(picture, 1, 1)[-1] == 60


def test_a_title_is_plain_text(tmp_path: Path) -> None:
    """Dollar signs begin no formula: a broken one would lose the picture after a long run."""
    path = tmp_path / "picture.svg"
    plot_loads(path, "openb a$x^$", [("fgd", curves(130, 0))])
    assert ">openb a$x^$<" in path.read_text(encoding="utf-8")


def test_lines_have_names_at_their_ends(tmp_path: Path) -> None:
    """Every name is there once a side, in the order of the lines, and clear of the next."""
    picture = drawn(tmp_path)

    for axes, expected in (("axes_1", {*NAMES, "bound"}), ("axes_2", {*NAMES})):
        found = [(name, at) for name, at in texts(part(picture, axes)) if name in expected]
        assert sorted(name for name, _ in found) == sorted(expected)
        heights = sorted(at for _, at in found)
        assert min(low - high for high, low in pairwise(heights)) > 8, "points, the font's size"
    allocation = dict(texts(part(picture, "axes_1")))
    assert sorted(("bound", *NAMES), key=allocation.__getitem__) == ["bound", *NAMES]
    assert not picture.findall(f".//{SVG}g[@id='legend_1']")


def test_lines_differ_without_colour_too(tmp_path: Path) -> None:
    """No two lines share colour and dashes, neighbours neither of both; the bound is black."""
    drawn_lines = styles(drawn(tmp_path))

    assert len(drawn_lines) == len(set(drawn_lines)) == len(NAMES) + 1
    assert all(one[0] != two[0] and one[1] != two[1] for one, two in pairwise(drawn_lines))
    assert [colour for colour, _ in drawn_lines].count("#000000") == 1


def test_without_a_bound_none_is_drawn(tmp_path: Path) -> None:
    """A bound that is not known has neither line nor name."""
    picture = drawn(tmp_path, most=None)

    assert len(styles(picture)) == len(NAMES)
    assert "bound" not in dict(texts(picture))


@pytest.mark.parametrize(
    ("wanted", "moved"),
    [
        pytest.param([0.2, 0.8], [0.2, 0.8], id="clear"),
        pytest.param([0.5, 0.5], [0.4775, 0.5225], id="equal"),
        pytest.param([0.0, 0.01, 1.0, 1.0], [0.0, 0.045, 0.955, 1.0], id="at-the-edges"),
        pytest.param([0.5] * 3 + [0.53], [0.44, 0.485, 0.53, 0.575], id="pushed-on"),
    ],
)
def test_names_move_just_so_far(wanted: list[float], moved: list[float]) -> None:
    """What has room stays; what touches goes apart evenly, and never out of the picture."""
    assert apart(wanted) == pytest.approx(moved, abs=1e-9)
