"""Every page with commands, typed line by line against a real `partage up`.

What each page needs to be there first, and the words that stand for its reader's own names, is in
`STORIES`; lines that nothing here can run are in `page_blocks.UNTYPED`, with the reason. Lines of
helm, and what follows them, are typed in tests/cluster against a genuine API server.
"""

import json
import shlex
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest
import trustme
from page_blocks import (
    BLOCKS,
    LINES,
    TRANSLATED,
    Line,
    is_manifest,
    is_shell,
    lines,
    on_genuine,
    typed,
    untyped,
)
from typist import Typist, is_service, quoted
from up_world import EXAMPLES, from_files, run, running

from kubectl import CACHE, PATIENCE, binaries
from partage.daemon.recording import RecordSettings

NODES = """---
{apiVersion: partage.io/v1alpha1, kind: SimulatedNode, metadata: {name: gpu-node-1},
 spec: {model: A100-SXM4-80GB, cards: 2, taints: [{key: away, effect: NoSchedule}]}}
---
{apiVersion: partage.io/v1alpha1, kind: SimulatedNode, metadata: {name: old-1},
 spec: {model: Tesla-T4, cards: 2, taints: [{key: away, effect: NoSchedule}]}}
---
{apiVersion: v1, kind: Node, metadata: {name: n1}}
---
{apiVersion: v1, kind: Namespace, metadata: {name: my-namespace}}
---
apiVersion: v1
kind: Pod
metadata: {name: my-pod, namespace: my-namespace}
spec:
  schedulerName: koord-scheduler
  containers:
    - {name: main, image: busybox, resources: {limits: {koordinator.sh/gpu: 6400}}}
"""
"""Beside the examples: what the pages call their reader's own. They take no other pods."""
DUMP = "docs/how-to/try-it-on-a-dump-of-your-cluster.md"
RUNS = "--for=jsonpath={.status.phase}=Running --timeout=240s"


class Story(NamedTuple):
    """How a page is followed.

    Attributes:
        before: lines typed first: what the page's prose has done by then, or another page's lines.
        words: what the page writes for its reader's own names, and what stands for it.
        shows: line to a text that must be in what it prints.
        then: line to one that is typed after it, until it succeeds; while it runs, of a program that
            runs until it is ended.
        alone: whether it changes the cluster for others, and so has one of its own.
    """

    before: tuple[str, ...] = ()
    words: Mapping[str, str] = {}
    shows: Mapping[str, str] = {}
    then: Mapping[str, str] = {}
    alone: bool = False


_QUICK = Story(
    shows={
        "kubectl get nodes,devices,pods -A": "qgpu-two-cards",
        "kubectl describe pod qgpu-two-cards": "CardNotIdle",
        "partage inspect host05": "A100-SXM4-80GB",
        "kubectl get pod half -o yaml": "partage.io/allocation",
        "kubectl logs tenth": "CUDA_DEVICE_MEMORY_LIMIT_0",
        "partage top cards": "Xid 79",
        "kubectl get events": "Xid 79",
        "partage inspect qgpu-t4-a": "share (hami)",
    },
    then={
        "kubectl apply": f"kubectl wait pod/half pod/tenth {RUNS}",
        "kubectl annotate node host05 simulate.partage.io/unhealthy=": "partage inspect host05 | grep Unhealthy && kubectl get events | grep 'Xid 79'",
        "kubectl annotate node host05 simulate.partage.io/unhealthy-": "! partage inspect host05 | grep Unhealthy",
    },
    alone=True,
)
STORIES = {
    "README.md": Story(
        shows={"partage explain": "try: ", "partage top": "WAITING", "partage inspect": "gpu 7"}
    ),
    "docs/quick-start.md": _QUICK,
    # Half of the only C500 whose plugin cuts it, which other pages' pods may have parts of.
    "docs/how-to/ask-for-half-a-gpu.md": Story(alone=True),
    "docs/how-to/ask-what-if.md": Story(
        before=tuple(line.text for line in typed(DUMP)[:2]),
        shows={"partage simulate cluster cluster.json devices.json --policy": "spread"},
    ),
    "docs/how-to/find-out-why-a-pod-waits.md": Story(shows={"kubectl partage explain": "try: "}),
    "docs/how-to/take-a-decision-again.md": Story(shows={"partage replay decisions": "same"}),
    "docs/how-to/upgrade.md": Story(before=("partage snapshot -o before.snapshot",)),
    "docs/how-to/run-the-agent.md": Story(
        words={"NODE": "n1", "/etc/partage/": "./"},
        then={"partage agent --node NODE": "kubectl get device n1"},
    ),
    "docs/how-to/run-the-scheduler.md": Story(
        before=("kubectl delete namespace partage-system",), alone=True
    ),
    "docs/how-to/certificates.md": Story(
        before=("partage webhook",),
        shows={"kubectl -n partage-system get secret": "notAfter="},
        alone=True,
    ),
    "docs/reference/asking.md": Story(
        before=(
            "partage completion zsh | grep compdef",
            "partage completion fish | grep 'complete --no-files --command partage'",
        )
    ),
    "docs/reference/doctor.md": Story(words={"sudo ": ""}),
    "docs/reference/up.md": Story(then={"kubectl annotate": "partage inspect trainer-0"}),
    "docs/reference/webhook.md": Story(alone=True),
}
"""Pages that need more than to be typed."""
PAGES = sorted(
    {
        line.page
        for line in LINES
        if not line.outline and not on_genuine(line) and not line.page.startswith(TRANSLATED)
    }
)


