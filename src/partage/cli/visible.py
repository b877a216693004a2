"""Makes terminal commands in texts visible. Any user who may write objects chooses their names and notes.

Escape sequences could hide a line, write another one, or set the terminal's title. Marks of the direction of writing
and signs without width could disguise a name. Bytes of a file's name that are no text would end the printing program.
Line ends and tabs stay.
"""

import re
from collections.abc import Iterable
from typing import Final

import click

COMMANDS: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e"
    "\u2060-\u206f\u3164\ud800-\udfff\ufe00-\ufe0f\ufeff\uffa0\ufff9-\ufffb\U000e0000-\U000e0fff]"
)


def visible(text: str) -> str:
    """The text with each such character replaced by its number."""
    if text.isascii() and text.isprintable():
        return text
    return COMMANDS.sub(lambda found: _number(found[0]), text)


def noted(notes: Iterable[str]) -> None:
    """Print on standard error doubtful parts of the input."""
    for note in notes:
        click.echo(visible(f"note: {note}"), err=True)


def _number(char: str) -> str:
    number = ord(char)
    if number < 2**8:
        return f"\\x{number:02x}"
    return f"\\u{number:04x}" if number < 2**16 else f"\\U{number:08x}"
