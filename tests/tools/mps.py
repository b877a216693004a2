"""A stand-in for the driver's `nvidia-cuda-mps-control`: it answers while its daemon was started and not ended."""

from pathlib import Path

__all__ = ["CONTROL", "install"]

CONTROL = "nvidia-cuda-mps-control"
_SCRIPT = """#!/bin/sh
control=$CUDA_MPS_PIPE_DIRECTORY/control
if [ "$1" = -d ]; then
    [ -d "$CUDA_MPS_LOG_DIRECTORY" ] && : > "$control"
    exit
fi
read -r question
if [ ! -f "$control" ]; then
    echo "Cannot find MPS control daemon process"
    exit 1
fi
[ "$question" = get_default_active_thread_percentage ] && echo 100.0
"""


def install(folder: Path) -> Path:
    """Write it into a folder; where it is."""
    path = folder / CONTROL
    path.write_text(_SCRIPT)
    path.chmod(0o755)
    return path
