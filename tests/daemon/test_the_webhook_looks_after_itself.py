"""The webhook as a process: certificates, registration, settings, replicas, and the command."""

import asyncio
import base64
import contextlib
import os
import signal
import socket
import ssl
import sys
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from daemon_world import PATIENCE, World, pod, until, world

from fakes.ports import free_port
from partage.apiserver import write_kubeconfig
from partage.apiserver.status import ApiError
from partage.daemon.webhook import Registration, WebhookDaemon, WebhookOptions
from partage.kube.client import Client
from partage.kube.config import ClusterConfig, Config
from partage.kube.retry import Backoff
from partage.kube.sender import ClientSettings
from partage.serving.limits import Limits
from partage.serving.tls import ServerTls
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.webhook.certificates import Bundle, renewed
from partage.webhook.installation import Endpoint, installation
from partage.webhook.settings import Admission
from partage.wire.context import Context

NAMESPACE, SECRET = "partage-system", "partage-webhook-tls"
KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
GROUP = "admissionregistration.k8s.io"
SHARE = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"}


class LaterClock:
    """The machine's clock, whose date can be moved; others go by the true one."""

    def __init__(self, days: float = 0) -> None:
        self.ahead = timedelta(days=days)

    def monotonic(self) -> float:
        """See `Clock`."""
        return asyncio.get_running_loop().time()

    def now(self) -> datetime:
        """See `Clock`."""
        return datetime.now(UTC) + self.ahead

    async def sleep(self, seconds: float) -> None:
        """See `Clock`."""
        await asyncio.sleep(max(0.0, seconds))


def place(port: int) -> Endpoint:
    """The webhook on loopback."""
    return Endpoint(url=f"https://127.0.0.1:{port}")


@contextlib.asynccontextmanager
async def cluster() -> AsyncIterator[World]:
    """A cluster with the namespace of the webhook."""
    async with world(nodes=0) as found:
        await found.api.create("namespaces", {"metadata": {"name": NAMESPACE}})
        yield found


async def install(found: World, endpoint: Endpoint) -> None:
    """Apply what `--manifests` prints."""
    for one in installation(endpoint, Context.of(Settings(), FAMILIES), Admission()):
        kind = one["kind"].lower()
        plural = f"{kind[:-1]}ies" if kind.endswith("policy") else f"{kind}s"
        await found.api.create(f"{plural}.{GROUP}", one)


def hooks(found: World) -> list[dict[str, Any]]:
    """The webhooks as they stand in both configurations."""
    return [found.stored("partage", f"{kind}.{GROUP}", "")["webhooks"][0] for kind in KINDS]


def trusted(found: World) -> set[bytes]:
    """The authorities in the webhook configurations."""
    return {base64.b64decode(hook["clientConfig"].get("caBundle", "")) for hook in hooks(found)}


def kept(found: World) -> dict[str, bytes]:
    """What the Secret holds."""
    data = found.stored(SECRET, "secrets", NAMESPACE)["data"]
    return {key: base64.b64decode(value) for key, value in data.items()}


def served(port: int) -> bytes:
    """The certificate that is served, DER."""
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with (
        socket.create_connection(("127.0.0.1", port), timeout=PATIENCE) as plain,
        context.wrap_socket(plain) as secure,
    ):
        return secure.getpeercert(binary_form=True) or b""


async def until_served(port: int, pem: bytes) -> None:
    """Wait until new connections meet this certificate."""
    wanted = x509.load_pem_x509_certificate(pem).serial_number
    async with asyncio.timeout(PATIENCE):
        while True:
            found = await asyncio.to_thread(served, port)
            if x509.load_der_x509_certificate(found).serial_number == wanted:
                return
            await asyncio.sleep(0.02)


def coded(data: bytes) -> str:
    """As a Secret holds it."""
    return base64.b64encode(data).decode()


