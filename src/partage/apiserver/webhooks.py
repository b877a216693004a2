"""Admission webhooks: finds the stored configurations that match a request, and calls them.

The server does not interpret `matchConditions` (CEL). It calls a hook with conditions as if they were true,
and the client gets that answer. It calls a mutating hook once; reinvocation is not supported.
"""

import asyncio
import base64
import binascii
import ssl
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any, Final

import aiohttp
import msgspec

from partage.apiserver.admission import Review
from partage.apiserver.patch import PatchError, json_patch
from partage.apiserver.selectors import parse_labels
from partage.apiserver.status import ApiError, internal
from partage.apiserver.storage import Store
from partage.model.errors import UNREADABLE

_MUTATING: Final = "mutatingwebhookconfigurations.admissionregistration.k8s.io"
_VALIDATING: Final = "validatingwebhookconfigurations.admissionregistration.k8s.io"
_LARGEST: Final = 3 * 2**20


class Webhooks:
    """Calls the webhooks that a store's configurations name."""

    def __init__(self, store: Store, uid: Callable[[], str]) -> None:
        self._store = store
        self._uid = uid
        self._session: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        """Ends open connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def mutate(self, review: Review) -> dict[str, Any] | None:
        """The object after every matching hook. Raises `ApiError`: rejected, or unreachable with failurePolicy Fail."""
        value = review.object
        for hook in self._matching(_MUTATING, review):
            answer = await self._ask(hook, review, value)
            patch = answer.get("patch") if answer else None
            if patch:
                try:
                    value = json_patch(value, msgspec.json.decode(base64.b64decode(patch)))
                except (PatchError, binascii.Error, *UNREADABLE) as error:
                    raise internal(
                        f'failed calling webhook "{hook["name"]}": its patch does not fit: {error}'
                    ) from error
                if not isinstance(value, dict):
                    raise internal(f'webhook "{hook["name"]}" left no object')
        return value

    async def validate(self, review: Review) -> None:
        """Asks every matching hook. Raises `ApiError`: rejected, or unreachable with failurePolicy Fail."""
        for hook in self._matching(_VALIDATING, review):
            await self._ask(hook, review, review.object)

    def _matching(self, resource: str, review: Review) -> list[dict[str, Any]]:
        if review.kind.group == "admissionregistration.k8s.io":
            return []
        return [
            hook
            for record in self._store.all(resource)
            for hook in record.value.get("webhooks") or ()
            if any(_covers(rule, review) for rule in hook.get("rules") or ())
            and self._selected(hook, review)
        ]

    def _selected(self, hook: Mapping[str, Any], review: Review) -> bool:
        namespace = review.namespace or (
            review.name if review.kind.resource == "namespaces" else ""
        )
        if namespace:
            found = self._store.get("namespaces", "", namespace)
            labels = found.labels if found is not None else {}
            if not parse_labels(hook.get("namespaceSelector") or {}).matches(labels):
                return False
        selector = parse_labels(hook.get("objectSelector") or {})
        return any(
            selector.matches((value.get("metadata") or {}).get("labels") or {})
            for value in (review.object, review.old)
            if value is not None
        )

    async def _ask(
        self, hook: Mapping[str, Any], review: Review, value: dict[str, Any] | None
    ) -> Mapping[str, Any] | None:
        """A hook's answer; None if it was unreachable and its failurePolicy allows that."""
        name = hook.get("name", "")
        if hook.get("matchConditions"):
            review.warnings.append(f"matchConditions of webhook {name} are not interpreted here")
        if review.dry_run and hook.get("sideEffects") not in ("None", "NoneOnDryRun"):
            raise ApiError(
                400,
                "BadRequest",
                f'admission webhook "{name}" does not support dry run',
            )
        uid = self._uid()
        try:
            answer = await self._post(hook, _document(review, value, uid))
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            if hook.get("failurePolicy") == "Ignore":
                review.warnings.append(f"webhook {name} could not be asked and was passed over")
                return None
            reason = str(error) or type(error).__name__
            raise internal(f'failed calling webhook "{name}": {reason}') from error
        review.warnings.extend(str(text) for text in answer.get("warnings") or ())
        if answer.get("allowed") is not True:
            raise _denied(name, answer.get("status"))
        return answer

    async def _post(self, hook: Mapping[str, Any], document: dict[str, Any]) -> dict[str, Any]:
        if self._session is None:
            self._session = aiohttp.ClientSession()
        client = hook.get("clientConfig") or {}
        url = client.get("url")
        if not url:
            raise ValueError("no endpoints available for its service")  # nothing serves any here
        secure = _context(client.get("caBundle", "")) if url.startswith("https:") else True
        async with asyncio.timeout(hook.get("timeoutSeconds") or 10):
            response = await self._session.post(
                url,
                data=msgspec.json.encode(document),
                headers={"Content-Type": "application/json"},
                ssl=secure,
            )
            async with response:
                if response.status != 200:
                    raise ValueError(f"the server answered {response.status}")
                body = bytearray()
                async for part in response.content.iter_any():
                    body += part
                    if len(body) > _LARGEST:
                        raise ValueError(f"the answer has more than {_LARGEST} bytes")
        answer = msgspec.json.decode(body)
        found = answer.get("response") if isinstance(answer, dict) else None
        if not isinstance(found, dict) or found.get("uid") != document["request"]["uid"]:
            raise ValueError("the answer is no AdmissionReview with the request's uid")
        return found


