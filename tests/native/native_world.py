"""A modelled card with tenants, built from the agent's own files and the stand-in driver."""

import os
import socket
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from partage.agent.isolation.account import make_account
from partage.agent.isolation.amounts import NAME, make_amounts
from partage.agent.isolation.held_files import HeldFiles
from partage.agent.isolation.library import install
from partage.agent.isolation.limits import CardLimits, ContainerLimits, write
from partage.agent.isolation.seats import give_seat, make_seats
from partage.vendors.wishes import Policy, Priority

MIB = 2**20
SANITIZERS = {"asan": "address,undefined", "tsan": "thread"}
WAIT = 600
"""Seconds until a program that should have ended long ago, or what should have come true, is given up."""


def attempts() -> Iterator[int]:
    """Numbers from 0 on until `WAIT` is over, which fails: on a busy machine one of many measurements was undisturbed."""
    end = time.monotonic() + WAIT
    number = 0
    while time.monotonic() < end:
        yield number
        number += 1
    raise AssertionError(f"not once in {number} attempts and {WAIT} s")


def within(quota: float, served_ns: float, seconds: float) -> None:
    """Check that what was received in so long is nearer the quota than the whole card; 60 ms may have been ahead."""
    assert 0 < served_ns < (1 + quota) / 2 * seconds * 1e9 + 60e6


def uuid(card: int) -> str:
    """Name of a modelled card."""
    return f"GPU-fafafafa-fafa-fafa-fafa-fafafafafa{card:02x}"


@dataclass
class Tenant:
    """A container's folder, and programs started in it."""

    folder: Path
    library: Path
    environment: dict[str, str]
    programs: Path

    def start(self, *command: str, **options: object) -> subprocess.Popen[str]:
        """Start one of the test programs under the library."""
        program = [str(self.programs / command[0]), *command[1:]]
        return subprocess.Popen(
            program,
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            **options,  # type: ignore[call-overload]
        )

    def holding(self, how: str, size: int) -> subprocess.Popen[str]:
        """Start the program of memory, and leave it once it has counted all and holds it."""
        process = self.start("memory", how, str(size), "dlsym", "hold")
        assert process.stdout is not None
        while not process.stdout.readline().startswith("total"):
            pass
        return process

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run one of the test programs to its end."""
        process = self.start(*command)
        out, error = process.communicate(timeout=WAIT)
        return subprocess.CompletedProcess(process.args, process.returncode, out, error)


def sanitized(tenant: Tenant, kind: str) -> None:
    """Let a tenant's programs start with the runtime of a sanitizer; without one nothing is changed."""
    if kind:
        runtime = subprocess.check_output(["gcc", f"-print-file-name=lib{kind}.so"], text=True)
        tenant.environment["LD_PRELOAD"] = f"{runtime.strip()} {tenant.library}"
        tenant.environment["TOOL_WAY"] = "linked"  # a sanitizer has a dlsym of its own
        tenant.environment["ASAN_OPTIONS"] = "detect_leaks=0:exitcode=66"
        tenant.environment["TSAN_OPTIONS"] = "exitcode=66"


