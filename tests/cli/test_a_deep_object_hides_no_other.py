"""A tenant's object may be nested thousands of levels deep; commands over a cluster's lists read the others."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from partage.cli.main import main

NODE = {
    "kind": "Node",
    "apiVersion": "v1",
    "metadata": {"name": "n1", "uid": "u-n1"},
    "status": {
        "allocatable": {
            "tke.cloud.tencent.com/qgpu-core": "100",
            "tke.cloud.tencent.com/qgpu-memory": "8",
        }
    },
}
ASKED = {"tke.cloud.tencent.com/qgpu-core": "50", "tke.cloud.tencent.com/qgpu-memory": "4"}
POD = {
    "kind": "Pod",
    "apiVersion": "v1",
    "metadata": {"name": "p", "namespace": "a", "uid": "u-p"},
    "spec": {"containers": [{"name": "c", "resources": {"limits": ASKED}}]},
}
DEEP = '{"a":' * 9_000 + "1" + "}" * 9_000
PARTS = {
    "parameters of a claim's driver": (
        '{"kind":"ResourceClaim","apiVersion":"resource.k8s.io/v1","metadata":{"name":"c",'
        '"namespace":"b","uid":"u-c"},"spec":{"devices":{"config":[{"opaque":{"driver":"x.y",'
        f'"parameters":{DEEP}}}}}]}}}}}}'
    ),
    "managed fields of a pod": (
        '{"kind":"Pod","apiVersion":"v1","metadata":{"name":"q","namespace":"b","uid":"u-q",'
        f'"managedFields":[{{"fieldsV1":{DEEP}}}]}},"spec":{{"containers":[{{"name":"c"}}]}}}}'
    ),
    "an object of a kind that is not read": (
        '{"kind":"Thing","apiVersion":"x.y/v1","metadata":{"name":"t"},' + f'"spec":{DEEP}}}'
    ),
}


@pytest.mark.parametrize("together", ["a list", "one a line"])
@pytest.mark.parametrize("part", PARTS.values(), ids=PARTS)
def test_the_others_are_read(tmp_path: Path, part: str, together: str) -> None:
    """The places are those without the odd object, and a note says what was left out."""
    items = [json.dumps(NODE), part, json.dumps(POD)]
    text = "\n".join(items)
    if together == "a list":
        text = '{"kind":"List","apiVersion":"v1","items":[' + ",".join(items) + "]}"
    file = tmp_path / "dump.json"
    file.write_text(text, "utf-8")

    outcome = CliRunner().invoke(main, ["schedule", str(file), "-o", "json"])

    assert outcome.exit_code == 0, outcome.stderr
    document = json.loads(outcome.stdout)
    places = {one["name"]: one["node"] for one in document["pods"]}
    assert places["p"] == "n1"
    assert [note for note in document["notes"] if "nested too deeply; read without" in note]


def test_a_deep_yaml_names_the_line_and_the_way(tmp_path: Path) -> None:
    """YAML is read by a parser that recurses."""
    file = tmp_path / "dump.yaml"
    file.write_text(f"kind: Thing\nspec: {DEEP}\n", "utf-8")

    outcome = CliRunner().invoke(main, ["schedule", str(file)])

    assert outcome.exit_code == 2
    assert "line 2: nested deeper than 200 levels" in outcome.stderr
    assert "-o json" in outcome.stderr
