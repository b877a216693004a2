"""What pages print that is neither typed nor applied: files, documents, sentences, outlines.

Each block here is taken from its page, given to the program or compared with what it makes.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner
from kube_scheduler_config import (
    ExtenderAccess,
    kube_scheduler_config,
    left_to_the_ledger,
)
from outages import OUTAGES
from page_blocks import BLOCKS, ROOT, Block

from partage.agent.isolation.limits import read, render
from partage.cli.main import main
from partage.doctor.machine import examined
from partage.model.device import ForeignInstance
from partage.model.mig import MigSlice
from partage.model.reason import ReasonCode
from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import Settings
from partage.wire.foreign import OnCard, encode_foreign

Document = dict[str, Any]
INSTANCES = "docs/how-to/use-hardware-instances.md"


def block(page: str, begins: str) -> Block:
    """The block of a page that begins so."""
    (found,) = (one for one in BLOCKS if one.page == page and one.first.startswith(begins))
    return found


def card(uuid: str, model: str, memory: int, *, mode: str = "mig", name: str = "n") -> Document:
    """A node with one card that HAMi has registered."""
    told = [
        {
            "id": uuid,
            "count": 10,
            "devmem": memory,
            "devcore": 100,
            "type": model,
            "mode": mode,
            "health": True,
        }
    ]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"hami.io/node-nvidia-register": json.dumps(told)},
        },
        "status": {"allocatable": {"nvidia.com/gpu": "10", "pods": "99", "cpu": "9"}},
    }


def pod(name: str, profile: str, namespace: str = "default") -> Document:
    """A pod that asks for one instance of a profile."""
    limits = {"nvidia.com/gpu": 1}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": namespace,
            "uid": name,
            "annotations": {"nvidia.com/vgpu-mode": "mig", "partage.io/mig-profile": profile},
        },
        "spec": {"containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}]},
    }


def scheduled(*documents: Document | str) -> Document:
    """What `partage schedule` makes of these."""
    given = yaml.safe_dump_all(
        [
            d
            for one in documents
            for d in (yaml.safe_load_all(one) if isinstance(one, str) else [one])
        ]
    )
    done = CliRunner().invoke(main, ["schedule", "-", "-o", "json"], input=given)
    assert done.exit_code in (0, 3), done.output
    return dict(json.loads(done.stdout))


def test_a_node_is_put_in_mode_mig_and_gives_two_instances(tmp_path: Path) -> None:
    """The ConfigMap's key and the pod, as the page on instances has them."""
    config = block(INSTANCES, '{"nodeconfig"').text
    node = card("GPU-a", "NVIDIA A100-SXM4-40GB", 40960, mode="hami-core", name="node-a")
    settings = config_map("hami-device-plugin", "config.json", config)

    found = scheduled(node, settings, block(INSTANCES, "apiVersion: v1").text)

    (asked,) = found["pods"]
    assert asked["node"] == "node-a"
    assert [one["mode"] for one in asked["allocations"]] == ["mig", "mig"]
    assert all(one["memory_bytes"] >= 8000 << 20 for one in asked["allocations"])


def config_map(name: str, key: str, text: str) -> Document:
    """One of HAMi's."""
    metadata = {"name": name, "namespace": "kube-system"}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {key: text}}


@pytest.mark.parametrize("model", ["NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe"])
def test_cards_are_cut_into_the_layouts_of_the_page_alone(model: str) -> None:
    """What the chart's value allows is given, and a profile that no layout has is not."""
    shown = yaml.safe_load(block(INSTANCES, "devicePlugin:").text)["devicePlugin"]
    values = yaml.safe_load((ROOT / "deploy/helm/partage/values.yaml").read_text("utf-8"))
    settings = config_map(
        "hami-scheduler-device", "device-config.yaml", json.dumps({"nvidia": shown})
    )
    node = card("GPU-a", model, 81920)

    def given(*profiles: str) -> list[str]:
        pods = [pod(f"p{n}", profile) for n, profile in enumerate(profiles)]
        found = scheduled(node, settings, *pods)["pods"]
        return [one["mig"]["profile"] for asked in found for one in asked["allocations"]]

    assert {*shown} <= {*values["devicePlugin"]}
    assert given(*["1g"] * 8) == ["1g.10gb"] * 7
    assert given("2g", "2g", "2g", "1g", "1g") == [*["2g.20gb"] * 3, "1g.10gb"]
    assert given("3g", "1g", "3g") == ["3g.40gb", "3g.40gb"]
    assert given("4g") == []


