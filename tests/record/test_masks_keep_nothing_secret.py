"""Whatever words people put into objects, a masked snapshot holds none of them, and decides as the plain one."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from hypothesis import example, given
from hypothesis import strategies as st

from partage.cli.main import main
from partage.vendors import names
from partage.wire import masking, permit
from partage.wire.cluster import assemble
from partage.wire.documents import decode, read_paths
from partage.wire.masking import Mask
from partage.wire.snapshot import Snapshot, plain, snapshot_lines

EXAMPLES = Path(__file__).parents[2] / "examples"
Json = dict[str, Any]


def secret(number: int) -> str:
    """A word that could be a customer's name."""
    return f"zq{number:02d}secretly"


def planted() -> list[Json]:
    """Objects of every kind with a secret in each place where a word may stand."""
    count = iter(range(1000))

    def s() -> str:
        return secret(next(count))

    def meta(**more: Any) -> Json:
        return {
            "name": s(),
            "labels": {s(): s(), f"{s()}.com/{s()}": "x", f"koordinator.sh/{s()}": s()},
            "annotations": {f"partage.io/{s()}": s(), f"hami.io/{s()}": s(), s(): s()},
            "finalizers": [s(), f"{s()}.io/{s()}"],
            **more,
        }

    node = {"kind": "Node", "apiVersion": "v1", "metadata": meta(), "spec": {}, "status": {}}
    node["metadata"]["labels"] |= {
        "kubernetes.io/hostname": s(),
        "koordinator.sh/gpu-isolation-provider": s(),
        "qgpu-device-enable": s(),
    }
    node["metadata"]["annotations"] |= {
        "hami.io/mutex.lock": f"2026-01-01T00:00:00Z,{s()},{s()}",
        "cambricon.com/dsmlu.lock": f"{s()}/{s()}",
        "partage.io/agent-notes": json.dumps([{"code": "X", "text": f"on {s()}"}]),
        "hami.io/device-cordon": s(),
        "hami.io/node-nvidia-score": json.dumps([{"uuid": s(), "score": {s(): 3}}]),
    }
    node["spec"] = {"taints": [{"key": f"{s()}/{s()}", "value": s(), "effect": "NoSchedule"}]}
    node["status"] = {"allocatable": {f"{s()}.io/thing": "1", "cpu": "8"}, "capacity": {s(): "1"}}
    device = {
        "kind": "Device",
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "metadata": meta(),
        "spec": {
            "devices": [
                {
                    "type": "gpu",
                    "id": s(),
                    "minor": 0,
                    "health": True,
                    "labels": {s(): s()},
                    "resources": {f"{s()}/x": "1"},
                    "topology": {"pcieID": s(), "busID": s()},
                    "vfGroups": [{"labels": {s(): s()}, "vfs": [{"minor": 1, "busID": s()}]}],
                    "conditions": [{"type": s(), "status": "True", "reason": s(), "message": s()}],
                }
            ]
        },
    }
    hint = {
        "gpu": {"selector": {"matchLabels": {s(): s()}}, "vfSelector": {"matchLabels": {"a": s()}}}
    }
    pod = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": meta(
            namespace=s(),
            uid=s(),
            generateName=s(),
            ownerReferences=[{"kind": "Job", "name": s()}],
        ),
        "spec": {
            "nodeName": s(),
            "schedulerName": s(),
            "priorityClassName": s(),
            "nodeSelector": {s(): s()},
            "schedulingGates": [{"name": s()}],
            "overhead": {f"{s()}/y": "1"},
            "tolerations": [{"key": s(), "operator": "Equal", "value": s()}],
            "containers": [
                {
                    "name": s(),
                    "image": s(),
                    "env": [{"name": s(), "value": s()}],
                    "args": [s()],
                    "resources": {"limits": {f"{s()}/z": "1", "koordinator.sh/gpu": "50"}},
                }
            ],
            "initContainers": [{"name": s(), "command": [s()]}],
            "affinity": {
                "nodeAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": {
                        "nodeSelectorTerms": [
                            {
                                "matchExpressions": [
                                    {"key": s(), "operator": "In", "values": [s()]}
                                ],
                                "matchFields": [
                                    {"key": "metadata.name", "operator": "In", "values": [s()]}
                                ],
                            }
                        ]
                    }
                },
                "podAffinity": {
                    "requiredDuringSchedulingIgnoredDuringExecution": [
                        {
                            "labelSelector": {"matchLabels": {s(): s()}},
                            "namespaces": [s()],
                            "topologyKey": s(),
                        }
                    ]
                },
            },
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": s(), "labelSelector": {"matchLabels": {s(): s()}}}
            ],
        },
        "status": {
            "phase": "Pending",
            "nominatedNodeName": s(),
            "conditions": [
                {"type": s(), "status": "False", "reason": s(), "message": f"see {s()}"}
            ],
            "containerStatuses": [{"name": s(), "state": {"terminated": {"exitCode": 1}}}],
        },
    }
    pod["metadata"]["annotations"] |= {
        "scheduling.koordinator.sh/device-allocate-hint": json.dumps(hint),
        "nvidia.com/use-gpuuuid": s(),
        "nvidia.com/nouse-gputype": f"A100,{s()}",
        "hami.io/vgpu-node": s(),
        "hami.io/vgpu-devices-allocated": f"{s()},NVIDIA,100,10:;",
        f"tke.cloud.tencent.com/qgpu-pgpu-{s()}": "0",
        "partage.io/allocation": json.dumps(
            {"node": s(), "grants": [{"container": s(), "uuid": s()}]}
        ),
        "scheduling.koordinator.sh/device-allocated": json.dumps(
            {"gpu": [{"minor": 0, "id": s()}]}
        ),
        "partage.io/traceparent": s(),
        "partage.io/original-request": f'{{"{s()}": "{s()}"}}',
        "partage.io/node-policy": s(),
    }
    maps = [
        {
            "kind": "ConfigMap",
            "apiVersion": "v1",
            "metadata": {"name": name, "namespace": s(), "labels": {"a": s()}},
            "data": data,
        }
        for name, data in (
            (
                f"{s()}-scheduler-device",
                {
                    "device-config.yaml": f"# {s()}\nnvidia:\n  resourceCountName: {s()}/gpu\n  {s()}: {s()}\n"
                },
            ),
            (
                f"{s()}-metax-device-config",
                {"nodes-config": f"- nodeName: {s()}\n  mode: native  # {s()}\n"},
            ),
            ("partage-config", {"policy": s(), s(): s()}),
        )
    ]
    quota = {
        "kind": "ResourceQuota",
        "apiVersion": "v1",
        "metadata": meta(namespace=s()),
        "spec": {
            "hard": {f"requests.{s()}/gpu": "1", s(): "2"},
            "scopeSelector": {
                "matchExpressions": [
                    {"scopeName": "PriorityClass", "operator": "In", "values": [s()]}
                ]
            },
        },
    }
    priority = {
        "kind": "PriorityClass",
        "apiVersion": "scheduling.k8s.io/v1",
        "metadata": meta(),
        "value": 5,
    }
    asked = {
        "requests": [
            {
                "name": s(),
                "exactly": {
                    "deviceClassName": s(),
                    "selectors": [{"cel": {"expression": f"device.driver == '{s()}'"}}],
                    "tolerations": [{"key": f"{s()}/a", "operator": "Exists", "value": s()}],
                },
            }
        ],
        "config": [{"opaque": {"driver": s(), "parameters": {s(): s()}}}],
    }
    allocated = {
        "allocation": {
            "devices": {
                "results": [{"request": s(), "driver": s(), "pool": s(), "device": s()}],
            },
            "nodeSelector": {
                "nodeSelectorTerms": [
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [s()]}]}
                ]
            },
        },
        "reservedFor": [{"resource": "pods", "name": s(), "uid": s()}],
    }
    expression = (
        f"device.attributes[\"{s()}\"].{s()} == '{s()} {s()}' && true // {s()}\n && {s()} == 1"
        f' || """{s()}""" == "\\"{s()}"'
    )
    dra = {"apiVersion": "resource.k8s.io/v1"}
    claims = [
        dra
        | {
            "kind": "DeviceClass",
            "metadata": meta(),
            "spec": {"selectors": [{"cel": {"expression": expression}}]},
        },
        dra
        | {
            "kind": "ResourceClaim",
            "metadata": meta(namespace=s()),
            "spec": {"devices": asked},
            "status": allocated,
        },
        dra
        | {
            "kind": "ResourceClaimTemplate",
            "metadata": meta(namespace=s()),
            "spec": {"spec": {"devices": asked}},
        },
        dra
        | {
            "kind": "ResourceSlice",
            "metadata": meta(),
            "spec": {
                "driver": "gpu.partage.io",
                "nodeName": s(),
                "pool": {"name": s(), "generation": 1, "resourceSliceCount": 1},
                "devices": [{"name": s(), "attributes": {s(): {"string": s()}}}],
            },
        },
    ]
    assert next(count) > 100
    return [node, device, pod, *maps, quota, priority, *claims]


