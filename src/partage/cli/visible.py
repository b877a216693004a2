"""Makes terminal commands in texts visible. Any user who may write objects chooses their names and notes.

Escape sequences could hide a line, write another one, or set the terminal's title. Marks of the direction of writing
and signs without width could disguise a name. Bytes of a file's name that are no text would end the printing program.
Line ends and tabs stay.
"""

import re
from typing import Final

COMMANDS: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff]"
)


def visible(text: str) -> str:
    """The text with each such character replaced by its number."""
    if text.isascii() and text.isprintable():
        return text
    return COMMANDS.sub(lambda found: _number(found[0]), text)


def _number(char: str) -> str:
    return f"\\x{ord(char):02x}" if ord(char) < 256 else f"\\u{ord(char):04x}"
