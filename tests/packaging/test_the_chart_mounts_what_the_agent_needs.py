"""Folders of the host without which the agent would refuse every container."""

import stat
from pathlib import Path
from typing import Any

import pytest
import yaml
from charts import HELM, generate, needs_helm

from partage.agent.giving import Given
from partage.agent.host import Host
from partage.agent.isolation.providers import Bind
from partage.agent.nri.messages import Container

ROOT = Path(__file__).parents[2]


def _agent(*values: str) -> dict[str, Any]:
    """The agent's pod as the chart makes it with these values."""
    options = [part for value in ("enabled=true", *values) for part in ("--set", f"agent.{value}")]
    text = generate.rendered(str(HELM), "default", *options)
    (found,) = (one for one in yaml.safe_load_all(text) if one and one["kind"] == "DaemonSet")
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
    """For files that containers may write, which lie on memory of their size (isolation)."""
    spec = _agent(f"isolation.provider={provider}")

    (state,) = (one for one in spec["containers"][0]["volumeMounts"] if one["name"] == "state")
    assert state.get("mountPropagation") == shown


def test_a_folder_that_a_kubelet_made_is_opened_to_everybody(tmp_path: Path) -> None:
    """The lock is shared by containers of all users."""
    folder = tmp_path / "lock"
    folder.mkdir(mode=0o755)

    Host(tmp_path).adjustment(
        Given(binds=(Bind("/lock", "/lock", writable=True, folder=True),)), (), Container("c")
    )

    assert stat.S_IMODE(folder.stat().st_mode) == 0o777