def masked(objects: list[Json], key: bytes = b"k" * 16) -> Iterator[Json]:
    """What a masked snapshot holds of the objects."""
    documents = decode(
        "x.json", json.dumps({"kind": "List", "apiVersion": "v1", "items": objects}).encode()
    ).documents
    found = [one for one in map(plain, documents) if one is not None]
    mask = Mask(key, (one for one in found if one["kind"] in ("Node", "Device")))
    return map(mask.object, found)


def test_no_planted_word_is_left() -> None:
    """More than a hundred words are planted, in keys and values, documents within texts and comments."""
    objects = planted()
    found = [*masked(objects)]

    assert [one["kind"] for one in found] == [one["kind"] for one in objects]
    text = json.dumps(found)
    left = [number for number in range(1000) if secret(number) in text]
    assert not left, text[text.index(secret(left[0])) - 200 :][:300]
    assert "secretly" not in text.lower()


def test_addresses_stay_and_short_names_of_their_letters_do_not() -> None:
    """A name such as `abe` is no part of an address."""
    places = {"pcieID": "pci0000:ae", "busID": "0000:af:00.0"}
    entry = {"type": "rdma", "minor": 1, "id": "0000:be:00.1", "labels": {"team": "abe"}}
    card = {"type": "gpu", "minor": 0, "id": "GPU-0", "topology": places}
    device = {
        "kind": "Device",
        "apiVersion": "scheduling.koordinator.sh/v1alpha1",
        "metadata": {"name": "n", "labels": {"cafe": "bea"}},
        "spec": {"devices": [card, entry]},
    }
    (found,) = masked([device])

    assert found["spec"]["devices"][0]["topology"] == places
    assert found["spec"]["devices"][1]["id"] == "0000:be:00.1"
    said = json.dumps([found["metadata"], found["spec"]["devices"][1]["labels"]])
    assert not [word for word in ('"abe"', '"cafe"', '"bea"') if word in said]


