"""A claim's allocation that one leader admitted arrives when the next one has given the card to a pod.

A genuine kube-scheduler allocates the claim. Its write is held back in the API server, by a webhook beside ours that does
not answer, while the leader dies or stands still and another one takes over.
"""

import base64
import json
import signal
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
import stack as partage_stack
from claims_node import API, CLAIMS, PODS, claim, half
from stack import SYSTEM, Layout, Stack, eventually, pod

from fakes.ports import free_port
from partage.vendors import names

SLOW = 240
HELD = 30
"""Seconds for which an API server waits for a webhook, at most; then this one counts as if it had allowed."""
TRIES = 3
"""Of each test: on a busy machine the next leader may serve only when the write is held no more."""
OPTIONS = ("--set", "agent.enabled=true,agent.dra.enabled=true,scheduler.claims=true")
NOWHERE = ("--set", "agent.nodeSelector.nowhere=here")
WHOLE = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "16384", "nvidia.com/gpucores": "100"}
HOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"


@dataclass
class Holder:
    """The webhook beside ours.

    Attributes:
        asked: set when a question is there.
        release: set when questions are answered.
    """

    asked: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)

    def answer(self, handler: BaseHTTPRequestHandler) -> None:
        """Allow, once it may."""
        asked = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        self.asked.set()
        self.release.wait(2 * HELD)
        response = {"uid": asked["request"]["uid"], "allowed": True}
        head = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
        body = json.dumps({**head, "response": response}).encode()
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        handler.wfile.write(body)


@contextmanager
def holding(stack: Stack) -> Iterator[Holder]:
    """A webhook that has the API server wait before it stores the status of any claim."""
    space = f"/api/v1/namespaces/{SYSTEM}"
    secret = stack.plane.call("GET", f"{space}/secrets/partage-webhook-tls")
    for key in ("tls.crt", "tls.key"):
        (stack.plane.folder / f"holds-{key}").write_bytes(base64.b64decode(secret["data"][key]))
    holder = Holder()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            with suppress(OSError):  # who asked has given up
                holder.answer(self)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    port = free_port()
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(
        stack.plane.folder / "holds-tls.crt", stack.plane.folder / "holds-tls.key"
    )
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    (ours, *_) = stack.plane.call("GET", f"{HOOKS}/partage")["webhooks"]
    hook = {
        "name": "holds.example.com",
        "clientConfig": {
            "url": f"https://127.0.0.1:{port}/",
            "caBundle": ours["clientConfig"]["caBundle"],
        },
        "rules": [
            {
                "apiGroups": ["resource.k8s.io"],
                "apiVersions": ["*"],
                "operations": ["UPDATE"],
                "resources": ["resourceclaims/status"],
            }
        ],
        "failurePolicy": "Ignore",
        "timeoutSeconds": HELD,
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
    }
    stack.plane.call("POST", HOOKS, {"metadata": {"name": "holds"}, "webhooks": [hook]})
    try:
        yield holder
    finally:
        holder.release.set()
        stack.plane.call("DELETE", f"{HOOKS}/holds")
        server.shutdown()
        server.server_close()


@pytest.fixture(scope="module", params=[False, True], ids=["extender", "plugin"])
def two(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stack]:
    """Two instances of the service, and a node of one card that pods and claims may have."""
    layout = Layout(options=(*OPTIONS, *NOWHERE), plugged=request.param)
    with partage_stack.stack(tmp_path_factory.mktemp("cluster"), layout=layout) as stack:
        stack.start_scheduler_service("second")
        card = {"gpu-core": "100", "gpu-memory": "16Gi", "gpu-memory-ratio": "100"}
        listed = {"type": "gpu", "id": "GPU-0", "minor": 0, "health": True}
        listed["resources"] = {f"koordinator.sh/{key}": value for key, value in card.items()}
        offers = {"cpu": "64", "memory": "256Gi", "pods": "100"}
        stack.add_nodes(
            [
                {
                    "apiVersion": "v1",
                    "kind": "Node",
                    "metadata": {"name": "one"},
                    "status": {"allocatable": offers},
                },
                {
                    "apiVersion": "scheduling.koordinator.sh/v1alpha1",
                    "kind": "Device",
                    "metadata": {"name": "one"},
                    "spec": {"devices": [listed]},
                },
            ]
        )
        device = {
            "name": "gpu-0",
            "allowMultipleAllocations": True,
            "attributes": {"kind": {"string": "share"}, "memory": {"int": 16 * 2**30}},
            "capacity": {"cores": {"value": "100"}, "memory": {"value": "16Gi"}},
        }
        pool = {"name": "one", "generation": 1, "resourceSliceCount": 1}
        spec = {"driver": names.DRA_DRIVER, "nodeName": "one", "pool": pool, "devices": [device]}
        stack.plane.call(
            "POST", f"{API}/resourceslices", {"metadata": {"name": "s"}, "spec": spec}
        )
        yield stack


