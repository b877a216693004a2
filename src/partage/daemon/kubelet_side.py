"""What the agent does with its node's kubelet: device plugins, advice by the pods' records, a check.

    devices of the node ──units──> device plugins ──> kubelet
    pods of the node, and who holds what by PodResources ──> which units are advised

Without an API server no pods are known and nothing is advised; the kubelet then chooses units itself,
and containers still get what their records say.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
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
from partage.agent.kubelet.resources import KubeletSilent, Resources, unserved, without_ours
from partage.agent.kubelet.units import Offer, advise, asked_of, offers
from partage.agent.notes import Code, Notes
from partage.daemon.agent import Asked
from partage.daemon.node_pods import pods_of
from partage.daemon.watched import LivePod
from partage.kube.client import Client

_AGAIN: Final = 0.25
"""Seconds after which advice is worked out anew though nothing was heard of."""
_LOG: Final = logging.getLogger("partage.daemon")


@dataclass(frozen=True, slots=True)
class KubeletOptions:
    """Where the kubelet is, and how patient to be.

    Attributes:
        folder: the kubelet's; sockets of plugins and of PodResources are in it.
        wait: seconds that the start of a container with units waits for who would give it its devices. It is
            the pod's own time; refused after it, the container is tried again 10 s later. Below the
            kubelet's limit of 30 s.
        patience: seconds that advice may wait for the API server to tell of the pod.
        period: seconds between two comparisons with what the kubelet says.
        look: seconds between two looks whether the kubelet was started anew.
    """

    folder: Path = Path("/var/lib/kubelet")
    wait: float = 5.0
    patience: float = 1.0
    period: float = 60.0
    look: float = 0.5


class KubeletSide:
    """One node's; `take` what the node is, and `run` it."""

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
        """Nothing is served yet.

        Args:
            asked: what asks the keeper about containers.
            chance: between 0 and 1; spreads what is tried again.
            client: an open client, for the node's pods; without one nothing is advised.
            notes: hear of units that cannot be told.
        """
        self._notes = notes or Notes()
        self._node = node
        self._options = options
        self._keeper = keeper
        self._asked = asked
        files = PluginFiles(options.folder / "device-plugins", look=options.look)
        self._plugins = DevicePlugins(files, self._advise, self._allow, chance, keeper.stories)
        self._resources: Resources | None = None
        self._offers: tuple[Offer, ...] = ()
        self._lacking: dict[str, list[str]] = {}
        self._news = asyncio.Event()
        self._pods = None if client is None else pods_of(client, node, self._news.set)

    def take(self, place: Place) -> None:
        """Go on with the node as it is now."""
        self._offers = offers(place.node, place.settings)
        self._plugins.take(self._offers)
        self._notes.say(
            self.name,
            Code.UNITS_LEFT_OUT,
            [
                f"{one.resource}: {one.dropped} units more than the kubelet takes"
                for one in self._offers
                if one.dropped
            ],
        )
        tallies = self._keeper.tallies
        for one in self._offers:
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
    def offers(self) -> tuple[Offer, ...]:
        """Resources and units that the agent tells the kubelet."""
        return self._offers

    @property
    def pods(self) -> list[LivePod] | None:
        """Pods of the node; None until the API server has told."""
        if self._pods is None or not self._pods.synced.is_set():
            return None
        return list(self._pods.objects.values())

    async def held(self) -> tuple[PodResources, ...] | None:
        """Who holds which units by the kubelet's word; None while it does not tell."""
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
        """Why a container would not get its devices; waits a moment for what passes by itself."""
        with suppress(TimeoutError):
            async with asyncio.timeout(self._options.wait):
                await self._asked.ready.wait()
        why = self._asked.problem
        return f"the container would get no devices: {why}" if why else ""

    async def _advise(self, offer: Offer, asked: ContainerPreference) -> tuple[str, ...]:
        """Advice by the records; the kubelet may have heard of a pod a moment before us."""
        try:
            async with asyncio.timeout(self._options.patience):
                while True:
                    self._news.clear()
                    advice = await self._advice(offer, asked)
                    if advice:
                        return advice
                    with suppress(TimeoutError):  # the kubelet may have been silent just then
                        await asyncio.wait_for(self._news.wait(), _AGAIN)
        except TimeoutError:
            return ()

    async def _advice(self, offer: Offer, asked: ContainerPreference) -> tuple[str, ...]:
        if self._resources is None or self._pods is None or not self._pods.synced.is_set():
            return ()
        try:
            known = await self._resources.pods()
        except KubeletSilent as error:
            _LOG.debug("%s", error)
            return ()  # without it, which container waits is a guess
        all_asked = asked_of(self._pods.objects.values(), self._node, known)
        return advise(offer, asked.size, asked.available, asked.must_include, all_asked)

    async def _compare(self, resources: Resources) -> None:
        """Report, now and then, containers that hold units and got nothing, and units of another plugin."""
        told: Collection[str] = ()
        while True:
            await asyncio.sleep(self._options.period)
            try:
                found = self._unserved(await resources.pods())
                self._look_whose(await resources.allocatable())
            except KubeletSilent:
                continue
            for one in found:
                if one not in told:
                    _LOG.warning(
                        "%s holds units according to the kubelet and has got no devices", one
                    )
            told = found
            self._keeper.tallies.unserved.set(len(found))

    def _look_whose(self, allocatable: tuple[ContainerDevices, ...]) -> None:
        """Tell of another plugin that has taken a name, and register again when it has gone.

        The kubelet gives the units of the plugin that registered last. It tells the one before nothing, and does not
        come back to it.
        """
        ours = {
            one.resource: {unit.id for unit in one.units if unit.healthy}
            for one in self._offers
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
        ours = {one.resource for one in self._offers}
        return unserved(pods, ours, self._keeper.served)
