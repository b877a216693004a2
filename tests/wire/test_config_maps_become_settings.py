"""Operators' ConfigMaps, read as they are, and left out where a value breaks its rule."""

import json

import pytest
from manifests import cluster, config_map, documents

from partage.model.errors import InvalidDocument
from partage.model.policy import Policy, Strategy
from partage.vendors.settings import HamiSettings, Settings
from partage.wire.config import translate_config

HAMIS_DOCUMENT = """
nvidia:
  resourceCountName: nvidia.com/gpu
  resourceMemoryName: nvidia.com/gpumem
  resourceMemoryPercentageName: nvidia.com/gpumem-percentage
  resourceCoreName: nvidia.com/gpucores
  resourcePriorityName: nvidia.com/priority
  overwriteEnv: false
  defaultMemory: 0
  defaultCores: 0
  defaultGPUNum: 1
  deviceSplitCount: 10
  deviceMemoryScaling: 1
  deviceCoreScaling: 1
  knownMigGeometries:
  - models: [ "A30" ]
    allowedGeometries:
    -
      - name: 1g.6gb
        memory: 6144
        count: 4
    -
      - name: 2g.12gb
        memory: 12288
        count: 2
  - models: [ "A100-SXM4-40GB", "A100-40GB-PCIe", "A100-PCIE-40GB", "A100-SXM4-40GB" ]
    allowedGeometries:
    -
      - name: 2g.10gb
        memory: 10240
        count: 3
      - name: 1g.5gb
        memory: 5120
        count: 1
cambricon:
  resourceCountName: {}
"""
NODE_A = {
    "nodeconfig": [
        {"name": "MIG-NODE-A", "operatingmode": "mig", "filterdevices": {"uuid": [], "index": []}}
    ]
}


def settings(name: str, **data: str) -> Settings:
    """Settings of one ConfigMap."""
    return cluster(config_map(name, **data)).settings


def hami(text: str) -> HamiSettings:
    """HAMi's settings of one device-config."""
    return settings("hami-scheduler-device", device_config__yaml=text).hami


def test_the_device_config_of_hamis_document() -> None:
    """Names and defaults as published, geometries in the order written; other vendors ignored."""
    found = hami(HAMIS_DOCUMENT)

    assert (found.count_name, found.split_count, found.memory_scaling) == (
        "nvidia.com/gpu",
        10,
        1.0,
    )
    assert [g.models[0] for g in found.geometries] == ["A30", "A100-SXM4-40GB"]
    assert found.geometries[0].layouts == ((("1g.6gb", 6144, 4),), (("2g.12gb", 12288, 2),))
    assert found.geometries[1].layouts == ((("2g.10gb", 10240, 3), ("1g.5gb", 5120, 1)),)


def test_quoted_values_grouped_geometries_and_allowlists() -> None:
    """Charts quote numbers and booleans; 2.10 has an allowlist, 2.5 groups geometries."""
    found = hami(
        "nvidia: {deviceSplitCount: '5', deviceMemoryScaling: '1.8', disableCoreLimit: 'true', memoryFactor: 2, "
        "resourceMemoryName: '', knownMigGeometries: [{models: [A30], allowedGeometries: [{group: g, geometries: [{name: 1g.6gb, memory: 6144, count: 4}]}]}], "
        "migProfileAllowlist: [{models: [A30], profiles: [1g.6gb, 2g.12gb]}]}"
    )

    assert (found.split_count, found.memory_scaling, found.memory_factor) == (5, 1.8, 2)
    assert (found.disable_core_limit, found.memory_name) == (True, "")
    assert found.geometries[0].layouts == ((("1g.6gb", 6144, 4),),)
    assert found.mig_allowlist == ((("A30",), ("1g.6gb", "2g.12gb")),)


@pytest.mark.parametrize("text", ["", "nvidia:", "cambricon: {}", "{}"])
def test_an_empty_device_config_keeps_the_defaults(text: str) -> None:
    """What is not named is as published."""
    assert hami(text) == HamiSettings()


