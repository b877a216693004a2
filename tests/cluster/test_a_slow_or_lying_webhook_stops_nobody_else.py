"""Scenario 9: the webhook answers too late, in drops, or with something else than it was asked.

A genuine API server decides by itself which webhook to ask, so pods without devices are created,
and so do running device pods live and end; new device pods are refused with what went wrong, never
let through unread, and are admitted as soon as the webhook is itself again.
"""

import base64
import json
import signal
import ssl
import threading
import time
import urllib.error
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from stack import MERGE, SYSTEM, Stack, documents, eventually, pod

EXAMPLES = Path(__file__).parents[2] / "examples"
NODE = "host05"
HALF = {"koordinator.sh/gpu": "50"}
PODS = "/api/v1/namespaces/default/pods"
GIVES_UP = 5.0
"""Seconds after which the API server gives up (`timeoutSeconds`)."""
Answering = Callable[[BaseHTTPRequestHandler, dict[str, Any]], None]


def says(handler: BaseHTTPRequestHandler, body: bytes, status: int = 200) -> None:
    """Answer."""
    handler.send_response(status)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def review(asked: dict[str, Any], **response: Any) -> bytes:
    """An answer that allows by default."""
    answer = {"uid": asked["request"]["uid"], "allowed": True} | response
    head = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"}
    return json.dumps({**head, "response": answer}).encode()


def late(handler: BaseHTTPRequestHandler, asked: dict[str, Any]) -> None:
    """Allow, after the API server has given up."""
    time.sleep(GIVES_UP + 2)
    says(handler, review(asked))


def drops(handler: BaseHTTPRequestHandler, asked: dict[str, Any]) -> None:
    """Allow, byte by byte."""
    body = review(asked)
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    for byte in body:
        handler.wfile.write(bytes((byte,)))
        handler.wfile.flush()
        time.sleep(0.3)


def misfit(handler: BaseHTTPRequestHandler, asked: dict[str, Any]) -> None:
    """Allow, with a change to something that the pod does not have."""
    patch = [{"op": "replace", "path": "/spec/containers/7/name", "value": "x"}]
    text = base64.b64encode(json.dumps(patch).encode()).decode()
    says(handler, review(asked, patchType="JSONPatch", patch=text))


LIES: dict[str, Answering] = {
    "an answer that is late": late,
    "an answer in drops": drops,
    "an answer to another question": lambda handler, asked: says(
        handler, review(asked, uid="11111111-2222-3333-4444-555555555555")
    ),
    "an answer of another version": lambda handler, asked: says(
        handler, review(asked).replace(b"admission.k8s.io/v1", b"admission.k8s.io/v1beta1")
    ),
    "another object": lambda handler, asked: says(
        handler, json.dumps(asked["request"]["object"]).encode()
    ),
    "the question itself": lambda handler, asked: says(handler, json.dumps(asked).encode()),
    "no JSON": lambda handler, _: says(handler, b"\x00\xff<html>"),
    "nothing": lambda handler, _: says(handler, b""),
    "an error with an answer that allows": lambda handler, asked: says(
        handler, review(asked), 500
    ),
    "a change that does not fit": misfit,
}


@pytest.fixture(scope="module", autouse=True)
def node(stack: Stack) -> None:
    """One node with eight cards."""
    nodes = stack.plane.call("GET", "/api/v1/nodes")["items"]
    if NODE not in [n["metadata"]["name"] for n in nodes]:
        stack.add_nodes(documents(EXAMPLES / "koordinator" / f"{NODE}.yaml"))


@pytest.fixture(autouse=True)
def emptied(stack: Stack) -> Iterator[None]:
    """Leave the webhook as it was, and no pods."""
    yield
    stack.plane.processes["webhook"].start()
    eventually("the webhook is itself again", lambda: refused(stack, "probe") is None)
    stack.plane.call("DELETE", f"{PODS}?gracePeriodSeconds=0")
    eventually("pods are gone", lambda: not stack.plane.call("GET", PODS)["items"])


def refused(stack: Stack, name: str) -> str | None:
    """What the API server says to a new device pod; None where it is there."""
    try:
        stack.create(pod(name, HALF))
    except urllib.error.HTTPError as error:
        return None if error.code == 409 else error.read().decode()
    return None


@contextmanager
def in_its_place(stack: Stack, answer: Answering) -> Iterator[None]:
    """Another program answers in the webhook's place, with its certificate."""
    secret = stack.plane.call("GET", f"/api/v1/namespaces/{SYSTEM}/secrets/partage-webhook-tls")
    for key in ("tls.crt", "tls.key"):
        (stack.plane.folder / f"lies-{key}").write_bytes(base64.b64decode(secret["data"][key]))
    stack.plane.processes["webhook"].stop()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with suppress(OSError):  # who asked has given up
                answer(self, asked)

        def log_message(self, *_: Any) -> None:
            """Say nothing."""

    port = int(stack.webhook.rsplit(":", 1)[1])
    server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    folder = stack.plane.folder
    context.load_cert_chain(folder / "lies-tls.crt", folder / "lies-tls.key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    serving = threading.Thread(target=server.serve_forever, daemon=True)
    serving.start()
    try:
        yield
    finally:
        server.shutdown()
        server.server_close()
        serving.join()


def nobody_else_notices(stack: Stack, number: str) -> None:
    """Pods without devices come, and device pods that run live and go."""
    stack.create(pod(f"plain-{number}", {"cpu": "10m"}))
    stack.bound(f"plain-{number}")
    body = {"status": {"message": "still here"}}
    stack.plane.call("PATCH", f"{PODS}/early/status", body, kind=MERGE)


@pytest.mark.parametrize("how", LIES)
def test_a_wrong_answer_lets_no_device_pod_through(stack: Stack, how: str) -> None:
    """It is refused with a reason; nothing half-made is left, and it comes in later."""
    stack.create(pod("early", HALF))
    stack.bound("early")
    with in_its_place(stack, LIES[how]):
        nobody_else_notices(stack, "0")
        told = refused(stack, "device")
        assert told is not None
        assert "webhook" in told or "does not apply" in told  # what a genuine one says of a change
        assert stack.pod("device") is None
        nobody_else_notices(stack, "1")
        stack.delete("early")
        eventually("a device pod may end", lambda: stack.pod("early") is None)
    stack.plane.processes["webhook"].start()
    eventually("it is admitted", lambda: refused(stack, "device") is None)
    stack.bound("device")


def test_a_webhook_that_stands_still_holds_up_device_pods_alone(stack: Stack) -> None:
    """The process is there, its port is open, and nothing comes back."""
    stack.create(pod("early", HALF))
    stack.bound("early")
    stack.plane.processes["webhook"].signal(signal.SIGSTOP)
    nobody_else_notices(stack, "0")
    told = refused(stack, "device")
    assert told is not None
    assert "failed calling webhook" in told
    stack.plane.processes["webhook"].signal(signal.SIGCONT)
    eventually("it is admitted", lambda: refused(stack, "device") is None)
    stack.bound("device")
