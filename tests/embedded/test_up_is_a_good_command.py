"""`partage up` as a program: one line of JSON, a clean end, clear errors."""

import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from up_world import node, run, running

from partage.cli.up import printed, up
from partage.embedded.applying import Outcome
from partage.embedded.cluster import Addresses, EmbeddedCluster, Plan, _held
from partage.embedded.overview import Overview, PlacedLine, WaitingLine
from partage.model.errors import InvalidValue

COMMAND = (sys.executable, "-m", "partage.cli.main", "up", "--no-examples")
PATIENCE = 240


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["SIGTERM", "SIGINT"])
def test_it_tells_where_it_is_and_ends_cleanly(tmp_path: Path, number: int) -> None:
    """One line of JSON once ready, every address answers, exit code 0 and no file left behind."""
    with subprocess.Popen(
        [*COMMAND, "-o", "json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as process:
        assert process.stdout is not None
        where = json.loads(process.stdout.readline())
        assert set(where) == {"api", "scheduler", "dashboard", "kubeconfig"}
        config = yaml.safe_load(Path(where["kubeconfig"]).read_text(encoding="utf-8"))
        assert config["clusters"][0]["cluster"]["server"] == where["api"]
        for url in (
            f"{where['api']}/api/v1/nodes",
            f"{where['scheduler']}/readyz",
            where["dashboard"],
        ):
            with urllib.request.urlopen(url, timeout=PATIENCE) as answer:  # noqa: S310 # loopback
                assert answer.status == 200
        process.send_signal(number)
        out, err = process.communicate(timeout=PATIENCE)

    assert (process.returncode, out, err) == (0, "", "")
    assert not Path(where["kubeconfig"]).exists()


@pytest.mark.parametrize(
    ("option", "told"), [("--port", "API server"), ("--scheduler-port", "scheduler")]
)
def test_a_taken_port_is_named(option: str, told: str) -> None:
    """Exit code 2 and one line."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        result = CliRunner().invoke(up, ["--no-examples", option, port])

    assert result.exit_code == 2
    assert result.stderr == (
        f"partage up: port {port} of the {told} cannot be had: Address already in use; "
        "choose another, or 0 for any that is free\n"
    )


@pytest.mark.parametrize("option", ["--nodes", "-f"])
def test_a_missing_file_is_named(option: str) -> None:
    """Exit code 2 and one line."""
    result = CliRunner().invoke(up, ["--no-examples", option, "no-such-file.yaml"])

    assert result.exit_code == 2
    assert "no-such-file.yaml: cannot be read" in result.stderr


@pytest.mark.parametrize("option", ["--nodes", "-f"])
def test_a_file_without_documents_is_named(tmp_path: Path, option: str) -> None:
    """Exit code 2, as of the other commands; the reader would not expect the usual nodes."""
    file = tmp_path / "empty.yaml"
    file.write_text("# nothing yet\n", encoding="utf-8")

    result = CliRunner().invoke(up, ["--no-examples", option, str(file)])

    assert result.exit_code == 2
    assert result.stderr.startswith(f"partage up: {file}: no document there; give a file")


def test_standard_input_is_read() -> None:
    """`-f -` is what users of kubectl type; it was the name of a file."""
    result = CliRunner().invoke(up, ["--no-examples", "-f", "-"], input="# nothing yet\n")

    assert result.exit_code == 2
    assert result.stderr.startswith("partage up: standard input: no document there; give a file")


@pytest.mark.parametrize("option", ["--nodes", "-f"])
def test_a_misspelt_field_is_refused_with_strict(tmp_path: Path, option: str) -> None:
    """Exit code 2 and one line, as of `partage schedule`; without the switch it is a note."""
    file = tmp_path / "cluster.yaml"
    file.write_text(
        "kind: Node\napiVersion: v1\nmetadata: {name: n}\nspec: {unschedulabel: true, unschedulabel: false}\n",
        encoding="utf-8",
    )

    result = CliRunner().invoke(up, ["--no-examples", "--strict", option, str(file)])

    assert result.exit_code == 2
    assert result.stderr == (
        f"partage up: {file}: document 1 (Node n): field spec.unschedulabel is not known and does nothing; "
        "did you mean unschedulable? (and 1 more such); correct it, or leave out --strict\n"
    )


def test_nodes_of_a_file_without_any_are_no_surprise(tmp_path: Path) -> None:
    """Exit code 2 where `--nodes` names a file of pods: the usual nodes started instead."""
    file = tmp_path / "pods.yaml"
    file.write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n", encoding="utf-8")

    result = CliRunner().invoke(up, ["--no-examples", "--nodes", str(file)])

    assert result.exit_code == 2
    assert result.stderr.startswith(f"partage up: {file}: no node there; give --nodes documents")


def test_a_node_that_is_refused_is_told(tmp_path: Path) -> None:
    """Exit code 2 and one line with the rule: this model makes no label."""
    file = tmp_path / "nodes.yaml"
    file.write_text(
        "apiVersion: partage.io/v1alpha1\nkind: SimulatedNode\nmetadata: {name: odd}\n"
        "spec: {model: a<b>, vendor: nvidia, memory: 8Gi}\n",
        encoding="utf-8",
    )

    result = CliRunner().invoke(up, ["--no-examples", "--nodes", str(file)])

    assert result.exit_code == 2
    assert result.stderr.startswith("partage up: simulated node odd: ")
    assert "a valid label must be" in result.stderr


def test_a_kubeconfig_of_another_cluster_is_not_replaced(tmp_path: Path) -> None:
    """A user who names their own configuration by mistake keeps it."""
    file = tmp_path / "config"
    file.write_text("clusters: [{name: production}]\n", encoding="utf-8")

    result = CliRunner().invoke(up, ["--no-examples", "--kubeconfig", str(file)])

    assert result.exit_code == 2
    assert "is another cluster's" in result.stderr
    assert "production" in file.read_text(encoding="utf-8")


def test_a_state_file_that_is_none_is_told(tmp_path: Path) -> None:
    """Exit code 2, and the file stays as it is."""
    file = tmp_path / "state"
    file.write_text("hello", encoding="utf-8")

    result = CliRunner().invoke(up, ["--no-examples", "--state", str(file)])

    assert result.exit_code == 2
    assert result.stderr.count(str(file)) == 1
    assert file.read_text(encoding="utf-8") == "hello"


def test_a_state_file_that_cannot_be_written_is_told_first(tmp_path: Path) -> None:
    """Exit code 2 before any object exists that could be lost."""
    file = tmp_path / "none" / "state"

    result = CliRunner().invoke(up, ["--no-examples", "--state", str(file)])

    assert result.exit_code == 2
    assert result.stderr == (
        f"partage up: {file}.lock cannot be written: No such file or directory; name another file\n"
    )


def test_a_running_cluster_keeps_its_kubeconfig(tmp_path: Path) -> None:
    """A second one with the same file is refused before it starts; a file that an ended one left is replaced."""
    file = tmp_path / "new" / "config"
    plan = Plan(kubeconfig=file)

    async def story() -> None:
        async with EmbeddedCluster(plan):
            written = file.read_bytes()
            (file.parent / "config.lock").touch(exist_ok=False)  # as `kubectl config` does
            with pytest.raises(InvalidValue, match="is another partage up's; end that one"):
                async with EmbeddedCluster(plan):
                    pass
            assert file.read_bytes() == written
        async with EmbeddedCluster(plan):
            assert file.read_bytes() != written

    run(story())
    assert sorted(one.name for one in file.parent.iterdir()) == ["config", "config.lock"]


def test_two_clusters_keep_their_objects_apart(tmp_path: Path) -> None:
    """The second is refused while the first runs, or the last to end would win."""
    file = tmp_path / "state"

    async def story() -> None:
        async with running([node()], file=file):
            with pytest.raises(InvalidValue, match="is another partage up's; end that one"):
                async with running([node()], file=file):
                    pass
        async with running([node()], file=file):
            pass

    run(story())
    assert [one.name for one in tmp_path.iterdir()] == ["state"]


def test_a_lock_that_its_holder_removed_counts_for_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was opened just before the end of the cluster before, and the next one would lock a new file."""
    file, lock = tmp_path / "state", fcntl.flock

    def late(opened: int, how: int) -> None:
        (tmp_path / "state.lock").unlink()
        lock(opened, how)

    monkeypatch.setattr(fcntl, "flock", late)
    with pytest.raises(InvalidValue, match="is another partage up's; end that one"), _held(file):
        pass


def test_pods_that_were_not_looked_at_do_not_count_as_waiting(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Thousands of them would hide why the others wait."""
    seen = Overview((), (), (WaitingLine("d/large", "Taint: 0/1 nodes"), WaitingLine("d/new", "")))
    where = Addresses("http://a", "http://s", "http://d", "config")

    printed(seen, where, Outcome())

    told = capsys.readouterr().out
    assert "d/large  Taint" in told
    assert "d/new" not in told
    assert "0 pods placed, 1 waiting, 1 not looked at yet." in told


def test_one_pod_is_called_one(capsys: pytest.CaptureFixture[str]) -> None:
    """The line that sums up says 1 pod."""
    placed = (PlacedLine("d/one", "n0", "Running", "gpu 0", "50%"),)
    where = Addresses("http://a", "http://s", "http://d", "config")

    printed(Overview((), placed, ()), where, Outcome())

    assert "\n1 pod placed, 0 waiting." in capsys.readouterr().out
