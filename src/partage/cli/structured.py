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
    text = msgspec.json.format(msgspec.json.encode(data), indent=2).decode()
    return COMMANDS.sub(lambda found: _units(found[0]), text)


def _units(char: str) -> str:
    """A character by its numbers of 16 bits."""
    code = char.encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{code[at : at + 4]}" for at in range(0, len(code), 4))


def to_yaml(data: object) -> str:
    """The document as YAML, keys in their order."""
    plain: Any = msgspec.to_builtins(data)
    text = yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return COMMANDS.sub(lambda found: f"\\U{ord(found[0]):08x}", text)


def structured(output: str, data: object) -> bool:
    """Print the document if JSON or YAML was requested; whether it was."""
    if output not in ("json", "yaml"):
        return False
    click.echo(to_json(data) if output == "json" else to_yaml(data), nl=output == "json")
    return True
