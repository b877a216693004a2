"""The messages between the kube-scheduler plugin and the engine, version 1.

Both run in one pod and speak over a unix socket. A frame is four bytes of length, the most
significant first, and one JSON object. The plugin asks, and the engine answers each question once,
in any order, under the question's `id`; a question with the id 0 wants no answer. A frame of the
engine without an `id` is a push.

Every question about a pod names the pod's UID and the number of the scheduling attempt. Numbers
grow within one run of kube-scheduler, which its hello names (`incarnation`), so that a repeated
or late message can be told from a new one.

The same structures are written in Go, in `kube-scheduler/protocol`; `kube-scheduler/protocol/
examples.json` holds one of each, and the tests of both sides read and write exactly those.
"""

from typing import Final

import msgspec

from partage.model.errors import UNREADABLE, InvalidDocument
from partage.wire import shapes
from partage.wire.budgets import Budget, translate_budget

PROTOCOL: Final = 1
"""The version that both sides must speak; a change of meaning raises it."""

MAX_FRAME: Final = 8 * 2**20
"""Bytes of one frame. The largest one is a proposal of every node: 5,000 names of 253 bytes."""

CLOSED: Final = "EngineNotReady"
STALE: Final = "StaleAttempt"
CHANGED: Final = "PodChanged"
PROVISIONAL: Final = "Provisional"
PLACE_LOST: Final = "PlaceLost"
NOT_BOUND: Final = "NotBound"
"""Codes of answers beside those of refusals; docs/reference/plugin.md lists them."""


