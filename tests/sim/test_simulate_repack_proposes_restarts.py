"""`partage simulate repack` names pods to restart, plays the plan through, and restarts nothing."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from partage.cli.main import main
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import DeviceType
from partage.model.mig import MigSlice
from partage.vendors import names
from partage.wire import record

GIB = 1 << 30
REGISTERED = json.dumps(
    [
        {
            "id": "GPU-a",
            "count": 10,
            "devmem": 40960,
            "devcore": 100,
            "health": True,
            "type": "NVIDIA A100-SXM4-40GB",
            "mode": "mig",
        }
    ]
)
NODE = {
    "apiVersion": "v1",
    "kind": "Node",
    "metadata": {"name": "n", "annotations": {"hami.io/node-nvidia-register": REGISTERED}},
    "status": {"allocatable": {"nvidia.com/gpu": "10", "pods": "99", "cpu": "9"}},
}


def pod(name: str, memory: int, start: int | None = None, namespace: str = "batch") -> object:
    """A pod of one instance; bound at a start, or waiting."""
    annotations, spec = {"nvidia.com/vgpu-mode": "mig"}, {}
    if start is not None:
        grant = Grant(
            "main",
            DeviceType.GPU,
            0,
            "GPU-a",
            142,
            4864 << 20,
            GrantMode.MIG,
            protocol="hami",
            mig=MigSlice("1g.5gb", start, 1),
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


def run(folder: Path, *pods: object, arguments: tuple[str, ...] = ()) -> Result:
    """The command over a node of one card and some pods."""
    path = folder / "cluster.json"
    items = {"apiVersion": "v1", "kind": "List", "items": [NODE, *pods]}
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
    ids=["nobody waits", "nowhere to go", "too big for any card"],
)
def test_what_cannot_be_planned_is_said(
    tmp_path: Path, pods: tuple[object, ...], code: int, told: str
) -> None:
    """Exit code and a sentence, never a traceback."""
    found = run(tmp_path, *pods)

    assert (found.exit_code, told in found.stdout) == (code, True), found.output


def test_bad_input_is_named(tmp_path: Path) -> None:
    """A missing file and a missing option are usage errors."""
    missing = CliRunner().invoke(
        main, ["simulate", "repack", str(tmp_path / "x"), "--may-restart", "*"]
    )
    bare = CliRunner().invoke(main, ["simulate", "repack", str(tmp_path)])

    assert missing.exit_code == bare.exit_code == 2
    assert "partage simulate repack:" in missing.stderr
    assert "--may-restart" in bare.stderr
