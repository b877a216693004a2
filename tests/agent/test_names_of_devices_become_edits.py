"""CDI names become edits of a container as a runtime would make them, or a refusal that says which cannot."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partage.agent.cdi.edits import inlined
from partage.agent.cdi.specs import Edits, Specifications
from partage.agent.container_edits import Given
from partage.agent.host import Host
from partage.agent.mig.cdi import Specs
from partage.agent.nri.messages import (
    Adjustment,
    CdiDevice,
    Container,
    Device,
    LinuxAdjustment,
    Mount,
    Variable,
    Wrapped,
)
from partage.model.errors import InvalidDocument, InvalidValue

KIND = "nvidia.com/gpu"
NULL = {"path": "/dev/nvidia0", "hostPath": "/dev/null"}
ROOT = Path("/")


def _spec(*devices: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"cdiVersion": "0.6.0", "kind": KIND, "devices": list(devices), **more}


def _device(name: str, **edits: Any) -> dict[str, Any]:
    return {"name": name, "containerEdits": edits}


def _env(*specs: tuple[Edits, ...]) -> list[str]:
    return [line for edits in specs for one in edits for line in one.env]


def _inlined(
    edits: dict[str, Any],
    container: Container | None = None,
    adjustment: Adjustment | None = None,
    folder: Path = ROOT,
) -> Adjustment:

    return inlined(
        adjustment or Adjustment(cdi_devices=(CdiDevice("x"),)),
        [msgspec.convert(edits, Edits)],
        container or Container("c"),
        folder,
    )


# --- which edits a name stands for -----------------------------------------------------------


def test_edits_of_a_file_come_once_before_those_of_its_devices(tmp_path: Path) -> None:
    """The common edits of two devices of one file come once; a file is YAML or JSON."""
    common = {"containerEdits": {"env": ["A=common"]}}
    spec = _spec(_device("0", env=["A=0"]), _device("1", env=["B=1"]), **common)
    (tmp_path / "a.json").write_text(json.dumps(spec))
    (tmp_path / "b.yaml").write_text(
        "---\ncdiVersion: 0.5.0\nkind: vendor.com/nic\n"
        "devices:\n- name: '0'\n  containerEdits: {env: [C=nic]}\n"
    )
    (tmp_path / "c.txt").write_text("no specification")

    found = Specifications([tmp_path]).edits([f"{KIND}=0", "vendor.com/nic=0", f"{KIND}=1"])

    assert _env(found) == ["A=common", "A=0", "C=nic", "B=1"]


def test_the_last_folder_goes_first_and_a_name_twice_stands_for_nothing(tmp_path: Path) -> None:
    """As runtimes settle it: by folder; a name twice within one folder is a conflict, whatever another folder says."""
    low, high = tmp_path / "etc", tmp_path / "run"
    for folder, name, devices in (
        (low, "a", ("0", "1")),
        (high, "b", ("0",)),
        (low, "c", ("1",)),
        (high, "d", ("2",)),
    ):
        folder.mkdir(exist_ok=True)
        made = [_device(one, env=[f"FROM={name}"]) for one in devices]
        (folder / f"{name}.json").write_text(json.dumps(_spec(*made)))
    specifications = Specifications([low, tmp_path / "missing", high])

    assert _env(specifications.edits([f"{KIND}=0"]), specifications.edits([f"{KIND}=2"])) == [
        "FROM=b",
        "FROM=d",
    ]
    with pytest.raises(
        InvalidValue, match=r"no CDI device nvidia.com/gpu=1 .* more than one file"
    ):
        specifications.edits([f"{KIND}=1"])


@pytest.mark.parametrize(
    ("text", "why"),
    [
        pytest.param("{", "x.json", id="no document"),
        pytest.param("[]\n---\n[]", "x.json", id="two documents"),
        pytest.param(json.dumps(_spec() | {"more": 1}), "more", id="unknown field"),
        pytest.param(
            json.dumps(_spec() | {"kind": "gpu"}), "'gpu' is not VENDOR/CLASS", id="kind"
        ),
        pytest.param(json.dumps(_spec() | {"cdiVersion": "9.0.0"}), "9.0.0", id="version"),
        pytest.param(json.dumps(_spec(_device("a"), _device("a"))), "twice", id="a device twice"),
        pytest.param(json.dumps(_spec(_device("a", env="A=b"))), "array", id="a wrong type"),
        pytest.param("a: " * 300, "x.json", id="nonsense"),
    ],
)
def test_a_broken_file_spoils_no_other(tmp_path: Path, text: str, why: str) -> None:
    """Its devices are not there, with the reason; others are."""
    (tmp_path / "x.json").write_text(text)
    (tmp_path / "y.json").write_text(json.dumps(_spec(_device("0", env=["A=b"]))))
    specifications = Specifications([tmp_path])

    assert _env(specifications.edits([f"{KIND}=0"])) == ["A=b"]
    with pytest.raises(InvalidValue, match=why):
        specifications.edits([f"{KIND}=0", f"{KIND}=a"])


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def _large(path: Path) -> None:
    path.touch()
    os.truncate(path, 2**40)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (_pipe, "not a regular file"),
        (_endless, "not a regular file"),
        (_large, "more than 8388608 bytes"),
    ],
)
def test_no_file_holds_up_who_reads_it(
    tmp_path: Path, make: Callable[[Path], None], why: str
) -> None:
    """One thread decides about all containers of a node, and programs of other makers write into these folders."""
    make(tmp_path / "x.json")
    (tmp_path / "y.json").write_text(json.dumps(_spec(_device("0", env=["A=b"]))))
    specifications = Specifications([tmp_path])

    assert _env(specifications.edits([f"{KIND}=0"])) == ["A=b"]
    with pytest.raises(InvalidValue, match=why):
        specifications.edits([f"{KIND}=a"])
    make(Specs(tmp_path).path("GPU-1", 0))
    with pytest.raises(InvalidDocument, match=why):
        Specs(tmp_path).nodes("GPU-1", 0, "MIG-1")


def test_files_are_read_again_when_they_change(tmp_path: Path) -> None:
    """One that changed, one that came, one that went: without a start."""
    specifications = Specifications([tmp_path])
    path = tmp_path / "a.json"
    for value in ("first", "second one"):
        path.write_text(json.dumps(_spec(_device("0", env=[f"A={value}"]))))
        assert _env(specifications.edits([f"{KIND}=0"])) == [f"A={value}"]
    path.unlink()
    with pytest.raises(InvalidValue, match=f"no CDI device {KIND}=0"):
        specifications.edits([f"{KIND}=0"])


# --- edits as an adjustment ------------------------------------------------------------------


def test_every_kind_of_edit_is_said(tmp_path: Path) -> None:
    """Variables, device files with numbers of the host or of the file, mounts, hooks of all points."""
    points = (
        "prestart",
        "createRuntime",
        "createContainer",
        "startContainer",
        "poststart",
        "poststop",
    )
    edits = {
        "env": ["A=b=c", "NVIDIA_VISIBLE_DEVICES=void"],
        "deviceNodes": [
            NULL,
            {
                "path": "/dev/caps",
                "type": "c",
                "major": 236,
                "minor": 9,
                "fileMode": 0o444,
                "permissions": "rw",
                "uid": 7,
                "gid": 0,
            },
            {"path": "/dev/all", "type": "b", "major": 8, "minor": 1},
        ],
        "mounts": [
            {
                "hostPath": "/usr/lib/x.so",
                "containerPath": "/lib/x.so",
                "options": ["ro", "nosuid", "rbind", "rprivate"],
            }
        ],
        "hooks": [
            {
                "hookName": point,
                "path": f"/bin/{point}",
                "args": [point, "now"],
                "env": ["H=1"],
                "timeout": 3,
            }
            for point in points
        ],
        "additionalGids": [0],
    }

    found = _inlined(edits)

    assert found.env == (Variable("A", "b=c"), Variable("NVIDIA_VISIBLE_DEVICES", "void"))
    assert found.linux == LinuxAdjustment(
        (
            Device("/dev/nvidia0", "c", 1, 3),
            Device("/dev/caps", "c", 236, 9, Wrapped(0o444), Wrapped(7), Wrapped(0)),
            Device("/dev/all", "b", 8, 1),
        )
    )
    options = ("ro", "nosuid", "rbind", "rprivate")
    assert found.mounts == (Mount("/lib/x.so", "", "/usr/lib/x.so", options),)
    assert found.hooks is not None
    said = (
        found.hooks.prestart,
        found.hooks.create_runtime,
        found.hooks.create_container,
        found.hooks.start_container,
        found.hooks.poststart,
        found.hooks.poststop,
    )
    assert [[hook.path for hook in hooks] for hooks in said] == [[f"/bin/{p}"] for p in points]
    assert found.hooks.prestart[0].timeout == Wrapped(3)
    assert found.cdi_devices == ()
    assert Adjustment.decode(found.encode()) == found


def test_what_the_agent_gives_and_what_a_specification_says_go_together() -> None:
    """The specification's value of a variable counts, and the agent's file or mount; nothing is there twice."""
    adjustment = Adjustment(
        annotations={"a": "b"},
        env=(Variable("NVIDIA_VISIBLE_DEVICES", "GPU-0"), Variable("OURS", "1")),
        linux=LinuxAdjustment((Device("/dev/nvidia0", "c", 195, 0, Wrapped(0o666)),)),
        mounts=(Mount("/lib", "bind", "/ours", ("ro",)),),
        cdi_devices=(CdiDevice("x"),),
    )
    edits = {
        "env": ["NVIDIA_VISIBLE_DEVICES=void", "B=1", "B=2"],
        "deviceNodes": [NULL, {**NULL, "path": "/dev/x"}, {**NULL, "path": "/dev/x"}],
        "mounts": [{"hostPath": "/theirs", "containerPath": "/lib"}],
    }

    found = _inlined(edits, adjustment=adjustment)

    assert {one.key: one.value for one in found.env} == {
        "NVIDIA_VISIBLE_DEVICES": "void",
        "OURS": "1",
        "B": "2",
    }
    assert len(found.env) == 3
    assert found.linux is not None
    assert [(one.path, one.major) for one in found.linux.devices] == [
        ("/dev/nvidia0", 195),
        ("/dev/x", 1),
    ]
    assert found.mounts == adjustment.mounts
    assert found.annotations == {"a": "b"}


@pytest.mark.parametrize(
    ("edits", "why"),
    [
        pytest.param({"additionalGids": [44]}, "additionalGids cannot be expressed", id="groups"),
        pytest.param({"intelRdt": {"closID": "a"}}, "intelRdt cannot be expressed", id="rdt"),
        pytest.param(
            {"netDevices": [{"name": "a"}]}, "netDevices cannot be expressed", id="network"
        ),
        pytest.param({"deviceNodes": [{**NULL, "permissions": "r"}]}, "'r' cannot be", id="less"),
        pytest.param({"deviceNodes": [{**NULL, "permissions": "rwx"}]}, "'rwx'", id="nonsense"),
        pytest.param({"deviceNodes": [{**NULL, "type": "b"}]}, "not 'b'", id="another type"),
        pytest.param(
            {"deviceNodes": [{"path": "/dev/p", "type": "p"}]}, "/dev/p: No such", id="fifo"
        ),
        pytest.param(
            {"deviceNodes": [{"path": "/p", "type": "u", "major": 1}]}, "'u' cannot", id="u"
        ),
        pytest.param({"deviceNodes": [{"path": "/etc/hostname"}]}, "is no device", id="a file"),
        pytest.param({"deviceNodes": [{"path": "/dev/none"}]}, "No such file", id="not there"),
        pytest.param(
            {"deviceNodes": [{**NULL, "path": "-/dev/x"}]}, "no absolute path", id="minus"
        ),
        pytest.param(
            {"deviceNodes": [{**NULL, "fileMode": 0o660, "gid": 44}]},
            "uid and gid are needed",
            id="owner",
        ),
        pytest.param(
            {"mounts": [{"hostPath": "", "containerPath": "/a"}]}, "no hostPath", id="mount"
        ),
        pytest.param(
            {"mounts": [{"hostPath": "/a", "containerPath": "-/a"}]}, "absolute", id="unmount"
        ),
        pytest.param({"env": ["-PATH=x"]}, "not NAME=VALUE", id="unset"),
        pytest.param({"env": ["A"]}, "not NAME=VALUE", id="no value"),
        pytest.param({"hooks": [{"hookName": "later", "path": "/a"}]}, "'later'", id="hook"),
        pytest.param({"hooks": [{"hookName": "prestart", "path": ""}]}, "of ''", id="no program"),
    ],
)
def test_what_cannot_be_said_is_refused(edits: dict[str, Any], why: str) -> None:
    """Nothing is left out: one edit that NRI has no words for refuses the container."""
    with pytest.raises(InvalidValue, match=why):
        _inlined({"env": ["FINE=1"], **edits} if "env" not in edits else edits)


def test_a_variable_that_nri_cannot_change_is_refused() -> None:
    """The image and the pod both set it, and the specification another value."""
    container = Container("c", env=("A=image", "A=pod", "B=1", "B=1"))

    with pytest.raises(InvalidValue, match="variable A of a CDI specification"):
        _inlined({"env": ["A=theirs"]}, container)
    assert _inlined({"env": ["B=1"]}, container).env == (Variable("B", "1"),)


@settings(max_examples=150, deadline=None)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-5, 5)
        | st.sampled_from(["", "-", "/a", "A=b", "c"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    [
                        "cdiVersion",
                        "kind",
                        "devices",
                        "name",
                        "containerEdits",
                        "env",
                        "deviceNodes",
                        "path",
                        "hooks",
                        "mounts",
                        "hookName",
                        "type",
                        "major",
                        "permissions",
                    ]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_nonsense_grants_nothing(tmp_path_factory: pytest.TempPathFactory, document: Any) -> None:
    """Any content of the file becomes edits that can be said, or a refusal; never another error."""
    folder = tmp_path_factory.mktemp("cdi")
    edits = document if isinstance(document, dict) else {}
    (folder / "a.json").write_text(json.dumps(document))
    (folder / "b.json").write_text(json.dumps(_spec({"name": "0", "containerEdits": edits})))
    try:
        found = Specifications([folder]).edits([f"{KIND}=0"])
        inlined(Adjustment(), found, Container("c"), folder)
    except InvalidValue:
        return


# --- where it is done ------------------------------------------------------------------------


def test_only_a_runtime_that_cannot_be_told_names_gets_edits(tmp_path: Path) -> None:
    """The same gift: names for one runtime, edits for the other, and a refusal for what is not described."""
    (tmp_path / "a.json").write_text(json.dumps(_spec(_device("GPU-0", env=["A=b"]))))
    specifications = Specifications([tmp_path])
    host = Host(tmp_path, cdi=specifications)
    given = Given({"OURS": "1"}, cdi=(f"{KIND}=GPU-0",))

    told = host.adjustment(given, (), Container("c"))
    specifications.inline = True
    edited = host.adjustment(given, (), Container("c"))

    assert told is not None
    assert edited is not None
    assert told.cdi_devices == (CdiDevice(f"{KIND}=GPU-0"),)
    assert edited.cdi_devices == ()
    assert edited.env == (Variable("OURS", "1"), Variable("A", "b"))
    with pytest.raises(InvalidValue, match=r"no CDI device .*GPU-1"):
        host.adjustment(replace(given, cdi=(f"{KIND}=GPU-1",)), (), Container("c"))


def test_a_device_file_is_looked_up_under_the_hosts_root(tmp_path: Path) -> None:
    """The agent sees it as the host does: a link there is no device, as for a runtime."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/linked").symlink_to("/dev/null")

    with pytest.raises(InvalidValue, match="/dev/linked is no device"):
        _inlined({"deviceNodes": [{"path": "/dev/linked"}]}, folder=tmp_path)
    if os.geteuid() == 0:
        os.mknod(tmp_path / "dev/x", 0o20666, os.makedev(1, 5))
        found = _inlined({"deviceNodes": [{"path": "/dev/x"}]}, folder=tmp_path)
        assert found.linux == LinuxAdjustment((Device("/dev/x", "c", 1, 5),))