def test_node_settings_of_hamis_document() -> None:
    """They stand beside the device-config, in either order."""
    more = {
        "name": "b",
        "devicememoryscaling": 2,
        "devicecorescaling": "1.5",
        "devicesplitcount": 3,
        "filterdevices": {"uuid": ["GPU-1"], "index": [2]},
    }
    nodes = config_map(
        "release-hami-device-plugin",
        config__json=json.dumps({"nodeconfig": [*NODE_A["nodeconfig"], more]}),
    )
    device = config_map(
        "hami-scheduler-device", device_config__yaml="nvidia: {deviceSplitCount: 4}"
    )

    found = cluster(nodes, device).settings.hami

    assert found == cluster(device, nodes).settings.hami
    assert (found.split_count, found.nodes["MIG-NODE-A"].operating_mode) == (4, "mig")
    b = found.nodes["b"]
    assert (b.memory_scaling, b.core_scaling, b.split_count) == (2.0, 1.5, 3)
    assert (b.filter_uuids, b.filter_indexes) == (("GPU-1",), (2,))


def test_metax_of_its_document() -> None:
    """Two YAML texts: the cluster's mode, and those of single nodes."""
    found = settings(
        "metax-device-config",
        version="v1",
        cluster_config='mode: "native" # sgpu/shared/vgpu, cluster scope\n',
        nodes_config='- nodeName: "sample-node1"\n  mode: "sgpu" # node scope\n',
    ).metax

    assert (found.cluster_mode, found.node_modes) == ("native", {"sample-node1": "sgpu"})


@pytest.mark.parametrize(
    "data", [{"cluster_config": ""}, {"nodes_config": ""}, {"cluster_config": "mode:"}]
)
def test_metax_may_be_empty(data: dict[str, str]) -> None:
    """Then nothing is configured."""
    assert settings("metax-device-config", **data).metax == Settings().metax


@pytest.mark.parametrize(
    ("data", "policy"),
    [
        pytest.param(
            {"policy": "binpack\n"}, Policy(Strategy.BINPACK, Strategy.BINPACK), id="one word"
        ),
        pytest.param(
            {"policy": "spread/binpack"}, Policy(Strategy.SPREAD, Strategy.BINPACK), id="both"
        ),
        pytest.param(
            {"node_policy": "spread"}, Policy(Strategy.SPREAD, Strategy.PARTAGE), id="node"
        ),
        pytest.param(
            {"card_policy": "binpack", "node_policy": "spread"},
            Policy(Strategy.SPREAD, Strategy.BINPACK),
            id="apart",
        ),
        pytest.param(
            {"card_policy": "binpack", "policy": "spread"},
            Policy(Strategy.SPREAD, Strategy.BINPACK),
            id="a part, in the API server's order",
        ),
        pytest.param(
            {"policy": "spread", "card_policy": "binpack"},
            Policy(Strategy.SPREAD, Strategy.BINPACK),
            id="a part, last",
        ),
        pytest.param(
            {"policy": "Spread"}, Policy(Strategy.SPREAD, Strategy.SPREAD), id="as qGPU's page"
        ),
        pytest.param(
            {"node_policy": "Binpack"}, Policy(Strategy.BINPACK, Strategy.PARTAGE), id="one of two"
        ),
        pytest.param({}, None, id="none"),
    ],
)
def test_the_policy_in_force(data: dict[str, str], policy: Policy | None) -> None:
    """`partage-config` names it whole or in two parts."""
    assert cluster(config_map("partage-config", **data)).policy == policy


