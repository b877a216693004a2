"""On a narrow terminal tables stay readable: names and numbers whole, bars left out."""

import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from partage.cli.main import main
from partage.cli.tables import PlainTable, screen
from partage.cli.top import holders
from partage.vendors.traits import short_models

EXAMPLES = str(Path(__file__).parents[2] / "examples")
COMMANDS = {
    "nodes": ["top", "nodes", "-f", EXAMPLES],
    "cards": ["top", "cards", "-f", EXAMPLES],
    "pods": ["top", "pods", "-f", EXAMPLES],
    "card": ["inspect", "a100-node", "-f", EXAMPLES],
    "why": ["explain", "waiting/too-big-for-t4", "-f", EXAMPLES],
    "decisions": ["schedule", f"{EXAMPLES}/mixed"],
}


def shown(name: str, width: int) -> list[str]:
    """What a terminal of so many columns gets, without colours."""
    env = {"FORCE_COLOR": "1", "COLUMNS": str(width), "NO_COLOR": None}
    done = CliRunner().invoke(main, COMMANDS[name], env=env)
    assert done.exit_code in (0, 3), done.output
    return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("width", [60, 80, 120])
@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_is_lost_or_broken(name: str, width: int) -> None:
    """Every word of the wide table is there, whole, but bars, headings of empty columns and what short names of models lack."""
    wide = {
        word
        for line in shown(name, 400)
        for word in short_models(line).split()
        if len(word) <= 24 and not set(word) & set("█░")
    }
    narrow = shown(name, width)

    assert wide - {"INSTANCES"} <= {short_models(word) for line in narrow for word in line.split()}
    assert not [line for line in narrow if line != line.rstrip()]


@pytest.mark.parametrize(
    ("name", "width"), [("nodes", 80), ("cards", 120), ("card", 80), ("why", 80)]
)
def test_a_usual_terminal_is_wide_enough(name: str, width: int) -> None:
    """No line runs on."""
    assert max(map(len, shown(name, width))) <= width


@pytest.mark.parametrize(("width", "drawn"), [(80, ""), (160, "░")])
def test_bars_are_drawn_where_there_is_room(width: int, drawn: str) -> None:
    """Where they are not, their heading stays above the numbers."""
    table = "\n".join(shown("decisions", width))

    assert set("░") & set(table) == set(drawn)
    assert re.search(r"COMPUTE +MEMORY", table)
    assert "77.8Gi of 80Gi" in table


def test_a_table_that_cannot_fit_runs_on() -> None:
    """As kubectl's do; numbers stay whole."""
    lines = shown("cards", 40)

    assert max(map(len, lines)) > 40
    assert any("0% of 100%" in line and "of 40Gi" in line for line in lines)


@pytest.mark.parametrize(
    ("model", "short"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA H100 80GB HBM3", "H100 80GB"),
        ("Tesla-V100-SXM2-32GB", "V100-32GB"),
        ("AMD-Instinct-MI300X", "MI300X"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("Ascend-910B3", "Ascend-910B3"),
        ("nvidia", "nvidia"),
        ("3 x NVIDIA A100-SXM4-40GB, Tesla-T4", "3 x A100-40GB, T4"),
    ],
)
def test_models_get_short_before_texts_are_folded(model: str, short: str) -> None:
    """Only where the table would be too wide."""

    def printed(width: int) -> str:
        table = PlainTable("NODE", "MODEL", "STATE")
        table.add_row("n" * 20, model, "ok")
        console = screen()
        console.width = width
        with console.capture() as captured:
            console.print(table)
        return captured.get()

    whole = 20 + 2 + max(len(model), len("MODEL")) + 2 + len("STATE")
    assert model in printed(whole)
    if model != short:
        assert f" {short} " in printed(whole - 1)
        assert model not in printed(whole - 1)


@pytest.mark.parametrize(
    ("pods", "claims", "told"),
    [(0, 0, "0"), (2, 0, "2"), (0, 1, "1 claim"), (0, 5, "5 claims"), (2, 5, "2, 5 claims")],
)
def test_claims_are_counted_beside_pods(pods: int, claims: int, told: str) -> None:
    """A node that claims have filled does not look as if nobody were there."""
    assert holders(pods, claims) == told
