"""The error tree: which error an answer becomes, what it says, and what it keeps to itself."""

import asyncio
import base64
import json
import traceback

import msgspec
import pytest
from kube_builders import client_of

from fakes.kube_server import KubeServer
from fakes.wire import Fault
from partage.kube import errors
from partage.kube.config import UserConfig
from partage.kube.errors import ApiError, Outcome, api_error, error_of_status
from partage.kube.resources import NODES
from partage.kube.retry import may_retry

SECRET = "s3cr3t-t0ken"  # noqa: S105 - a word to look for


def status(code: int, reason: str = "", message: str = "", **details: object) -> bytes:
    """A Status document."""
    document = {"kind": "Status", "code": code, "reason": reason, "message": message}
    return json.dumps(document | {"details": details}).encode()


CASES = [
    (400, "BadRequest", errors.BadRequest, Outcome.FINAL),
    (401, "Unauthorized", errors.Unauthorized, Outcome.FINAL),
    (403, "Forbidden", errors.Forbidden, Outcome.FINAL),
    (404, "NotFound", errors.NotFound, Outcome.FINAL),
    (405, "MethodNotAllowed", ApiError, Outcome.FINAL),
    (408, "Timeout", ApiError, Outcome.UNKNOWN),
    (409, "Conflict", errors.Conflict, Outcome.FINAL),
    (409, "AlreadyExists", errors.AlreadyExists, Outcome.FINAL),
    (410, "Expired", errors.Expired, Outcome.FINAL),
    (410, "Gone", errors.Expired, Outcome.FINAL),
    (422, "Invalid", errors.Invalid, Outcome.FINAL),
    (429, "TooManyRequests", errors.TooManyRequests, Outcome.REFUSED),
    (500, "InternalError", errors.ServerError, Outcome.UNKNOWN),
    (501, "", errors.ServerError, Outcome.FINAL),
    (503, "ServiceUnavailable", errors.ServerError, Outcome.UNKNOWN),
    (504, "Timeout", errors.ServerError, Outcome.UNKNOWN),
]


@pytest.mark.parametrize(("code", "reason", "kind", "outcome"), CASES, ids=str)
def test_each_answer_has_its_error(
    code: int, reason: str, kind: type[ApiError], outcome: Outcome
) -> None:
    """The status decides, and the reason where one status means two things."""
    error = api_error("GET", "/x", code, status(code, reason))

    assert type(error) is kind
    assert (error.status, error.reason, error.outcome) == (code, reason, outcome)
    assert may_retry(error, idempotent=False) is (outcome is Outcome.REFUSED)
    assert may_retry(error, idempotent=True) is (outcome in {Outcome.REFUSED, Outcome.UNKNOWN})


def test_an_unavailable_server_that_says_when_has_done_nothing() -> None:
    """The header, or the field of the Status."""
    by_header = api_error("POST", "/x", 503, b"", retry_after=0.0)
    by_field = api_error("POST", "/x", 503, status(503, retryAfterSeconds=4))

    assert by_header.outcome is by_field.outcome is Outcome.REFUSED
    assert by_field.retry_after == 4


def test_a_wait_beyond_all_numbers_is_no_fault_of_ours() -> None:
    """JSON has numbers of any size."""
    error = api_error("GET", "/x", 503, status(503, retryAfterSeconds=10**400))

    assert error.outcome in {Outcome.REFUSED, Outcome.UNKNOWN}


def test_what_is_missing_is_the_object_of_the_path() -> None:
    """An answer about another object says nothing of this one."""

    def gone(path: str = "/api/v1/nodes/n0", **details: object) -> bool:
        error = api_error("GET", path, 404, status(404, "NotFound", **details))
        return type(error) is errors.NotFound

    assert gone(name="n0", kind="nodes")
    assert gone()
    assert not gone(name="n1", kind="nodes")
    assert type(api_error("GET", "/x", 404, b"404 page not found")) is errors.NotServed
    assert gone("/apis/rbac.authorization.k8s.io/v1/clusterroles/a%3Ab?pretty=", name="a:b")


def test_a_namespace_that_is_missing_is_told_from_an_object() -> None:
    """They differ even with one name for both; the message says what to do."""

    def kind(path: str, what: str) -> type[ApiError]:
        details = {"name": "partage", "kind": what}
        return type(api_error("POST", path, 404, status(404, "NotFound", "no", **details)))

    leases = "/apis/coordination.k8s.io/v1/namespaces/partage/leases"
    assert kind(leases, "namespaces") is errors.NamespaceNotFound
    assert kind(f"{leases}/partage?fieldManager=x", "leases") is errors.NotFound
    assert kind("/api/v1/namespaces/partage", "namespaces") is errors.NotFound
    missing = api_error(
        "POST", leases, 404, status(404, "NotFound", "no", name="partage", kind="namespaces")
    )
    assert str(missing).endswith("404 NotFound: no; create this namespace, or name another one")


