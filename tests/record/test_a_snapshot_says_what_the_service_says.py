"""A snapshot of a live cluster holds what decisions need and nothing else, and decides alike."""

import asyncio
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from partage.cli.main import main
from partage.wire.masking import Mask

sys.path.append(str(Path(__file__).parents[1] / "embedded"))

from up_world import PODS, World, node, pod, run, running

HALF = {"koordinator.sh/gpu-core": 50, "koordinator.sh/gpu-memory-ratio": 50}
SECRET = {"name": "PASSWORD", "value": "hunter2"}
CONFIG = {"kind": "ConfigMap", "apiVersion": "v1", "metadata": {"name": "app"}}


def called(*arguments: object) -> Result:
    """What the command says."""
    return CliRunner().invoke(main, [str(one) for one in arguments])


async def filled(world: World) -> None:
    """A placed pod, a pod that waits, and things that must stay private."""
    private = {"env": [SECRET], "args": ["--token=hunter2"], "image": "corp.example/secret:1"}
    meta = {"annotations": {"example.com/note": "hunter2"}, "labels": {"team": "payroll"}}
    await world.create(PODS, pod("fits", HALF, container=private, meta=meta))
    await world.phase("fits", "Running")
    said = {"exitCode": 1, "reason": "hunter2", "message": "token hunter2"}
    status = {"reason": "hunter2", "message": "token hunter2", "phase": "Pending"}
    states = [{"name": "main", "state": {"terminated": said}}]
    ended = {"status": status | {"initContainerStatuses": states, "containerStatuses": states}}
    await world.create(PODS, pod("waits", {"koordinator.sh/gpu": 500}))
    media = "application/merge-patch+json"
    code, told_ = await world.send("PATCH", f"{PODS}/waits/status", ended, media)
    assert code == 200, told_
    await world.create(PODS, pod("broad", {"koordinator.sh/gpu": 800}))
    namespaced = "/api/v1/namespaces/default/"
    await world.create(
        f"{namespaced}secrets", CONFIG | {"kind": "Secret", "stringData": {"k": "hunter2"}}
    )
    await world.create(f"{namespaced}configmaps", CONFIG | {"data": {"k": "hunter2"}})
    await world.refused("waits")
    await world.refused("broad")


async def told(world: World, name: str) -> Any:
    """What the live service answers."""
    answer = await world.get(f"/api/explain/default/{name}", scheduler=True)
    return answer["reason"]


def taken(folder: Path) -> tuple[Path, Path, dict[str, Any]]:
    """A snapshot, a masked one, and why the two pods wait, as the live service says."""
    plain, masked = folder / "plain.json", folder / "masked.json"

    async def story() -> dict[str, Any]:
        async with running([node(cards=1), node("n1", cards=4)]) as world:
            await filled(world)
            kubeconfig = world.cluster.addresses.kubeconfig
            for path, more in ((plain, ()), (masked, ("--mask",))):
                done = await asyncio.to_thread(
                    called, "snapshot", "--kubeconfig", kubeconfig, "-o", path, *more
                )
                assert done.exit_code == 0, done.output
            reasons.update({name: await told(world, name) for name in ("waits", "broad")})

    reasons: dict[str, Any] = {}
    run(story())
    return plain, masked, reasons


def test_a_snapshot_decides_as_the_service(tmp_path: Path) -> None:
    """Waiting pods get the same code, message and reasons; masked, the same code and cards."""
    (tmp_path / "plain.json").touch(0o644)  # a snapshot from before, which all may read
    plain, masked, live = taken(tmp_path)

    done = called("replay", plain, "-o", "json")
    found = {one["name"]: one["now"]["reason"] for one in json.loads(done.stdout)["pods"]}

    assert done.exit_code == 3
    assert set(found) == {"waits", "broad"}
    for name, reason in found.items():
        assert (reason["code"], reason["message"]) == (live[name]["code"], live[name]["message"])
        told_ = {
            node_: (why["code"], why["message"]) for node_, why in live[name]["nodes"].items()
        }
        assert {n: (why["code"], why["message"]) for n, why in reason["nodes"].items()} == told_
    again = json.loads(called("replay", masked, "-o", "json").stdout)["pods"]
    assert [one["now"]["reason"] and one["now"]["reason"]["code"] for one in again] == [
        reason and reason["code"] for reason in found.values()
    ]

    for path in (plain, masked):
        text = path.read_text("utf-8")
        assert "hunter2" not in text
        assert "PASSWORD" not in text
        assert "corp.example" not in text
        assert (path.stat().st_mode & 0o777) == 0o600
    hidden = masked.read_text("utf-8")
    for name in ('"fits"', '"n0"', '"n1"', '"default"', "payroll"):
        assert name in plain.read_text("utf-8")
        assert name not in hidden

    for path in (plain, masked):
        again = called("schedule", path, "-o", "json")
        assert again.exit_code == 3
        assert len(json.loads(again.stdout)["nodes"]) == 2
        assert called("simulate", "cluster", path, "--policy", "spread").exit_code == 0
    other = json.loads(called("replay", plain, "--policy", "spread", "-o", "json").stdout)
    assert other["policy"] == "spread"
    assert all(one["then"] for one in other["pods"])
    assert "pods with devices wait" in called("replay", plain).stdout


