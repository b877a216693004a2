"""The chart, and the genuine helm that installs it."""

import os
import subprocess
from pathlib import Path

from control_plane import HELM, ControlPlane

CHART = Path(__file__).parents[2] / "deploy" / "helm" / "partage"


def helm(plane: ControlPlane, *arguments: str, program: Path = HELM) -> str:
    """Run helm against the cluster, and return what it prints.

    Raises:
        AssertionError: it failed; says what it said.
    """
    done = subprocess.run(
        [str(program), *arguments, "--kubeconfig", str(plane.kubeconfig())],
        capture_output=True,
        text=True,
        check=False,
        env={
            **os.environ,
            "HELM_DATA_HOME": str(plane.folder),
            "HELM_CACHE_HOME": str(plane.folder),
        },
    )
    assert done.returncode == 0, f"helm {' '.join(arguments)}: {done.stderr}"
    return done.stdout
