"""Reads a pod's status: whether the pod is over, so that it no longer holds devices, and its conditions.

A deletion timestamp does not end a pod: the containers still run. Stopped containers do not end it
either while the kubelet is about to start them again.

Source: Kubernetes pod lifecycle.
"""

from collections.abc import Iterable, Sequence

from partage.wire import shapes


def finished(pod: shapes.Pod) -> bool:
    """Whether its containers have ended for good.

    True in phase Succeeded or Failed. Otherwise every container and sidecar must be terminated,
    and nothing may start them again: the pod is being deleted, or the restart policy of each is Never,
    or OnFailure and it succeeded. A container's own policy comes before the pod's (since Kubernetes 1.34),
    and one with rules may start again after any exit code.
    """
    status, spec = pod.status or shapes.PodStatus(), pod.spec or shapes.PodSpec()
    if status.phase in ("Succeeded", "Failed"):
        return True
    if not any(map(_some_ended, (status.container_statuses, status.init_container_statuses))):
        return False  # nearly always
    beside = [c for c in spec.init_containers or () if c.restart_policy == "Always"]
    ended = [
        *_terminated(spec.containers or (), status.container_statuses),
        *_terminated(beside, status.init_container_statuses),
    ]
    if not ended or any(end is None for end in ended):
        return False
    if pod.metadata is not None and pod.metadata.deletion_timestamp:
        return True
    # A sidecar starts again only beside other containers.
    own = [(c, c.restart_policy or spec.restart_policy) for c in spec.containers or ()]
    own += [(c, spec.restart_policy) for c in beside]
    policies = ["Always" if c.restart_policy_rules else policy for c, policy in own]
    return all(
        policy == "Never" or (policy == "OnFailure" and end is not None and end.exit_code == 0)
        for policy, end in zip(policies, ended, strict=True)
    )


def condition(pod: object, kind: str) -> shapes.Condition | None:
    """The pod's condition of a type; None if it has none, and for an object that is no pod."""
    status = pod.status if isinstance(pod, shapes.Pod) else None
    return next(
        (one for one in (status.conditions if status else None) or () if one.type == kind), None
    )


def _some_ended(statuses: Iterable[shapes.ContainerStatus] | None) -> bool:
    for status in statuses or ():
        if status.state is not None and status.state.terminated is not None:
            return True
    return False


def _terminated(
    containers: Sequence[shapes.Container], statuses: Iterable[shapes.ContainerStatus] | None
) -> list[shapes.Terminated | None]:
    """How each container ended; None for one that did not, or whose state is unknown."""
    known = {status.name: status.state.terminated for status in statuses or () if status.state}
    return [known.get(container.name) for container in containers]