class Meter:
    """What the modelled card itself counted: device time, whatever the processes around it made of theirs."""

    HELLO, SERVED = 1, 14  # native/fake/wire.h

    def __init__(self, path: Path) -> None:
        self._link = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._link.connect(str(path))
        self._ask(self.HELLO, 1 << 60 | os.getpid())

    def _ask(self, kind: int, argument: int) -> tuple[int, int]:
        self._link.send(struct.pack("<IIQQQQ", kind, 0, 0, 0, argument, 0))
        _, _, first, second = struct.unpack("<iIQQ", self._link.recv(24))
        return first, second

    def served(self, *processes: subprocess.Popen[str]) -> list[int]:
        """Device ns of each process that runs, since it started."""
        return [self._ask(self.SERVED, process.pid)[0] for process in processes]

    def until(self, ns: float, process: subprocess.Popen[str]) -> int:
        """Device ns that a process has received, once they are more than these."""
        served = 0
        for _ in attempts():
            (served,) = self.served(process)
            if served > ns:
                break
            time.sleep(0.01)
        return served

    def some_span(
        self,
        seconds: float,
        right: Callable[..., bool],
        *processes: subprocess.Popen[str],
    ) -> None:
        """Wait for a span of this length in which `right` holds of the parts of the card that each received.

        A busy machine wakes processes late, and a card without work gives none of its time; so one span shows
        what a tenant can get, and `right` asks for little. What it must not get is judged over all the time that it ran.
        """
        for _ in attempts():
            began, before = time.monotonic(), self.served(*processes)
            time.sleep(seconds)
            after = self.served(*processes)
            span = (time.monotonic() - began) * 1e9
            parts = [(now - then) / span for now, then in zip(after, before, strict=True)]
            if right(*parts):
                return

    def held(self, quota: float, process: subprocess.Popen[str]) -> None:
        """Check that a process goes on, and is nearer its quota than the whole card.

        How near is judged in virtual time. Here a library that holds nothing must fail, and a busy machine must not make one
        that works: where a launch is interrupted while it is made, less is counted than the card did.

        Args:
            quota: part of the card.
            process: has launched, and always wants more.
        """
        began = time.monotonic()
        (before,) = self.served(process)
        after = self.until(before + 0.3e9, process)
        within(quota, after - before, time.monotonic() - began)

    def close(self) -> None:
        """Let the card go."""
        self._link.close()


class World:
    """One modelled card and its tenants, in one folder."""

    def __init__(
        self,
        folder: Path,
        build: Path,
        memory_bytes: int = 16 * 2**30,
        cards: int = 1,
        *,
        by_work: bool = False,
    ) -> None:
        """Start the card.

        Args:
            folder: for everything.
            build: where the programs are.
            memory_bytes: of each card.
            cards: how many.
            by_work: marks show the card's time without that in which nothing was on it: what is measured between them does
                not depend on how late this machine lets a program launch.
        """
        self.folder = folder
        self.build = build
        self.socket = folder / "gpu"
        self.cards = cards
        for card in range(cards):
            make_seats(folder / f"card-{card}")
        self.card = subprocess.Popen(
            [
                *(str(build / "fake-card"), str(self.socket), str(cards), str(memory_bytes)),
                *(["work"] if by_work else []),
            ],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.card.stdout is not None
        assert self.card.stdout.readline() == "ready\n"
        self.meter = Meter(self.socket)

    def close(self) -> None:
        """End the card; programs that still run see the driver fail."""
        self.meter.close()
        self.card.kill()
        self.card.communicate()

    def plain_environment(self) -> dict[str, str]:
        """The driver without the library."""
        names = {"FAKE_GPU_SOCKET": str(self.socket), "LD_LIBRARY_PATH": str(self.build / "fake")}
        return {**os.environ, **names}

    def tenant(
        self,
        slot: int = 0,
        *,
        memory: int = 0,
        core: int = 500,
        policy: Policy | None = None,
        priority: Priority = Priority.ORDINARY,
        context: int = 0,
        swap: int = 0,
        library: Path | None = None,
        programs: Path | None = None,
    ) -> Tenant:
        """A container with these limits on each card; without a policy one that is gated wherever it can be."""
        policy = policy or (Policy.BURST_SHARE if core else Policy.BEST_EFFORT)
        return self.tenant_of(
            slot,
            *(
                CardLimits(
                    uuid(i), f"card-{i}", slot, memory, core, policy, priority, swap, context
                )
                for i in range(self.cards)
            ),
            library=library,
            programs=programs,
        )

    def tenant_of(
        self,
        slot: int,
        *cards: CardLimits,
        library: Path | None = None,
        programs: Path | None = None,
    ) -> Tenant:
        """A container with limits of its own on each card."""
        folder = self.folder / f"tenant-{slot}"
        folder.mkdir()
        for card in cards:
            (folder / card.seats).symlink_to(self.folder / card.seats)
            give_seat(folder / card.seats, card, HeldFiles())
        make_account(folder / "account")
        installed = install(library or self.build / "libpartage-isolation.so", folder)
        write(folder / "limits", ContainerLimits(slot + 1, cards))
        make_amounts(folder / NAME, cards)
        environment = {**self.plain_environment(), "LD_PRELOAD": str(installed)}
        return Tenant(folder, installed, environment, programs or self.build)
