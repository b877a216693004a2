"""The stand-in for Kubernetes' controller of ResourceClaims: makes claims from pods' templates and deletes them.

A claim loses its allocation with the last pod that it is reserved for. A claim made for a pod goes when that has ended.

Source: Kubernetes v1.36.4, `pkg/controller/resourceclaim`.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from partage.apiserver import ApiError, ApiServer, Change, DeleteOptions, Record, User
from partage.embedded.watching import follow_all, handled, is_over, owner, tell, write_status
from partage.vendors.names import CLAIM_FINALIZER

CLAIMS: Final = "resourceclaims.resource.k8s.io"
TEMPLATES: Final = "resourceclaimtemplates.resource.k8s.io"
_POD_CLAIM: Final = "resource.kubernetes.io/pod-claim-name"
_USER: Final = User("system:serviceaccount:kube-system:resource-claim-controller")


class ClaimLives:
    """The controller."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._made_for: dict[tuple[str, str, str], str] = {}
        server.store.observers.append(self._saw)
        for claim in server.store.all(CLAIMS):
            self._saw(Change("ADDED", claim, None))

    def _saw(self, change: Change) -> None:
        """Keep the names of claims that were made for pods, the first of several that say the same."""
        claim, before = change.record, change.before
        if claim.resource != CLAIMS:
            return
        if before is not None and self._made_for.get(_made_as(before)) == claim.name:
            del self._made_for[_made_as(before)]
        if change.kind != "DELETED" and _owner(claim):
            self._made_for.setdefault(_made_as(claim), claim.name)

    async def run(self) -> None:
        """Follow pods, templates and claims until cancelled."""
        handlers = {"pods": self._pod, TEMPLATES: self._template, CLAIMS: self._claim}
        await follow_all(self._server, handlers)

    async def _pod(self, change: Change) -> None:
        pod = change.record
        if not (pod.value.get("spec") or {}).get("resourceClaims"):
            return
        if change.kind == "DELETED" or is_over(pod):
            for _, name in claims_of(pod.value):
                claim = self._server.store.get(CLAIMS, pod.namespace, name)
                if claim is not None:
                    await handled(self._claim, Change("MODIFIED", claim, claim))
        elif not pod.metadata.get("deletionTimestamp"):
            await self._make(pod)

    async def _template(self, change: Change) -> None:
        """Make the claims of pods that waited for this template."""
        if change.kind == "ADDED":
            for pod in list(self._server.store.all("pods", change.record.namespace)):
                await handled(self._pod, Change("MODIFIED", pod, pod))

    async def _claim(self, change: Change) -> None:
        if change.kind != "DELETED":
            await self._settle(change.record)

    async def _make(self, pod: Record) -> None:
        """Make the claims that a pod names by templates, and write their names into its status."""
        made = _made(pod.value)
        missing = [
            (str(one["name"]), str(one["resourceClaimTemplateName"]))
            for one in pod.value["spec"]["resourceClaims"]
            if one.get("resourceClaimTemplateName") and one["name"] not in made
        ]
        for name, template in missing:
            source = self._server.store.get(TEMPLATES, pod.namespace, template)
            if source is None:
                told = f"ResourceClaimTemplate {pod.namespace}/{template} is not there"
                reason = "FailedResourceClaimCreation"
                await tell(self._server, pod, reason, told, user=_USER, warning=True)
                continue
            made[name] = await self._claim_for(pod, name, source)
        if missing and made:
            statuses = [{"name": name, "resourceClaimName": claim} for name, claim in made.items()]
            await write_status(self._server, pod, {"resourceClaimStatuses": statuses}, _USER)

    async def _claim_for(self, pod: Record, name: str, template: Record) -> str:
        """The name of a pod's claim by the pod's own name for it; creates an absent one."""
        known = self._made_for.get((pod.namespace, pod.uid, name))
        if known is not None:
            return known
        spec = template.value.get("spec") or {}
        head = spec.get("metadata") or {}
        body = {
            "metadata": {
                "generateName": f"{pod.name}-{name}-",
                "labels": dict(head.get("labels") or {}),
                "annotations": {**(head.get("annotations") or {}), _POD_CLAIM: name},
                "ownerReferences": [owner(pod.value, "Pod", "v1")],
            },
            "spec": spec.get("spec") or {},
        }
        return str((await self._server.create(CLAIMS, body, pod.namespace, _USER)).name)

    async def _settle(self, claim: Record) -> None:
        """Remove reservations and claims that no pod has any more."""
        current = self._server.store.get(CLAIMS, claim.namespace, claim.name)
        if current is None or current.uid != claim.uid:
            return
        status = current.value.get("status") or {}
        reserved = status.get("reservedFor") or []
        kept = [one for one in reserved if self._uses(current.namespace, one)]
        unused = not kept and status.get("allocation") is not None
        leaves = bool(current.metadata.get("deletionTimestamp"))
        if kept == reserved and not (unused and leaves):
            await self._release(current, free=leaves)
            return
        left = {key: part for key, part in status.items() if key != "reservedFor"}
        if kept:
            left["reservedFor"] = kept
        else:
            left.pop("allocation", None)
        body = {**current.value, "status": left}
        try:
            current = await self._server.update(CLAIMS, body, "status", _USER)
            await self._release(current, free=True)
        except ApiError as error:
            if error.reason != "Conflict":  # the next change repeats this
                raise

    async def _release(self, claim: Record, *, free: bool) -> None:
        """Delete a claim without devices after the pod that it was made for.

        `free`: it is no longer protected. A claim without devices may be about to get some.
        """
        status = claim.value.get("status") or {}
        if status.get("allocation") is not None or status.get("reservedFor"):
            return
        held = claim.metadata.get("finalizers") or []
        if free and CLAIM_FINALIZER in held:
            left = [one for one in held if one != CLAIM_FINALIZER]
            body = {"metadata": {"uid": claim.uid, "finalizers": left}}
            await self._server.patch(CLAIMS, claim.namespace, claim.name, body, user=_USER)
        above = _owner(claim)
        if above and not self._uses(claim.namespace, {**above, "resource": "pods"}):
            options = DeleteOptions(uid=claim.uid)
            await self._server.delete(CLAIMS, claim.namespace, claim.name, options, _USER)

    def _uses(self, namespace: str, consumer: Mapping[str, Any]) -> bool:
        """Whether a pod that a claim is reserved or made for still uses it."""
        if consumer.get("resource") != "pods":
            return True
        pod = self._server.store.get("pods", namespace, str(consumer.get("name")))
        return pod is not None and pod.uid == consumer.get("uid") and not is_over(pod)


def _owner(claim: Record) -> Mapping[str, Any]:
    """The reference to the pod that a claim was made for; empty for a claim that a user made."""
    owners = claim.metadata.get("ownerReferences") or ()
    return next((one for one in owners if one.get("kind") == "Pod"), {})


def _made_as(claim: Record) -> tuple[str, str, str]:
    """The namespace and uid of the pod that a claim was made for, and its name for the claim."""
    notes = claim.metadata.get("annotations") or {}
    return claim.namespace, str(_owner(claim).get("uid")), str(notes.get(_POD_CLAIM))


def _made(pod: Mapping[str, Any]) -> dict[str, str]:
    """Claims made for a pod: its name for each, and the claim's own."""
    told = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    return {one["name"]: name for one in told if (name := one.get("resourceClaimName"))}


def claims_of(pod: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """A pod's claims: its name for each, and the claim's own; empty for a claim that does not exist yet."""
    made = _made(pod)
    for one in (pod.get("spec") or {}).get("resourceClaims") or ():
        name = str(one["name"])
        yield name, str(one.get("resourceClaimName") or made.get(name) or "")
