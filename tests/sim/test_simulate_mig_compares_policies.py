"""`partage simulate mig` gives the measured figures, and names what is wrong with its input."""

import json
from collections import Counter
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from partage.cli.main import main
from partage.model.errors import InvalidValue
from partage.model.mig import layouts
from partage.sim.migcards import POLICIES, pools
from partage.sim.migstream import Stream, offer, run
from partage.vendors.mig import MIG_CARDS

A100 = MIG_CARDS["A100-80GB"].axis
PLAIN = [p.name for p in A100.profiles if p.plain]
MIXES = {
    "U5": (20, 20, 20, 20, 20),
    "S5": (50, 25, 12, 8, 5),
    "U4": (25, 25, 25, 0, 25),
    "S4": (50, 30, 15, 0, 5),
    "N7": (40, 30, 20, 10, 0),
}


def _feasible() -> list[tuple[str, ...]]:
    """Every order of every multiset of plain profiles that fits an A100."""
    multisets = {tuple(sorted(i.profile for i in one)) for one in layouts(A100, PLAIN)}
    return sorted({order for one in multisets for order in permutations(one)})


def _mix(name: str) -> dict[str, float]:
    return dict(zip(PLAIN, MIXES[name], strict=True))


def _simulate(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["simulate", "mig", *arguments])


def _json(*arguments: str) -> Any:
    result = _simulate(*arguments, "-o", "json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


# --- sequences -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "admitted"),
    [
        ("partage", 99),
        ("least-lost", 98),
        ("mfi", 98),
        ("fgd", 98),
        ("hami-2.10", 95),
        ("hami-run", 93),
        ("first-fit", 86),
        ("hami-2.9", 31),
        ("movable", 113),
    ],
)
def test_all_feasible_sequences_are_offered_to_one_card(policy: str, admitted: int) -> None:
    """113 sequences fit one card; no rule that cannot look ahead admits more than 99."""
    sequences = _feasible()

    found = offer(sequences, A100, 1, policy)

    assert (found.offered, found.in_full) == (113, admitted)


def test_a_template_with_4g_served_by_3g_is_why_31_are_admitted() -> None:
    """Without 4g the templates admit 26 of 93 sequences, as measured."""
    sequences = [one for one in _feasible() if "4g.40gb" not in one]

    assert (len(sequences), offer(sequences, A100, 1, "hami-2.9").in_full) == (93, 26)


def test_the_file_is_a_list_of_lists(tmp_path: Path) -> None:
    """Each list is one sequence; names that drivers round otherwise are understood."""
    path = tmp_path / "sequences.json"
    path.write_text(json.dumps([["1g.10gb", "2g.20gb"], ["3g.39gb", "4g.40gb", "1g.10gb"], []]))

    found = _json("--model", "H100-80GB", "--cards", "1", "--sequences", str(path))

    assert (found["offered"], found["admitted_in_full"]) == (3, 2)


# --- streams -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("cards", "at_least"), [(1, 0.66), (8, 0.875), (32, 0.94)])
def test_streams_are_accepted_as_often_as_promised(cards: int, at_least: float) -> None:
    """Mean acceptance over five mixes and two loads, shorter than in the figures."""
    found = [
        run(Stream(A100, cards, _mix(name), load, 1, 6000, 1000), "partage").acceptance
        for name in MIXES
        for load in (0.8, 1.0)
    ]

    assert sum(found) / len(found) >= at_least


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("waits", [False, True], ids=["rejects", "waits"])
def test_every_policy_keeps_its_cards_valid(policy: str, *, waits: bool) -> None:
    """Requests are counted once, and those that wait are all served in the end."""
    stream = Stream(A100, 3, _mix("U5"), 0.7, 5, 400, 50, waits)

    found = run(stream, policy)

    assert found.offered == 350
    assert found.accepted == 350 if waits else found.at_once == found.accepted < 350
    assert 0 < found.volume_acceptance <= 1


@pytest.mark.parametrize("policy", POLICIES)
def test_pools_give_back_exactly_what_they_gave(policy: str) -> None:
    """After everything is removed in another order, idle cards take the same again."""
    pool = pools(policy, A100, PLAIN)(2)
    asked = ["1g.10gb", "3g.40gb", "2g.20gb", "1g.10gb", "3g.40gb", "7g.80gb"]
    first = [pool.place(name) for name in asked]

    for place in reversed([place for place in first if place is not None]):
        pool.remove(place)

    assert [pool.place(name) for name in asked] == first


def test_everybody_gets_the_same_requests() -> None:
    """Chance is drawn from the seed alone."""
    stream = Stream(A100, 4, _mix("S5"), 0.9, 3, 300, 0)

    assert stream.drawn() == stream.drawn()
    assert stream.drawn() != Stream(A100, 4, _mix("S5"), 0.9, 4, 300, 0).drawn()
    counts = Counter(name for _, name, _ in stream.drawn())
    assert counts["1g.10gb"] > counts["7g.80gb"]


def test_waiting_is_shorter_than_with_the_emptiest_card_first() -> None:
    """The queue experiment, short: at most half the mean wait."""
    waits = {
        policy: sum(
            run(Stream(A100, 8, _mix(name), 0.6, seed, 2500, 0, waits=True), policy).mean_wait
            for name in ("U5", "S5", "U4")
            for seed in (1, 2)
        )
        for policy in ("partage", "hami-2.10")
    }

    assert waits["partage"] <= waits["hami-2.10"] / 2


