"""Builders of AdmissionReviews, and the shortest ways to their answers."""

import base64
import json
from collections.abc import Callable
from typing import Any

from partage.vendors.catalog import FAMILIES
from partage.vendors.settings import HamiSettings, Settings
from partage.webhook.mutating import mutate
from partage.webhook.review import decode_review, encode_verdict
from partage.webhook.settings import Admission
from partage.webhook.validating import validate
from partage.wire.context import Context

Json = dict[str, Any]


def context(**hami: Any) -> Context:
    """A context; `hami` are settings of HAMi."""
    return Context.of(Settings(hami=HamiSettings(**hami)), FAMILIES)


def pod(*containers: Json, meta: Json | None = None, **spec: Any) -> Json:
    """A pod."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "web", **(meta or {})},
        "spec": {"containers": list(containers) or [container()], **spec},
    }


def container(
    name: str = "main", limits: Json | None = None, requests: Json | None = None, **more: Any
) -> Json:
    """A container."""
    resources = {k: v for k, v in (("limits", limits), ("requests", requests)) if v is not None}
    return {"name": name, **({"resources": resources} if resources else {}), **more}


def review(
    manifest: Json | None,
    operation: str = "CREATE",
    before: Json | None = None,
    resource: str = "pods",
    **request: Any,
) -> Json:
    """A review of the manifest."""
    name, _, sub = resource.partition("/")
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": "r-1",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": name},
            "subResource": sub or None,
            "namespace": "team",
            "operation": operation,
            "userInfo": {"username": "somebody", "groups": ["system:authenticated"]},
            "object": manifest,
            "oldObject": before,
            **request,
        },
    }


def answered(decide: Callable[..., Any], asked: Json, read: Context, admission: Admission) -> Json:
    """The response to a review, through its documents."""
    question = decode_review(json.dumps(asked).encode())
    answer = json.loads(encode_verdict(decide(question, read, admission)))
    assert answer["apiVersion"] == "admission.k8s.io/v1"
    response: Json = answer["response"]
    assert response["uid"] == "r-1"
    return response


def mutated(asked: Json, read: Context | None = None, admission: Admission | None = None) -> Json:
    """The object as the API server would store it after the mutating webhook."""
    response = answered(mutate, asked, read or context(), admission or Admission())
    assert response["allowed"], response
    result: Json = json.loads(json.dumps(asked["request"]["object"]))
    if "patch" in response:
        assert response["patchType"] == "JSONPatch"
        for operation in json.loads(base64.b64decode(response["patch"])):
            _apply(result, operation)
    return result


def validated(
    asked: Json, read: Context | None = None, admission: Admission | None = None
) -> Json:
    """The response of the validating webhook."""
    return answered(validate, asked, read or context(), admission or Admission())


def _apply(document: Json, operation: Json) -> None:
    """RFC 6902, as strictly as the API server does it."""
    *path, last = [
        step.replace("~1", "/").replace("~0", "~") for step in operation["path"].split("/")[1:]
    ]
    here: Any = document
    for step in path:
        here = here[int(step)] if isinstance(here, list) else here[step]
    if isinstance(here, list):
        assert (operation["op"], last) == ("add", "-")
        here.append(operation["value"])
        return
    assert operation["op"] in ("add", "replace")
    assert operation["op"] == "add" or last in here
    here[last] = operation["value"]
