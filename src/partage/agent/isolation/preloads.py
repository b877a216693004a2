"""Finds the objects that a process loads before the enforcement library, and whether one replaces the library.

The loader searches objects of `LD_PRELOAD` before those of `/etc/ld.so.preload`. An allocator there does no harm. An
object that defines `dlsym` or functions of the driver answers instead of the library. Auditors of the loader
(`LD_AUDIT`, or named in the program) are loaded before everything, and an auditor with a function for it may bind any
call to another place. If the loader itself was started as the program, its options name such objects too. The names and
the files are a tenant's: they are looked up in its root only.
"""

import posixpath
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

from partage.agent.isolation.elf import OF_AUDITOR, OF_DRIVER, auditors, defined
from partage.agent.isolation.images import FOLDERS
from partage.agent.isolation.reading import Work, file_below, lacks
from partage.model.errors import InvalidDocument

_MOST: Final = 16
_KERNELS: Final = ("/proc/", "/dev/")
_LIBRARIES: Final = tuple(
    folder.removeprefix("usr/") for folder in FOLDERS if folder.startswith("usr/")
)
_SHOWN: Final = 120
_OPTIONS: Final = {
    "--preload": b"LD_PRELOAD",
    "--audit": b"LD_AUDIT",
    "--library-path": b"LD_LIBRARY_PATH",
}
"""Options of the loader that add to a variable, or replace it."""
_OTHERS: Final = frozenset(
    {"--inhibit-rpath", "--argv0", "--glibc-hwcaps-prepend", "--glibc-hwcaps-mask"}
)
"""Its further options with a value."""


def of_loader(
    told: Mapping[bytes, Sequence[str]], arguments: Sequence[str]
) -> tuple[dict[bytes, list[str]], str]:
    """The variables, with what the options of a loader that was started as the program add; and the program that it ran."""
    found = {key: list(values) for key, values in told.items()}
    rest = iter(arguments[1:])
    for one in rest:
        if not one.startswith("--"):
            return found, one
        if one in _OPTIONS or one in _OTHERS:
            value = next(rest, "")
            found.setdefault(_OPTIONS.get(one, b""), []).append(value)
    return found, ""


def taken_first(  # what is known of one process
    root: Path,
    told: Mapping[bytes, Sequence[str]],
    mapped: Sequence[str],
    library: str,
    program: int,
    work: Work,
    ran: str = "",
) -> str:
    """An object that is searched before the library and replaces it, in words; empty without one.

    `told`: values of the loader's variables; a variable may occur twice. `mapped`: files whose code the process runs.
    `ran`: the program that it started, if it is the loader. Raises `TooMuch`: it names more objects than a look may
    check; `OSError`: its program cannot be read, or this process lacks a resource.
    """
    preloads = [
        name for name in ":".join(told[b"LD_PRELOAD"]).replace(":", " ").split() if name != library
    ]
    own = _auditors(program, work)
    for place in _places(ran, (), mapped) if ran else ():
        try:
            with file_below((root,), place, work) as found:
                own = f"{own}:{_auditors(found, work)}"
        except (FileNotFoundError, NotADirectoryError, ValueError):
            continue
    audits = [*":".join(told[b"LD_AUDIT"]).split(":"), *own.split(":")]
    audits = [name for name in audits if name]
    folders = ":".join(told[b"LD_LIBRARY_PATH"]).replace(";", ":").split(":")
    for how, names, sought in (
        ("by LD_PRELOAD", preloads, partial(defined, OF_DRIVER)),
        ("as auditor", audits, partial(defined, OF_AUDITOR)),
    ):
        for name in names[:_MOST]:
            if why := _judged(root, _places(name, folders, mapped), name, mapped, sought, work):
                return f"{how} {why}"
        if len(names) > _MOST:
            return f"{how} {len(names)} objects, too many to look at"
    return ""


def _auditors(program: int, work: Work) -> str:
    try:
        return auditors(program, work)
    except InvalidDocument:
        return ""  # the kernel or the loader would not have started such a program


def _places(name: str, folders: Sequence[str], mapped: Sequence[str]) -> list[str]:
    """The paths in the container where the loader may have found an object."""
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


def _judged(  # what is known of one name
    root: Path,
    places: list[str],
    name: str,
    mapped: Sequence[str],
    sought: Callable[[int, Work], str],
    work: Work,
) -> str:
    shown = ascii(name[:_SHOWN])[1:-1]
    seen = False
    for place in dict.fromkeys(places):
        try:
            with file_below((root,), place, work) as descriptor:
                seen = True
                symbol = sought(descriptor, work)
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError as error:
            if lacks(error):
                raise
            return f"{shown}, which cannot be read ({error.strerror or 'too many links'})"
        except (ValueError, InvalidDocument) as error:
            return f"{shown}, which cannot be read ({error})"
        if symbol:
            return f"{shown}, which defines {symbol}"
    # The loader skips objects that it does not find. A found object may have been removed since.
    gone = any(path.endswith(" (deleted)") and not path.startswith("/memfd:") for path in mapped)
    if not seen and (gone or name.startswith(_KERNELS) or "$" in name):
        return f"{shown}, which cannot be found"
    return ""
