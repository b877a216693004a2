import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from small_traces import PODS, write, write_sequences

from answers import SOLVER_THERE
from partage.cli.simulate import simulate
from partage.model.policy import Strategy


def _invoke(folder: Path, *arguments: str) -> Result:
    return CliRunner().invoke(simulate, ["openb", str(folder), "--trace", "small", *arguments])


def _result(folder: Path, *arguments: str) -> Any:
    result = _invoke(folder, "-o", "json", *arguments)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def _sequences(folder: Path) -> str:
    arrays = {"pod_small_7": [0, 1, 2, 3, 4, 5, 6, 6], "node_small_7": [3, 2, 1, 0]}
    return str(write_sequences(folder / "orders.npz", arrays))


@pytest.mark.parametrize("policy", list(Strategy))
def test_every_policy_gives_the_stable_keys(tmp_path: Path, policy: Strategy) -> None:
    """The document has the keys that checks from outside rely on."""
    folder = write(tmp_path)

    found = _result(folder, "--policy", policy, "--sequences", _sequences(folder), "--seed", "7")

    assert (found["trace"], found["seed"], found["policy"]) == ("small", 7, policy)
    assert found["pods"] == found["placed"] + found["failed"] == 8
    assert found["failed_cpu_only"] == found["failed_by_kind"]["cpu-only"] == 0
    assert list(found["allocation"]) == ["80", "90", "100", "110", "120", "130"]
    assert list(found["frag"]) == list(found["allocation"])
    assert found["seconds"] > 0
    assert found["pods_per_second"] > 0


def test_places_and_loads_are_counted_as_published(tmp_path: Path) -> None:
    """First-fit by rank on a cluster small enough to follow by hand."""
    folder = write(tmp_path)

    found = _result(
        folder, "--policy", "first-fit", "--sequences", _sequences(folder), "--seed", "7"
    )

    # 14 cards; 0.5 + 1 + 2 + 0.25 of them are taken when two pods ask for 8 cards each. Rank
    # prefers n3 (no cards), n2 (T4), n1 (G2, all its 8 cards idle), n0: one of the two fits.
    assert found["failed_by_kind"] == {
        "cpu-only": 0,
        "fraction": 0,
        "one-card": 0,
        "many-cards": 1,
    }
    assert found["first_refused_many_card"] == round(100 * 19.75 / 14, 2)
    # Loads after the last three events are 26.8, 83.9 and 141.1 %: no event falls on 80 or 90.
    assert found["allocation"]["80"] is None


def test_several_policies_make_a_list(tmp_path: Path) -> None:
    """With --policy repeated the results come in the order given."""
    found = _result(write(tmp_path), "--policy", "fgd", "--policy", "spread/binpack")

    assert [result["policy"] for result in found] == ["fgd", "spread/binpack"]


def test_drawn_sequences_follow_the_seed_alone(tmp_path: Path) -> None:
    """Without a file the same seed gives the same run, another seed another; load is as asked."""
    folder = write(tmp_path)
    runs = [_result(folder, "--policy", "random", "--seed", seed) for seed in ("1", "1", "2")]
    for run in runs:
        del run["seconds"], run["cpu_seconds"], run["pods_per_second"]

    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


@pytest.mark.parametrize("load", ["20", "100", "300"])
def test_drawn_sequences_are_tuned(tmp_path: Path, load: str) -> None:
    """Pods are cloned or dropped until the load is met, an overshooting clone aside."""
    found = _result(write(tmp_path), "--policy", "first-fit", "--load", load)

    assert found["pods"] > 0
    assert _result(write(tmp_path), "--load", load)["policy"] == "partage"


def test_optional_columns_may_be_absent(tmp_path: Path) -> None:
    """A trace without model lists and times is as good."""
    pods = [",".join(line.split(",")[:5]) for line in PODS]

    found = _result(write(tmp_path, pods=pods), "--policy", "fgd")

    assert found["pods"] > 0


def test_pods_of_several_shared_cards_are_placed(tmp_path: Path) -> None:
    """A fraction of each of several cards, which the published traces lack, works too."""
    folder = write(tmp_path, pods=(PODS[0], "p0,1000,1024,3,400,,,"))
    for policy in ("fgd", "gpupacking", "random", "bestfit"):
        found = _result(folder, "--policy", policy, "--load", "30")

        assert found["failed"] == 0


def test_the_table_is_for_people(tmp_path: Path) -> None:
    """The default output is a table with a line a policy, and what was run."""
    result = _invoke(write(tmp_path), "--policy", "bestfit", "--policy", "first-fit")

    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0].startswith("POLICY")
    assert [line.split()[0] for line in lines[1:3]] == ["bestfit", "first-fit"]
    assert "4 nodes, 14 GPUs; order: drawn with seed 42" in lines[3]


@pytest.mark.parametrize("more", [[], ["--departures", "poisson", "--arrivals", "200"]])
def test_a_usual_terminal_has_every_figure(tmp_path: Path, more: list[str]) -> None:
    """80 columns hold all under each heading; speed alone differs from run to run."""
    words = ("--policy", "bestfit", "--policy", "spread/binpack", *more)
    folder = write(tmp_path)
    piped = _invoke(folder, *words).stdout.splitlines()
    narrow = CliRunner(env={"FORCE_COLOR": "1", "NO_COLOR": "1", "COLUMNS": "80"}).invoke(
        simulate, ["openb", str(folder), "--trace", "small", *words]
    )
    lines = re.sub(r"\x1b\[[0-9;]*m", "", narrow.stdout).splitlines()

    assert max(map(len, lines)) <= 80
    figures = {word for line in piped[:3] for word in line.split()[:-1]}
    assert figures <= {word for line in lines for word in line.split()}


def test_yaml_is_the_same_document(tmp_path: Path) -> None:
    """-o yaml prints the document as YAML."""
    result = _invoke(write(tmp_path), "-o", "yaml")

    assert result.exit_code == 0
    assert result.stdout.startswith("trace: small\n")


def test_a_picture_needs_its_format(tmp_path: Path) -> None:
    """A name that ends otherwise is refused before anything runs."""
    result = _invoke(write(tmp_path), "--plot", str(tmp_path / "out.jpg"))

    assert result.exit_code == 2
    assert "must end in .png or .svg" in result.stderr


@pytest.mark.parametrize("suffix", [".png", ".svg"])
@pytest.mark.parametrize("departures", [(), ("--departures", "poisson")], ids=["loads", "waiting"])
def test_pictures_hold_all_policies(
    tmp_path: Path, suffix: str, departures: tuple[str, ...]
) -> None:
    """Several policies share one picture."""
    pytest.importorskip("matplotlib", reason="the extra `plot` is not installed")
    path = tmp_path / f"out{suffix}"

    result = _invoke(
        write(tmp_path), "--policy", "fgd", "--policy", "bestfit", "--plot", str(path), *departures
    )

    assert result.exit_code == 0, result.output
    assert path.stat().st_size > 1000
    if suffix == ".svg":
        words = re.findall(r"<text[^>]*>([^<]*)<", path.read_text(encoding="utf-8"))
        assert {"fgd", "bestfit"} <= set(words)
        assert ("bound" in words) == (SOLVER_THERE and not departures)
