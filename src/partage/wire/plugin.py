"""The messages between the kube-scheduler plugin and the engine, version 1.

Both run in one pod and speak over a unix socket. A frame is four bytes of length, the most
significant first, and one JSON object. The plugin asks, and the engine answers each question once,
in any order, under the question's `id`; a question with the id 0 wants no answer. A frame of the
engine without an `id` is a push.

Every question about a pod names the pod's UID and the number of the scheduling attempt. Numbers
grow within one run of kube-scheduler, which its hello names (`incarnation`). So the engine can tell
a repeated or late message from a new one.

The same structures exist in Go, in `kube-scheduler/protocol`. `kube-scheduler/protocol/
examples.json` has one of each, and the tests of both sides read and write exactly those.
"""

from typing import Final

import msgspec

from partage.model.errors import UNREADABLE, InvalidDocument
from partage.wire import shapes
from partage.wire.budgets import Budget, translate_budget

PROTOCOL: Final = 1
"""The version that both sides must use; a change of meaning raises it."""
SAME_RELEASE: Final = "install kube-scheduler's image of the same release"
"""The end of the sentence that refuses a plugin; kube-scheduler reports it on each pod that waits for it."""

MAX_FRAME: Final = 8 * 2**20
"""Bytes of one frame. The largest one is a proposal of every node: 5,000 names of 253 bytes."""

CLOSED: Final = "EngineNotReady"
STALE: Final = "StaleAttempt"
CHANGED: Final = "PodChanged"
PROVISIONAL: Final = "Provisional"
PLACE_LOST: Final = "PlaceLost"
NOT_BOUND: Final = "NotBound"
"""Codes of answers, in addition to those of refusals; docs/reference/plugin.md lists them."""

CONFLICT: Final = "conflict"
"""The outcome of a Binding that conflicts, perhaps with itself: unknown, but nothing is on its way any more."""


