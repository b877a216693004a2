"""A selector of a claim says the same as for Kubernetes, and however it is written it ends."""

import gc
import sys
import weakref

import pytest

from partage.model.quantity import Quantity
from partage.wire.device_selectors import LONGEST, MOST_STEPS, NoLibrary, Selectors
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
        (f'cel.bind(card, {MINE}, card.healthy && card.kind == "share")', True),
        (f"cel.bind(a, {MINE}.index, cel.bind(b, a + 1, [a, b].exists(a, a == 4)))", True),
        ('cel.bind(a, device.attributes["x.y"].none, true)', True),
        (f'{MINE}.?kind.orValue("none") == "share"', True),
        (f'{MINE}.?nothing.orValue("none") == "none" && {MINE}["index"] == 3', True),
        (f'{MINE}[?"kind"].hasValue() && !{MINE}[ ? "nothing"].hasValue()', True),
        (f'device.?attributes["{OURS}"].kind.value() == "share"', True),
        ('device.attributes[?"x.y"].hasValue() && !("x.y" in device.attributes)', True),
        ('device.attributes["x.y"].?a.?b.c.or(optional.of(7)).value() == 7', True),
        (
            f"has({MINE}.?kind) && !has({MINE}.?nothing) && {MINE}.?index.optMap(i, i + 1).value() == 4",
            True,
        ),
        (f'{MINE}.modes[?1].value() == "b" && !{MINE}.modes[?2].hasValue()', True),
        ("true ? .5 > 0.0 : false", True),
        (f"// its kind?\n{MINE}.?kind.hasValue()", True),
        (
            """'a.?b[?c]' == "a.?b" + '[?c]' && r"[?" + "\\".?" == "[?\\".?" // .?""",
            True,
        ),
        ('"a,b,c".split(",") == ["a", "b", "c"] && "a,b,c".split(",", 2) == ["a", "b,c"]', True),
        (
            '"ab".split("") == ["a", "b"] && "a".split(",", 0) == [] && "abc".split("", 2) == ["a", "bc"]',
            True,
        ),
        ('"tacocat".substring(4) == "cat" && "tacocat".substring(0, 4) == "taco"', True),
        (
            '"tacocat".substring(7) == "" && "tacocat".charAt(7) == "" && "tacocat".charAt(3) == "o"',
            True,
        ),
        ('"hello mellow".indexOf("ello", 2) == 7 && "hello".indexOf("") == 0', True),
        ('"hello mellow".lastIndexOf("ello", 6) == 1 && "hello".lastIndexOf("x") == -1', True),
        ('["a", "b"].join("-") == "a-b" && "aaa".replace("a", "b", 2) == "bba"', True),
        ('"abc 123".find("[0-9]+") == "123" && "abc".find("[0-9]+") == ""', True),
        (
            '"1 22 333".findAll("[0-9]+") == ["1", "22", "333"] && "1 2".findAll("[0-9]", 1) == ["1"]',
            True,
        ),
        ('"ÄB".lowerAscii() == "Äb"', True),
        ("[1, 2, 3].sum() == 6 && [1.5, 1.5].sum() == 3.0 && [].sum() == 0", True),
        (
            "[1, 3].max() == 3 && [1, 3].min() == 1 && [1, 3].isSorted() && ![3, 1].isSorted()",
            True,
        ),
        ('["a", "b"].indexOf("b") == 1 && [1, 2, 1].lastIndexOf(1) == 2', True),
        (f'sets.contains({MINE}.modes, ["a"]) && sets.intersects({MINE}.modes, ["b", "c"])', True),
        ("sets.equivalent([1, 1, 2], [2, 1]) && !sets.contains([1], [2])", True),
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
        (f"{MINE}.?nothing.value() == 1", "has no value"),
        ('"abc".substring(2, 1) == ""', "index 2 is not in 0 to 1"),
        ('"abc".charAt(4) == ""', "index 4 is not in 0 to 3"),
        ('"abc".find("(") == ""', "is no pattern"),
        (f"cel.bind(a, {MINE}.nothing, a == 1)", "no such member"),
        (f"{MINE}.?kind", "neither true nor false"),
        ("[?1] == []", "cannot be read"),
        ('"abc".orValue("d") == "abc"', "no such overload"),
    ],
)
def test_what_has_no_answer_says_why(expression: str, why: str) -> None:
    """It is neither a match nor an exception."""
    found = Selectors().judge(expression, CARD)

    assert isinstance(found, str)
    assert why in found


