"""deploy/integrations/kueue.yaml has a row, or a reason, for every name by which a pod asks for devices.

Kueue's arithmetic is repeated here as its `applyResourceTransformations` of 0.16 and later does it: every input of a pod,
times the input that `multiplyBy` names where the pod asks for that as well, goes into each output.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from partage.model.quantity import NANO, Quantity
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.wire.context import Context
from partage.wire.documents import decode
from partage.wire.pods import translate_pod

FILE = Path(__file__).parents[2] / "deploy" / "integrations" / "kueue.yaml"
TEXT = FILE.read_text(encoding="utf-8")
ROWS: list[dict[str, Any]] = yaml.safe_load(TEXT)["resources"]["transformations"]
CONTEXT = Context.of(Settings(), FAMILIES)
KNOWN = {*CONTEXT.owners, *CONTEXT.triggers}

OWN = {
    "koordinator.sh/rdma": "percent of a device, not of a card",
    "koordinator.sh/fpga": "percent of a device, not of a card",
    "huawei.com/npu-core": "AI cores, of which models have different numbers",
    "huawei.com/Ascend310P": "the vendor's own count of cards",
}
"""Names without a row, which Kueue counts as they are, and why."""
UNCOUNTED = {
    "koordinator.sh/gpu.shared": "a number of shares, whose amounts are asked beside it in sum",
    "nvidia.com/priority": "an order among the tasks of a card",
    "tke.cloud.tencent.com/qgpu-core-greedy": "compute that others leave over",
    "huawei.com/npu-cpu": "what a part of an NPU has beside its AI cores",
    "huawei.com/npu-dvpp": "what a part of an NPU has beside its AI cores",
    "metax-tech.com/sgpu": "they only wake the vendor's plugin",
    "cambricon.com/mlu.smlu.vcore": "they only wake the vendor's plugin",
    "cambricon.com/mlu.smlu.vmemory": "they only wake the vendor's plugin",
}
"""Names whose row has no outputs, and why."""
WAKING = [name for name, why in UNCOUNTED.items() if "wake" in why]


def _comments() -> Iterator[tuple[str, str]]:
    """Each row's input with the comment that it stands below."""
    comment, ended = "", True
    for line in TEXT.partition("transformations:\n")[2].splitlines():
        if line.lstrip().startswith("#"):
            comment = ("" if ended else comment + " ") + line.strip(" #")
            ended = False
        else:
            ended = True
            if found := re.match(r"\s*- input: (\S+)$", line):
                yield found[1], comment


def _head() -> str:
    lines = TEXT.partition("apiVersion:")[0].splitlines()
    return " ".join(line.strip("# ") for line in lines)


def _nano(value: object) -> int:
    return Quantity.parse(str(value)).nano


