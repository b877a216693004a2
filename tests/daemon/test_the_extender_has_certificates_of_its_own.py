"""One Secret secures both ends of the extender's connection; reads need no certificate."""

import base64
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from click.testing import CliRunner
from daemon_world import world

from fakes.ports import free_port
from partage.cli.scheduler import scheduler
from partage.daemon.certificates import SECRETS, again, mutual_tls
from partage.daemon.options import SchedulerOptions
from partage.daemon.scheduler import SchedulerDaemon
from partage.extender.server import Faces
from partage.serving.access import Access

NAMESPACE, SECRET = "default", "extender-tls"
BODY = {
    "Pod": {
        "metadata": {"name": "a", "namespace": "default", "uid": "u"},
        "spec": {"containers": []},
    },
    "NodeNames": [],
}


@pytest.mark.parametrize("required", [True, False])
async def test_who_shows_the_secret_may_call_and_nobody_else(
    tmp_path: Path, *, required: bool
) -> None:
    """200 with the certificate; 401 or no answer without; the plain port answers reads and refuses verbs."""
    async with world() as here:
        client = await here.client()
        read, probes = free_port(), free_port()
        async with mutual_tls(client, NAMESPACE, SECRET, ["127.0.0.1"], required=required) as tls:
            options = SchedulerOptions(
                faces=Faces(Access(certificates=True)),
                tls=tls,
                read_port=read,
                health_port=probes,
                learning=None,
            )
            async with SchedulerDaemon(client, options) as daemon:
                held = here.stored(SECRET, "secrets", NAMESPACE)
                for key in ("ca.crt", "tls.crt", "tls.key"):
                    (tmp_path / key).write_bytes(base64.b64decode(held["data"][key]))
                stranger = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
                caller = ssl.create_default_context(cafile=str(tmp_path / "ca.crt"))
                caller.load_cert_chain(tmp_path / "tls.crt", tmp_path / "tls.key")
                plain = f"http://127.0.0.1:{read}"
                async with aiohttp.ClientSession() as http:
                    for url, context, status in (
                        (daemon.url, caller, 200),
                        (daemon.url, stranger, 401),
                        (plain, None, 401),
                        (plain.replace("http:", "https:"), stranger, 401),
                    ):
                        where = f"{url}/scheduler/filter"
                        if url == daemon.url and context is stranger and required:
                            with pytest.raises(aiohttp.ClientError):
                                await http.get(f"{url}/healthz", ssl=context)
                            continue
                        async with http.post(where, json=BODY, ssl=context or True) as answer:
                            assert answer.status == status, url
                    for path in ("/readyz", "/metrics"):
                        async with http.get(plain + path) as answer:
                            assert answer.status == 200
                        secure = f"{plain.replace('http:', 'https:')}{path}"
                        async with http.get(secure, ssl=stranger) as answer:
                            assert answer.status == 200
                    alone = f"http://127.0.0.1:{probes}"
                    for path, status in (("/healthz", 200), ("/readyz", 200), ("/metrics", 404)):
                        async with http.get(alone + path) as answer:
                            assert answer.status == status


@pytest.mark.parametrize(
    ("given", "told"),
    [
        pytest.param(["--tls-secret=s"], "--tls-host", id="no host"),
        pytest.param(["--tls-host=h", "--plain"], "--tls-secret", id="no secret"),
        pytest.param(["--tls-secret=s", "--tls-host=h", "--plain"], "--plain", id="open too"),
        pytest.param(["--plain", "--read-port=9"], "--read-port", id="verbs on the plain port"),
    ],
)
def test_options_that_do_not_go_together_are_named(
    given: list[str], told: str, tmp_path: Path
) -> None:
    """Exit 2 and one sentence, before any port is open."""
    config = tmp_path / "config"
    config.write_text(
        '{"apiVersion":"v1","kind":"Config","current-context":"x","contexts":[{"name":"x","context":'
        '{"cluster":"x","user":"x"}}],"clusters":[{"name":"x","cluster":{"server":'
        '"http://127.0.0.1:1"}}],"users":[{"name":"x","user":{}}]}'
    )
    done = CliRunner().invoke(scheduler, ["--kubeconfig", str(config), *given])
    assert done.exit_code == 2
    assert told in done.output


async def test_whoever_made_the_secret_can_remove_it() -> None:
    """Helm's ownership marks outlive the filling; without them an uninstall would leave keys behind."""
    async with world() as here:
        client = await here.client()
        notes = {
            "meta.helm.sh/release-name": "partage",
            "meta.helm.sh/release-namespace": NAMESPACE,
        }
        labels = {"app.kubernetes.io/managed-by": "Helm", "app.kubernetes.io/part-of": "partage"}
        head = {"name": SECRET, "namespace": NAMESPACE, "annotations": notes, "labels": labels}
        empty = {"apiVersion": "v1", "kind": "Secret", "metadata": head, "type": "Opaque"}
        await client.create(SECRETS, empty, namespace=NAMESPACE, into=dict[str, Any])

        async with mutual_tls(client, NAMESPACE, SECRET, ["127.0.0.1"]):
            held = here.stored(SECRET, "secrets", NAMESPACE)

        assert held["data"]["tls.key"]
        assert (held["metadata"]["annotations"], held["metadata"]["labels"]) == (notes, labels)


async def test_a_fault_of_ours_does_not_end_the_renewals(caplog: pytest.LogCaptureFixture) -> None:
    """Otherwise the certificate would end weeks later, and no caller would be served."""

    async def renew() -> None:
        raise RuntimeError("a fault")

    await again(renew)
    assert caplog.records[0].exc_info
    assert "the present ones stay in use" in caplog.text
