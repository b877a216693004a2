"""Shared memory: robust against SIGKILL at any instruction, and against whatever is written to it."""

import contextlib
import os
import random
import subprocess
import time
from pathlib import Path

import pytest
from native_world import MIB, WAIT, World, built

from partage.agent.isolation import pages
from partage.agent.isolation.limits import Policy
from partage.model.errors import InvalidDocument

KILLS = int(os.environ.get("PARTAGE_KILLS", "30"))


def test_after_random_kills_nothing_hangs_and_nothing_is_lost(world: World) -> None:
    """Tenants are killed at random points; then each has its whole cap and gets its turn."""
    chance = random.Random(20)
    tenants = [
        world.tenant(slot, memory=512 * MIB, core=200, policy=Policy.BURST_SHARE)
        for slot in range(4)
    ]
    commands = [
        ["load", "--seconds", "60", "--depth", "4", "--size", "300000"],
        ["load", "--seconds", "60", "--how", "graph", "--threads", "2", "--size", "50000"],
        ["memory", "plain", str(MIB)],
        ["memory", "handle", str(4 * MIB)],
        ["memory", "pool", str(4 * MIB)],
    ]
    for _ in range(KILLS):
        process = chance.choice(tenants).start(*chance.choice(commands))
        time.sleep(chance.random() * 0.08)
        process.kill()
        process.communicate()

    for tenant in tenants:
        done = tenant.run("memory", "plain", str(32 * MIB))
        assert "total 536870912" in done.stdout, done.stderr
        assert tenant.run("load", "--seconds", "0.05").returncode == 0


@pytest.mark.parametrize("seed", range(1, 4))
def test_corrupt_memory_costs_fairness_alone(seed: int) -> None:
    """Under sanitizers, no content of page, account or limits breaks the library's readers."""
    build = built("native-asan", "address,undefined", "corrupt")

    done = subprocess.run(
        [build / "corrupt", str(seed), "400"],
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT,
    )

    assert (done.stdout, done.returncode) == ("ok\n", 0), done.stderr


@pytest.mark.parametrize("name", ["card-0", "account"])
def test_a_tenant_goes_on_while_its_pages_are_scribbled_over(world: World, name: str) -> None:
    """Garbage in shared memory neither crashes nor hangs the work."""
    chance = random.Random(7)
    tenant = world.tenant(core=500, policy=Policy.BURST_SHARE)
    process = tenant.start("load", "--seconds", "1", "--depth", "2", "--size", "100000")
    path = tenant.folder / name
    size = path.stat().st_size

    until = time.monotonic() + 1
    with path.open("r+b", buffering=0) as file:
        while time.monotonic() < until:
            for _ in range(20):
                file.seek(chance.randrange(size // 8) * 8)
                file.write(chance.choice([b"\xff" * 8, bytes(8), chance.randbytes(8)]))
            time.sleep(0.005)
    out, error = process.communicate(timeout=WAIT)

    assert process.returncode == 0, error
    assert "done" in out


def test_the_agent_reads_any_page(tmp_path: Path) -> None:
    """Seats and processes are read from garbage as well as from order; a page cut off is named."""
    page, account = tmp_path / "page", tmp_path / "account"
    pages.make_page(page)
    pages.make_account(account)
    assert pages.read_page(page) == ()
    assert pages.read_account(account) == ()

    chance = random.Random(3)
    for path in (page, account):
        content = chance.randbytes(path.stat().st_size)
        path.write_bytes(path.read_bytes()[:8] + content[8:])
    assert pages.read_page(page)
    assert pages.read_account(account)

    for path in (page, account):
        os.truncate(path, 100)
    for reader, path in ((pages.read_page, page), (pages.read_account, account)):
        with pytest.raises(InvalidDocument, match="cut off"):
            reader(path)
    page.write_bytes(bytes(4096))
    with pytest.raises(InvalidDocument, match="written over"):
        pages.read_page(page)


def test_a_page_in_use_is_never_made_again(tmp_path: Path) -> None:
    """An agent that restarts finds the page that tenants have mapped."""
    page = tmp_path / "page"
    pages.make_page(page)
    inode = page.stat().st_ino
    with page.open("r+b") as file:
        file.seek(64)
        file.write((9).to_bytes(8, "little"))

    pages.make_page(page)
    assert page.stat().st_ino == inode
    assert [seat.container for seat in pages.read_page(page)] == [9]

    pages.reset_seat(page, 0)
    assert pages.read_page(page) == ()
    with contextlib.suppress(FileNotFoundError):
        (tmp_path / ".page").unlink()
