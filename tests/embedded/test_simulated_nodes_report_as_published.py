"""Device objects, totals and registrations of simulated nodes, and how nodes are described."""

from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
from up_world import node

from partage.agent.discovery.models import MODELS
from partage.embedded.agents import _address
from partage.embedded.fleet import DEFAULT_FLEET, RdmaCards, SimulatedNode, simulated_nodes
from partage.embedded.hardware import (
    device_manifest,
    node_manifest,
    plugin_totals,
    unhealthy_devices,
    with_health,
)
from partage.embedded.manifests import decoded, read, read_sources
from partage.model.errors import InvalidDocument, InvalidRecord
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.wire.context import Context
from partage.wire.documents import decode
from partage.wire.nodes import translate_node

NOW = "2026-01-01T00:00:00Z"
CONTEXT = Context.of(Settings(), FAMILIES)


def both(described: SimulatedNode) -> tuple[dict[str, Any], dict[str, Any]]:
    """Its Node with its plugins' totals, and its Device object."""
    manifest, device = node_manifest(described), device_manifest(described, NOW)
    totals, annotations = plugin_totals(described, device)
    manifest["status"]["allocatable"] |= totals
    manifest["metadata"]["annotations"] |= annotations
    return manifest, device


@pytest.mark.parametrize("described", DEFAULT_FLEET, ids=lambda one: one.name)
def test_the_fleet_is_read_without_a_note(described: SimulatedNode) -> None:
    """Every device is there, healthy, with an identity of its own, and nothing is odd."""
    manifest, device = both(described)

    read_ = translate_node(decoded("Node", manifest), decoded("Device", device), CONTEXT)

    spec = described.spec
    expected = spec.cards + (spec.rdma.cards if spec.rdma else 0)
    assert read_.notes == ()
    assert len(read_.node.devices) == expected
    assert all(one.healthy for one in read_.node.devices)
    assert not read_.node.verdicts or described.make.vendor == "nvidia"


def test_every_node_has_an_address() -> None:
    """One that exists, whatever the node's UID."""
    network = ip_network("10.0.0.0/16")

    assert all(ip_address(_address(f"uid {number}")) in network for number in range(2000))


@pytest.mark.parametrize("model", MODELS)
def test_every_known_model_can_be_simulated(model: str) -> None:
    """A node of it is read back with its memory, vendor and model."""
    described = node(model=model)
    manifest, device = both(described)

    read_ = translate_node(decoded("Node", manifest), decoded("Device", device), CONTEXT).node

    assert [one.memory_bytes for one in read_.devices] == [MODELS[model].memory] * 2
    assert {(one.vendor, one.model) for one in read_.devices} == {(MODELS[model].vendor, model)}


@pytest.mark.parametrize(
    ("described", "totals"),
    [
        (node(cards=2), {"nvidia.com/gpu": "2"}),
        (node(cards=2, registers=("hami",)), {"nvidia.com/gpu": "20"}),
        (
            node(model="Tesla-T4", registers=("qgpu",)),
            {
                "nvidia.com/gpu": "2",
                "tke.cloud.tencent.com/qgpu-core": "200",
                "tke.cloud.tencent.com/qgpu-memory": "30",
            },
        ),
        (node(model="C500", cards=1), {"metax-tech.com/sgpu": "16"}),
        (node(model="C500", cards=1, mode="native"), {"metax-tech.com/gpu": "1"}),
        (node(model="Ascend-310P3"), {"huawei.com/Ascend310P": "2"}),
        (
            node(model="MLU-370"),
            {"cambricon.com/mlu.smlu.vcore": "200", "cambricon.com/mlu.smlu.vmemory": "192"},
        ),
    ],
    ids=["whole cards", "hami", "qgpu", "sgpu", "metax native", "huawei", "cambricon"],
)
def test_plugins_report_their_own_totals(described: SimulatedNode, totals: dict[str, str]) -> None:
    """What each vendor's plugin adds to the node; the Koordinator document prints 16 sGPU for one card."""
    found, _ = plugin_totals(described, device_manifest(described, NOW))

    assert found == totals


def test_an_ill_card_leaves_the_totals_and_the_registration() -> None:
    """The totals count healthy cards; HAMi's registration says which one is not."""
    described = node(registers=("hami",))
    device = with_health(device_manifest(described, NOW), {("gpu", 1)}, "Xid 79", NOW)

    totals, annotations = plugin_totals(described, device)

    assert totals == {"nvidia.com/gpu": "10"}
    assert annotations["hami.io/node-nvidia-register"].count('"health":false') == 1


