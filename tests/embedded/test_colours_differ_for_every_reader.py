"""Colours of the page that stand for something, as readers see them who lack one kind of cones.

Every two that are shown together are compared, in both schemes. Where colours repeat, a hatch tells them apart.
"""

import math
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from itertools import combinations
from typing import Final

import pytest

Triple = tuple[float, float, float]

LEAST: Final = 10.0
"""CIE 1976: the distance of two colours in L*a*b*; of large fields side by side 2.3 can just be seen."""
READABLE: Final = 4.5
"""WCAG 2.2, success criterion 1.4.3."""
VISIONS: Final[Mapping[str, Sequence[Triple]]] = {
    "normal": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": (
        (0.152286, 1.052583, -0.204868),
        (0.114503, 0.786281, 0.099216),
        (-0.003882, -0.048116, 1.051998),
    ),
    "deuteranopia": (
        (0.367322, 0.860646, -0.227968),
        (0.280085, 0.672501, 0.047413),
        (-0.011820, 0.042940, 0.968881),
    ),
    "tritanopia": (
        (1.255528, -0.076749, -0.178779),
        (-0.078411, 0.930809, 0.147602),
        (0.004733, 0.691367, 0.303900),
    ),
}
"""Of linear red, green and blue: Machado, Oliveira and Fernandes, "A Physiologically-based Model for Simulation of
Color Vision Deficiency", IEEE TVCG 15(6), 2009, severity 1.0."""
XYZ: Final[Sequence[Triple]] = (
    (0.4124564, 0.3575761, 0.1804375),
    (0.2126729, 0.7151522, 0.0721750),
    (0.0193339, 0.1191920, 0.9503041),
)
"""Of linear sRGB, for the white of D65, which is the sum of each row."""
FAMILIES: Final = ("koordinator", "qgpu", "hami", "other")
SETS: Final = tuple(f"set-{number}" for number in range(8))
CLOSED: Final = ("fault", "held", "doubt", "set-5")
TOGETHER: Final[Mapping[str, Sequence[str]]] = {
    "the overview's bar of cards": ("core", "memory", "track", "fault"),
    "parts of a lane": (*FAMILIES, "track"),
    "edges of parts": (*(f"{name}-edge" for name in FAMILIES), "track"),
    "words that judge": ("good", "warn", "bad", "text"),
    "the fleet by amounts": ("track", *(f"ramp-{n}" for n in range(1, 6)), "fault", "panel"),
    "the fleet by state": ("track", "ramp-2", "ramp-4", *CLOSED, "panel"),
    "the fleet by protocol": (*(f"{name}-edge" for name in FAMILIES), "track", "text", "panel"),
    "the fleet by vendor or model": (*SETS, "panel"),
}
TEXTS: Final = (
    *(("text", ground) for ground in ("ground", "panel", "track", *FAMILIES)),
    *((text, ground) for text in ("good", "warn", "bad") for ground in ("ground", "panel")),
    ("warn", "warn-ground"),
    ("bad", "bad-ground"),
)
"""A text and what it stands on; the browser measures all that a view shows."""


def schemes() -> dict[str, dict[str, str]]:
    """Colours by name, light and dark, as the style sheet sets them."""
    sheet = files("partage.dashboard").joinpath("static/style.css").read_text(encoding="utf-8")
    light, dark = re.findall(r":root \{(.*?)\}", sheet, re.DOTALL)
    given = [dict(re.findall(r"--([\w-]+): ([^;]+);", block)) for block in (light, dark)]
    return {"light": _resolved(given[0]), "dark": _resolved(given[0] | given[1])}


def _resolved(given: Mapping[str, str]) -> dict[str, str]:
    def end(value: str) -> str:
        other = re.fullmatch(r"var\(--([\w-]+)\)", value)
        return end(given[other[1]]) if other else value

    return {name: end(value) for name, value in given.items()}


def linear(colour: str) -> Triple:
    """Red, green and blue as amounts of light."""
    assert re.fullmatch("#[0-9a-f]{6}", colour), colour
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in parts)
    return red, green, blue


def times(matrix: Sequence[Triple], vector: Triple) -> Triple:
    """The product of both."""
    one, two, three = (sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix)
    return one, two, three


def lab(light: Triple) -> Triple:
    """L*, a* and b* of what a screen can show of this light."""
    red, green, blue = (min(max(part, 0.0), 1.0) for part in light)
    x, y, z = (
        value / sum(row) for value, row in zip(times(XYZ, (red, green, blue)), XYZ, strict=True)
    )
    x, y, z = (math.cbrt(t) if t > 216 / 24389 else (24389 / 27 * t + 16) / 116 for t in (x, y, z))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def distance(one: str, other: str, vision: str) -> float:
    """How far apart two colours are for such a reader."""
    matrix = VISIONS[vision]
    return math.dist(lab(times(matrix, linear(one))), lab(times(matrix, linear(other))))


def contrast(one: str, other: str) -> float:
    """WCAG's ratio of two colours."""
    dark, bright = sorted(times(XYZ, linear(colour))[1] for colour in (one, other))
    return (bright + 0.05) / (dark + 0.05)


def test_the_measure_knows_what_is_known() -> None:
    """White and black by CIE and WCAG; red and green of equal lightness, which deuteranopes confuse."""
    assert distance("#000000", "#ffffff", "normal") == pytest.approx(100, abs=0.01)
    assert contrast("#000000", "#ffffff") == pytest.approx(21, abs=0.01)
    assert lab(linear("#ff0000")) == pytest.approx((53.24, 80.09, 67.20), abs=0.02)
    assert distance("#b3261e", "#8a5300", "normal") > 30
    assert distance("#b3261e", "#8a5300", "deuteranopia") < 5


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("where", TOGETHER)
def test_what_is_shown_together_differs(where: str, scheme: str) -> None:
    """Every two colours, for each kind of reader."""
    colours = schemes()[scheme]
    near = [
        f"{one} and {other}, {vision}: {far:.1f}"
        for one, other in combinations(TOGETHER[where], 2)
        for vision in VISIONS
        if (far := distance(colours[one], colours[other], vision)) < LEAST
    ]
    assert near == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_stand_out(scheme: str) -> None:
    """They do so on every ground that the sheet has for them, whether or not a view in a test shows it."""
    colours = schemes()[scheme]
    poor = [
        f"{text} on {ground}: {ratio:.2f}"
        for text, ground in TEXTS
        if (ratio := contrast(colours[text], colours[ground])) < READABLE
    ]
    assert poor == []