@pytest.mark.parametrize(
    ("model", "memory", "layouts"),
    [
        (
            "NVIDIA H100 80GB HBM3",
            81559,
            {"1g": ["1g.10gb"] * 7, "2g": ["2g.20gb"] * 3, "3g": ["3g.40gb"] * 2, "4g": []},
        ),
        (
            "NVIDIA A30",
            24576,
            {"1g": ["1g.6gb"] * 4, "2g": ["2g.12gb"] * 2, "4g": ["4g.24gb"]},
        ),
    ],
)
def test_other_models_are_cut_into_the_layouts_of_the_page(
    model: str, memory: int, layouts: dict[str, list[str]]
) -> None:
    """Amounts are the published ones, so no instance counts for less than it has."""
    shown = yaml.safe_load(block(INSTANCES, "devicePlugin:").text)["devicePlugin"]
    text = json.dumps({"nvidia": shown})
    settings = config_map("hami-scheduler-device", "device-config.yaml", text)
    amounts = {
        one["name"]: one["memory"] << 20
        for known in shown["knownMigGeometries"]
        if cards_named(known["models"], model)
        for layout in known["allowedGeometries"]
        for one in layout
    }

    for profile, wanted in layouts.items():
        pods = [pod(f"p{n}", profile) for n in range(8)]
        found = scheduled(card("GPU-a", model, memory), settings, *pods)["pods"]
        given = [one for asked in found for one in asked["allocations"]]
        assert [one["mig"]["profile"] for one in given] == wanted
        assert all(one["memory_bytes"] == amounts[one["mig"]["profile"]] for one in given)


def cards_named(models: list[str], model: str) -> bool:
    """Whether the first word of a name with digits is that of a driver's name."""
    return any(one.split("-")[0] in model for one in models)


@pytest.mark.parametrize(
    ("limits", "mode", "code"),
    [
        ({"nvidia.com/gpu": 1, "nvidia.com/gpumem": 8000}, "hami-core", "ModeMismatch"),
        ({"nvidia.com/gpu": 1}, "hami-core", "ModeMismatch"),
        ({"nvidia.com/gpu": 1}, "", None),
        (
            {"tke.cloud.tencent.com/qgpu-core": 30, "tke.cloud.tencent.com/qgpu-memory": 5},
            "",
            "MigPlacement",
        ),
        ({"tke.cloud.tencent.com/qgpu-core": 100}, "", "MigPlacement"),
        (
            {"koordinator.sh/gpu-core": 30, "koordinator.sh/gpu-memory": "5Gi"},
            "",
            "MigPlacement",
        ),
        ({"koordinator.sh/gpu": 100}, "", "MigPlacement"),
    ],
)
def test_what_a_node_of_instances_refuses_has_the_code_of_the_page(
    limits: dict[str, Any], mode: str, code: str | None
) -> None:
    """The words between backticks of the page are those of the answer."""
    asked = pod("p", "")
    asked["metadata"]["annotations"] = {"nvidia.com/vgpu-mode": mode} if mode else {}
    asked["spec"]["containers"][0]["resources"]["limits"] = limits
    config = json.dumps({"nodeconfig": [{"name": "n", "operatingmode": "mig"}]})
    settings = config_map("hami-device-plugin", "config.json", config)

    (found,) = scheduled(card("GPU-a", "NVIDIA A100-SXM4-80GB", 81920), settings, asked)["pods"]

    if code is None:
        assert [one["mig"]["profile"] for one in found["allocations"]] == ["7g.80gb"]
        return
    assert found["reason"]["code"] == code
    detail = found["reason"]["message"].rpartition("(")[2].rstrip(")")
    assert f"`{code}`, `{detail}`" in (ROOT / INSTANCES).read_text("utf-8")


