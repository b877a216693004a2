"""`partage schedule` reads back what it writes for instances, from each kind of record."""

from typing import Any

import msgspec
import pytest

from partage.vendors import names
from published.case import Case
from published.parts import join, node, pod
from published.program import run

NODE = node(
    "mig",
    {"nvidia.com/gpu": "20"},
    annotations={
        "hami.io/node-nvidia-register": '[{"id":"GPU-a","count":10,"devmem":40960,"devcore":100,'
        '"type":"NVIDIA A100-SXM4-40GB","mode":"mig","health":true}]'
    },
)


def _config(*lines: str) -> str:
    body = "".join(f"      {line}\n" for line in lines)
    return (
        "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: hami-scheduler-device\n"
        f"data:\n  device-config.yaml: |\n    nvidia:\n      deviceSplitCount: 10\n{body}"
    )


TABLE = (
    "knownMigGeometries:",
    "- models: [A100-SXM4-40GB]",
    "  allowedGeometries:",
    "  - [{name: 1g.5gb, memory: 5120, count: 7}]",
    "  - [{name: 2g.10gb, memory: 10240, count: 3}, {name: 1g.5gb, memory: 5120, count: 1}]",
)
CONFIGS = [
    pytest.param(_config(), id="no-table"),
    pytest.param(_config(*TABLE), id="suffix"),
    pytest.param(_config("migRecord: allocations", *TABLE), id="allocations"),
]
LIMITS = {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "8000"}


def _bound(found: Any, *, without: str) -> str:
    record = msgspec.json.decode(found["annotations"][names.ALLOCATION])
    kept = {key: text for key, text in found["annotations"].items() if key != without}
    text = pod("first", LIMITS, annotations=kept)
    text = text.replace("  name: first\n", f"  name: first\n  uid: {record['uid']}\n", 1)
    return text.replace("spec:\n", "spec:\n  nodeName: mig\n", 1)


@pytest.mark.parametrize("without", ["", names.ALLOCATION], ids=["both", "hami-alone"])
@pytest.mark.parametrize("config", CONFIGS)
def test_a_bound_pods_instances_are_where_its_record_says(config: str, without: str) -> None:
    """Ours or HAMi's alone: the same places, and the next pod goes beside them."""
    (found,) = run(Case("x", "", join(config, NODE, pod("first", LIMITS)), ()))["pods"]

    again = run(
        Case("x", "", join(config, NODE, _bound(found, without=without), pod("p", LIMITS)), ())
    )

    first, second = again["pods"]
    places = [grant["mig"] for grant in found["allocations"]]
    (device,) = again["nodes"][0]["devices"]
    assert [grant["mig"] for grant in first["allocations"]] == places
    assert device["closed"] is None
    assert len(device["mig"]) == 2
    assert second["reason"]["code"] == "MigPlacement"
    assert "1 of 2 2g.10gb fit on card 0" in second["reason"]["message"]
