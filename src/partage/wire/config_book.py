"""ConfigMaps as they are created and deleted, and their joint settings at any moment.

A ConfigMap that breaks a rule is refused as a whole, and its last good state stays in force; the
book reports the fault to its readers. If two set the same thing, the later one by namespace and name
wins, in any order of arrival, so that two replicas agree.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from partage.model.errors import InvalidDocument
from partage.wire.config import Configuration, keys_read, translate_config
from partage.wire.documents import Document, outdated


@dataclass(frozen=True, slots=True)
class Source:
    """One ConfigMap that is in force.

    Attributes:
        name: `namespace/name`.
        version: its resourceVersion at the moment of the takeover.
        keys: the keys that set something.
    """

    name: str
    version: str
    keys: tuple[str, ...]


class ConfigBook:
    """The ConfigMaps that set something, in their newest state: `documents`, the errors of `refused` ones among them.

    `configuration` is what those in force set together.
    """

    def __init__(self, namespaces: Iterable[str] = ()) -> None:
        """An empty book: the published defaults. Only ConfigMaps of `namespaces` are read; of all if it is empty."""
        self._namespaces = frozenset(namespaces)
        self._held: dict[tuple[str, str, str], Document] = {}
        self.documents: dict[tuple[str, str, str], Document] = {}
        self.configuration = Configuration()
        self.refused: dict[str, str] = {}

    @property
    def sources(self) -> tuple[Source, ...]:
        """The ConfigMaps in force, in reading order."""
        return tuple(
            Source(
                f"{document.namespace}/{document.name}",
                document.metadata.resource_version or "",
                keys_read(document),
            )
            for _, document in sorted(self._held.items())
        )

    @property
    def in_force(self) -> tuple[Document, ...]:
        """The state in force of every ConfigMap, for a refused one its last good state."""
        return tuple(self._held.values())

    def changed(self, document: Document) -> bool:
        """Record a new or changed ConfigMap; returns whether the settings in force have changed."""
        if self._namespaces and document.namespace not in self._namespaces:
            return False
        if outdated(document, self.documents.get(document.identity)):
            return False
        if not keys_read(document):
            return self.gone(document)
        self.documents[document.identity] = document
        held = {**self._held, document.identity: document}
        try:
            return self._take_over(held, document)
        except InvalidDocument as error:
            self.refused[document.label] = str(error)
            return False

    def gone(self, document: Document) -> bool:
        """Record a deleted ConfigMap; returns whether the settings in force have changed."""
        self.documents.pop(document.identity, None)
        held = {key: one for key, one in self._held.items() if key != document.identity}
        # A ConfigMap that was valid only beside this one loses the keys that now break a rule.
        return self._take_over(held, document, strict=False)

    def _take_over(
        self,
        held: dict[tuple[str, str, str], Document],
        document: Document,
        *,
        strict: bool = True,
    ) -> bool:
        found = translate_config([one for _, one in sorted(held.items())], strict=strict)
        self._held = held
        self.refused.pop(document.label, None)
        before, self.configuration = self.configuration, found
        return (before.settings, before.policy) != (found.settings, found.policy)
