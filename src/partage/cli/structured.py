"""Structured output: the same document as JSON or YAML."""

import click
import msgspec

from partage.cli.visible import COMMANDS


def to_json(data: object) -> str:
    """The document as indented JSON."""
    text = msgspec.json.format(msgspec.json.encode(data), indent=2).decode()
    return COMMANDS.sub(lambda found: _units(found[0]), text)


def _units(char: str) -> str:
    """A character by its numbers of 16 bits."""
    code = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{code[at : at + 4]}" for at in range(0, len(code), 4))


def structured(output: str, data: object) -> bool:
    """Print the document if JSON or YAML was requested; whether it was."""
    if output not in ("json", "yaml"):
        return False
    if output == "json":
        click.echo(to_json(data))
    else:
        from partage.cli.yaml_output import to_yaml  # noqa: PLC0415 # most answers are tables

        click.echo(to_yaml(data), nl=False)
    return True