def test_shares_stay_on_a_node_that_is_switched_to_instances() -> None:
    """The card gives none while they run, and takes no further share."""
    running = pod("a", "")
    running["metadata"]["annotations"] = {}
    running["spec"]["containers"][0]["resources"]["limits"] |= {"nvidia.com/gpumem": 4864}
    held = json.loads(record("a", "", 0, 1)[names.ALLOCATION])
    device = held["containers"][0]["devices"][0]
    del device["mig"]
    held["containers"][0]["devices"] = [{**device, "mode": "share"}]
    running = bound(running, {names.ALLOCATION: json.dumps(held)}, "n")
    share = pod("s", "")
    share["metadata"]["annotations"] = {"nvidia.com/vgpu-mode": "hami-core"}
    config = {"nodeconfig": [{"name": "n", "operatingmode": "mig"}]}
    settings = config_map("hami-device-plugin", "config.json", json.dumps(config))
    node = card("GPU-a", "NVIDIA A100-SXM4-80GB", 81920, mode="hami-core")

    found = scheduled(node, settings, running, pod("i", "1g"), share)["pods"]

    said = {one["name"]: one["reason"] and one["reason"]["code"] for one in found}
    assert said == {"a": None, "i": "CardNotIdle", "s": "ModeMismatch"}
    assert [one["mode"] for one in found[-1]["allocations"] or found[0]["allocations"]] == [
        "share"
    ]


def bound(asked: Document, allocation: Document, node: str) -> Document:
    """A pod with its record, as after its Binding."""
    return {
        **asked,
        "metadata": {
            **asked["metadata"],
            "annotations": {
                **asked["metadata"]["annotations"],
                **allocation,
            },
        },
        "spec": {**asked["spec"], "nodeName": node},
    }


def record(name: str, profile: str, start: int, size: int, namespace: str = "default") -> Document:
    """The annotation of a pod that holds an instance of card GPU-a on node n."""
    held = {
        "type": "gpu",
        "uuid": "GPU-a",
        "minor": 0,
        "milli": 142,
        "bytes": 4864 << 20,
        "mode": "mig",
        "protocol": "hami",
        "mig": {"profile": profile, "start": start, "size": size},
    }
    document = {
        "v": 1,
        "uid": name,
        "node": "n",
        "containers": [
            {"name": "main", "phase": "main", "devices": [held]},
        ],
    }
    return {names.ALLOCATION: json.dumps(document)}


def test_a_pod_in_the_way_is_told_as_printed() -> None:
    """Small instances in both places of a 3g."""
    sentence = block(INSTANCES, "needs 3g.20gb").text.strip()
    held = [
        bound(pod(name, "1g"), record(name, "1g.5gb", start, 1), "n")
        for name, start in (("a", 6), ("b", 0))
    ]

    found = scheduled(card("GPU-a", "NVIDIA A100-SXM4-40GB", 40960), *held, pod("c", "3g"))

    assert said_of("c", found).endswith(f"({sentence})")


def said_of(name: str, found: Document) -> str:
    """Why a pod waits."""
    (asked,) = (one for one in found["pods"] if one["name"] == name)
    return str(asked["reason"]["message"])


def test_a_profile_by_its_compute_alone_is_given() -> None:
    """`3g` beside a bare count is the plain 3g of the card, not the whole card's default amounts."""
    found = scheduled(card("GPU-a", "NVIDIA A100-SXM4-40GB", 40960), pod("c", "3g"))

    (given,) = found["pods"][0]["allocations"]
    assert given["mig"]["profile"] == "3g.20gb"


def test_a_profile_that_is_too_small_is_told() -> None:
    """Amounts that are written beside a profile hold, and the answer says which is short."""
    asked = pod("c", "3g")
    asked["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpumem"] = 30000
    found = scheduled(card("GPU-a", "NVIDIA A100-SXM4-40GB", 40960), asked)

    assert "profile 3g.20gb of A100-40GB has 19968Mi" in said_of("c", found)
    assert "less than is asked beside it" in said_of("c", found)


