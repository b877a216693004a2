"""A pod's turn at kube-scheduler: what filter does for it, with what was kept ahead for others.

A node that was chosen ahead and is asked about alone is given as it was kept. Otherwise the books
are asked; where they refuse, places that are kept for pods whose turn is still to come give way.
"""

from partage.extender.books import Books
from partage.extender.verbs import Answer, Listed
from partage.model.reason import ReasonCode
from partage.wire.translation import PodEntry

__all__ = ["fitting", "kept"]


def kept(books: Books, entry: PodEntry, names: bytes, now: float) -> bool:
    """Whether the pod is asked about nothing but the node that is kept for it; then it has it.

    Args:
        books: where it is kept.
        entry: the pod.
        names: the nodes in question as they came.
        now: seconds on the service's steady clock.
    """
    if not books.prospects.stands(entry, names):
        return False
    _turn(books, entry, 1, now)
    books.verbs.prolong(entry.pod.uid, now)
    return True


def fitting(books: Books, entry: PodEntry, listed: Listed, now: float) -> Answer:
    """The answer to a pod that has its turn.

    Args:
        books: what is asked.
        entry: the pod.
        listed: the nodes in question.
        now: seconds on the service's steady clock.

    Raises:
        LedgerError: the pod holds more than a hold already.
    """
    _turn(books, entry, len(listed.names), now)
    one = not entry.flexible
    answer = books.verbs.filter(entry.pod, listed, now, one=one)
    index, among = books.engine.ledger.index, listed.among

    def asked(node: str) -> bool:
        at = index.get(node, -1)
        return at >= 0 and (among is None or bool(among[at]))

    moved = False
    while (
        (refusal := answer.refusal) is not None
        and refusal.code is not ReasonCode.INVALID_REQUEST
        and books.make_way(entry.pod, refusal, asked)
    ):
        moved = True
        answer = books.verbs.filter(entry.pod, listed, now, one=one)
    if moved:
        books.settle(now)
    return answer


def _turn(books: Books, entry: PodEntry, asked: int, now: float) -> None:
    books.prospects.came(entry, asked, now)
    if books.prospects.due(now):
        books.hooks.queued()
