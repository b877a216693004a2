"""The messages between the kubelet and a DRA driver: registration, claims (v1 and v1beta1) and health (v1alpha1).

The two versions of the claims' service have the same messages; v1beta1 skips fields that only v1 has.

Source: the interfaces' published definitions at Kubernetes 1.36 (`pluginregistration`, `dra`, `dra-health`).
"""

from typing import Final

from partage.agent.protobuf import Message, flag, integer, message, messages, text, texts

TYPE: Final = "DRAPlugin"
REGISTRATION: Final = "pluginregistration.Registration"
SERVICES: Final = (
    "k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin",
    "k8s.io.kubelet.pkg.apis.dra.v1beta1.DRAPlugin",
)
HEALTH: Final = "v1alpha1.DRAResourceHealth"
VERSIONS: Final = ("v1.DRAPlugin", "v1beta1.DRAPlugin", HEALTH)
"""The service names that a kubelet looks for."""
HEALTHY: Final = 1
UNHEALTHY: Final = 2


class PluginInfo(Message):
    """A plugin registers; the endpoint is its socket."""

    type: str = text(1)
    name: str = text(2)
    endpoint: str = text(3)
    supported_versions: tuple[str, ...] = texts(4)


class RegistrationStatus(Message):
    registered: bool = flag(1)
    error: str = text(2)


class Claim(Message):
    namespace: str = text(1)
    uid: str = text(2)
    name: str = text(3)


class ClaimRequest(Message):
    claims: tuple[Claim, ...] = messages(1, Claim)


class Device(Message):
    request_names: tuple[str, ...] = texts(1)
    pool_name: str = text(2)
    device_name: str = text(3)
    cdi_device_ids: tuple[str, ...] = texts(4)
    share_id: str = text(5)


class Prepared(Message):
    devices: tuple[Device, ...] = messages(1, Device)
    error: str = text(2)


class PrepareEntry(Message):
    uid: str = text(1)
    prepared: Prepared | None = message(2, Prepared)


class PrepareResponse(Message):
    claims: tuple[PrepareEntry, ...] = messages(1, PrepareEntry)


class Unprepared(Message):
    """Why the preparation of a claim is not undone; empty if it is."""

    error: str = text(1)


class UnprepareEntry(Message):
    uid: str = text(1)
    unprepared: Unprepared | None = message(2, Unprepared)


class UnprepareResponse(Message):
    claims: tuple[UnprepareEntry, ...] = messages(1, UnprepareEntry)


class DeviceIdentifier(Message):
    pool_name: str = text(1)
    device_name: str = text(2)


class DeviceHealth(Message):
    """Whether a device works: seconds since 1970 of the check, seconds of its validity, and why."""

    device: DeviceIdentifier | None = message(1, DeviceIdentifier)
    health: int = integer(2)
    last_updated_time: int = integer(3)
    health_check_timeout_seconds: int = integer(4)
    message: str = text(5)


class HealthResponse(Message):
    devices: tuple[DeviceHealth, ...] = messages(1, DeviceHealth)
