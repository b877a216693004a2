"""A kube-scheduler's configuration in the form that the checks read.

It comes from files, and from ConfigMaps that any tenant may write. So its shape is checked first.
"""

from typing import Any, Final, TypedDict

import msgspec

from partage.doctor.finding import Object
from partage.model.errors import InvalidDocument
from partage.wire.documents import explain
from partage.wire.yaml_values import YamlError, yaml_values

KIND: Final = "KubeSchedulerConfiguration"


class _Enabled(TypedDict, total=False):
    name: str
    weight: int


class _Point(TypedDict, total=False):
    enabled: list[_Enabled] | None


class _Arguments(TypedDict, total=False):
    ignoredResources: list[str] | None


class _PluginConfig(TypedDict, total=False):
    name: str
    args: _Arguments | None


class _Profile(TypedDict, total=False):
    schedulerName: str
    plugins: dict[str, _Point | None] | None
    pluginConfig: list[_PluginConfig] | None


class _Resource(TypedDict, total=False):
    name: str


class _Extender(TypedDict, total=False):
    urlPrefix: str
    filterVerb: str
    prioritizeVerb: str
    preemptVerb: str
    bindVerb: str
    ignorable: bool
    managedResources: list[_Resource] | None


class _Configuration(TypedDict, total=False):
    percentageOfNodesToScore: int | None
    profiles: list[_Profile] | None
    extenders: list[_Extender] | None


def configuration_in(source: str, data: bytes) -> Object:
    """The first configuration in YAML or JSON text.

    `source`: the text's origin; messages begin with it. Raises `InvalidDocument`: it has none, or one that
    kube-scheduler would reject.
    """
    try:
        for value in yaml_values(data):
            if isinstance(value, dict) and value.get("kind") == KIND:
                found: Any = msgspec.convert(value, _Configuration)
                return {"kind": KIND, **found}
    except (YamlError, msgspec.ValidationError) as error:
        raise InvalidDocument(f"{source}: {explain(error)}") from error
    raise InvalidDocument(f"{source}: it holds no {KIND}")
