"""An operator's settings of admission."""

from dataclasses import dataclass

from partage.wire.routing import SERVED

SYSTEM_NAMESPACES = frozenset({"kube-system", "kube-public", "kube-node-lease"})
"""Namespaces of every cluster in which only administrators create pods."""


@dataclass(frozen=True, slots=True)
class Admission:
    """The switches of admission.

    Attributes:
        scheduler: the scheduler name for pods of the default scheduler. It implies no protocol, so
        a lone `nvidia.com/gpu` keeps its owner.
        served: scheduler names whose pods Partage places; pods of others are left alone.
        convert_default: whether device pods of the default scheduler get `scheduler`. The API
        server adds the default scheduler's name, so without this ordinary pods wait.
        excluded: exempt namespaces: the system's and Partage's own. No other, because a user who
        may create it could forge records there.
        writers: users that may write reserved keys: Partage's service accounts, and those of
            vendors' plugins that update what Partage wrote.
        break_glass: members of this group may write reserved keys too; empty for none.
        deny_privileged: refuse a privileged container that asks for a part of a card, or with HAMi's names, because it
        sees every card of its node.
    """

    scheduler: str = "partage-scheduler"
    served: tuple[str, ...] = SERVED
    convert_default: bool = True
    excluded: frozenset[str] = SYSTEM_NAMESPACES | {"partage-system"}
    writers: frozenset[str] = frozenset(
        {
            "system:serviceaccount:partage-system:partage-scheduler",
            "system:serviceaccount:partage-system:partage-controller",
            "system:serviceaccount:partage-system:partage-agent",
        }
    )
    break_glass: str = ""
    deny_privileged: bool = True
