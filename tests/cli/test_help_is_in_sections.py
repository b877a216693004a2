"""The help of commands with many options has headings, and begins with examples."""

import pytest
from click.testing import CliRunner

from partage.cli.main import main

SECTIONS = {
    "agent": ("Node", "Discovery", "Container runtime", "Isolation", "Kubelet", "Logging"),
    "scheduler": ("Cluster", "Serving", "Deciding", "Controllers", "Leading"),
    "webhook": ("Cluster", "Serving", "Admission"),
    "top": ("Who answers, and how", "Cluster"),
    "explain": ("Who answers, and how", "Cluster"),
    "inspect": ("Who answers, and how", "Cluster"),
}
FEW = 20


@pytest.mark.parametrize("command", SECTIONS)
def test_options_are_under_headings(command: str) -> None:
    """Each option once, none of the sections too long to be looked through."""
    lines = CliRunner().invoke(main, [command, "--help"]).stdout.splitlines()
    headings = [line[:-1] for line in lines if line.endswith(":") and line[:1].strip()]
    options = [line.split()[0] for line in lines if line.startswith("  -")]

    assert set(SECTIONS[command]) <= set(headings)
    assert len(options) == len(set(options))
    parts = "\n".join(lines).split(":\n  -")
    assert all(part.count("\n  -") < FEW for part in parts)


@pytest.mark.parametrize(
    "command", ["agent", "scheduler", "schedule", "explain", "top", "inspect"]
)
def test_help_has_examples_that_parse(command: str) -> None:
    """Every option of an example is one of the command's."""
    told = CliRunner().invoke(main, [command, "--help"]).stdout
    examples = told.split("  Examples:\n")[1].split("\n\n")[0].splitlines()
    context = main.make_context("partage", [command], resilient_parsing=True)
    found = main.get_command(context, command)

    assert found is not None
    known = {name for param in found.params for name in param.opts}
    assert len(examples) >= 2
    for example in examples:
        words = example.split(f"partage {command}")[1].split()
        assert {word for word in words if word.startswith("-") and word != "-"} <= known