def _charged(asked: Mapping[str, object]) -> dict[str, int]:
    """What Kueue charges a pod for, in whole units."""
    rows = {row["input"]: row for row in ROWS}
    charged: Counter[str] = Counter()
    for name, value in asked.items():
        row = rows.get(name)
        if row is None:
            charged[name] += _nano(value)
            continue
        factor = _nano(asked.get(row.get("multiplyBy", ""), 1))
        for output, each in row.get("outputs", {}).items():
            charged[output] += _nano(value) * factor * _nano(each) // NANO**2
    return {name: amount // NANO for name, amount in charged.items()}


def test_every_name_has_a_row_or_a_reason() -> None:
    """A protocol that is added is counted, or the file says why it is not."""
    inputs = Counter(row["input"] for row in ROWS)

    assert {*inputs} | {*OWN} == KNOWN, "a name is missing, or is none of ours"
    assert not {*inputs} & {*OWN}
    assert max(inputs.values()) == 1, "Kueue refuses a name that is there twice"


def test_the_file_tells_each_reason() -> None:
    """A reader of the file alone learns what is not counted, or not in cards."""
    comments, head = dict(_comments()), _head()

    assert {row["input"] for row in ROWS if not row.get("outputs")} == {*UNCOUNTED}
    for name, why in UNCOUNTED.items():
        assert comments[name].startswith("Not counted"), name
        assert why.lower() in comments[name].lower(), name
    own = head.partition("Counted under their own names")[2].partition(" * ")[0]
    assert all(name in own and why in own for name, why in OWN.items())


def test_a_pod_is_charged_for_nothing_but_what_the_file_tells_to_cover() -> None:
    """What a ClusterQueue does not cover is never admitted, so inputs are replaced, and totals are listed."""
    outputs = {name for row in ROWS for name in row.get("outputs", {})}

    assert {row["strategy"] for row in ROWS} == {"Replace"}
    assert {name for name in outputs if name not in OWN} == {
        *re.findall(r"^#   (partage\.io/\S+) ", TEXT, re.MULTILINE)
    }


@pytest.mark.parametrize(
    ("asked", "charged"),
    [
        pytest.param(
            {"tke.cloud.tencent.com/qgpu-core": 30, "tke.cloud.tencent.com/qgpu-memory": 10},
            {"card-percent": 30, "card-memory": 10 * 2**30},
            id="qGPU",
        ),
        pytest.param(
            {"tke.cloud.tencent.com/qgpu-core": 200}, {"card-percent": 200}, id="qGPU, whole cards"
        ),
        pytest.param(
            {"koordinator.sh/gpu": 50},
            {"card-percent": 50, "card-memory-percent": 50},
            id="Koordinator",
        ),
        pytest.param(
            {"koordinator.sh/gpu-memory-ratio": 50},
            {"card-memory-percent": 50},
            id="Koordinator, memory alone",
        ),
        pytest.param(
            {"kubernetes.io/gpu-core": 50, "kubernetes.io/gpu-memory": "8Gi"},
            {"card-percent": 50, "card-memory": 8 * 2**30},
            id="Koordinator of v1.4",
        ),
        pytest.param(
            {"amd.com/gpu": 2},
            {"card-percent": 200, "card-memory-percent": 200},
            id="cards of AMD",
        ),
        pytest.param(
            {
                "koordinator.sh/gpu.shared": 1,
                "koordinator.sh/gpu-core": 10,
                "koordinator.sh/gpu-memory": "1Gi",
                "metax-tech.com/sgpu": 1,
            },
            {"card-percent": 10, "card-memory": 2**30},
            id="MetaX",
        ),
        pytest.param(
            {"nvidia.com/gpu": 2, "nvidia.com/gpucores": 30, "nvidia.com/gpumem": 1000},
            {"devices": 2, "card-percent": 60, "card-memory": 2000 * 2**20},
            id="HAMi, of each card",
        ),
        pytest.param(
            {"nvidia.com/gpumem": 1000}, {"card-memory": 1000 * 2**20}, id="HAMi, no count is one"
        ),
        pytest.param(
            {"nvidia.com/gpu": 1, "nvidia.com/gpumem-percentage": 50},
            {"devices": 1, "card-memory-percent": 50},
            id="HAMi, percent of memory",
        ),
        pytest.param({"nvidia.com/gpu": 1}, {"devices": 1}, id="a card or a share"),
    ],
)
def test_no_protocol_passes_uncounted(asked: dict[str, object], charged: dict[str, int]) -> None:
    """The same totals, by whatever names they are asked."""
    assert _charged(asked) == {f"partage.io/{name}": amount for name, amount in charged.items()}


def test_old_names_count_as_new_ones() -> None:
    """RDMA and FPGA devices of v1.4 are in the quota of today's."""
    assert _charged({"kubernetes.io/rdma": 100, "koordinator.sh/rdma": 50}) == {
        "koordinator.sh/rdma": 150
    }


@pytest.mark.parametrize("name", WAKING)
def test_names_that_only_wake_a_plugin_get_no_card_alone(name: str) -> None:
    """A pod that is charged for nothing gets nothing either, and reads why."""
    limits = {"resources": {"limits": {name: "1"}}}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "p"},
        "spec": {"containers": [{"name": "main", "image": "i", **limits}]},
    }
    (document,) = decode("test", json.dumps(pod).encode()).documents

    request = translate_pod(document, CONTEXT).pod.request

    assert request.groups == ()
    assert "only wakes its vendor's plugin" in request.notes[0]


def test_the_queue_of_the_page_covers_all_that_requests_become() -> None:
    """A request of Partage's totals that no ClusterQueue covers is never admitted."""
    page = (FILE.parents[2] / "docs/how-to/beside-kueue.md").read_text("utf-8")
    block = page.partition("```yaml\napiVersion: kueue")[2].partition("```")[0]
    _, queue, _ = yaml.safe_load_all(f"apiVersion: kueue{block}")
    (group,) = queue["spec"]["resourceGroups"]
    quotas = [one["name"] for flavor in group["flavors"] for one in flavor["resources"]]

    assert group["coveredResources"] == quotas
    become = {name for row in ROWS for name in row.get("outputs", {})}
    assert set(quotas) == {name for name in become if name.startswith("partage.io/")}


def test_the_job_of_the_page_needs_the_quota_that_it_says() -> None:
    """Each of its pods asks for all of a card, and Kueue charges all of them what the sentence above has."""
    page = (FILE.parents[2] / "docs/how-to/ask-for-half-a-gpu.md").read_text("utf-8")
    text, _, block = page.partition("```yaml\napiVersion: batch")
    job = yaml.safe_load(f"apiVersion: batch{block.partition('```')[0]}")
    template, pods = job["spec"]["template"], job["spec"]["parallelism"]
    (container,) = template["spec"]["containers"]
    (sentence,) = text.splitlines()[-2:-1]

    charged = _charged(container["resources"]["limits"])

    assert job["spec"]["completions"] == pods
    assert {name: int(amount) for amount, name in re.findall(r"(\d+) of `(\S+)`", sentence)} == {
        name: amount * pods for name, amount in charged.items()
    }
    head = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "one"}}
    (document,) = decode("test", json.dumps(head | template).encode()).documents
    (group,) = translate_pod(document, CONTEXT).pod.request.groups
    assert (group.request.core_milli, group.request.memory_milli) == (1000, 1000)
