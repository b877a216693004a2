"""The profiles qgpu and hami, each with all its programs under the roles that it brings, in its namespace and names.

The profile koordinator runs so in `test_koordinators_commands_work_as_printed.py`, the default everywhere else.
"""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from chart import CHART
from stack import Layout, Stack, eventually, pod
from stack import stack as started

RECORD = "partage.io/allocation"
CARDS = {"model": "Tesla-T4", "cards": 2, "memory": "16Gi"}
ASKS = {
    "qgpu": {"tke.cloud.tencent.com/qgpu-core": "20", "tke.cloud.tencent.com/qgpu-memory": "5"},
    "hami": {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"},
}


def layout(profile: str, folder: Path) -> Layout:
    """The profile's layout, with its agent, which finds a folder of its own in place of a kubelet's."""
    return Layout(
        system="kube-system",
        scheduler=f"{profile}-scheduler",
        beside=f"{profile}-kube-scheduler",
        webhook=f"{profile}-webhook",
        agent={"qgpu": "qgpu-manager", "hami": "hami-device-plugin"}[profile],
        settled=False,
        options=(
            "-f",
            str(CHART / "profiles" / f"{profile}.yaml"),
            "--set",
            "agent.enabled=true",
            "--set",
            f"agent.nodeSelector.nowhere=here,agent.mig=false,agent.devicePlugin.kubeletDir={folder}",
        ),
    )


@pytest.fixture(scope="module", params=ASKS)
def profile(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Stack]]:
    """The profile's name and a cluster with it; that nothing was refused is judged at its end."""
    name = request.param
    folder = tmp_path_factory.mktemp("kubelet")
    with started(tmp_path_factory.mktemp(name), layout=layout(name, folder)) as made:
        yield name, made


def test_a_pod_of_its_protocol_is_placed(profile: tuple[str, Stack], tmp_path: Path) -> None:
    """The agent reports a node's cards, the totals follow, and the pod gets its share of one."""
    name, stack = profile
    (tmp_path / "cards.json").write_text(json.dumps(CARDS))
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "n1"}}
    offers = dict.fromkeys(ASKS[name], "100") | {"cpu": "8", "memory": "32Gi", "pods": "110"}
    stack.add_nodes([{**node, "status": {"allocatable": offers}}])
    stack.agent(
        "n1",
        "--host-root",
        str(tmp_path),
        "--journal",
        str(tmp_path / "journal"),
        "--nri-socket",
        str(tmp_path / "none"),
        "--simulated",
        str(tmp_path / "cards.json"),
        "--isolation",
        "none",
    )

    def totals() -> object:
        told = stack.plane.call("GET", "/api/v1/nodes/n1")["status"]["allocatable"]
        return told.get("koordinator.sh/gpu-core") == "200"

    eventually("the node has its totals", totals)
    stack.create(pod("share", ASKS[name]))
    found = stack.bound("share")

    record = json.loads(found["metadata"]["annotations"][RECORD])
    assert [one["type"] for one in record["containers"][0]["devices"]] == ["gpu"]
    assert not stack.refusals()