def test_others_instances_are_told_as_printed() -> None:
    """An instance that Partage did not make, and a pod's beside it."""
    sentence = block(INSTANCES, "needs 3g.40gb").text.strip()
    node = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": "n"},
        "status": {"allocatable": {"pods": "99", "cpu": "9"}},
    }
    foreign = encode_foreign({"GPU-a": OnCard((ForeignInstance(MigSlice("3g.40gb", 0, 4)),))})
    device = {
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "kind": "Device",
        "metadata": {
            "name": "n",
            "annotations": {names.FOREIGN_INSTANCES: foreign},
            "labels": {
                "node.koordinator.sh/gpu-vendor": "nvidia",
                "node.koordinator.sh/gpu-model": "A100-SXM4-80GB",
            },
        },
        "spec": {
            "devices": [
                {
                    "type": "gpu",
                    "id": "GPU-a",
                    "minor": 0,
                    "health": True,
                    "resources": {
                        "koordinator.sh/gpu-core": "100",
                        "koordinator.sh/gpu-memory": "80Gi",
                        "koordinator.sh/gpu-memory-ratio": "100",
                    },
                }
            ]
        },
    }
    config = json.dumps({"nodeconfig": [{"name": "n", "operatingmode": "mig"}]})
    settings = config_map("hami-device-plugin", "config.json", config)

    found = scheduled(node, device, settings, pod("a", "3g"), pod("b", "3g"))

    assert said_of("b", found).endswith(f"({sentence})")


def test_a_plan_of_restarts_is_printed_as_shown(tmp_path: Path) -> None:
    """All lines of `partage simulate repack`."""
    shown = block(INSTANCES, "batch/big waits").text
    held = [
        bound(pod(name, "1g", "batch"), record(name, "1g.5gb", start, 1, "batch"), "n")
        for name, start in (("a", 0), ("b", 4))
    ]
    dump = tmp_path / "dump.yaml"
    node = card("GPU-a", "NVIDIA A100-SXM4-40GB", 40960)
    dump.write_text(yaml.safe_dump_all([node, *held, pod("big", "3g", "batch")]), "utf-8")

    done = CliRunner().invoke(
        main, ["simulate", "repack", str(dump), "--may-restart", "batch/*"], env={"COLUMNS": "200"}
    )

    assert done.exit_code == 0, done.output
    assert plain(shown) in plain(done.stdout)


def test_what_is_free_in_sum_is_on_no_card_as_shown(tmp_path: Path) -> None:
    """Four cards of which pods have 60 % each, and a pod that asks for two halves."""
    shown = block("docs/how-to/find-out-why-a-pod-waits.md", "team/train-0 waits").text

    def asks(name: str, cards: int, cores: int) -> Document:
        limits = {
            "nvidia.com/gpu": cards,
            "nvidia.com/gpucores": cores,
            "nvidia.com/gpumem-percentage": 30,
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "team"},
            "spec": {
                "containers": [{"name": "main", "image": "x", "resources": {"limits": limits}}]
            },
        }

    node = card("GPU-a", "NVIDIA A100-SXM4-80GB", 81920, mode="hami-core", name="gpu-a")
    registered = node["metadata"]["annotations"]
    (one,) = json.loads(registered["hami.io/node-nvidia-register"])
    registered["hami.io/node-nvidia-register"] = json.dumps(
        [{**one, "id": f"GPU-{n}", "index": n} for n in range(4)]
    )
    dump = tmp_path / "dump.yaml"
    pods = [*(asks(f"run-{n}", 1, 60) for n in range(4)), asks("train-0", 2, 50)]
    dump.write_text(yaml.safe_dump_all([node, *pods]), "utf-8")

    done = CliRunner().invoke(main, ["explain", "team/train-0", "-f", str(dump)])

    assert done.exit_code == 3, done.output
    assert "".join(f"{line.rstrip()}\n" for line in done.stdout.splitlines()).startswith(shown)
    dump.write_text(yaml.safe_dump_all([node, *pods[:4], asks("train-0", 4, 40)]), "utf-8")
    assert CliRunner().invoke(main, ["explain", "team/train-0", "-f", str(dump)]).exit_code == 0