@contextlib.asynccontextmanager
async def replica(
    found: World, port: int, clock: LaterClock | None = None, **options: Any
) -> AsyncIterator[WebhookDaemon]:
    """A replica that serves."""
    config = Config(ClusterConfig(found.url))
    patience = ClientSettings(attempts=2, backoff=Backoff(base=0.01, cap=0.05))
    settings = {"endpoint": place(port), "period": 0.05, **options}
    async with (
        Client(config, clock=clock or LaterClock(), settings=patience) as client,
        WebhookDaemon(client, WebhookOptions(port=port, **settings)) as daemon,
    ):
        yield daemon


async def test_probes_are_answered_while_others_hold_the_port() -> None:
    """They use plain HTTP on a separate port that answers nothing else."""
    port, probes = free_port(), free_port()
    async with cluster() as found:
        await install(found, place(port))
        limits = Limits(connections=4, per_address=4)
        async with replica(found, port, health_port=probes, limits=limits):
            held = [await asyncio.open_connection("127.0.0.1", port) for _ in range(8)]
            for path, status in (("/healthz", 200), ("/readyz", 200), ("/metrics", 404)):
                async with found.http.get(f"http://127.0.0.1:{probes}{path}") as answer:
                    assert answer.status == status
            async with found.http.post(f"http://127.0.0.1:{probes}/webhook/mutate") as answer:
                assert answer.status == 404
            for _, writer in held:
                writer.close()


async def test_pods_are_completed_and_judged_over_tls() -> None:
    """From nothing, the certificate is made and trusted, and the API server's own call succeeds."""
    port = free_port()
    async with cluster() as found:
        await install(found, place(port))
        with pytest.raises(ApiError, match="failed calling webhook"):
            await found.pod("early", SHARE)
        async with replica(found, port) as daemon:
            assert daemon.url == f"https://127.0.0.1:{port}"
            await found.pod("share", SHARE, schedulerName="default-scheduler")
            assert found.stored("share")["spec"]["schedulerName"] == "partage-scheduler"
            with pytest.raises(ApiError, match="InvalidRequest"):
                await found.pod("odd", {"tke.cloud.tencent.com/qgpu-core": "7"})
            forged = pod("forged", SHARE)
            forged["metadata"]["annotations"] = {"partage.io/allocation": "{}"}
            with pytest.raises(ApiError, match="only Partage may write"):
                await found.api.create("pods", forged, "default")
        assert trusted(found) == {kept(found)["ca.crt"]}
        assert found.stored(SECRET, "secrets", NAMESPACE)["type"] == "Opaque"


async def test_rest_writes_nothing() -> None:
    """After many looks Secret and configurations are unchanged since the first look."""
    port = free_port()
    async with cluster() as found:
        await install(found, place(port))
        async with replica(found, port, period=0.01):
            await asyncio.sleep(0.1)
            before = found.api.store.revision
            await asyncio.sleep(0.3)
            assert found.api.store.revision == before


async def test_a_certificate_is_replaced_before_it_ends_without_a_restart() -> None:
    """70 days later another certificate is served, and calls go on."""
    port, clock = free_port(), LaterClock(-70)
    async with cluster() as found:
        await install(found, place(port))
        async with replica(found, port, clock):
            first = kept(found)["tls.crt"]
            await until_served(port, first)
            clock.ahead = timedelta()
            await until(lambda: kept(found)["tls.crt"] != first)
            await until_served(port, kept(found)["tls.crt"])
            assert trusted(found) == {kept(found)["ca.crt"]}
            await found.pod("after", SHARE)


