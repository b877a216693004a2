"""The messages of the plugin: the examples that Go reads and writes are read and written here too."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from partage.wire import plugin as wire

EXAMPLES: dict[str, list[dict[str, Any]]] = json.loads(
    (Path(__file__).parents[2] / "kube-scheduler/protocol/examples.json").read_text()
)


@pytest.mark.parametrize("example", EXAMPLES["questions"], ids=lambda e: f"{e['id']}-{e['verb']}")
def test_questions_are_read_as_go_writes_them(example: dict[str, Any]) -> None:
    """No field is lost, and none unknown."""
    question = wire.decode_question(json.dumps(example).encode())
    assert json.loads(msgspec.json.encode(question)) == example


@pytest.mark.parametrize("example", EXAMPLES["answers"], ids=lambda e: f"{e['id']}")
def test_answers_are_written_as_go_reads_them(example: dict[str, Any]) -> None:
    """The decoder is strict, so a field that only one side knows fails here or there."""
    answer = msgspec.convert(example, wire.Answer, strict=True)
    assert json.loads(msgspec.json.encode(answer)) == example


@pytest.mark.parametrize("example", EXAMPLES["pushes"], ids=str)
def test_pushes_are_written_as_go_reads_them(example: dict[str, Any]) -> None:
    """The same for what the engine says unasked."""
    push = msgspec.convert(example, wire.Push, strict=True)
    assert json.loads(msgspec.json.encode(push)) == example


def test_every_field_has_an_example() -> None:
    """Every structure that this side knows is covered."""
    text = json.dumps(EXAMPLES)
    for kind in (*wire.Question.__args__, wire.Answer, wire.Push, wire.Vocabulary):
        for field in msgspec.structs.fields(kind):
            assert f'"{field.encode_name}"' in text, f"{kind.__name__}.{field.name}"
