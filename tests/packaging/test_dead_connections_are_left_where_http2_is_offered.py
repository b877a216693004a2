"""Both ends of HTTP/2 in what is installed: offered only to a kube-scheduler that notices a dead connection."""

from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
TIMEOUT = 10
"""Seconds of a call by HTTP/1.1: `httpTimeout` of the extender."""


@pytest.mark.parametrize("profile", ["default", "koordinator", "qgpu", "hami"])
def test_a_silent_connection_is_left_as_soon_as_a_call(profile: str) -> None:
    """The rendered chart, which is the plain manifests: the option there, the variables here."""
    text = (ROOT / f"deploy/kustomize/{profile}/partage.yaml").read_text(encoding="utf-8")
    found = [one for one in yaml.safe_load_all(text) if one]
    pods = [one["spec"]["template"]["spec"] for one in found if one["kind"] == "Deployment"]
    containers = {one["name"]: one for pod in pods for one in pod["containers"]}
    given = {one["name"]: one["value"] for one in containers["kube-scheduler"].get("env", ())}

    assert "--http2" in containers["scheduler"]["args"]
    silence = int(given["HTTP2_READ_IDLE_TIMEOUT_SECONDS"])
    assert silence + int(given["HTTP2_PING_TIMEOUT_SECONDS"]) <= TIMEOUT
    (config,) = [
        yaml.safe_load(one["data"]["config.yaml"])
        for one in found
        if one["kind"] == "ConfigMap" and "extenders" in one["data"].get("config.yaml", "")
    ]
    assert config["extenders"][0]["httpTimeout"] == f"{TIMEOUT}s"