def test_parts_of_parts_are_read_once() -> None:
    """Steps grow with the length of an expression, not with its depth."""
    nested = "{" + '"a": {' * 30 + '"a": 1' + "}" * 31
    assert Selectors().judge(f"{nested}{'.a' * 31} == 1", CARD) is True
    assert Selectors().judge(f"{nested}{'.?a' * 31}.value() == 1", CARD) is True
    index = '["a"]' * 31
    assert Selectors().judge(f"{nested}{index} == 1", CARD) is True


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
        pytest.param(
            '"a"' + "".join('.replace("a", "' + "a" * 60 + '")' for _ in range(90)) + ' == ""',
            id="texts that grow",
        ),
        pytest.param(
            f'{_MANY}.map(x, "{"a" * 4000}").join("{"b" * 4000}") == ""', id="a text of texts"
        ),
        pytest.param(
            "cel.bind(x0, [1, 1], "
            + "".join(f"cel.bind(x{n + 1}, [x{n}, x{n}], " for n in range(60))
            + "x60 == x60"
            + ")" * 61,
            id="names that double",
        ),
        pytest.param(
            f"cel.bind(m, {_MANY}, cel.bind(n, m.map(x, m), sets.equivalent(n, n)))",
            id="sets of lists",
        ),
        pytest.param('"' + "\\a" * 5000, id="a text of backslashes without an end"),
        pytest.param('"' + "\\a" * 40 + '\n"', id="a text over two lines"),
        pytest.param('"""' + "\\a" * 40 + '"', id="a text that begins with three quotes"),
        pytest.param('r"\\"' + "\\a" * 40, id="a raw text with a backslash before its end"),
        pytest.param('r"\\" != \'' + "\\a" * 40 + "'", id="the same, as Kubernetes accepts it"),
        pytest.param('"\\' * 5000, id="texts without an end"),
        pytest.param(
            "device" + '.?a[?"b"]' * 1000 + ".hasValue()", id="absent parts of absent parts"
        ),
    ],
)
def test_an_expression_without_an_end_ends(expression: str) -> None:
    """A user can write such an expression in any claim; the limit counts steps, not seconds."""
    selectors = Selectors()
    found = selectors.judge(expression, CARD)

    assert isinstance(found, str)
    assert "not judged" in found or "cannot be read" in found
    assert selectors.judge(f'{MINE}.kind == "share"', CARD) is True, "others are judged as before"


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        (f"false && {_TWICE}", False),
        (f"true || {_TWICE}", True),
        (f"[1].all(x, x == 1 || {_TWICE})", True),
        (f"{MINE}.nothing == 1 && false", False),
        ("1 && false", False),
        ("true && (false || true) && !(true && false)", True),
        ("false && false || false || true", True),
    ],
)
def test_what_is_decided_is_not_evaluated_further(expression: str, answer: object) -> None:
    """A condition on the driver comes first in most selectors: the rest costs nothing for other drivers' devices."""
    assert Selectors().judge(expression, CARD) is answer


def test_all_expressions_together_have_a_bound() -> None:
    """Many dear ones are as one; then the rest is not judged, and says so."""
    selectors = Selectors(steps=2_000)
    answers = [selectors.judge(f"{MINE}.index > {n} && {MINE}.healthy", CARD) for n in range(50)]

    assert answers[0] is True
    assert "as much work as those of one namespace may" in str(answers[-1])
    selectors.begin(MOST_STEPS)
    assert selectors.judge(f"{MINE}.index > 49 && {MINE}.healthy", CARD) is False, (
        "another question"
    )


def test_what_it_takes_to_read_expressions_counts() -> None:
    """Each of these is true after a few steps, and takes a fifth of a second until it can be asked."""
    selectors = Selectors()
    long = " && ".join(["x == 1"] * 900)
    answers = [selectors.judge(f"[].all(x, {long} && x == {n})", CARD) for n in range(30)]

    assert answers[0] is True
    assert "as much work as those of one namespace may" in str(answers[-1])
    selectors.begin(MOST_STEPS)
    assert selectors.judge(f"[].all(x, {long} && x == 29)", CARD) is True, "another question"


def test_compiled_expressions_are_kept_within_a_bound() -> None:
    """`partage up` kept each of the last ten thousand, and one of the largest takes 36 MB."""
    selectors, kept = Selectors(), weakref.WeakSet[object]()
    for number in range(12):
        selectors.begin(MOST_STEPS)
        expression = f"'{'x' * (LONGEST - 20)}' == '{number}'"
        assert selectors.judge(expression, CARD) is False
        kept.add(selectors._compiled[expression])  # its memory

    gc.collect()
    assert len(kept) <= 4


def test_devices_that_an_expression_cannot_tell_apart_are_judged_once() -> None:
    """A question about thousands of nodes then takes as much work as one about one node of each kind."""
    selectors = Selectors(steps=400)
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

    with pytest.raises(NoLibrary, match="pip install cel-python"):
        Selectors()
