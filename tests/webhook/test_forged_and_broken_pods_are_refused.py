"""Validation: records are Partage's alone, and broken requests are reported at once."""

import asyncio
import json

import pytest
from aiohttp.test_utils import TestClient, TestServer
from hypothesis import given
from hypothesis import strategies as st
from reviews import Json, container, context, pod, review, validated

from partage.vendors import names
from partage.vendors.reserved import RESERVED
from partage.webhook.server import make_app
from partage.webhook.settings import Admission
from partage.wire.documents import decode
from partage.wire.pods import translate_pod

SERVICE = "system:serviceaccount:partage-system:partage-scheduler"
WHOLE = {"koordinator.sh/gpu": "100"}
KEYS = [*sorted(RESERVED.annotations), names.QGPU_CARDS + "main"]


def _annotated(key: str, value: str = "x", **spec: object) -> Json:
    return pod(meta={"annotations": {key: value}}, **spec)


@pytest.mark.parametrize("key", KEYS)
def test_nobody_creates_a_pod_with_a_reserved_annotation(key: str) -> None:
    """Cluster administrators included; a copied manifest is the usual reason, and is named."""
    response = validated(review(_annotated(key)))

    assert not response["allowed"]
    assert response["status"]["code"] == 403
    assert f"annotation {key}" in response["status"]["message"]
    assert "copied" in response["status"]["message"]


@pytest.mark.parametrize("key", sorted(RESERVED.labels))
def test_nobody_creates_a_pod_with_a_reserved_label(key: str) -> None:
    """Node agents find their pods by these."""
    response = validated(review(pod(meta={"labels": {key: "n1"}})))

    assert f"label {key}" in response["status"]["message"]


@pytest.mark.parametrize(
    ("before", "after", "allowed"),
    [
        ({}, {names.ALLOCATION: "x"}, False),
        ({names.ALLOCATION: "x"}, {names.ALLOCATION: "y"}, False),
        ({names.ALLOCATION: "x"}, {}, False),
        ({names.ALLOCATION: "x"}, {names.ALLOCATION: "x", "mine": "1"}, True),
    ],
    ids=["added", "changed", "removed", "kept"],
)
@pytest.mark.parametrize(
    "resource", ["pods", "pods/status", "pods/ephemeralcontainers", "pods/resize"]
)
def test_a_record_is_not_changed_by_an_update(
    before: Json,
    after: Json,
    allowed: bool,  # noqa: FBT001
    resource: str,
) -> None:
    """Subresources can change annotations too."""
    old, new = (pod(meta={"annotations": given}) for given in (before, after))

    assert validated(review(new, "UPDATE", old, resource))["allowed"] is allowed


def test_a_binding_with_a_record_is_partages_alone() -> None:
    """Its annotations end up on the pod."""
    binding = {"kind": "Binding", "metadata": {"annotations": {names.ALLOCATION: "x"}}}

    for resource in ("pods/binding", "bindings"):
        assert not validated(review(binding, resource=resource))["allowed"]
        ours = review(binding, resource=resource, userInfo={"username": SERVICE})
        assert validated(ours)["allowed"]
    assert validated(review({"kind": "Binding"}, resource="pods/binding"))["allowed"]


@pytest.mark.parametrize(
    "user",
    [
        SERVICE.replace("partage-system", "evil"),
        SERVICE + "2",
        SERVICE.upper(),
        " " + SERVICE,
        "system:node:n1",
    ],
)
def test_an_account_that_looks_like_partages_writes_no_record(user: str) -> None:
    """One of the same name in another namespace, with more behind the name, or written otherwise."""
    forged = _annotated(names.ALLOCATION)
    groups = ["system:masters", "system:serviceaccounts:partage-system"]

    asked = review(forged, "UPDATE", pod(), userInfo={"username": user, "groups": groups})
    assert not validated(asked)["allowed"]


