"""CDI names resolved by the agent, compared with what containerd itself makes of them, on both generations."""

import json
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import containerd
import grpc
import pytest
from agent_process import Agent
from plugged import plugged
from records import NODE, Node

from partage.agent.cdi.edits import inlined
from partage.agent.cdi.specs import Specifications
from partage.agent.nri.messages import Adjustment, CdiDevice, Container
from partage.model.errors import InvalidValue

KIND = "vendor.example/gpu"
NAMES = (f"{KIND}=0", f"{KIND}=1")
POINTS = (
    "prestart",
    "createRuntime",
    "createContainer",
    "startContainer",
    "poststart",
    "poststop",
)


def _specification(folder: Path) -> dict[str, Any]:
    """All that an adjustment can say, with devices that share a file and override each other."""
    hook = folder / "hook"
    hook.write_text("#!/bin/sh\nexit 0\n")
    hook.chmod(0o755)
    for name in ("x", "more"):
        (folder / name).mkdir()
    (folder / "library").write_text("the driver\n")
    os.mknod(folder / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    # This one is looked up in the container, whose programs go by the name that they are called by.
    program = {point: str(hook) for point in POINTS} | {"startContainer": "/bin/true"}
    return {
        "cdiVersion": "0.6.0",
        "kind": KIND,
        "containerEdits": {
            "env": ["NVIDIA_VISIBLE_DEVICES=void", "PATH=/bin:/sbin"],
            "deviceNodes": [{"path": "/dev/ctl", "hostPath": "/dev/zero"}],
            "mounts": [
                {
                    "hostPath": str(folder),
                    "containerPath": "/driver",
                    "options": ["ro", "rbind", "rprivate"],
                },
                {
                    "hostPath": str(folder / "library"),
                    "containerPath": "/etc/lib.so",
                    "options": ["ro", "nosuid", "nodev", "bind"],
                },
            ],
            "hooks": [
                {
                    "hookName": point,
                    "path": program[point],
                    "args": ["true", point],
                    "env": ["WHEN=" + point],
                    "timeout": 5,
                }
                for point in POINTS
            ],
        },
        "devices": [
            {
                "name": "0",
                "containerEdits": {
                    "env": ["CARD=0"],
                    "deviceNodes": [{"path": "/dev/card", "hostPath": str(folder / "null")}],
                    "mounts": [
                        {
                            "hostPath": str(folder / "more"),
                            "containerPath": "/driver/x",
                            "type": "bind",
                            "options": ["rbind", "rw"],
                        }
                    ],
                },
            },
            {
                "name": "1",
                "containerEdits": {
                    "env": ["CARD=1"],
                    "deviceNodes": [
                        {
                            "path": "/dev/card",
                            "type": "c",
                            "major": 1,
                            "minor": 5,
                            "permissions": "rw",
                        },
                        {
                            "path": "/dev/cap",
                            "type": "c",
                            "major": 1,
                            "minor": 8,
                            "fileMode": 0o444,
                            "uid": 0,
                            "gid": 0,
                        },
                    ],
                },
            },
        ],
    }


@pytest.fixture(params=containerd.GENERATIONS)
def machine(request: pytest.FixtureRequest) -> Iterator[Node]:
    """One containerd with that specification."""
    folder = Path(tempfile.mkdtemp(prefix="partage-"))
    try:
        with containerd.running(request.param, folder) as (runtime, client):
            (folder / "host").mkdir()
            text = json.dumps(_specification(folder / "host"))
            (folder / "cdi/vendor.json").write_text(text)
            yield Node(runtime, client, Agent(runtime, folder / "agent", NODE))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _made(machine: Node, adjustment: Adjustment | None, cdi: tuple[str, ...]) -> tuple[str, Any]:
    """A container that runs, and its specification for the lower runtime.

    Without the times of files, which are those at which each container was made.
    """
    with plugged(machine.runtime, lambda: adjustment):
        pod = machine.cri.run_pod("cdi", "u1")
        main = machine.cri.start(machine.cri.create(pod, cdi=cdi))
        seen = machine.cri.says(
            main,
            "sh",
            "-c",
            "env; stat -c '%A %u %g %t:%T %n' /dev/card /dev/ctl /dev/cap; cat /etc/lib.so /driver/library; "
            "touch /driver/no 2>&1; echo x > /dev/card; echo wrote $?",
        )
        text = json.dumps(machine.runtime.spec(main)).replace(main, "CONTAINER")
        machine.cri.remove(pod)
    return seen, json.loads(text.replace(pod.id, "POD"))


def _settled(spec: Any) -> Any:
    """Without what two containers differ in, and with lists whose order says nothing in order."""
    for namespace in spec["linux"]["namespaces"]:
        namespace.pop("path", None)
    # CDI puts its value behind the image's own of the same name; of two, runc takes the last.
    spec["process"]["env"] = dict(line.split("=", 1) for line in spec["process"]["env"])
    spec["linux"]["devices"].sort(key=lambda one: one["path"])
    spec["mounts"].sort(key=lambda one: one["destination"])
    # Two differences, both narrower: NRI gives character devices `rw` and CDI `rwm` where nothing else is
    # said, and CDI leaves the rule of a file that a later one has replaced.
    there = {(one["type"], one["major"], one["minor"]) for one in spec["linux"]["devices"]}
    rules = spec["linux"]["resources"]["devices"]
    allowed = {(one["type"], one["major"], one["minor"]) for one in rules if one["allow"]}
    assert there <= allowed
    spec["linux"]["resources"]["devices"] = [one for one in rules if not one["allow"]]
    return spec


def test_edits_are_what_the_runtime_makes_of_names(machine: Node) -> None:
    """Variables, files, mounts, hooks of every point: the same specification, and the same seen inside."""
    specifications = Specifications([machine.runtime.folder / "cdi"])
    named = Adjustment(cdi_devices=tuple(CdiDevice(one) for one in NAMES))
    said = inlined(named, specifications.edits(NAMES), Container("c"), Path("/"))

    seen, theirs = _made(machine, None, NAMES)
    ours_seen, ours = _made(machine, said, ())

    assert _without(seen, "HOSTNAME") == _without(ours_seen, "HOSTNAME")
    assert len([one for one in seen.splitlines() if one[0] == "c" and " /dev/" in one]) == 3
    assert {"CARD=1", "NVIDIA_VISIBLE_DEVICES=void", "the driver"} <= set(seen.splitlines())
    assert {hook for hook, programs in ours["hooks"].items() if programs} >= set(POINTS)
    assert _settled(ours) == _settled(theirs)


def _without(text: str, name: str) -> list[str]:
    return sorted(line for line in text.splitlines() if not line.startswith(f"{name}="))


def test_what_the_runtime_does_not_find_is_not_found_here(machine: Node) -> None:
    """A name that is not described, one that two files describe, and files that are not in order."""
    folder = machine.runtime.folder / "cdi"
    good = {"cdiVersion": "0.6.0", "kind": "other.example/gpu"}
    device = {"name": "0", "containerEdits": {"env": ["A=b"]}}
    for name, document in {
        "twice-a": {**good, "kind": "twice.example/gpu", "devices": [device]},
        "twice-b": {**good, "kind": "twice.example/gpu", "devices": [device]},
        "unknown-field": {**good, "kind": "field.example/gpu", "devices": [device], "more": 1},
        "unknown-version": {
            **good,
            "kind": "version.example/gpu",
            "cdiVersion": "9.0.0",
            "devices": [device],
        },
        "good": {**good, "devices": [device]},
    }.items():
        (folder / f"{name}.json").write_text(json.dumps(document))
    specifications = Specifications([folder])

    for vendor in ("none", "twice", "field", "version"):
        name = f"{vendor}.example/gpu=0"
        with pytest.raises(InvalidValue, match=f"no CDI device {name}"):
            specifications.edits([name])
        pod = machine.cri.run_pod(vendor, "u1")
        with pytest.raises(grpc.RpcError) as caught:
            machine.cri.create(pod, cdi=(name,))
        assert "unresolvable CDI devices" in caught.value.details()
        machine.cri.remove(pod)
    assert specifications.edits(["other.example/gpu=0"])[1].env == ("A=b",)
