"""The wishes beside amounts that operators grant to pods, and how many pods may have them at once.

A pod's author wishes, and an operator's rule grants or denies the wish. The engine counts and decides. The service
writes the decision beside the record, and the node follows it.
"""

from dataclasses import dataclass

import msgspec


class Permit(msgspec.Struct, frozen=True, gc=False):
    """The wishes that one pod has.

    Attributes:
        rule: name of the operator's rule that decided; empty if none names the pod.
        online: it may go before others on its cards.
        policy: the limit on its compute on a card; empty if the node alone decides.
        why: why it is not online although it asked; empty if it is, or did not ask.
    """

    rule: str = ""
    online: bool = False
    policy: str = ""
    why: str = ""


@dataclass(frozen=True, slots=True)
class Wish:
    """One pod's wishes, and the limits of the operator's rule for it.

    Attributes:
        online: it asks to go before others on its cards.
        rule: the rule's name; empty if none names the pod.
        denied: why the rule lets no pod be online; empty if it does.
        pods: the most pods of one namespace that may be online at once by this rule; None for any number.
        cards_milli: the part of a node's cards that may have such pods at once, in thousandths; None for all.
        policy: see `Permit`.
    """

    online: bool = False
    rule: str = ""
    denied: str = ""
    pods: int | None = None
    cards_milli: int | None = None
    policy: str = ""
