"""Logs of the long-running commands: one line an event, for people or for machines.

Callers log names, counts and errors. Logs never contain credentials: the API client keeps them out of its
errors, and no caller logs a header or a body.
"""

import logging
import sys
from datetime import UTC, datetime
from textwrap import indent
from typing import Final

import msgspec

from partage.cli.visible import visible

FORMATS: Final = ("text", "json")
LEVELS: Final = ("debug", "info", "warning", "error")


class _Json(logging.Formatter):
    """One JSON object a line: time, level, logger, message; decision, trace and traceback if any."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        line = {
            "time": _time(record),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": visible(record.getMessage()),
        }
        line |= _ids(record)
        if record.exc_info:
            line["error"] = visible(self.formatException(record.exc_info))
        return msgspec.json.encode(line).decode()


class _Text(logging.Formatter):
    """The same for people; users' texts in objects cannot begin a new line."""

    def format(self, record: logging.LogRecord) -> str:
        """See `logging.Formatter`."""
        told = visible(record.getMessage()).replace("\n", "\\x0a")
        text = f"{_time(record)} {record.levelname.lower():7} {record.name}: {told}"
        ids = ", ".join(f"{what} {value}" for what, value in _ids(record).items())
        if ids:
            text += f" ({ids})"
        if record.exc_info:
            text += "\n" + indent(visible(self.formatException(record.exc_info)), "    ")
        return text


def _ids(record: logging.LogRecord) -> dict[str, str]:
    """The line's references: a decision of the recording, the trace of a pod."""
    found = {what: getattr(record, what, "") for what in ("decision", "trace")}
    return {what: visible(str(value)) for what, value in found.items() if value}


def _time(record: logging.LogRecord) -> str:
    moment = datetime.fromtimestamp(record.created, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def start_logging(form: str, level: str) -> None:
    """Write the program's log on standard error from now on. `form`: one of `FORMATS`. `level`: one of `LEVELS`."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    logger = logging.getLogger("partage")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(level.upper())
