"""Tokens, plugins and certificates on the wire: presented, renewed, replaced, refused."""

import asyncio
import os
import ssl
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme
from kube_builders import Pod, client_of, put, written

from fakes.clock import InstantClock
from fakes.kube_server import KubeServer
from fakes.wire import Fault
from partage.kube.config import ExecPlugin, Material, UserConfig
from partage.kube.errors import ConfigError, TransportError, Unauthorized, UnknownOutcome
from partage.kube.resources import PODS


async def ask(client: Any) -> Pod:
    """Any request."""
    found: Pod = await client.get(PODS, "a", namespace="default", into=Pod)
    return found


async def test_a_token_is_presented() -> None:
    """Another token is refused."""
    async with KubeServer() as server:
        put(server, "a")
        server.token = "good"  # noqa: S105
        async with client_of(server, user=UserConfig(token="good")) as client:  # noqa: S106
            await ask(client)
        async with client_of(server, user=UserConfig(token="bad")) as client:  # noqa: S106
            with pytest.raises(Unauthorized):
                await ask(client)

        assert len(server.requests) == 2


async def test_impersonation_and_passwords_are_presented() -> None:
    """Groups as one header each."""
    user = UserConfig(
        username="me",
        password="pw",  # noqa: S106
        impersonation=(("Impersonate-User", "jane"), ("Impersonate-Group", "a")),
    )
    async with KubeServer() as server, client_of(server, user=user) as client:
        put(server, "a")
        await ask(client)

        headers = server.requests[0].headers
        assert headers["Authorization"] == "Basic bWU6cHc="
        assert (headers["Impersonate-User"], headers["Impersonate-Group"]) == ("jane", "a")


async def test_a_rotated_token_file_is_read_again(tmp_path: Path) -> None:
    """The client reads it after the period; the server need not refuse a request first."""
    clock = InstantClock()
    file = written(tmp_path / "token", "one\n")
    user = UserConfig(token_file=file)
    async with KubeServer() as server, client_of(server, user=user, clock=clock) as client:
        put(server, "a")
        await ask(client)
        written(tmp_path / "new", "two").replace(file)
        await ask(client)
        clock.pass_time(11)
        await ask(client)

        sent = [request.headers["Authorization"] for request in server.requests]
        assert sent == ["Bearer one", "Bearer one", "Bearer two"]


async def test_a_refused_token_file_is_read_at_once(tmp_path: Path) -> None:
    """A 401 was not carried out, so any request may be sent again."""
    file = written(tmp_path / "token", "one")
    async with (
        KubeServer() as server,
        client_of(server, user=UserConfig(token_file=file)) as client,
    ):
        put(server, "a")
        await ask(client)
        server.token = "two"  # noqa: S105
        written(file, "two!")
        written(file, "two")

        await client.bind("default", "a", "n", uid="uid-1")

        assert len(server.requests) == 3


async def test_a_token_file_that_is_gone_for_a_moment_keeps_the_last(tmp_path: Path) -> None:
    """The token is read again when the file is back."""
    clock = InstantClock()
    file = written(tmp_path / "token", "one")
    user = UserConfig(token_file=file)
    async with KubeServer() as server, client_of(server, user=user, clock=clock) as client:
        put(server, "a")
        await ask(client)
        file.unlink()
        clock.pass_time(11)
        await ask(client)
        written(file, "two")
        clock.pass_time(11)
        await ask(client)

        sent = [request.headers["Authorization"] for request in server.requests]
        assert sent == ["Bearer one", "Bearer one", "Bearer two"]


@pytest.mark.parametrize("text", [None, " \n", "to ken", "tökén"], ids=str)
async def test_a_useless_token_is_a_configuration_error(text: str | None, tmp_path: Path) -> None:
    """Said before anything is sent, and without the token."""
    file = tmp_path / "token"
    if text is not None:
        written(file, text)
    async with client_of("https://x.invalid", user=UserConfig(token_file=file)) as client:
        with pytest.raises(ConfigError, match="token"):
            await ask(client)


SCRIPT = """
import json, os, sys
runs = {runs!r}
with open(runs, "a") as log:
    log.write(os.environ["KUBERNETES_EXEC_INFO"] + "\\n")
with open(runs) as log:
    number = len(log.readlines())
print(json.dumps({{
    "apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential",
    "status": {{"token": "t%d" % number, "expirationTimestamp": os.environ.get("EXPIRES")}},
}}))
"""


def plugin_of(tmp_path: Path, script: str = SCRIPT, **options: Any) -> tuple[UserConfig, Path]:
    """A user whose plugin is a Python script, and the log of its runs."""
    runs = tmp_path / "runs"
    file = written(tmp_path / "plugin.py", script.format(runs=str(runs)))
    return UserConfig(plugin=ExecPlugin(sys.executable, (str(file),), **options)), runs


