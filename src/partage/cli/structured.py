"""Structured output: the same document as JSON or YAML."""

import re
from typing import Any, Final

import msgspec
import yaml

_COMMANDS: Final = re.compile("[\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")
"""What JSON lets stand in a text and a terminal may obey."""


def to_json(data: object) -> str:
    """The document as indented JSON."""
    text = msgspec.json.format(msgspec.json.encode(data), indent=2).decode()
    return _COMMANDS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def to_yaml(data: object) -> str:
    """The document as YAML, keys in their order."""
    plain: Any = msgspec.to_builtins(data)
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100)
