"""A right goes with what it is for: who switches a rule off takes its rights away."""

import subprocess
from pathlib import Path

import pytest
import yaml

from charts import HELM, generate, needs_helm

ROOT = Path(__file__).parents[2]
pytestmark = needs_helm


@pytest.mark.parametrize(("seconds", "listed"), [("60", True), ("300", True), ("0", False)])
def test_the_right_to_list_leases_goes_with_the_rule(seconds: str, listed: bool) -> None:  # noqa: FBT001 # a case
    """Agents' Leases are listed in their namespace and nowhere else, and only where they decide."""
    text = generate.rendered(
        str(HELM), "default", "--set", f"scheduler.agentSilenceSeconds={seconds}"
    )
    objects = [one for one in yaml.safe_load_all(text) if one]
    rules = [
        (one["kind"], one["metadata"].get("namespace"), rule["verbs"])
        for one in objects
        if one["kind"] in ("Role", "ClusterRole")
        and "partage-scheduler" in one["metadata"]["name"]
        for rule in one["rules"]
        if rule["resources"] == ["leases"] and "resourceNames" not in rule
    ]

    assert rules == ([("Role", "kube-node-lease", ["list"])] if listed else [])
    assert f"--agent-silence={seconds}" in text


@pytest.mark.parametrize("seconds", ["29", "-1", "1m"])
def test_a_silence_that_no_agent_keeps_is_refused(seconds: str) -> None:
    """Agents renew every ten to twelve seconds, and may miss one."""
    with pytest.raises(subprocess.CalledProcessError):
        generate.rendered(
            str(HELM), "default", "--set", f"scheduler.agentSilenceSeconds={seconds}"
        )
