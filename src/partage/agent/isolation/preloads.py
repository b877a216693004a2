"""What a process loads before the enforcement library, and whether it takes the library's place.

The loader asks objects of `LD_PRELOAD` before those of `/etc/ld.so.preload`. An allocator there harms nobody; an
object that defines `dlsym` or functions of the driver is asked instead of the library. The names are a tenant's,
and so are the files: they are looked for in its root only.
"""

import posixpath
from pathlib import Path
from typing import Final

from partage.agent.isolation.images import FOLDERS, file_below
from partage.agent.isolation.objects import stand_in
from partage.model.errors import InvalidDocument

__all__ = ["taken_first"]

_MOST: Final = 16
_KERNELS: Final = ("/proc/", "/dev/")
_LIBRARIES: Final = tuple(
    folder.removeprefix("usr/") for folder in FOLDERS if folder.startswith("usr/")
)
_SHOWN: Final = 120


def taken_first(root: Path, environment: bytes, maps: str, library: str) -> str:
    """An object that is asked before the library for what is the library's, in words; empty without one.

    Args:
        root: of the process.
        environment: that it was started with.
        maps: what it has mapped, as procfs tells it.
        library: the enforcement library's path there.
    """
    names = [
        name
        for name in _values(environment, b"LD_PRELOAD").replace(":", " ").split()
        if name != library
    ]
    folders = _values(environment, b"LD_LIBRARY_PATH").replace(";", ":").split(":")
    mapped = _mapped(maps)
    for name in names[:_MOST]:
        why = _judged(root, _places(name, folders, mapped), name, mapped)
        if why:
            return why
    return f"{len(names)} objects, too many to look at" if len(names) > _MOST else ""


def _values(environment: bytes, key: bytes) -> str:
    """All values of a variable: a process may have been given one twice."""
    parts = (line.partition(b"=") for line in environment.split(b"\0"))
    return ":".join(
        value.decode("utf-8", "surrogateescape") for name, _, value in parts if name == key
    )


def _mapped(maps: str) -> list[str]:
    """Files of which a process runs code."""
    fields = (line.split(maxsplit=5) for line in maps.splitlines())
    return [one[5] for one in fields if len(one) == 6 and "x" in one[1] and one[5][0] == "/"]


def _places(name: str, folders: list[str], mapped: list[str]) -> list[str]:
    """Where the loader may have found an object, in the container."""
    if name.startswith("/"):
        forms = [name]
        for word in ("$LIB", "${LIB}"):
            forms = [form.replace(word, one) for form in forms for one in _LIBRARIES]
        return forms
    base = posixpath.basename(name)
    there = [path for path in mapped if posixpath.basename(path) == base]
    if there or "/" in name:
        return there
    own = [folder for folder in folders if folder.startswith("/")]
    return [f"{folder}/{name}" for folder in (*own, *FOLDERS, "usr/local/lib")]


def _judged(root: Path, places: list[str], name: str, mapped: list[str]) -> str:
    shown = ascii(name[:_SHOWN])[1:-1]
    seen = False
    for place in dict.fromkeys(places):
        try:
            with file_below((root,), place) as descriptor:
                seen = True
                symbol = stand_in(descriptor)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            return f"{shown}, which cannot be read ({error.strerror or 'too many links'})"
        except (ValueError, InvalidDocument) as error:
            return f"{shown}, which cannot be read ({error})"
        if symbol:
            return f"{shown}, which defines {symbol}"
    # The loader passes by what it does not find. What it did find may be gone since.
    gone = any(path.endswith(" (deleted)") and not path.startswith("/memfd:") for path in mapped)
    if not seen and (gone or name.startswith(_KERNELS) or "$" in name):
        return f"{shown}, which cannot be found"
    return ""