class _Message(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """The base of all messages: absent fields have their defaults."""


class _Question(_Message, frozen=True, omit_defaults=True, tag_field="verb", gc=False):
    """A question of the plugin. `id` grows by one a question on a connection; 0 means that no answer is wanted."""

    id: int


class Hello(_Question, frozen=True, omit_defaults=True, tag="hello", gc=False):
    """The first question of a connection.

    `protocol`: the plugin's version. `incarnation`: one run of kube-scheduler; each start has another one.
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
    """The amounts that kube-scheduler counts as requested of a node, beside devices: cpu in milli, memory in bytes."""

    node: str
    cpu: int = 0
    memory: int = 0
    pods: int = 0


class Pools(_Message, frozen=True, omit_defaults=True, gc=False):
    """The pools from which kube-scheduler can allocate; only changes since the last report on this connection.

    `whole`: names of pools whose ResourceSlices it has now all seen (a node's pool has the node's name). `gone`: names
    of pools whose ResourceSlices it no longer has all.
    """

    whole: list[str] = []
    gone: list[str] = []


class Propose(_About, frozen=True, omit_defaults=True, tag="propose", gc=False):
    """Ask for nodes that can host the pod's devices, the best first (PreFilter).

    Attributes:
        version: resourceVersion of the pod as kube-scheduler knows it.
        wide: kube-scheduler needs every node that fits, because it applies rules of its own that no single
            node can answer: soft constraints, spreading, affinity between pods, volumes.
        domains: label keys whose values tell nodes apart for those rules, if no rule needs more. Then
            the best nodes of each domain are as good as all of them.
        nominated: the pod's nominatedNodeName, which is also proposed if it fits; only a wish.
        simulated: the cycle of a pod group, which may be restricted to some nodes.
        pod: the pod, if the engine has reported that it has not seen it.
        claims: the pod asks for devices by these ResourceClaims alone, which are part of the question.
            kube-scheduler allocates them: the answer names the nodes to try first, or `skip`. Then
            `another` follows, or `reserve` with the allocated claims, and `unreserve`.
        taken: the pods' requests of nodes, if they have changed since the last report on this
            connection; only with claims.
        pools: only with claims, changed or not, if the vocabulary named a driver.
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
    """Ask for nodes where less important pods could make room for a refused pod. `budgets`: all; see `budgets`."""

    budgets: list[msgspec.Raw] = []


class Reserve(_About, frozen=True, omit_defaults=True, tag="reserve", gc=False):
    """Reserve the pod's devices on a node (Reserve).

    Attributes:
        simulated: the cycle of a pod group, which is reverted before anything is bound.
        filtered: kube-scheduler's own filters rejected some of the proposed best nodes of each domain,
            so that others of a domain might have fitted.
        claims: the pod asks by ResourceClaims alone, and kube-scheduler has allocated these, which are not stored yet;
            the attempt may be one without an earlier question.
    """

    node: str
    simulated: bool = False
    filtered: bool = False
    claims: list[msgspec.Raw] = []


class Unreserve(_About, frozen=True, omit_defaults=True, tag="unreserve", gc=False):
    """Release the devices of `reserve` (Unreserve); changes nothing if it took none."""


class Another(_About, frozen=True, omit_defaults=True, tag="another", gc=False):
    """kube-scheduler's filters rejected the proposed nodes `rejected`, which next proposals exclude for a while."""

    rejected: list[str]


class Bind(_About, frozen=True, omit_defaults=True, tag="bind", gc=False):
    """The contents of the Binding (Bind); `bound` must follow if the answer allows it."""

    node: str


class Bound(_About, frozen=True, omit_defaults=True, tag="bound", gc=False):
    """The outcome of the Binding that the plugin sent.

    `outcome`: `done`, `refused` (by the API server), `conflict` (perhaps with the Binding itself) or `unknown`.
    """

    outcome: str
    message: str = ""


Question = (
    Hello | Leading | Ping | Propose | Preempt | Reserve | Unreserve | Another | Bind | Bound
)


class Answer(_Message, frozen=True, omit_defaults=True, gc=False):
    """The answer to one question; docs/reference/plugin.md lists the fields of each."""

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
    until: float = 0.0
    bound: bool = False


class Vocabulary(_Message, frozen=True, omit_defaults=True, gc=False):
    """The names by which the plugin recognises pods with devices, so that it asks about no others.

    Attributes:
        annotations: keys that only Partage writes; the plugin asks about a pod with one of them.
        claims: the plugin also asks about pods with ResourceClaims.
        driver: the plugin reports from which of this driver's pools kube-scheduler can allocate.
    """

    resources: list[str] = []
    annotations: list[str] = []
    prefixes: list[str] = []
    claims: bool = False
    driver: str = ""


class Push(_Message, frozen=True, omit_defaults=True, gc=False):
    """A message of the engine without a question.

    Attributes:
        activate: UIDs of pending pods that may fit now.
        vocabulary: in force from now on.
        ready: whether the engine can answer questions about pods; absent if that has not changed.
    """

    activate: list[str] = []
    vocabulary: Vocabulary | None = None
    ready: bool | None = None


_BUDGET: Final = msgspec.json.Decoder(shapes.DisruptionBudget)
_DECODER: Final[msgspec.json.Decoder[Question]] = msgspec.json.Decoder(Question)


def decode_question(frame: bytes) -> Question:
    """The question of one frame. Raises `InvalidDocument`: it is no question; the message names the field."""
    try:
        return _DECODER.decode(frame)
    except UNREADABLE as error:
        raise InvalidDocument(f"message of the plugin: {error}") from error


def budgets(question: Preempt) -> list[Budget]:
    """The disruption budgets of a question. Raises `InvalidDocument`."""
    try:
        return [translate_budget(_BUDGET.decode(raw)) for raw in question.budgets]
    except UNREADABLE as error:
        raise InvalidDocument(f"disruption budget of the plugin: {error}") from error