async def test_a_plugin_is_run_once_and_again_when_refused(tmp_path: Path) -> None:
    """Its token is used until the server no longer takes it."""
    user, runs = plugin_of(tmp_path)
    async with KubeServer() as server, client_of(server, user=user) as client:
        put(server, "a")
        await ask(client)
        await ask(client)
        server.token = "t2"  # noqa: S105
        await ask(client)

        assert len(runs.read_text().splitlines()) == 2
        server.token = "never"  # noqa: S105
        with pytest.raises(Unauthorized):
            await ask(client)


async def test_a_plugin_is_run_again_before_its_credential_expires(tmp_path: Path) -> None:
    """Half a minute early; concurrent requests wait for one run."""
    clock = InstantClock()
    expires = (clock.now() + timedelta(seconds=600)).isoformat()
    user, runs = plugin_of(tmp_path, environment={"EXPIRES": expires})
    async with KubeServer() as server, client_of(server, user=user, clock=clock) as client:
        put(server, "a")
        await asyncio.gather(*(ask(client) for _ in range(5)))
        clock.pass_time(569)
        await ask(client)
        assert len(runs.read_text().splitlines()) == 1
        clock.pass_time(2)
        await ask(client)

        assert len(runs.read_text().splitlines()) == 2


async def test_a_plugin_that_fails_costs_nothing_before_its_credential_expires(
    tmp_path: Path,
) -> None:
    """Such as one whose own server is away for a moment. A change of unknown outcome stays one."""
    clock = InstantClock()
    expires = (clock.now() + timedelta(seconds=600)).isoformat()
    user, _ = plugin_of(tmp_path, environment={"EXPIRES": expires})
    async with KubeServer() as server, client_of(server, user=user, clock=clock) as client:
        uid = put(server, "a").metadata.uid
        await ask(client)
        written(tmp_path / "plugin.py", "raise SystemExit(1)")
        clock.pass_time(599.95)
        await ask(client)
        server.fail(Fault(method="DELETE", drop=True, executed=True))

        with pytest.raises(UnknownOutcome):  # it expires in the pause before the next try
            await client.delete(PODS, "a", namespace="default", uid=uid)
        with pytest.raises(ConfigError, match="exit status 1"):
            await ask(client)


async def test_a_plugin_that_hangs_holds_up_one_request_alone(tmp_path: Path) -> None:
    """The others have a valid credential, and a renewal of a Lease among them cannot wait."""
    clock = InstantClock()
    expires = (clock.now() + timedelta(seconds=600)).isoformat()
    user, runs = plugin_of(tmp_path, environment={"EXPIRES": expires})
    async with KubeServer() as server, client_of(server, user=user, clock=clock) as client:
        put(server, "a")
        await ask(client)
        hangs = SCRIPT + "\nimport time; time.sleep(60)"
        written(tmp_path / "plugin.py", hangs.format(runs=str(runs)))
        clock.pass_time(580)
        waiting = asyncio.create_task(ask(client))
        while len(runs.read_text().splitlines()) < 2:  # noqa: ASYNC110 # another process writes it
            await asyncio.sleep(0.01)
        await asyncio.gather(*(ask(client) for _ in range(5)))

        waiting.cancel()
        await asyncio.wait([waiting])
        await ask(client)  # the next run begins after a pause
        assert len(runs.read_text().splitlines()) == 2


async def test_a_plugin_is_told_about_the_cluster_if_it_wants(tmp_path: Path) -> None:
    """It always gets the word that it has no terminal."""
    user, runs = plugin_of(tmp_path, provide_cluster=True)
    cluster = {
        "authority": Material(data=b"pem"),
        "server_name": "n",
        "verify": False,
        "exec_config": {"audience": "x"},
    }
    async with KubeServer() as server, client_of(server, user=user, cluster=cluster) as client:
        put(server, "a")
        await ask(client)

        assert msgspec.json.decode(runs.read_text())["spec"] == {
            "interactive": False,
            "cluster": {
                "server": server.url,
                "tls-server-name": "n",
                "insecure-skip-tls-verify": True,
                "certificate-authority-data": "cGVt",
                "config": {"audience": "x"},
            },
        }


