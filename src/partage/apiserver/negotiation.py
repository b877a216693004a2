"""The form of answer that a client accepts."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Final, Literal

from partage.apiserver.status import not_acceptable

JSON: Final = "application/json"
_YAML: Final = "application/yaml"
_MEDIA: Final = f"{JSON}, {_YAML}"
_ANY: Final = ("*/*", "application/*", JSON, "text/html")


@dataclass(frozen=True, slots=True)
class Form:
    """A form of answer.

    Attributes:
        shape: the objects themselves, a table of them, or their metadata alone.
        version: of meta.k8s.io, for the latter two.
    """

    shape: Literal["object", "partial", "table"] = "object"
    version: str = "v1"


_PLAIN: Final = Form()


@lru_cache(maxsize=512)
def _parsed(accept: str) -> tuple[tuple[str, dict[str, str]], ...]:
    found = []
    for part in accept.split(","):
        media, *parameters = (text.strip() for text in part.split(";"))
        pairs = (parameter.partition("=") for parameter in parameters)
        found.append((media.lower(), {key.strip(): value.strip() for key, _, value in pairs}))
    return tuple(found)


@lru_cache(maxsize=512)
def form_of(accept: str) -> Form:
    """The first supported form of an Accept header. Raises `ApiError`: 406, none of them."""
    if not accept:
        return _PLAIN
    for media, parameters in _parsed(accept):
        if media not in _ANY and media != _YAML:
            continue
        wanted = parameters.get("as", "")
        version = parameters.get("v", "v1")
        if wanted and (parameters.get("g") != "meta.k8s.io" or version not in ("v1", "v1beta1")):
            continue
        if wanted == "Table":
            return Form("table", version)
        if wanted in ("PartialObjectMetadata", "PartialObjectMetadataList"):
            return Form("partial", version)
        if not wanted:
            return _PLAIN
    raise not_acceptable(_MEDIA)


@lru_cache(maxsize=512)
def discovery_version(accept: str) -> str:
    """The preferred version of aggregated discovery; empty for the plain form."""
    for media, parameters in _parsed(accept):
        if media not in _ANY:
            continue
        if not parameters.get("as"):
            return ""
        if (
            parameters["as"] == "APIGroupDiscoveryList"
            and parameters.get("g") == "apidiscovery.k8s.io"
            and parameters.get("v") in ("v2", "v2beta1")
        ):
            return parameters["v"]
    return ""