def test_addresses_of_machines_are_no_numbers() -> None:
    """This includes a node that is named by its own address; a driver's version is one."""
    node = {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {
            "name": "10.20.30.40",
            "labels": {
                "kubernetes.io/hostname": "10.20.30.40",
                "rack": "172.16.254.1",
                "nvidia.com/cuda.driver-version.full": "535.104.05",
            },
        },
    }
    (found,) = masked([node])

    labels = found["metadata"]["labels"]
    assert labels["kubernetes.io/hostname"] == found["metadata"]["name"]
    assert "535.104.05" in labels.values()
    assert not [one for one in ("10.20", "172.16") if one in json.dumps(found)]


def told(text: str) -> str:
    """A masked annotation of a protocol with this text."""
    pod = {"kind": "Pod", "metadata": {"name": "a", "annotations": {names.HAMI_USE_TYPE: text}}}
    found: str = Mask(b"k" * 32, [pod]).object(pod)["metadata"]["annotations"][names.HAMI_USE_TYPE]
    return found


BESIDE = st.one_of(
    st.text("0123456789abcdefgkmM.:;,-+/%=|_ TZ", max_size=8),
    st.sampled_from(
        [
            "2026-01-01T00:00:",
            "2026-01-01T00:00:00",
            "0000:af:00.0",
            "pci0000:ae",
            "GPU-",
            "limits.",
        ]
    ),
)
ADDRESSES = st.one_of(
    st.ip_addresses(v=4).map(str),
    st.ip_addresses(v=6).map(str),
    st.ip_addresses(v=6).map(lambda one: one.exploded),
    st.ip_addresses(v=4).map("::ffff:{}".format),
)


