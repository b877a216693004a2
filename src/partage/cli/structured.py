"""Structured output: the same document as JSON or YAML."""

from typing import Any

import msgspec
import yaml

__all__ = ["to_json", "to_yaml"]


def to_json(data: object) -> str:
    """The document as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(data), indent=2).decode()


def to_yaml(data: object) -> str:
    """The document as YAML, keys in their order."""
    plain: Any = msgspec.to_builtins(data)
    return yaml.safe_dump(plain, sort_keys=False, allow_unicode=True, width=100)
