"""Small traces for tests, and where the published ones are."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest

NODES = (
    "sn,cpu_milli,memory_mib,gpu,model",
    "n0,64000,262144,2,T4",
    "n1,96000,393216,8,G2",
    "n2,96000,393216,4,T4",
    "n3,32000,131072,0,CPU",
)
PODS = (
    "name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,creation_time,deletion_time",
    "p0,4000,8192,1,500,,0,100",
    "p1,8000,16384,1,1000,T4,10,300",
    "p2,2000,4096,0,0,,20,400",
    "p3,16000,65536,2,1000,G2|T4,30,",
    "p4,1000,1024,1,250,T4|T4,40,90",
    "p5,60000,1024,0,0,,50,60",
    "p6,32000,65536,8,1000,,60,500",
)
_ROOT = Path(__file__).resolve().parents[2]


def published() -> Path:
    """The folder of the public openb traces; the test is skipped where there is none."""
    folder = Path(os.environ.get("PARTAGE_OPENB") or _ROOT / "../shared/data/openb").resolve()
    if not (folder / "published_allocation.csv").exists():
        pytest.skip(
            f"no openb traces in {folder}: get them from the FGD paper's public simulator "
            "(hkust-adsl/kubernetes-scheduler-simulator) and set PARTAGE_OPENB to their folder"
        )
    return folder


def write(
    folder: Path,
    *,
    nodes: Sequence[str] = NODES,
    pods: Sequence[str] = PODS,
    name: str = "small",
) -> Path:
    """A folder with a trace of these lines."""
    (folder / "nodes.csv").write_text("\n".join(nodes) + "\n", encoding="utf-8")
    (folder / f"pods_{name}.csv").write_text("\n".join(pods) + "\n", encoding="utf-8")
    return folder


def write_sequences(path: Path, arrays: Mapping[str, object]) -> Path:
    """An NPZ file with these arrays."""
    np.savez(path, **{name: np.asarray(values) for name, values in arrays.items()})
    return path
