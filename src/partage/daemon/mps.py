"""Looks after the node's MPS control daemon: `partage agent --isolation mps`.

    every look: ask the daemon ──answers──> up
                     └──no answer──> start it, ask again ──no answer──> down: shares are refused meanwhile

The daemon outlives the agent. The next agent asks and finds it, like a daemon that an operator started in the same
folder. When a daemon ends, the driver ends the contexts of all processes that used it. So the agent starts the daemon
again for later processes, and counts the starts.

Source: NVIDIA's Multi-Process Service (control daemon, its commands). Run by hand on an H200 with driver 580.159.
"""

import asyncio
import contextlib
import itertools
import logging
import os
import signal
import stat
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from prometheus_client import Counter, Gauge

from partage.agent.metrics import Tallies
from partage.agent.notes import Code, Notes
from partage.agent.trouble import Rounds

_LOG: Final = logging.getLogger("partage.daemon")
_QUESTION: Final = b"get_default_active_thread_percentage\n"
"""Changes nothing, and every running daemon answers it."""
_PATIENCE: Final = 10.0
_PERIOD: Final = 10.0
"""Seconds between two questions."""
_GOODBYE: Final = 1.0
"""Seconds for the rest of what an ended program wrote."""
_ANSWER: Final = 2**12
"""Bytes of an answer. Root in a container may answer in the daemon's place, without an end."""
_MOST_REMOVED: Final = 100_000
"""Files and folders that are removed of what a tenant left; the rest stays where the daemon does not look."""
_MODES: Final[Mapping[str, int]] = {"pipe": 0o755, "log": 0o755, "shm": 0o1777}
"""Folders of the daemon; every user may put files into shared memory and remove their own."""


class MpsDaemon:
    """The MPS daemon of one node; `run` it. `problem` is why processes cannot reach it; empty if they can."""

    name: Final = "mps"

    def __init__(self, folder: Path, control: str = "nvidia-cuda-mps-control") -> None:
        """A daemon that was not asked yet.

        `folder`: of its sockets, log and shared memory; containers have it under the same path. `control`: the driver's
        program, which runs as the daemon and also asks it.
        """
        self._folder, self._control = folder, control
        self._was_up = False
        self._starts: Counter | None = None
        self._up: Gauge | None = None
        self._notes = Notes()
        self.problem = "NVIDIA's MPS daemon was not asked yet"

    def tell(self, tallies: Tallies, notes: Notes) -> None:
        """Report the daemon's state to these from now on."""
        self._notes = notes
        self._up = Gauge(
            "partage_agent_mps_up",
            "Whether NVIDIA's MPS control daemon answers.",
            registry=tallies.registry,
        )
        self._starts = Counter(
            "partage_agent_mps_starts",
            "How often the agent started NVIDIA's MPS control daemon.",
            registry=tallies.registry,
        )

    async def run(self) -> None:
        """Ask the daemon, and start it if it does not answer, until cancelled."""
        await Rounds("NVIDIA's MPS daemon cannot be asked").every(_PERIOD, self._round)

    async def _round(self) -> None:
        self._take(await self.look())

    async def look(self) -> str:
        """Ask the daemon, and start it if needed. Returns why it still does not answer; empty if it does."""
        if not await self._call((), _QUESTION):
            return ""
        if self._was_up:
            _LOG.warning("NVIDIA's MPS daemon is gone; processes that used it have failed")
        try:
            for name, mode in _MODES.items():
                folder = self._folder / name
                folder.mkdir(parents=True, exist_ok=True)
                folder.chmod(mode)
            await asyncio.to_thread(_clear, self._folder, self._folder / "pipe")
        except OSError as error:
            return f"folder {self._folder} of NVIDIA's MPS daemon cannot be made: {error.strerror}"
        if self._starts is not None:
            self._starts.inc()
        why = await self._call(("-d",), b"")
        return why or await self._call((), _QUESTION)

    def _take(self, problem: str) -> None:
        if problem and problem != self.problem:
            _LOG.warning("%s", problem)
        self.problem, self._was_up = problem, not problem
        if self._up is not None:
            self._up.set(not problem)
        self._notes.say(self.name, Code.MPS, (problem,) if problem else ())

    async def _call(self, options: tuple[str, ...], said: bytes) -> str:
        """Run the driver's program. Returns why that failed; empty if it succeeded."""
        env = {
            **os.environ,
            "CUDA_MPS_PIPE_DIRECTORY": f"{self._folder}/pipe",
            "CUDA_MPS_LOG_DIRECTORY": f"{self._folder}/log",
        }
        try:
            process = await asyncio.create_subprocess_exec(
                self._control,
                *options,
                env=env,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            return (
                f"{self._control} cannot be run: {error.strerror}; it comes with NVIDIA's driver"
            )
        try:
            async with asyncio.timeout(_PATIENCE):
                answer = await _answered(process, said)
                if len(answer) <= _ANSWER:
                    await process.wait()
        except TimeoutError:
            await _end(process)
            return f"NVIDIA's MPS daemon does not answer within {_PATIENCE:.0f} s"
        if len(answer) > _ANSWER:
            await _end(process)
            return f"NVIDIA's MPS daemon answers with more than {_ANSWER} bytes"
        if process.returncode or (said and not answer.strip()):
            lines = answer.decode(errors="replace").strip().replace("\n", "; ")[:200]
            text = "".join(char if char.isprintable() else "?" for char in lines)
            return f"NVIDIA's MPS daemon does not answer: {text or f'status {process.returncode}'}"
        return ""


async def _answered(process: asyncio.subprocess.Process, said: bytes) -> bytes:
    """The beginning of the answer to a question: all of it, or more than `_ANSWER` bytes."""
    question, lines = process.stdin, process.stdout
    if question is None or lines is None:  # both are pipes
        return b""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it asks for no input
        question.write(said)
        await question.drain()
    question.close()
    answer = b""
    while len(answer) <= _ANSWER and (piece := await lines.read(_ANSWER)):
        answer += piece
    return answer


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        with contextlib.suppress(
            ProcessLookupError
        ):  # its children too; a daemon has its own group
            os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_GOODBYE):
            # asyncio reports its end once its output is read.
            while process.stdout is not None and await process.stdout.read(2**16):
                pass
            await process.wait()


