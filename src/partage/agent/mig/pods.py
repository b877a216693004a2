"""Which instances a node's pods have, by their records.

The record in the pod's annotation is the only source: the scheduler wrote the exact place. A pod
keeps its instances until its containers have ended for good (`wire.pod_phase`), however long it is being
deleted.
"""

from collections.abc import Iterable

from partage.agent.mig.plan import Wanted
from partage.model.allocation import GrantMode
from partage.vendors import names
from partage.wire import record, shapes
from partage.wire.pod_phase import finished


def wanted_by(pods: Iterable[shapes.Pod], node: str) -> dict[str, list[Wanted]]:
    """Instances by the UUID of their card, the pods that came first in front.

    Pods of other nodes, without a record, and with one that cannot be trusted want nothing: the
    agent refuses to start the last kind, and the scheduler closes their cards.
    """
    found: dict[str, list[Wanted]] = {}
    for pod in sorted(pods, key=_age):
        metadata, spec = pod.metadata, pod.spec
        if metadata is None or not metadata.uid or spec is None or spec.node_name != node:
            continue
        text = (metadata.annotations or {}).get(names.ALLOCATION)
        if not text or finished(pod):
            continue
        for grant in record.decode(text, metadata.uid, node).grants:
            if grant.mode is GrantMode.MIG and grant.mig is not None:
                one = Wanted(grant.mig, metadata.uid)
                there = found.setdefault(grant.uuid, [])
                if one not in there:
                    there.append(one)
    return found


def _age(pod: shapes.Pod) -> tuple[str, str]:
    metadata = pod.metadata or shapes.Metadata()
    return metadata.creation_timestamp or "", metadata.uid or ""
