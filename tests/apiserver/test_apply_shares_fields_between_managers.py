"""Server-side apply: ownership, conflicts, and what is given up."""

from typing import Any

import pytest
from apiserver_world import (
    APPLY,
    DEFINITIONS,
    PODS,
    WIDGETS,
    World,
    config,
    definition,
    named,
    ok,
    pod,
    run,
    widget,
)
from hypothesis import given
from hypothesis import strategies as st

from partage.apiserver.ownership import leaves, readable, to_document, to_paths
from partage.wire.field_types import catalogue

CONFIGS = "/api/v1/namespaces/default/configmaps"
PATH = f"{CONFIGS}/settings"


def owners(value: dict[str, Any]) -> dict[str, list[str]]:
    """Manager to the paths it owns, as people write them."""
    return {
        entry["manager"]: sorted(readable(path) for path in to_paths(entry["fieldsV1"]))
        for entry in value["metadata"].get("managedFields", [])
    }


def test_apply_creates_and_owns() -> None:
    """The first apply makes the object; its manager owns exactly what it wrote."""

    async def story(w: World) -> None:
        made = ok(await w.patch(PATH, config(a="1"), APPLY, fieldManager="one"), 201)
        same = ok(await w.patch(PATH, config(a="1"), APPLY, fieldManager="one"))

        assert owners(made) == {"one": [".data.a"]}
        assert made["metadata"]["managedFields"][0]["operation"] == "Apply"
        assert same == made

    run(story)


UNTYPED: dict[str, tuple[dict[str, Any], str]] = {
    "text": (
        {"data": {"a": 5}},
        ".data.a: expected string, got &value.valueUnstructured{Value:5}",
    ),
    "map": ({"data": ["a"]}, ".data: expected map, got &{[a]}"),
    "flag": ({"immutable": "yes"}, ".immutable: expected boolean, got &{yes}"),
    "list": (
        {"metadata": {"name": "settings", "finalizers": "a"}},
        ".metadata.finalizers: expected list, got &{a}",
    ),
    "number": (
        {"metadata": {"name": "settings", "generation": "a"}},
        ".metadata.generation: expected numeric (int or float), got string",
    ),
    "twice": (
        {"metadata": {"name": "settings", "ownerReferences": [{"uid": "a"}, {"uid": "a"}]}},
        '.metadata.ownerReferences: duplicate entries for key [uid="a"]',
    ),
}


@pytest.mark.parametrize(("change", "why"), UNTYPED.values(), ids=UNTYPED)
def test_what_is_not_of_its_kind_is_named(change: dict[str, Any], why: str) -> None:
    """It is named by its path, as by the genuine server, for an apply and nothing else."""

    async def story(w: World) -> None:
        answer = await w.patch(PATH, {**config(), **change}, APPLY, fieldManager="one")

        assert answer.code == 500
        assert why in answer.message

    run(story)


def test_yaml_is_accepted() -> None:
    """Its media type says so."""

    async def story(w: World) -> None:
        body = b"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: settings}\ndata:\n  a: one\n"

        made = ok(await w.ask("PATCH", PATH, body, media=APPLY, fieldManager="one"), 201)
        broken = await w.ask("PATCH", PATH, b"a: [", media=APPLY, fieldManager="one")

        assert made["data"] == {"a": "one"}
        assert broken.code == 400

    run(story)


def test_managers_share_until_they_disagree() -> None:
    """Equal values are co-owned, another value is a conflict that names owner and field."""

    async def story(w: World) -> None:
        ok(await w.patch(PATH, config(a="1", b="1"), APPLY, fieldManager="one"), 201)
        shared = ok(await w.patch(PATH, config(a="1", c="1"), APPLY, fieldManager="two"))
        clash = await w.patch(PATH, config(a="2"), APPLY, fieldManager="two")
        forced = ok(await w.patch(PATH, config(a="2"), APPLY, fieldManager="two", force="true"))

        assert owners(shared) == {"one": [".data.a", ".data.b"], "two": [".data.a", ".data.c"]}
        assert (clash.code, clash.reason) == (409, "Conflict")
        assert clash.message == 'Apply failed with 1 conflict: conflict with "one": .data.a'
        assert clash.body["details"]["causes"] == [
            {
                "reason": "FieldManagerConflict",
                "message": 'conflict with "one"',
                "field": ".data.a",
            }
        ]
        assert forced["data"] == {"a": "2", "b": "1"}
        assert owners(forced) == {"one": [".data.b"], "two": [".data.a"]}

    run(story)


def test_what_is_no_longer_applied_goes() -> None:
    """It stays if another manager owns it too; emptied maps and list items go with it."""

    async def story(w: World) -> None:
        first = named(config(a="1", b="1"), labels={"x": "1"}, finalizers=["e.com/a", "e.com/b"])
        ok(await w.patch(PATH, first, APPLY, fieldManager="one"), 201)
        ok(await w.patch(PATH, config(b="1"), APPLY, fieldManager="two"))

        left = ok(
            await w.patch(PATH, named(config(), finalizers=["e.com/b"]), APPLY, fieldManager="one")
        )

        assert left["data"] == {"b": "1"}
        assert "labels" not in left["metadata"]
        assert left["metadata"]["finalizers"] == ["e.com/b"]

    run(story)


