"""The example manifests are scheduled, alone and together, as their READMEs say."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from partage.cli.main import main as program

EXAMPLES = Path(__file__).parents[2] / "examples"
PLACED = "placed"
OUTCOMES: dict[str, dict[str, str]] = {
    "koordinator": {
        "pod-example": PLACED,
        "pod-percent": PLACED,
        "pod-ratio": PLACED,
        "pod-bytes": PLACED,
        "gpu-with-rdma": PLACED,
        "half-card": PLACED,
        "two-shares": PLACED,
        "two-cards": PLACED,
    },
    "qgpu": {
        "qgpu-service-0": PLACED,
        "qgpu-service-1": PLACED,
        "qgpu-whole-card": PLACED,
        "qgpu-odd-share": "InvalidRequest",
        "qgpu-two-cards": "CardNotIdle",
    },
    "hami": {
        "gpu-pod": PLACED,
        "slice-by-size": PLACED,
        "slice-by-percent": PLACED,
        "wants-h200": "TypeMismatch",
    },
    "metax": {
        "test-metax-sGPU": PLACED,
        "metax-burst": PLACED,
        "metax-two-parts": "InvalidRequest",
    },
    "mixed": {
        "koord-quarter": PLACED,
        "qgpu-fifth": PLACED,
        "hami-slice": PLACED,
        "koord-whole-v14": PLACED,
        "qgpu-pair": PLACED,
        "hami-on-t4": PLACED,
        "metax-third": PLACED,
        "already-running": PLACED,
        "two-protocols": "InvalidRequest",
        "too-big-for-t4": "InsufficientMemory",
        "whole-t4": "CardNotIdle",
        "on-broken-a10": "Unhealthy",
        "over-quota": "QuotaExceeded",
    },
}
"""Folder to pod to `placed` or the code with which it waits; pods left out may do either."""


def _schedule(*files: Path) -> tuple[int, dict[str, Any]]:
    result = CliRunner().invoke(program, ["schedule", *map(str, files), "-o", "json"])
    assert result.exit_code in (0, 3), result.output
    return result.exit_code, json.loads(result.stdout)


def _outcome(pod: dict[str, Any]) -> str:
    return pod["reason"]["code"] if pod["reason"] else PLACED


@pytest.mark.parametrize("folder", OUTCOMES)
def test_a_folder_alone_comes_out_as_its_readme_says(folder: str) -> None:
    """Each pod of a folder is placed, or waits with the code that is listed."""
    code, output = _schedule(EXAMPLES / folder)

    found = {pod["name"]: _outcome(pod) for pod in output["pods"]}
    assert {name: found[name] for name in OUTCOMES[folder]} == OUTCOMES[folder]
    assert code == (3 if any(outcome != PLACED for outcome in found.values()) else 0)


def test_all_examples_together_make_one_cluster() -> None:
    """One call with the parent folder loads every folder; pods meant to run still run."""
    _, output = _schedule(EXAMPLES)

    found = {pod["name"]: _outcome(pod) for pod in output["pods"]}
    meant = {name for pods in OUTCOMES.values() for name, end in pods.items() if end == PLACED}
    assert {name for name in meant if found[name] != PLACED} == set()
    # The examples give no slices; every other note would be of a mistake in them.
    assert [note for note in output["notes"] if "no ResourceSlice" not in note] == []


def test_pods_of_four_protocols_share_cards() -> None:
    """On one node a Koordinator, a qGPU and a HAMi pod hold parts of one card."""
    _, output = _schedule(EXAMPLES / "mixed")

    on_card: dict[str, set[str]] = {}
    for pod in output["pods"]:
        for grant in pod["allocations"]:
            on_card.setdefault(grant["uuid"], set()).add(pod["name"])
    assert {"koord-quarter", "qgpu-fifth", "hami-slice", "already-running"} in on_card.values()


def test_names_do_not_clash_between_folders() -> None:
    """No two documents of the examples have one identity."""
    seen: dict[tuple[str, str, str], Path] = {}
    for path in sorted(EXAMPLES.glob("*/*.yaml")):
        for document in yaml.safe_load_all(path.read_text(encoding="utf-8")):
            metadata = document["metadata"]
            key = (document["kind"], metadata.get("namespace", "default"), metadata["name"])
            assert key not in seen, (path, seen.get(key))
            seen[key] = path
    assert seen
