"""The verbs over real sockets. Fuzzing has its own file."""

import asyncio
import contextlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from wire_client import Running, read
from world import Manifest, World, device, document, half, node, pod, whole

from partage.extender.server import Faces, scheduler_site
from partage.serving.access import Access, TokenFile
from partage.serving.limits import Limits


@pytest.fixture
def running() -> Iterator[Running]:
    """Two nodes of two cards."""
    with Running(node("n1"), device("n1"), node("n2"), device("n2")) as site:
        yield site


def _args(manifest: Manifest, *names: str) -> Manifest:
    return {"Pod": manifest, "Nodes": None, "NodeNames": list(names or ("n1", "n2"))}


def test_filter_answers_with_every_key_that_go_reads(running: Running) -> None:
    """Only names if the question has names; capitalised keys; nulls for absent values."""
    status, headers, body = running.post("/scheduler/filter", _args(pod("web", whole())))

    answer = json.loads(body)
    assert status == 200
    assert headers["content-type"].startswith("application/json")
    assert answer["Nodes"] is None
    assert len(answer["NodeNames"]) == 1
    assert (answer["FailedNodes"], answer["FailedAndUnresolvableNodes"]) == ({}, {})
    assert answer["Error"] == ""


def test_filter_with_full_nodes_answers_with_the_nodes_as_they_came(running: Running) -> None:
    """A scheduler that does not cache nodes gets its own nodes back, including fields that are unknown here."""
    odd = node("n1") | {"unknown": {"kept": [1, 2.5]}}
    body = {"Pod": pod("web", whole()), "Nodes": {"items": [odd, node("n9")]}, "NodeNames": None}

    answer = json.loads(running.post("/scheduler/filter", body)[2])

    assert answer["NodeNames"] is None
    assert answer["Nodes"]["items"] == [odd]


def test_lower_case_keys_are_read_too(running: Running) -> None:
    """Go reads keys in any case, so some callers write lower case."""
    body = {"pod": pod("web", whole()), "nodenames": ["n2"]}

    assert json.loads(running.post("/scheduler/filter", body)[2])["NodeNames"] == ["n2"]


def test_a_refusal_says_for_every_node_whether_evicting_helps(running: Running) -> None:
    """The text has numbers and the rule; evictions cannot help a broken request."""
    full = json.loads(running.post("/scheduler/filter", _args(pod("big", whole(3))))[2])
    broken = json.loads(
        running.post("/scheduler/filter", _args(pod("odd", {"koordinator.sh/gpu": "101"})))[2]
    )

    assert set(full["FailedNodes"]) == {"n1", "n2"}
    assert "InsufficientCards" in full["FailedNodes"]["n1"]
    assert set(broken["FailedAndUnresolvableNodes"]) == {"n1", "n2"}
    assert "101" in broken["FailedAndUnresolvableNodes"]["n1"]
    assert full["NodeNames"] == broken["NodeNames"] == []


@pytest.mark.parametrize("verb", ["prioritize", "priorities"])
def test_scores_are_a_list_of_whole_numbers_for_every_name(running: Running, verb: str) -> None:
    """Go would drop a float silently; unknown names score 0."""
    manifest = pod(
        "web", half(), topologySpreadConstraints=[{"whenUnsatisfiable": "ScheduleAnyway"}]
    )
    kept = json.loads(running.post("/scheduler/filter", _args(manifest))[2])["NodeNames"]

    status, _, body = running.post(f"/scheduler/{verb}", _args(manifest, "n1", 'odd"name', "n2"))

    scores = {entry["Host"]: entry["Score"] for entry in json.loads(body)}
    assert status == 200
    assert sorted(kept) == ["n1", "n2"]
    assert list(scores) == ["n1", 'odd"name', "n2"]
    assert all(isinstance(score, int) for score in scores.values())
    assert scores['odd"name'] == 0
    assert max(scores.values()) == 10
    assert b"." not in body


def test_a_pod_without_devices_passes_and_scores_nothing(running: Running) -> None:
    """This service never delays an ordinary pod."""
    names = ["n1", "unheard-of"]

    passed = json.loads(running.post("/scheduler/filter", _args(pod("plain"), *names))[2])
    scores = json.loads(running.post("/scheduler/prioritize", _args(pod("plain"), *names))[2])

    assert passed["NodeNames"] == names
    assert scores == [{"Host": name, "Score": 0} for name in names]


def test_a_pod_is_bound_and_told_so(running: Running) -> None:
    """The error is empty on success, and has the reason on failure."""
    running.post("/scheduler/filter", _args(pod("web", whole()), "n1"))
    body = {"PodName": "web", "PodNamespace": "team", "PodUID": "uid-web", "Node": "n1"}

    bound = json.loads(running.post("/scheduler/bind", body)[2])
    wrong = json.loads(running.post("/scheduler/bind", {**body, "PodUID": "uid-other"})[2])

    assert bound == {"Error": ""}
    assert "no pod" in wrong["Error"]