@given(BESIDE, ADDRESSES, BESIDE)
@example("", "10.1.2.3", ".")
@example("+", "10.1.2.3", "")
@example("", "10.1.2.3", "k")
@example("", "10.1.2.3", "e1")
@example("2026-01-01T", "10.1.2.3", "Z")
@example("", "2001:470:1:18::115", "")
def test_no_address_of_a_machine_stays_in_any_text(before: str, address: str, after: str) -> None:
    """A full stop, a sign or a unit beside it does not make it a number, nor a colon two words."""
    for one in (address, address.upper()):
        assert one not in told(f"{before}{one}{after}")


def test_no_part_of_an_address_stays() -> None:
    """Each part alone looks like a number."""
    for address in ("2001:470:1:18::115", "-2001:470::1", "2001:470::115/64", "::ffff:10.1.2.3"):
        assert not [part for part in ("2001", "470", "115", "10.1") if part in told(address)]


def test_a_uuid_of_no_card_is_masked() -> None:
    """It may be of a subscription or an order. Only those with a card's own prefix stay."""
    plain = "12345678-1234-1234-1234-123456789012"
    assert told(f"GPU-{plain},MIG-{plain}") == f"GPU-{plain},MIG-{plain}"
    assert "SECRET" not in told(f"SECRET-{plain}")
    assert plain not in told(plain)


def test_a_model_that_is_an_address_is_masked() -> None:
    """Models of cards stay everywhere, and a label is free text."""
    node = {
        "kind": "Node",
        "metadata": {"name": "n", "labels": {names.GPU_MODEL: "10.1.2.3 2001:db8::1"}},
    }
    (found,) = masked([node])
    assert not [one for one in ("10.1.2.3", "2001:db8") if one in json.dumps(found)]


def test_a_mask_needs_no_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the library that evaluates CEL, which an extra brings, the same words stay."""
    before = [*masked(planted())]
    masking._words.cache_clear()
    masking._words_in_small.cache_clear()
    monkeypatch.setitem(sys.modules, "celpy", None)
    monkeypatch.delitem(sys.modules, "partage.wire.cel", raising=False)

    assert [*masked(planted())] == before


def test_what_is_replaced_is_replaced_alike() -> None:
    """A node's name in a lock, a selector, a record and a ConfigMap is one mask; another key gives another."""
    node = {
        "kind": "Node",
        "apiVersion": "v1",
        "metadata": {"name": "alpha", "labels": {"team": "blue"}},
    }
    pod = {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": "p", "namespace": "a", "annotations": {"hami.io/vgpu-node": "alpha"}},
        "spec": {
            "nodeName": "alpha",
            "nodeSelector": {"team": "blue"},
            "containers": [{"name": "c"}],
        },
    }
    (one, of), (other, _) = (masked([node, pod], key) for key in (b"a" * 16, b"b" * 16))

    name = one["metadata"]["name"]
    assert of["spec"]["nodeName"] == of["metadata"]["annotations"]["hami.io/vgpu-node"] == name
    assert of["spec"]["nodeSelector"] == one["metadata"]["labels"]
    assert other["metadata"]["name"] != name != "alpha"