async def test_a_new_authority_is_told_long_before_it_signs() -> None:
    """Four years later there are two authorities, and for a day the old one still signs."""
    port, clock = free_port(), LaterClock(-2)
    begun = datetime.now(UTC) - timedelta(days=4 * 365 + 10)
    old = renewed(Bundle(), place(port).names, begun)
    parts = (old.trusted, old.keys, old.certificate, old.key)
    data = dict(zip(("ca.crt", "ca.key", "tls.crt", "tls.key"), map(coded, parts), strict=True))
    async with cluster() as found:
        await install(found, place(port))
        await found.api.create("secrets", {"metadata": {"name": SECRET}, "data": data}, NAMESPACE)
        async with replica(found, port, clock):
            new, before = x509.load_pem_x509_certificates(kept(found)["ca.crt"])
            assert trusted(found) == {kept(found)["ca.crt"]}
            first = kept(found)["tls.crt"]
            x509.load_pem_x509_certificate(first).verify_directly_issued_by(before)
            clock.ahead = timedelta()
            await until(lambda: kept(found)["tls.crt"] != first)
            second = kept(found)["tls.crt"]
            x509.load_pem_x509_certificate(second).verify_directly_issued_by(new)
            await until_served(port, second)
            await found.pod("after", SHARE)


async def test_replicas_that_start_together_agree() -> None:
    """They make one Secret, all serve from it, and none overwrites another's."""
    ports = [free_port() for _ in range(3)]
    async with cluster() as found:
        await install(found, place(ports[0]))
        async with contextlib.AsyncExitStack() as stack:
            endpoint = place(ports[0])
            await asyncio.gather(
                *(
                    stack.enter_async_context(replica(found, port, endpoint=endpoint))
                    for port in ports
                )
            )
            pem = kept(found)["tls.crt"]
            for port in ports:
                await until_served(port, pem)
            assert trusted(found) == {kept(found)["ca.crt"]}
            before = found.api.store.revision
            await asyncio.sleep(0.3)
            assert found.api.store.revision == before


async def test_what_somebody_changes_is_put_right() -> None:
    """An emptied authority, a new configuration, and our Secret damaged or emptied."""
    port = free_port()
    async with cluster() as found:
        await install(found, place(port))
        async with replica(found, port):
            await found.api.delete(f"{KINDS[0]}.{GROUP}", "", "partage")
            fresh = installation(place(port), Context.of(Settings(), FAMILIES), Admission())[0]
            await found.api.create(f"{KINDS[0]}.{GROUP}", fresh)
            await until(lambda: trusted(found) == {kept(found)["ca.crt"]})
            for data in ({"ca.key": coded(b"nonsense")}, None):
                before = kept(found)["ca.crt"]
                await found.api.patch("secrets", NAMESPACE, SECRET, {"data": data})
                await until(lambda: found.stored(SECRET, "secrets", NAMESPACE).get("data"))
                await until(lambda before=before: kept(found)["ca.crt"] != before)
                await until(lambda: trusted(found) == {kept(found)["ca.crt"]})
            await until_served(port, kept(found)["tls.crt"])  # trusted first
            await found.pod("after", SHARE)


async def test_a_change_of_another_at_the_same_moment_is_followed_at_once() -> None:
    """The webhook serves with a new authority next, so the API server has to trust it by then."""
    async with cluster() as found:
        await install(found, place(443))
        client = await found.client()
        write, others = client.patch, ["1", "2"]

        async def patch(*args: Any, **options: Any) -> Any:
            if others:
                change = {"metadata": {"labels": {"changed": others.pop()}}}
                await found.api.patch(f"{KINDS[0]}.{GROUP}", "", "partage", change)
            return await write(*args, **options)

        client.patch = patch  # type: ignore[method-assign]
        kept_now = await Registration(client, "partage").keep(b"new", Context.of(Settings()))

        assert kept_now
        assert trusted(found) == {b"new"}


async def test_a_secret_of_somebody_else_is_left_alone() -> None:
    """The webhook names it in a refusal, and does not overwrite it."""
    port = free_port()
    async with cluster() as found:
        body = {
            "metadata": {"name": SECRET},
            "data": {"tls.crt": coded(b"theirs")},
        }
        await found.api.create("secrets", body, NAMESPACE)
        with pytest.raises(ValueError, match=f"{NAMESPACE}/{SECRET} holds something"):
            async with replica(found, port):
                pass
        assert kept(found) == {"tls.crt": b"theirs"}


