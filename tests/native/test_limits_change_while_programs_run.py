"""Amounts that the agent changes hold for programs that run already, and a page that is none of its own closes the card."""

from dataclasses import replace
from pathlib import Path

import pytest
from native_world import MIB, Tenant, World, uuid

from partage.agent.isolation.account import read_account
from partage.agent.isolation.amounts import NAME, make_amounts, read_amounts, set_amounts
from partage.agent.isolation.limits import CardLimits, read
from partage.model.errors import InvalidDocument

CAP = 1024 * MIB


def card_of(tenant: Tenant) -> CardLimits:
    """The first card of a container, as its limits have it."""
    return read((tenant.folder / "limits").read_text()).cards[0]


def put(tenant: Tenant, memory: int, core: int = 500) -> None:
    """Put other amounts in force."""
    card = replace(card_of(tenant), memory_bytes=memory, core_milli=core)
    set_amounts(tenant.folder / NAME, 0, card)


@pytest.mark.parametrize(
    "path", ["plain", "pool", "handle", "array", "module", "graph", "node", "capture"]
)
def test_a_cap_that_changes_holds_for_the_next_allocation(world: World, path: str) -> None:
    """Raised, then lowered below what it was: each time the same process gets exactly that."""
    tenant = world.tenant(memory=CAP)
    running = tenant.start("memory", path, str(8 * MIB), "dlsym", "hold")
    assert running.stdin is not None
    assert running.stdout is not None
    found = []
    for cap in (CAP, CAP + 256 * MIB, 512 * MIB):
        put(tenant, cap)
        if cap != CAP:
            running.stdin.write("\n")
            running.stdin.flush()
        while not (line := running.stdout.readline()).startswith("total"):
            assert line, running.stderr
        found.append(int(line.split()[1]))
    running.communicate()

    assert found == [CAP, CAP + 256 * MIB, 512 * MIB]


def test_what_is_in_use_stays_when_a_cap_is_lowered(world: World) -> None:
    """Nothing is taken away; the next allocation is refused, by another process of the container as well."""
    tenant = world.tenant(memory=CAP)
    running = tenant.holding("plain", 64 * MIB)

    put(tenant, 512 * MIB)

    (process,) = read_account(tenant.folder / "account", 1)
    assert process.cards[0].counted == CAP
    assert "driver error 2" in tenant.run("memory", "plain", str(MIB)).stderr
    running.communicate()


def test_what_a_program_is_shown_of_its_card_changes_too(world: World) -> None:
    """The driver's own calls tell the cap of this moment."""
    tenant = world.tenant(memory=CAP)
    assert f"info {CAP} {CAP} {CAP}\n" in tenant.run("memory", "show").stdout
    put(tenant, 2 * CAP)

    assert f"info {2 * CAP} {2 * CAP} {2 * CAP}\n" in tenant.run("memory", "show").stdout


def test_limits_without_a_page_hold_as_they_are(world: World) -> None:
    """An agent that changes no amounts wrote them."""
    tenant = world.tenant(memory=CAP)
    (tenant.folder / NAME).unlink()

    assert f"total {CAP}\n" in tenant.run("memory", "plain", str(32 * MIB)).stdout


@pytest.mark.parametrize("what", ["short", "mark", "no cap", "no quota", "too much", "folder"])
def test_a_page_that_is_not_of_the_container_closes_the_card(world: World, what: str) -> None:
    """Such a page never opens more than the limits do."""
    tenant = world.tenant(memory=CAP)
    page = tenant.folder / NAME
    data = bytearray(page.read_bytes())
    page.unlink()
    if what == "short":
        del data[-1:]
    elif what == "mark":
        data[0] ^= 1
    elif what == "no cap":
        data[64:72] = bytes(8)
    elif what == "no quota":
        data[72:80] = bytes(8)
    elif what == "too much":
        data[72:80] = (1001).to_bytes(8, "little")
    if what == "folder":
        page.mkdir()
    else:
        page.write_bytes(data)

    done = tenant.run("memory", "plain", str(32 * MIB))

    assert done.returncode != 0
    assert "the card stays closed" in done.stderr


def test_the_agent_reads_back_what_it_wrote(tmp_path: Path) -> None:
    """It does not take a page for that of other limits."""
    card = CardLimits(uuid(0), "card-0", 3, CAP, 300)
    other = replace(card, uuid=uuid(1), memory_bytes=2 * CAP, core_milli=400)
    page = tmp_path / NAME
    make_amounts(page, (card, other))
    assert read_amounts(page, (card, other)) == (card, other)

    set_amounts(page, 1, replace(other, memory_bytes=CAP, core_milli=900))

    now = read_amounts(page, (card, other))
    assert now == (card, replace(other, memory_bytes=CAP, core_milli=900))
    with pytest.raises(InvalidDocument, match="not the page of this container"):
        read_amounts(page, (replace(card, memory_bytes=0),))
