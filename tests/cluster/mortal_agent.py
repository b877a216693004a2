"""`partage`, which ends itself, fails or waits at a step of preparing a claim where a file of that step's name says so.

    python mortal_agent.py FOLDER agent ...

A file `FOLDER/<step>` ends the program as SIGKILL does, once: the file is gone then. `FOLDER/<step>.fails` fails each
time at that step, as a disk does. Steps: `prepare-read`, `-written`, `-named`, `-answered` and `unprepare-asked`,
`-unnamed`, `-forgotten`, `-answered`; each is what is done when the program ends. `FOLDER/calls` has a line for each
claim that the kubelet asks for. Where there is `FOLDER/often` it looks for lost claims every 2 s, not every minute.
"""

import os
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from partage.agent.dra import messages as said
from partage.agent.dra import plugin, prepared
from partage.cli.main import main
from partage.daemon import claims

FOLDER = Path(sys.argv.pop(1))
_REAL = prepared.Claims.put, prepared.Claims.drop, prepared.replace_file, prepared.flush_folder
_UNLINK = Path.unlink
_MADE = claims.ResourceDriver.__init__


def reached(step: str) -> None:
    """A step is done."""
    if (FOLDER / f"{step}.fails").exists():
        raise OSError(f"made to fail after {step}")
    if (FOLDER / step).exists():
        _UNLINK(FOLDER / step)
        os.kill(os.getpid(), signal.SIGKILL)


def _put(self: prepared.Claims, one: Any) -> Any:
    reached("prepare-read")
    return _REAL[0](self, one)


def _drop(self: prepared.Claims, uid: str) -> bool:
    reached("unprepare-asked")
    return _REAL[1](self, uid)


def _replaced(path: Path, *more: Any, **named: Any) -> None:
    _REAL[2](path, *more, **named)
    reached("prepare-written" if path.parent.name == "claims" else "prepare-named")


def _flushed(path: Path) -> None:
    _REAL[3](path)
    reached("unprepare-forgotten")


def _unlinked(path: Path, *, missing_ok: bool = False) -> None:
    _UNLINK(path, missing_ok=missing_ok)
    if path.name.startswith("partage.io-claim_"):
        reached("unprepare-unnamed")


def _answered(call: str, real: Any) -> Any:
    async def answer(self: plugin.DriverPlugin, request: bytes, context: Any) -> bytes:
        with (FOLDER / "calls").open("a") as calls:
            for one in said.ClaimRequest.decode(request).claims:
                calls.write(f"{call} {one.name} {one.uid}\n")
        made: bytes = await real(self, request, context)
        reached(f"{call}-answered")
        return made

    return answer


def _made(self: claims.ResourceDriver, client: Any, agent: Any, node: str, options: Any) -> None:
    look = 2.0 if (FOLDER / "often").exists() else options.look
    _MADE(self, client, agent, node, replace(options, look=look))


claims.ResourceDriver.__init__ = _made  # type: ignore[method-assign]
prepared.Claims.put = _put  # type: ignore[method-assign]
prepared.Claims.drop = _drop  # type: ignore[method-assign]
prepared.replace_file = _replaced
prepared.flush_folder = _flushed
Path.unlink = _unlinked  # type: ignore[method-assign,assignment]
plugin.DriverPlugin._prepare_all = _answered("prepare", plugin.DriverPlugin._prepare_all)  # type: ignore[method-assign]
plugin.DriverPlugin._unprepare_all = _answered("unprepare", plugin.DriverPlugin._unprepare_all)  # type: ignore[method-assign]

if __name__ == "__main__":
    main()
