"""Translation: pods of labelled namespaces ask by ResourceClaims, all of a pod or nothing."""

import json
from typing import Any

import pytest
from reviews import Json, answered, container, context, pod, review

from partage.apiserver.patch import json_patch
from partage.vendors import names
from partage.webhook.claiming import translate
from partage.webhook.installation import Endpoint, installation
from partage.webhook.mutating import mutate
from partage.webhook.review import decode_review
from partage.webhook.settings import Admission
from partage.wire.claim_shapes import decode_translated

HALF = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "8000", "nvidia.com/gpucores": "50"}
QGPU = {names.QGPU_CORE: "20", names.QGPU_MEMORY: "10"}


def _stored(manifest: Json, *, translated: bool = True, **request: Any) -> tuple[Json, list[str]]:
    """The pod after the webhooks, and the warnings of the last."""
    warnings: list[str] = []
    for decide in (mutate, translate) if translated else (mutate,):
        question = decode_review(json.dumps(review(manifest, **request)).encode())
        verdict = decide(question, context(), Admission())
        assert verdict.allowed, verdict.message
        manifest, warnings = json_patch(manifest, list(verdict.patch)), list(verdict.warnings)
    return manifest, warnings


def _resources(manifest: Json, index: int = 0, kind: str = "containers") -> Json:
    found: Json = manifest["spec"][kind][index]["resources"]
    return found


def test_each_container_gets_a_claim_and_keeps_what_is_no_device() -> None:
    """Names of devices go from requests and limits; the template is named by the shape; what was written is kept."""
    manifest = pod(
        container("a", limits={"cpu": "2", **HALF}, requests={"memory": "1Gi"}),
        container("b"),
        container("c", limits=QGPU),
        initContainers=[container("side", limits=HALF, restartPolicy="Always")],
        resourceClaims=[{"name": "nic", "resourceClaimName": "nic"}],
    )

    result, warnings = _stored(manifest)

    assert warnings == []
    assert _resources(result)["limits"] == {"cpu": "2"}
    assert _resources(result)["requests"] == {"memory": "1Gi"}
    assert _resources(result)["claims"] == [{"name": "partage-1"}]
    assert "resources" not in result["spec"]["containers"][1]
    assert _resources(result, 2) == {"claims": [{"name": "partage-2"}]}
    assert _resources(result, 0, "initContainers") == {"claims": [{"name": "partage-0"}]}
    told = decode_translated(result["metadata"]["annotations"][names.TRANSLATED])
    assert {name: one.asked for name, one in told.items()} == {"side": HALF, "a": HALF, "c": QGPU}
    assert result["spec"]["resourceClaims"] == [
        {"name": "nic", "resourceClaimName": "nic"},
        *(
            {"name": f"partage-{number}", "resourceClaimTemplateName": told[name].shape.template}
            for number, name in enumerate(("side", "a", "c"))
        ),
    ]
    assert told["side"].shape == told["a"].shape
    again, _ = _stored(result)
    assert again == result


def test_a_percent_of_cards_and_a_gated_pod_become_claims_too() -> None:
    """What the mutating webhook rewrites, and what waits for a queue."""
    gated = {"schedulingGates": [{"name": "kueue.x-k8s.io/admission"}]}
    result, warnings = _stored(pod(container(limits={"nvidia.com/gpu": "200"}), **gated))
    assert warnings == []
    told = decode_translated(result["metadata"]["annotations"][names.TRANSLATED])
    assert (told["main"].shape.count, told["main"].shape.whole) == (2, True)


@pytest.mark.parametrize(
    ("manifest", "why"),
    [
        (
            pod(container(limits=HALF), initContainers=[container("first", limits=HALF)]),
            "an init container releases its card",
        ),
        (
            pod(
                container(
                    limits={
                        "nvidia.com/gpu": "1",
                        "nvidia.com/gpumem": "1",
                        "nvidia.com/gpucores": "100",
                    }
                )
            ),
            "the only sharer of its card",
        ),
        (
            pod(
                container("a", limits={names.KOORD_GPU: "50"}),
                container("b", limits={names.KOORD_GPU: "50"}),
            ),
            "several containers share",
        ),
        (
            pod(container(limits=HALF), meta={"annotations": {names.HAMI_NODE_POLICY: "spread"}}),
            "how nodes are compared",
        ),
        (
            pod(container(limits={names.KOORD_GPU: "100", names.SGPU: "1"})),
            "vendor's plugin",
        ),
        (
            pod(container(limits=HALF), resourceClaims=[{"name": "partage-0"}]),
            "a claim named partage-0",
        ),
        (
            pod({"name": "main", "resources": {"limits": HALF, "claims": [{"name": "own"}]}}),
            "a claim of its own",
        ),
    ],
)
def test_what_no_claim_can_say_keeps_to_its_protocol_and_says_so(manifest: Json, why: str) -> None:
    """A warning and an annotation say why; otherwise the pod is as the mutating webhook leaves it."""
    result, (warning,) = _stored(manifest)
    expected, _ = _stored(manifest, translated=False)

    assert why in warning
    told = result["metadata"]["annotations"].pop(names.NOT_TRANSLATED)
    assert why in told
    assert result["spec"] == expected["spec"]


def test_a_reason_of_before_is_taken_back() -> None:
    """A copy of a pod that was not translated has one."""
    meta = {"annotations": {names.NOT_TRANSLATED: "for a reason"}}
    result, _ = _stored(pod(container(limits=HALF), meta=meta))
    assert result["metadata"]["annotations"][names.NOT_TRANSLATED] == ""


@pytest.mark.parametrize(
    "asked",
    [
        review(pod(container(limits={"cpu": "1"}))),
        review(pod(container(limits=HALF), schedulerName="somebody-else")),
        review(pod(container(limits=HALF), nodeName="n1")),
        review(pod(container(limits=HALF), nodeName="n1"), namespace="kube-system"),
        review(pod(container(limits=HALF)), operation="UPDATE"),
        review(pod(container(limits={"nvidia.com/gpumem": "x"}))),
        review(pod(container(limits=HALF, securityContext={"privileged": True}))),
        review(pod(*(container(str(n), limits=HALF) for n in range(200)))),
        review({"spec": []}),
    ],
)
def test_nothing_else_is_touched(asked: Json) -> None:
    """Pods without devices, of others, or that validation refuses for what their author wrote."""
    response = answered(translate, asked, context(), Admission())
    assert response == {"uid": "r-1", "allowed": True}


def test_only_labelled_namespaces_are_asked_about_after_the_mutating_webhook() -> None:
    """The API server knows the label; with it off, nothing of it is installed."""
    mutating = installation(Endpoint(), context(), Admission(), translate=True)[0]["webhooks"]
    assert [one["name"] for one in mutating] == [
        "mutate.pods.partage.io",
        "translate.pods.partage.io",
    ]
    assert mutating[1]["matchConditions"] == mutating[0]["matchConditions"]
    labelled = {"key": "partage.io/claims", "operator": "In", "values": ["translate"]}
    rules = [one["namespaceSelector"]["matchExpressions"] for one in mutating]
    assert rules[1] == [*rules[0], labelled]
    assert len(installation(Endpoint(), context(), Admission())[0]["webhooks"]) == 1
