"""A user may make pods or claims of a megabyte each, and all instances keep all of them.

A pod of a megabyte of short values took seventeen, so that ninety pods without any device ended every instance. Three
hundred pods of 256 KiB of short annotations did the same, which take 26 times their text.
"""

import json
import tracemalloc
from typing import Any

import msgspec
import pytest

from partage.daemon.watched import (
    LiveClaim,
    LiveConfigMap,
    LiveDevice,
    LiveNode,
    LivePod,
    as_document,
)
from partage.kube.objects import HasMeta
from partage.model.selector import NodeConstraint
from partage.vendors import names
from partage.vendors.catalog import FAMILIES
from partage.vendors.reserved import RESERVED
from partage.vendors.settings import Settings
from partage.vendors.traits import ROWS
from partage.wire import shapes
from partage.wire.claims import is_protected
from partage.wire.context import Context
from partage.wire.device_requests import asked
from partage.wire.documents import decode, size_of
from partage.wire.heeded import heeded, ours
from partage.wire.limits import LIMITS, READ, beyond
from partage.wire.pods import translate_pod

Manifest = dict[str, Any]
SIZE = 300_000
CONTEXT = Context.of(Settings())
DEVICE = "nvidia.com/gpu"


def pod(spec: Manifest | None = None, meta: Manifest | None = None, **amounts: str) -> Manifest:
    """A pod that asks for a card."""
    asked = {"name": "main", "resources": {"limits": {DEVICE: "1", **amounts}}}
    head = {"name": "web", "namespace": "team", "uid": "u", **(meta or {})}
    return {"metadata": head, "spec": {"containers": [asked], **(spec or {})}}


