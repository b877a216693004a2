"""kube-scheduler's work for a pod's ResourceClaims: finds nodes with room, and allocates before the pod is bound.

`sim.claims` chooses a claim's devices on a node. It follows Kubernetes' allocator over the slices. Admission asks
whether the books have room too, as a cluster's API server asks the leader.
"""

import math
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

from partage.apiserver import ApiError, ApiServer, Record, User
from partage.embedded.claim_lives import CLAIMS, claims_of
from partage.embedded.claim_slices import SLICES
from partage.embedded.manifests import decoded
from partage.extender.books import Books
from partage.model.errors import InvalidDocument
from partage.model.reason import Refusal
from partage.sim.claims import MOST_LOOKS, Allowance, ClaimAllocator
from partage.vendors.names import CLAIM_FINALIZER
from partage.wire.device_selectors import MOST_STEPS, Selectors
from partage.wire.documents import Document

CLASSES: Final = "deviceclasses.resource.k8s.io"
KINDS: Final = {CLAIMS: "ResourceClaim", SLICES: "ResourceSlice", CLASSES: "DeviceClass"}
"""Kinds whose changes may help a pod that waits for claims."""
_PERIOD: Final = 15.0
"""Seconds for which the pods of a namespace share one allowance: every part of the cluster waits for each decision."""
_PART: Final = 8
"""The allowance is this part of that for one answer from manifests: about a second of one processor."""
_USER: Final = User("system:kube-scheduler", ("system:authenticated",))

Results = Mapping[str, Sequence[Mapping[str, Any]]]
"""Devices for each unallocated claim, by the claim's name."""


class ClaimPlaces:
    """Finds places for claims, and allocates them."""

    def __init__(self, server: ApiServer, books: Callable[[], Books]) -> None:
        self._server = server
        self._books = books
        self._read: dict[tuple[str, str], tuple[int, Document]] = {}
        self._selectors: Selectors | None = None
        self._allowance = Allowance()
        self._renewed = -math.inf

    def open(self, pod: Record, nodes: Sequence[str], now: float) -> Mapping[str, Results] | str:
        """Those of these nodes with devices for a pod's claims, and the devices; or a text why none has any.

        `now`: seconds on any steady clock.
        """
        if now >= self._renewed + _PERIOD:
            self._allowance = Allowance(MOST_STEPS // _PART, MOST_LOOKS // _PART)
            self._renewed = now
        try:
            engine = self._books().engine
            allocator = ClaimAllocator(engine, self._documents(), self._selectors, self._allowance)
            found = allocator.places(decoded("Pod", pod.value), nodes)
            self._selectors = allocator.selectors
        except InvalidDocument as error:
            return str(error)
        return f"{found.code}: {found.message}" if isinstance(found, Refusal) else found

    async def take(self, pod: Record, node: str, results: Results) -> str:
        """Allocate a pod's claims on a node and reserve them for it; the reason of a failure, else empty."""
        for claim in self._named(pod):
            try:
                await self._taken(claim, pod, node, results.get(claim.name, ()))
            except ApiError as error:
                return f"claim {claim.namespace}/{claim.name}: {error.message}"
        return ""

    async def give_back(self, pod: Record) -> None:
        """Remove the reservation of the claims of a pod that was not bound."""
        for claim in self._named(pod):
            status = dict(claim.value.get("status") or {})
            reserved = status.get("reservedFor") or []
            kept = [one for one in reserved if one.get("uid") != pod.uid]
            if kept == reserved:
                continue
            status["reservedFor"] = kept
            if not kept:
                status.pop("allocation", None)
            body = {**claim.value, "status": status}
            try:
                await self._server.update(CLAIMS, body, "status", _USER)
            except ApiError:
                continue  # it changed, so its controller handles it

    async def _taken(
        self, claim: Record, pod: Record, node: str, devices: Sequence[Mapping[str, Any]]
    ) -> None:
        status = dict(claim.value.get("status") or {})
        reserved = list(status.get("reservedFor") or [])
        if status.get("allocation") is None:
            held = claim.metadata.get("finalizers") or []
            if CLAIM_FINALIZER not in held:
                body = {"metadata": {"uid": claim.uid, "finalizers": [*held, CLAIM_FINALIZER]}}
                claim = await self._server.patch(
                    CLAIMS, claim.namespace, claim.name, body, user=_USER
                )
            term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
            status["allocation"] = {
                "devices": {"results": [_shared(one) for one in devices]},
                "nodeSelector": {"nodeSelectorTerms": [term]},
            }
        if any(one.get("uid") == pod.uid for one in reserved):
            return
        mine = {"resource": "pods", "name": pod.name, "uid": pod.uid}
        body = {**claim.value, "status": {**status, "reservedFor": [*reserved, mine]}}
        await self._server.update(CLAIMS, body, "status", _USER)

    def _named(self, pod: Record) -> Iterator[Record]:
        """The present state of a pod's claims."""
        current = self._server.store.get("pods", pod.namespace, pod.name)
        value = pod.value if current is None or current.uid != pod.uid else current.value
        for _, name in claims_of(value):
            claim = self._server.store.get(CLAIMS, pod.namespace, name)
            if claim is not None:
                yield claim

    def _documents(self) -> list[Document]:
        """Claims, classes and slices; reads each version of an object once."""
        found, read = [], {}
        for resource, kind in KINDS.items():
            for one in self._server.store.all(resource):
                key = resource, f"{one.namespace}/{one.name}"
                known = self._read.get(key)
                if known is None or known[0] != one.revision:
                    known = one.revision, decoded(kind, one.value)
                read[key] = known
                found.append(known[1])
        self._read = read
        return found


def _shared(result: Mapping[str, Any]) -> dict[str, Any]:
    """A device of an allocation; a shared one has the share's id."""
    share = {"shareID": str(uuid.uuid4())} if "consumedCapacity" in result else {}
    return {**result, **share}
