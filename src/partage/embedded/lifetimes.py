"""How long a simulated container runs, by what its pod says: pure.

The annotation `simulate.partage.io/lifetime` decides for the whole pod. Without it a container
runs as long as its command sleeps (`sleep 30`, `sh -c "sleep 5m"`, `sleep 365d`), because that is
what demonstration manifests do; anything else runs until it is deleted.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from partage.vendors import names

FOREVER: Final = float("inf")

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_PART: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)")
_SHELLS: Final = frozenset({"sh", "bash", "ash", "dash", "zsh"})
_SLEEP: Final = re.compile(r"sleep((?:\s+(?:[0-9]{1,9}(?:\.[0-9]{1,9})?[smhd]?|infinity))+)\s*;?")
_WORDS: Final = 2


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
    """Seconds that the pod's annotation gives it; None when it gives none that can be read."""
    text = ((pod.get("metadata") or {}).get("annotations") or {}).get(names.SIMULATE_LIFETIME)
    return None if text is None else duration(text)


def sleeps(container: Mapping[str, Any]) -> float:
    """Seconds for which a container's command sleeps; `FOREVER` for any other command."""
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    if len(words) > _WORDS and _base(words[0]) in _SHELLS and words[1] == "-c":
        line = str(words[2])
    elif words and _base(words[0]) == "sleep":
        line = " ".join(["sleep", *map(str, words[1:])])
    else:
        return FOREVER
    match = _SLEEP.fullmatch(line.strip())
    if match is None:
        return FOREVER
    return sum(_seconds(word) for word in match[1].split())


def _base(word: object) -> str:
    return str(word).rpartition("/")[2]


def _seconds(word: str) -> float:
    if word == "infinity":
        return FOREVER
    unit = _UNITS.get(word[-1])
    return float(word) if unit is None else float(word[:-1]) * unit
