"""JSON text into undecoded values: one document, many concatenated, or one a line; also finds repeated keys."""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec

_RAW: Final = msgspec.json.Decoder(msgspec.Raw)
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*')
_SAFE: Final = 18  # characters of a number that any decoder can represent
_BLANK: Final = " \t\r\n"


class TooDeep(ValueError):
    """The JSON text is nested too deeply to be read."""


def json_values(data: bytes) -> list[msgspec.Raw]:
    """The documents in `data`, each in its original bytes. Raises `ValueError`: not JSON, or `TooDeep`."""
    try:
        return [_RAW.decode(data)]
    except msgspec.DecodeError as error:
        if "trailing characters" not in str(error):
            raise _malformed(error) from error
    except RecursionError as error:
        raise _malformed(error) from error
    return list(_concatenated(data))


def keys_given_twice(data: bytes) -> list[str]:
    """Paths of keys that occur more than once in an object of the JSON text, such as `spec.replicas`.

    The result is empty for text that is no JSON, or nested too deeply.
    """
    found: dict[int, list[str]] = {}

    def paired(pairs: list[tuple[str, object]]) -> dict[str, object]:
        whole = dict(pairs)
        if len(whole) < len(pairs):
            counts = Counter(key for key, _value in pairs)
            found[id(whole)] = [key for key, times in counts.items() if times > 1]
            kept.append(whole)
        return whole

    kept: list[object] = []  # or another object might get the same id
    try:
        value = json.loads(data, object_pairs_hook=paired, parse_int=str, parse_float=str)
        return list(_paths(value, "", found)) if found else []
    except (ValueError, RecursionError):
        return []


def _paths(value: object, where: str, found: Mapping[int, list[str]]) -> Iterator[str]:
    if isinstance(value, dict):
        yield from (f"{where}.{key}".removeprefix(".") for key in found.get(id(value), ()))
        for key, inner in value.items():
            yield from _paths(inner, f"{where}.{key}".removeprefix("."), found)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _paths(item, f"{where}[{index}]", found)


def with_quoted_numbers(data: bytes) -> bytes:
    """The JSON text, with a number as a text if a decoder may not be able to represent it.

    These are numbers of more than 18 characters, or with an exponent.
    """

    def quoted(match: re.Match[bytes]) -> bytes:
        token = match.group()
        plain = token[:1] == b'"' or (len(token) <= _SAFE and b"e" not in token.lower())
        return token if plain else b'"' + token + b'"'

    return _TOKEN.sub(quoted, data)


def _concatenated(data: bytes) -> Iterator[msgspec.Raw]:
    """Documents one after another, with or without white space or a line `---` between them, as kubectl takes them."""
    try:
        text = data.decode()
        scan = json.JSONDecoder(parse_int=str, parse_float=str).raw_decode
        start = _skip_blank(text, 0)
        while start < len(text):
            _value, end = scan(text, start)
            yield _RAW.decode(text[start:end].encode())
            start = _skip_blank(text, end)
    except (ValueError, RecursionError) as error:
        raise _malformed(error) from error


def _skip_blank(text: str, start: int) -> int:
    while start < len(text):
        if text.startswith("---", start) and text[start - 1] == "\n":
            start += 3
        elif text[start] not in _BLANK:
            break
        else:
            start += 1
    return start


def _malformed(error: Exception) -> ValueError:
    if isinstance(error, RecursionError):
        return TooDeep("nested too deeply")
    return ValueError(f"not JSON: {str(error).removeprefix('JSON is malformed: ')}")
