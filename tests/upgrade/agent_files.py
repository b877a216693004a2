"""What an agent keeps on its node, made and read: the containers' journal, the cards' and the rest; and what it reports.

    python tests/upgrade/agent_files.py tests/upgrade/0.1.0/agent

Writes the files that this release's agent writes, through the agent's own code, for the releases
that come after it to read. As with `freeze.py`, a folder is made once and never changed.
"""

import json
import sys
from pathlib import Path
from typing import Any, Final

from partage.agent.device_document import device_document
from partage.agent.discovery.models import MODELS
from partage.agent.discovery.simulated import SimulatedHardware, simulate
from partage.agent.isolation import limits
from partage.agent.journal import Entry, Journal
from partage.agent.mig.journal import CardJournal, FileJournals, Stage
from partage.agent.mig.journal import Entry as Instance
from partage.agent.registration import hami_annotations, node_labels
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import DeviceType
from partage.model.mig import MigSlice
from partage.vendors.settings import HamiSettings
from partage.wire.record import encode

__all__ = ["CARDS", "CONTAINERS", "LIMITS", "reported", "write"]


def _record(uid: str, *grants: Grant) -> str:
    return encode(Allocation(uid, "team-a", uid.replace("uid-", ""), "node-1", grants))


_SHARE: Final = Grant("main", DeviceType.GPU, 0, "GPU-0", 500, 40 * 2**30, GrantMode.SHARE)
_SLICE: Final = Grant(
    "main",
    DeviceType.GPU,
    1,
    "GPU-1",
    1000,
    10 * 2**30,
    GrantMode.MIG,
    mig=MigSlice("1g.10gb", 4, 1),
)
CONTAINERS: Final = (
    Entry(
        "c1", "uid-share", "team-a/share", "main", _record("uid-share", _SHARE), "partage", "r1"
    ),
    Entry("c2", "uid-slice", "team-a/slice", "main", _record("uid-slice", _SLICE)),
)
"""Containers that hold something, with every field set at least once."""
CARDS: Final = (
    CardJournal(
        "GPU-1",
        (
            Instance(MigSlice("1g.10gb", 4, 1), "uid-slice", Stage.READY, "boot/7", 9, 0, "MIG-1"),
            Instance(MigSlice("2g.20gb", 0, 2), "uid-next", Stage.INTENT, "boot/7"),
        ),
        "boot/7",
    ),
)
"""An instance that is ready, one that was only begun, and a mode that we turned on."""
LIMITS: Final = limits.ContainerLimits(
    0xC1,
    (
        limits.CardLimits(
            uuid="GPU-0",
            seats="card-0",
            slot=3,
            memory_bytes=40 * 2**30,
            core_milli=500,
            policy=limits.Policy.FIXED_SHARE,
        ),
    ),
    version=1,
)
"""What the enforcement library of a container of 0.1.0 reads; new containers get version 2."""


def reported() -> dict[str, Any]:
    """What the API server has of a node by its agent: the Device object, labels, HAMi's registration.

    Four cards, one of them ill, and a network card with virtual functions.
    """
    model = "A100-SXM4-80GB"
    hardware = SimulatedHardware("node-1", model, MODELS[model], cards=4, nics=1, functions=4)
    found = simulate(hardware, {("gpu", 1)}, "Xid 79")
    return {
        "device": device_document("node-1", found, None, "2026-11-26T00:00:00Z", "uid-node-1"),
        "labels": node_labels(found, {}, qgpu=True, isolation={}),
        "annotations": hami_annotations(found, HamiSettings(), "node-1"),
    }


def write(folder: Path) -> None:
    """All files, as an agent leaves them that was killed after its last answer."""
    journal = Journal(folder)
    gone = Entry("c0", "uid-gone", "team-a/gone", "main", _record("uid-gone", _SHARE))
    for entry in (gone, *CONTAINERS):
        journal.give(entry)
    journal.end("c0")
    journal.close()
    for card in CARDS:
        FileJournals(folder / "mig").save(card)
    limits.write(folder / "limits", LIMITS)
    (folder / "reported.json").write_text(json.dumps(reported(), indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