def plain(text: str) -> str:
    """The text without the width of the paper."""
    return re.sub(r"\s+", " ", text).strip()


def test_the_second_scheduler_is_configured_as_the_program_does() -> None:
    """The page for running it by hand has what the chart renders, names left to Partage included."""
    shown = yaml.safe_load(block("docs/how-to/run-the-scheduler.md", "apiVersion").text)
    files = (f"/etc/partage/{name}" for name in ("ca.crt", "client.crt", "client.key"))
    access = ExtenderAccess("https://partage-scheduler.partage-system.svc:8443", *files)
    left = left_to_the_ledger(FAMILIES, Settings())
    profiles = [one["schedulerName"] for one in shown["profiles"]]

    assert profiles == ["partage-scheduler", "koord-scheduler", "hami-scheduler"]
    assert shown == kube_scheduler_config(access, left, profiles)


def test_the_plugin_is_configured_as_the_page_says() -> None:
    """The page shows the plugins of each profile that the program writes, with the weight of the Go side."""
    shown = yaml.safe_load(block("docs/reference/plugin.md", "apiVersion").text)
    made = kube_scheduler_config(None, [], ["partage-scheduler"])

    assert [one["plugins"] for one in shown["profiles"]] == [
        one["plugins"] for one in made["profiles"]
    ]
    source = (ROOT / "kube-scheduler/partage/plugin.go").read_text(encoding="utf-8")
    (weight,) = re.findall(r"^const Weight = (\d+)$", source, re.MULTILINE)
    assert made["profiles"][0]["plugins"]["multiPoint"]["enabled"][0]["weight"] == int(weight)


def test_nri_is_on_with_what_the_page_prints(tmp_path: Path) -> None:
    """`doctor` finds it off without those two lines in containerd 1.7's file, and on with them."""
    shown = block("docs/how-to/run-the-agent.md", "[plugins").text
    file = tmp_path / "etc/containerd/config.toml"
    file.parent.mkdir(parents=True)
    found = []
    for text in ("version = 2\n", f"version = 2\n{shown}"):
        file.write_text(text, encoding="utf-8")
        found.append("nri-off" in {one.check for one in examined(tmp_path)})

    assert found == [True, False]


def test_the_file_of_limits_is_what_the_agent_writes() -> None:
    """Read and written again, the page's example is the same to the last byte."""
    shown = block("docs/isolation.md", "partage-limits").text

    assert render(read(shown, "the page")) == shown


def test_simulated_devices_are_those_of_the_file(tmp_path: Path) -> None:
    """Cards, faults and RDMA cards with their functions, as the page's comments say."""
    file = tmp_path / "devices.yaml"
    file.write_text(block("docs/reference/agent-discovery.md", "model:").text, encoding="utf-8")

    done = CliRunner().invoke(main, ["discover", "--simulated", str(file), "-o", "device"])

    assert done.exit_code == 0, done.output
    devices = yaml.safe_load(done.stdout)["spec"]["devices"]
    gpus = [one for one in devices if one["type"] == "gpu"]
    rdma = [one for one in devices if one["type"] == "rdma"]
    assert len(gpus) == 8
    assert [one["minor"] for one in gpus if not one["health"]] == [0, 2]
    assert "Xid 79" in done.stdout
    assert [len(one["vfGroups"][0]["vfs"]) for one in rdma] == [8] * 4


def test_the_outline_of_the_json_has_the_keys_that_come() -> None:
    """Every key of the page is printed for the examples, and no other."""
    shown = block("docs/reference/schedule.md", "{").text
    done = CliRunner().invoke(main, ["schedule", str(ROOT / "examples"), "-o", "json"])
    taken = card("GPU-a", "A100-SXM4-40GB", 40960)
    held = bound(pod("a", "1g"), record("a", "1g.5gb", 0, 1), "n")

    told = {*re.findall(r'"(\w+)"', shown)}
    found = keys(json.loads(done.stdout)) | keys(scheduled(taken, held)) | {"foreign"}

    assert found == told