def test_partages_accounts_and_the_break_glass_group_may_write_records() -> None:
    """The glass is whole unless an operator set a group."""
    asked = review(_annotated(names.ALLOCATION))
    ours = review(_annotated(names.ALLOCATION), userInfo={"username": SERVICE})
    admin = {"username": "root", "groups": ["system:masters"]}
    broken = review(_annotated(names.ALLOCATION), userInfo=admin)

    assert not validated(asked)["allowed"]
    assert validated(ours)["allowed"]
    assert not validated(broken)["allowed"]
    assert validated(broken, admission=Admission(break_glass="system:masters"))["allowed"]


@pytest.mark.parametrize(
    ("limits", "text"),
    [
        ({"koordinator.sh/gpu": "101"}, "invalid resource unit koordinator.sh/gpu: 101"),
        ({"koordinator.sh/gpu-core": "100"}, "invalid resource device requests"),
        ({"tke.cloud.tencent.com/qgpu-core": "7"}, "qgpu"),
        ({"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "101"}, "between 0 and 100"),
        (
            {"nvidia.com/gpumem": "1", "koordinator.sh/gpu": "100"},
            "two protocols in one container",
        ),
    ],
    ids=["percentage", "combination", "step", "range", "two protocols"],
)
def test_a_broken_request_is_refused_with_the_rule_that_the_engine_would_tell(
    limits: Json, text: str
) -> None:
    """Word for word the engine's fault, so the two cannot disagree."""
    manifest = pod(container(limits=limits, requests=limits))

    response = validated(review(manifest))

    (document,) = decode("x.json", json.dumps(manifest).encode()).documents
    fault = translate_pod(document, context()).pod.request.fault
    assert fault is not None
    assert response["status"]["message"] == f"InvalidRequest: {fault.message}"
    assert text in fault.message
    assert response["status"]["code"] == 422
    details = response["status"]["details"]  # what kubectl prints of a 422
    assert (details["kind"], details["name"]) == ("Pod", manifest["metadata"]["name"])
    assert [c["message"] for c in details["causes"]] == [response["status"]["message"]]


def test_a_refusal_says_too_which_name_was_misspelt() -> None:
    """The rule names what is missing; only the note says why it is."""
    asked = {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-mem": "5Gi"}

    response = validated(review(pod(container(limits=asked))))

    assert not response["allowed"]
    (warning,) = response["warnings"]
    assert warning == (
        "container main: resource koordinator.sh/gpu-mem is none that Partage reads; "
        "did you mean koordinator.sh/gpu-memory?"
    )


def test_a_pod_that_only_wakes_a_plugin_is_warned() -> None:
    """It is taken, as before, and its author gets the warning that it gets no card."""
    manifest = pod(container(limits={"metax-tech.com/sgpu": "1"}))

    response = validated(review(manifest))

    assert response["allowed"]
    (warning,) = response["warnings"]
    assert warning.startswith("resource metax-tech.com/sgpu only wakes its vendor's plugin")
    assert "warnings" not in validated(review(manifest, before=manifest, operation="UPDATE"))


def test_what_another_configuration_could_allow_is_warned_not_refused() -> None:
    """A template that no node has today may come with the next one."""
    npu = {
        "koordinator.sh/gpu.shared": "1",
        "huawei.com/npu-core": "5",
        "huawei.com/npu-cpu": "5",
        "koordinator.sh/gpu-memory": "1Gi",
    }

    response = validated(review(pod(container(limits=npu, requests=npu))))

    assert response["allowed"]
    assert "TemplateMismatch" in response["warnings"][0]


def test_how_a_request_is_read_is_told_to_its_author() -> None:
    """It is shown by kubectl when the pod is applied."""
    response = validated(review(pod(container(limits={"nvidia.com/gpu": "1"}))))

    assert response["allowed"]
    assert "nvidia.com/gpu alone" in response["warnings"][0]


def test_a_pod_that_names_its_node_itself_is_refused() -> None:
    """No scheduler would reserve its devices; only its node reports what runs there from a file."""
    preset = pod(container(limits=WHOLE), nodeName="n1")
    mirror = pod(
        container(limits=WHOLE),
        nodeName="n1",
        meta={"annotations": {"kubernetes.io/config.mirror": "h"}},
    )
    plain = pod(container(limits={"cpu": "1"}), nodeName="n1")

    assert "nodeSelector" in validated(review(preset))["status"]["message"]
    assert "nodeSelector" in validated(review(mirror))["status"]["message"]
    for node, allowed in (("n1", True), ("n2", False)):
        user = {"username": f"system:node:{node}", "groups": ["system:nodes"]}
        assert validated(review(mirror, userInfo=user))["allowed"] is allowed
    assert validated(review(plain))["allowed"]


def test_a_privileged_container_may_not_share_by_hamis_protocol() -> None:
    """It would see every card of its node; others may, and so may all where the operator says so."""
    secure = {"securityContext": {"privileged": True}}
    hami = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "10"}
    asked = review(pod(container(), container("gpu", limits=hami, **secure)))

    assert "container gpu is privileged" in validated(asked)["status"]["message"]
    assert validated(asked, admission=Admission(deny_privileged=False))["allowed"]
    assert validated(review(pod(container(limits=WHOLE, **secure))))["allowed"]
    beside = review(pod(container("x", **secure), container("gpu", limits=hami)))
    assert validated(beside)["allowed"]


@pytest.mark.parametrize(
    "limits",
    [
        {"koordinator.sh/gpu-core": "50", "koordinator.sh/gpu-memory-ratio": "50"},
        {"koordinator.sh/gpu": "20"},
        {"kubernetes.io/gpu": "50"},
        {"tke.cloud.tencent.com/qgpu-core": "10", "tke.cloud.tencent.com/qgpu-memory": "4"},
        {
            "koordinator.sh/gpu.shared": "1",
            "koordinator.sh/gpu-core": "20",
            "koordinator.sh/gpu-memory": "4Gi",
            "metax-tech.com/sgpu": "1",
        },
    ],
    ids=["Koordinator", "Koordinator in percent", "Koordinator of old", "qGPU", "MetaX"],
)
def test_a_privileged_container_shares_by_no_protocol(limits: Json) -> None:
    """It would see the cards of others; where it takes whole cards only, and by an operator's word, it may."""
    secure = {"securityContext": {"privileged": True}}
    for manifest in (
        pod(container("gpu", limits=limits, requests=limits, **secure)),
        pod(
            container(),
            initContainers=[container("gpu", limits=limits, requests=limits, **secure)],
        ),
    ):
        asked = review(manifest)
        plain = validated(asked, admission=Admission(deny_privileged=False))
        if not plain["allowed"]:
            assert "initContainers" in manifest["spec"], plain
            continue  # it is no request of this protocol as an init container
        assert "container gpu is privileged" in validated(asked)["status"]["message"]
    plain = pod(container("gpu", limits=limits, requests=limits))
    assert validated(review(plain))["allowed"]


def test_an_update_may_not_break_a_sound_request_that_still_waits() -> None:
    """A pod that is broken already, bound or being deleted may still be changed."""
    sound = pod(container(limits=WHOLE))
    broken = pod(container(limits=WHOLE), meta={"annotations": {names.NODE_POLICY: "sideways"}})
    bound = {**broken, "spec": {**broken["spec"], "nodeName": "n1"}}
    going = {**broken, "metadata": {**broken["metadata"], "deletionTimestamp": "now"}}
    unreadable = {**broken, "spec": {**broken["spec"], "nodeSelector": []}}

    assert "sideways" in validated(review(broken, "UPDATE", sound))["status"]["message"]
    assert not validated(review(unreadable, "UPDATE", sound))["allowed"]
    ran = {**sound, "spec": {**sound["spec"], "nodeName": "n1"}}
    for new, old in ((broken, broken), (bound, ran), (going, sound), (sound, broken)):
        assert validated(review(new, "UPDATE", old))["allowed"]


@pytest.mark.parametrize(
    "manifest",
    [
        pod(container(limits=WHOLE), nodeSelector=[]),
        pod(container(limits={**WHOLE, "cpu": "much"})),
    ],
    ids=["wrong type", "no quantity"],
)
def test_a_device_pod_that_cannot_be_read_is_refused(manifest: Json) -> None:
    """The message names the field that is wrong."""
    assert "spec" in validated(review(manifest))["status"]["message"]


@pytest.mark.parametrize(
    "asked",
    [
        review(None, "DELETE", _annotated(names.ALLOCATION)),
        review(_annotated(names.ALLOCATION), namespace="kube-system"),
        review({"metadata": {"annotations": {names.ALLOCATION: "x"}}}, resource="configmaps"),
        review(pod({"resources": "odd"}, meta={"annotations": [1], "labels": {"a": 1}})),
        review({"metadata": 5, "spec": None}),
        review(pod(container(limits=WHOLE)), "CONNECT"),
        review(pod(container(limits={"koordinator.sh/gpu": "101"}), schedulerName="volcano")),
    ],
    ids=["deletion", "excluded", "other kind", "odd", "odder", "connect", "foreign"],
)
def test_everything_else_is_allowed(asked: Json) -> None:
    """Nothing here can stop what is not Partage's."""
    assert validated(asked)["allowed"]


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
)


@given(VALUES, VALUES, st.sampled_from(["cpu", "memory", "example.com/thing"]))
def test_a_pod_without_devices_passes_whatever_else_it_is(
    metadata: object, value: object, name: str
) -> None:
    """This includes one that the API server itself will refuse."""
    manifest = {
        "metadata": metadata,
        "spec": {"containers": [{"resources": {"limits": {name: value}}, "x": value}], "y": value},
    }

    assert validated(review(manifest))["allowed"]


def test_the_keys_of_policies_are_those_of_the_webhook() -> None:
    """Admission policies are generated from the same list."""
    assert names.ORIGINAL_REQUEST not in RESERVED.annotations
    assert RESERVED.in_annotations([*KEYS, "mine"]) == sorted(KEYS)


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "AdmissionReview"),
        (b"[]", "AdmissionReview"),
        (b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1"}', "request"),
        (b'{"kind":"Pod","apiVersion":"v1","request":{"uid":"1"}}', "not AdmissionReview"),
        (
            b'{"kind":"AdmissionReview","apiVersion":"admission.k8s.io/v1beta1","request":{"uid":"1"}}',
            "v1beta1",
        ),
    ],
    ids=["empty", "list", "no request", "other kind", "old version"],
)
@pytest.mark.parametrize("path", ["/webhook/mutate", "/webhook/validate"])
def test_what_is_no_review_is_answered_with_a_sentence(path: str, body: bytes, text: str) -> None:
    """Status 400, over a real socket, as the API server calls it."""

    async def scene() -> tuple[int, Json]:
        async with TestClient(TestServer(make_app(context))) as client:
            assert (await client.get("/readyz")).status == 200
            response = await client.post(path, data=body)
            return response.status, await response.json()

    status, answer = asyncio.run(scene())

    assert status == 400
    assert text in answer["message"]


def test_reviews_are_answered_over_http() -> None:
    """One application for both, with settings that may change between two calls."""
    now = [Admission(), Admission(scheduler="other")]

    async def scene() -> list[Json]:
        async with TestClient(TestServer(make_app(context, lambda: now.pop(0)))) as client:
            asked = review(pod(container(limits=WHOLE)))
            answers = [await client.post("/webhook/mutate", json=asked) for _ in range(2)]
            now.append(Admission())
            answers.append(await client.post("/webhook/validate", json=asked))
            return [(await answer.json())["response"] for answer in answers]

    first, second, third = asyncio.run(scene())

    assert first["patch"] != second["patch"]
    assert third["allowed"]


def test_a_review_without_a_resource_is_known_by_its_kind() -> None:
    """Hand-written reviews leave it out."""
    asked = review(_annotated(names.ALLOCATION))
    del asked["request"]["resource"]

    assert not validated(asked)["allowed"]
