"""What the chart's notes tell to type after an installation works as it is printed."""

import json
import subprocess
from pathlib import Path

import yaml
from click.testing import CliRunner

from charts import HELM, generate, needs_helm
from partage.cli.schedule import schedule

NODES = Path(__file__).parents[2] / "examples/koordinator/host04.yaml"
KUBECTL = 'kubectl() { printf "%s\\n" "$@" >arguments; cat >pod.yaml; }\n'
"""Keeps what it was given."""


@needs_helm
def test_the_first_pod_gets_its_place(tmp_path: Path) -> None:
    """The block is copied into a shell as it stands; the pod that comes of it runs on a quarter of a card."""
    command = [str(HELM), "install", "x", str(generate.CHART), "--dry-run=client"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    told = said.partition("A first pod")[2].partition("\n\n")[2]

    typed = subprocess.run(
        ["/bin/bash", "-c", KUBECTL + told],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )

    assert not typed.stderr, "a shell warns where it does not find the end of the text"
    assert (tmp_path / "arguments").read_text().split() == ["-n", "default", "apply", "-f", "-"]
    (pod,) = yaml.safe_load_all((tmp_path / "pod.yaml").read_text())
    assert f"--serve={pod['spec']['schedulerName']}\n" in said, "the webhook's and the service's"
    result = CliRunner().invoke(
        schedule, [str(NODES), str(tmp_path / "pod.yaml"), "--strict", "-o", "json"]
    )
    assert result.exit_code == 0, result.output
    (placed,) = json.loads(result.stdout)["pods"]
    assert placed["name"] == "quarter"
    assert [one["core_milli"] for one in placed["allocations"]] == [250]
