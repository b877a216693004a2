"""How long simulated containers run, read from commands and annotations."""

import pytest

from partage.embedded.lifetimes import FOREVER, duration, lifetime, sleeps
from partage.vendors import names


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30.0),
        ("1.5s", 1.5),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("2d", 172800.0),
        ("250ms", 0.25),
        (" 10s ", 10.0),
        ("", None),
        ("soon", None),
        ("5m later", None),
        ("-5s", None),
        ("1.2.3", None),
        ("s", None),
    ],
)
def test_a_duration_is_read(text: str, seconds: float | None) -> None:
    """Numbers with units, or seconds; nothing else."""
    assert duration(text) == seconds


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        (["sleep", "30"], 30.0),
        (["sleep", "365d"], 365 * 86400.0),
        (["sleep", "infinity"], FOREVER),
        (["/bin/sleep", "1m", "30s"], 90.0),
        (["bash", "-c", "sleep 86400"], 86400.0),
        (["/bin/sh", "-c", "sleep 5;"], 5.0),
        (["sh", "-c", "echo hello; sleep 5"], FOREVER),
        (["python", "train.py"], FOREVER),
        ([], FOREVER),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else None,
)
def test_a_command_that_sleeps_ends(words: list[str], seconds: float) -> None:
    """Commands of demonstrations, as the MetaX and HAMi documents write them; any other runs on."""
    assert sleeps({"command": words[:1], "args": words[1:]}) == seconds


@pytest.mark.parametrize(("text", "seconds"), [("3s", 3.0), ("whenever", None)])
def test_an_annotation_decides_for_the_pod(text: str, seconds: float | None) -> None:
    """What cannot be read decides nothing."""
    assert lifetime({"metadata": {"annotations": {names.SIMULATE_LIFETIME: text}}}) == seconds
    assert lifetime({"metadata": {}}) is None
