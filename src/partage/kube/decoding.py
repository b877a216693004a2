"""Decodes answers into the types that callers ask for, with one decoder a type."""

import asyncio
from typing import Any, Final, Generic, TypeVar

import msgspec

from partage.kube.errors import UndecodableAnswer
from partage.kube.lenient import ODD, UNDECODABLE, decode, repaired
from partage.kube.objects import ListMeta, Meta, Undecodable
from partage.kube.transport import Request

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list, and the token that asks for the next; empty on the last."""

    items: tuple[T, ...]
    resource_version: str
    next: str = ""
    undecodable: tuple[Undecodable, ...] = ()


class _Envelope(msgspec.Struct, Generic[T], frozen=True):
    metadata: ListMeta
    items: list[T] | None = None  # some servers write null for an empty list


class OnlyMeta(msgspec.Struct, frozen=True):
    """An object of any type."""

    metadata: Meta


_META: Final = msgspec.json.Decoder(OnlyMeta)


def meta_of(document: bytes | msgspec.Raw) -> Meta | None:
    """The metadata of an object of any type, or None if it cannot be read."""
    try:
        return decode(_META, document).metadata
    except UNDECODABLE:
        return None


class Decoders:
    """Decoders made on first use; one for each type in the program."""

    def __init__(self) -> None:
        self._made: dict[Any, msgspec.json.Decoder[Any]] = {}

    def one(self, request: Request, data: bytes | msgspec.Raw, into: type[T]) -> T:
        """An answer as `into`. Raises `UndecodableAnswer`."""
        try:
            value: T = decode(self._for(into), data)
        except UNDECODABLE as error:
            raise UndecodableAnswer(request.method, request.path, str(error)) from error
        return value

    async def page(self, request: Request, data: bytes, into: type[T]) -> Page[T]:
        """An answer as a page of a list; items of another type are set aside. Raises `UndecodableAnswer`: no list."""
        odd: list[Undecodable] = []
        try:
            typed: _Envelope[T] = await _decode_page(self._for(_envelope_of(into)), data)
            head, items = typed.metadata, typed.items or []
        except UNDECODABLE:
            head, items, odd = await self._one_by_one(request, data, into)
        version = head.resource_version
        if not version or not version.isascii() or not version.isdecimal():
            # A Status, or the answer of a proxy: decoded as a list, it would be an empty one.
            problem = (
                f"with the version {version[:40]!r}, which is no number"
                if version
                else "without a version"
            )
            raise UndecodableAnswer(request.method, request.path, f"a list {problem}")
        if not head.continue_ and (head.remaining_item_count or 0) > 0:
            # Taken for the end, it would make objects count as deleted.
            text = f"a list that ends before {head.remaining_item_count} of its objects"
            raise UndecodableAnswer(request.method, request.path, text)
        return Page(tuple(items), version, head.continue_, tuple(odd))

    async def _one_by_one(
        self, request: Request, data: bytes, into: type[T]
    ) -> tuple[ListMeta, list[T], list[Undecodable]]:
        """The slow way, for a page with an item of another type."""
        try:
            envelope: _Envelope[msgspec.Raw] = await _decode_page(
                self._for(_envelope_of(msgspec.Raw)), data
            )
        except UNDECODABLE as error:
            raise UndecodableAnswer(request.method, request.path, str(error)) from error
        items: list[T] = []
        undecodable: list[Undecodable] = []
        for raw in envelope.items or ():
            try:
                items.append(await _decode_page(self._for(into), raw))
            except UNDECODABLE as error:
                meta = meta_of(raw)
                if meta is None:
                    raise UndecodableAnswer(request.method, request.path, str(error)) from error
                undecodable.append(Undecodable(meta, str(error)))
                await asyncio.sleep(0)
        return envelope.metadata, items, undecodable

    def _for(self, into: Any) -> msgspec.json.Decoder[Any]:
        found = self._made.get(into)
        if found is None:
            found = self._made[into] = msgspec.json.Decoder(into)
        return found


def _envelope_of(into: Any) -> Any:
    """The type of a list of these, made at run time."""
    generic: Any = _Envelope
    return generic[into]


async def _decode_page(decoder: msgspec.json.Decoder[T], data: bytes | msgspec.Raw) -> T:
    """As `lenient.decode`, of a page of many megabytes or of one of its items, which another thread repairs."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError:
        raise
    except ODD:
        return decoder.decode(await asyncio.to_thread(repaired, bytes(data)))