def _clear(folder: Path, pipe: Path) -> None:
    """Remove everything from the daemon's folder of sockets but files and sockets, as it has no others there. Raises `OSError`.

    Root in a container may leave a link or a device file, and the daemon would write where it leads. The daemon would
    wait for a pipe without end, and a folder would keep it from making its own file.
    """
    numbers = itertools.count()
    gone: Path | None = None
    with os.scandir(pipe) as entries:
        for one in entries:
            mode = one.stat(follow_symlinks=False).st_mode
            if stat.S_ISDIR(mode):
                gone = gone or Path(tempfile.mkdtemp(prefix=".gone-", dir=folder))
                Path(one.path).rename(gone / str(next(numbers)))
            elif not stat.S_ISREG(mode) and not stat.S_ISSOCK(mode):
                Path(one.path).unlink(missing_ok=True)
    # A process in one of the folders may go on to fill it. That is out of the way, and may stay.
    with contextlib.suppress(OSError):
        while gone is not None and next(numbers) < _MOST_REMOVED:
            if not _emptied(gone, numbers):
                gone.rmdir()
                return


def _emptied(folder: Path, numbers: Iterator[int]) -> bool:
    """Remove what is in a folder, and move what is in its folders up, so that depth costs nothing; False: it was empty. Raises `OSError`."""
    any_there = False
    with os.scandir(folder) as entries:
        for one in entries:
            any_there = True
            if next(numbers) > _MOST_REMOVED:
                return True
            if not one.is_dir(follow_symlinks=False):
                Path(one.path).unlink()
                continue
            with os.scandir(one.path) as below:
                for deeper in below:
                    if (number := next(numbers)) > _MOST_REMOVED:
                        return True
                    Path(deeper.path).rename(folder / str(number))
            Path(one.path).rmdir()
    return any_there
