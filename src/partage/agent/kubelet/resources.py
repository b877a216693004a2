"""Asks the kubelet which containers hold which units, by PodResources (v1).

The kubelet reports namespace and name of a pod and no UID, so its answer identifies no pod.
"""

import asyncio
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Final

import grpc

from partage.agent.kubelet import messages
from partage.agent.protobuf import M
from partage.agent.sockets import PROMPT
from partage.model.errors import PartageError
from partage.wire.protobuf import Malformed

_PATIENCE: Final = 2.0
_OPTIONS: Final = (("grpc.max_receive_message_length", 64 << 20), *PROMPT)


class KubeletSilent(PartageError):
    """The kubelet does not answer; the message contains the reason."""


class Resources:
    """The kubelet's PodResources; `close` it at the end."""

    def __init__(self, socket: Path) -> None:
        """Start a client without a request; no kubelet need exist at its `socket`."""
        self._channel = grpc.aio.insecure_channel(f"unix:{socket}", options=_OPTIONS)

    async def close(self) -> None:
        """End the connection."""
        await self._channel.close()

    async def pods(self) -> tuple[messages.PodResources, ...]:
        """The units of all pods of the node. Raises `KubeletSilent`."""
        return (await self._ask("List", messages.ListResponse)).pods

    async def allocatable(self) -> tuple[messages.ContainerDevices, ...]:
        """All units that the kubelet may allocate, of all plugins. Raises `KubeletSilent`."""
        return (await self._ask("GetAllocatableResources", messages.AllocatableResponse)).devices

    async def _ask(self, method: str, of: type[M]) -> M:
        call = self._channel.unary_unary(f"/{messages.POD_RESOURCES}/{method}")
        try:
            data = await call(b"", timeout=_PATIENCE)
            # Of thousands of containers it takes longer than the event loop may wait.
            return await asyncio.to_thread(of.decode, data)
        except grpc.aio.AioRpcError as error:
            raise KubeletSilent(f"PodResources {method}: {error.details()}") from error
        except Malformed as error:
            raise KubeletSilent(f"PodResources {method}: {error}") from error


def without_ours(
    allocatable: Iterable[messages.ContainerDevices], ours: Mapping[str, Collection[str]]
) -> dict[str, list[str]]:
    """Resources of ours for which the kubelet counts no unit of `ours`.

    Returns the units that it counts instead, sorted: those of another plugin that registered later, or none.
    """
    found = defaultdict[str, set[str]](set)
    for one in allocatable:
        found[one.resource_name].update(one.ids)
    return {
        name: sorted(found[name])
        for name, own in ours.items()
        if own and found[name].isdisjoint(own)
    }