def test_health_that_stays_the_same_changes_nothing() -> None:
    """The object is equal to what it was, so there is no news to report."""
    device = device_manifest(node(), NOW)
    ill = with_health(device, {("gpu", 0)}, "dust", "2026-02-02T00:00:00Z")

    assert with_health(device, set(), "", "later") == device
    assert with_health(ill, {("gpu", 0)}, "dust", "later") == ill
    assert with_health(ill, set(), "", NOW)["spec"]["devices"][0]["health"] is True


@pytest.mark.parametrize(
    ("text", "devices", "reason"),
    [
        ("0", {("gpu", 0)}, "declared unhealthy"),
        ("0, 1 = Xid 79", {("gpu", 0), ("gpu", 1)}, "Xid 79"),
        ("rdma-0=link down", {("rdma", 0)}, "link down"),
        ("all", {("gpu", 0), ("gpu", 1), ("rdma", 0)}, "declared unhealthy"),
        ("", set(), "declared unhealthy"),
    ],
)
def test_devices_are_declared_unhealthy(
    text: str, devices: set[tuple[str, int]], reason: str
) -> None:
    """The text has a number, a type and number, or all; with or without a reason."""
    device = device_manifest(node(rdma=RdmaCards(1)), NOW)

    assert unhealthy_devices(text, device) == (devices, reason)


@pytest.mark.parametrize("text", ["7", "gpu", "fpga-0", "-1", "0;1", "99999"])
def test_a_device_that_is_not_there_is_told(text: str) -> None:
    """The message names the word and what the node has."""
    with pytest.raises(InvalidRecord, match=r"is no device of this node \(it has gpu-0"):
        unhealthy_devices(text, device_manifest(node(), NOW))


def described(**spec: Any) -> dict[str, Any]:
    """A document of a simulated node."""
    return {
        "apiVersion": "partage.io/v1alpha1",
        "kind": "SimulatedNode",
        "metadata": {"name": "trainer"},
        "spec": {"model": "H100-80GB-HBM3", **spec},
    }


def test_a_row_of_nodes_is_numbered() -> None:
    """With a count there are that many, without one there is one of that name."""
    assert [one.name for one in simulated_nodes(described(count=2), "x")] == [
        "trainer-0",
        "trainer-1",
    ]
    assert [one.name for one in simulated_nodes(described(), "x")] == ["trainer"]


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ({"model": "H300"}, r"field spec.model: 'H300' is not one of A10, .*needs vendor"),
        ({"cards": 65}, r"field spec.cards: expected `?int`? <= 64"),
        ({"cardz": 1}, r"unknown field cardz"),
        ({"cpu": "many"}, r"field spec.cpu: "),
        ({"memory": "0"}, r"field spec.memory: 0 is not more than zero"),
        ({"mode": "sgpu"}, r"field spec.mode: sgpu is no mode of nvidia cards \(hami-core, mig\)"),
        ({"mode": "mig"}, r"add hami to registers"),
        ({"model": "C500", "registers": ["qgpu"]}, r"qgpu serve nvidia cards"),
        ({"count": 0}, r"field spec.count"),
    ],
)
def test_a_wrong_description_names_the_field_and_the_rule(spec: dict[str, Any], told: str) -> None:
    """Never a traceback: file, node, field, rule."""
    with pytest.raises(InvalidDocument, match=told):
        list(simulated_nodes(described(**spec), "nodes.yaml: document 1"))


