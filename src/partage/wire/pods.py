"""A Pod document as the engine's pod, and as the view with which families read and write.

Reading never refuses a pod for its request of devices: a broken rule becomes the request's
fault, and the pod waits with it. Only a document that Kubernetes itself could not decode is an error.

Source: the four published documents; Kubernetes API v1.36.
"""

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from partage.model.device import DeviceType
from partage.model.errors import InvalidValue
from partage.model.permit import Wish
from partage.model.pod import Pod
from partage.model.policy import Strategy
from partage.model.quantity import Quantity, decimal
from partage.model.reason import ReasonCode
from partage.model.request import Fault, Phase, PodRequest, RequestGroup
from partage.model.selector import NodeConstraint
from partage.vendors import names
from partage.vendors.base import ContainerView, PodView, Reading
from partage.vendors.catalog import KOORDINATOR_ALIASES
from partage.vendors.most import most_devices
from partage.vendors.wishes import Priority, read_class
from partage.wire import shapes
from partage.wire.amounts import Faults, pod_amounts
from partage.wire.constraints import constraint_of, tolerations_of
from partage.wire.context import Context
from partage.wire.demand import bounded, effective, units
from partage.wire.documents import Document, invalid
from partage.wire.limits import beyond, by_claims_alone
from partage.wire.near_names import near_names
from partage.wire.pod_phase import finished
from partage.wire.reading import read_all

_NAMESPACE: Final = uuid.UUID("6f9f3c1e-7a43-5d2b-9a60-52415254a6e5")
"""The namespace of identities derived for pods without a uid; any fixed value is possible."""

_LONGEST: Final = 1024
"""Characters of a fault, the API server's limit for the message of an event."""
_PERCENT: Final = 100
_LONGEST_NAME: Final = 253
"""Characters of an object's name, the API server's limit."""
_DIALECTS: Final = frozenset(KOORDINATOR_ALIASES).union(KOORDINATOR_ALIASES.values())
_ORDERS: Final = (Strategy.BINPACK, Strategy.SPREAD)


@dataclass(frozen=True, slots=True)
class TranslatedPod:
    """A pod for the engine, and the author's own data for the families."""

    pod: Pod
    view: PodView


def stable_uid(namespace: str, kind: str, name: str, index: int = 0) -> str:
    """The uid of an object that has none yet; the same for the same object every time."""
    return str(uuid.uuid5(_NAMESPACE, f"{namespace}/{kind}/{name}/{index}"))


def translate_pod(document: Document, context: Context) -> TranslatedPod:
    """The pod of a document of kind Pod.

    Its record is not read here, because that needs the pod's node (`recovery.recover`). Raises `InvalidDocument`: the
    document is no pod, because an ordinary resource is not a quantity.
    """
    shape = document.shape
    if not isinstance(shape, shapes.Pod):
        raise document.invalid("kind", f"{document.kind} is not Pod")
    return _Reader(document, shape, context).translated()


