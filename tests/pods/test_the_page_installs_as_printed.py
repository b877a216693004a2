"""docs/how-to/install.md, typed as printed on two empty nodes, to the first pod; then uninstalled, and once more.

`tests/pods/images` built the images that the page has its reader build and push, and the nodes have them.
"""

import re
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pods_cluster
import pytest
import yaml
from control_plane import HELM, KUBERNETES
from page_blocks import BLOCKS, LINES, ROOT
from pods_cluster import SYSTEM, Cluster
from typist import Typist

pytestmark = pytest.mark.timeout(1800)
PAGE, USERS, LEAVING = (
    f"docs/how-to/{one}.md" for one in ("install", "ask-for-half-a-gpu", "uninstall")
)
WHOLE = {"partage-scheduler": (2, 2), "partage-webhook": (2, 1), "partage-agent": (2, 1)}
"""What step 4 of the page has its reader look for: pods by the beginning of their names, and containers of each."""


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """The nodes, with nothing of Partage's on them."""
    folder = Path(tempfile.mkdtemp(prefix="page-", dir="/tmp"))  # its sockets need a short path
    try:
        with pods_cluster.cluster(folder) as made:
            made.kubectl("apply", "-f", str(Path(__file__).parent / "no_pulls.yaml"))
            yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def printed(page: str, beginning: str) -> str:
    """The command line of a page that begins so; in a block, or within a sentence."""
    lines = [one.text for one in LINES if one.page == page]
    lines += re.findall(r"(?<!`)`([^`\n]+)`(?!`)", (ROOT / page).read_text())
    return next(one for one in lines if one.startswith(beginning))


def manifest(page: str, what: str) -> str:
    """The YAML block of a page that contains a text."""
    return next(
        one.text
        for one in BLOCKS
        if one.page == page and one.language == "yaml" and what in one.text
    )


def containers(cluster: Cluster, name: str) -> list[int]:
    """The number of ready containers in each pod whose name begins so."""
    found: list[dict[str, Any]] = cluster.pods()
    return [
        sum(status["ready"] for status in one["status"].get("containerStatuses", ()))
        for one in found
        if one["metadata"]["name"].startswith(f"{name}-")
        and "deletionTimestamp" not in one["metadata"]
    ]


@pytest.mark.parametrize("time", ["first", "second"])
def test_the_page_leads_to_a_pod_with_half_a_card(
    cluster: Cluster, tmp_path: Path, time: str
) -> None:
    """Every line does what its step says, and uninstalling leaves nothing in the way of the next reader."""
    typist = Typist(
        tmp_path, cluster.plane.kubeconfig(), kubectl=KUBERNETES / "kubectl", helm=HELM
    )

    def typed(line: str) -> str:
        code, shown = typist.run(line)
        assert code == 0, f"{line}: {shown}\n{cluster.told()}"
        return shown

    typed(printed(PAGE, "helm install partage "))  # step 2
    (tmp_path / "agent.yaml").write_text(manifest(PAGE, "simulated:"))  # step 3
    typed(printed(PAGE, "helm upgrade partage "))
    for name, (pods, ready) in WHOLE.items():  # step 4
        cluster.eventually(
            f"{pods} pods {name} are ready",
            lambda name=name, all_=[ready] * pods: containers(cluster, name) == all_,
        )
    cluster.eventually(
        "every card is listed", lambda: typed("partage top cards").count(" ok") == 16
    )
    cluster.eventually(
        "the totals are written",
        lambda: "0 errors, 0 warnings" in typist.run(printed(PAGE, "partage doctor"))[1],
        60,
    )

    (tmp_path / "pod.yaml").write_text(manifest(USERS, "{name: half-hami}"))  # step 5
    typed("kubectl apply -f pod.yaml")
    typed("kubectl wait --for=condition=Ready pod/half-hami --timeout=120s")
    assert re.search(r"gpu \d+ +main +50%", typed(printed(PAGE, "partage explain")))
    assert "partage-kube-scheduler" in typed(printed(PAGE, "kubectl -n partage-system get lease"))
    assert "partage_decisions_total" in typed(printed(PAGE, "kubectl get --raw"))

    typed("kubectl delete pod half-hami --grace-period=1")
    assert "half-hami" not in typed(printed(LEAVING, "partage top pods"))
    typed(printed(LEAVING, "helm uninstall partage -n"))
    cluster.eventually("no pod is left", lambda: not cluster.pods())
    assert yaml.safe_load(typed(f"kubectl get secrets -n {SYSTEM} -o yaml"))["items"] == []