@contextmanager
def cluster(folder: Path) -> Iterator[Path]:
    """A real `partage up` with the examples; its kubeconfig."""
    (folder / "more.yaml").write_text(NODES, encoding="utf-8")
    kubeconfig = folder / "kubeconfig"
    with (folder / "up.log").open("w") as log:
        up = subprocess.Popen(
            [
                sys.executable,
                "-m",
                "partage.cli.main",
                "up",
                "-o",
                "json",
                "--kubeconfig",
                str(kubeconfig),
                "-f",
                str(folder / "more.yaml"),
            ],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            start_new_session=True,
        )
    try:
        assert up.stdout is not None
        told = up.stdout.readline()
        assert told, (folder / "up.log").read_text()
        where = json.loads(told)
        assert where["kubeconfig"] == str(kubeconfig)
        decided(where["api"])
        yield kubeconfig
        up.send_signal(signal.SIGTERM)
        assert up.wait(PATIENCE) == 0
    finally:
        if up.poll() is None:
            up.kill()
            up.wait()
        if up.stdout is not None:
            up.stdout.close()


def decided(api: str) -> None:
    """Wait until every pod has a node or a reason: the command says where it is though a slow machine has not decided yet."""
    ask = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    end = time.monotonic() + PATIENCE
    while True:
        with ask.open(f"{api}/api/v1/pods", timeout=PATIENCE) as answer:
            pods = json.load(answer)["items"]
        left = [
            pod["metadata"]["name"]
            for pod in pods
            if not pod["spec"].get("nodeName")
            if "PodScheduled" not in {one["type"] for one in pod["status"].get("conditions", ())}
        ]
        if not left:
            return
        assert time.monotonic() < end, left
        time.sleep(0.1)


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The cluster of all pages that leave it as it is."""
    with cluster(tmp_path_factory.mktemp("cluster")) as kubeconfig:
        yield kubeconfig


def kubectl() -> Path | None:
    """The newest there is."""
    found = binaries()[-1].values[0]
    return Path(found) if found else None


def prepared(reader: Typist) -> None:
    """Files that pages take for granted."""
    authority = trustme.CA()
    made = authority.issue_cert("127.0.0.1")
    made.private_key_pem.write_to_path(str(reader.folder / "tls.key"))
    made.cert_chain_pems[0].write_to_path(str(reader.folder / "tls.crt"))
    for block in BLOCKS:
        if block.page == "docs/reference/agent-discovery.md" and block.language == "yaml":
            (reader.folder / "devices.yaml").write_text(block.text, encoding="utf-8")
        if block.page == "docs/reference/up.md" and block.language == "yaml":
            (reader.folder / "nodes.yaml").write_text(block.text, encoding="utf-8")
        if block.page == "docs/quick-start.md" and block.language == "yaml":
            for name in ("half.yaml", "pods.yaml"):
                (reader.folder / name).write_text(block.text, encoding="utf-8")


def decisions(path: Path) -> None:
    """A record of what a scheduler decided over the examples."""

    async def story() -> None:
        found = from_files(EXAMPLES)
        record = RecordSettings(path, 2**30)
        async with running(found.simulated, found.objects, record=record) as world:
            assert await world.cluster.settled(PATIENCE)

    run(story())


def follow(page: str, story: Story, reader: Typist, *, able: bool) -> None:
    """Type a page; without a kubectl up to the first line that needs one, as the others may follow from it.

    Args:
        able: whether there is a kubectl.
    """
    for line in story.before:
        if not able and "kubectl" in line:
            return
        enter(line, reader, able=able)
    shown = dict(story.shows)
    for block in [one for one in BLOCKS if one.page == page]:
        if is_manifest(block) and page != "docs/quick-start.md":
            if not able:
                return
            apply(block.text, reader)
        for line in lines(block) if is_shell(block) else ():
            if line.outline or untyped(line) or on_genuine(line):
                continue
            if not able and "kubectl" in line.text:
                return
            after = " && ".join(
                said for start, said in story.then.items() if line.text.startswith(start)
            )
            said = enter(quoted(story.words, line.text), reader, able=able, after=after)
            for start in [one for one in shown if line.text.startswith(one)]:
                text = shown.pop(start)
                assert said is None or text in said, f"$ {line.text}\n{said}"
    assert not shown, "the page has no such line any more"


def enter(line: str, reader: Typist, *, able: bool, after: str = "") -> str | None:
    """What a line prints; None where it prints nothing or cannot be typed.

    Args:
        after: typed next, until it succeeds.
    """
    then = after if able else ""
    words = Line("", line).words
    if words[0] == "make":
        return reader.type(f"make -n {shlex.join(words[1:])}")
    if is_service(words):
        reader.serve(words, *options(words, reader.folder), then=then)
        return None
    said = reader.type(line)
    if then:
        reader.until(then)
    return said


def options(words: list[str], folder: Path) -> list[str]:
    """What keeps a program away from this machine's own files and gives it devices."""
    if words[1] != "agent":
        return []
    (folder / "host").mkdir(exist_ok=True)
    own = {"--host-root": "host", "--journal": "journal", "--nri-socket": "nri.sock"}
    if not {"--simulated", "--devices"} & {*words}:
        own["--simulated"] = "devices.yaml"
    return [part for name, path in own.items() for part in (name, str(folder / path))]


