"""What `kubectl explain` says of Devices and simulated nodes: every field has a description, and every field that is read is there."""

import json
import typing
from collections.abc import Iterator
from typing import Any

import generate
import msgspec
import pytest

from partage.embedded import fleet
from partage.embedded.definitions import DEFINITIONS
from partage.embedded.hardware import device_manifest
from partage.wire import shapes

CHARTS = [
    json.loads((generate.CHART / "files" / name).read_text("utf-8"))
    for name in ("devices.json", "elasticgpu.json")
]
SCHEMAS = {
    f"{one['metadata']['name']}/{version['name']}": version["schema"]["openAPIV3Schema"]
    for one in [*DEFINITIONS, *CHARTS]
    for version in one["spec"]["versions"]
}
MOST_BYTES = 16_384
"""Of one definition: each client that lists definitions reads all of them."""

Path = tuple[str, ...]


def properties(schema: dict[str, Any], path: Path = ()) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every property below a schema, those of lists' items and of maps' values too."""
    for name, below in schema.get("properties", {}).items():
        yield (*path, name), below
        yield from properties(below, (*path, name))
    for inner in (schema.get("items"), schema.get("additionalProperties")):
        if isinstance(inner, dict):
            yield from properties(inner, path)


def read(shape: Any, path: Path = ()) -> Iterator[Path]:
    """The fields that a shape has, by their names in documents."""
    if isinstance(shape, type) and issubclass(shape, msgspec.Struct):
        types = typing.get_type_hints(shape)
        for one in msgspec.structs.fields(shape):
            yield (*path, one.encode_name)
            yield from read(types[one.name], (*path, one.encode_name))
    for inner in typing.get_args(shape):
        yield from read(inner, path)


def written(value: Any, path: Path = ()) -> Iterator[Path]:
    """The fields that a document has."""
    if isinstance(value, list):
        for one in value:
            yield from written(one, path)
    elif isinstance(value, dict):
        for name, below in value.items():
            yield (*path, name)
            yield from written(below, (*path, name))


@pytest.mark.parametrize("name", SCHEMAS)
def test_every_field_has_a_description(name: str) -> None:
    """A sentence or more, at every depth; the object itself too."""
    found = {(): SCHEMAS[name], **dict(properties(SCHEMAS[name]))}

    bare = [
        ".".join(path)
        for path, one in found.items()
        if not one.get("description", "").strip().endswith(".")
    ]
    assert not bare, f"no description: {', '.join(bare)}"


@pytest.mark.parametrize("one", [*DEFINITIONS, *CHARTS], ids=lambda one: one["metadata"]["name"])
def test_definitions_stay_small(one: dict[str, Any]) -> None:
    """One definition with all its descriptions stays below the bound."""
    assert len(json.dumps(one)) < MOST_BYTES


def test_what_is_read_and_written_of_devices_is_described() -> None:
    """Nothing else is, except fields that are listed as neither."""
    known = dict(properties(SCHEMAS["devices.scheduling.koordinator.sh/v1alpha1"]))
    wanted = set(read(shapes.DeviceSpec, ("spec",)))
    device = device_manifest(fleet.DEFAULT_FLEET[0], "2026-01-01T00:00:00Z")
    wanted |= {
        path
        for path in written(device["spec"], ("spec",))
        if not {"labels", "resources"} & {*path[:-1]}
    }

    assert len(wanted) > 20, "not the whole object"
    assert wanted <= known.keys()
    rest = {path for path in known.keys() - wanted if "neither" not in known[path]["description"]}
    assert rest == {("spec",), ("status", "allocations")}


def test_what_is_read_of_simulated_nodes_is_described() -> None:
    """Each field with its type."""
    known = dict(properties(SCHEMAS["simulatednodes.partage.io/v1alpha1"]))

    assert known.keys() == set(read(fleet.NodeSpec, ("spec",))) | {("spec",)}
