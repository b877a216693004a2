"""`partage simulate repack` names pods to restart, plays the plan through, and restarts nothing."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from partage.cli.main import main
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import DeviceType
from partage.model.mig import MigSlice
from partage.sim import repacking
from partage.vendors import names
from partage.wire import record

GIB = 1 << 30
SIZES = {"1g.5gb": 1, "2g.10gb": 2, "3g.20gb": 4, "7g.40gb": 8}


def node(*cards: str) -> object:
    """A node of cards in mode mig."""
    registered = [
        {
            "id": f"GPU-{card}",
            "count": 10,
            "devmem": 40960,
            "devcore": 100,
            "health": True,
            "type": "NVIDIA A100-SXM4-40GB",
            "mode": "mig",
        }
        for card in cards
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": "n",
            "annotations": {"hami.io/node-nvidia-register": json.dumps(registered)},
        },
        "status": {"allocatable": {"nvidia.com/gpu": "20", "pods": "99", "cpu": "9"}},
    }


def pod(
    name: str,
    memory: int,
    start: int | None = None,
    namespace: str = "batch",
    profile: str = "1g.5gb",
    card: str = "a",
) -> object:
    """A pod of one instance; bound at a start, or waiting."""
    annotations, spec = {"nvidia.com/vgpu-mode": "mig"}, {}
    if start is not None:
        grant = Grant(
            "main",
            DeviceType.GPU,
            "ab".index(card),
            f"GPU-{card}",
            142,
            4864 << 20,
            GrantMode.MIG,
            protocol="hami",
            mig=MigSlice(profile, start, SIZES[profile]),
        )
        held = Allocation(name, namespace, name, "n", (grant,))
        annotations[names.ALLOCATION] = record.encode(held)
        spec = {"nodeName": "n"}
    limits = {"nvidia.com/gpu": 1, "nvidia.com/gpumem": memory}
    container = {"name": "main", "image": "x", "resources": {"limits": limits}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": name,
            "annotations": annotations,
        },
        "spec": {**spec, "containers": [container]},
    }


def run(
    folder: Path, *pods: object, arguments: tuple[str, ...] = (), cards: tuple[str, ...] = ("a",)
) -> Result:
    """The command over a node and some pods."""
    path = folder / "cluster.json"
    items = {"apiVersion": "v1", "kind": "List", "items": [node(*cards), *pods]}
    path.write_text(json.dumps(items), encoding="utf-8")
    options = arguments or ("--may-restart", "batch/*")
    return CliRunner().invoke(main, ["simulate", "repack", str(path), *options])


def test_one_restart_makes_room(tmp_path: Path) -> None:
    """Two small instances stand in both places of a 3g: one is enough to move."""
    found = run(
        tmp_path,
        pod("a", 4000, 0),
        pod("b", 4000, 4),
        pod("big", 19000),
        arguments=("--may-restart", "batch/*", "-o", "json"),
    )

    (plan,) = json.loads(found.stdout)
    assert found.exit_code == 0
    assert plan["planned"]
    assert plan["name"] == "big"
    (restart,) = plan["restarts"]
    (place,) = plan["place"]
    (moved,) = restart["to"]
    assert restart["from"][0]["start"] == place["start"] == {"a": 0, "b": 4}[restart["name"]]
    assert not place["start"] <= moved["start"] < place["start"] + 4


def test_names_give_the_terminal_no_command(tmp_path: Path) -> None:
    """A word in brackets is not taken for a style either."""
    found = run(
        tmp_path, pod("a[red]", 4000, 0), pod("b\x1b[2J", 4000, 4), pod("big\x1b]0;x\x07", 19000)
    )

    assert "\x1b" not in found.stdout
    assert "\x07" not in found.stdout
    assert "batch/big\\x1b]0;x" in found.stdout
    assert "restart batch/a[red]" in found.stdout or "restart batch/b\\x1b[2J" in found.stdout


def test_only_pods_that_are_named_are_restarted(tmp_path: Path) -> None:
    """The other namespace's pod stays, though either would do."""
    pods = (pod("a", 4000, 0, "prod"), pod("b", 4000, 4), pod("big", 19000))

    found = run(tmp_path, *pods)
    none = run(tmp_path, *pods, arguments=("--may-restart", "dev/*"))

    assert "restart batch/b: 1g.5gb at 4 of card 0 of n -> 1g.5gb at" in found.stdout
    assert "then batch/big gets 3g.20gb at 4 of card 0 of n" in found.stdout
    assert none.exit_code == 3
    assert "no plan" in none.stdout