def test_rules_for_wishes_are_for_the_same_pods_under_a_mask() -> None:
    """Namespaces and service accounts of rules and of pods, a permit beside a record, and a pod without an account."""
    rules = """
        [{name: shop, namespaces: [acme, other], serviceAccounts: [acme-web, default], online: true, onlinePods: 9},
         {name: all, namespaces: ["*"], policy: bs}]
    """
    said = '{"v":1,"uid":"u-acme-%d","rule":"shop","online":true}'
    config = {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"name": "partage-config", "namespace": "kube-system"},
        "data": {"permits": rules},
    }
    limits = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory": "4Gi"}
    pods = [
        {
            "kind": "Pod",
            "apiVersion": "v1",
            "metadata": {
                "name": f"acme-{number}",
                "namespace": namespace,
                "uid": f"u-acme-{number}",
                "annotations": {names.QGPU_APP_CLASS: "online", names.PERMIT: said % number},
            },
            "spec": {
                "containers": [{"name": "main", "resources": {"limits": limits}}],
                **({"serviceAccountName": account} if account else {}),
            },
        }
        for number, (namespace, account) in enumerate(
            [
                ("acme", "acme-web"),
                ("acme", ""),
                ("acme", "default"),
                ("acme", "cron"),
                ("x", "cron"),
            ]
        )
    ]
    found = [*masked([config, *pods])]
    assert "acme" not in json.dumps(found)
    assert "shop" not in json.dumps(found)

    def wishes(objects: list[Json]) -> list[Any]:
        text = json.dumps({"kind": "List", "apiVersion": "v1", "items": objects})
        read = assemble([decode("x.json", text.encode())])
        assert not read.notes
        rules = read.settings.isolation.permits
        assert len(rules) == 2
        given = [permit.read(one.view.annotations, one.pod.uid) for one in read.pods]
        assert {one and one.rule for one in given} == {rules[0].name}
        return [
            (
                one.pod.wish
                and ([rule.name for rule in rules].index(one.pod.wish.rule), one.pod.wish.pods)
            )
            for one in read.pods
        ]

    assert (
        wishes([config, *pods]) == wishes(found) == [(0, 9), (0, 9), (0, 9), (1, None), (1, None)]
    )


def test_a_word_of_a_thousand_prefixes_is_masked() -> None:
    """Each prefix was looked behind by itself, so that one annotation ended the command."""
    word = "limits." * 5000 + secret(0)
    pod = {"kind": "Pod", "metadata": {"name": "a", "annotations": {names.HAMI_USE_TYPE: word}}}
    (found,) = masked([pod])
    assert secret(0) not in json.dumps(found)
    quota = {
        "kind": "ResourceQuota",
        "metadata": {"name": "q"},
        "spec": {"hard": {"limits.cpu": 1}},
    }
    assert next(iter(masked([quota])))["spec"] == quota["spec"]


@pytest.mark.parametrize("name", sorted(one.name for one in EXAMPLES.iterdir() if one.is_dir()))
def test_the_examples_decide_alike_under_a_mask(name: str, tmp_path: Path) -> None:
    """The same cards and amounts for each pod, and the same codes for those that wait."""
    documents = [
        one
        for source, data in read_paths([EXAMPLES / name])
        for one in decode(source, data).documents
    ]
    told = (plain(one, masked=True) for one in documents)
    objects = [one for one in told if one is not None]
    mask = Mask(b"k" * 16, (one for one in objects if one["kind"] in ("Node", "Device")))
    found = []
    for path, held in (
        (tmp_path / "plain.json", objects),
        (tmp_path / "masked.json", [*map(mask.object, objects)]),
    ):
        path.write_bytes(b"".join(snapshot_lines(Snapshot(), held)))
        done = CliRunner().invoke(main, ["schedule", str(path), "-o", "json"])
        assert done.exit_code in (0, 3), done.output
        pods = json.loads(done.stdout)["pods"]
        assert pods
        found.append(
            [
                (
                    [
                        (g["type"], g["minor"], g["core_milli"], g["memory_bytes"])
                        for g in pod["allocations"]
                    ],
                    pod["reason"] and pod["reason"]["code"],
                )
                for pod in pods
            ]
        )

    assert found[0] == found[1]
