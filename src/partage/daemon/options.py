"""What may be set of the scheduler's process."""

from collections.abc import Callable
from dataclasses import dataclass, field

from partage.controllers.manager import ControllerSettings
from partage.daemon.agent_liveness import SilenceSettings
from partage.daemon.learning import LearningSettings
from partage.daemon.plugin import PluginOptions
from partage.daemon.preempting import PreemptionSettings
from partage.daemon.recording import RecordSettings
from partage.extender.cluster_cache import ClusterCache
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

    What two seconds of each allow may be sent at once. Bindings, with a vendor's lock and reading
    back, are kube-scheduler's pace, and Leases are not held up by anything.

    Attributes:
        events: on pods that wait, and on nodes.
        wake_ups: of pods for which room appeared.
        objects: what controllers write on nodes and pods, and who closes nodes without an agent.
        templates: of pods that were translated: listed, made and removed.
        evictions: what making room takes: victims, their conditions, nominations.
        reviews: of callers' tokens and rights, at most two for each that is not known.
    """

    events: float = 25.0
    wake_ups: float = 100.0
    objects: float = 100.0
    templates: float = 50.0
    evictions: float = 50.0
    reviews: float = 20.0


@dataclass(frozen=True, slots=True)
class ElectionOptions:
    """One leader among several instances.

    Attributes:
        namespace: of the Lease.
        name: of the Lease.
        fence: seconds that a new leader lets pass, from when the one before sent nothing any more,
            before it lists afresh; None takes the time-out of a Binding and a fifth of it, so that
            whatever the old leader had sent has come to its end.
        pod: namespace and name of our own pod, which carries the leader's label for the Service;
            None writes no label.
    """

    namespace: str = "partage-system"
    name: str = "partage-scheduler"
    times: LeaseSettings = LeaseSettings()
    fence: float | None = None
    pod: tuple[str, str] | None = None


@dataclass(frozen=True, slots=True)
class SchedulerOptions:
    """One instance of the scheduler.

    Attributes:
        identity: unique to this process among all instances; shown in events and in the Lease.
        port: 0 takes any that is free.
        read_port: a second port, without client certificates and with TLS only where the caller begins so, on which
            everything but the verbs is answered; None for none.
        health_port: a port for the two probes alone; None for none.
        faces: access, limits, series and readers of the HTTP service; open to every caller by
            default, which is for one machine only.
        tls: certificates; None serves without.
        service: holds, time-outs of Bindings, seed.
        policy: in force where neither the pod nor `partage-config` names one.
        config_namespaces: whose ConfigMaps set anything; empty for those of all.
        config_names: names of those that do; empty for any.
        election: None leads at once, without a Lease: for one instance only.
        controllers: of what keeps node totals and labels, and flags pods; None runs none.
            `config_namespaces` holds for them too.
        authorize: explanations are only for who may get the namespace's pods, as the API server
            says of the caller's token.
        learning: how prices of the default policy are learnt while this instance leads; None
            learns none.
        preemption: how less important pods are sent away for those that only their devices keep
            waiting; None sends no pod away.
        silence: when a node whose agent is away is closed to new pods with devices.
        record: the file that keeps every decision with what led to it; None keeps none.
        writes: how many requests it sends of its own accord.
        tick: seconds between two looks at what time brings.
        audit: seconds between two audits of the books against the pods that are watched.
        relist: seconds after which an audit lists everything afresh first, so that what a watch
            never told is found too.
        tracer: traces what becomes of pods.
        plugin: the socket of kube-scheduler's plugin; None where kube-scheduler asks as its
            extender. With it, `election` names the Lease that kube-scheduler itself holds.
        claims: ResourceClaims are followed, and what they hold of cards is counted.
        claim_templates: templates of pods that were translated are made and removed.
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

    @property
    def cluster_cache(self) -> Callable[[], ClusterCache]:
        """Makes the cluster_cache of new books."""
        return lambda: ClusterCache(policy=self.policy, namespaces=self.config_namespaces)
