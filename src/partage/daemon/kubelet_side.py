"""Serves the node's kubelet: device plugins, advice by the pods' records, and a check of the kubelet's units.

    devices of the node ──units──> device plugins ──> kubelet
    pods of the node, and their units by PodResources ──> advised units

Without an API server the agent knows no pods and advises nothing. The kubelet then chooses units itself,
and containers still get the devices of their records.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from partage.agent.container_admission import Keeper
from partage.agent.injection import Place
from partage.agent.kubelet.messages import ContainerDevices, ContainerPreference, PodResources
from partage.agent.kubelet.plugin import DevicePlugins
from partage.agent.kubelet.registering import PluginFiles
from partage.agent.kubelet.resources import KubeletSilent, Resources, without_ours
from partage.agent.kubelet.units import Offer, advise, asked_of, counted, offers
from partage.agent.notes import Code, Notes
from partage.daemon.agent import Asked
from partage.daemon.node_pods import NodePods
from partage.daemon.watched import LivePod
from partage.kube.client import Client

_AGAIN: Final = 0.25
"""Seconds after which the agent works out its advice again, even without news."""
_CALM: Final = 10.0
"""Seconds for which advice waits for no pod after it has waited in vain: the kubelet admits one pod after the other, and a
pod without a record, or one that was deleted meanwhile, may have many containers."""
_LOG: Final = logging.getLogger("partage.daemon")


@dataclass(frozen=True, slots=True)
class KubeletOptions:
    """The kubelet's folder, and times.

    Attributes:
        folder: the kubelet's; contains the sockets of plugins and of PodResources.
        wait: seconds that the start of a container with units may wait until it would get its devices. Only
            its own pod waits. After a refusal the kubelet tries the container again 10 s later. Below the
            kubelet's limit of 30 s.
        patience: seconds that advice may wait until the API server reports the pod.
        period: seconds between two comparisons with the kubelet's report.
        look: seconds between two checks whether the kubelet was restarted.
    """

    folder: Path = Path("/var/lib/kubelet")
    wait: float = 5.0
    patience: float = 1.0
    period: float = 60.0
    look: float = 0.5


class KubeletSide:
    """Serves one node's kubelet with `offers`, its resources and units; `take` the node's state, and `run` it."""

    name: Final = "kubelet"

    def __init__(
        self,
        node: str,
        options: KubeletOptions,
        keeper: Keeper,
        asked: Asked,
        chance: Callable[[], float],
        client: Client | None = None,
        notes: Notes | None = None,
    ) -> None:
        """Serve nothing yet.

        Args:
            asked: the part that asks the keeper about containers.
            chance: between 0 and 1; spreads retries.
            client: an open client, for the node's pods; without one there is no advice.
            notes: get the units that the kubelet does not take.
        """
        self._notes = notes or Notes()
        self._node = node
        self._options = options
        self._keeper = keeper
        self._asked = asked
        files = PluginFiles(options.folder / "device-plugins", look=options.look)
        self._plugins = DevicePlugins(files, self._advise, self._allow, chance, keeper.stories)
        self._resources: Resources | None = None
        self.offers: tuple[Offer, ...] = ()
        self._lacking: dict[str, list[str]] = {}
        self._calm_until = 0.0
        self._news = asyncio.Event()
        self._pods = None if client is None else NodePods(client, node, self._news.set)

    def take(self, place: Place) -> None:
        """Offer the units of the node's present state."""
        tallies, before = self._keeper.tallies, self.offers
        self.offers = offers(place.node, place.settings)
        for gone in {one.resource for one in before} - {one.resource for one in self.offers}:
            tallies.units.labels(gone).set(0)
        self._plugins.take(self.offers)
        self._notes.say(
            self.name,
            Code.UNITS_LEFT_OUT,
            [
                f"{one.resource}: {one.dropped} units more than the kubelet takes"
                for one in self.offers
                if one.dropped
            ],
        )
        for one in self.offers:
            tallies.units.labels(one.resource).set(sum(unit.healthy for unit in one.units))
            told = partial(self._told, one.resource)
            tallies.registered.labels(one.resource).set_function(told)

    async def run(self) -> None:
        """Serve until cancelled."""
        resources = Resources(self._options.folder / "pod-resources/kubelet.sock")
        self._resources = resources
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self._plugins.run(), name="agent:plugins")
                tasks.create_task(self._compare(resources), name="agent:podresources")
                if self._pods is not None:
                    tasks.create_task(self._pods.run(), name="agent:pods-of-plugins")
        finally:
            await resources.close()

    @property
    def pods(self) -> list[LivePod] | None:
        """Pods of the node; None until the API server has listed them."""
        known = None if self._pods is None else self._pods.objects
        return None if known is None else list(known.values())

    async def held(self) -> tuple[PodResources, ...] | None:
        """The units of each pod by the kubelet's report; None while it reports nothing."""
        if self._resources is None:
            return None
        try:
            return await self._resources.pods()
        except KubeletSilent as error:
            _LOG.debug("%s", error)
            return None

    def _told(self, resource: str) -> float:
        return resource in self._plugins.registered

    async def _allow(self) -> str:
        """Why a container would not get its devices; waits a moment, because the reason may pass by itself."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._options.wait):
                await self._asked.ready.wait()
        why = self._asked.problem
        return f"the container would get no devices: {why}" if why else ""

    async def _advise(self, offer: Offer, asked: ContainerPreference) -> tuple[str, ...]:
        """Advice by the records; waits a moment, because the kubelet may know a pod before the agent does."""
        now = asyncio.get_running_loop().time
        try:
            async with asyncio.timeout(self._options.patience):
                while True:
                    self._news.clear()
                    advice = await self._advice(offer, asked)
                    if advice or now() < self._calm_until:
                        return advice
                    with suppress(TimeoutError):  # the kubelet may have been silent just then
                        await asyncio.wait_for(self._news.wait(), _AGAIN)
        except TimeoutError:
            self._calm_until = now() + _CALM
            return ()

    async def _advice(self, offer: Offer, asked: ContainerPreference) -> tuple[str, ...]:
        known = None if self.pods is None else await self.held()
        if known is None:
            return ()  # without the kubelet's report the waiting container is unknown

        def advised(pods: Sequence[LivePod]) -> tuple[str, ...]:
            all_asked = asked_of(pods, self._node, counted(known, {offer.resource}))
            return advise(offer, asked.size, asked.available, asked.must_include, all_asked)

        # It reads every record of the node, for each of a pod's containers again.
        return await asyncio.to_thread(advised, self.pods or ())

    async def _compare(self, resources: Resources) -> None:
        """Once a period, report containers that hold units and got no devices, and units of another plugin."""
        told: Collection[str] = ()
        while True:
            await asyncio.sleep(self._options.period)
            try:
                found = await asyncio.to_thread(self._unserved, await resources.pods())
                self._look_whose(await resources.allocatable())
            except KubeletSilent:
                continue
            for one in found:
                if one not in told:
                    _LOG.warning("%s holds units according to the kubelet and has no devices", one)
            told = found
            self._keeper.tallies.unserved.set(len(found))

    def _look_whose(self, allocatable: tuple[ContainerDevices, ...]) -> None:
        """Report another plugin that has registered a resource of ours, and register again when that plugin is gone.

        The kubelet gives the units of the plugin that registered last. It does not inform the plugin before, and does
        not return to it.
        """
        ours = {
            one.resource: {unit.id for unit in one.units if unit.healthy}
            for one in self.offers
            if one.resource in self._plugins.registered
        }
        lacking = without_ours(allocatable, ours)
        for name in lacking.keys() & self._lacking.keys():
            if not lacking[name]:
                self._plugins.again(name)
        for name, units in lacking.items():
            if units and not self._lacking.get(name):
                _LOG.warning("%s: another device plugin has registered it", name)
        self._lacking = lacking
        self._notes.say(
            f"{self.name}: plugins",
            Code.OTHER_PLUGIN,
            [
                f"{name}: the kubelet has {len(units)} units of another device plugin, such as {units[0]}, and "
                "none of the agent's"
                for name, units in lacking.items()
                if units
            ],
        )

    def _unserved(self, pods: tuple[PodResources, ...]) -> list[str]:
        """Containers that hold units in the kubelet's report and have no grant of the agent."""
        held, served = counted(pods, {one.resource for one in self.offers}), self._keeper.served
        return sorted("/".join(key) for key in held if ("/".join(key[:2]), key[2]) not in served)