def keys(value: Any) -> set[str]:
    """Keys of a document; keys that are names of nodes, containers or codes are none."""
    if isinstance(value, list):
        return {key for one in value for key in keys(one)}
    if not isinstance(value, dict):
        return set()
    found = set(value)
    for key, inner in value.items():
        if key == "nodes" and isinstance(inner, dict):
            found |= keys(list(inner.values()))
        elif key not in ("annotations", "labels", "env", "allocatable", "counts"):
            found |= keys(inner)
    return found


def test_values_for_the_agent_are_values_of_the_chart() -> None:
    """Each key is there, but below those that are free; the chart would refuse any other."""
    page = "docs/how-to/install.md"
    shown = [one.text for one in BLOCKS if one.page == page and one.first == "agent:"]
    values = yaml.safe_load((ROOT / "deploy/helm/partage/values.yaml").read_text("utf-8"))

    def known(given: Document, there: Document, where: str) -> None:
        for key, value in given.items():
            assert key in there, f"{where}{key}"
            if isinstance(value, dict) and there[key]:
                known(value, there[key], f"{where}{key}.")

    assert shown
    for text in shown:
        known(yaml.safe_load(text), values, "")


def test_prometheus_finds_every_program_by_its_labels_and_ports() -> None:
    """The page's relabelling keeps the chart's pods and the ports that serve metrics."""
    config = yaml.safe_load(block("docs/how-to/watch-it.md", "scrape_configs").text)
    plain_job, webhook_job = config["scrape_configs"]
    text = "\n---\n".join(
        path.read_text("utf-8") for path in (ROOT / "deploy/kustomize/default").glob("*.yaml")
    )
    programs = [
        one["spec"]["template"]
        for one in yaml.safe_load_all(text)
        if one and one["kind"] in ("Deployment", "DaemonSet")
    ]
    kept = {rule["source_labels"][0]: rule["regex"] for rule in plain_job["relabel_configs"][:2]}
    part = kept["__meta_kubernetes_pod_label_app_kubernetes_io_part_of"]
    ports = kept["__meta_kubernetes_pod_container_port_name"].split("|")

    labels = [template["metadata"]["labels"] for template in programs]
    assert all(one["app.kubernetes.io/part-of"] == part for one in labels)
    component = webhook_job["relabel_configs"][0]["regex"]
    assert component in {one["app.kubernetes.io/component"] for one in labels}
    served = {
        port["name"]
        for template in programs
        for container in template["spec"]["containers"]
        for port in container.get("ports", ())
    }
    assert "read" in ports
    assert served & {*ports}


def test_the_rules_have_the_name_that_the_page_loads() -> None:
    """The last part of the path is the file's own name."""
    config = yaml.safe_load(block("docs/how-to/watch-it.md", "rule_files").text)

    assert {Path(one).name for one in config["rule_files"]} == {"alerts.yaml"}
    assert (ROOT / "deploy/observability/alerts.yaml").is_file()


def test_the_drawing_names_packages() -> None:
    """The packages that the architecture's picture names exist."""
    drawn = block("ARCHITECTURE.md", "manifests").text

    for name in ("wire", "placement"):
        assert name in drawn
        assert (ROOT / "src/partage" / name).is_dir()
    for name in ("ledger", "engine"):
        assert name in drawn
        assert list((ROOT / "src/partage").glob(f"*/{name}.py"))


def test_the_drawn_cards_are_full() -> None:
    """What the sharers have and what is free is the card; instances have the memory in their profiles' names."""
    drawn = block("docs/concepts.md", "card 0").text
    percents, sizes = (
        [int(one) for one in re.findall(rf"(\d+)\s?{unit}", drawn)] for unit in ("%", "GiB")
    )
    profiles = re.findall(r"g\.(\d+)gb +(\d+) GiB", drawn)

    assert sum(percents) == 200
    assert sum(sizes) == 3 * 80
    assert len(profiles) == 2
    assert all(named == drawn for named, drawn in profiles)


