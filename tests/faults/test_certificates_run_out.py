"""Scenario 9: the webhook is away, or serves a certificate that has ended.

A replica renews its certificate a month before it ends. That it serves one that has ended takes a
month of failures: here it cannot read its Secret, and its certificate is a hundred days old.
"""

import logging
import ssl
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from bed import PATIENCE, WHOLE, Bed, bed, node, told, until
from churn import ASKED
from webhook_process import NAMESPACE, install_webhook, start_webhook, trusted

from fakes.wire import Fault
from partage.apiserver import ApiError
from partage.daemon.webhook import WebhookDaemon, WebhookOptions
from partage.kube.clock import SystemClock
from partage.kube.retry import Backoff
from partage.kube.sender import ClientSettings
from partage.webhook.installation import Endpoint

DEVICE_POD = {"labels": {ASKED: "yes"}}
ONE_TRY = ClientSettings(attempts=1, backoff=Backoff(base=0.01, cap=0.05))


class OldClock(SystemClock):
    """The machine's clock, so many days ago."""

    def __init__(self, days: float) -> None:
        super().__init__()
        self.behind = timedelta(days=days)

    def now(self) -> datetime:
        """See `Clock`."""
        return datetime.now(UTC) - self.behind


async def refusal(cluster: Bed, name: str) -> str:
    """What the API server says to a new device pod; nothing where it is there."""
    try:
        await cluster.pod(name, WHOLE, meta=DEVICE_POD)
    except ApiError as error:
        return str(error)
    return ""


async def admitted(cluster: Bed, name: str) -> None:
    """Try to create a device pod again and again, as controllers do, until it is there."""
    end = time.monotonic() + PATIENCE
    while await refusal(cluster, name):
        assert time.monotonic() < end


async def series(cluster: Bed, url: str, name: str) -> float:
    """What the webhook says of itself, to a client that does not check its certificate."""
    unminding = ssl.create_default_context()
    unminding.check_hostname, unminding.verify_mode = False, ssl.CERT_NONE
    async with cluster.http.get(f"{url}/metrics", ssl=unminding) as answer:
        rows = (await answer.text()).splitlines()
    return next(float(row.rpartition(" ")[2]) for row in rows if row.startswith(f"{name} "))


async def test_a_certificate_that_has_ended_is_refused_and_replaced(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Device pods stay out with a reason, others come; with the Secret back, all is well."""
    clock = OldClock(days=100)
    async with bed(node(cards=1)) as cluster:
        await cluster.daemon()
        await cluster.led()
        port = await install_webhook(cluster)
        client = await cluster.client(clock=clock, settings=ONE_TRY)
        endpoint = Endpoint(url=f"https://127.0.0.1:{port}", namespace=NAMESPACE)
        options = WebhookOptions(port=port, endpoint=endpoint, period=0.1)
        async with WebhookDaemon(client, options) as webhook:
            await until(lambda: trusted(cluster), "the webhook is trusted")
            cluster.wire.fail(
                Fault(path="/secrets", status=500, reason="InternalError", times=10**6)
            )
            clock.behind = timedelta()
            with caplog.at_level(logging.WARNING, "partage.daemon"):
                await until(
                    lambda: "certificates cannot be renewed now" in caplog.text, "the log says so"
                )

            said = await refusal(cluster, "device")
            await cluster.pod("plain", {"cpu": "1"}, schedulerName="nobody")

            assert "failed calling webhook" in said
            assert "certificate has expired" in said
            end = "partage_webhook_certificate_end_seconds"
            assert await series(cluster, webhook.url, end) < time.time()
            started = time.monotonic()
            cluster.wire.heal()
            await admitted(cluster, "device")
            await cluster.bound("device")
            told("9: certificate ended: next Binding", time.monotonic() - started)
            assert await series(cluster, webhook.url, end) > time.time() + 86_400
            await cluster.sound("9: certificate ended")


async def test_a_webhook_that_was_away_is_asked_again(tmp_path: Path) -> None:
    """It crashes, device pods stay out meanwhile, and the next one comes in as soon as it is back."""
    async with bed(node(cards=2), folder=tmp_path) as cluster:
        await cluster.daemon()
        await cluster.led()
        webhook = await start_webhook(cluster)
        await admitted(cluster, "early")
        await cluster.bound("early")
        await webhook.kill()

        said = await refusal(cluster, "device")
        await cluster.pod("plain", {"cpu": "1"}, schedulerName="nobody")
        await cluster.sound("9: webhook away")

        assert "failed calling webhook" in said
        started = time.monotonic()
        await webhook.start()
        await admitted(cluster, "device")
        await cluster.bound("device")
        told("9: webhook started again: next Binding", time.monotonic() - started)
        await cluster.sound("9: webhook back")
