"""Errors between us and an API server, and the known effect of the request after each.

Every RequestError has an `Outcome`, and the retry rules look at nothing else. A refused request may
be sent again. A request with an unknown outcome may be sent again only if a second execution has no
further effect. Errors are raised `from` their cause. Messages contain method, path, status and a shortened text from
the server; never a header, a body, a query or a credential.
"""

from collections.abc import Mapping
from datetime import datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import ClassVar, Final
from urllib.parse import unquote

import msgspec

_LONGEST_TEXT: Final = 300
"""Characters of a server's message to keep; some messages repeat the whole object."""


class Outcome(StrEnum):
    """The known effect of a request after an error."""

    REFUSED = "refused"
    """Not carried out; the same request may succeed later."""
    FINAL = "final"
    """Not carried out; the same request will be refused again."""
    UNKNOWN = "unknown"
    """May have been carried out."""
    DONE = "done"
    """Carried out; only the answer is useless."""


class KubeError(Exception):
    """The root of all errors that this package raises on purpose."""


class ConfigError(KubeError):
    """A kubeconfig, token, plugin or certificate that cannot be used; names the file and field."""


class ProtocolError(KubeError):
    """A watch stream that breaks the protocol: not JSON, not an event, or a line without end."""


class RequestError(KubeError):
    """A request that did not bring what was asked."""

    def __init__(self, method: str, path: str, text: str, outcome: Outcome) -> None:
        super().__init__(f"{method} {path}: {text}")
        self.method = method
        self.path = path
        self.outcome = outcome


class TransportError(RequestError):
    """No complete answer: not connected, TLS refused, connection lost, body cut."""


class TimedOut(TransportError):
    """No complete answer in time."""


class UnknownOutcome(RequestError):
    """A change that may or may not have been made; the cause contains the reason.

    This package never retries it. The caller reads the object back and decides.
    """

    def __init__(self, cause: RequestError) -> None:
        super().__init__(
            cause.method, cause.path, f"outcome unknown after: {cause}", Outcome.UNKNOWN
        )


class UndecodableAnswer(RequestError):
    """Success, but the answer is not of the requested type; a change has been made."""

    def __init__(self, method: str, path: str, text: str) -> None:
        super().__init__(method, path, f"undecodable answer: {text}", Outcome.DONE)


class AnswerTooLarge(RequestError):
    """Success, but the answer has more bytes than the caller accepts."""

    def __init__(self, method: str, path: str, most: int) -> None:
        super().__init__(method, path, f"an answer of more than {most} bytes", Outcome.DONE)


class StatusCause(msgspec.Struct, frozen=True):
    """One cause in a Status; all fields unchanged from the server."""

    reason: str | None = None
    message: str | None = None
    field: str | None = None


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    """The machine-readable part of a Status."""

    name: str | None = None
    kind: str | None = None
    retry_after_seconds: float | None = None
    causes: tuple[StatusCause, ...] | None = None


class Status(msgspec.Struct, frozen=True):
    """The API's own error document (meta/v1 Status), with the fields that we read."""

    message: str | None = None
    reason: str | None = None
    code: int | None = None
    details: StatusDetails | None = None
    status: str | None = None


class _Kinded(msgspec.Struct, frozen=True):
    kind: str = ""


class ApiError(RequestError):
    """The server refused.

    Attributes:
        status: HTTP status, or the code in a watch's error event.
        reason: the API's machine-readable reason, possibly empty.
        text: the API's message, shortened.
        retry_after: seconds after which the server accepts another try, or None.
    """

    usual_outcome: ClassVar[Outcome] = Outcome.FINAL
    advice: ClassVar[str] = ""
    """The next step for an operator."""

    def __init__(
        self,
        method: str,
        path: str,
        status: int,
        document: Status,
        *,
        retry_after: float | None = None,
    ) -> None:
        self.status = status
        self.reason = document.reason or ""
        self.text = _shortened(document.message or "")
        self.retry_after = retry_after
        said = " ".join(part for part in (str(status), self.reason) if part)
        text = f"{said}: {self.text}" if self.text else said
        if self.advice:
            text = f"{text}; {self.advice}"
        super().__init__(method, path, text, self.judge())

    def judge(self) -> Outcome:
        """The outcome of the request by this answer; a proxy says 408 of a request that it may have passed on."""
        return Outcome.UNKNOWN if self.status == 408 else self.usual_outcome


class BadRequest(ApiError):
    """400."""


class Unauthorized(ApiError):
    """401; the client has already tried with fresh credentials."""


class Forbidden(ApiError):
    """403."""


class NotFound(ApiError):
    """404 by the API server about the object of the path: it does not exist."""


class NamespaceNotFound(NotFound):
    """404 by the API server about the namespace of the path; no object can be made there.

    A loop that takes `NotFound` for "made or deleted by another meanwhile" must report this one.
    """

    advice = "create this namespace, or name another one"


