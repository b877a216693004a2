"""A pod as the engine sees it: its request, the nodes it may use, and its records."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from partage.model.allocation import Grant
from partage.model.permit import Permit, Wish
from partage.model.request import PodRequest
from partage.model.selector import NodeConstraint, Toleration


@dataclass(frozen=True, slots=True)
class Record:
    """The allocation in a bound pod's annotations.

    Attributes:
        source: which record was read (`partage`, or a protocol's name); for people.
        problem: why the record cannot be trusted; empty if it can.
        permit: the permit beside it; None if there is none.
        main_alone: whether its writer left init containers out.
    """

    grants: tuple[Grant, ...] = ()
    source: str = ""
    problem: str = ""
    permit: Permit | None = None
    main_alone: bool = False


@dataclass(frozen=True, slots=True)
class Pod:
    """One pod.

    Attributes:
        uid: its identity; the key of the ledger.
        name: its name; never used for ordering.
        priority: higher is scheduled first.
        node: the node to which it is bound, or None.
        finished: its containers have ended (or the pod is deleted), so it holds nothing.
        host: ordinary resources by name in whole units (`cpu` in milli), `pods` included.
        constraint: labels that its node must carry.
        quota: amounts that its namespace's quotas count, by quota key.
        record: the allocation in its annotations; None if there is none.
        version: counts its changes, so that a late event is recognised as old.
        claim: it is an allocated ResourceClaim, which holds devices as a bound pod does.
        wish: its wishes beside its amounts; None if no operator made a rule, or it asks for no share.
    """

    uid: str
    namespace: str
    name: str
    priority: int = 0
    node: str | None = None
    finished: bool = False
    request: PodRequest = PodRequest()
    host: Mapping[str, int] = field(default_factory=dict)
    constraint: NodeConstraint = NodeConstraint()
    tolerations: tuple[Toleration, ...] = ()
    quota: Mapping[str, int] = field(default_factory=dict)
    record: Record | None = None
    version: int = 0
    claim: bool = False
    wish: Wish | None = None

    @property
    def key(self) -> str:
        """`namespace/name`, for people."""
        return f"{self.namespace}/{self.name}"
