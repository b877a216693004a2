"""A DRA driver of another vendor, as far as a kubelet sees one: each claim gets one device, which sets a variable."""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from partage.agent.dra import messages as said

VARIABLE = "EXAMPLE_DEVICE"
CDI = "example.com/device=one"


class OtherDriver:
    """Serves until it is closed.

    Attributes:
        prepared: uids of claims that are prepared.
    """

    def __init__(self, folder: Path, cdi: Path, name: str, pool: str, device: str) -> None:
        """Serve, where the kubelet looks.

        Args:
            folder: the kubelet's.
            cdi: where the runtime looks for devices.
            name: of the driver.
            pool: that its device is in.
            device: its one device.
        """
        self.prepared: set[str] = set()
        self._name, self._device = name, (pool, device)
        self._service = folder / "plugins" / name / "dra.sock"
        self._service.parent.mkdir(parents=True, exist_ok=True)
        self._spec = cdi / "example.com-device.json"
        kind, _, one = CDI.partition("=")
        edits = {"env": [f"{VARIABLE}={device}"]}
        spec = {
            "cdiVersion": "0.6.0",
            "kind": kind,
            "devices": [{"name": one, "containerEdits": edits}],
        }
        self._spec.write_text(json.dumps(spec))
        self._server = grpc.server(ThreadPoolExecutor(4))
        call, made = grpc.unary_unary_rpc_method_handler, grpc.method_handlers_generic_handler
        registration = {"GetInfo": call(self._info), "NotifyRegistrationStatus": call(self._told)}
        claims = {
            "NodePrepareResources": call(self._prepare),
            "NodeUnprepareResources": call(self._unprepare),
        }
        self._server.add_generic_rpc_handlers(
            (made(said.REGISTRATION, registration), made(said.SERVICES[0], claims))
        )
        for path in (self._service, folder / "plugins_registry" / f"{name}-reg.sock"):
            self._server.add_insecure_port(f"unix:{path}")
        self._server.start()

    def close(self) -> None:
        """End; the server removes its sockets."""
        self._server.stop(None).wait()
        self._spec.unlink()

    def _info(self, _request: bytes, _context: Any) -> bytes:
        return said.PluginInfo(
            said.TYPE, self._name, str(self._service), said.VERSIONS[:1]
        ).encode()

    def _told(self, _request: bytes, _context: Any) -> bytes:
        return b""

    def _prepare(self, request: bytes, _context: Any) -> bytes:
        asked = said.ClaimRequest.decode(request).claims
        self.prepared |= {one.uid for one in asked}
        device = said.Device(("card",), *self._device, (CDI,))
        entries = (said.PrepareEntry(one.uid, said.Prepared((device,))) for one in asked)
        return said.PrepareResponse(tuple(entries)).encode()

    def _unprepare(self, request: bytes, _context: Any) -> bytes:
        asked = said.ClaimRequest.decode(request).claims
        self.prepared -= {one.uid for one in asked}
        entries = (said.UnprepareEntry(one.uid, said.Unprepared()) for one in asked)
        return said.UnprepareResponse(tuple(entries)).encode()
