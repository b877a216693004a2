"""JSON text into undecoded values: one document, many concatenated, or one a line."""

import json
import re
from collections.abc import Iterator
from typing import Final

import msgspec

_RAW: Final = msgspec.json.Decoder(msgspec.Raw)
_TOKEN: Final = re.compile(rb'"(?:[^"\\]|\\.)*"|-?[0-9][0-9.eE+-]*')
_SAFE: Final = 18  # characters of a number that any decoder holds
_BLANK: Final = " \t\r\n"


def json_values(data: bytes) -> list[msgspec.Raw]:
    """The documents in `data`, each as the bytes it was written in.

    Raises:
        ValueError: not JSON; the message says where.
    """
    try:
        return [_RAW.decode(data)]
    except msgspec.DecodeError as error:
        if "trailing characters" not in str(error):
            raise _malformed(error) from error
    except RecursionError as error:
        raise _malformed(error) from error
    return list(_concatenated(data))


def with_quoted_numbers(data: bytes) -> bytes:
    """The JSON text with numbers as texts where a decoder may not hold them.

    Those are numbers of more than 18 characters, or with an exponent.
    """

    def quoted(match: re.Match[bytes]) -> bytes:
        token = match.group()
        plain = token[:1] == b'"' or (len(token) <= _SAFE and b"e" not in token.lower())
        return token if plain else b'"' + token + b'"'

    return _TOKEN.sub(quoted, data)


def _concatenated(data: bytes) -> Iterator[msgspec.Raw]:
    """Documents one after another, with or without white space between them."""
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
    while start < len(text) and text[start] in _BLANK:
        start += 1
    return start


def _malformed(error: Exception) -> ValueError:
    if isinstance(error, RecursionError):
        return ValueError("not JSON: nested too deeply")
    return ValueError(f"not JSON: {error}")
