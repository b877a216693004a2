"""NVIDIA's device plugin on a node whose agent serves the same name: genuine both, and the kubelet; the driver is a stand-in.

The plugin loads the driver's library, `nvml_of_two_cards.c` here, which reports the cards that the agent has.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import stack as partage_stack
from genuine_node import (
    LAYOUT,
    NEEDS,
    SLOW,
    Node,
    by_nri,
    complete,
    container,
    environment,
    granted,
    pod,
    running,
)
from neighbours import NvidiaPlugin, program
from stack import eventually

from partage.agent.notes import Code, read_notes
from partage.vendors import names

GPU = "nvidia.com/gpu"
pytestmark = NEEDS


@pytest.fixture(scope="module")
def cuda(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """A node of two cards, each of which the agent offers ten times; its sockets need short paths."""
    program("nvidia-device-plugin")
    folder = Path(tempfile.mkdtemp(prefix="ptn"))
    try:
        with (
            partage_stack.stack(tmp_path_factory.mktemp("cluster"), layout=LAYOUT) as stack,
            ExitStack() as cleanup,
        ):
            made = by_nri(stack, folder, cleanup)
            complete(made)
            eventually("the kubelet offers shares", lambda: made.offers(GPU) == "20", SLOW)
            yield made
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def noted(node: Node) -> list[str]:
    """What the agent says on its Node of other plugins."""
    found = node.stack.plane.call("GET", f"/api/v1/nodes/{node.name}")["metadata"]
    text = found["annotations"].get(names.AGENT_NOTES, "")
    return [one.message for one in read_notes(text) if one.code == Code.OTHER_PLUGIN]


def test_a_second_plugin_is_noticed_and_gives_no_pod_another_card(cuda: Node) -> None:
    """The kubelet takes the plugin that registered last; a pod's record decides all the same, and the name comes back."""
    stack = cuda.stack
    plugin = NvidiaPlugin(cuda.kubelet.folder, cuda.cards())
    plugin.start(stack.plane)
    eventually("the kubelet has its units", lambda: cuda.offers(GPU) == "2", SLOW)

    for name, uuid in zip(("first", "second"), reversed([*cuda.cards()]), strict=True):
        limits = {GPU: "1", "nvidia.com/gpumem": "3000"}
        only = {"nvidia.com/use-gpuuuid": uuid}
        stack.create(pod(name, container("main", limits), annotations=only))
        found = running(stack, name)
        assert granted(found, "main").uuid == uuid
        assert environment(cuda, found, "main")["NVIDIA_VISIBLE_DEVICES"] == uuid
        ((theirs,),) = (cuda.held()[name][GPU],)
        assert theirs in cuda.cards()  # the plugin's, of either card

    (note,) = eventually("the agent notices it", lambda: noted(cuda), SLOW)
    assert note.startswith(f"{GPU}: the kubelet has 2 units of another device plugin")
    stack.plane.call("DELETE", "/api/v1/namespaces/default/pods?gracePeriodSeconds=1")
    plugin.stop(stack.plane)
    eventually("the agent's units are back", lambda: cuda.offers(GPU) == "20", SLOW)
    eventually("nothing is noted", lambda: not noted(cuda), SLOW)
