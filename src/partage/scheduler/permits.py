"""Which pods go before others on cards, by operators' rules: permits granted, and permits left.

The counts come from allocations, so rebuilt books count the same. Each rule has two counts: the pods of each namespace,
and on each node the cards on which such pods have shares. If a rule has nothing left, the pod does not wait; it runs as
an ordinary one.
"""

from collections import Counter
from collections.abc import Iterable, Sequence

from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import MILLI, DeviceType
from partage.model.permit import Permit, Wish
from partage.model.pod import Pod

_Key = tuple[str, str]


class PermitBook:
    """Pods that go before others, by rule and namespace, and by rule and node."""

    def __init__(self) -> None:
        self._of: dict[str, Allocation] = {}
        self._pods: Counter[_Key] = Counter()
        self._cards: dict[_Key, Counter[str]] = {}

    def apply(self, allocation: Allocation) -> None:
        """Count an allocation's permit; another count of a pod replaces the earlier one."""
        self.undo(allocation.uid)
        permit = allocation.permit
        if permit is None or not permit.online:
            return
        self._of[allocation.uid] = allocation
        self._pods[permit.rule, allocation.namespace] += 1
        cards = self._cards.setdefault((permit.rule, allocation.node), Counter())
        cards.update(_shared(allocation.grants))

    def undo(self, uid: str) -> None:
        """Stop counting a pod."""
        allocation = self._of.pop(uid, None)
        if allocation is None or allocation.permit is None:
            return
        rule = allocation.permit.rule
        self._pods[rule, allocation.namespace] -= 1
        cards = self._cards[rule, allocation.node]
        cards.subtract(_shared(allocation.grants))
        # Namespaces and nodes are deleted, so zero counts must not stay.
        if not self._pods[rule, allocation.namespace]:
            del self._pods[rule, allocation.namespace]
        self._cards[rule, allocation.node] = left = +cards
        if not left:
            del self._cards[rule, allocation.node]

    @property
    def counted(self) -> dict[str, object]:
        """The counts, for comparison: pods by rule and namespace, cards by rule and node."""
        cards = {f"{rule} on {node}": dict(found) for (rule, node), found in self._cards.items()}
        return {**{f"{rule} in {where}": n for (rule, where), n in self._pods.items()}, **cards}

    def permit(
        self, pod: Pod, wish: Wish, node: str, cards: int, grants: Sequence[Grant]
    ) -> Permit:
        """A pod's permit with these grants."""
        shared = _shared(grants)
        if not wish.online or not shared:
            return Permit(wish.rule, policy=wish.policy)
        why = wish.denied or self._excess(pod, wish, node, cards, shared)
        return Permit(wish.rule, not why, wish.policy, why)

    def _excess(self, pod: Pod, wish: Wish, node: str, cards: int, shared: frozenset[str]) -> str:
        """The bound of its rule that the pod would exceed, as a sentence; empty if none."""
        given = self._pods[wish.rule, pod.namespace]
        if wish.pods is not None and given >= wish.pods:
            return (
                f"online is not granted: {given} of {wish.pods} pods of namespace {pod.namespace} are online already "
                f"(rule {wish.rule})"
            )
        there = frozenset(self._cards.get((wish.rule, node), ()))
        if wish.cards_milli is not None:
            most = cards * wish.cards_milli // MILLI
            if len(shared.union(there)) > most:
                return (
                    f"online is not granted: {len(there)} of {cards} cards of node {node} have online pods, and "
                    f"{most} may (rule {wish.rule})"
                )
        return ""


def _shared(grants: Iterable[Grant]) -> frozenset[str]:
    """Cards of which a share is granted: whole cards and instances have no other pod to precede."""
    return frozenset(
        one.uuid for one in grants if one.type is DeviceType.GPU and one.mode is GrantMode.SHARE
    )
