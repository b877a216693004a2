"""AdmissionReview documents: the API server's question, and the answer.

Source: admission.k8s.io/v1 (Kubernetes 1.36).
"""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import msgspec

from partage.model.errors import InvalidDocument
from partage.wire.documents import typed

_GROUP: Final = "admission.k8s.io/"
_VERSION: Final = "admission.k8s.io/v1"
_INVALID: Final = 422
_LONGEST: Final = 256  # characters of a warning that every client shows
_MOST: Final = 8
LONGEST_UID: Final = 256
"""Characters of a question's uid, which the answer repeats and the leader keeps beside a claim; the API server's has 36."""
_LONGEST_NAMESPACE: Final = 253
"""Characters of a namespace; Kubernetes' have 63 at most."""
RESERVED: Final = "Partage-Reserved"
"""Header of the leader's answer to the first question about a claim by which devices were reserved."""
LARGEST: Final = 3 * 2**20
"""Largest question in bytes: the API server takes no larger object, and etcd stores half of it."""
_SENTENCE: Final = 2048  # characters of a refusal, which could quote a whole pod


class _User(msgspec.Struct, frozen=True, gc=False):
    username: str | None = None
    groups: list[str] | None = None


class _Resource(msgspec.Struct, frozen=True, gc=False):
    group: str | None = None
    resource: str | None = None


class _Kind(msgspec.Struct, frozen=True, gc=False):
    group: str | None = None
    kind: str | None = None


class _Request(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    uid: Annotated[str, msgspec.Meta(max_length=LONGEST_UID)]
    kind: _Kind | None = None
    resource: _Resource | None = None
    sub_resource: str | None = None
    namespace: str | None = None
    name: str | None = None
    operation: str | None = None
    user_info: _User | None = None
    object: dict[str, Any] | None = None
    old_object: dict[str, Any] | None = None
    dry_run: bool | None = None


class _Place(msgspec.Struct, frozen=True, gc=False):
    namespace: Annotated[str, msgspec.Meta(max_length=_LONGEST_NAMESPACE)] | None = None


class _Placed(msgspec.Struct, frozen=True, gc=False):
    """All that is read of a question before its turn; as values it would take many times its text."""

    request: _Place


class _Review(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    api_version: str
    kind: str
    request: _Request


@dataclass(frozen=True, slots=True)
class Review:
    """One question of the API server.

    Attributes:
        uid: of the question; the answer repeats it.
        resource: plural resource name, with its group after a dot where it has one
            (`pods.metrics.k8s.io`) and its subresource after a slash (`pods/binding`).
        operation: CREATE, UPDATE, DELETE or CONNECT.
        object: the object after the request; None for a deletion.
        before: the present object; None for a creation.
        dry_run: the request has no effect.
    """

    uid: str
    resource: str
    operation: str
    namespace: str
    user: str
    groups: tuple[str, ...] = ()
    object: Mapping[str, Any] | None = None
    before: Mapping[str, Any] | None = None
    dry_run: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """One answer.

    Attributes:
        code: HTTP status that the client of the API server sees with a refusal.
        name: of the pod that breaks a rule (code 422), if it has one.
        patch: JSON Patch operations; empty for none.
        warnings: shown to the user by kubectl.
    """

    uid: str
    allowed: bool = True
    message: str = ""
    code: int = 403
    name: str = ""
    patch: Sequence[Mapping[str, Any]] = ()
    warnings: Sequence[str] = field(default=())


def invalid(review: Review, message: str) -> Verdict:
    """A refusal: the pod breaks a rule."""
    metadata = review.object.get("metadata") if review.object is not None else None
    name = metadata.get("name") if isinstance(metadata, Mapping) else None
    return Verdict(
        review.uid,
        allowed=False,
        message=message,
        code=_INVALID,
        name=name if isinstance(name, str) else "",
    )


def namespace_of(body: bytes) -> str:
    """The namespace of a question, empty for none. Raises `InvalidDocument`: the body is no AdmissionReview."""
    return typed(body, _Placed, "AdmissionReview").request.namespace or ""


def decode_review(body: bytes) -> Review:
    """The question in a request's body. Raises `InvalidDocument`: the body is no AdmissionReview with a request."""
    review = typed(body, _Review, "AdmissionReview")
    if review.kind != "AdmissionReview" or not review.api_version.startswith(_GROUP):
        raise InvalidDocument(
            f"AdmissionReview: this is {review.kind} of {review.api_version}, not AdmissionReview"
            f" of {_VERSION}"
        )
    if review.api_version != _VERSION:
        raise InvalidDocument(f"AdmissionReview: {review.api_version} is not {_VERSION}")
    request = review.request
    asked, kind = request.resource or _Resource(), request.kind or _Kind()
    resource, group = asked.resource, asked.group
    if resource is None:
        resource, group = f"{kind.kind}s".lower() if kind.kind else "", kind.group
    if group:
        resource = f"{resource}.{group}"
    user = request.user_info or _User()
    return Review(
        uid=request.uid,
        resource=f"{resource}/{request.sub_resource}" if request.sub_resource else resource,
        operation=request.operation or "",
        namespace=request.namespace or "",
        user=user.username or "",
        groups=tuple(user.groups or ()),
        object=request.object,
        before=request.old_object,
        dry_run=bool(request.dry_run),
    )


def _cut(text: str) -> str:
    return text if len(text) <= _SENTENCE else f"{text[: _SENTENCE - 1]}…"


def encode_verdict(verdict: Verdict) -> bytes:
    """The answer as an AdmissionReview."""
    response: dict[str, Any] = {"uid": verdict.uid, "allowed": verdict.allowed}
    if not verdict.allowed:
        reason = {400: "BadRequest", _INVALID: "Invalid"}.get(verdict.code, "Forbidden")
        message = _cut(verdict.message)
        response["status"] = {
            "status": "Failure",
            "message": message,
            "reason": reason,
            "code": verdict.code,
        }
        if verdict.code == _INVALID:
            # kubectl prints the causes of such a refusal, and no reason without causes.
            cause = {"reason": "FieldValueInvalid", "field": "spec", "message": message}
            response["status"]["details"] = {
                "kind": "Pod",
                "name": verdict.name,
                "causes": [cause],
            }
    if verdict.patch:
        response["patchType"] = "JSONPatch"
        response["patch"] = base64.b64encode(msgspec.json.encode(list(verdict.patch))).decode()
    if verdict.warnings:
        response["warnings"] = [text[:_LONGEST] for text in verdict.warnings[:_MOST]]
    return msgspec.json.encode(
        {"apiVersion": _VERSION, "kind": "AdmissionReview", "response": response}
    )