def test_a_blocked_eviction_is_told_from_a_busy_server() -> None:
    """Both are 429; asking again helps only with the second."""
    causes = [{"reason": "DisruptionBudget", "message": "needs 2"}]
    error = api_error("POST", "/x", 429, status(429, "TooManyRequests", causes=causes))

    assert type(error) is errors.EvictionBlocked
    assert not may_retry(error, idempotent=True)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        pytest.param(
            status(404, "NotFound", "no\n  such"), "GET /x: 404 NotFound: no such", id="status"
        ),
        pytest.param(
            b"<html>Bad gateway</html>", "GET /x: 404: <html>Bad gateway</html>", id="page"
        ),
        pytest.param(b"", "GET /x: 404", id="empty"),
        pytest.param(b"[" * 99_999, f"GET /x: 404: {'[' * 300}", id="deep"),
        pytest.param(b'{"message": 7}', 'GET /x: 404: {"message": 7}', id="other-types"),
        pytest.param(b'{"message": null, "details": null}', "GET /x: 404", id="nulls"),
    ],
)
def test_messages_are_one_line(body: bytes, text: str) -> None:
    """Method, path, status, reason and the server's words."""
    assert str(api_error("GET", "/x", 404, body)) == text


def test_long_messages_are_cut() -> None:
    """Some repeat the whole object."""
    error = api_error("GET", "/x", 422, status(422, "Invalid", "x" * 9999))

    assert len(error.text) == 300
    assert error.text.endswith("…")


def test_an_error_in_a_watch_has_only_its_code() -> None:
    """It is a server's fault if it has none."""
    assert isinstance(error_of_status("GET", "/x", errors.Status(code=410)), errors.Expired)
    assert isinstance(error_of_status("GET", "/x", errors.Status()), errors.ServerError)


FAULTS = [
    pytest.param(Fault(status=401, times=9), id="401"),
    pytest.param(Fault(status=500, times=9), id="500"),
    pytest.param(Fault(drop=True, times=9), id="dropped"),
    pytest.param(Fault(half=True, times=9), id="half"),
    pytest.param(Fault(delay=60, times=9), id="too-slow"),
    pytest.param(Fault(body=b"{"), id="undecodable"),
]


@pytest.mark.parametrize("fault", FAULTS)
async def test_no_error_tells_a_secret(fault: Fault) -> None:
    """Its text, its causes' texts, the traceback and the repr have none."""
    user = UserConfig(token=SECRET)
    transport = {"request_timeout": 1.0 if fault.delay else 60.0}
    async with (
        KubeServer() as server,
        client_of(server, user=user, attempts=1, transport=transport) as client,
    ):
        server.fail(fault)
        with pytest.raises(errors.RequestError) as caught:
            await client.get(NODES, "n", into=dict[str, str])

        assert server.requests[0].headers["Authorization"] == f"Bearer {SECRET}"

    _assert_silent(caught.value)
    assert SECRET not in repr(client.config)


@pytest.mark.parametrize("scheme", ["https", "http"])
async def test_a_proxy_that_refuses_tells_no_secret(scheme: str) -> None:
    """The error has neither its own password nor our token; by plain HTTP there is none."""
    heads: list[bytes] = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 407 No\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as proxy:
        port = proxy.sockets[0].getsockname()[1]
        async with client_of(
            f"{scheme}://api.invalid:6443",
            cluster={"proxy": f"http://me:{SECRET}@127.0.0.1:{port}"},
            user=UserConfig(token=SECRET if scheme == "https" else None),
            attempts=1,
        ) as client:
            with pytest.raises(errors.RequestError, match="407") as caught:
                await client.get(NODES, "n", into=msgspec.Raw)

            assert SECRET not in repr(client.config)

    given = base64.b64encode(f"me:{SECRET}".encode())
    assert b"Proxy-Authorization: Basic " + given in heads[0]
    assert b"Bearer" not in heads[0]
    _assert_silent(caught.value)


def _assert_silent(error: BaseException | None) -> None:
    assert SECRET not in "".join(traceback.format_exception(error))
    while error is not None:
        assert SECRET not in f"{error} {error!r} {error.args!r}"
        error = error.__cause__