@pytest.mark.parametrize("form", ["full", "meta"])
def test_preempt_keeps_nodes_where_evicting_makes_room(running: Running, form: str) -> None:
    """The answer always names victims by uid alone."""
    victims = [{"UID": "uid-low"}] if form == "meta" else [pod("low", whole(2))]
    key = "NodeNameToMetaVictims" if form == "meta" else "NodeNameToVictims"
    running.run(running.world.place(pod("low", whole(2)), "n1"))
    running.run(running.world.place(pod("high", whole(2), priority=9), "n2"))
    asked = {"n1": {"Pods": victims, "NumPDBViolations": 1}, "n2": {"Pods": []}}

    answer = json.loads(
        running.post("/scheduler/preempt", {"Pod": pod("vip", whole(2), priority=5), key: asked})[
            2
        ]
    )
    plain = json.loads(running.post("/scheduler/preempt", {"Pod": pod("plain"), key: asked})[2])

    kept = {"Pods": [{"UID": "uid-low"}], "NumPDBViolations": 1}
    assert answer == {"NodeNameToMetaVictims": {"n1": kept}}
    assert plain["NodeNameToMetaVictims"]["n1"] == kept


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"Pod":null}', b'{"Pod":{"spec":5}}', b"\xff", b"[" * 9000],
)
@pytest.mark.parametrize(
    ("verb", "expected"),
    [("filter", 200), ("bind", 200), ("prioritize", 400), ("preempt", 400)],
)
def test_a_malformed_body_is_told_where_there_is_a_place_for_it(
    running: Running, verb: str, expected: int, body: bytes
) -> None:
    """kube-scheduler reads only bodies of 200; prioritize and preempt have no field for an error."""
    status, _, answer = running.post(f"/scheduler/{verb}", body)

    assert status == expected
    assert json.loads(answer).get("Error") or json.loads(answer).get("message")


def test_the_verbs_are_served_by_the_leader_alone(running: Running) -> None:
    """A standby is ready but answers no verb, and neither does an instance before its books are rebuilt."""
    service = running.world.service
    service.follow()
    standby = running.post("/scheduler/filter", _args(pod("web", whole())))
    summary = running.get("/apis/v1/plugins/DeviceShare/nodeDeviceSummaries")
    ready = running.get("/readyz")
    service.lead()
    service._judge(leading=True, rebuilt=False)
    early = running.post("/scheduler/bind", {})

    assert standby[0] == summary[0] == 503
    assert standby[1]["connection"] == "close"  # the next connection is for the leader
    assert json.loads(summary[2]) == {"message": "the instance is not leader"}
    assert ready[0] == 200
    assert early[0] == 503
    assert running.get("/readyz")[0] == 503
    assert running.get("/healthz")[0] == 200


def test_many_requests_on_one_connection_are_answered_in_turn(running: Running) -> None:
    """Hot and other paths, sent without waiting, on a connection that stays open."""
    filter_body = json.dumps(_args(pod("web", whole()))).encode()
    bind_body = json.dumps(
        {"PodName": "web", "PodNamespace": "team", "PodUID": "uid-web", "Node": "n1"}
    ).encode()

    def request(path: str, body: bytes) -> bytes:
        return (
            f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )

    stream = (
        request("/scheduler/filter", filter_body)
        + request("/scheduler/bind", bind_body)
        + request("/scheduler/prioritize", filter_body)
        + b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        + request("/scheduler/filter", filter_body)
    )
    with running.connect() as connection:
        for start in range(0, len(stream), 97):
            connection.sendall(stream[start : start + 97])
        file = connection.makefile("rb")
        bodies = [_next(file) for _ in range(5)]

    assert [status for status, _ in bodies] == [200] * 5
    assert b"NodeNames" in bodies[0][1]
    assert bodies[1][1] == b'{"Error":""}'
    assert b"Host" in bodies[2][1]
    assert bodies[3][1] == b"ok"


def _next(file: socket.SocketIO) -> tuple[int, bytes]:
    status = int(file.readline().split(b" ")[1])
    length = 0
    while (line := file.readline()) != b"\r\n":
        if line.lower().startswith(b"content-length:"):
            length = int(line.split(b":")[1])
    return status, file.read(length) or b""


def test_a_body_in_chunks_is_read_too(running: Running) -> None:
    """It gives its length piece by piece."""
    body = json.dumps(_args(pod("web", whole()))).encode()
    chunks = b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)

    status, _, answer = running.send(
        b"POST /scheduler/filter HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        + chunks
    )

    assert status == 200
    assert json.loads(answer)["Error"] == ""


