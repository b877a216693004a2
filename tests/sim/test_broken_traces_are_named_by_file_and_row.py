from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result
from small_traces import NODES, PODS, write, write_sequences

from partage.cli.simulate import simulate

POD_COUNT = len(PODS) - 1


def _invoke(folder: Path, *arguments: str) -> Result:
    given = ["openb", str(folder), "--trace", "small", "--policy", "first-fit", *arguments]
    return CliRunner().invoke(simulate, given)


def _refused(result: Result, *parts: str) -> None:
    """Exit status 2 and one line with all parts."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert len(result.stderr.splitlines()) == 1
    assert all(part in result.stderr for part in parts), result.stderr


POD_FAULTS = [
    ("a,4000,8192,one,500,", "num_gpu is 'one', not a whole number"),
    ("a,4000,8192,1,500.5,", "gpu_milli is '500.5', not a whole number"),
    ("a,-1,8192,1,500,", "cpu_milli is -1"),
    ("a,4000,8192,1,1001,", "gpu_milli is 1001, at most 1000"),
    ("a,4000,99999999999999999999,1,10,", "memory_mib is 99999999999999999999"),
    ("a,4000,8192,1,500,H100|T4", "'H100', which no node of nodes.csv has"),
    ("a,4000,8192,1", "no field for gpu_milli, gpu_spec"),
    ("a,4000,8192,1,500,,,", "more than 6 fields"),
    ("a,,8192,1,500,", "cpu_milli is ''"),
]


@pytest.mark.parametrize(
    ("line", "message"), POD_FAULTS, ids=[message for _, message in POD_FAULTS]
)
def test_a_broken_pod_row_is_named(tmp_path: Path, line: str, message: str) -> None:
    """The one line names pods_small.csv, the row and the line, and says what is wrong."""
    pods = ("name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec", "ok,1,1,0,0,", line)

    result = _invoke(write(tmp_path, pods=pods))

    _refused(result, "pods_small.csv: row 2 (line 3): ", message)


@pytest.mark.parametrize("text", ["soon", "nan", "1e300"])
def test_a_time_that_is_none_is_named(tmp_path: Path, text: str) -> None:
    """Creation and deletion times are checked where they are there."""
    pods = (PODS[0], f"p0,1,1,0,0,,{text},9")

    result = _invoke(write(tmp_path, pods=pods))

    _refused(result, "pods_small.csv: row 1 (line 2): creation_time")


NODE_FAULTS = [
    ("x,64000,262144,many,T4", "gpu is 'many'"),
    ("x,64000,262144,2000,T4", "gpu is 2000, at most 1024"),
    ("n0,64000,262144,2,T4", "node 'n0' is there already"),
    (",64000,262144,2,T4", "sn is empty"),
]


@pytest.mark.parametrize(("line", "message"), NODE_FAULTS, ids=[m for _, m in NODE_FAULTS])
def test_a_broken_node_row_is_named(tmp_path: Path, line: str, message: str) -> None:
    """The same for nodes.csv."""
    result = _invoke(write(tmp_path, nodes=(*NODES, line)))

    _refused(result, f"nodes.csv: row {len(NODES)} (line {len(NODES) + 1}): ", message)


def test_tables_must_be_there_and_have_their_columns(tmp_path: Path) -> None:
    """A missing file, column, node or pod is named; so is a file that is no text."""
    _refused(_invoke(tmp_path), "nodes.csv: No such file")
    write(tmp_path, nodes=("sn,cpu_milli,gpu", "n0,1,1"))
    _refused(_invoke(tmp_path), "nodes.csv: line 1: no column memory_mib, model")
    write(tmp_path, nodes=NODES[:1])
    _refused(_invoke(tmp_path), "nodes.csv: no nodes")
    write(tmp_path, pods=PODS[:1])
    _refused(_invoke(tmp_path), "pods_small.csv: no pods")
    (tmp_path / "pods_small.csv").unlink()
    _refused(_invoke(tmp_path), "pods_small.csv: No such file")
    (tmp_path / "pods_small.csv").write_bytes(b"name,cpu_milli\xff\n")
    _refused(_invoke(tmp_path), "pods_small.csv: not UTF-8 text")


SEQUENCES = [
    ({}, "no array pod_small_7"),
    ({"pod_small_7": [0]}, "no array node_small_7"),
    (
        {"pod_small_7": [0, POD_COUNT], "node_small_7": [0, 1, 2, 3]},
        f"pod_small_7 entry 1 is row {POD_COUNT}, but pods_small.csv has rows 0 to {POD_COUNT - 1}",
    ),
    ({"pod_small_7": [-1], "node_small_7": [0, 1, 2, 3]}, "pod_small_7 entry 0 is row -1"),
    ({"pod_small_7": [0], "node_small_7": [0, 1]}, "ranks 2 nodes, but nodes.csv has 4"),
    ({"pod_small_7": [0], "node_small_7": [0, 1, 1, 2]}, "gives two nodes the same rank"),
    ({"pod_small_7": [0.5], "node_small_7": [0, 1, 2, 3]}, "pod_small_7 is no list of whole"),
    ({"pod_small_7": [[0]], "node_small_7": [0, 1, 2, 3]}, "pod_small_7 is no list of whole"),
]


@pytest.mark.parametrize(("arrays", "message"), SEQUENCES, ids=[m for _, m in SEQUENCES])
def test_a_sequence_must_match_its_trace(
    tmp_path: Path, arrays: dict[str, object], message: str
) -> None:
    """Arrays that are missing or do not belong to the trace are named with the file."""
    path = write_sequences(write(tmp_path) / "orders.npz", arrays)

    result = _invoke(tmp_path, "--sequences", str(path), "--seed", "7")

    _refused(result, "orders.npz: ", message)


def test_a_single_array_holds_no_sequences(tmp_path: Path) -> None:
    """An NPY file is not an NPZ file."""
    path = write(tmp_path) / "orders.npy"
    np.save(path, np.arange(3))

    _refused(_invoke(tmp_path, "--sequences", str(path)), "orders.npy: not an NPZ file")


@pytest.mark.parametrize(
    "content",
    [None, b"", b"not numpy", b"PK\x03\x04 broken", b"\x80\x04K\x01."],
    ids=["missing", "empty", "text", "zip", "pickle"],
)
def test_a_file_without_sequences_is_named(tmp_path: Path, content: bytes | None) -> None:
    """A file that is missing or no NPZ gives one line, never a traceback."""
    path = write(tmp_path) / "orders.npz"
    if content is not None:
        path.write_bytes(content)

    _refused(_invoke(tmp_path, "--sequences", str(path)), "orders.npz: ")


def test_a_policy_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    """The line lists the policies there are."""
    result = CliRunner().invoke(
        simulate, ["openb", str(write(tmp_path)), "--trace", "small", "--policy", "magic"]
    )

    _refused(result, "no policy 'magic'", "fgd", "first-fit")