ANSWER = 'print(\'{{"apiVersion":"%s","kind":"ExecCredential","status":%s}}\')'
V1 = "client.authentication.k8s.io/v1"
BROKEN = [
    pytest.param("import sys; print('s3cr3t'); sys.exit(3)", "exit status 3", id="fails"),
    pytest.param("print('s3cr3t')", "not an ExecCredential", id="prints-anything"),
    pytest.param(ANSWER % ("v0", "{{}}"), f"not an ExecCredential of {V1}", id="version"),
    pytest.param(ANSWER % (V1, "null"), "neither a token nor a certificate", id="nothing"),
    pytest.param(ANSWER % (V1, '{{"clientKeyData":"s3cr3t"}}'), "go together", id="half-a-pair"),
    pytest.param(
        ANSWER % (V1, '{{"token":"t","expirationTimestamp":"2026-01-01T00:00:00"}}'),
        "no time zone",
        id="no-zone",
    ),
    pytest.param("import time; time.sleep(30)", "no answer in 0.1 s", id="hangs"),
    pytest.param(
        "import os\nwhile True: os.write(1, bytes(2**20))", "prints more than 1 MiB", id="endless"
    ),
]


@pytest.mark.parametrize(("script", "message"), BROKEN)
async def test_a_plugin_that_fails_is_a_configuration_error(
    script: str, message: str, tmp_path: Path
) -> None:
    """Nothing it printed is repeated."""
    user, _ = plugin_of(tmp_path, script)
    slow = 0.1 if "sleep" in script else 240.0
    async with client_of(
        "https://x.invalid", user=user, transport={"plugin_timeout": slow}
    ) as client:
        with pytest.raises(ConfigError, match=message) as caught:
            await ask(client)

    assert "s3cr3t" not in f"{caught.value}{caught.value.__cause__}"


async def test_a_missing_plugin_says_how_to_get_it() -> None:
    """The kubeconfig's own hint."""
    user = UserConfig(plugin=ExecPlugin("/no/such", install_hint="brew install it"))
    async with client_of("https://x.invalid", user=user) as client:
        with pytest.raises(ConfigError, match=r"/no/such: cannot be run: .* \(brew install it\)"):
            await ask(client)


@pytest.mark.parametrize(
    ("options", "cluster", "message"),
    [
        ({"environment": {"A=B": "c"}}, {}, "cannot be run: illegal environment variable name"),
        ({"environment": {"A": "\0"}}, {}, "cannot be run: embedded null byte"),
        (
            {"provide_cluster": True},
            {"authority": Material(path=Path("/no/such"))},
            "/no/such: cannot be read: No such file or directory",
        ),
    ],
)
async def test_a_plugin_that_cannot_be_started_is_a_configuration_error(
    options: dict[str, Any], cluster: dict[str, Any], message: str, tmp_path: Path
) -> None:
    """No request was sent, so no outcome is in doubt."""
    user, _ = plugin_of(tmp_path, **options)
    async with client_of("https://x.invalid", user=user, cluster=cluster) as client:
        with pytest.raises(ConfigError, match=message):
            await ask(client)


# TLS


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    """A throw-away authority; making its keys takes a moment."""
    return trustme.CA()


def server_tls(
    authority: trustme.CA, *, clients: bool = False, name: str = "127.0.0.1"
) -> ssl.SSLContext:
    """A server's context; with `clients` it wants their certificate."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert(name).configure_cert(context)
    if clients:
        context.verify_mode = ssl.CERT_REQUIRED
        authority.configure_trust(context)
    return context


def pem(authority: trustme.CA) -> bytes:
    """The authority's certificate."""
    return authority.cert_pem.bytes()


def pair_of(authority: trustme.CA) -> tuple[bytes, bytes]:
    """A client's certificate and key."""
    issued = authority.issue_cert("me@example.invalid")
    chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
    return chain, issued.private_key_pem.bytes()


@pytest.mark.parametrize("inline", [True, False], ids=["inline", "in-files"])
async def test_both_sides_show_certificates(
    inline: bool,  # noqa: FBT001
    authority: trustme.CA,
    tmp_path: Path,
) -> None:
    """Authority, certificate and key, in the document or in files."""
    parts = [pem(authority), *pair_of(authority)]
    materials = [Material(data=part) for part in parts]
    if not inline:
        paths = [tmp_path / name for name in ("ca", "crt", "key")]
        for path, part in zip(paths, parts, strict=True):
            path.write_bytes(part)
        materials = [Material(path=path) for path in paths]
    ca, certificate, key = materials
    async with KubeServer(server_tls(authority, clients=True)) as server:
        put(server, "a")
        async with client_of(
            server, cluster={"authority": ca}, user=UserConfig(certificate=certificate, key=key)
        ) as client:
            assert (await ask(client)).metadata.name == "a"


