"""CEL of device selectors, evaluated by a library (`wire.cel`) within limits.

Any user who may create a claim may write an expression, and its evaluation may never end. So an expression has at most
the length that an API server stores, and each step and each value of an evaluation counts against a total for all
evaluations.
An expression without a result matches no device, and an error contains the reason.

Source: Kubernetes v1.36, `k8s.io/dynamic-resource-allocation/cel` (variables, limits); CEL libraries of Kubernetes.
"""

import re
from functools import lru_cache
from typing import Any, Final

from partage.model.errors import PartageError
from partage.wire.device_view import DeviceView

LONGEST: Final = 10 * 1024
"""Characters of an expression, the API server's limit."""
MOST_STEPS: Final = 400_000
"""Steps of all evaluations for the pods of one namespace: some seconds of one processor."""
_MOST_AT_ONCE: Final = 20_000
_A_CHARACTER: Final = 5
"""Steps that it takes to compile a character: up to 70 us, where a step of an evaluation takes about ten."""
_MOST_COMPILED: Final = 4 * LONGEST
"""Characters of compiled expressions to keep; one takes up to 4 KB of memory each."""
_LATE: Final = (
    "not judged: the selectors before it took as much work as those of one namespace may"
)
_MOST_KNOWN: Final = 10_000
"""Remembered answers."""
_PLAIN: Final = re.compile(
    r"""\bdevice\.(?:driver\b|allowMultipleAllocations\b|(attributes|capacity)\[\s*(["'])([^"'\\]*)\2\s*\]
    (?:\.(\w+)\b(?!\s*\()|\[\s*(["'])([^"'\\]*)\5\s*\]))""",
    re.VERBOSE,
)
"""Notations that name one part of a device and can reach no other part."""


class NoLibrary(PartageError):
    """The library that evaluates CEL is not installed."""


class Selectors:
    """Evaluates expressions, and remembers answers for devices that are alike; `left` counts the question's steps."""

    def __init__(self, steps: int = MOST_STEPS) -> None:
        """No answers yet; `steps` bounds the first question. Raises `NoLibrary`: none is installed, with the remedy."""
        try:
            from partage.wire import cel  # noqa: PLC0415 # an extra, and half a second to load
        except ImportError as error:
            raise NoLibrary(
                "selectors of claims and DeviceClasses are judged by cel-python, which is not installed: "
                "pip install cel-python"
            ) from error
        self._cel = cel
        self.left = steps
        self._compiled: dict[str, Any] = {}
        self._characters = 0  # of the compiled expressions
        self._known: dict[tuple[str, object], bool | str] = {}

    def begin(self, steps: int) -> None:
        """Begin another question with so many steps; known answers stay, unless there are too many."""
        self.left = steps
        if len(self._known) > _MOST_KNOWN:
            self._known.clear()

    def judge(self, expression: str, device: DeviceView) -> bool | str:
        """Whether an expression is true for a device; a text gives the reason for no answer."""
        key = expression, _visible(expression, device)
        found = self._known.get(key)
        if found is None:
            enough = self.left >= _MOST_AT_ONCE + self._dear(expression)
            found = self._judged(expression, device)
            if enough or isinstance(found, bool):
                self._known[key] = found
        return found

    def _dear(self, expression: str) -> int:
        """Steps until the expression can be evaluated; 0 if it is compiled."""
        return 0 if expression in self._compiled else _A_CHARACTER * len(expression)

    def _judged(self, expression: str, device: DeviceView) -> bool | str:
        if len(expression) > LONGEST:
            return f"it has {len(expression)} characters, more than {LONGEST}"
        before = self._dear(expression)
        if self.left <= before:
            return _LATE
        self.left -= before
        if expression not in self._compiled:
            # In place of all others if they are too large together.
            if self._characters + len(expression) > _MOST_COMPILED:
                self._compiled.clear()
                self._characters = 0
            self._characters += len(expression)
            self._compiled[expression] = self._cel.compiled(expression)
        program = self._compiled[expression]
        if isinstance(program, str):
            return program
        answer, taken = self._cel.evaluated(program, device, min(self.left, _MOST_AT_ONCE))
        self.left -= taken
        return answer


def _visible(expression: str, device: DeviceView) -> object:
    """The parts of the device that the expression can reach; equal for devices that it cannot tell apart."""
    parts = {"attributes": device.attributes, "capacity": device.capacity}
    named = _named(expression)
    if named is None:
        told: list[object] = [
            (part, domain, name, str(value))
            for part, domains in parts.items()
            for domain, inner in domains.items()
            for name, value in inner.items()
        ]
    else:
        told = [str(parts[part].get(domain, {}).get(name)) for part, domain, name in named]
    return device.driver, device.shared, tuple(told)


@lru_cache(maxsize=256)
def _named(expression: str) -> tuple[tuple[str, str, str], ...] | None:
    """Parts of a device that an expression names; None if it may reach others too."""
    if "device" in _PLAIN.sub("", expression):
        return None
    found = ((one[1], one[3], one[4] or one[6]) for one in _PLAIN.finditer(expression) if one[1])
    return tuple(dict.fromkeys(found))