def test_a_mask_is_the_same_under_the_same_key() -> None:
    """Another key gives another mask; a node has one mask wherever it stands."""
    pod_ = {
        "kind": "Pod",
        "metadata": {
            "name": "p",
            "namespace": "a",
            "annotations": {
                "partage.io/allocation": '{"node":"n0","x":1}',
                "hami.io/vgpu-node": "n0",
            },
            "labels": {"team": "x", "koordinator.sh/gpu-isolation-provider": "HAMi-core"},
        },
        "spec": {"nodeName": "n0", "nodeSelector": {"kubernetes.io/hostname": "n0", "zone": "z"}},
        "status": {"conditions": [{"type": "A", "message": "on n0"}]},
    }
    nodes = [{"kind": "Node", "metadata": {"name": "n0"}}]
    one, same, other = (Mask(key, nodes).object(pod_) for key in (b"k", b"k", b"other"))

    assert one == same != other
    name = one["spec"]["nodeName"]
    assert name.startswith("node-")
    assert one["metadata"]["annotations"]["hami.io/vgpu-node"] == name
    assert json.loads(one["metadata"]["annotations"]["partage.io/allocation"])["node"] == name
    assert one["spec"]["nodeSelector"]["kubernetes.io/hostname"] == name
    assert not {"zone", "z"} & {
        *one["spec"]["nodeSelector"],
        *one["spec"]["nodeSelector"].values(),
    }
    assert one["metadata"]["labels"]["koordinator.sh/gpu-isolation-provider"] == "HAMi-core"
    assert "team" not in one["metadata"]["labels"]
    assert "n0" not in json.dumps(one)


@pytest.mark.parametrize(
    ("text", "told_"),
    [
        ("", "neither a snapshot nor a recording"),
        ("kind: Pod\n", "neither a snapshot nor a recording"),
        ('{"v":1,"state":' + "[" * 200_000, "neither a snapshot nor a recording"),
        ('{"kind":"Snapshot","apiVersion":"partage.io/v9","spec":{}}', "partage.io/v9"),
        (
            '{"kind":"Snapshot","apiVersion":"partage.io/v9","spec":{"seed":"of another kind"}}',
            "partage.io/v9",
        ),
        ('{"kind":"Snapshot","apiVersion":"partage.io/v1","spec":{"seed":"x"}}', "seed"),
        ('{"kind":"Snapshot","apiVersion":"partage.io/v1","spec":{"policy":"x"}}', "no policy"),
        ('{"kind":"Snapshot","apiVersion":"partage.io/v1","spec":{"policy":"\udcff"}}', "utf-8"),
    ],
    ids=["empty", "manifest", "nested", "version", "later-header", "header", "policy", "no-text"],
)
def test_a_broken_file_is_told_in_one_line(tmp_path: Path, text: str, told_: str) -> None:
    """Exit 2, and what is wrong."""
    path = tmp_path / "file"
    path.write_text(text, "utf-8", "surrogateescape")

    done = called("replay", path)

    assert done.exit_code == 2
    assert told_ in done.output
    assert "Traceback" not in done.output


def test_a_missing_file_or_key_is_told(tmp_path: Path) -> None:
    """Exit 2 for a file that is not there, a key too short, and a cluster that cannot be found."""
    short = tmp_path / "key"
    short.write_text("abc", "utf-8")

    assert called("replay", tmp_path / "none").exit_code == 2
    done = called("snapshot", "--mask-key", short)
    assert done.exit_code == 2
    assert "too few" in done.output


def test_a_reader_of_a_snapshot_may_leave() -> None:
    """`head` does so: nothing blames the output, which has no name."""

    def left(kubeconfig: Path) -> tuple[int, bytes]:
        command = [
            sys.executable,
            "-m",
            "partage.cli.main",
            "snapshot",
            "--kubeconfig",
            kubeconfig,
        ]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.close()
            assert process.stderr is not None
            said = process.stderr.read()
            return process.wait(240), said

    async def story() -> None:
        async with running([node(cards=1)]) as world:
            code, said = await asyncio.to_thread(left, world.cluster.addresses.kubeconfig)
            assert code == 1
            assert b"read Node: 1" in said
            assert b"pipe" not in said.lower()

    run(story())
