"""Number of files that a reader opens to follow one pod from the question to the Binding, by either seam.

    python bench/walk.py [--seam plugin] [--list]

It traces every call of a function of `partage` while one pod is decided and bound, once for the first pod of its kind
and once for a second one (with warm caches). A *move* is a call from a function of one file to a function of another,
so a reader must turn to another file. It counts each pair of functions once, however often the call happens. The API
server is the fake one of the tests. Sockets, HTTP and generated methods are left out. Each seam has a process of its
own, so that the caches of the other one do not shorten its walk.
"""

import argparse
import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

SOURCE = Path(__file__).parents[1]
sys.path[:0] = [str(SOURCE / "tests" / name) for name in ("extender", "tools")]

from plugin_world import Plugged  # noqa: E402 # of the tests, which are no package
from world import DONE, device, half, node, pod  # noqa: E402

PACKAGE = str(SOURCE / "src" / "partage")
SEAMS = ("plugin", "extender")


class Trace:
    """The called functions, and the calls between functions of different files."""

    def __init__(self) -> None:
        self.functions: dict[tuple[str, str], None] = {}
        self.moves: dict[tuple[tuple[str, str], tuple[str, str]], None] = {}

    @property
    def files(self) -> list[str]:
        """The files in the order of their first call."""
        return list(dict.fromkeys(file for file, _ in self.functions))

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        """Record a call; the hook of `sys.setprofile`."""
        if event != "call" or (called := _ours(frame)) is None:
            return
        self.functions[called] = None
        above = frame.f_back
        while above is not None and (caller := _ours(above)) is None:
            above = above.f_back
        if above is not None and caller is not None and caller[0] != called[0]:
            self.moves[caller, called] = None


def _ours(frame: FrameType) -> tuple[str, str] | None:
    code = frame.f_code
    if not code.co_filename.startswith(PACKAGE) or code.co_name == "__init__":
        return None
    return code.co_filename[len(PACKAGE) + 1 :], code.co_qualname


def traced(trace: Trace, call: Callable[[], Any]) -> Any:  # the call's answer
    """Trace one call."""
    sys.setprofile(trace)
    try:
        return call()
    finally:
        sys.setprofile(None)


def stored(name: str) -> dict[str, Any]:
    """A pod as the API server has it; the watch shows it before the question."""
    return pod(name, half(), meta={"resourceVersion": "7"})


async def by_plugin(world: Plugged, name: str, trace: Trace) -> None:
    """Propose, reserve and bind a pod."""
    world.create(stored(name))
    answer = traced(trace, lambda: world.propose(name))
    traced(trace, lambda: world.reserve(name, answer.nodes[0]))
    sys.setprofile(trace)
    try:
        await world.bind_by(name, DONE, answer.nodes[0])
    finally:
        sys.setprofile(None)


async def by_extender(world: Plugged, name: str, trace: Trace) -> None:
    """Filter and bind a pod."""
    made = world.create(stored(name))
    asked = {"Pod": made, "NodeNames": ["n1", "n2"]}
    body = json.dumps(asked).encode()
    found = json.loads(traced(trace, lambda: world.service.filter(body)))
    where = {
        "PodName": name,
        "PodNamespace": "team",
        "PodUID": f"uid-{name}",
        "Node": found["NodeNames"][0],
    }
    sys.setprofile(trace)
    try:
        await world.service.bind(json.dumps(where).encode())
    finally:
        sys.setprofile(None)


async def walked(seam: str, *, list_files: bool) -> None:
    """Print the figures of one seam."""
    world = Plugged()
    await world.start(node("n1"), device("n1"), node("n2"), device("n2"))
    go = by_plugin if seam == "plugin" else by_extender
    for number, kind in enumerate(("first of its kind", "same kind again")):
        trace = Trace()
        await go(world, f"web-{number}", trace)
        sys.stdout.write(
            f"{seam}, {kind}: {len(trace.files)} files, {len(trace.functions)} functions, "
            f"{len(trace.moves)} moves\n"
        )
        if list_files:
            for file in trace.files:
                names = ", ".join(name for at, name in trace.functions if at == file)
                sys.stdout.write(f"    {file}: {names}\n")


def main() -> None:
    """Print the figures of both seams."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true", help="the files and functions too")
    parser.add_argument("--seam", choices=SEAMS, help="only this one")
    given = parser.parse_args()
    if given.seam is not None:
        asyncio.run(walked(given.seam, list_files=given.list))
        return
    for seam in SEAMS:
        subprocess.run([sys.executable, __file__, *sys.argv[1:], "--seam", seam], check=True)


if __name__ == "__main__":
    main()
