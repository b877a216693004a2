"""The ways in which vendors' container runtimes open cards to a container without a grant.

NVIDIA's runtime, and those modelled on it, open the cards that a variable of the container names. An image or a pod's
author may set it. If no variable names any, NVIDIA's opens all cards to *legacy* images: those with `CUDA_VERSION` and
without `NVIDIA_REQUIRE_CUDA`. So a container without a grant needs the variable with a value that opens none. Two
further ways are names of the Container Device Interface in annotations (`cdi.k8s.io/...`), and mounts below a folder
that NVIDIA's runtime reads as a list.

Source: NVIDIA's container toolkit (`cuda_image.go`), Habana's hook (there an empty value, and `void`, mean *all*),
Ascend's hook; documentation of the others. Read, not run.
"""

import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Final

from partage.vendors.traits import NVIDIA, ROWS, Traits

VISIBLE: Final = NVIDIA.variable
VOID: Final = NVIDIA.closed
"""No card at all, in the words of NVIDIA's runtime."""
_CUDA: Final = "CUDA_VERSION"
_REQUIRE: Final = "NVIDIA_REQUIRE_CUDA"
_RANGE: Final = re.compile(r"([0-9]{1,9})-([0-9]{1,9})")
_NUMBERED: Final = re.compile(r"(?:[A-Za-z][A-Za-z0-9_.-]*?)?([0-9]{1,9})")
"""A card as vendors name it to their runtimes: its number, perhaps behind its model."""
_MOST: Final = 256  # names in one variable
_RESOURCE: Final = re.compile(r"DOCKER_RESOURCE_[0-9A-Z_]+")
"""Generic resources of Docker's swarm: an operator may let runtimes read them before their own variable."""
_LIST: Final = ("/var/run/nvidia-container-devices", "/run/nvidia-container-devices")
CDI_ANNOTATION: Final = "cdi.k8s.io/"
_OURS: Final = "partage.io"
"""Domain of the agent's own kinds: of claims, and of hardware instances."""
_MAKERS: Final[Mapping[str, str]] = MappingProxyType(
    {domain: row.name for row in ROWS for domain in row.domains}
)
"""Domains under which makers of cards have their CDI kinds."""


_ROWS: Final[Mapping[str, Traits]] = MappingProxyType(
    {row.variable: row for row in ROWS if row.variable}
)
_ANY: Final = Traits("", others=frozenset({"", VOID}))


def opening(variable: str) -> Traits | None:
    """The vendor whose runtime reads a variable, without a name for one that any may read; None for none."""
    return _ROWS.get(variable) or (_ANY if _RESOURCE.fullmatch(variable) else None)


def opens(env: Iterable[str]) -> tuple[str, ...]:
    """Variables by which a container would get cards without a grant; empty if it gets none.

    `env`: lines `NAME=VALUE`; a repeated one counts both times, because runtimes differ in which they read.
    """
    lines = [text.partition("=")[::2] for text in env]
    found = [
        key
        for key, value in lines
        if (one := opening(key)) is not None and not one.is_closed(value)
    ]
    known = dict(lines)
    if VISIBLE not in known and known.get(_CUDA) and not known.get(_REQUIRE):
        found.append(_CUDA)
    return tuple(dict.fromkeys(found))


def names_others(
    value: str,
    uuids: Collection[str],
    granted: Collection[int],
    further: Collection[int] | None = None,
) -> str:
    """The part of a variable by which its vendor's runtime may open a card that was not granted; empty if none may.

    A vendor's plugin sets the variable too, and nothing distinguishes its value from a pod's. Runtimes read
    many spellings, so what is not known to name a granted card counts as another one.

    Args:
        value: of the variable.
        uuids: of the granted cards.
        granted: their numbers.
        further: numbers of the vendor's other cards, if its plugin cuts the granted ones: it chooses the numbers of
            their parts. None if they are granted whole.
    """
    if value.count(",") >= _MOST:
        return f"list of more than {_MOST} cards"
    for name in map(str.strip, value.split(",")):
        if name in uuids:
            continue
        if found := _RANGE.fullmatch(name):
            first, last = map(int, found.groups())
            fine = first <= last < first + _MOST and {*range(first, last + 1)} <= {*granted}
        elif found := _NUMBERED.fullmatch(name):
            number = int(found[1])
            fine = number in granted or (further is not None and number not in further)
        else:
            fine = False
        if not fine:
            return repr(name)
    return ""


def tells(variable: str, value: str) -> bool:
    """Whether a variable with this value changes the answer of `opens`."""
    found = opening(variable)
    opened = found is not None and not found.is_closed(value)
    return opened or variable in (VISIBLE, _CUDA, _REQUIRE)


def listed(targets: Iterable[str]) -> str:
    """A mount's target that NVIDIA's runtime reads as the name of a card; empty if it is none."""
    for target in targets:
        at = posixpath.normpath("/" + target.lstrip("/"))
        if any(f"{at}/".startswith(f"{folder}/") for folder in _LIST):
            return target
    return ""


def cdi_names(
    annotations: Mapping[str, str],
    kind: str = "",
    granted: Collection[str] = (),
    *,
    ours: bool = False,
) -> Iterator[str]:
    """CDI names of cards in annotations.

    Args:
        annotations: of a pod or a container.
        kind: a further kind under which this node's cards are named; empty without one.
        granted: vendors whose names are left alone.
        ours: the agent's own kinds too; a kubelet writes those of a claim at the container, never at its pod.
    """
    listed = ",".join(text for key, text in annotations.items() if key.startswith(CDI_ANNOTATION))
    for name in listed.split(","):
        theirs = name.strip().partition("=")[0]
        domain = theirs.partition("/")[0]
        maker = next((who for of, who in _MAKERS.items() if f".{domain}".endswith(f".{of}")), "")
        mine = (ours and domain == _OURS) or (kind and theirs == kind)
        if mine or (maker and maker not in granted):
            yield name.strip()