class _Reader:
    """Reads one pod; `faults` has the rules that it breaks outside its families' names."""

    def __init__(self, document: Document, shape: shapes.Pod, context: Context) -> None:
        self.document = document
        self.shape = shape
        self.spec = shape.spec or shapes.PodSpec()
        self.context = context
        self.faults = Faults()

    def translated(self) -> TranslatedPod:
        document, spec, context = self.document, self.spec, self.context
        # A bound pod holds the devices of its record, however much it asks for; one with claims alone has no record.
        claims_alone = by_claims_alone(spec, context.is_device)
        if claims_alone or not spec.node_name:
            problem = beyond(spec, document.annotations, context.is_device, document.dropped)
            if problem:
                return self._unread(problem, claims_alone=claims_alone)
        try:
            view = self._view(self._containers())
            whole = self._whole()
            host = self._host(view, whole)
        except InvalidValue as error:
            raise invalid(document, error) from error
        constraint = self._constraint()
        reading = read_all(view, context)
        pod = Pod(
            uid=view.uid,
            namespace=view.namespace,
            name=view.name,
            priority=self._priority(),
            node=view.node or None,
            finished=finished(self.shape),
            request=self._request(view, reading),
            host={name: bounded(name, amount) for name, amount in host.items()} | {"pods": 1},
            constraint=constraint,
            tolerations=tolerations_of(spec),
            quota=_quota(_counted(view, context), whole, reading, host),
            wish=self._wish(view, reading) if context.settings.isolation.permits else None,
        )
        return TranslatedPod(pod, view)

    def _unread(self, problem: str, *, claims_alone: bool) -> TranslatedPod:
        """A pod that asks for more than is read of any; it waits with the reason, or kube-scheduler alone places it."""
        fault = Fault(problem)
        if claims_alone:
            fault = Fault(
                f"{problem} for Partage to compare nodes; kube-scheduler alone looks for its node",
                ReasonCode.SEARCH_LIMIT,
            )
        view = self._view(())
        pod = Pod(
            uid=view.uid,
            namespace=view.namespace,
            name=view.name,
            priority=self._priority(),
            node=view.node or None,
            finished=finished(self.shape),
            request=PodRequest(fault=fault),
            host={"pods": 1},
        )
        return TranslatedPod(pod, view)

    def _view(self, containers: tuple[ContainerView, ...]) -> PodView:
        document = self.document
        namespace, name = document.namespace, document.name
        return PodView(
            namespace=namespace,
            name=name,
            uid=document.metadata.uid or stable_uid(namespace, "Pod", name),
            node=self.spec.node_name or "",
            scheduler=self.spec.scheduler_name or "",
            labels=document.labels,
            annotations=document.annotations,
            dropped=document.dropped,
            containers=containers,
        )

    def _containers(self) -> tuple[ContainerView, ...]:
        spec, faults = self.spec, self.faults
        if not spec.containers:
            faults.add("spec.containers: at least one container is required")
        views: list[ContainerView] = []
        taken: set[str] = set()
        for field, listed in (
            ("spec.initContainers", spec.init_containers),
            ("spec.containers", spec.containers),
        ):
            for index, container in enumerate(listed or ()):
                phase = Phase.MAIN
                if listed is spec.init_containers:
                    phase = Phase.SIDECAR if container.restart_policy == "Always" else Phase.INIT
                view = self._container(container, phase, f"{field}[{index}]", faults)
                if view.name in taken:
                    faults.add(f"container {view.name}: the name is used twice in the pod")
                taken.add(view.name)
                views.append(view)
        return tuple(views)

    def _container(
        self, container: shapes.Container, phase: Phase, field: str, faults: Faults
    ) -> ContainerView:
        name = container.name or field
        if not container.name:
            faults.add(f"{field}.name: missing")
        given = container.resources or shapes.Resources()
        path, who, is_device = f"{field}.resources", f"container {name}", self.context.is_device
        return ContainerView(
            name=name,
            phase=phase,
            requests=pod_amounts(given.requests, f"{path}.requests", who, is_device, faults),
            limits=pod_amounts(given.limits, f"{path}.limits", who, is_device, faults),
        )

    def _whole(self) -> "_Whole":
        given = self.spec.resources or shapes.Resources()
        limits, requests, overhead = (
            pod_amounts(amounts, f"spec.{field}", "the pod", self.context.is_device, self.faults)
            for field, amounts in (
                ("resources.limits", given.limits),
                ("resources.requests", given.requests),
                ("overhead", self.spec.overhead),
            )
        )
        return _Whole(requests, limits, overhead)

    def _host(self, view: PodView, whole: "_Whole") -> dict[str, Quantity]:
        """Ordinary resources; the ledger counts the names that a family reads."""
        owners = self.context.owners
        # The families read only containers, so a device in the pod-level request would be lost.
        for name in sorted({*whole.limits, *whole.requests, *whole.overhead}):
            if name in owners:
                self.faults.add(f"the pod: {name}: containers must ask for devices")
        needed = effective(view.containers, whole.requests, whole.overhead, whole.limits)
        return {name: amount for name, amount in needed.items() if name not in owners}

    def _constraint(self) -> NodeConstraint:
        try:
            return constraint_of(self.spec)
        except InvalidValue as error:
            self.faults.add(str(error))
            return NodeConstraint()

    def _priority(self) -> int:
        if self.spec.priority is not None:
            return self.spec.priority
        name = self.spec.priority_class_name or ""
        return self.context.priorities.get(name, self.context.default_priority)

    def _request(self, view: PodView, reading: Reading) -> PodRequest:
        # Partage's own annotations override a protocol's.
        node = self._strategy(view, names.NODE_POLICY, tuple(Strategy))
        card = self._strategy(view, names.CARD_POLICY, _ORDERS)
        order, faults = reading.card_order, self.faults
        fault = Fault(faults.first) if faults.first else reading.fault or self._gated(view)
        if fault is not None and len(fault.message) > _LONGEST:  # it quotes the pod
            fault = replace(fault, message=f"{fault.message[: _LONGEST - 1]}…")
        # Amounts that broke a rule were left out, so the notes on the rest do not fit the pod.
        told = () if faults.first else reading.notes
        return PodRequest(
            groups=_in_pod_order(reading.groups, view),
            joint=reading.joint,
            partition=reading.partition,
            node_labels=reading.node_labels,
            node_strategy=node or reading.node_strategy,
            card_order=order if card is None else replace(order, strategy=card),
            scoring=reading.scoring,
            fault=fault,
            notes=(*told, *self._notes(), *near_names(self.document, self.context)),
            broken=() if fault is None else self._broken(view),
        )

    def _strategy(self, view: PodView, key: str, allowed: Sequence[Strategy]) -> Strategy | None:
        text = view.annotations.get(key)
        if text is None:
            return None
        if text.lower() in tuple(allowed):
            return Strategy(text.lower())
        self.faults.add(f"annotation {key}: {text!r} is not one of {', '.join(allowed)}")
        return None

    def _gated(self, view: PodView) -> Fault | None:
        """The reason why a pod may not be scheduled yet: Kubernetes binds no pod that has gates."""
        if view.node or not self.spec.scheduling_gates:
            return None
        gates = ", ".join(gate.name or "" for gate in self.spec.scheduling_gates)
        return Fault(f"scheduling gates: {gates}", ReasonCode.SCHEDULING_GATED)

    def _broken(self, view: PodView) -> tuple[tuple[DeviceType, int], ...]:
        """The most devices of a pod whose request broke a rule, pod-level requests included."""
        wholes = (self.spec.resources, shapes.Resources(requests=self.spec.overhead))
        parts = [
            self._container(shapes.Container(resources=whole), Phase.MAIN, "pod", Faults())
            for whole in wholes
            if whole is not None
        ]
        containers, complete = (*view.containers, *parts), not self.faults.unread
        owners, settings = self.context.owners, self.context.settings
        return most_devices(containers, owners, settings, complete=complete)

    def _notes(self) -> list[str]:
        """Parts of the pod that an offline decision ignores."""
        spec, context = self.spec, self.context
        affinity = spec.affinity or shapes.Affinity()
        nothing = shapes.BetweenPods()
        ignored = {
            "affinity to other pods": (affinity.pod_affinity or nothing) != nothing,
            "anti-affinity to other pods": (affinity.pod_anti_affinity or nothing) != nothing,
            "topology spread": spec.spread,
            "host ports": [p for c in spec.containers or () for p in c.ports or () if p.host_port],
        }
        notes = [f"{what}: ignored offline" for what, given in ignored.items() if given]
        name = spec.priority_class_name
        if name and spec.priority is None and name not in context.priorities:
            default = context.default_priority
            notes.append(f"priority class {name} is not known; priority {default}")
        return notes

    def _wish(self, view: PodView, reading: Reading) -> Wish | None:
        """The pod's wishes beside its amounts, and those that the operator's rule for it allows.

        HAMi's priority counts only as a resource, because variables may get their values from outside the pod.
        """
        cards = [one.request for one in reading.groups if one.request.type is DeviceType.GPU]
        if reading.fault is not None or all(one.whole for one in cards):
            return None
        settings = self.context.settings
        said = read_class(view.annotations)
        asked = (one.ask(settings.hami.priority_name) for one in view.containers)
        first = any(one is not None and one.nano == 0 for one in asked)
        online = said is Priority.ONLINE or (said is None and first)
        account = (self.spec.service_account_name or "default")[:_LONGEST_NAME]
        for rule in settings.isolation.permits:
            if rule.names(view.namespace, account):
                denied = "" if rule.online else f"online is not granted by rule {rule.name}"
                return Wish(
                    online, rule.name, denied, rule.online_pods, rule.online_cards, rule.policy
                )
        denied = (
            f"online is not granted: no rule names service account {account} of namespace "
            f"{view.namespace} (permits of partage-config)"
        )
        return Wish(online, denied=denied)