@pytest.mark.parametrize(
    ("pods", "code", "told"),
    [
        ((pod("a", 4000, 0),), 0, "no pod waits for a hardware instance"),
        ((pod("a", 4000, 0), pod("big", 39000)), 3, "no plan"),
        ((pod("big", 90000),), 3, "no plan"),
    ],
    ids=["no pod waits", "nowhere to go", "too big for any card"],
)
def test_what_cannot_be_planned_is_said(
    tmp_path: Path, pods: tuple[object, ...], code: int, told: str
) -> None:
    """Exit code and a sentence, never a traceback."""
    found = run(tmp_path, *pods)

    assert (found.exit_code, told in found.stdout) == (code, True), found.output


def on(card: str, text: str) -> list[object]:
    """Pods of a card, from a text such as `1g.5gb@6 2g.10gb@0`; each is named by where it is."""
    memory = {"1g.5gb": 4000, "2g.10gb": 9000, "3g.20gb": 19000, "7g.40gb": 39000}
    parts = [part.split("@") for part in text.split()]
    return [
        pod(f"{card}{start}", memory[profile], int(start), profile=profile, card=card)
        for profile, start in parts
    ]


@pytest.mark.parametrize(
    ("cards", "memory", "told"),
    [
        pytest.param(("1g.5gb@6", "1g.5gb@6"), 39000, ["a6"], id="consolidate"),
        pytest.param(("2g.10gb@0 2g.10gb@4", "3g.20gb@0 1g.5gb@4"), 19000, ["b4"], id="across"),
        pytest.param(("7g.40gb@0", "7g.40gb@0"), 4000, None, id="full"),
        pytest.param(("1g.5gb@0 1g.5gb@4", ""), 39000, [], id="room"),
        pytest.param(
            ("1g.5gb@0 1g.5gb@1 1g.5gb@4 1g.5gb@5", "3g.20gb@4 1g.5gb@0 1g.5gb@1"),
            19000,
            ["a4", "a5"],
            id="two",
        ),
    ],
)
def test_the_smallest_plan_is_found(
    tmp_path: Path, cards: tuple[str, str], memory: int, told: list[str] | None
) -> None:
    """Fewest pods, then fewest units; nothing where there is room already."""
    pods = [*on("a", cards[0]), *on("b", cards[1]), pod("new", memory)]
    arguments = ("--may-restart", "batch/*", "-o", "json")

    found = json.loads(run(tmp_path, *pods, arguments=arguments, cards=("a", "b")).stdout)

    plans = [one for one in found if one["planned"]]
    names = [restart["name"] for one in plans for restart in one["restarts"]]
    assert (names if plans or not found else None) == told


def test_no_more_pods_than_a_plan_may_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two pods in the way need two restarts."""
    pods = [
        *on("a", "1g.5gb@0 1g.5gb@1 1g.5gb@4 1g.5gb@5"),
        *on("b", "7g.40gb@0"),
        pod("new", 19000),
    ]
    monkeypatch.setattr(repacking, "MOST", 1)
    none = run(tmp_path, *pods, cards=("a", "b"))
    monkeypatch.setattr(repacking, "MOST", 2)

    found = run(tmp_path, *pods, cards=("a", "b"))

    assert (none.exit_code, found.exit_code) == (3, 0)
    assert found.stdout.count("  restart ") == 2


def test_ways_that_fail_leave_the_next_ones_as_it_was(tmp_path: Path) -> None:
    """The waiting pods before cannot have a plan, the last one can."""
    pods = [*on("a", "1g.5gb@0 1g.5gb@4"), pod("all", 39000), pod("big", 19000)]

    found = run(tmp_path, *pods)

    assert "no plan" in found.stdout
    assert "then batch/big gets 3g.20gb" in found.stdout


def test_a_plan_counts_the_pods_that_earlier_tries_moved(tmp_path: Path) -> None:
    """The tries for the first waiting pod end both others; they run all the same."""
    pods = [*on("a", "1g.5gb@0 3g.20gb@4"), pod("all", 39000), pod("big", 19000)]

    found = run(tmp_path, *pods)

    assert found.exit_code == 3
    assert found.stdout.count("no plan") == 2


def test_bad_input_is_named(tmp_path: Path) -> None:
    """A missing file and a missing option are usage errors."""
    missing = CliRunner().invoke(
        main, ["simulate", "repack", str(tmp_path / "x"), "--may-restart", "*"]
    )
    bare = CliRunner().invoke(main, ["simulate", "repack", str(tmp_path)])

    assert missing.exit_code == bare.exit_code == 2
    assert "partage simulate repack:" in missing.stderr
    assert "--may-restart" in bare.stderr
