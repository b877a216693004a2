"""A document as YAML."""

from typing import Any

import msgspec
import yaml

from partage.cli.visible import COMMANDS


class _Dumper(yaml.SafeDumper):
    """Quotes texts that would command a terminal, so that they may be written by number."""


def _written(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    quotes = '"' if COMMANDS.search(text) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=quotes)


_Dumper.add_representer(str, _written)


def to_yaml(data: object) -> str:
    """The document as YAML, keys in their order."""
    plain: Any = msgspec.to_builtins(data)
    text = yaml.dump(plain, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100)
    return COMMANDS.sub(lambda found: f"\\U{ord(found[0]):08x}", text)
