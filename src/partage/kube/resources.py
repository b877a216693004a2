"""The API paths of resources, and the resources that this package itself needs."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import quote


@dataclass(frozen=True, slots=True)
class Resource:
    """A resource: group (empty for core), version, plural name, and whether it has namespaces."""

    group: str
    version: str
    plural: str
    namespaced: bool = True

    @property
    def api_version(self) -> str:
        """The value of `apiVersion` in its objects."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(
        self, namespace: str | None = None, name: str | None = None, subresource: str = ""
    ) -> str:
        """The URL path of the collection, an object, or an object's subresource.

        Without a namespace, the path of a namespaced resource covers all namespaces. Raises `ValueError`: a part is no
        path segment, or the resource has no namespaces but one is given.
        """
        root = f"/apis/{self.group}" if self.group else "/api"
        parts = [root, self.version]
        if namespace is not None:
            if not self.namespaced:
                raise ValueError(f"{self.plural} have no namespaces, yet {namespace!r} was given")
            parts += ["namespaces", _segment(namespace)]
        parts.append(self.plural)
        if name is not None:
            if self.namespaced and namespace is None:
                raise ValueError(f"{self.plural} {name!r} needs a namespace")
            parts.append(_segment(name))
        if subresource:
            parts.append(subresource)
        return "/".join(parts)


@dataclass(frozen=True, slots=True)
class Scope:
    """The scope of a list or watch: a resource, narrowed by namespace and by the server's selectors."""

    resource: Resource
    namespace: str | None = None
    labels: str = ""
    fields: str = ""

    @property
    def path(self) -> str:
        """The URL path of the collection."""
        return self.resource.path(self.namespace)

    @property
    def query(self) -> dict[str, str]:
        """The selectors as URL parameters."""
        pairs = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {key: value for key, value in pairs.items() if value}


PODS: Final = Resource("", "v1", "pods")
NODES: Final = Resource("", "v1", "nodes", namespaced=False)
CONFIG_MAPS: Final = Resource("", "v1", "configmaps")
QUOTAS: Final = Resource("", "v1", "resourcequotas")
EVENTS: Final = Resource("", "v1", "events")
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases")


def _segment(text: str) -> str:
    """One path segment; a name from a foreign document must not lead out of it."""
    if text in {"", ".", ".."} or "/" in text:
        raise ValueError(f"{text!r} is not a path segment")
    return quote(text, safe="")
