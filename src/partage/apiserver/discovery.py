"""Discovery: the groups, versions and resources of the server, in both forms that clients request."""

from typing import Any, Final

from partage.apiserver.kinds import Kind, Registry, Subresource

VERSION: Final = {
    "major": "1",
    "minor": "36",
    "gitVersion": "v1.36.6+partage",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "2026-11-01T00:00:00Z",
    "goVersion": "none",
    "compiler": "none",
    "platform": "linux/amd64",
    "emulationMajor": "1",
    "emulationMinor": "36",
    "minCompatibilityMajor": "1",
    "minCompatibilityMinor": "35",
}
"""The answer of `/version`: the Kubernetes release that the server imitates."""


def core_versions(address: str) -> dict[str, Any]:
    """The answer of `/api`."""
    return {
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": address}],
    }


def groups(registry: Registry) -> dict[str, Any]:
    """The answer of `/apis`."""
    return {
        "kind": "APIGroupList",
        "apiVersion": "v1",
        "groups": [_group(name, versions) for name, versions in registry.groups().items() if name],
    }


def group(registry: Registry, name: str) -> dict[str, Any] | None:
    """The answer of `/apis/<group>`; None for an unknown group."""
    versions = registry.groups().get(name)
    if not versions or not name:
        return None
    return {"kind": "APIGroup", "apiVersion": "v1", **_group(name, versions)}


def _group(name: str, versions: list[str]) -> dict[str, Any]:
    served = [{"groupVersion": f"{name}/{one}", "version": one} for one in versions]
    return {"name": name, "versions": served, "preferredVersion": served[0]}


def resources(registry: Registry, group_: str, version_: str) -> dict[str, Any] | None:
    """The answer of `/apis/<group>/<version>`; None if nothing is served there."""
    kinds = registry.served(group_, version_)
    if not kinds:
        return None
    found: list[dict[str, Any]] = []
    for kind in kinds:
        found.append(
            {
                "name": kind.plural,
                "singularName": kind.singular,
                "namespaced": kind.namespaced,
                "kind": kind.kind,
                "verbs": list(kind.verbs),
                **_other_names(kind),
            }
        )
        found.extend(
            {
                "name": f"{kind.plural}/{sub.name}",
                "singularName": "",
                "namespaced": kind.namespaced,
                **({"group": sub.group} if sub.group != kind.group else {}),
                **(
                    {"version": sub.version}
                    if (sub.group, sub.version) != (kind.group, kind.version)
                    else {}
                ),
                "kind": sub.kind,
                "verbs": list(sub.verbs),
            }
            for sub in sorted(kind.subresources, key=lambda sub: sub.name)
        )
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": f"{group_}/{version_}" if group_ else version_,
        "resources": found,
    }


def aggregated(registry: Registry, version_: str, *, core: bool) -> dict[str, Any]:
    """All groups at once, in the form for newer clients.

    `version_`: of `apidiscovery.k8s.io`. `core`: whether to give the core group alone (`/api`), or all others
    (`/apis`).
    """
    return {
        "kind": "APIGroupDiscoveryList",
        "apiVersion": f"apidiscovery.k8s.io/{version_}",
        "metadata": {},
        "items": [
            {
                "metadata": {"name": name, "creationTimestamp": None},
                "versions": [
                    {
                        "version": one,
                        "freshness": "Current",
                        "resources": [_described(kind) for kind in registry.served(name, one)],
                    }
                    for one in versions
                ],
            }
            for name, versions in registry.groups().items()
            if (not name) == core
        ],
    }


def _described(kind: Kind) -> dict[str, Any]:
    parts = [
        {"subresource": sub.name, "responseKind": _answered(sub), "verbs": list(sub.verbs)}
        for sub in sorted(kind.subresources, key=lambda sub: sub.name)
    ]
    return {
        "resource": kind.plural,
        "responseKind": _answered(kind),
        "scope": "Namespaced" if kind.namespaced else "Cluster",
        "singularResource": kind.singular,
        "verbs": list(kind.verbs),
        **_other_names(kind),
        **({"subresources": parts} if parts else {}),
    }


def _other_names(kind: Kind) -> dict[str, Any]:
    """The resource's short names and categories, if it has any."""
    found = {"shortNames": list(kind.short), "categories": list(kind.categories)}
    return {key: names for key, names in found.items() if names}


def _answered(of: Kind | Subresource) -> dict[str, str]:
    return {"group": of.group, "version": of.version, "kind": of.kind}