BAD_YAML = [
    ("nvidia: {deviceSplitCount: 0}", "field nvidia.deviceSplitCount: 0 is not from 1"),
    (
        "nvidia: {deviceSplitCount: many}",
        "field nvidia.deviceSplitCount: expected int | null, got str",
    ),
    ("nvidia: {defaultCores: 101}", "defaultCores: 101 is not from 0 to 100"),
    ("nvidia: {defaultMemory: -1}", "defaultMemory: -1 is not from 0"),
    ("nvidia: {memoryFactor: 0}", "memoryFactor: 0 is not from 1"),
    ("nvidia: {deviceMemoryScaling: .inf}", "deviceMemoryScaling: inf is not above 0"),
    ("nvidia: {deviceCoreScaling: 0}", "deviceCoreScaling: 0.0 is not above 0"),
    ("nvidia: {resourceCountName: ''}", "resourceCountName: must not be empty"),
    ("nvidia: {resourceCountName: 'a b'}", "'a b' is not a resource name"),
    ("nvidia: {resourceCountName: '{{ .Values.x }}'}", "is a template's placeholder"),
    (
        "nvidia: {resourceCountName: nvidia.com/gpumem}",
        "'nvidia.com/gpumem' is the name of two resources",
    ),
    ("nvidia: {resourceCountName: {{ .Values.resourceName }} }", "render the chart first"),
    ("nvidia: {deviceSplitCount: '{{ .Values.n }}'}", "render the chart first"),
    (
        "nvidia: {knownMigGeometries: [{models: [], allowedGeometries: []}]}",
        "knownMigGeometries[0].models: at least one name",
    ),
    (
        "nvidia: {knownMigGeometries: [{models: [a], allowedGeometries: [[]]}]}",
        "knownMigGeometries[0].allowedGeometries[0]: empty",
    ),
    (
        "nvidia: {knownMigGeometries: [{models: [a], allowedGeometries: [[{name: x, memory: 1, count: 1}]]}]}",
        "'x' is not a profile such as",
    ),
    (
        "nvidia: {knownMigGeometries: [{models: [a], allowedGeometries: [[{name: 1g.5gb, memory: 0, count: 1}]]}]}",
        "1g.5gb.memory: 0 is not from 1",
    ),
    (
        "nvidia: {knownMigGeometries: [{models: [a], allowedGeometries: [[{name: 1g.5gb, memory: 1, count: 0}]]}]}",
        "1g.5gb.count: 0 is not from 1",
    ),
    (
        "nvidia: {migProfileAllowlist: [{models: [a], profiles: ['']}]}",
        "migProfileAllowlist[0].profiles: at least one name",
    ),
    (
        "nvidia: {migProfileAllowlist: [{models: [a], profiles: [big]}]}",
        "'big' is not a profile such as",
    ),
    ("nvidia: 5", "field nvidia: expected object"),
    ("a: 1\n---\nb: 2", "2 YAML documents where one is expected"),
    ("a: b: c", "not YAML"),
]


def test_the_node_config_may_be_written_in_any_case() -> None:
    """HAMi reads it in Go, which takes a field's name in any case."""
    text = '{"NodeConfig":[{"Name":"a","operatingMode":"mig","filterDevices":{"Index":[1]}}]}'

    (found,) = settings("hami-device-plugin", config__json=text).hami.nodes.values()

    assert (found.name, found.operating_mode, found.filter_indexes) == ("a", "mig", (1,))


@pytest.mark.parametrize(
    ("entry", "notes"),
    [
        ({"name": "a", "operationmode": "mig"}, 1),
        ({"name": "a", "filterdevices": {"uuids": []}}, 1),
        ({"name": "a", "MigStrategy": "none", "OperatingMode": "mig"}, 0),
        ({"name": "a", "filterdevices": 3, "operationmode": "mig"}, 1),
    ],
    ids=["field", "inner field", "known in any case", "refused"],
)
def test_a_field_of_single_nodes_that_is_not_known_is_told(entry: object, notes: int) -> None:
    """It does nothing, and a refused configuration has one note alone."""
    text = json.dumps({"nodeconfig": [entry]})

    found = cluster(config_map("hami-device-plugin", config__json=text))

    assert len(found.notes) == notes


def test_a_key_of_partages_own_that_is_not_known_is_told() -> None:
    """It does nothing, and its setting stays at the default; in others' ConfigMaps keys are theirs."""
    (note,) = cluster(config_map("partage-config", polcy="spread")).notes

    assert note.endswith(
        "(ConfigMap kube-system/partage-config): field data[polcy]: is not known and does nothing; "
        "did you mean policy?"
    )
    assert cluster(config_map("hami-scheduler-device", other="x")).notes == ()


@pytest.mark.parametrize(("text", "rule"), BAD_YAML, ids=[text[:60] for text, _ in BAD_YAML])
def test_a_bad_device_config_names_field_and_rule(text: str, rule: str) -> None:
    """It also names ConfigMap and key."""
    (note,) = cluster(config_map("hami-scheduler-device", device_config__yaml=text)).notes

    assert (
        "(ConfigMap kube-system/hami-scheduler-device): field data[device-config.yaml]: " in note
    )
    assert rule in note
    assert hami(text) == HamiSettings()