def many(one: Any) -> list[Any]:
    """As many copies as fill a pod."""
    return [one] * (SIZE // len(json.dumps(one, separators=(",", ":"))))


def keyed(value: str) -> dict[str, str]:
    """As many keys as fill a pod."""
    return {f"example.com/{number:05}": value for number in range(SIZE // 22)}


def terms(**term: Any) -> Manifest:
    """Required node affinity."""
    return {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}


def between(kind: str) -> Manifest:
    """Affinity between pods."""
    return {"podAntiAffinity": {kind: many({"topologyKey": "a", "labelSelector": {}})}}


REQUIRED, PREFERRED = (
    f"{kind}DuringSchedulingIgnoredDuringExecution" for kind in ("required", "preferred")
)
IN = {"key": "a", "operator": "In", "values": many("a")}
RULED = {"name": "b", "restartPolicyRules": many({"action": "Restart"})}
LARGE: dict[str, Manifest] = {
    "values": pod({"affinity": {"nodeAffinity": terms(matchExpressions=[IN])}}),
    "expressions": pod({"affinity": {"nodeAffinity": terms(matchExpressions=many({"key": "a"}))}}),
    "required pods": pod({"affinity": between(REQUIRED)}),
    "preferred pods": pod({"affinity": between(PREFERRED)}),
    "spreading": pod({"topologySpreadConstraints": many({"topologyKey": "a", "maxSkew": 1})}),
    "tolerations": pod({"tolerations": many({"operator": "Exists"})}),
    "gates": pod({"schedulingGates": many({"name": "a"})}),
    "claims": pod({"resourceClaims": many({"name": "a", "resourceClaimName": "b"})}),
    "node selector": pod({"nodeSelector": keyed("")}),
    "labels": pod(meta={"labels": keyed("")}),
    "annotations": pod(meta={"annotations": dict.fromkeys(map(str, range(30_000)), "")}),
    "annotations of ours": pod(
        meta={"annotations": {f"hami.io/{number}": "" for number in range(15_000)}}
    ),
    "annotations of containers": pod(
        meta={"annotations": {f"{names.QGPU_CARDS}{number}": "" for number in range(7_000)}}
    ),
    "finalizers": pod(meta={"finalizers": many("a/b")}),
    "owners": pod(meta={"ownerReferences": many({"kind": "a", "name": "a", "uid": "a"})}),
    "rules": pod({"initContainers": [RULED]}),
    "conditions": pod() | {"status": {"conditions": many({"type": "a"})}},
    "statuses": pod() | {"status": {"containerStatuses": many({"name": "a", "state": {}})}},
    "claims' statuses": pod() | {"status": {"resourceClaimStatuses": many({"name": "a"})}},
    "amounts": pod(**keyed("1")),
    "amounts of nothing on a node": pod({"nodeName": "n1"}, **keyed("0")),
}
PARAMETERS = {"opaque": {"driver": "gpu.example.com", "parameters": {"a": [[]] * 3000}}}
CLAIM = {
    "metadata": {"name": "c", "uid": "u"},
    "spec": {"devices": {"requests": [{"name": "a"}], "config": [PARAMETERS] * 32}},
    "status": {"allocation": {"devices": {"results": [], "config": [PARAMETERS] * 32}}},
}


def kept(manifest: Manifest, into: type[HasMeta]) -> tuple[HasMeta, float]:
    """The object, and how many bytes of memory it takes for a byte of text."""
    text = json.dumps(manifest, separators=(",", ":")).encode()
    decoder = msgspec.json.Decoder(into)
    decoder.decode(text)
    tracemalloc.start()
    try:
        found = decoder.decode(text)
        return found, tracemalloc.get_traced_memory()[0] / len(text)
    finally:
        tracemalloc.stop()


def filled(field: str) -> Manifest:
    """Metadata that one field fills."""
    return {
        "name": "c",
        "uid": "u",
        field: many("a/b")
        if field == "finalizers"
        else dict.fromkeys(map(str, range(30_000)), ""),
    }


ASKS: dict[str, Manifest] = {
    "selectors": {"selectors": [{"cel": {"expression": "true"}}] * 32},
    "tolerations": {
        "tolerations": [{"key": f"k{number}", "operator": "Exists"} for number in range(16)]
    },
}


@pytest.mark.parametrize("what", ASKS)
@pytest.mark.parametrize("form", ["firstAvailable", "exactly", ""])
def test_as_many_requests_as_a_claim_may_have_take_a_few_times_their_text(
    what: str, form: str
) -> None:
    """Selectors took fourteen times theirs. What is asked stays the same, and what cannot be read stays as it is."""
    asks = [{"name": f"s{number}", "deviceClassName": "x", **ASKS[what]} for number in range(8)]
    one = (
        {"firstAvailable": asks}
        if form == "firstAvailable"
        else {form: asks[0]}
        if form
        else asks[0]
    )
    requests = [{"name": f"r{number}", **one} for number in range(32)]
    spec: Manifest = {"devices": {"requests": requests}}
    found, times = kept({"metadata": {"name": "c", "uid": "u"}, "spec": spec}, LiveClaim)
    assert isinstance(found, LiveClaim)
    assert times < 7
    assert asked(found.spec) == asked(spec)

    for odd in (
        "x",
        [1],
        {"selectors": 1},
        [{"selectors": "x", "exactly": [], "firstAvailable": 2}],
    ):
        wrong = {"devices": {"requests": odd}}
        found, _ = kept({"metadata": {"name": "c", "uid": "u"}, "spec": wrong}, LiveClaim)
        assert isinstance(found, LiveClaim)
        assert found.spec == wrong


@pytest.mark.parametrize("field", ["annotations", "labels", "finalizers"])
def test_nor_do_the_metadata_of_a_claim(field: str) -> None:
    """Nothing reads a claim's labels and annotations; of its finalizers one is read, wherever it stands."""
    assert kept({"metadata": filled(field)}, LiveClaim)[1] < 2.5
    ends = {**filled(field), "finalizers": [*many("a/b"), names.CLAIM_FINALIZER]}
    found, _ = kept({"metadata": ends}, LiveClaim)
    assert is_protected(as_document("ResourceClaim", found))


@pytest.mark.parametrize("into", [LiveNode, LiveDevice, LiveConfigMap])
def test_nor_do_annotations_of_other_objects(into: type[HasMeta]) -> None:
    """A stolen node account writes those of its node."""
    assert kept({"metadata": filled("annotations")}, into)[1] < 2.5


def test_nor_does_the_page_of_a_list() -> None:
    """Each object is shortened as it is decoded, before the next one."""
    few = dict.fromkeys(map(str, range(8_000)), "")
    page = {"items": [pod(meta={"annotations": few})] * 20}
    text = json.dumps(page, separators=(",", ":")).encode()
    tracemalloc.start()
    try:
        msgspec.json.decode(text, type=_Page)
        assert tracemalloc.get_traced_memory()[1] < 2 * len(text)
    finally:
        tracemalloc.stop()


class _Page(msgspec.Struct):
    items: list[LivePod]


ANNOTATED: dict[str, dict[str, str]] = {
    "few": {"a": "ä", "b/c": "d", names.DEVICE_ALLOCATE_HINT: "{}"},
    "as many as may be": {"a": "b" * (LIMITS["bytes of annotations"] - 1)},
    "one too many": {"a": "b" * LIMITS["bytes of annotations"]},
    "short ones": dict.fromkeys(map(str, range(40_000)), ""),
    "beyond one bound": {names.DEVICE_ALLOCATE_HINT: "{" * 20_000, "a": "b"},
}


@pytest.mark.parametrize("what", ANNOTATED)
def test_what_is_dropped_still_counts(what: str) -> None:
    """The bound on all annotations is the same, and so is what a Binding must add the record to."""
    manifest = pod(meta={"annotations": ANNOTATED[what]})
    whole = as_document("Pod", msgspec.convert(manifest, shapes.Pod))
    light = as_document("Pod", kept(manifest, LivePod)[0])
    assert translate_pod(light, CONTEXT).pod.request == translate_pod(whole, CONTEXT).pod.request
    view = translate_pod(light, CONTEXT).view
    assert size_of(view.annotations) + view.dropped == size_of(ANNOTATED[what])
    assert view.annotations == {k: v for k, v in ANNOTATED[what].items() if ours(k)}


def test_each_annotation_that_a_rule_reads_is_kept() -> None:
    """Those of users, of programs, of vendors' plugins, and of any container."""
    known = {*READ, *RESERVED.annotations, *(key for row in ROWS for key in row.annotations)}
    known = known.union(*(family.heeded for family in FAMILIES), {names.ADJUST, names.TRANSLATED})
    known |= {f"{names.QGPU_CARDS}main", "hami.io/of-tomorrow"}
    given = dict.fromkeys(sorted(known), "x")
    strangers = dict.fromkeys(map(str, range(100)), "") | {"kubernetes.io/x": "", "hami.iox/y": ""}
    assert heeded({**strangers, **given}) == given
    assert heeded(given) is given


def test_a_sign_of_a_protocol_is_kept_among_thousands() -> None:
    """The first of HAMi's keys says whose a lone `nvidia.com/gpu` is, and stands in a note."""
    keys = {
        f"{domain}/{number:05}": ""
        for domain in ("a.com", "koordinator.sh")
        for number in range(1000)
    }
    keys |= {f"hami.io/{number:04}": "" for number in range(1000, 0, -1)}
    document = as_document("Pod", kept(pod(meta={"annotations": keys}), LivePod)[0])
    (note, *_) = translate_pod(document, CONTEXT).pod.request.notes
    assert note.endswith("hami's, by the annotation hami.io/0001")


@pytest.mark.parametrize("what", LARGE)
def test_a_pod_takes_hardly_more_memory_than_its_text(what: str) -> None:
    """This holds for anything that fills it."""
    assert kept(LARGE[what], LivePod)[1] < 2.5


def test_so_does_a_claim() -> None:
    """The drivers of its parameters stay: they show whether one is ours."""
    found, times = kept(CLAIM, LiveClaim)
    assert times < 2.5
    assert isinstance(found, LiveClaim)
    for part in (found.spec, (found.status or {})["allocation"]):
        assert part["devices"]["config"] == [{"opaque": {"driver": "gpu.example.com"}}] * 32


@pytest.mark.parametrize("what", sorted({*LARGE} - {"amounts of nothing on a node"}))
def test_the_bounds_refuse_the_same_pods(what: str) -> None:
    """The pod as kept is refused if the whole pod is, and the sentence names a known limit."""
    whole = msgspec.convert(LARGE[what], shapes.Pod)
    found, _ = kept(LARGE[what], LivePod)
    assert isinstance(found, LivePod)
    assert whole.spec
    assert found.spec
    said, same = (
        beyond(one.spec or shapes.PodSpec(), {}, CONTEXT.is_device) for one in (whole, found)
    )
    assert bool(said) == bool(same)
    assert not said or any(said.endswith(f"{most} are allowed") for most in LIMITS.values())


def test_what_a_bound_pod_may_hold_is_counted_whole() -> None:
    """Thousands of amounts of nothing hide no device; and thousands of labels none that Partage wrote."""
    labels = keyed("") | {names.HAMI_POD_NODE: "n1"}
    large = pod({"nodeName": "n1"}, {"labels": labels}, **keyed("0"), **{"zzz/gpu": "3"})
    found, _ = kept(large, LivePod)
    assert isinstance(found, LivePod)
    read = translate_pod(as_document("Pod", found), CONTEXT)
    assert read.view.labels[names.HAMI_POD_NODE] == "n1"
    (main,) = read.view.containers
    assert {name: str(one) for name, one in main.limits.items()} == {DEVICE: "1", "zzz/gpu": "3"}
    assert [group.request.count for group in read.pod.request.groups] == [1]


def test_pods_within_the_bounds_stay_whole() -> None:
    """Each part with as much as is allowed."""
    most = pod(
        {
            "nodeSelector": {
                f"a{number}": "b" for number in range(LIMITS["node selector labels"])
            },
            "tolerations": [{"key": f"a{number}"} for number in range(LIMITS["tolerations"])],
            "affinity": {
                "nodeAffinity": terms(
                    matchExpressions=[{"key": "a", "operator": "In", "values": ["b"] * 4096}]
                )
            },
        },
        {"labels": {f"a{number}": "b" for number in range(1000)}},
        **{f"example.com/{number}": "1" for number in range(100)},
    )
    found, _ = kept(most, LivePod)
    assert isinstance(found, LivePod)
    assert found.spec == msgspec.convert(most, shapes.Pod).spec
    assert found.metadata.labels == most["metadata"]["labels"]


_X = "9" * 900_000
COMPARED: dict[str, Manifest] = {
    "a label that a node needs": {"nodeSelector": {"zone": _X}},
    "its name": {"nodeSelector": {_X: "a"}},
    "a number": {
        "affinity": {
            "nodeAffinity": terms(
                matchExpressions=[{"key": "zone", "operator": "Gt", "values": [_X]}]
            )
        }
    },
    "a key": {"affinity": {"nodeAffinity": terms(matchExpressions=[{"key": _X}])}},
    "a node's name": {
        "affinity": {
            "nodeAffinity": terms(
                matchFields=[{"key": "metadata.name", "operator": "In", "values": ["a", _X]}]
            )
        }
    },
    "a preference": {
        "affinity": {
            "nodeAffinity": {PREFERRED: [{"preference": {"matchExpressions": [{"key": _X}]}}]}
        }
    },
    "a toleration": {"tolerations": [{"key": _X}]},
}


@pytest.mark.parametrize("what", COMPARED)
def test_no_text_is_compared_that_no_node_has(what: str) -> None:
    """Each refused node repeated it: 17 MB of an answer about 300 nodes, and 37 of an explanation."""
    (document,) = decode(
        "p.json", json.dumps(pod(COMPARED[what]) | {"apiVersion": "v1", "kind": "Pod"}).encode()
    ).documents
    translated = translate_pod(document, CONTEXT)
    fault = translated.pod.request.fault
    assert fault is not None
    assert fault.message == (
        "the pod has 900000 characters in one label or value that it compares, at most 1024 are allowed"
    )
    assert translated.pod.constraint == NodeConstraint()
    assert not translated.pod.tolerations
