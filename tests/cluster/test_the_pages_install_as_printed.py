"""Lines of the pages that install, upgrade or look at an installation, typed at a genuine API server.

Helm and kubectl are genuine; nothing runs what a Deployment asks for, so what the pages wait for
is reported by hand. Lines for a reader without an installation are typed in tests/embedded.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from control_plane import HELM, KUBERNETES, ControlPlane, control_plane
from page_blocks import BLOCKS, LINES, ROOT, TRANSLATED, on_genuine, untyped
from stack import Stack, deleted_at_first_try
from typist import Typist

RUNNING = "docs/how-to/stay-available.md"
PAGES = sorted(
    {line.page for line in LINES if on_genuine(line) and not line.page.startswith(TRANSLATED)}
    - {RUNNING}
)
INSTALL = "helm install partage deploy/helm/partage -n partage-system --create-namespace"
MONITORING = {"PodMonitor": "podmonitors", "PrometheusRule": "prometheusrules"}
"""Definitions of the Prometheus operator that the chart makes objects of."""


class Story(NamedTuple):
    """How a page is followed.

    Attributes:
        before: lines typed first: what is in the cluster of the page's reader.
        then: line to one that is typed before it: what nothing here does by itself.
    """

    before: tuple[str, ...] = ()
    then: Mapping[str, str] = {}


def deployment(name: str, namespace: str) -> str:
    """A line that makes another scheduler's Deployment."""
    return f"kubectl -n {namespace} create deployment {name} --image=example.com/{name}"


ROLLED = (
    "kubectl -n partage-system patch deployment partage-scheduler --subresource=status --type=merge -p "
    """'{"status": {"observedGeneration": 2, "replicas": 2, "updatedReplicas": 2, """
    """"readyReplicas": 2, "availableReplicas": 2}}'"""
)
"""What the Deployment's controller and two kubelets would report."""
FORGOTTEN = (
    "kubectl get devices.scheduling.koordinator.sh,gpus.elasticgpu.io && "
    "kubectl delete crd devices.scheduling.koordinator.sh gpus.elasticgpu.io"
)
"""The definitions, which uninstalling keeps; listed first, as the page about it does."""
STORIES = {
    "docs/from/hami.md": Story(
        before=(
            deployment("hami-scheduler", "kube-system"),
            "kubectl create -f hami.yaml",
        )
    ),
    "docs/from/koordinator.md": Story(
        before=(
            "kubectl create namespace koordinator-system",
            # Koordinator brings no other definition of ours.
            "helm template p deploy/helm/partage -s templates/crds.yaml --set crds.elasticgpu=false | kubectl apply -f -",
            deployment("koord-scheduler", "koordinator-system"),
        )
    ),
    "docs/from/metax.md": Story(before=("kubectl create namespace koordinator-system",)),
    "docs/how-to/beside-an-autoscaler.md": Story(
        before=(f"{deployment('cluster-autoscaler', 'kube-system')} -- ./cluster-autoscaler",)
    ),
    "docs/how-to/beside-the-gpu-operator.md": Story(before=("kubectl create -f node.yaml",)),
    "docs/how-to/install.md": Story(
        then={
            "kubectl -n partage-system get lease": "kubectl apply -f lease.yaml",
            # Another way to install, thus in another cluster: what is left of the one before goes.
            "helm install hami": f"helm uninstall partage -n partage-system --no-hooks && {FORGOTTEN}",
            "kubectl apply -k": f"helm uninstall hami -n kube-system --no-hooks && {FORGOTTEN}",
        }
    ),
    "docs/how-to/trace-a-pod.md": Story(
        before=(INSTALL,), then={"kubectl get pod my-pod": "kubectl create -f pod.yaml"}
    ),
    "docs/how-to/upgrade.md": Story(
        before=(INSTALL,), then={"kubectl -n partage-system rollout": ROLLED}
    ),
    "docs/how-to/uninstall.md": Story(before=("kubectl apply -k deploy/kustomize/default",)),
    "docs/how-to/watch-it.md": Story(before=("kubectl create -f monitoring.yaml", INSTALL)),
}


@pytest.fixture
def plane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ControlPlane]:
    """An API server of the page's own, without controllers."""
    with control_plane(tmp_path_factory.mktemp("pages")) as made:
        yield made


def definition(kind: str, plural: str) -> dict[str, Any]:
    """A definition of the Prometheus operator that takes anything."""
    group = "monitoring.coreos.com"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural},
            "versions": [
                {
                    "name": "v1",
                    "served": True,
                    "storage": True,
                    "schema": {"openAPIV3Schema": schema},
                }
            ],
        },
    }


def prepared(reader: Typist) -> None:
    """Files of what is in the cluster already."""
    hook = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "hami-webhook"},
    }
    lease = {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {"name": "partage-scheduler", "namespace": "partage-system"},
    }
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": "default", "namespace": "default"},
    }
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "my-pod", "annotations": {"partage.io/traceparent": "00-0-0-01"}},
        "spec": {"containers": [{"name": "main", "image": "busybox"}]},
    }
    files = {
        "pod.yaml": [account, pod],
        "node.yaml": [{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1"}}],
        "hami.yaml": [hook],
        "lease.yaml": [lease],
        "monitoring.yaml": [definition(*one) for one in MONITORING.items()],
    }
    for name, documents in files.items():
        (reader.folder / name).write_text(yaml.safe_dump_all(documents), encoding="utf-8")


@pytest.mark.parametrize("page", PAGES)
def test_every_line_of_a_page_does_what_it_says(
    page: str, plane: ControlPlane, tmp_path: Path
) -> None:
    """Each ends well, in order, and no definition lacked what its deletion needs; see `listed`."""
    reader = Typist(tmp_path, plane.kubeconfig(), helm=HELM, kubectl=KUBERNETES / "kubectl")
    prepared(reader)
    story = STORIES.get(page, Story())
    for line in story.before:
        reader.type(line)
    for line in LINES:
        if line.page == page and on_genuine(line) and not untyped(line):
            for start, first in story.then.items():
                if line.text.startswith(start):
                    reader.type(first)
            reader.type(line.text)
    assert deleted_at_first_try(plane)


@pytest.mark.parametrize("line", [one for one in LINES if one.page == RUNNING], ids=str)
def test_a_running_installation_is_looked_at(line: Any, stack: Stack, tmp_path: Path) -> None:
    """The Lease and the label of one pod show the leader."""
    reader = Typist(tmp_path, stack.plane.kubeconfig(), kubectl=KUBERNETES / "kubectl")

    said = reader.type(line.text)

    assert "scheduler" in said


def test_helm_takes_the_values_of_the_page(tmp_path: Path) -> None:
    """The agent's blocks render a DaemonSet each; a value that is not there would be refused."""
    page = [b for b in BLOCKS if b.page == "docs/how-to/install.md" and b.language == "yaml"]
    blocks = [b for b in page if b.first == "agent:"]
    reader = Typist(tmp_path, tmp_path / "none", helm=HELM)
    assert blocks
    for block in blocks:
        (tmp_path / "agent.yaml").write_text(block.text, encoding="utf-8")

        made = yaml.safe_load_all(
            reader.type("helm template partage deploy/helm/partage -f agent.yaml")
        )

        assert [one["kind"] for one in made if one].count("DaemonSet") == 1
    assert (ROOT / "deploy/helm/partage").is_dir()
