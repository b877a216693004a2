"""What the live service would decide now: the books of a snapshot, asked about each pending pod in turn.

The service's own code makes the books. Pods are asked by priority and then by age, as in kube-scheduler's queue. Each
pod that fits keeps its place, so the next one gets the same answer as it would live.
"""

from collections.abc import Sequence

from partage.extender.books import Books
from partage.extender.cluster_cache import ClusterCache
from partage.extender.ports import Hooks
from partage.extender.rebuild import filled
from partage.model.pod import Pod
from partage.model.policy import Policy
from partage.model.reason import Refusal
from partage.scheduler.events import Placement, PolicyChanged
from partage.sim.offline import inform
from partage.wire.documents import Document
from partage.wire.workloads import with_pods


async def predicted(
    documents: Sequence[Document], policy: Policy, *, force: bool = False
) -> list[tuple[Pod, Placement | Refusal]]:
    """Every waiting pod with its decision, in the order of the decisions. Nodes are in the order of the documents.

    Args:
        documents: of a snapshot, or of a cluster.
        policy: in force if neither a pod nor a ConfigMap names one.
        force: the policy overrides any ConfigMap.
    """
    known = list(with_pods(documents))
    books = await filled(Books(ClusterCache(policy=policy), Hooks()), known)
    if force:
        books.engine.handle(PolicyChanged(policy))
    cache = books.cluster_cache
    inform(books.engine, [entry.pod for entry in cache.pods.values() if not entry.pod.finished])
    age = {
        document.metadata.uid or "": (document.metadata.creation_timestamp or "", place)
        for place, document in enumerate(known)
    }
    waiting = sorted(
        (
            entry.pod
            for entry in cache.pods.values()
            if entry.pod.node is None and not entry.pod.finished
        ),
        key=lambda pod: (-pod.priority, age.get(pod.uid, ("", 0))),
    )
    return [(pod, books.engine.hold(pod)) for pod in waiting]
