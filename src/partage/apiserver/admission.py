"""Admission: hooks that change or reject an object before the server stores it.

Mutators run first, one after another, and each sees the result of the one before. Validators run last.
Both may be plain or async functions. A hook raises `Refused` to reject an object.
"""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal, TypeVar

from partage.apiserver.kinds import Kind
from partage.apiserver.status import ApiError, Cause, forbidden, invalid

_T = TypeVar("_T")
_FORBIDDEN: Final = 403
_INVALID: Final = 422

Operation = Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]


@dataclass(frozen=True, slots=True)
class User:
    """The user of a request."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""


ADMIN: Final = User("kubernetes-admin", ("system:masters", "system:authenticated"))


@dataclass(frozen=True, slots=True)
class Review:
    """One request in admission's view.

    Attributes:
        subresource: the part; empty for the whole.
        namespace: empty for cluster-scoped kinds.
        name: empty before the name is generated.
        object: the object to store (for `binding` and `eviction`, that document); None on
        deletion. Do not change it: a mutator returns another.
        old: the stored object; None on creation.
        dry_run: whether nothing is stored, so that hooks must have no side effects.
        warnings: texts for the client; hooks may append.
    """

    operation: Operation
    kind: Kind
    subresource: str
    namespace: str
    name: str
    object: dict[str, Any] | None
    old: Mapping[str, Any] | None
    user: User
    dry_run: bool = False
    warnings: list[str] = field(default_factory=list)


class Refused(Exception):
    """A hook's rejection: the message is the reason, `code` is the HTTP status."""

    def __init__(self, message: str, code: int = 403) -> None:
        super().__init__(message)
        self.code = code


Mutator = Callable[[Review], Awaitable[dict[str, Any] | None] | dict[str, Any] | None]
"""Returns the object for the next step, or None for no change; raises `Refused`."""

Validator = Callable[[Review], Awaitable[None] | None]
"""Raises `Refused`, or accepts."""


class Admission:
    """The chain of hooks of one server: `mutators` in order, then `validators` of the complete, valid object."""

    def __init__(self, last_mutator: Mutator, last_validator: Validator) -> None:
        """A chain in which these hooks, the webhooks, run after all others of their sort."""
        self.mutators: list[Mutator] = []
        self.validators: list[Validator] = []
        self._last_mutator, self._last_validator = last_mutator, last_validator

    async def mutate(self, review: Review) -> dict[str, Any]:
        """The object after all mutators. Raises `ApiError`."""
        for mutator in (*self.mutators, self._last_mutator):
            answer = await _asked(mutator, review)
            if answer is not None:
                review = replace(review, object=answer)
        return review.object if review.object is not None else {}

    async def validate(self, review: Review) -> None:
        """Asks every validator. Raises `ApiError`."""
        for validator in (*self.validators, self._last_validator):
            await _asked(validator, review)


async def _asked(hook: Callable[[Review], Awaitable[_T] | _T], review: Review) -> _T:
    try:
        answer = hook(review)
        return await answer if inspect.isawaitable(answer) else answer
    except Refused as refusal:
        raise _refusal(review, refusal) from refusal


def _refusal(review: Review, refusal: Refused) -> ApiError:
    kind, why = review.kind, str(refusal)
    if refusal.code == _INVALID:
        return invalid(
            kind.kind, kind.group, review.name, [Cause("FieldValueInvalid", "spec", why)]
        )
    made = forbidden(kind.plural, kind.group, review.name, why)
    if refusal.code != _FORBIDDEN:
        return ApiError(refusal.code, "BadRequest", made.message, made.details)
    return made
