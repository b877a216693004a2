"""A C compiler that keeps its objects: `kept_objects.py FOLDER COMPILER ARGUMENT...` compiles what no earlier call has compiled.

An object is known by the compiler, the options, and the source as the preprocessor leaves it, headers and all.
"""

import contextlib
import hashlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

LINKS = ("-l", "-L", "-Wl,", "-shared", "-rdynamic")
"""How options begin that only the linker reads."""


def _object(folder: Path, compiler: str, options: list[str], source: str) -> Path:
    """The object of a source."""
    command = [compiler, *options, source]
    text = subprocess.run([*command, "-E"], stdout=subprocess.PIPE, check=True).stdout
    version = subprocess.check_output([compiler, "--version"])
    digest = hashlib.sha256(b"\0".join([version, "\0".join(command).encode(), text]))
    kept = folder / f"{digest.hexdigest()[:32]}.o"
    if not kept.exists():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, delete=False) as part:
            made = Path(part.name)
        try:
            subprocess.run([*command, "-c", "-o", made], check=True)
            made.rename(kept)
        finally:
            with contextlib.suppress(FileNotFoundError):
                made.unlink()
    return kept


def main(folder: Path, compiler: str, *arguments: str) -> None:
    """Compile each source of a command by itself, and link."""
    *rest, target = _without_target(arguments)
    options = [one for one in rest if not one.startswith(LINKS) and not one.endswith(".c")]
    try:
        linked = [
            str(_object(folder, compiler, options, one)) if one.endswith(".c") else one
            for one in rest
        ]
    except subprocess.CalledProcessError as error:
        sys.exit(error.returncode)
    os.execvp(compiler, [compiler, *linked, "-o", target])  # noqa: S606 # a compiler is what it is for


def _without_target(arguments: tuple[str, ...]) -> list[str]:
    at = arguments.index("-o")
    return [*arguments[:at], *arguments[at + 2 :], arguments[at + 1]]


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
