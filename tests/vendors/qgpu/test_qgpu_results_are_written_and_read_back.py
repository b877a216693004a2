"""What a placed pod carries for qGPU's manager, and what such a pod is found to hold."""

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import Device, DeviceType
from partage.model.node import Node
from partage.model.pod import Record
from partage.model.quantity import Quantity
from partage.model.request import Phase, PodRequest
from partage.vendors import names
from partage.vendors.base import ContainerView, PlacedPod, PodView, Rendering
from partage.vendors.families.qgpu import FAMILY
from partage.vendors.families.qgpu.result import cards_key
from partage.vendors.settings import Settings

GIB = 1 << 30
CARDS = "tke.cloud.tencent.com/qgpu-pgpu-"
NODE = Node(
    "n",
    devices=tuple(
        Device(DeviceType.GPU, minor, f"GPU-{minor}", vendor="nvidia", memory_bytes=32 * GIB)
        for minor in range(4)
    ),
)


def ask(name: str, core: int, memory: int = 0, phase: Phase = Phase.MAIN) -> ContainerView:
    """A container that asks percent and GiB."""
    limits = {names.QGPU_CORE: Quantity.parse(core)}
    if memory:
        limits[names.QGPU_MEMORY] = Quantity.parse(memory)
    return ContainerView(name, phase, limits=limits)


def pod(*containers: ContainerView, **cards: str) -> PodView:
    """A pod whose annotations name the cards of some containers."""
    annotations = {CARDS + name: text for name, text in cards.items()}
    if cards:
        annotations["tke.cloud.tencent.com/qgpu"] = "true"
    return PodView("ns", "pod", node="n", annotations=annotations, containers=containers)


def grant(container: str, minor: int, core: int, memory: int, **fields: object) -> Grant:
    """A share of a card in percent and GiB."""
    base = Grant(
        container,
        DeviceType.GPU,
        minor,
        f"GPU-{minor}",
        core * 10,
        memory * GIB,
        GrantMode.SHARE,
        protocol="qgpu",
        sharers=16,
    )
    return structs.replace(base, **fields)


def render(view: PodView, *grants: Grant) -> Rendering:
    """What is written for these grants."""
    allocation = Allocation("u", "ns", "pod", "n", grants)
    return FAMILY.render(PlacedPod(view, PodRequest(), allocation, NODE, now=0), Settings())


def recover(view: PodView) -> Record | None:
    """What the pod's annotations and requests say."""
    return FAMILY.recover(view, NODE, Settings())


def test_annotations_labels_and_visible_cards() -> None:
    """Indexes by container: a comma list in the annotation, joined by `_` in the label."""
    view = pod(ask("a", 30, 5), ContainerView("b"), ask("c", 160, 60))

    rendering = render(view, grant("a", 3, 30, 5), grant("c", 0, 80, 30), grant("c", 1, 80, 30))

    mark = {"tke.cloud.tencent.com/qgpu": "true"}
    assert rendering.annotations == {**mark, CARDS + "a": "3", CARDS + "c": "0,1"}
    assert rendering.labels == {**mark, CARDS + "a": "3", CARDS + "c": "0_1"}
    assert rendering.env == {
        "a": {"NVIDIA_VISIBLE_DEVICES": "GPU-3"},
        "c": {"NVIDIA_VISIBLE_DEVICES": "GPU-0,GPU-1"},
    }


def test_made_up_identities_are_shown_by_index() -> None:
    """No driver knows a UUID that came from a node's totals."""
    rendering = render(pod(ask("a", 30, 5)), grant("a", 2, 30, 5, uuid="qgpu-n-2"))

    assert rendering.env["a"]["NVIDIA_VISIBLE_DEVICES"] == "2"


def test_nothing_of_ours_is_nothing_written() -> None:
    """Grants of other protocols are not this family's."""
    assert render(pod(ask("a", 30, 5)), grant("a", 0, 30, 5, protocol="hami")) == Rendering()


