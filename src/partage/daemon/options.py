"""The options of the scheduler's process."""

from dataclasses import dataclass, field

from partage.controllers.manager import ControllerSettings
from partage.daemon.agent_liveness import SilenceSettings
from partage.daemon.learning import LearningSettings
from partage.daemon.plugin import PluginOptions
from partage.daemon.preempting import PreemptionSettings
from partage.daemon.recording import RecordSettings
from partage.extender.server import Faces
from partage.extender.service import ServiceSettings
from partage.kube.election import LeaseSettings
from partage.kube.watch import WatchSettings
from partage.model.policy import Policy
from partage.serving.access import Access
from partage.serving.tls import ServerTls
from partage.tracing.tracer import NO_TRACES, Tracer


@dataclass(frozen=True, slots=True)
class WriteBudget:
    """Requests a second that one instance sends of its own accord, in the long run.

    The requests of two seconds may be sent at once, for each kind. Bindings, with a vendor's lock and
    the reading back of a pod, follow kube-scheduler's pace. Leases have no limit.

    Attributes:
        events: about waiting pods and nodes.
        wake_ups: of pods for which room appeared.
        objects: the controllers' writes on nodes and pods, and the closing of nodes without an agent.
        templates: lists, creations and deletions of templates of translated pods.
        evictions: requests that make room: evictions, conditions of victims, nominations.
        reviews: checks of callers' tokens and rights, at most two for each unknown caller.
    """

    events: float = 25.0
    wake_ups: float = 100.0
    objects: float = 100.0
    templates: float = 50.0
    evictions: float = 50.0
    reviews: float = 20.0


@dataclass(frozen=True, slots=True)
class ElectionOptions:
    """The election of one leader among several instances.

    Attributes:
        quiet_period: seconds from the last request of the earlier leader until a new leader lists everything;
            None takes the time-out of a Binding and a fifth of it, so that all requests of the
            earlier leader have ended.
        pod: namespace and name of our own pod, which gets the leader's label for the Service;
            None writes no label.
    """

    namespace: str = "partage-system"
    name: str = "partage-scheduler"
    times: LeaseSettings = LeaseSettings()
    quiet_period: float | None = None
    pod: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """One instance of the scheduler; the help of `partage scheduler` explains most fields. None does without the part.

    Attributes:
        port: 0 takes any free port.
        faces: access, limits, series and readers of the HTTP service; open to every caller by
            default, which is for one machine only.
        config_namespaces: namespaces whose ConfigMaps have an effect; empty for all.
        election: None leads at once, without a Lease, for one instance only.
        controllers: `config_namespaces` also applies to them.
        learning: how prices of the default policy are learnt while this instance leads.
        tick: seconds between two looks for expired holds and other effects of time.
        relist: seconds after which an audit first lists everything again, to find also changes
            that a watch missed.
        plugin: with it, kube-scheduler's Lease elects too.
    """

    identity: str = "partage-scheduler"
    host: str = "127.0.0.1"
    port: int = 0
    read_port: int | None = None
    health_port: int | None = None
    faces: Faces = field(default_factory=lambda: Faces(Access(plain=True)))
    tls: ServerTls | None = None
    service: ServiceSettings = ServiceSettings()
    policy: Policy | None = None
    config_namespaces: tuple[str, ...] = ()
    config_names: tuple[str, ...] = ()
    election: ElectionOptions | None = None
    watches: WatchSettings = WatchSettings()
    controllers: ControllerSettings | None = ControllerSettings()
    authorize: bool = False
    learning: LearningSettings | None = LearningSettings()
    preemption: PreemptionSettings | None = PreemptionSettings()
    silence: SilenceSettings = SilenceSettings()
    record: RecordSettings | None = None
    writes: WriteBudget = WriteBudget()
    tick: float = 1.0
    audit: float = 60.0
    relist: float = 3600.0
    tracer: Tracer = NO_TRACES
    plugin: PluginOptions | None = None
    claims: bool = False
    claim_templates: bool = False