def test_lists_merge_by_key() -> None:
    """One manager adds a container's variable, another keeps the container."""

    async def story(w: World) -> None:
        path = "/apis/apps/v1/namespaces/default/deployments/web"

        def template(containers: list[dict[str, Any]]) -> dict[str, Any]:
            return {
                "apiVersion": "apps/v1",
                "kind": "Deployment",
                "metadata": {"name": "web"},
                "spec": {
                    "selector": {"matchLabels": {"app": "web"}},
                    "template": {
                        "metadata": {"labels": {"app": "web"}},
                        "spec": {"containers": containers},
                    },
                },
            }

        main = {"name": "main", "image": "one"}
        side = {"name": "side", "image": "two", "env": [{"name": "A", "value": "1"}]}
        ok(await w.patch(path, template([main]), APPLY, fieldManager="one"), 201)
        both = ok(await w.patch(path, template([side]), APPLY, fieldManager="two"))
        gone = ok(
            await w.patch(
                path, template([{"name": "side", "image": "two"}]), APPLY, fieldManager="two"
            )
        )
        alone = ok(await w.patch(path, template([]), APPLY, fieldManager="two"))

        def names(value: dict[str, Any]) -> list[str]:
            return [c["name"] for c in value["spec"]["template"]["spec"]["containers"]]

        assert names(both) == ["main", "side"]
        assert "env" not in gone["spec"]["template"]["spec"]["containers"][1]
        assert names(alone) == ["main"]

    run(story)


def test_an_update_takes_the_fields_it_changes() -> None:
    """Updates by name are recorded; what they change, an apply has to fight for."""

    async def story(w: World) -> None:
        ok(await w.patch(PATH, config(a="1"), APPLY, fieldManager="one"), 201)
        changed = ok(await w.patch(PATH, {"data": {"a": "2"}}, fieldManager="hand"))
        clash = await w.patch(PATH, config(a="1"), APPLY, fieldManager="one")

        assert owners(changed) == {"hand": [".data.a"]}
        assert clash.message.endswith('conflict with "hand" using v1: .data.a')

    run(story)


def test_objects_without_owners_had_one_before() -> None:
    """Fields of an object that was never applied belong to its first writer."""

    async def story(w: World) -> None:
        ok(await w.post(CONFIGS, config(a="1")), 201)

        clash = await w.patch(PATH, config(a="2"), APPLY, fieldManager="one")
        joined = ok(await w.patch(PATH, config(a="1"), APPLY, fieldManager="one"))

        assert 'conflict with "before-first-apply" using v1: .data.a' in clash.message
        assert set(owners(joined)) == {"before-first-apply", "one"}

    run(story)


def test_the_status_is_applied_on_its_own() -> None:
    """A status manager owns only the status, and the main path none of it."""

    async def story(w: World) -> None:
        made = ok(await w.post(PODS, pod(), fieldManager="hand"), 201)
        status = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": "web"},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        }
        applied = ok(await w.patch(f"{PODS}/web/status", status, APPLY, fieldManager="kubelet"))

        assert not any(".status" in path for path in owners(made)["hand"])
        assert applied["status"]["conditions"] == [{"type": "Ready", "status": "True"}]
        entry = applied["metadata"]["managedFields"][-1]
        assert (entry["manager"], entry["subresource"]) == ("kubelet", "status")

    run(story)


def test_custom_objects_are_applied_too() -> None:
    """They have their definition's shape."""

    async def story(w: World) -> None:
        ok(await w.post(DEFINITIONS, definition()), 201)

        made = ok(await w.patch(f"{WIDGETS}/one", widget(), APPLY, fieldManager="a"), 201)
        clash = await w.patch(f"{WIDGETS}/one", widget(size=4), APPLY, fieldManager="b")

        assert owners(made) == {"a": [".spec.size"]}
        assert clash.code == 409

    run(story)


def test_impossible_applies_are_refused() -> None:
    """No manager, own managedFields, a part of nothing, force where nothing is applied."""

    async def story(w: World) -> None:
        nobody = await w.patch(PATH, config(), APPLY)
        entries = named(config(), managedFields=[{"manager": "x"}])
        own = await w.patch(PATH, entries, APPLY, fieldManager="one")
        part = await w.patch(f"{PODS}/none/status", pod("none"), APPLY, fieldManager="one")
        force = await w.patch(PATH, {}, force="true")
        long = await w.patch(PATH, config(), APPLY, fieldManager="x" * 129)

        codes = [one.code for one in (nobody, own, part, force, long)]
        assert codes == [422, 400, 404, 422, 422]

    run(story)


NAMES = st.text(st.characters(codec="utf-8", exclude_characters="\x00"), min_size=1, max_size=4)
PATHS = st.sets(
    st.lists(NAMES.map(lambda name: f"f:{name}"), min_size=1, max_size=4).map(tuple), max_size=8
)


@given(PATHS)
def test_field_sets_survive_being_written(paths: set[tuple[str, ...]]) -> None:
    """A set of paths and its document are the same thing."""
    assert to_paths(to_document(paths)) == paths


def test_the_paths_of_a_pod_read_well() -> None:
    """Items are named by their keys, sets by their values."""
    value = {
        "metadata": {"name": "x", "finalizers": ["a"], "labels": {"b": "c"}},
        "spec": {
            "containers": [{"name": "m", "ports": [{"containerPort": 1, "protocol": "TCP"}]}]
        },
    }

    found = {readable(path) for path in leaves(value, catalogue()["io.k8s.api.core.v1.Pod"])}

    assert found == {
        '.metadata.finalizers[="a"]',
        ".metadata.labels.b",
        '.spec.containers[name="m"]',
        '.spec.containers[name="m"].name',
        '.spec.containers[name="m"].ports[containerPort=1,protocol="TCP"]',
        '.spec.containers[name="m"].ports[containerPort=1,protocol="TCP"].containerPort',
        '.spec.containers[name="m"].ports[containerPort=1,protocol="TCP"].protocol',
    }
