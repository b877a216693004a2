"""Configures the API server for the webhook: the authorities to trust, and the pods to ask about.

The chart installs the configurations. This module keeps only two fields of our webhooks correct,
`caBundle` and `matchConditions`, because certificates are renewed and resources renamed while
the cluster runs. It writes changes only, so replicas that agree do not write at all.
"""

import base64
import logging
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from partage.kube.client import Client, PatchKind
from partage.kube.errors import Conflict, Invalid, NotFound
from partage.kube.objects import Meta
from partage.kube.resources import Resource
from partage.webhook.installation import CLAIMS, MUTATE, TRANSLATE, VALIDATE, conditions
from partage.wire.context import Context

_LOG: Final = logging.getLogger("partage.daemon")
_GROUP: Final = "admissionregistration.k8s.io"
CONFIGURATIONS: Final = (
    Resource(_GROUP, "v1", "mutatingwebhookconfigurations", namespaced=False),
    Resource(_GROUP, "v1", "validatingwebhookconfigurations", namespaced=False),
)
_OURS: Final = (MUTATE, TRANSLATE, VALIDATE, CLAIMS)
_TRIES: Final = 4
"""Writes of a configuration that others change at the same moment, such as another replica or helm."""


class _Configuration(msgspec.Struct, frozen=True):
    metadata: Meta
    webhooks: list[dict[str, Any]] | None = None


@dataclass(slots=True)
class Registration:
    """The two configurations of one name."""

    client: Client
    name: str

    async def keep(self, trusted: bytes, context: Context) -> bool:
        """Have the API server trust these authorities. Returns whether both configurations are correct now.

        Args:
            trusted: PEM of the authorities.
            context: its resource names count as devices.

        Raises:
            KubeError: a configuration can be neither read nor written.
        """
        # The list makes sure that the log reports the problems of both.
        return all([await self._keep(one, trusted, context) for one in CONFIGURATIONS])

    async def _keep(self, resource: Resource, trusted: bytes, context: Context) -> bool:
        try:
            for left in reversed(range(_TRIES)):
                held = await self.client.get(resource, self.name, into=_Configuration)
                steps = _steps(held, base64.b64encode(trusted).decode(), context)
                if not steps:
                    return True
                try:
                    await self.client.patch(
                        resource, self.name, steps, kind=PatchKind.JSON, into=msgspec.Raw
                    )
                    break
                except (Conflict, Invalid):
                    if not left:
                        raise
        except NotFound:
            _LOG.warning(
                "%s %s is not installed; the API server does not ask the webhook",
                resource.plural,
                self.name,
            )
            return False
        except (Conflict, Invalid) as error:
            _LOG.info(
                "%s %s was changed by another; next time: %s", resource.plural, self.name, error
            )
            return False
        _LOG.info(
            "%s %s: has the authority and the rules of this webhook now",
            resource.plural,
            self.name,
        )
        return True


def _steps(held: _Configuration, bundle: str, context: Context) -> list[dict[str, Any]]:
    """A JSON patch of the differences, bound to the version that was read; empty if there are none."""
    steps: list[dict[str, Any]] = []
    for index, webhook in enumerate(held.webhooks or ()):
        if webhook.get("name") not in _OURS:
            continue
        if (webhook.get("clientConfig") or {}).get("caBundle") != bundle:
            steps.append(_put(f"/webhooks/{index}/clientConfig/caBundle", bundle))
        wanted = conditions(webhook["name"], context)
        if webhook.get("matchConditions") != wanted:
            steps.append(_put(f"/webhooks/{index}/matchConditions", wanted))
    if not steps:
        return []
    version = held.metadata.resource_version
    return [{"op": "test", "path": "/metadata/resourceVersion", "value": version}, *steps]


def _put(path: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}
