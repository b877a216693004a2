"""What deploy/integrations adds to cluster-autoscaler leaves the operator's own flags as they are."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from partage.apiserver.patch import PatchError, json_patch

PATCH = Path(__file__).parents[2] / "deploy" / "integrations" / "cluster-autoscaler.yaml"
OWN = ["./cluster-autoscaler", "--v=4", "--cloud-provider=aws", "--nodes=1:10:group"]
ADDED = [
    "--max-node-provision-time=20m",
    "--new-pod-scale-up-delay=10s",
    "--ignore-daemonsets-utilization=true",
]


def _deployment(name: str = "cluster-autoscaler", **flags: list[str]) -> dict[str, Any]:
    container = {"name": name, "image": "cluster-autoscaler", **flags}
    return {"kind": "Deployment", "spec": {"template": {"spec": {"containers": [container]}}}}


def _container(deployment: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = deployment["spec"]["template"]["spec"]["containers"][0]
    return found


def test_flags_of_its_own_stay_before_those_that_are_added() -> None:
    """The last of two of one name holds, so ours come last, and nothing else changes."""
    before = _deployment(command=OWN, args=["--expander=least-waste"])

    after = json_patch(before, yaml.safe_load(PATCH.read_text()))

    assert _container(after) == {**_container(before), "command": OWN + ADDED}


def test_flags_in_args_are_kept_by_the_change_that_the_file_names() -> None:
    """`args` for `command` in the paths is all that such a Deployment needs."""
    patch = yaml.safe_load(PATCH.read_text().replace("/command/-", "/args/-"))

    after = json_patch(_deployment(args=OWN[1:]), patch)

    assert _container(after)["args"] == OWN[1:] + ADDED


@pytest.mark.parametrize(
    "other",
    [
        pytest.param(_deployment(args=OWN[1:]), id="flags elsewhere"),
        pytest.param(_deployment("sidecar", command=OWN), id="another container first"),
    ],
)
def test_what_does_not_fit_is_refused(other: dict[str, Any]) -> None:
    """Nothing is added where the program would not read it."""
    patch = yaml.safe_load(PATCH.read_text())

    with pytest.raises(PatchError):
        json_patch(other, patch)
