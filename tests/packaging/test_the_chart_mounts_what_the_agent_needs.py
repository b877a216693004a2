"""Folders of the host without which the agent would refuse every container."""

import os
import shlex
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest

from charts import HELM, generate, needs_helm, objects_of
from partage.agent.container_edits import Given
from partage.agent.host import Host
from partage.agent.isolation.providers import Bind, Mps
from partage.agent.nri.messages import Container
from partage.model.errors import InvalidValue

ROOT = Path(__file__).parents[2]


def _agent(*values: str) -> dict[str, Any]:
    """The agent's pod as the chart makes it with these values."""
    options = [part for value in ("enabled=true", *values) for part in ("--set", f"agent.{value}")]
    text = generate.rendered(str(HELM), "default", *options)
    (found,) = (one for one in objects_of(text) if one and one["kind"] == "DaemonSet")
    spec: dict[str, Any] = found["spec"]["template"]["spec"]
    return spec


@needs_helm
@pytest.mark.parametrize(
    ("values", "folder"),
    [
        pytest.param((), "/usr/local/vgpu", id="as HAMi has it"),
        pytest.param(("isolation.library=/opt/v/l.so",), "/opt/v", id="elsewhere"),
    ],
)
def test_hamis_library_and_its_folders_are_there(values: tuple[str, ...], folder: str) -> None:
    """The agent looks for the library below `/host` and makes the containers' folders there."""
    spec = _agent("isolation.provider=hami-core", *values)

    paths = {one["name"]: one["hostPath"]["path"] for one in spec["volumes"] if "hostPath" in one}
    mounts = {one["mountPath"]: one for one in spec["containers"][0]["volumeMounts"]}
    for needed in (folder, "/tmp/vgpulock"):  # noqa: S108 # where that library looks
        mount = mounts[f"/host{needed}"]
        assert (paths[mount["name"]], mount.get("readOnly")) == (needed, None)


@needs_helm
def test_nothing_of_it_is_there_without_it() -> None:
    """No other provider needs it."""
    assert "hami" not in str(_agent()["volumes"])


@needs_helm
@pytest.mark.parametrize(("provider", "shown"), [("partage", "Bidirectional"), ("none", None)])
def test_the_host_sees_the_memory_that_the_agent_mounts(provider: str, shown: str | None) -> None:
    """Files that containers may write lie on memory of their size (isolation)."""
    spec = _agent(f"isolation.provider={provider}")

    (state,) = (one for one in spec["containers"][0]["volumeMounts"] if one["name"] == "state")
    assert state.get("mountPropagation") == shown


@needs_helm
def test_the_daemon_of_mps_and_containers_have_one_folder() -> None:
    """Both have it under one path, share memory there, and the daemon knows processes by the host's numbers."""
    spec = _agent("isolation.provider=mps")

    paths = {one["name"]: one["hostPath"]["path"] for one in spec["volumes"] if "hostPath" in one}
    mounts = {
        one["mountPath"]: paths.get(one["name"]) for one in spec["containers"][0]["volumeMounts"]
    }
    assert mounts["/run/partage/mps"] == mounts["/host/run/partage/mps"] == Mps().folder
    assert mounts["/dev/shm"] == f"{Mps().folder}/shm"  # noqa: S108
    assert spec["hostPID"]


@needs_helm
def test_tenants_of_mps_cannot_fill_the_host() -> None:
    """All of them may write into its folders: these lie on memory of their own, mounted once, which the host sees."""
    spec = _agent("isolation.provider=mps")
    (first,) = spec["initContainers"]
    paths = {one["name"]: one["hostPath"]["path"] for one in spec["volumes"] if "hostPath" in one}
    (mount,) = first["volumeMounts"]
    assert (paths[mount["name"]], mount["mountPath"]) == ("/run/partage", "/run/partage")
    assert mount["mountPropagation"] == "Bidirectional"
    script = " ".join((*first["command"], shlex.quote(*first["args"])))
    host = "mount -t tmpfs -o size=1m host /run; mkdir -p /run/partage/mps/shm"
    tenant = "head -c 4M /dev/zero > /run/partage/mps/shm/a; head -c 512K /dev/zero > /run/b && echo room"
    found = subprocess.run(
        [
            *shlex.split("unshare --mount --propagation private sh -c"),
            f"{host}; {script}; {script}; grep -c /mps /proc/mounts; {tenant}",
        ],
        capture_output=True,
        text=True,
        check=False,
    )

    if "unshare" in found.stderr:
        pytest.skip("no mount namespace of its own")
    assert found.stdout == "1\nroom\n", found.stderr


@needs_helm
def test_no_other_provider_has_it() -> None:
    """No other provider mounts it."""
    assert "initContainers" not in _agent("isolation.provider=partage")


@needs_helm
@pytest.mark.parametrize(
    ("values", "provider"),
    [
        pytest.param((), "partage", id="real cards"),
        pytest.param(("simulated.model=Tesla-T4", "simulated.cards=1"), "none", id="simulated"),
        pytest.param(("isolation.provider=vendor",), "vendor", id="as was chosen"),
    ],
)
def test_memory_is_held_unless_somebody_else_was_chosen(
    values: tuple[str, ...], provider: str
) -> None:
    """The agent gets the provider without compute; simulated cards do not compute."""
    given = _agent(*values)["containers"][0]["args"]

    assert f"--isolation={provider}" in given
    assert "--isolation-compute" not in given


def test_a_folder_that_a_kubelet_made_is_opened_to_everybody(tmp_path: Path) -> None:
    """The lock is shared by containers of all users."""
    folder = tmp_path / "lock"
    folder.mkdir(mode=0o755)

    Host(tmp_path).adjustment(
        Given(binds=(Bind("/lock", "/lock", writable=True, folder=True),)), (), Container("c")
    )

    assert stat.S_IMODE(folder.stat().st_mode) == 0o777


@pytest.mark.parametrize("what", ["link", "folder"])
def test_what_another_user_put_in_its_place_is_not_opened(tmp_path: Path, what: str) -> None:
    """The lock is in `/tmp`: a link there leads tenants, and the mode, to any folder."""
    treasure, folder = tmp_path / "treasure", tmp_path / "lock"
    treasure.mkdir(mode=0o700)
    if what == "link":
        folder.symlink_to(treasure)
    elif os.geteuid():
        pytest.skip("only root can give a folder away")
    else:
        folder.mkdir(mode=0o700)
        os.chown(folder, 12345, 12345)

    with pytest.raises(InvalidValue, match="no folder of root's"):
        Host(tmp_path).adjustment(
            Given(binds=(Bind("/lock", "/lock", writable=True, folder=True),)), (), Container("c")
        )

    assert {stat.S_IMODE(one.stat().st_mode) for one in (treasure, folder)} == {0o700}