@given(st.from_regex(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", fullmatch=True))
def test_keys_are_legal_for_every_container_name(name: str) -> None:
    """The name part has at most 63 legal characters, and short names stand as they are."""
    key = cards_key(name).partition("/")[2]

    assert len(key) <= 63
    assert re.fullmatch(r"[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?", key)
    assert len(name) > 53 or key == f"qgpu-pgpu-{name}"


def test_long_names_stay_apart() -> None:
    """Names that differ only at the end have different keys."""
    assert cards_key("x" * 60 + "a") != cards_key("x" * 60 + "b")


def test_what_is_written_is_read_back() -> None:
    """Cards from the annotations, amounts from the requests; init containers too."""
    view = pod(
        ask("init", 50, 9, Phase.INIT), ask("a", 30, 5), ask("b" * 60, 200), ask("d", 160, 61)
    )
    whole = {"mode": GrantMode.WHOLE}
    grants = (
        grant("a", 3, 30, 5),
        grant("b" * 60, 1, 100, 32, **whole),
        grant("b" * 60, 2, 100, 32, **whole),
        grant("d", 0, 80, 30),
        grant("d", 3, 80, 30),
        grant("init", 3, 50, 9, phase=Phase.INIT),
    )

    record = recover(replace(view, annotations=render(view, *grants).annotations))

    assert record == Record(grants, "qgpu")


GREEDY = ContainerView(
    "a",
    limits={names.QGPU_MEMORY: Quantity.parse(5), names.QGPU_GREEDY: Quantity.parse(50)},
)
ALONE = ContainerView("a", limits={names.QGPU_MEMORY: Quantity.parse(5)})


@pytest.mark.parametrize("said", [None, "", "x", "online", "offline"])
@pytest.mark.parametrize(
    ("asked", "core"),
    [(ask("a", 30, 5), 30), (GREEDY, 0), (ALONE, 0)],
    ids=["ordinary", "offline", "online"],
)
def test_a_class_that_is_changed_afterwards_spoils_no_record(
    asked: ContainerView, core: int, said: str | None
) -> None:
    """A pod's author may change it while the pod runs; a record that is not believed closes the node for all others."""
    view = pod(asked, a="0")
    if said is not None:
        view = replace(view, annotations={**view.annotations, names.QGPU_APP_CLASS: said})

    assert recover(view) == Record((grant("a", 0, core, 5),), "qgpu")


def test_no_annotation_is_no_record() -> None:
    """What the pod asks for does not make one."""
    assert recover(pod(ask("a", 30, 5))) is None


SHARE = ask("a", 30, 5)
PROBLEMS = [
    pytest.param(pod(SHARE, b="0"), f"{CARDS}a is missing", id="missing"),
    pytest.param(pod(SHARE, a="0", b="1"), f"{CARDS}b belongs to no container", id="extra"),
    pytest.param(pod(SHARE, a=""), "not a list of card indexes", id="empty"),
    pytest.param(pod(SHARE, a="x"), "not a list of card indexes", id="not-a-number"),
    pytest.param(pod(SHARE, a="-1"), "not a list of card indexes", id="negative"),
    pytest.param(pod(SHARE, a="9" * 200), "not a list of card indexes", id="huge"),
    pytest.param(pod(SHARE, a="0,1"), "asks for 1 distinct", id="too-many"),
    pytest.param(pod(ask("a", 200), a="1,1"), "asks for 2 distinct", id="twice"),
    pytest.param(pod(SHARE, a="4"), "card 4 is not on the node", id="unknown-card"),
    pytest.param(pod(ask("a", 33, 5), a="0"), "request cannot be read", id="broken-request"),
    pytest.param(pod(ContainerView("a"), a="0"), "belongs to no container", id="nothing-asked"),
    pytest.param(
        replace(pod(ContainerView("a")), annotations={names.QGPU_ALLOCATED: "true"}),
        "asks for no qGPU",
        id="mark-alone",
    ),
]


@pytest.mark.parametrize(("view", "problem"), PROBLEMS)
def test_what_disagrees_is_a_problem(view: PodView, problem: str) -> None:
    """Nothing of such a record is believed."""
    record = recover(view)

    assert record is not None
    assert record.grants == ()
    assert problem in record.problem


@given(st.one_of(st.text(max_size=20), st.text(alphabet="0123,- ", max_size=20)))
def test_any_text_is_read_or_a_problem(text: str) -> None:
    """Recovery never raises."""
    record = recover(pod(ask("a", 200), a=text))

    assert record is not None
    assert bool(record.grants) != bool(record.problem)
