"""Structured output: the same document as JSON or YAML."""

from typing import Any

import click
import msgspec
import yaml

from partage.cli.visible import COMMANDS


class _Dumper(yaml.SafeDumper):
    """Quotes texts that would command a terminal, so that they may be written by number."""


def _written(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    quotes = '"' if COMMANDS.search(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=quotes)


_Dumper.add_representer(str, _written)


def to_json(data: object) -> str:
    """The document as indented JSON."""
    return _numbered(msgspec.json.format(msgspec.json.encode(data), indent=2).decode())


def to_yaml(data: object) -> str:
    """The document as YAML, keys in their order."""
    plain: Any = msgspec.to_builtins(data)
    return _numbered(
        yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    )


def _numbered(text: str) -> str:
    """The text with commands by their numbers, as JSON and YAML have them between quotes."""
    return COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def structured(output: str, data: object) -> bool:
    """Print the document if JSON or YAML was requested; whether it was."""
    if output not in ("json", "yaml"):
        return False
    click.echo(to_json(data) if output == "json" else to_yaml(data), nl=output == "json")
    return True
