"""Kubernetes quantities are read and printed as Kubernetes does, and never as floats."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partage.model.errors import InvalidQuantity
from partage.model.quantity import (
    MAXIMUM,
    NANO,
    Quantity,
    binary,
    brief,
    core_text,
    decimal,
    exact,
    part_text,
)


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("0", "0"),
        ("0Gi", "0"),
        ("-0", "0"),
        ("1", "1"),
        ("+1", "1"),
        ("007", "7"),
        ("5.", "5"),
        (".5", "500m"),
        ("0.5", "500m"),
        ("1.5", "1500m"),
        ("1000m", "1"),
        ("1500m", "1500m"),
        ("1000", "1k"),
        ("1024", "1024"),
        ("1000k", "1M"),
        ("1500k", "1500k"),
        ("1E", "1E"),
        ("1e3", "1e3"),
        ("1E3", "1e3"),
        ("12e6", "12e6"),
        ("1e1", "10"),
        ("100e-1", "10"),
        ("1e-1", "100e-3"),
        ("1e+3", "1e3"),
        ("1Ki", "1Ki"),
        ("1024Ki", "1Mi"),
        ("1.5Gi", "1536Mi"),
        ("0.5Ki", "512"),
        ("1023Mi", "1023Mi"),
        ("1.0001Ki", "1024102400u"),
        ("11520Mi", "11520Mi"),
        ("-1Gi", "-1Gi"),
        ("-1500m", "-1500m"),
        ("1n", "1n"),
        ("0.1n", "1n"),
        ("-0.1n", "-1n"),
        ("1.0000000001", "1000000001n"),
        ("100u", "100u"),
        ("9223372036854775807", "9223372036854775807"),
    ],
)
def test_texts_are_printed_in_canonical_form(text: str, canonical: str) -> None:
    """The canonical text is that of apimachinery, and reads back to the same number."""
    quantity = Quantity.parse(text)

    assert str(quantity) == canonical
    assert Quantity.parse(canonical).nano == quantity.nano


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        ".",
        "-",
        "+",
        "1 ",
        " 1",
        "1\n",
        "--1",
        "1.2.3",
        "1,5",
        "Gi",
        "1gi",
        "1GI",
        "1K",
        "1kk",
        "1Gim",
        "1e",
        "1e3Gi",
        "1e3.5",
        "0x10",
        "1_000",
        "٣",
        "½",
        "∞",
        "NaN",
        "inf",
        "nan",
        "true",
        "1Zi",
        "9223372036854775808",
        "8Ei",
        "1e19",
        "1e999",
        "1e1000",
        "0" * 65,
        "\x00",
    ],
)
def test_other_texts_are_refused(text: str) -> None:
    """What Kubernetes would not take is an error that quotes it."""
    with pytest.raises(InvalidQuantity) as error:
        Quantity.parse(text)

    assert str(error.value)


@pytest.mark.parametrize(
    ("value", "nano"),
    [
        (1, NANO),
        (0.5, NANO // 2),
        (1e3, 1000 * NANO),
        (0.1, NANO // 10),
        (1e-7, 100),
        (-2, -2 * NANO),
    ],
)
def test_numbers_without_quotes_are_read(value: float, nano: int) -> None:
    """YAML numbers are as good as texts, exactly as they were written."""
    assert Quantity.parse(value).nano == nano


@pytest.mark.parametrize(
    "value",
    [True, False, float("nan"), float("inf"), 1e300, 10**5000, -(10**5000), None, [], {"a": 1}],
    ids=lambda value: str(type(value).__name__),
)
def test_other_values_are_refused(value: object) -> None:
    """Booleans, endless numbers and documents are no quantities."""
    with pytest.raises(InvalidQuantity):
        Quantity.parse(value)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "floor", "ceil", "milli", "integral"),
    [
        ("1500m", 1, 2, 1500, False),
        ("-1500m", -2, -1, -1500, False),
        ("2", 2, 2, 2000, True),
        ("1u", 0, 1, 1, False),
        ("0.9999", 0, 1, 1000, False),
        ("1Ki", 1024, 1024, 1024000, True),
    ],
)
def test_rounding_is_named(
    text: str, floor: int, ceil: int, milli: int, *, integral: bool
) -> None:
    """Rounding down, up, and to thousandths as Kubernetes' Value and MilliValue do."""
    quantity = Quantity.parse(text)

    assert (quantity.floor(), quantity.ceil(), quantity.milli()) == (floor, ceil, milli)
    assert quantity.integral is integral