async def test_a_plugin_may_give_a_certificate(authority: trustme.CA, tmp_path: Path) -> None:
    """The certificate takes the place of a token."""
    chain, key = pair_of(authority)
    document = {
        "apiVersion": V1,
        "kind": "ExecCredential",
        "status": {"clientCertificateData": chain.decode(), "clientKeyData": key.decode()},
    }
    file = written(tmp_path / "credential", msgspec.json.encode(document).decode())
    user = UserConfig(plugin=ExecPlugin("/bin/cat", (str(file),)))
    async with KubeServer(server_tls(authority, clients=True)) as server:
        put(server, "a")
        cluster = {"authority": Material(data=pem(authority))}
        async with client_of(server, user=user, cluster=cluster) as client:
            assert (await ask(client)).metadata.name == "a"


async def test_comments_in_an_authority_do_not_matter(authority: trustme.CA) -> None:
    """Bundles name their authorities, in any alphabet."""
    bundle = "# Behörde\n".encode() + pem(authority)
    async with KubeServer(server_tls(authority)) as server:
        put(server, "a")
        async with client_of(server, cluster={"authority": Material(data=bundle)}) as client:
            assert (await ask(client)).metadata.name == "a"


async def test_a_stranger_is_not_spoken_to(authority: trustme.CA) -> None:
    """Another authority, or another name; nothing is sent, so it is safe to ask again."""
    stranger = {"authority": Material(data=pem(trustme.CA()))}
    wrong_name = {"authority": Material(data=pem(authority)), "server_name": "other.invalid"}
    async with KubeServer(server_tls(authority)) as server:
        for cluster in (stranger, wrong_name, {}):
            async with client_of(server, cluster=cluster, attempts=1) as client:
                with pytest.raises(TransportError, match="certificate verify failed"):
                    await ask(client)

        assert server.requests == []


@pytest.mark.parametrize("how", ["by-name", "unverified"])
async def test_a_server_may_go_by_another_name(how: str, authority: trustme.CA) -> None:
    """`tls-server-name`, or no verification at all."""
    cluster: dict[str, Any] = {"verify": False}
    if how == "by-name":
        cluster = {"authority": Material(data=pem(authority)), "server_name": "kubernetes"}
    async with KubeServer(server_tls(authority, name="kubernetes")) as server:
        put(server, "a")
        async with client_of(server, cluster=cluster) as client:
            assert (await ask(client)).metadata.name == "a"


async def test_replaced_authorities_are_taken_up(authority: trustme.CA, tmp_path: Path) -> None:
    """While half written they are not: the last good one stays in use."""
    clock = InstantClock()
    file = tmp_path / "ca.crt"
    file.write_bytes(pem(authority))
    following = trustme.CA()
    cluster = {"authority": Material(path=file)}
    async with KubeServer(server_tls(authority)) as old, KubeServer(server_tls(following)) as new:
        put(old, "a")
        put(new, "a")
        async with client_of(old, cluster=cluster, clock=clock) as client:
            await ask(client)
            file.write_bytes(b"-----BEGIN")
            clock.pass_time(11)
            await ask(client)
            file.write_bytes(pem(following))
            clock.pass_time(11)
            client._sender.transport._server = new.url

            assert (await ask(client)).metadata.name == "a"


def _encrypted() -> bytes:
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric import ec  # noqa: PLC0415

    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"pw"),
    )


async def test_useless_certificates_are_configuration_errors(
    authority: trustme.CA, tmp_path: Path
) -> None:
    """An authority that is none, a missing file, and a key that wants a password."""
    chain, key = pair_of(authority)
    missing = Material(path=tmp_path / "missing")
    users_and_clusters = [
        (UserConfig(), {"authority": Material(data=b"x")}),
        (UserConfig(), {"authority": Material(data=b" \n")}),
        (UserConfig(), {"authority": missing}),
        (UserConfig(certificate=Material(data=chain), key=missing), {}),
        (UserConfig(certificate=Material(data=chain), key=Material(data=_encrypted())), {}),
        (UserConfig(certificate=Material(data=key), key=Material(data=key)), {}),
    ]
    for user, cluster in users_and_clusters:
        async with client_of("https://x.invalid", user=user, cluster=cluster) as client:
            with pytest.raises(ConfigError, match="not a c"):
                await ask(client)


async def test_keys_leave_no_trace_on_disk(
    authority: trustme.CA, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Inline keys touch the disk for a moment only."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    chain, key = pair_of(authority)
    user = UserConfig(certificate=Material(data=chain), key=Material(data=key))
    async with KubeServer(server_tls(authority, clients=True)) as server:
        put(server, "a")
        cluster = {"authority": Material(data=pem(authority))}
        async with client_of(server, user=user, cluster=cluster) as client:
            await ask(client)

    assert os.listdir(tmp_path) == []  # noqa: PTH208


async def test_a_body_that_is_no_status_still_refuses() -> None:
    """A gateway's 401 without fresh credentials is final."""
    async with KubeServer() as server, client_of(server) as client:
        server.fail(Fault(status=401))

        with pytest.raises(Unauthorized):
            await ask(client)