def apply(text: str, reader: Typist) -> None:
    """Have the cluster take manifests, and see their pods run."""
    file = reader.folder / "page.yaml"
    file.write_text(text, encoding="utf-8")
    made = reader.type("kubectl apply -f page.yaml -o name").split()
    for pod in [one for one in made if one.startswith("pod/")]:
        reader.type(f"kubectl wait {pod} {RUNS}")


@pytest.mark.parametrize("page", PAGES)
def test_every_line_of_a_page_does_what_it_says(
    page: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Commands end well, manifests are admitted and run, programs get ready and end."""
    story = STORIES.get(page, Story())
    binary = kubectl()
    programs = {"kubectl": binary} if binary else {}

    def go(kubeconfig: Path) -> None:
        folder = tmp_path / "reader"
        folder.mkdir()
        reader = Typist(folder, kubeconfig, **programs)
        prepared(reader)
        if page == "docs/how-to/take-a-decision-again.md":
            decisions(folder / "decisions")
        follow(page, story, reader, able=binary is not None)

    if story.alone:
        with cluster(tmp_path) as own:
            go(own)
    else:
        go(request.getfixturevalue("shared"))
    if binary is None and (
        any("kubectl" in line.text for line in typed(page))
        or any(is_manifest(block) for block in BLOCKS if block.page == page)
    ):
        pytest.skip(f"typed up to the first line with kubectl: no kubectl in {CACHE}")


def test_no_story_is_of_a_page_without_lines() -> None:
    """A page that went takes its story with it."""
    assert set(STORIES) <= set(PAGES)
