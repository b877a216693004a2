"""Where the example manifests are: packed with the program, or in the tree it runs from."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from partage.model.errors import InvalidDocument

_HERE: Final = Path(__file__).resolve()
_PLACES: Final = (_HERE.parent / "manifests_of_examples", _HERE.parents[3] / "examples")


def examples() -> Sequence[Path]:
    """The folder of examples. Raises `InvalidDocument`: this installation has none."""
    for place in _PLACES:
        if place.is_dir():
            return (place,)
    raise InvalidDocument("this installation has no examples; use --no-examples or -f FILE")