async def test_a_secret_that_becomes_somebody_elses_ends_no_replica(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A running webhook serves on with the last good certificate, and says so."""
    port = free_port()
    async with cluster() as found:
        await install(found, place(port))
        async with replica(found, port):
            pem = kept(found)["tls.crt"]
            theirs = {
                "metadata": {"labels": {"app.kubernetes.io/part-of": None}},
                "data": {"ca.key": coded(b"theirs")},
            }
            await found.api.patch("secrets", NAMESPACE, SECRET, theirs)
            await until(lambda: "the present ones stay in use" in caplog.text)
            await until_served(port, pem)
            assert kept(found)["ca.key"] == b"theirs"


async def test_an_api_server_that_is_away_changes_nothing_of_what_is_served(
    tmp_path: Path,
) -> None:
    """The webhook still serves with the last good certificate."""
    port = free_port()
    async with cluster() as found:
        await install(found, place(port))
        async with replica(found, port):
            pem = kept(found)["tls.crt"]
            await found.api.stop()
            await asyncio.sleep(0.2)
            await until_served(port, pem)


async def test_renamed_resources_are_asked_about_at_once() -> None:
    """HAMi's names are settings: the API server's conditions follow them, and a bad map changes nothing."""
    port = free_port()
    async with cluster() as found:
        await install(found, place(port))
        async with replica(found, port, period=30.0, config_namespaces=("kube-system",)) as daemon:
            text = "nvidia:\n  resourceCountName: example.com/vgpu\n"
            config = {
                "metadata": {"name": "hami-scheduler-device"},
                "data": {"device-config.yaml": text},
            }
            await found.api.create("configmaps", config, "kube-system")
            await until(lambda: "example.com/vgpu" in str(hooks(found)[0]["matchConditions"]))
            bad = {"data": {"device-config.yaml": "nvidia: ["}}
            await found.api.patch("configmaps", "kube-system", "hami-scheduler-device", bad)
            await until(lambda: daemon._configs.refused)
            assert "example.com/vgpu" in daemon.context.owners
            await found.pod(
                "renamed", {"example.com/vgpu": "1"}, schedulerName="default-scheduler"
            )
            assert found.stored("renamed")["spec"]["schedulerName"] == "partage-scheduler"
            ca = ssl.create_default_context(cadata=kept(found)["ca.crt"].decode())
            async with found.http.get(f"{daemon.url}/metrics", ssl=ca) as answer:
                series = await answer.text()
            assert "partage_refused_config_maps 1.0" in series
            assert "partage_webhook_registered 1.0" in series


async def test_config_maps_that_are_named_set_something_and_no_others() -> None:
    """The webhook follows each by name, so that it needs no right to read the others."""
    port = free_port()
    async with cluster() as found:
        await install(found, place(port))
        for name in ("hami-scheduler-device", "another"):
            text = f"nvidia:\n  resourceCountName: example.com/{name}\n"
            config = {"metadata": {"name": name}, "data": {"device-config.yaml": text}}
            await found.api.create("configmaps", config, "kube-system")
        only = {"config_namespaces": ("kube-system",), "config_names": ("hami-scheduler-device",)}
        async with replica(found, port, period=30.0, **only) as daemon:
            await until(lambda: "hami-scheduler-device" in str(hooks(found)[0]["matchConditions"]))
            assert "example.com/another" not in daemon.context.owners


async def test_certificates_of_somebody_else_are_only_served(tmp_path: Path) -> None:
    """With given files the webhook makes no Secret and writes no configuration."""
    port = free_port()
    bundle = renewed(Bundle(), place(port).names, datetime.now(UTC))
    (tmp_path / "crt").write_bytes(bundle.certificate)
    (tmp_path / "key").write_bytes(bundle.key)
    async with cluster() as found:
        await install(found, place(port))
        tls = ServerTls(tmp_path / "crt", tmp_path / "key")
        async with replica(found, port, tls=tls):
            await until_served(port, bundle.certificate)
            other = renewed(Bundle(bundle.authorities), place(port).names, datetime.now(UTC))
            (tmp_path / "key").write_bytes(other.key)
            (tmp_path / "crt").write_bytes(other.certificate)
            await until_served(port, other.certificate)
        assert found.api.store.get("secrets", NAMESPACE, SECRET) is None
        assert trusted(found) == {b""}


PROGRAM = (sys.executable, "-m", "partage.cli.main", "webhook")


async def test_the_command_serves_until_sigterm(tmp_path: Path) -> None:
    """It listens, and ends cleanly."""
    kubeconfig, port = tmp_path / "kubeconfig", free_port()
    async with cluster() as found:
        await install(found, place(port))
        write_kubeconfig(kubeconfig, found.url)
        process = await asyncio.create_subprocess_exec(
            *PROGRAM,
            "--kubeconfig",
            str(kubeconfig),
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--url",
            f"https://127.0.0.1:{port}",
            stdout=PIPE,
            stderr=PIPE,
            env={**os.environ},
        )
        assert process.stderr is not None
        async with asyncio.timeout(PATIENCE):
            while b"listening on" not in (line := await process.stderr.readline()):
                assert line
            await found.pod("share", SHARE)
            process.send_signal(signal.SIGTERM)
            _, errors = await process.communicate()
        assert process.returncode == 0, errors
        assert b"Traceback" not in errors
        assert b"PRIVATE" not in errors


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--tls-cert", "{file}"], "--tls-cert and --tls-key go together"),
        (["--url", "http://x"], "'http://x' is no URL of the form https://host:port"),
        (["--tls-cert", "{file}", "--tls-key", "{file}"], "TLS files"),
        (["--kubeconfig", "{file}"], "{file}"),
    ],
    ids=["no key", "plain url", "broken files", "broken kubeconfig"],
)
async def test_what_cannot_be_used_is_refused_by_name(
    tmp_path: Path, arguments: list[str], words: str
) -> None:
    """Exit 2, one message, no traceback."""
    file, kubeconfig = tmp_path / "empty", tmp_path / "kubeconfig"
    file.write_text("")
    write_kubeconfig(kubeconfig, "http://127.0.0.1:1")
    given = [text.format(file=file) for text in arguments]
    process = await asyncio.create_subprocess_exec(
        *PROGRAM, "--kubeconfig", str(kubeconfig), *given, stdout=PIPE, stderr=PIPE
    )
    async with asyncio.timeout(PATIENCE):
        _, errors = await process.communicate()
    assert process.returncode == 2
    assert words.format(file=file) in errors.decode()
    assert "Traceback" not in errors.decode()


async def test_the_manifests_can_be_applied() -> None:
    """The API server accepts the printed manifests, switches included."""
    process = await asyncio.create_subprocess_exec(
        *PROGRAM,
        "--manifests",
        "--namespace",
        "gpu",
        "--exclude-namespace",
        "infra",
        "--writer",
        "system:serviceaccount:metax:plugin",
        "--break-glass",
        "sre",
        stdout=PIPE,
    )
    async with asyncio.timeout(PATIENCE):
        printed, _ = await process.communicate()
    objects = list(yaml.safe_load_all(printed))
    async with cluster() as found:
        for one in objects:
            kind = one["kind"].lower()
            plural = f"{kind[:-1]}ies" if kind.endswith("policy") else f"{kind}s"
            await found.api.create(f"{plural}.{GROUP}", one)
    assert len(objects) == 8
    text = str(objects[2]["spec"]["matchConditions"])
    assert "system:serviceaccount:metax:plugin" in text
    assert "system:serviceaccount:gpu:partage-agent" in text
    assert "'sre' in request.userInfo.groups" in text.replace("\\", "")
    excluded = objects[0]["webhooks"][0]["namespaceSelector"]["matchExpressions"][0]["values"]
    assert {"infra", "gpu", "kube-system"} <= set(excluded)
