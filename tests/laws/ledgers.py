"""Random books: allocations as facts, also such as no decision would have made."""

from hypothesis import strategies as st

from drawn import sampled
from fakes.builders import GIB
from partage.inventory.card import Suspicion
from partage.inventory.ledger import Ledger
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import DeviceType
from partage.model.mig import MigSlice
from partage.model.node import Node
from partage.model.request import MayUse, Phase, Scope

__all__ = ["allocations", "grants", "ledgers"]


_INSTANCES = (
    MigSlice("1g.2gb", 3, 1),
    MigSlice("2g.4gb", 2, 2),
    MigSlice("2g.4gb", 0, 2),
    MigSlice("3g.6gb", 0, 3),
)


@st.composite
def grants(draw: st.DrawFn, node: str) -> Grant:
    """A grant that a record may tell: on a card that is there, or gone, or known by minor only."""
    type_ = draw(sampled([DeviceType.GPU, DeviceType.GPU, DeviceType.RDMA]))
    minor = draw(st.integers(0, 4))
    kind = "GPU" if type_ is DeviceType.GPU else "NIC"
    known = [f"{node}-{kind}-{minor}"] * 6 + ["", f"{node}-{kind}-{(minor + 1) % 4}", "lost"]
    mode = draw(sampled([GrantMode.SHARE] * 4 + [GrantMode.WHOLE, GrantMode.MIG]))
    mig = draw(sampled([None, *_INSTANCES])) if mode is GrantMode.MIG else None
    return Grant(
        container=draw(sampled("ab")),
        type=type_,
        minor=minor,
        uuid=draw(sampled(known)),
        core_milli=draw(sampled([0, 100, 500, 1000])),
        memory_bytes=draw(sampled([0, GIB, 5 * GIB, 16 * GIB])),
        mode=mode,
        mig=mig,
        phase=draw(sampled([Phase.MAIN, Phase.MAIN, Phase.INIT, Phase.SIDECAR])),
        extras=draw(sampled([(), (), (("npu-core", 3),)])),
        exclusive=draw(sampled([False] * 5 + [True])),
        sharers=draw(sampled([None, None, 16, 2])),
        function=draw(sampled([None, (0, f"{node}-{minor}.0")])),
        fence=draw(sampled([None] * 5 + list(Scope))),
        slots=draw(sampled([1, 1, 1, 0])),
    )


@st.composite
def allocations(draw: st.DrawFn, uid: str, names: list[str]) -> Allocation:
    """What one pod holds on one of the nodes."""
    node = draw(sampled(names))
    given = draw(st.lists(grants(node), max_size=3))
    host = draw(sampled([{}, {"cpu": 900, "pods": 1}, {"example.com/x": 1}]))
    return Allocation(uid, "default", uid, node, tuple(given), host)


@st.composite
def ledgers(draw: st.DrawFn, nodes: list[Node], most: int = 5) -> Ledger:
    """Books of these nodes, some pods and some suspicions."""
    ledger = Ledger()
    for node in nodes:
        ledger.upsert_node(node)
    names = [node.name for node in nodes]
    for i in range(draw(st.integers(0, most))):
        ledger.apply(draw(allocations(f"pod-{i}", names)))
    if draw(st.integers(0, 4)) == 0:
        ledger.suspect("s", Suspicion(names[0], (DeviceType.GPU,), "edited"))
    for i in range(draw(sampled([0, 0, 1, 2]))):
        may_use = MayUse(draw(sampled(list(DeviceType))), draw(st.integers(1, 3)))
        ledger.suspect(f"u{i}", Suspicion(names[0], (), "no record", (may_use,)))
    return ledger