@pytest.mark.parametrize(
    ("change", "part"),
    [
        ({"load": 0.0}, "offered load 0.0"),
        ({"load": float("inf")}, "offered load inf"),
        ({"cards": 0}, "0 cards"),
        ({"warmup": 10}, "warm-up of 10"),
        ({"mix": {"1g.10gb": 0.0}}, "one of them above 0"),
        ({"mix": {"1g.10gb": -1.0}}, "0 or more"),
    ],
)
def test_impossible_streams_are_refused(change: dict[str, Any], part: str) -> None:
    """The rule and the value are named."""
    given = {"axis": A100, "cards": 1, "mix": _mix("U5"), "load": 1.0, "arrivals": 10, "warmup": 0}

    with pytest.raises(InvalidValue, match=part):
        Stream(**(given | change))


# --- the command ---------------------------------------------------------------------------------


def test_a_stream_is_told_in_ratios() -> None:
    """The keys that checks from outside rely on."""
    found = _json(
        "--model",
        "NVIDIA A30",
        "--cards",
        "4",
        "--mix",
        "60/30/0/10/0",
        "--rho",
        "0.9",
        "--seed",
        "3",
        "--arrivals",
        "2000",
        "--warmup",
        "200",
    )

    assert found["offered"] == 1800
    assert found["acceptance"] == found["accepted"] / 1800
    assert 0 < found["volume_acceptance"] <= found["acceptance"] <= 1


def test_policies_are_compared_in_a_table() -> None:
    """One row a policy, with waiting where asked for."""
    result = _simulate(
        "--model",
        "A100-80GB",
        "--cards",
        "2",
        "--mix",
        "50/25/12/8/5",
        "--rho",
        "0.8",
        "--arrivals",
        "500",
        "--warmup",
        "50",
        "--wait",
        "--policy",
        "partage",
        "--policy",
        "hami-2.10",
    )

    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["POLICY", "partage", "hami-2.10"]
    assert "MEAN WAIT" in lines[0]


def test_sequences_are_compared_too(tmp_path: Path) -> None:
    """A list where a policy is repeated."""
    path = tmp_path / "sequences.json"
    path.write_text('[["1g.6gb", "2g.12gb"]]')
    options = ["--model", "A30-24GB", "--cards", "1", "--sequences", str(path)]

    found = _json(*options, "--policy", "partage", "--policy", "hami-2.9")

    assert [one["admitted_in_full"] for one in found] == [1, 0]
    assert "IN FULL" in _simulate(*options).output


STREAM = ("--cards", "1", "--mix", "20/20/20/20/20", "--rho", "1")


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (("--model", "X", *STREAM), "no model 'X'"),
        (("--model", "RTX-PRO-4500-Blackwell-32GB", *STREAM), "is not published"),
        (("--model", "A30-24GB", *STREAM), "no 3g profile"),
        (("--model", "A100-80GB", *STREAM, "--policy", "best"), "no policy 'best'"),
        (("--model", "A100-80GB", *STREAM, "--rho", "-1"), "offered load -1.0"),
        (("--model", "A100-80GB", *STREAM, "--rho", "much"), "'much' is not a valid float"),
        (("--model", "A100-80GB", *STREAM, "--cards", "0"), "0 is not in the range"),
        (("--model", "A100-80GB", *STREAM, "--mix", "1/2"), "five numbers"),
        (("--model", "A100-80GB", *STREAM, "--mix", "1/2/3/4/x"), "five numbers"),
        (("--model", "A100-80GB", *STREAM, "--arrivals", "100"), "warm-up of 2000"),
        (("--model", "A100-80GB", *STREAM, "--sequences", "x"), "stands alone"),
        (("--model", "A100-80GB", "--cards", "1", "--rho", "1"), "give --sequences"),
        (("--model", "A100-80GB", "--cards", "1"), "give --sequences"),
        (("--model", "A100-80GB", "--cards", "1", "--sequences", "no-file"), "no-file: No such"),
    ],
)
def test_bad_input_is_named(arguments: tuple[str, ...], part: str) -> None:
    """Exit 2 and one line that says what is wrong."""
    result = _simulate(*arguments)

    assert result.exit_code == 2
    assert part in result.output


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{", "not a JSON list of lists of names"),
        ('{"a": 1}', "not a JSON list of lists of names"),
        ('["1g.10gb"]', r"not a JSON list of lists of names"),
        ('[["1g.10gb"], ["2g.20gb", "8g.80gb"]]', "[1][1]: A100-80GB has no profile '8g.80gb'"),
        ("\xff", "not a JSON list of lists of names"),
    ],
    ids=["broken", "object", "flat", "profile", "bytes"],
)
def test_a_broken_file_is_named(tmp_path: Path, text: str, part: str) -> None:
    """The file, the place in it, and what the model has."""
    path = tmp_path / "sequences.json"
    path.write_bytes(text.encode("latin-1"))

    result = _simulate("--model", "A100-80GB", "--cards", "1", "--sequences", str(path))

    assert result.exit_code == 2
    assert str(path) in result.output
    assert part in result.output
