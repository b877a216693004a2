"""Extra: the API server is away for long, with agents on their own.

What a node's agent gives depends on the pod's record, which the runtime brings, and on what the
agent finds itself. So containers start and run as before; what cannot be verified is refused as
before; a card that falls ill is known on the node at once, and everywhere once the API server is back.
"""

import json
from pathlib import Path

from lone_agent import node

from partage.agent.nri.messages import CreateContainerResponse, Status
from partage.vendors import names


async def test_an_agent_gives_refuses_and_looks_while_nobody_can_be_asked(tmp_path: Path) -> None:
    """An agent that crashed and was started again meanwhile does too; afterwards it reports everything."""
    async with node(tmp_path) as one:
        assert isinstance(await one.create("before"), CreateContainerResponse)
        with one.wire.outage():
            assert isinstance(await one.create("meanwhile"), CreateContainerResponse)
            told = one.renewed()  # what was on its way has arrived
            forged = await one.create("forged", **{names.ALLOCATION: "{}"})
            assert isinstance(forged, Status)
            full = await one.create("too-much", 600)
            assert isinstance(full, Status)

            (tmp_path / "devices.yaml").write_text(
                "{model: H100-80GB-HBM3, cards: 2, faults: '1=Xid 79'}"
            )
            await one.until(lambda: one.known() == [True, False])
            await one.kill()
            await one.start()
            assert one.series("partage_agent_containers") == 2
            assert isinstance(await one.create("after-a-crash"), CreateContainerResponse)
            assert isinstance(await one.create("too-much-still", 600), Status)
            (tmp_path / "devices.yaml").write_text(
                "{model: H100-80GB-HBM3, cards: 2, faults: '0=Xid 79'}"
            )
            await one.until(lambda: one.known() == [False, True])
            assert (one.reported(), one.renewed()) == ([True, True], told)

        await one.until(lambda: one.reported() == [False, True])
        await one.until(lambda: one.renewed() > told)
        assert one.series("partage_agent_containers") == 3
        node_object = one.server.store.get("nodes", "", "n1")
        assert node_object is not None
        assert node_object.metadata["labels"][names.QGPU_POLICY] == "fixed-share"
        kept = json.loads((tmp_path / "journal/node.json").read_text())
        assert kept["node"]["metadata"]["labels"][names.QGPU_POLICY] == "fixed-share"
