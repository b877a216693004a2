"""Kubernetes quantities as exact integers.

`1500m`, `8Gi`, `1e3` and `0.5` are numbers with at most nine decimals. A `Quantity` holds the number in billionths and
its notation, so it prints as Kubernetes prints it. It never uses floats.

Source: apimachinery's resource.Quantity (grammar, canonical form).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Literal

from partage.model.errors import InvalidQuantity

Format = Literal["BinarySI", "DecimalExponent", "DecimalSI"]

NANO: Final = 10**9
MAXIMUM: Final = (2**63 - 1) * NANO
_LONGEST: Final = 64
_BRIEF: Final = 6
_EXACT: Final = 8
_MANY: Final = 10 * 2**40

_BINARY: Final = ("", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")
"""Suffixes of powers of 1024, from 0."""
_DECIMAL: Final = ("n", "u", "m", "", "k", "M", "G", "T", "P", "E")
"""Suffixes of powers of 1000, from -3."""
_GRAMMAR: Final = re.compile(
    r"(?P<sign>[+-]?)(?P<whole>[0-9]*)(?:\.(?P<part>[0-9]*))?"
    r"(?:(?P<binary>[KMGTPE]i)|(?P<exponent>[eE][+-]?[0-9]{1,3})|(?P<decimal>[numkMGTPE]))?"
)


@dataclass(frozen=True, slots=True, order=True)
class Quantity:
    """An exact number with its print format; equal numbers are equal in any format.

    Attributes:
        nano: the number in billionths; may be negative.
        format: `BinarySI` (`8Gi`), `DecimalSI` (`500m`, `1k`) or `DecimalExponent` (`1e3`).
    """

    nano: int
    format: Format = field(default="DecimalSI", compare=False)

    @staticmethod
    def parse(text: object) -> "Quantity":
        """The quantity of `text`. Raises `InvalidQuantity`: not a quantity, or beyond 2**63 - 1.

        Numbers are accepted because YAML authors leave quotes out. More than nine decimals are rounded up, as
        Kubernetes does.
        """
        if isinstance(text, bool):
            raise InvalidQuantity(f"quantity {text!r} is a boolean, not a number")
        if not isinstance(text, str | int | float):
            raise InvalidQuantity(f"a quantity is a text or a number, not {type(text).__name__}")
        if isinstance(text, int) and abs(text) > MAXIMUM // NANO:
            raise InvalidQuantity("a number larger than 2**63 - 1 is no quantity")
        return _parse(text if isinstance(text, str) else repr(text))

    def floor(self) -> int:
        """The largest integer not above this."""
        return self.nano // NANO

    def ceil(self) -> int:
        """The smallest integer not below this, as Kubernetes' `Value()` rounds."""
        return -(-self.nano // NANO)

    def milli(self) -> int:
        """The number in thousandths, rounded up, as Kubernetes' `MilliValue()` rounds."""
        return -(-self.nano // 10**6)

    @property
    def integral(self) -> bool:
        """Whether this is an integer."""
        return self.nano % NANO == 0

    def __str__(self) -> str:
        """The canonical text: `1k` for decimal 1000, `11520Mi` for binary 12079595520."""
        if self.nano == 0:
            return "0"
        sign, nano = ("-", -self.nano) if self.nano < 0 else ("", self.nano)
        if self.format == "BinarySI" and nano >= 1024 * NANO and nano % NANO == 0:
            return sign + _scaled(nano // NANO, 1024, _BINARY)
        if self.format == "DecimalExponent":
            return sign + _exponent(nano)
        return sign + _scaled(nano, 1000, _DECIMAL)


def decimal(value: int) -> Quantity:
    """An integer printed with decimal suffixes: `decimal(1000)` prints `1k`."""
    return Quantity(value * NANO, "DecimalSI")


def binary(value: int) -> Quantity:
    """An integer printed with binary suffixes: `binary(2**30)` prints `1Gi`."""
    return Quantity(value * NANO, "BinarySI")


def whole_text(value: int, *, memory: bool) -> str:
    """The canonical text of an integer: of memory with binary suffixes, else with decimal ones."""
    return str(binary(value) if memory else decimal(value))


@lru_cache(maxsize=4096)
def brief(value: int) -> str:
    """Bytes for people: the canonical text if it is short, else GiB or many of these as TiB, with one decimal."""
    text = str(binary(value))
    if len(text) > _BRIEF:
        return f"{value / 2**30:.1f}Gi" if value < _MANY else f"{value / 2**40:.1f}Ti"
    return f"{text} bytes" if value and text.isdigit() else text


def exact(value: int, *, up: bool = False) -> str:
    """Bytes to compare with others: the canonical text if it is short, else hundredths of GiB.

    These are rounded down, or `up`. So an asked amount (up) and a smaller free one (down) never have the same text.
    """
    text = str(binary(value))
    if len(text) <= _EXACT:
        return f"{text} bytes" if value and text.isdigit() else text
    return f"{(-(-100 * value >> 30) if up else 100 * value >> 30) / 100:.2f}Gi"


def core_text(milli: int) -> str:
    """Compute as percent of a card; of more than one as cards."""
    return f"{milli / 10:g}%" if milli <= 1000 else f"{milli / 1000:.10g} cards"


def part_text(amount: Mapping[str, int], *, memory: bool = False, cards: bool = False) -> str:
    """`20Gi of 80Gi`, `57% of 100%`, or `1.5 of 8 cards`; a dash if there is none.

    Args:
        amount: the used and the full amount, in bytes or in thousandths of a card.
        memory: whether it is an amount of memory.
        cards: whether it is the compute of several cards, which percentages would hide.
    """
    if not amount["total"]:
        return "-"
    if cards:
        total = amount["total"] / 1000
        return f"{amount['used'] / 1000:.10g} of {total:.10g} card{'s' * (total != 1)}"
    write = brief if memory else core_text
    return f"{write(amount['used'])} of {write(amount['total'])}"


def _scaled(number: int, base: int, suffixes: tuple[str, ...]) -> str:
    step = 0
    while number % base == 0 and step < len(suffixes) - 1:
        number //= base
        step += 1
    return f"{number}{suffixes[step]}"


def _exponent(nano: int) -> str:
    power = -9
    while nano % 1000 == 0 and power < 18:
        nano //= 1000
        power += 3
    return f"{nano}e{power}" if power else str(nano)


@lru_cache(maxsize=65536)
def _parse(text: str) -> Quantity:
    if len(text) > _LONGEST:
        raise InvalidQuantity(f"quantity of {len(text)} characters is longer than {_LONGEST}")
    match = _GRAMMAR.fullmatch(text)
    whole, part = (match["whole"], match["part"] or "") if match else ("", "")
    if match is None or not (whole or part):
        raise InvalidQuantity(
            f"{text!r} is not a quantity; write a number with an optional suffix such as 500m, 8Gi or 1k"
        )
    digits = int(whole + part)
    form: Format = "DecimalSI"
    if match["binary"]:
        form, factor, power = "BinarySI", 1024 ** _BINARY.index(match["binary"]), 0
    elif match["exponent"]:
        form, factor, power = "DecimalExponent", 1, int(match["exponent"][1:])
    else:
        factor, power = 1, 3 * _DECIMAL.index(match["decimal"] or "") - 9
    scale = power + 9 - len(part)
    nano = digits * factor * 10**scale if scale >= 0 else -(-digits * factor // 10**-scale)
    if nano > MAXIMUM:
        raise InvalidQuantity(f"quantity {text!r} is larger than 2**63 - 1")
    return Quantity(-nano if match["sign"] == "-" else nano, form)