def test_equal_amounts_are_equal_however_written() -> None:
    """A limit of 1Gi equals a request of 1073741824, and sorts beside it."""
    assert Quantity.parse("1Gi") == Quantity.parse("1073741824") == Quantity.parse("1024Mi")
    assert len({Quantity.parse("1k"), Quantity.parse("1e3"), Quantity.parse("1000")}) == 1
    assert not Quantity.parse("1Gi") < Quantity.parse("1073741824")
    assert Quantity.parse("1023Mi") < Quantity.parse("1Gi") < Quantity.parse("1.1G")


def test_whole_numbers_are_built_in_either_format() -> None:
    """`binary` and `decimal` print with their own suffixes."""
    assert (str(binary(2**30)), str(decimal(2**30))) == ("1Gi", "1073741824")
    assert (str(binary(1000)), str(binary(2000)), str(decimal(2000))) == ("1k", "2000", "2k")


formats = st.sampled_from(["BinarySI", "DecimalSI", "DecimalExponent"])
nanos = st.one_of(
    st.integers(-MAXIMUM, MAXIMUM),
    st.integers(-(10**6), 10**6).map(lambda n: n * NANO),
    st.integers(1 - 2**13, 2**13 - 1).map(lambda n: n * 2**50 * NANO),
)


@given(nanos, formats)
def test_printing_and_reading_are_inverse(nano: int, form: str) -> None:
    """Every quantity prints to a text that reads back to it."""
    quantity = Quantity(nano, form)  # type: ignore[arg-type]

    assert Quantity.parse(str(quantity)).nano == nano


@given(nanos, nanos, formats, formats)
def test_order_is_that_of_numbers(one: int, two: int, form: str, other: str) -> None:
    """Quantities compare as their numbers, whatever they are printed in."""
    left, right = Quantity(one, form), Quantity(two, other)  # type: ignore[arg-type]

    assert (left < right) == (one < two)
    assert (left == right) == (one == two)
    assert (left <= right) == (one <= two)


texts = st.one_of(
    st.text(max_size=70),
    st.from_regex(
        r"\A[+-]?[0-9]{0,20}\.?[0-9]{0,12}([KMGTPE]i|[numkMGTPE]|[eE][+-]?[0-9]{1,4})?\Z"
    ),
)


@given(texts)
def test_any_text_is_a_quantity_or_refused(text: str) -> None:
    """Nothing but `InvalidQuantity` ever comes out of reading, and values stay in range."""
    try:
        quantity = Quantity.parse(text)
    except InvalidQuantity:
        return

    assert abs(quantity.nano) <= MAXIMUM
    assert Quantity.parse(str(quantity)).nano == quantity.nano


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (8, "8 bytes"),
        (1500, "1500 bytes"),
        (2048, "2Ki"),
        (3 * 2**20, "3Mi"),
        (28_346_784_153, "26.4Gi"),
        (83_000 * 2**30, "81.1Ti"),
    ],
)
def test_bytes_for_people_have_a_unit(value: int, text: str) -> None:
    """A bare number could be of any."""
    assert brief(value) == text


@pytest.mark.parametrize(
    ("value", "down", "up"),
    [
        (0, "0", "0"),
        (1500, "1500 bytes", "1500 bytes"),
        (10_342 * 2**20, "10342Mi", "10342Mi"),
        (6 * 2**30, "6Gi", "6Gi"),
        (6 * 2**30 + 1024, "6.00Gi", "6.01Gi"),
        (6 * 2**30 - 1, "5.99Gi", "6.00Gi"),
    ],
)
def test_bytes_to_compare_are_rounded_apart(value: int, down: str, up: str) -> None:
    """Free amounts are rounded down and asked ones up, so that a shortage shows however small it is."""
    assert (exact(value), exact(value, up=True)) == (down, up)


@given(st.integers(1, 2**40), st.integers(1, 2**40))
def test_a_shortage_has_two_texts(one: int, other: int) -> None:
    """What is asked and what is free never read alike where one is less."""
    free, asked = sorted((one, other + (one == other)))

    assert exact(free) != exact(asked, up=True)


def test_amounts_of_cards_are_written_for_people() -> None:
    """Percent of one card, cards of several; nothing where there is nothing."""
    assert [core_text(one) for one in (0, 125, 1000, 1500)] == ["0%", "12.5%", "100%", "1.5 cards"]
    half, none = {"used": 570, "total": 1000}, {"used": 0, "total": 0}
    assert part_text(half) == "57% of 100%"
    assert part_text({"used": 20 << 30, "total": 80 << 30}, memory=True) == "20Gi of 80Gi"
    assert part_text({"used": 1500, "total": 8000}, cards=True) == "1.5 of 8 cards"
    assert part_text({"used": 0, "total": 1000}, cards=True) == "0 of 1 card"
    assert part_text(none) == part_text(none, memory=True) == "-"
