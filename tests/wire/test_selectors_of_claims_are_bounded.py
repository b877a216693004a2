"""A selector of a claim says the same as for Kubernetes, and however it is written it ends."""

import sys

import pytest

from partage.model.quantity import Quantity
from partage.wire.device_selectors import LONGEST, NoLibrary, Selectors
from partage.wire.device_view import DeviceView, Version

pytest.importorskip("celpy", reason="cel-python is not installed")

OURS = "gpu.partage.io"
CARD = DeviceView(
    OURS,
    {
        OURS: {
            "kind": "share",
            "index": 3,
            "productName": "NVIDIA H200",
            "driverVersion": Version.parse("535.104.5"),
            "healthy": True,
            "modes": ["a", "b"],
        },
        "resource.kubernetes.io": {"pcieRoot": "pci0000:00"},
    },
    {OURS: {"memory": Quantity.parse("80Gi")}},
    shared=True,
)
MINE = f'device.attributes["{OURS}"]'
ROOM = f'device.capacity["{OURS}"]'


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        (f'device.driver == "{OURS}" && {MINE}.kind == "share"', True),
        (f'{MINE}.kind == "mig"', False),
        (f'{ROOM}.memory.compareTo(quantity("80Gi")) >= 0', True),
        (f'{ROOM}.memory.isGreaterThan(quantity("80Gi"))', False),
        (f'{ROOM}.memory.isLessThan(quantity("81920.5Mi"))', True),
        (f'{ROOM}.memory.asInteger() == {80 * 2**30} && quantity("1k").sign() == 1', True),
        (f'{MINE}.driverVersion.compareTo(semver("535.0.0")) > 0', True),
        (f'{MINE}.driverVersion.isLessThan(semver("535.104.5-rc1"))', False),
        ('semver("1.0.0-rc.9").isLessThan(semver("1.0.0-rc.10"))', True),
        ('semver("1.0.0-rc").isLessThan(semver("1.0.0-rc.0"))', True),
        ('semver("1.0.0-999").isLessThan(semver("1.0.0-a"))', True),
        ('isSemver("1.0.0-rc..1") || isSemver("1.0.0-01") || isSemver("1.0.0+")', False),
        (f'isSemver("1.0.0-{"a" * 60}.01")', False),
        (f"{MINE}.driverVersion.major() == 535 && {MINE}.index > 2 && {MINE}.healthy", True),
        (f'{MINE}.productName.lowerAscii().matches("h[12]00")', True),
        (f'{MINE}.kind in ["share"] && {MINE}.modes.exists(one, one == "b")', True),
        ('device.attributes["resource.kubernetes.io"].pcieRoot.startsWith("pci")', True),
        ("device.allowMultipleAllocations", True),
        ('"gpu.nvidia.com" in device.attributes', False),
        ('has(device.attributes["gpu.nvidia.com"].kind)', False),
        (f"has({MINE}.nothing) || true", True),
    ],
)
def test_an_expression_reads_what_a_device_has(expression: str, answer: object) -> None:
    """Attributes and amounts by domain, versions and quantities as Kubernetes compares them."""
    assert Selectors().judge(expression, CARD) is answer


@pytest.mark.parametrize(
    ("expression", "why"),
    [
        ('device.attributes["gpu.nvidia.com"].kind == "a"', "no such member"),
        ("1 +", "cannot be read, line 1, column 3"),
        ("isFast(device)", "undeclared reference to 'isFast'"),
        ("device.attributes", "neither true nor false"),
        ('quantity("0x10").isInteger()', "'0x10' is not a quantity"),
        ('quantity("1500m").asInteger() == 1', "1500m is no whole number"),
        ('quantity("1").compareTo(1) == 0', "two quantities or two versions"),
        ('semver("1.2").major() == 1', "1.2 is no semantic version"),
        ("9223372036854775807 + 1 > 0", "overflow"),
        ("x" * (LONGEST + 1), "characters"),
    ],
)
def test_what_has_no_answer_says_why(expression: str, why: str) -> None:
    """It is neither a match nor an exception."""
    found = Selectors().judge(expression, CARD)

    assert isinstance(found, str)
    assert why in found


_TWICE = (
    "[[1, 1]]" + "".join(f".map(x{n}, [x{n}, x{n}])" for n in range(60)) + ".exists(x, x == x)"
)
_MANY = "[" + ", ".join(["1"] * 200) + "]"


@pytest.mark.parametrize(
    "expression",
    [
        pytest.param(_TWICE, id="lists that double"),
        pytest.param(f"{_MANY}.all(a, {_MANY}.all(b, {_MANY}.all(c, true)))", id="loops in loops"),
        pytest.param("(" * 4000 + "true" + ")" * 4000, id="parentheses"),
        pytest.param("!" * 10_000 + "true", id="negations"),
    ],
)
def test_an_expression_without_an_end_ends(expression: str) -> None:
    """Of anybody who may make a claim; counted in steps, not in seconds."""
    selectors = Selectors()
    found = selectors.judge(expression, CARD)

    assert isinstance(found, str)
    assert "not judged" in found or "cannot be read" in found
    assert selectors.judge(f'{MINE}.kind == "share"', CARD) is True, "others are judged as before"


def test_all_expressions_together_have_a_bound() -> None:
    """Many dear ones are as one; then the rest is not judged, and says so."""
    selectors = Selectors(steps=200)
    answers = [selectors.judge(f"{MINE}.index > {n} && {MINE}.healthy", CARD) for n in range(50)]

    assert answers[0] is True
    assert "as much work as one question may" in str(answers[-1])
    selectors.begin()
    assert selectors.judge(f"{MINE}.index > 49 && {MINE}.healthy", CARD) is False, (
        "another question"
    )


def test_devices_that_an_expression_cannot_tell_apart_are_judged_once() -> None:
    """So a question about thousands of nodes takes as much work as one about one node of each kind."""
    selectors = Selectors(steps=200)
    expression = f'{MINE}.kind == "share"'
    for number in range(5_000):
        card = DeviceView(OURS, {OURS: {"kind": "share", "index": number}}, {})
        assert selectors.judge(expression, card) is True
    other = DeviceView(OURS, {OURS: {"kind": "mig", "index": 1}}, {})
    assert selectors.judge(expression, other) is False


@pytest.mark.parametrize(
    "expression",
    [
        f'device.attributes["{OURS}"]["in" + "dex"] == 7',
        f'device.attributes["{OURS}"].exists(name, name == "uuid")',
        f'{{"uuid": 1}} == device.attributes["{OURS}"]',
        f'[device][0].attributes["{OURS}"]["i\\x6edex"] == 7',
    ],
)
def test_what_is_read_by_other_ways_is_not_taken_for_alike(expression: str) -> None:
    """Names that an expression makes up, walks through or compares as a whole."""
    selectors = Selectors()
    one = DeviceView(OURS, {OURS: {"index": 3}}, {})
    other = DeviceView(OURS, {OURS: {"index": 7}}, {})
    more = DeviceView(OURS, {OURS: {"uuid": 1}}, {})
    answers = [selectors.judge(expression, view) for view in (one, other, more)]

    assert answers == [Selectors().judge(expression, view) for view in (one, other, more)]
    assert len(set(map(str, answers))) > 1


def test_without_the_library_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is no part of what is installed always."""
    monkeypatch.setitem(sys.modules, "celpy", None)
    monkeypatch.delitem(sys.modules, "partage.wire.cel", raising=False)
    monkeypatch.delattr("partage.wire.cel", raising=False)

    with pytest.raises(NoLibrary, match=r"pip install 'partage\[claims\]'"):
        Selectors()