def test_a_connection_is_closed_when_its_caller_wants_it(running: Running) -> None:
    """The service follows `Connection: close`."""
    body = json.dumps(_args(pod("web", whole()))).encode()
    with running.connect() as connection:
        connection.sendall(
            b"POST /scheduler/filter HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
            b"Content-Length: %d\r\n\r\n%b" % (len(body), body)
        )
        assert read(connection)[0] == 200
        assert connection.recv(1) == b""


@pytest.mark.parametrize("path", ["/scheduler/filter", "/webhook", "/nothing", "/metrics"])
@pytest.mark.parametrize("method", ["PUT", "DELETE", "OPTIONS"])
def test_other_methods_and_paths_are_refused_plainly(
    running: Running, method: str, path: str
) -> None:
    """404 or 405, with a sentence in JSON."""
    status, _, body = running.send(
        f"{method} {path} HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n".encode()
    )

    assert status in (404, 405)
    assert json.loads(body)["message"]


def test_too_large_a_body_is_refused_before_it_is_read(running: Running) -> None:
    """10 MB are allowed; one byte more is refused, whether announced or in chunks."""
    for path in ("/scheduler/filter", "/scheduler/bind"):
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {10 * 2**20 + 1}\r\n\r\n"
        assert running.send(head.encode() + b"x")[0] == 413
    piece = b"100000\r\n" + b" " * 2**20 + b"\r\n"
    status, _, _ = running.send(
        b"POST /scheduler/filter HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        + piece * 11
    )
    assert status in (413, 0)


def test_ten_megabytes_are_read() -> None:
    """The largest allowed body is read like any other."""
    with Running(node(), device()) as site:
        body = json.dumps(_args(pod("web", whole()), "n1")).encode()
        padded = body + b" " * (10 * 2**20 - len(body))

        assert json.loads(site.post("/scheduler/filter", padded)[2])["NodeNames"] == ["n1"]


@pytest.mark.parametrize(
    "part",
    [
        b"",
        b"POST /scheduler/fil",
        b"POST /scheduler/filter HTTP/1.1\r\nHost: x\r\nContent-Length: 50\r\n\r\n{",
        b"GET /healthz HT",
    ],
    ids=["silent", "half a line", "half a body", "half a line elsewhere"],
)
async def test_a_client_that_dawdles_is_let_go(part: bytes) -> None:
    """Half-open connections do not accumulate. One loop: a busy machine delays no client there."""
    world = await World().start(node(), device())
    limits = Limits(patience=0.05, idle=0.05)
    site = scheduler_site(world.service, Faces(Access(plain=True), limits))
    await site.start()
    reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
    writer.write(part)

    answer = await reader.read()

    writer.close()
    await site.stop()
    await world.service.close()
    assert answer[:12] == (b"HTTP/1.1 408" if b"{" in part else b"")


def test_no_more_connections_than_allowed_are_open() -> None:
    """A further one takes the place of the least recently used connection, which is closed."""
    with Running(node(), device(), limits=Limits(connections=2)) as site:
        first, second = site.connect(), site.connect()
        request = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
        for connection in (first, second):
            connection.sendall(request)
            assert read(connection)[0] == 200
        first.sendall(request)
        assert read(first)[0] == 200
        with site.connect() as third:
            third.sendall(request)
            assert read(third)[0] == 200
            with contextlib.suppress(ConnectionError):
                assert second.recv(1) == b""
            first.sendall(request)
            assert read(first)[0] == 200
        first.close()
        second.close()


def test_verbs_need_a_token_and_probes_do_not(tmp_path: Path) -> None:
    """Bind can place any pod anywhere; the token comes from a file that may change."""
    file = tmp_path / "tokens"
    file.write_text("# kube-scheduler\nfirst-token-0123456789\n")
    now = [0.0]
    access = Access(TokenFile(file, lambda: now[0]))
    args = _args(pod("web", whole()))
    with Running(node(), device(), access=access) as site:
        assert site.get("/readyz")[0] == 200
        assert site.post("/scheduler/filter", args)[0] == 401
        assert site.post("/scheduler/filter", args, Authorization="Bearer wrong")[0] == 401
        basic = "Basic first-token-0123456789"
        assert site.post("/scheduler/bind", {}, Authorization=basic)[0] == 401
        good = "bearer first-token-0123456789"
        assert site.post("/scheduler/filter", args, Authorization=good)[0] == 200


def test_a_document_that_changes_between_calls_changes_the_answer(running: Running) -> None:
    """The books behind the socket are those that take in the facts."""
    running.world.service.gone(document(device()))
    running.world.service.changed(document(node("n3")))

    answer = json.loads(running.post("/scheduler/filter", _args(pod("web", whole())))[2])

    assert answer["NodeNames"] == ["n2"]
