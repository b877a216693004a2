"""A vendor's own device plugin, as far as a kubelet sees one: MetaX's, which Partage leaves alone."""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from partage.agent.kubelet import messages as said


class VendorPlugin:
    """Serves one resource until it is closed."""

    def __init__(self, folder: Path, resource: str, units: int) -> None:
        """Serve and register.

        Args:
            folder: the kubelet's `device-plugins`.
            resource: its name.
            units: how many there are.
        """
        self._devices = tuple(said.Device(f"sgpu-{n}", said.HEALTHY) for n in range(units))
        self._closed = threading.Event()
        self._server = grpc.server(ThreadPoolExecutor(4))
        methods = {
            "GetDevicePluginOptions": grpc.unary_unary_rpc_method_handler(self._nothing),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(self._list_and_watch),
            "Allocate": grpc.unary_unary_rpc_method_handler(self._allocate),
            "PreStartContainer": grpc.unary_unary_rpc_method_handler(self._nothing),
        }
        handler = grpc.method_handlers_generic_handler(said.PLUGIN, methods)
        self._server.add_generic_rpc_handlers((handler,))
        self._server.add_insecure_port(f"unix:{folder / 'vendor.sock'}")
        self._server.start()
        asked = said.RegisterRequest(said.VERSION, "vendor.sock", resource, said.Options())
        with grpc.insecure_channel(f"unix:{folder / 'kubelet.sock'}") as channel:
            channel.unary_unary(f"/{said.REGISTRATION}/Register")(asked.encode(), timeout=30)

    def close(self) -> None:
        """End."""
        self._closed.set()
        self._server.stop(None).wait()

    def _nothing(self, _request: bytes, _context: Any) -> bytes:
        return b""

    def _list_and_watch(self, _request: bytes, _context: Any) -> Iterator[bytes]:
        yield said.DeviceList(self._devices).encode()
        self._closed.wait()

    def _allocate(self, request: bytes, _context: Any) -> bytes:
        asked = said.UnitsOfContainers.decode(request)
        given = said.ContainerAllocation({"METAX_PLUGIN": "served"})
        return said.AllocateResponse((given,) * len(asked.containers)).encode()
