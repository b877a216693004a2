"""Names, notes and messages of objects are shown, and give the terminal that shows them no command."""

import contextlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from partage.cli.logs import FORMATS, start_logging
from partage.cli.main import main
from partage.cli.structured import to_json
from partage.cli.visible import visible
from partage.cli.yaml_output import to_yaml

COMMANDS = [
    "\x1b]0;owned\x07",
    "\x1b[2J\x1b[H",
    "\x9b31m",
    "\x08\x08\x08",
    "\r",
    "\x7f",
    "\x00",
    "\u202e",
    "\u2066",
    "\x1bP",
    "\x9d",
    "\u200f",
    "\x85",
    "\u2028",
    "\u200b",
    "\u2060",
    "\ufeff",
    "\xad",
    "\u200d",
    "\u3164",
    "\ufe0f",
    "\U000e0041",
]


def signs(command: str) -> set[str]:
    """Those of its characters that a terminal does not print."""
    return {sign for sign in command if not sign.isprintable() or sign in "\u3164\ufe0f"}


@pytest.mark.parametrize("command", COMMANDS, ids=ascii)
def test_a_command_is_shown_by_its_number(command: str) -> None:
    """Tables, JSON and YAML show it so; JSON and YAML read back are the text as it was."""
    text = f"before{command}after"

    assert not signs(command) & set(visible(text))
    shown = to_json({"a": text})
    assert not signs(command) & set(shown)
    assert json.loads(shown) == {"a": text}
    shown = to_yaml({text: [text], "a": f"{text}: '\"\n{text}"})
    assert not signs(command) & set(shown) - {"\n"}
    assert yaml.safe_load(shown) == {text: [text], "a": f"{text}: '\"\n{text}"}


def test_ordinary_text_stays() -> None:
    """This holds for every alphabet, and over lines."""
    text = "ein Gerät\n\tлю 卡 ░█ 'q' \\x1b"

    assert visible(text) == text


@pytest.mark.parametrize("command", COMMANDS, ids=ascii)
def test_schedule_and_explain_print_none(command: str, tmp_path: Path) -> None:
    """The reason why a pod waits quotes an annotation of the pod; standard error as well."""
    node = {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {"name": "n"},
        "status": {
            "allocatable": {"cpu": "8", "memory": "8Gi", "pods": "9", "koordinator.sh/gpu": "100"}
        },
    }
    pod = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {
            "name": "p",
            "namespace": "default",
            "annotations": {
                "partage.io/node-policy": f"x{command}y",
                "hami.io/gpu-scheduler-policy": f"x{command}y",
            },
        },
        "spec": {
            "schedulerName": "partage-scheduler",
            "containers": [
                {"name": f"c{command}", "resources": {"limits": {"nvidia.com/gpu": "1"}}}
            ],
        },
    }
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"kind": "List", "apiVersion": "v1", "items": [node, pod]}))

    for words in (
        ["schedule", str(path)],
        ["explain", "p", "-f", str(path)],
        ["simulate", "cluster", str(path)],
    ):
        done = CliRunner().invoke(main, words)
        assert not signs(command) & set(done.output), words


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("command", [*COMMANDS, "\udc9b"], ids=ascii)
def test_the_log_has_none(form: str, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Text and JSON: in messages, tracebacks, and names that a line belongs to."""
    with logging_as(form) as logger:
        logger.warning("pod a/%s", command, extra={"trace": command})
        logger.error("a fault", exc_info=ValueError(command))

    shown = capsys.readouterr().err
    assert not signs(command) & set(shown)
    assert "a fault" in shown
    assert "Logging error" not in shown


@contextlib.contextmanager
def logging_as(form: str) -> Iterator[logging.Logger]:
    """The program's log in a format, for a while."""
    logger = logging.getLogger("partage")
    before = logger.handlers[:], logger.propagate, logger.level
    try:
        start_logging(form, "info")
        yield logger
    finally:
        logger.handlers[:], logger.propagate = before[:2]
        logger.setLevel(before[2])


@pytest.mark.parametrize("form", FORMATS)
def test_no_word_of_an_object_begins_a_line_of_the_log(
    form: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It does not command the terminal that shows the log either; a traceback is indented."""
    forged = "2026-01-01T00:00:00.000Z error   partage.daemon: forged"
    with logging_as(form) as logger:
        logger.warning("pod a/b says %s", f"\x1b[2J\n{forged}")
        logger.error("a fault", exc_info=ValueError(f"it says \n{forged}\x1b[2J"))

    lines = capsys.readouterr().err.splitlines()
    assert not [line for line in lines if line.startswith(forged) or "\x1b" in line]
    assert "forged" in lines[0]


def test_what_discover_notes_of_files_is_shown(tmp_path: Path) -> None:
    """The name of a device's folder, for one."""
    (tmp_path / "sys/class/infiniband/mlx\x1b[2J5").mkdir(parents=True)

    told = CliRunner().invoke(main, ["discover", "--host-root", str(tmp_path)])

    assert "note: RDMA device mlx\\x1b[2J5" in told.stderr
    assert "\x1b" not in told.output