@lru_cache(maxsize=32)
def _context(bundle: str) -> ssl.SSLContext:
    try:
        text = base64.b64decode(bundle).decode()
        return ssl.create_default_context(cadata=text or None)
    except (ssl.SSLError, binascii.Error, UnicodeDecodeError) as error:
        raise ValueError(f"its caBundle is unusable: {error}") from error


def _covers(rule: Mapping[str, Any], review: Review) -> bool:
    kind = review.kind
    scope = rule.get("scope", "*")
    return (
        _listed(rule.get("operations"), review.operation)
        and _listed(rule.get("apiGroups"), kind.group)
        and _listed(rule.get("apiVersions"), kind.version)
        and (scope == "*" or (scope == "Namespaced") == kind.namespaced)
        and any(
            _names(text, kind.plural, review.subresource) for text in rule.get("resources", ())
        )
    )


def _listed(known: Any, word: str) -> bool:
    return "*" in (known or ()) or word in (known or ())


def _names(text: str, plural: str, subresource: str) -> bool:
    resource, slash, part = text.partition("/")
    if resource not in ("*", plural):
        return False
    return part in ("*", subresource) if slash else not subresource


def _document(review: Review, value: dict[str, Any] | None, uid: str) -> dict[str, Any]:
    kind = review.kind
    of = kind.sub(review.subresource)
    about = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    if of is not None:
        about = {"group": of.group, "version": of.version, "kind": of.kind}
    resource = {"group": kind.group, "version": kind.version, "resource": kind.plural}
    return {
        "apiVersion": "admission.k8s.io/v1",
        "kind": "AdmissionReview",
        "request": {
            "uid": uid,
            "kind": about,
            "resource": resource,
            "requestKind": about,
            "requestResource": resource,
            **({"subResource": review.subresource} if review.subresource else {}),
            "name": review.name,
            "namespace": review.namespace,
            "operation": review.operation,
            "userInfo": {"username": review.user.name, "groups": list(review.user.groups)},
            "object": value,
            "oldObject": review.old,
            "dryRun": review.dry_run,
            "options": None,
        },
    }


def _denied(name: str, status: Any) -> ApiError:
    status = status if isinstance(status, dict) else {}
    text = f'admission webhook "{name}" denied the request'
    why = status.get("message") or status.get("reason")
    code, details = status.get("code"), status.get("details")
    return ApiError(
        code if isinstance(code, int) and 400 <= code < 600 else 403,
        str(status.get("reason") or "Forbidden"),
        f"{text}: {why}" if why else f"{text} without explanation",
        details if isinstance(details, dict) else None,
    )
