"""The running time and exit code of a simulated container, from its pod's document: pure.

The annotation `simulate.partage.io/lifetime` decides for the whole pod. Without it a container runs as long as
its command sleeps and ends with the command's exit code (`sleep 30`, `sh -c "sleep 5m; exit 1"`, `false`),
because demonstration manifests use these. Any other container runs until it is deleted.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from partage.vendors import names

FOREVER: Final = float("inf")

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)")
_SHELLS: Final = frozenset({"sh", "bash", "ash", "dash", "zsh"})
_SLEEP: Final = re.compile(r"sleep((?:\s+(?:[0-9]{1,9}(?:\.[0-9]{1,9})?[smhd]?|infinity))+)")
_EXIT: Final = re.compile(r"exit(?:\s+([0-9]{1,9}))?")
_JOINED: Final = re.compile(r"(&&|\|\||;|\n)")
_BROKEN: Final = re.compile(r"(&&|\|\|)\s+")
_CODES: Final = {"true": 0, ":": 0, "false": 1}
_WORDS: Final = 2


@dataclass(frozen=True, slots=True)
class Course:
    """A container's exit code, and the `seconds` for which it runs."""

    seconds: float = FOREVER
    code: int = 0


def duration(text: str) -> float | None:
    """Seconds of `30`, `1.5s`, `5m` or `1h30m`; None for anything else."""
    text = text.strip()
    if text.replace(".", "", 1).isascii() and text.replace(".", "", 1).isdigit():
        return float(text)
    parts = _PART.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return sum(float(number) * _UNITS[unit] for number, unit in parts)


def lifetime(pod: Mapping[str, Any]) -> float | None:
    """Seconds in the pod's annotation; None without a readable one."""
    text = ((pod.get("metadata") or {}).get("annotations") or {}).get(names.SIMULATE_LIFETIME)
    return None if text is None else duration(text)


def course(container: Mapping[str, Any]) -> Course:
    """The course of a container's command; an unreadable command runs for ever."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    if len(words) > _WORDS and _base(words[0]) in _SHELLS and words[1] == "-c":
        return _script(str(words[2]))
    if words and _base(words[0]) in ("sleep", *_CODES):
        return _step(" ".join([_base(words[0]), *map(str, words[1:])])) or Course()
    return Course()


def _script(text: str) -> Course:
    """The course of a shell command's steps, one after another, by the operators between them."""
    parts = _JOINED.split(_BROKEN.sub(r"\1", text.strip()))
    seconds, code = 0.0, 0
    for sign, part in zip([";", *parts[1::2]], parts[::2], strict=True):
        line = part.strip()
        if not line or (sign == "&&" and code) or (sign == "||" and not code):
            continue
        if left := _EXIT.fullmatch(line):
            return Course(seconds, int(left[1]) % 256 if left[1] else code)
        step = _step(line)
        if step is None:
            return Course()
        seconds, code = seconds + step.seconds, step.code
    return Course(seconds, code) if text.strip() else Course()


def _step(line: str) -> Course | None:
    if line in _CODES:
        return Course(0.0, _CODES[line])
    match = _SLEEP.fullmatch(line)
    return None if match is None else Course(sum(map(_seconds, match[1].split())))


def _base(word: object) -> str:
    return str(word).rpartition("/")[2]


def _seconds(word: str) -> float:
    if word == "infinity":
        return FOREVER
    unit = _UNITS.get(word[-1])
    return float(word) if unit is None else float(word[:-1]) * unit
