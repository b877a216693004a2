"""Finds the pod that a question of the plugin names: in the question itself, or as a watch has reported it."""

from dataclasses import replace

from partage.extender.books import Books
from partage.model.errors import InvalidDocument
from partage.wire.claim_requests import MOST_BYTES, request_of_claims
from partage.wire.documents import outdated, precedes
from partage.wire.extender import decode_claim, decode_pod
from partage.wire.plugin import Propose
from partage.wire.pods import translate_pod
from partage.wire.translation import PodEntry


def pod_of(books: Books, question: Propose) -> tuple[PodEntry | None, bool]:
    """The pod, and whether the question contained it."""
    known = books.cluster_cache.document(question.uid)
    if bytes(question.pod):
        document = decode_pod(bytes(question.pod))
        if document.metadata.uid != question.uid:
            raise InvalidDocument(f"the pod that came has not the uid {question.uid}")
        if not outdated(document, known):
            if not books.cluster_cache.translation.concerns(document):
                return None, True
            return books.cluster_cache.translation.read(document), True
    if known is None or precedes(known.metadata.resource_version or "", question.version):
        return None, bool(bytes(question.pod))
    return books.cluster_cache.pod(question.uid), False


def claimant_of(books: Books, question: Propose) -> PodEntry | None:
    """A pod with claims, with these claims as a request of the engine; None if that is impossible."""
    translation = books.cluster_cache.translation
    if sum(map(len, question.claims)) > MOST_BYTES:
        return None
    try:
        document = decode_pod(bytes(question.pod))
        claims = [decode_claim(bytes(one)) for one in question.claims]
        if document.metadata.uid != question.uid or translation.concerns(document):
            return None
        translated = translate_pod(document, translation.context)
    except InvalidDocument:
        return None
    request = request_of_claims(document, claims)
    if request is None:
        return None
    return PodEntry(replace(translated.pod, request=request), translated.view)