def leads(stack: Stack) -> str:
    """The instance that leads; empty while none does."""
    port = stack.leader()
    return next((name for name, ports in stack.instances.items() if port == ports[0]), "")


def stored(stack: Stack) -> dict[str, Any]:
    """The claim as the API server has it."""
    found: dict[str, Any] = stack.plane.call("GET", f"{CLAIMS}/late")
    return found


def allocated(stack: Stack) -> bool:
    """Whether the claim holds the card."""
    return "allocation" in stored(stack).get("status", {})


def placed(stack: Stack) -> bool:
    """Whether the pod by names holds the card."""
    return bool(stack.pod("named")["spec"].get("nodeName"))


def taken(stack: Stack) -> bool:
    """Whether the leader's books have allocated the card."""
    core = stack.get("/api/node/one")["core_milli"]
    return bool(core["used"] == core["total"])


def emptied(stack: Stack) -> bool:
    """Whether no pod and no claim is left."""
    for path in (f"{PODS}?gracePeriodSeconds=0", CLAIMS):
        stack.plane.call("DELETE", path)
    return not any(stack.plane.call("GET", path)["items"] for path in (PODS, CLAIMS))


def outlived(stack: Stack, ended: signal.Signals) -> str:
    """Have a write outlive its leader; why it did not, and empty where the next one had allocated the card by then.

    Raises:
        AssertionError: the card is given twice, or not at all.
    """
    before = eventually("an instance leads", lambda: stack.ready() and leads(stack))
    eventually("the card is free", lambda: not taken(stack), SLOW)
    processes = stack.pod_of(before)
    with holding(stack) as holder:
        claim(stack, "late", **half(100, "16Gi"))
        claimant = pod("claimant", {}, schedulerName="default-scheduler")
        claimant["spec"]["resourceClaims"] = [{"name": "card", "resourceClaimName": "late"}]
        claimant["spec"]["containers"][0]["resources"] = {"claims": [{"name": "card"}]}
        stack.create(claimant)
        eventually("the card is reserved", lambda: taken(stack), SLOW)
        stack.create(pod("named", WHOLE))
        assert holder.asked.wait(SLOW)
        for process in processes:
            process.kill() if ended is signal.SIGKILL else process.signal(ended)
        try:
            eventually("the card is given", lambda: placed(stack) or allocated(stack), SLOW)
            if allocated(stack):
                assert not placed(stack)
                return f"{leads(stack)} did not serve in time"
            eventually("another instance leads", lambda: leads(stack) not in ("", before))
            holder.release.set()
            refused = "no room for claim default/late"
            eventually(
                "kube-scheduler asks again, and is refused",
                lambda: (
                    allocated(stack)
                    or any(refused in one["message"] for one in stack.events("claimant"))
                ),
                SLOW,
            )
            assert not allocated(stack), "the card is given twice"
            assert names.OUTDATED in stored(stack)["metadata"]["labels"]
            return ""
        finally:
            for process in processes:
                process.kill()
                process.start()


@pytest.mark.timeout(1800)
def test_a_write_that_outlives_its_leader_takes_no_card(two: Stack) -> None:
    """It fails, kube-scheduler asks again, and the leader says that the card is not free.

    The service dies; or it stands still with the kube-scheduler beside it.
    """
    ended = signal.SIGSTOP if two.layout.plugged else signal.SIGKILL
    reasons = []
    for _ in range(TRIES):
        reasons.append(outlived(two, ended))
        eventually("all are gone", lambda: emptied(two), SLOW)
        if not reasons[-1]:
            return
    pytest.fail(f"no write outlived its leader: {reasons}")
