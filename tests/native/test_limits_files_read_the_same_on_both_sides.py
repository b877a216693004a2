"""The limits file: what the agent writes, the library reads; what one refuses, the other refuses."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from native_world import World, uuid

from partage.agent.isolation.limits import CardLimits, ContainerLimits, read, render, write
from partage.model.errors import InvalidDocument, InvalidValue
from partage.vendors.wishes import Policy, Priority

CARD = CardLimits(uuid(0), "card-0", 3, 2**32, 300)
GOOD = render(ContainerLimits(0x1F, (CARD,)))
BROKEN = {
    "empty": "",
    "cut off": GOOD[:-5],
    "no end": GOOD.replace("end\n", ""),
    "more after the end": GOOD + "x\n",
    "another version": GOOD.replace("limits 2", "limits 3"),
    "no container": GOOD.replace("container 1f", "container 0"),
    "a path": GOOD.replace("account account", "account ../account"),
    "a hidden file": GOOD.replace("seats card-0", "seats .card"),
    "a slot too high": GOOD.replace("slot 3", "slot 63"),
    "more than a card": GOOD.replace("core 300", "core 1001"),
    "not a number": GOOD.replace("core 300", "core 3e2"),
    "leading zero": GOOD.replace("core 300", "core 0300"),
    "negative": GOOD.replace("memory 4294967296", "memory -1"),
    "too large": GOOD.replace("memory 4294967296", "memory 99999999999999999999"),
    "an unknown policy": GOOD.replace("fixed-share", "fair-share"),
    "a quota of zero": GOOD.replace("core 300", "core 0"),
    "a carriage return": GOOD.replace("\n", "\r\n"),
    "two blanks": GOOD.replace("slot 3", "slot  3"),
    "the card twice": GOOD.replace("end\n", GOOD[GOOD.index("card ") :]),
}


@pytest.mark.parametrize("text", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_file_closes_the_card(world: World, text: str) -> None:
    """The library refuses cuInit with a line on standard error; the agent's reader names the line."""
    tenant = world.tenant()
    (tenant.folder / "limits").unlink()
    (tenant.folder / "limits").write_text(text, encoding="ascii", newline="")

    done = tenant.run("memory", "show")

    assert done.returncode == 3
    assert "driver error 800" in done.stderr
    assert "partage: " in done.stderr
    with pytest.raises(InvalidDocument, match="line"):
        read(text)


@pytest.mark.parametrize("name", ["limits", "account", "card-0"])
def test_a_missing_file_closes_the_card(world: World, name: str) -> None:
    """What the agent mounts must be there; its absence is not freedom."""
    tenant = world.tenant()
    (tenant.folder / name).unlink()

    done = tenant.run("memory", "show")

    assert "driver error 800" in done.stderr
    assert name in done.stderr


def test_a_card_without_limits_closes_all(world: World) -> None:
    """A device that the driver shows and the file does not name is refused."""
    tenant = world.tenant()
    other = CardLimits("GPU-other", "card-0", 0, 0, 100)
    write(tenant.folder / "limits", ContainerLimits(1, (other,)))

    done = tenant.run("memory", "show")

    assert "the driver shows a device that the file does not name" in done.stderr


CARDS = st.builds(
    CardLimits,
    uuid=st.from_regex(r"GPU-[0-9a-f]{1,40}", fullmatch=True),
    seats=st.from_regex(r"card-[0-9]{1,3}", fullmatch=True),
    slot=st.integers(0, 62),
    memory_bytes=st.integers(0, 2**62 - 1),
    core_milli=st.integers(1, 1000),
    policy=st.sampled_from(Policy),
    priority=st.sampled_from(Priority),
    swap_bytes=st.integers(0, 2**62 - 1),
    context_bytes=st.integers(0, 2**62 - 1),
)


@given(st.integers(1, 2**64 - 1), st.lists(CARDS, max_size=4, unique_by=lambda card: card.uuid))
def test_what_is_written_is_read_back(container: int, cards: list[CardLimits]) -> None:
    """Rendering and reading are inverse."""
    limits = ContainerLimits(container, tuple(cards))

    assert read(render(limits)) == limits


def test_limits_of_an_older_agent_are_read_and_written_as_they_were() -> None:
    """Its containers go on with their own library; which they have is known by the version."""
    old = GOOD.replace("limits 2", "limits 1").replace("seats card-0", "page card-0")

    limits = read(old)

    assert limits.version == 1
    assert render(limits) == old


@given(st.text(alphabet=st.characters(max_codepoint=127)))
def test_any_text_is_read_or_refused(text: str) -> None:
    """No text is a traceback."""
    for document in (text, GOOD.replace("3", text, 1)):
        with contextlib.suppress(InvalidDocument):
            assert render(read(document)) == document


@pytest.mark.parametrize(
    "change",
    [{"slot": 63}, {"core_milli": -1}, {"uuid": "a b"}, {"seats": "a/b"}, {"core_milli": 0}],
    ids=str,
)
def test_values_out_of_range_are_never_written(change: dict[str, object]) -> None:
    """What the library would refuse cannot be made."""
    fields: dict[str, object] = {"uuid": "G", "seats": "p", "slot": 0, "memory_bytes": 0}

    with pytest.raises(InvalidValue):
        CardLimits(**{**fields, "core_milli": 1, **change})  # type: ignore[arg-type]


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    """Nothing but the finished file is left, and it is read-only."""
    path = tmp_path / "limits"
    write(path, ContainerLimits(1, (CARD,)))
    write(path, ContainerLimits(2, (CARD,)))

    assert [entry.name for entry in tmp_path.iterdir()] == ["limits"]
    assert path.stat().st_mode & 0o777 == 0o444
    assert read(path.read_text()).container == 2
