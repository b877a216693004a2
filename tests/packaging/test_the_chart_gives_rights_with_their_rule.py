"""A right goes with what it is for: an operator who switches a rule off takes its rights away."""

import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from charts import HELM, generate, needs_helm, objects_of

ROOT = Path(__file__).parents[2]
pytestmark = needs_helm


@pytest.mark.parametrize(("seconds", "listed"), [("60", True), ("300", True), ("0", False)])
def test_the_right_to_list_leases_goes_with_the_rule(seconds: str, listed: bool) -> None:  # noqa: FBT001 # a case
    """Agents' Leases are listed in their namespace and nowhere else, and only where they decide."""
    text = generate.rendered(
        str(HELM), "default", "--set", f"scheduler.agentSilenceSeconds={seconds}"
    )
    objects = objects_of(text)
    rules = [
        (one["kind"], one["metadata"].get("namespace"), rule["verbs"])
        for one in objects
        if one["kind"] in ("Role", "ClusterRole")
        and "partage-scheduler" in one["metadata"]["name"]
        for rule in one["rules"]
        if rule["resources"] == ["leases"] and "resourceNames" not in rule
    ]

    assert rules == ([("Role", "kube-node-lease", ["list"])] if listed else [])
    assert f"--agent-silence={seconds}" in text


@pytest.mark.parametrize("seconds", ["29", "-1", "1m"])
def test_a_silence_that_no_agent_keeps_is_refused(seconds: str) -> None:
    """Agents renew every ten to twelve seconds, and may miss one."""
    with pytest.raises(subprocess.CalledProcessError):
        generate.rendered(
            str(HELM), "default", "--set", f"scheduler.agentSilenceSeconds={seconds}"
        )


@pytest.mark.parametrize("certificate", ["", "partage-system/webhook"])
def test_with_another_certificate_the_webhook_changes_nothing(certificate: str) -> None:
    """An account that may change a webhook configuration reads all that is written; no token of Partage's can then."""
    text = generate.rendered(str(HELM), "default", "--set", f"webhook.certificate={certificate}")
    objects = objects_of(text)
    rights = {
        (resource, verb)
        for one in objects
        if one["kind"] in ("Role", "ClusterRole") and one["metadata"]["name"] == "partage-webhook"
        for rule in one["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    bound = {
        one["kind"]
        for one in objects
        if one["metadata"]["name"] == "partage-webhook" and one["kind"].endswith("Binding")
    }
    injected = {
        one["kind"]: one["metadata"]
        .get("annotations", {})
        .get("cert-manager.io/inject-ca-from", "")
        for one in objects
        if one["kind"].endswith("WebhookConfiguration") and one.get("webhooks")
    }
    made = [
        one for one in objects if one["kind"] == "Secret" and "webhook" in one["metadata"]["name"]
    ]
    (pod,) = (
        one["spec"]["template"]["spec"]
        for one in objects
        if one["kind"] == "Deployment" and one["metadata"]["name"] == "partage-webhook"
    )

    reads = {("configmaps", "list"), ("configmaps", "watch")}
    assert (rights == reads) is bool(certificate)
    assert ("ClusterRoleBinding" in bound) is not bool(certificate)
    assert set(injected.values()) == {certificate}
    assert len(injected) == 2
    assert bool(made) is not bool(certificate)
    mounted = [one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one]
    assert mounted == (["partage-webhook-tls"] if certificate else [])
    assert any("--tls-cert" in one for one in pod["containers"][0]["args"]) is bool(certificate)
    command = [sys.executable, "-m", "partage.cli.main", *pod["containers"][0]["args"], "--help"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


def test_the_certificate_of_the_page_is_the_charts() -> None:
    """With the values of the page the webhook serves from the Secret of its Certificate, which is good for its Service."""
    page = (ROOT / "docs/how-to/certificates.md").read_text("utf-8")
    block = page.partition("    ```yaml\n")[2].partition("    ```")[0]
    issuer, certificate = objects_of(textwrap.dedent(block))
    (upgrade,) = re.findall(r"`(helm upgrade .*?)`", page)
    given = [one for one in upgrade.split() if one.startswith("webhook.")]

    text = generate.rendered(
        str(HELM), "default", *(word for one in given for word in ("--set", one))
    )

    objects = objects_of(text)
    (pod,) = (
        one["spec"]["template"]["spec"]
        for one in objects
        if one["kind"] == "Deployment" and one["metadata"]["name"] == "partage-webhook"
    )
    called = {
        f"{hook['clientConfig']['service']['name']}.{hook['clientConfig']['service']['namespace']}.svc"
        for one in objects
        if one["kind"].endswith("WebhookConfiguration")
        for hook in one.get("webhooks") or ()
    }
    named = f"{certificate['metadata']['namespace']}/{certificate['metadata']['name']}"
    assert len(given) == 2
    assert f"webhook.certificate={named}" in given
    mounted = [one["secret"]["secretName"] for one in pod["volumes"] if "secret" in one]
    assert mounted == [certificate["spec"]["secretName"]]
    assert set(certificate["spec"]["dnsNames"]) == called
    assert certificate["spec"]["issuerRef"] == {
        "kind": issuer["kind"],
        "name": issuer["metadata"]["name"],
    }
    # What the release makes now it deletes at the hand-over.
    kept = objects_of(generate.rendered(str(HELM), "default"))
    secrets = [
        {one["metadata"]["name"] for one in some if one["kind"] == "Secret"}
        for some in (kept, objects)
    ]
    assert secrets[0] - secrets[1] == {"partage-webhook-tls"}
