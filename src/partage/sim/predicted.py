"""What the live service would decide now: the books of a snapshot, asked about each pending pod in turn.

The service's own code makes the books. Pods are asked by priority and then by age, as in kube-scheduler's queue. Each
pod that fits keeps its place, so the next one gets the same answer as it would live.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from partage.extender.books import Books
from partage.extender.cluster_cache import ClusterCache
from partage.extender.ports import Hooks
from partage.extender.rebuild import filled
from partage.model.policy import Policy
from partage.model.reason import Refusal
from partage.scheduler.events import Placement, PolicyChanged
from partage.wire.documents import Document
from partage.wire.translation import PodEntry
from partage.wire.workloads import with_pods


@dataclass(frozen=True, slots=True)
class Prediction:
    """One waiting pod and its predicted decision."""

    entry: PodEntry
    decision: Placement | Refusal


async def predicted(
    documents: Sequence[Document], policy: Policy, seed: int | None, *, force: bool = False
) -> list[Prediction]:
    """Every waiting pod with its decision, in the order of the decisions.

    Args:
        documents: of a snapshot, or of a cluster.
        policy: in force if neither a pod nor a ConfigMap names one.
        force: the policy overrides any ConfigMap.
        seed: of the order of nodes, as the service's; None keeps the order of the documents.
    """
    known = list(with_pods(documents))
    books = await filled(Books(ClusterCache(policy=policy), Hooks()), known, seed=seed)
    if force:
        books.engine.handle(PolicyChanged(policy))
    age = {
        document.metadata.uid or "": (document.metadata.creation_timestamp or "", place)
        for place, document in enumerate(known)
    }
    waiting = sorted(
        (
            entry
            for entry in books.cluster_cache.pods.values()
            if entry.pod.node is None and not entry.pod.finished
        ),
        key=lambda entry: (-entry.pod.priority, age.get(entry.pod.uid, ("", 0))),
    )
    return [Prediction(entry, books.engine.hold(entry.pod)) for entry in waiting]