class _Message(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """What all messages have in common: absent fields stand for their defaults."""


class _Question(_Message, frozen=True, omit_defaults=True, tag_field="verb", gc=False):
    """A question of the plugin.

    Attributes:
        id: the answer carries it; grows by one a question on one connection. With 0 none is wanted.
    """

    id: int


class Hello(_Question, frozen=True, omit_defaults=True, tag="hello", gc=False):
    """The first question of a connection.

    Attributes:
        protocol: the version that the plugin speaks.
        incarnation: one run of kube-scheduler; another one after each start.
    """

    protocol: int
    incarnation: str
    plugin: str = ""
    kubernetes: str = ""


class Leading(_Question, frozen=True, omit_defaults=True, tag="leading", gc=False):
    """Whether this kube-scheduler holds its Lease and schedules."""

    leading: bool


class Ping(_Question, frozen=True, omit_defaults=True, tag="ping", gc=False):
    """Whether the engine can answer questions about pods."""


class _About(_Question, frozen=True, omit_defaults=True, gc=False):
    """A question about one attempt to schedule one pod; `attempt` is the number of the scheduling attempt."""

    uid: str
    attempt: int


class Taken(_Message, frozen=True, omit_defaults=True, gc=False):
    """What kube-scheduler counts as requested of a node, beside devices.

    Attributes:
        node: its name.
        cpu: in milli.
        memory: in bytes.
        pods: how many there are.
    """

    node: str
    cpu: int = 0
    memory: int = 0
    pods: int = 0


class Pools(_Message, frozen=True, omit_defaults=True, gc=False):
    """From which pools kube-scheduler can allocate, as far as that has changed since it was told on this connection.

    Attributes:
        whole: names of pools (a node's has the node's name) of which it has now seen every ResourceSlice.
        gone: those of which it has not any more.
    """

    whole: list[str] = []
    gone: list[str] = []


class Propose(_About, frozen=True, omit_defaults=True, tag="propose", gc=False):
    """Which nodes can host the pod's devices, the best first (PreFilter).

    Attributes:
        version: resourceVersion of the pod as kube-scheduler knows it.
        wide: kube-scheduler needs every node that fits, because rules of its own that no single
            node can answer take part: soft constraints, spreading, affinity between pods, volumes.
        domains: label keys by whose values those rules tell nodes apart, where no rule tells more:
            then the best nodes of each domain do as well as all of them.
        nominated: the pod's nominatedNodeName, which is proposed too where it fits; only a wish.
        simulated: the cycle of a pod group, which may be confined to some nodes.
        pod: the pod, where the engine said that it has not seen it.
        claims: the pod asks for devices by these ResourceClaims alone, and comes with the question.
            kube-scheduler allocates them: the answer says which nodes to try first, or `skip`. Of further
            questions `another` follows, or `reserve` with what was allocated, and `unreserve`.
        taken: what pods request of nodes, where that has changed since it was told on this
            connection; comes with claims.
        pools: comes with claims, changed or not, where the vocabulary named a driver.
    """

    version: str = ""
    wide: bool = False
    domains: list[str] = []
    nominated: str = ""
    simulated: bool = False
    pod: msgspec.Raw = msgspec.Raw()
    claims: list[msgspec.Raw] = []
    taken: list[Taken] = []
    pools: Pools | None = None


class Preempt(_About, frozen=True, omit_defaults=True, tag="preempt", gc=False):
    """Where less important pods could make room for the pod, which was refused (PreFilter).

    Attributes:
        budgets: every PodDisruptionBudget that kube-scheduler knows; see `budgets`.
    """

    budgets: list[msgspec.Raw] = []


class Reserve(_About, frozen=True, omit_defaults=True, tag="reserve", gc=False):
    """Reserve the pod's devices on a node (Reserve).

    Attributes:
        simulated: the cycle of a pod group, which is reverted before anything is bound.
        filtered: kube-scheduler's own filters rejected some of the nodes that were proposed as the best of their
            domains, so that others of a domain might have done.
        claims: the pod asks by ResourceClaims alone, and kube-scheduler has allocated these, which are not stored yet;
            it may be an attempt that was not asked about.
    """

    node: str
    simulated: bool = False
    filtered: bool = False
    claims: list[msgspec.Raw] = []


class Unreserve(_About, frozen=True, omit_defaults=True, tag="unreserve", gc=False):
    """Release what `reserve` took (Unreserve); changes nothing where it took nothing."""


class Another(_About, frozen=True, omit_defaults=True, tag="another", gc=False):
    """kube-scheduler's own filters rejected every node that was proposed (PostFilter).

    Attributes:
        rejected: these nodes; the next proposals for the pod leave them out for a while.
    """

    rejected: list[str]


class Bind(_About, frozen=True, omit_defaults=True, tag="bind", gc=False):
    """What the Binding shall carry (Bind); `bound` must follow where the answer allows it."""

    node: str


class Bound(_About, frozen=True, omit_defaults=True, tag="bound", gc=False):
    """What became of the Binding that the plugin sent.

    Attributes:
        outcome: `done`, `refused` (the API server said no) or `unknown`.
    """

    outcome: str
    message: str = ""


Question = (
    Hello | Leading | Ping | Propose | Preempt | Reserve | Unreserve | Another | Bind | Bound
)


class Answer(_Message, frozen=True, omit_defaults=True, gc=False):
    """The answer to one question; which fields it has depends on the question.

    Attributes:
        code: why it is refused, in words of the reference; empty where it is not.
        message: the same as a sentence.
        protocol: `hello`: the version that the engine speaks.
        ready: `hello`, `ping`: questions about pods can be answered now.
        unseen: `propose`: ask again, with the pod.
        skip: `propose`: the pod asks for no devices, or its claims are left to kube-scheduler, over all nodes.
        preempt: `propose`: it is refused, and `preempt` may find pods that could make room.
        nodes: `propose`, `preempt`: names, the best first.
        scores: `propose`: from 0 to 100 for each of `nodes` where the pod was asked about as
            `wide`; empty where the order alone counts.
        victims: `preempt`: UIDs of the pods that must be gone from each of `nodes`.
        again: `another`: there are further nodes, schedule the pod again.
        annotations: `bind`: of the Binding.
        labels: `bind`: of the Binding.
        within: `bind`: seconds in which the Binding must be over.
        bound: `bound`: the pod is on that node after all.
    """

    id: int
    code: str = ""
    message: str = ""
    protocol: int = 0
    ready: bool = False
    unseen: bool = False
    skip: bool = False
    preempt: bool = False
    nodes: list[str] = []
    scores: list[int] = []
    victims: list[list[str]] = []
    again: bool = False
    annotations: dict[str, str] = {}
    labels: dict[str, str] = {}
    within: float = 0.0
    bound: bool = False


class Vocabulary(_Message, frozen=True, omit_defaults=True, gc=False):
    """How the plugin tells a pod with devices from others, so that it asks about no other.

    Attributes:
        annotations: keys that only Partage writes; a pod that carries one is asked about.
        claims: pods that ask by ResourceClaims are asked about too.
        driver: of whose pools the plugin says from which kube-scheduler can allocate.
    """

    resources: list[str] = []
    annotations: list[str] = []
    prefixes: list[str] = []
    claims: bool = False
    driver: str = ""


class Push(_Message, frozen=True, omit_defaults=True, gc=False):
    """What the engine says unasked.

    Attributes:
        activate: UIDs of pending pods that may fit now.
        vocabulary: in force from now on.
        ready: whether questions about pods can be answered; absent where that has not changed.
    """

    activate: list[str] = []
    vocabulary: Vocabulary | None = None
    ready: bool | None = None


_BUDGET: Final = msgspec.json.Decoder(shapes.DisruptionBudget)
_DECODER: Final[msgspec.json.Decoder[Question]] = msgspec.json.Decoder(Question)


def decode_question(frame: bytes) -> Question:
    """The question of one frame. Raises `InvalidDocument`: it is none; the message names the field."""
    try:
        return _DECODER.decode(frame)
    except UNREADABLE as error:
        raise InvalidDocument(f"message of the plugin: {error}") from error


def budgets(question: Preempt) -> list[Budget]:
    """The disruption budgets that came with a question. Raises `InvalidDocument`."""
    try:
        return [translate_budget(_BUDGET.decode(raw)) for raw in question.budgets]
    except UNREADABLE as error:
        raise InvalidDocument(f"disruption budget of the plugin: {error}") from error