def test_the_drawn_programs_are_those_of_the_chart() -> None:
    """Programs, their pods and the commands beside them."""
    drawn = block("docs/concepts.md", "in the cluster").text
    chart = yaml.safe_load((ROOT / "deploy/helm/partage/values.yaml").read_text("utf-8"))

    assert f"webhook, {chart['webhook']['replicas']} pods" in drawn
    assert f"scheduler, {chart['scheduler']['replicas']} pods" in drawn
    assert chart["scheduler"]["seam"] == "plugin"
    commands = re.findall(r"partage (\w+)", drawn)
    assert len(commands) == 3
    assert [one for one in commands if CliRunner().invoke(main, [one, "--help"]).exit_code] == []


def test_the_two_ways_of_asking_are_there() -> None:
    """The plugin sends the Binding itself; the extender has the verbs that are drawn."""
    drawn = block("docs/concepts.md", "plugin").text
    plugin = (ROOT / "kube-scheduler/partage/plugin.go").read_text("utf-8")
    written = (ROOT / "deploy/kube_scheduler_config.py").read_text("utf-8")
    verbs = re.search(r"HTTPS: ([\w, ]+?) ──", drawn)

    assert "p.send(ctx, binding)" in plugin
    assert verbs
    assert [one for one in verbs[1].split(", ") if f'"{one}Verb": "{one}"' not in written] == []


def test_the_drawings_use_words_that_exist() -> None:
    """Keys, reasons and what becomes of new pods, as the tables have them."""
    way = block("docs/concepts.md", "user ── pod").text
    away = block("docs/concepts.md", "webhook away").text
    keys = (ROOT / "docs/reference/annotations.md").read_text("utf-8")

    drawn = re.findall(r"partage\.io/\w+", way)
    assert drawn
    assert [key for key in drawn if f"`{key}`" not in keys] == []
    codes = {word for word in re.findall(r": (\w+) ", away) if word[0].isupper()}
    assert codes <= {one.value for one in ReasonCode}
    assert len(codes) == 3
    devices = {one.id: one.devices for one in OUTAGES}
    for part, row in (
        ("webhook", "webhook"),
        ("kube-scheduler", "kube-scheduler"),
        ("service", "scheduler service"),
    ):
        (line,) = (one for one in away.splitlines() if one.startswith(f"{row} away"))
        assert f"new pods with devices: {devices[part]}" in line


def test_a_nodes_files_go(tmp_path: Path) -> None:
    """Mounted seats and all, in a name space of mounts where `/var/lib` and `/run` are folders of the test."""
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode:  # noqa: S607 # util-linux
        pytest.skip("mounts of one's own need root and util-linux")
    left = tmp_path / "left"
    script = f"""
    set -e
    mkdir {tmp_path}/lib {tmp_path}/run
    mount --bind {tmp_path}/lib /var/lib
    mount --bind {tmp_path}/run /run
    mkdir -p /var/lib/partage/agent /var/lib/partage/isolation/seats/a /var/lib/other /run/partage /run/cdi
    mkdir /run/lock; touch /var/lib/partage/agent/containers.jsonl /run/cdi/partage.io-mig_a_0.json /run/cdi/nvidia.yaml
    mount -t tmpfs partage /var/lib/partage/isolation/seats/a
    touch /var/lib/partage/isolation/seats/a/seat
    """
    lines = block("docs/how-to/uninstall.md", "awk").text.replace("/var/run", "/run")

    subprocess.run(
        [  # noqa: S607 # util-linux
            "unshare",
            "--mount",
            "--propagation",
            "private",
            "bash",
            "-c",
            f"{script}\n{lines}\nfind /var/lib /run -type f > {left}",
        ],
        check=True,
    )

    assert left.read_text().split() == ["/run/cdi/nvidia.yaml"]
    assert not (tmp_path / "lib/partage").exists()
    assert (tmp_path / "lib/other").is_dir()