@dataclass(frozen=True, slots=True)
class _Whole:
    """The amounts of a pod as a whole."""

    requests: Mapping[str, Quantity]
    limits: Mapping[str, Quantity]
    overhead: Mapping[str, Quantity]


def _in_pod_order(groups: Sequence[RequestGroup], view: PodView) -> tuple[RequestGroup, ...]:
    """The groups, those of init containers last; every container gets its position in the pod."""
    position = {container.name: index for index, container in enumerate(view.containers)}
    placed = (
        replace(
            group,
            containers=tuple(
                replace(ask, position=position.get(ask.name, 0)) for ask in group.containers
            ),
        )
        for group in groups
    )
    return tuple(sorted(placed, key=lambda group: group.phase is Phase.INIT))


def _counted(view: PodView, context: Context) -> tuple[ContainerView, ...]:
    """The containers as quotas count them.

    A lone `nvidia.com/gpu: "100"` counts as one card, because in a cluster admission rewrites it before
    the quota sees it. Koordinator's names count in both dialects.
    """
    name = names.COUNT_NVIDIA

    def as_cards(amounts: Mapping[str, Quantity]) -> dict[str, Quantity]:
        value = amounts.get(name)
        if value is None or not value.integral or value.floor() % _PERCENT:
            return dict(amounts)
        return {**amounts, name: decimal(value.floor() // _PERCENT)}

    def counted(container: ContainerView) -> ContainerView:
        if [n for n in container.names if n in context.owners] == [name]:
            told: Callable[[Mapping[str, Quantity]], dict[str, Quantity]] = as_cards
        elif container.names.isdisjoint(_DIALECTS):
            return container
        else:
            told = partial(_in_both_dialects, names_used=container.names)
        return replace(container, requests=told(container.requests), limits=told(container.limits))

    return tuple(map(counted, view.containers))


def _in_both_dialects(
    amounts: Mapping[str, Quantity], names_used: frozenset[str]
) -> dict[str, Quantity]:
    """The amounts by v1.4's names and today's, as a quota may have either. Of both in one container today's holds."""
    result = dict(amounts)
    for old, new in KOORDINATOR_ALIASES.items():
        amount = amounts.get(new if new in names_used else old)
        for name in (old, new):
            result.pop(name, None)
            if amount is not None:
                result[name] = amount
    return result


def _quota(
    containers: Sequence[ContainerView],
    whole: _Whole,
    reading: Reading,
    host: Mapping[str, Quantity],
) -> dict[str, int]:
    """Amounts by the keys that a ResourceQuota counts, in whole units (`cpu` in milli).

    A family's own amount for a key wins. The engine itself counts a key that is counted by grants.
    """
    requested = {**effective(containers), **host}
    alone = tuple(replace(c, requests=c.limits, limits={}) for c in containers)
    limited = effective(alone, whole.limits)
    overhead = {name: amount for name, amount in whole.overhead.items() if name in limited}
    limits = effective(alone, whole.limits, overhead)
    keys = {"pods": 1, "count/pods": 1}
    for name, amount in requested.items():
        keys[name] = keys[f"requests.{name}"] = units(name, amount)
    for name, amount in limits.items():
        keys[f"limits.{name}"] = units(name, amount)
    counted = {key for group in reading.groups for key, _kind, _unit in group.metered}
    return {key: value for key, value in keys.items() if key not in counted} | dict(reading.quota)
