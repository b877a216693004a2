"""`partage webhook` as a process beside a bed, asked about some of its pods."""

import subprocess
import sys
from typing import Any

import yaml
from bed import Bed, until
from churn import ASKED
from instances import Spawned
from trouble import WEBHOOK

from fakes.ports import free_port

__all__ = ["NAMESPACE", "install_webhook", "start_webhook", "trusted"]

NAMESPACE = "partage-system"


async def start_webhook(cluster: Bed) -> Spawned:
    """Install the configurations that it prints, and have it serve them.

    The bed's API server does not read `matchConditions`, and two calls for every pod would be
    most of what the run costs: it is asked about pods with a label, when they are created.
    """
    port = await install_webhook(cluster)
    made = await cluster.spawn(
        WEBHOOK,
        program=("webhook", "--namespace", NAMESPACE),
        port=port,
        more=("--url", f"https://127.0.0.1:{port}"),
    )
    await until(lambda: trusted(cluster), "the webhook is trusted")
    return made


async def install_webhook(cluster: Bed) -> int:
    """Install the configurations that the command prints; the port at which it will be asked."""
    head = {"metadata": {"name": NAMESPACE}}
    await cluster.create(head, "namespaces")
    printed = [sys.executable, "-m", "partage.cli.main", "webhook", "--manifests"]
    text = subprocess.run(printed, check=True, capture_output=True, text=True).stdout  # noqa: ASYNC221 # before anything runs
    port = free_port()
    for document in yaml.safe_load_all(text):
        kind = str(document["kind"])
        if kind.endswith("WebhookConfiguration"):
            path = kind.removesuffix("ingWebhookConfiguration").lower() + "e"
            url = f"https://127.0.0.1:{port}"
            for hook in document["webhooks"]:
                _narrowed(hook, f"{url}/webhook/{path}")
            resource = f"{kind.lower()}s.admissionregistration.k8s.io"
            await cluster.create(document, resource)
    return port


def _narrowed(hook: dict[str, Any], url: str) -> None:
    hook.pop("matchConditions", None)
    hook["objectSelector"] = {"matchLabels": {ASKED: "yes"}}
    hook["clientConfig"] = {"url": url}
    for rule in hook["rules"]:
        rule["operations"] = ["CREATE"]
        rule["resources"] = ["pods"]


def trusted(cluster: Bed) -> bool:
    """Whether it wrote its authority into both configurations."""
    hooks = [
        hook
        for kind in ("mutating", "validating")
        for record in cluster.server.store.all(
            f"{kind}webhookconfigurations.admissionregistration.k8s.io"
        )
        for hook in record.value["webhooks"]
    ]
    return all(hook["clientConfig"].get("caBundle") for hook in hooks)
