"""The API server's refusals: an HTTP code and a `Status` document.

Messages have the genuine server's wording, because people and programs recognise them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class ApiError(Exception):
    """A refusal.

    Attributes:
        reason: the machine-readable reason, such as `AlreadyExists`.
        details: the `details` of the Status; None for none, unlike an empty one.
    """

    def __init__(
        self, code: int, reason: str, message: str, details: dict[str, Any] | None = None
    ) -> None:
        super().__init__(message)
        self.code = code
        self.reason = reason
        self.message = message
        self.details = details

    def document(self) -> dict[str, Any]:
        """The Status document."""
        return {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.message,
            "reason": self.reason,
            **({} if self.details is None else {"details": self.details}),
            "code": self.code,
        }


@dataclass(frozen=True, slots=True)
class Cause:
    """One problem of an object.

    Attributes:
        reason: `FieldValueInvalid`, `FieldValueRequired` and the like.
        field: the path, such as `spec.containers[0].name`.
        message: the problem, without the path.
    """

    reason: str
    field: str
    message: str

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"


def success(details: dict[str, Any] | None = None) -> dict[str, Any]:
    """The Status document of a success."""
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        **({"details": details} if details else {}),
    }


def qualified(plural: str, group: str) -> str:
    """`pods`, or `devices.scheduling.koordinator.sh`."""
    return f"{plural}.{group}" if group else plural


def _details(plural: str, group: str, name: str) -> dict[str, Any]:
    named = {"name": name, "group": group, "kind": plural}
    return {key: value for key, value in named.items() if value}


def _said(code: int, reason: str, of: tuple[str, str, str], what: str) -> ApiError:
    """A message about one object: its plural, group and name."""
    return ApiError(code, reason, f'{qualified(*of[:2])} "{of[2]}" {what}', _details(*of))


def not_found(plural: str, group: str, name: str) -> ApiError:
    """404: no such object."""
    return _said(404, "NotFound", (plural, group, name), "not found")


def unknown_path() -> ApiError:
    """404: no such resource or path; kubectl reads the details without checking that there are any."""
    return ApiError(404, "NotFound", "the server could not find the requested resource", {})


def already_exists(plural: str, group: str, name: str) -> ApiError:
    """409: the name is taken."""
    return _said(409, "AlreadyExists", (plural, group, name), "already exists")


def conflict(
    plural: str,
    group: str,
    name: str,
    why: str = (
        "the object has been modified; please apply your changes to the latest version "
        "and try again"
    ),
) -> ApiError:
    """409: another writer was faster, or a precondition failed."""
    return ApiError(
        409,
        "Conflict",
        f'Operation cannot be fulfilled on {qualified(plural, group)} "{name}": {why}',
        _details(plural, group, name),
    )


def expired(message: str) -> ApiError:
    """410: the resourceVersion or continue token is too old."""
    return ApiError(410, "Expired", message)


def too_new(version: int, newest: int) -> ApiError:
    """504: the server has not reached a resourceVersion."""
    said = "Too large resource version"
    causes = [{"reason": "ResourceVersionTooLarge", "message": said}]
    message = f"Timeout: {said}: {version}, current: {newest}"
    return ApiError(504, "Timeout", message, {"causes": causes, "retryAfterSeconds": 1})


def forbidden(plural: str, group: str, name: str, why: str) -> ApiError:
    """403: admission rejected it."""
    return _said(403, "Forbidden", (plural, group, name), f"is forbidden: {why}")


def unauthorized() -> ApiError:
    """401: no known credentials."""
    return ApiError(401, "Unauthorized", "Unauthorized")


def invalid(kind: str, group: str, name: str, causes: Sequence[Cause]) -> ApiError:
    """422: the object breaks rules."""
    texts = list(dict.fromkeys(str(cause) for cause in causes))
    joined = texts[0] if len(texts) == 1 else "[" + ", ".join(texts) + "]"
    return ApiError(
        422,
        "Invalid",
        f'{qualified(kind, group)} "{name}" is invalid: {joined}',
        {
            **_details(kind, group, name),
            "causes": [
                {"reason": cause.reason, "message": cause.message, "field": cause.field}
                for cause in causes
            ],
        },
    )


def invalid_options(kind: str, why: str) -> ApiError:
    """422: an option of a request is impossible; `why` names it and the rule."""
    field, _colon, rule = why.partition(": ")
    return invalid(kind, "meta.k8s.io", "", [Cause("FieldValueInvalid", field, rule)])


def bad_request(message: str) -> ApiError:
    """400: the request cannot be understood."""
    return ApiError(400, "BadRequest", message)


def method_not_allowed() -> ApiError:
    """405: the resource does not support this."""
    return ApiError(
        405,
        "MethodNotAllowed",
        "the server does not allow this method on the requested resource",
        {},
    )


def not_acceptable(kinds: str) -> ApiError:
    """406: the client accepts none of the offered media types."""
    return ApiError(406, "NotAcceptable", f"only the following media types are accepted: {kinds}")


def unsupported_media(kinds: str) -> ApiError:
    """415: the body's type is not supported."""
    return ApiError(
        415,
        "UnsupportedMediaType",
        "the body of the request was in an unknown format - accepted media types include: "
        + kinds,
    )


def too_large(limit: int) -> ApiError:
    """413: the body is larger than `limit` bytes."""
    return ApiError(
        413,
        "RequestEntityTooLarge",
        f"Request entity too large: limit is {limit}",
    )


def too_many(message: str, seconds: int = 0, causes: Sequence[Mapping[str, str]] = ()) -> ApiError:
    """429: the client may retry later."""
    details: dict[str, Any] = {"retryAfterSeconds": seconds} if seconds else {}
    if causes:
        details["causes"] = list(causes)
    return ApiError(429, "TooManyRequests", message, details or None)


def internal(message: str) -> ApiError:
    """500: a webhook with failurePolicy Fail was unreachable, or a bug here."""
    return ApiError(500, "InternalError", f"Internal error occurred: {message}")
