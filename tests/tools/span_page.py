"""What docs/reference/traces.md says of spans."""

import re
from pathlib import Path
from typing import Final

_PAGE: Final = Path(__file__).parents[2] / "docs/reference/traces.md"
_NAMED: Final = re.compile(r"`([^`]+)`")

_SPANS, _ATTRIBUTES, _EVENTS = (
    {_NAMED.findall(row)[0]: row for row in part.splitlines() if row.startswith("| `")}
    for part in _PAGE.read_text(encoding="utf-8").split("\n## ")
)
ATTRIBUTES: Final = frozenset(_ATTRIBUTES)
EVENTS: Final = frozenset(_EVENTS)
SPANS: Final = {
    name: (
        row.split(" | ")[2],
        frozenset(_NAMED.findall(row.rpartition(" | ")[2])),
    )
    for name, row in _SPANS.items()
}
"""By name, the role, and the attributes that it may have besides those of the pod."""
