"""Which instances a node's pods have, by their records.

The record in the pod's annotation is the only source: the scheduler wrote the exact place. A pod
keeps its instances until its containers have ended for good (`wire.pod_phase`), however long it is being
deleted.
"""

from collections.abc import Iterable

from partage.agent.mig.plan import Wanted
from partage.model.allocation import GrantMode
from partage.wire import record, shapes


def wanted_by(pods: Iterable[shapes.Pod], node: str) -> dict[str, list[Wanted]]:
    """Instances by the UUID of their card, the pods that came first in front.

    Pods of other nodes, without a record, and with one that cannot be trusted want nothing: the
    agent refuses to start the last kind, and the scheduler closes their cards.
    """
    found: dict[str, list[Wanted]] = {}
    for uid, _, read in record.on_node(pods, node):
        for grant in read.grants:
            if grant.mode is GrantMode.MIG and grant.mig is not None:
                one = Wanted(grant.mig, uid)
                there = found.setdefault(grant.uuid, [])
                if one not in there:
                    there.append(one)
    return found
