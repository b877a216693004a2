"""Structured output: the same document as JSON or YAML."""

from typing import Any

import click
import msgspec
import yaml

from partage.cli.visible import COMMANDS


def to_json(data: object) -> str:
    """The document as indented JSON."""
    text = msgspec.json.format(msgspec.json.encode(data), indent=2).decode()
    return COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def to_yaml(data: object) -> str:
    """The document as YAML, keys in their order."""
    plain: Any = msgspec.to_builtins(data)
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100)


def structured(output: str, data: object) -> bool:
    """Print the document if JSON or YAML was requested; whether it was."""
    if output not in ("json", "yaml"):
        return False
    click.echo(to_json(data) if output == "json" else to_yaml(data), nl=output == "json")
    return True
