"""ResourceQuotas as limits by namespace.

Limits are in the units of pods' amounts: whole units, `cpu` in milli. A fraction of a
unit is cut off, to the requester's disadvantage.

Source: Kubernetes API v1.36, ResourceQuota; docs/sources/hami.md 4.6.
"""

from collections.abc import Iterable

from partage.model.errors import InvalidValue
from partage.scheduler.events import Quota, Quotas
from partage.wire import shapes
from partage.wire.amounts import quantities
from partage.wire.demand import is_cpu
from partage.wire.documents import Document, invalid


def translate_quotas(documents: Iterable[Document]) -> tuple[Quotas, tuple[str, ...]]:
    """Quotas by namespace, in order, and notes on unusable ones. Raises `InvalidDocument`: a limit is no quantity."""
    result: dict[str, tuple[Quota, ...]] = {}
    notes: list[str] = []
    for document in documents:
        spec = document.shape.spec if isinstance(document.shape, shapes.ResourceQuota) else None
        if spec is None:
            continue
        if spec.scopes or spec.scope_selector:
            notes.append(f"{document.where}: quotas with scopes are not applied offline")
            continue
        try:
            hard = quantities(spec.hard, "spec.hard")
        except InvalidValue as error:
            raise invalid(document, error) from error
        limits = tuple(
            (key, amount.nano // 10**6 if is_cpu(key) else amount.floor())
            for key, amount in hard.items()
        )
        quota = Quota(document.name, limits)
        result[document.namespace] = (*result.get(document.namespace, ()), quota)
    return Quotas(result), tuple(notes)
