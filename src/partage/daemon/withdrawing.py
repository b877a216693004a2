"""Removes Partage's data from a cluster, after its programs have ended.

It names the nodes with devices that pods or ResourceClaims still hold, and changes nothing there. Without the node's
totals the kubelet may end such pods at a restart. In either case a scheduler that does not know the records may
allocate the pods' cards again.
"""

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final

from partage.controllers.withdrawal import claimed, removals, reported_by, running, users
from partage.daemon.watched import DEVICES, RESOURCE_CLAIMS
from partage.kube.client import Client
from partage.kube.errors import NotFound, NotServed
from partage.kube.resources import LEASES, NODES, PODS, Resource, Scope
from partage.wire.silence import LEASE_NAMESPACE, LEASE_PREFIX

Object = dict[str, Any]
_LEASES: Final = Scope(LEASES, LEASE_NAMESPACE)
_LOOK: Final = 1.0
_SHOWN: Final = 3
_PODS: Final = "pods that hold its devices run there:"
_CLAIMS: Final = (
    "ResourceClaims hold its devices, and their pods end only while an agent with --dra runs there, so install "
    "Partage again before you delete these pods:"
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a withdrawal.

    Attributes:
        running: running pods of Partage; with any, nothing was changed.
        left: the nodes without a change, and why.
        done: number of changes.
    """

    running: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    done: int = 0


async def withdraw(
    client: Client,
    told: Callable[[str], None],
    *,
    wait: float = 0.0,
    force: bool = False,
    dry_run: bool = False,
) -> Outcome:
    """Remove labels, annotations and totals of nodes, Device objects and Leases.

    Args:
        told: gets one line for each change.
        wait: seconds that Partage's pods may take to end.
        force: work while Partage's pods run, and on nodes whose devices pods hold.
        dry_run: report, and change nothing.

    Raises:
        KubeError: the API server does not answer, or refuses; earlier changes remain.
    """
    deadline = client.clock.monotonic() + wait
    while True:
        pods = await _listed(client, Scope(PODS))
        ours = running(pods)
        if not ours or force or client.clock.monotonic() >= deadline:
            break
        await client.clock.sleep(_LOOK)
    if ours and not force:
        return Outcome(running=tuple(ours))
    held = {} if force else users(pods)
    claims = {} if force else claimed(await _listed(client, Scope(RESOURCE_CLAIMS)))
    done = 0
    async for line in _done(client, {*held, *claims}, dry_run=dry_run):
        told(line)
        done += 1
    left = [f"node {one}: {_PODS} {_shown(names)}" for one, names in held.items()]
    left += [f"node {one}: {_CLAIMS} {_shown(names)}" for one, names in claims.items()]
    return Outcome(left=tuple(left), done=done)


def _shown(held: list[str]) -> str:
    more = f" and {len(held) - _SHOWN} more" if len(held) > _SHOWN else ""
    return f"{', '.join(held[:_SHOWN])}{more}"


async def _done(client: Client, held: set[str], *, dry_run: bool) -> AsyncIterator[str]:
    """Make the changes, and yield a line for each."""
    for lease in await _listed(client, _LEASES):
        name = lease["metadata"]["name"]
        if name.startswith(LEASE_PREFIX):
            uid = lease["metadata"]["uid"]
            space = _LEASES.namespace
            if await _made(client.delete(LEASES, name, namespace=space, uid=uid, dry_run=dry_run)):
                yield f"lease {name}: deleted"
    for device in await _listed(client, Scope(DEVICES)):
        name, uid = device["metadata"]["name"], device["metadata"]["uid"]
        if name in held:
            continue
        if not reported_by(device):
            async for line in _taken(client, DEVICES, "device", device, dry_run=dry_run):
                yield line
        elif await _made(client.delete(DEVICES, name, uid=uid, dry_run=dry_run)):
            yield f"device {name}: deleted"
    for node in await _listed(client, Scope(NODES)):
        if node["metadata"]["name"] not in held:
            async for line in _taken(client, NODES, "node", node, dry_run=dry_run):
                yield line


async def _taken(
    client: Client, kind: Resource, word: str, value: Object, *, dry_run: bool
) -> AsyncIterator[str]:
    name = value["metadata"]["name"]
    for one in removals(value):
        change = client.patch(
            kind, name, one.body, subresource=one.subresource, dry_run=dry_run, into=Object
        )
        if not await _made(change):
            return
        yield f"{word} {name}: removed {', '.join(one.keys)}"


async def _made(change: Awaitable[object]) -> bool:
    """Whether a change was made; False if its object is gone."""
    try:
        await change
    except NotFound:
        return False
    return True


async def _listed(client: Client, scope: Scope) -> list[Object]:
    """All objects of a kind; none if the cluster does not have the kind."""
    into: Any = Object
    try:
        return list((await client.list_all(scope, into=into)).items)
    except (NotFound, NotServed):
        if await client.serves(scope.resource):
            raise  # a proxy's: it must not look as if no pod held anything
        return []