class NotServed(ApiError):
    """Any other 404: of a path that the API server does not serve, or of a proxy. The object may exist."""


class Conflict(ApiError):
    """409: a precondition no longer holds, or the pod is already bound."""


class AlreadyExists(ApiError):
    """409 with reason AlreadyExists: the name is taken."""


class Expired(ApiError):
    """410: the resourceVersion or continue token is too old; list afresh."""


class Invalid(ApiError):
    """422: the object breaks a rule of its kind."""


class TooManyRequests(ApiError):
    """429: refused before anything was done."""

    usual_outcome = Outcome.REFUSED


class EvictionBlocked(TooManyRequests):
    """429 to an eviction that a disruption budget does not allow now; never retried here."""

    usual_outcome = Outcome.FINAL


class ServerError(ApiError):
    """5xx: not carried out only if the server is unavailable and sends a Retry-After."""

    def judge(self) -> Outcome:
        """See `ApiError.judge`."""
        if self.status == 501:
            return Outcome.FINAL
        if self.status == 503 and self.retry_after is not None:
            return Outcome.REFUSED
        return Outcome.UNKNOWN


_BY_STATUS: Final[Mapping[int, type[ApiError]]] = {
    400: BadRequest,
    401: Unauthorized,
    403: Forbidden,
    404: NotServed,
    409: Conflict,
    410: Expired,
    422: Invalid,
    429: TooManyRequests,
}
_STATUS: Final = msgspec.json.Decoder(Status)
_KINDED: Final = msgspec.json.Decoder(_Kinded)


def api_error(
    method: str, path: str, status: int, body: bytes, *, retry_after: float | None = None
) -> ApiError:
    """The error for an HTTP answer of 300 or more; `retry_after` is the header's value, if any."""
    try:
        document = _STATUS.decode(body)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        # A proxy's page, or half an answer. Its text may be anything, so only its start is kept.
        document = Status(message=body[:_LONGEST_TEXT].decode(errors="replace"))
    return error_of_status(method, path, document, status=status, retry_after=retry_after)


def says_success(body: bytes) -> bool:
    """Whether an answer is a Status that reports success."""
    try:
        return _STATUS.decode(body).status == "Success"
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False


def is_object(body: bytes) -> bool:
    """Whether an answer is an object of the API, and no Status."""
    try:
        return _KINDED.decode(body).kind not in ("", "Status")
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return False


def error_of_status(
    method: str,
    path: str,
    document: Status,
    *,
    status: int | None = None,
    retry_after: float | None = None,
) -> ApiError:
    """The error for a Status; `status` is the HTTP one if there was an answer."""
    code = status if status is not None else document.code or 500
    details = document.details or StatusDetails()
    if retry_after is None and details.retry_after_seconds:
        retry_after = details.retry_after_seconds
    kind = _BY_STATUS.get(code) or (ServerError if code >= 500 else ApiError)
    if status is None and document.reason in ("Expired", "Gone"):
        kind = Expired
    if kind is NotServed and document.reason == "NotFound" and _is_in(path, details.name):
        of_namespace = details.kind == "namespaces" and not _ends(path, details.name)
        kind = NamespaceNotFound if of_namespace else NotFound
    if kind is Conflict and document.reason == "AlreadyExists":
        kind = AlreadyExists
    if kind is TooManyRequests and any(
        cause.reason == "DisruptionBudget" for cause in details.causes or ()
    ):
        kind = EvictionBlocked
    return kind(method, path, code, document, retry_after=retry_after)


def _is_in(path: str, named: str | None) -> bool:
    """Whether an answer is about the object of its path; one that names no object is."""
    return not named or named in map(unquote, path.partition("?")[0].split("/"))


def _ends(path: str, named: str | None) -> bool:
    """Whether a path is that of the object with this name."""
    return unquote(path.partition("?")[0].rpartition("/")[2]) == (named or "")


def retry_after_seconds(
    header: str | None, now: datetime, date: str | None = None
) -> float | None:
    """Seconds of a Retry-After header, in either of its two forms; None for any other text.

    Args:
        now: by our clock, which may differ from the server's.
        date: the Date header of the same answer, from which a moment is counted if there is one.
    """
    if header is None:
        return None
    text = header.strip()
    if text.isascii() and text.isdigit():
        return float(text)
    moment, sent = _moment(text), _moment(date) or now
    return None if moment is None else max(0.0, (moment - sent).total_seconds())


def _moment(text: str | None) -> datetime | None:
    """The moment of a header; None if it is absent, is no date, or has no zone."""
    try:
        moment = parsedate_to_datetime(text or "")
    except (TypeError, ValueError, OverflowError):
        return None
    return moment if moment.tzinfo is not None else None


def _shortened(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _LONGEST_TEXT else f"{line[: _LONGEST_TEXT - 1]}…"