def test_a_name_has_as_many_characters_as_a_nodes() -> None:
    """A name has 253 characters at most, as in Kubernetes; a longer one is refused with the rule."""
    long = {"metadata": {"name": "n" * 253}}
    assert list(simulated_nodes({**described(), **long}, "x"))

    with pytest.raises(InvalidDocument, match="at most 253 letters"):
        list(simulated_nodes({**described(), "metadata": {"name": "n" * 254}}, "x"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a: [", "nodes.yaml"),
        ("just a text", "expected an object, got str"),
        ("metadata: {name: x}", "field kind: missing"),
        ("kind: Pod", "field metadata.name: missing"),
        ('{"kind": "Pod", "metadata": }', "nodes.yaml"),
        ('{"kind": "Snapshot", "apiVersion": "partage.io/v1"}', "pods have no images; read it by"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, text: str, told: str) -> None:
    """The message names the file and what is wrong in it."""
    file = tmp_path / "nodes.yaml"
    file.write_text(text, encoding="utf-8")

    with pytest.raises(InvalidDocument, match=told):
        read([file])


def test_a_wrong_node_of_a_file_is_named_once(tmp_path: Path) -> None:
    """File, place and node come once, however long the name is."""
    file = tmp_path / "nodes.yaml"
    file.write_text(
        "apiVersion: partage.io/v1alpha1\nkind: SimulatedNode\nmetadata: {name: x}\nspec: {model: H300}\n",
        encoding="utf-8",
    )

    with pytest.raises(InvalidDocument) as told:
        read([file])

    assert str(told.value).startswith(f"{file}: document 1 (SimulatedNode x): field spec.model: ")


def test_a_list_is_opened_and_what_others_need_comes_first(tmp_path: Path) -> None:
    """Items of a List are objects of their own; namespaces and nodes come before pods."""
    file = tmp_path / "all.yaml"
    file.write_text(
        "apiVersion: v1\nkind: List\nitems:\n"
        "- {apiVersion: v1, kind: Pod, metadata: {name: p}}\n"
        "- {apiVersion: v1, kind: Node, metadata: {name: n}}\n"
        "- {apiVersion: v1, kind: Namespace, metadata: {name: s}}\n",
        encoding="utf-8",
    )

    assert [one.kind for one in read([file]).objects] == ["Namespace", "Node", "Pod"]


@pytest.mark.parametrize(
    "text",
    [
        "{apiVersion: v1, kind: Pod, metadata: {name: a}}",
        "{apiVersion: v1, kind: PodList, items: [{metadata: {name: a}}]}",
        '{"apiVersion": "v1", "kind": "PodList", "items": [{"metadata": {"name": "a"}}]}',
        '{"kind": "Pod", "metadata": {"name": "a"}}\n{"kind": "Pod", "metadata": {"name": "b"}}',
        "metadata: {name: a, lables: {x: y}}\nkind: Pod\nspec: {conatiners: []}",
        '{"kind": "Pod", "metadata": {"name": "a", "name": "a"}}',
        "# nothing",
    ],
)
def test_a_text_holds_for_up_what_it_holds_for_schedule(text: str) -> None:
    """Both read the same objects, with the same remarks."""
    batch = decode("f", text.encode(), written=True)

    found = read_sources([("f", text.encode())])

    assert [(one.kind, one.name) for one in found.objects] == [
        (one.kind, one.name) for one in batch.documents
    ]
    remarks = [note.replace("Pod default/", "Pod ") for note in batch.notes]
    assert list(found.notes) == (remarks or ([] if found.objects else ["f: no document there"]))


def test_a_typed_list_gives_its_items_kind_and_version() -> None:
    """Of an item alone nothing would say that it is of an older version."""
    text = b'{"apiVersion": "x/v2", "kind": "ThingList", "items": [{"metadata": {"name": "a"}}]}'

    (found,) = read_sources([("f", text)]).objects

    assert found.value == {"apiVersion": "x/v2", "kind": "Thing", "metadata": {"name": "a"}}


@pytest.mark.parametrize(
    ("spec", "told"),
    [
        ("{modell: A10}", "field spec: object contains unknown field modell; did you mean model?"),
        ("{model: A10, rdma: {card: 2}}", "unknown field card; did you mean cards?"),
        (
            "{model: A10, registers: [foo]}",
            "field spec.registers[0]: invalid enum value 'foo'; write one of hami, qgpu",
        ),
        (
            "{model: A10, taints: [{key: a, effect: NoSchedul}]}",
            "spec.taints[0].effect: invalid enum value 'NoSchedul'; write one of NoExecute, NoSchedule, PreferNo",
        ),
        (
            "{model: X9, vendor: nvida, memory: 8Gi}",
            "field spec.vendor: 'nvida' is not one of nvidia, ",
        ),
    ],
)
def test_what_a_field_may_hold_is_told(spec: str, told: str) -> None:
    """The message names the field or value that the author may have meant."""
    text = f"apiVersion: partage.io/v1alpha1\nkind: SimulatedNode\nmetadata: {{name: n}}\nspec: {spec}"

    with pytest.raises(InvalidDocument) as caught:
        read_sources([("f", text.encode())])

    assert told in str(caught.value)