@pytest.mark.parametrize(
    ("name", "data", "rule"),
    [
        pytest.param(
            "hami-device-plugin",
            {"config__json": "{"},
            "data[config.json]: input data was truncated",
            id="json",
        ),
        pytest.param(
            "hami-device-plugin",
            {"config__json": "{nodeconfig"},
            "data[config.json]: JSON is malformed",
            id="no json",
        ),
        pytest.param(
            "hami-device-plugin",
            {"config__json": '{"nodeconfig":[{"name":"a","operatingmode":"mps"}]}'},
            "nodeconfig[0].operatingmode: 'mps' is not one of hami-core, mig",
            id="mode",
        ),
        pytest.param(
            "hami-device-plugin",
            {"config__json": '{"nodeconfig":[{"name":"a","devicesplitcount":0}]}'},
            "nodeconfig[0].devicesplitcount: 0 is not from 1",
            id="split",
        ),
        pytest.param(
            "hami-device-plugin",
            {"config__json": '{"nodeconfig":[{}]}'},
            "missing required field name",
            id="no name",
        ),
        pytest.param(
            "metax-device-config",
            {"cluster_config": "mode: half"},
            "data[cluster-config]: field mode: 'half' is not one of native, sgpu, shared, vgpu",
            id="metax",
        ),
        pytest.param(
            "metax-device-config",
            {"nodes_config": "- {nodeName: a, mode: half}"},
            "data[nodes-config]: field [0].mode: 'half'",
            id="metax node",
        ),
        pytest.param(
            "metax-device-config",
            {"nodes_config": "- {mode: sgpu}"},
            "missing required field nodeName",
            id="metax node name",
        ),
        pytest.param(
            "gpu-shared-resource-templates",
            {"data__yaml": "m: {t: {u: x}}"},
            "field m.t.u: 'x' is not a quantity",
            id="quantity",
        ),
        pytest.param(
            "gpu-shared-resource-templates",
            {"data__yaml": "m: {t: {u: 1.5}}"},
            "field m.t.u: 1500m is not a whole number",
            id="fraction",
        ),
        pytest.param(
            "gpu-shared-resource-templates",
            {"data__yaml": "m: {t: []}"},
            "expected object, got array",
            id="template",
        ),
        pytest.param(
            "partage-config", {"policy": "best"}, "data[policy]: no policy 'best'", id="policy"
        ),
        pytest.param(
            "partage-config",
            {"card_policy": "best"},
            "data[card-policy]: 'best' is not one of",
            id="card policy",
        ),
    ],
)
def test_every_other_bad_value_names_key_and_rule(
    name: str, data: dict[str, str], rule: str
) -> None:
    """The published defaults hold; a live cluster keeps what it had."""
    found = cluster(config_map(name, **data))

    assert any(
        f"(ConfigMap kube-system/{name}): field data[" in n and rule in n for n in found.notes
    )
    assert (found.settings, found.policy) == (Settings(), None)
    with pytest.raises(InvalidDocument):
        translate_config(documents(config_map(name, **data)))


def test_the_later_of_two_holds() -> None:
    """A note names both."""
    found = cluster(
        config_map("hami-scheduler-device", device_config__yaml="nvidia: {deviceSplitCount: 2}"),
        config_map("other", device_config__yaml="nvidia: {deviceSplitCount: 3}"),
        config_map("unrelated", config__json="{", data__yaml="{", policy="{"),
    )

    assert found.settings.hami.split_count == 3
    assert any(
        "replaces the hami device config (device-config.yaml) of ConfigMap kube-system/hami-scheduler-device"
        in n
        for n in found.notes
    )


def test_a_bad_one_does_not_replace_a_good_one() -> None:
    """What was read before holds, and the note says whose that is."""
    found = cluster(
        config_map("first", device_config__yaml="nvidia: {deviceSplitCount: 2}"),
        config_map("second", device_config__yaml="nvidia: {deviceSplitCount: 0}"),
    )

    assert found.settings.hami.split_count == 2
    assert found.notes[0].endswith(
        "it is left out, and the hami device config (device-config.yaml) of ConfigMap kube-system/first hold"
    )
