"""JSON Patch, merge patch and strategic merge patch."""

from collections.abc import Callable
from time import process_time
from typing import Any

import pytest
from apiserver_world import (
    JSON_PATCH,
    MERGE,
    PODS,
    STRATEGIC,
    World,
    config,
    named,
    ok,
    pod,
    run,
)
from hypothesis import given
from hypothesis import strategies as st

from partage.apiserver.patch import PatchError, json_patch, merge_patch
from partage.apiserver.strategic import strategic_patch
from partage.wire.field_types import catalogue

POD = catalogue()["io.k8s.api.core.v1.Pod"]
CONFIGS = "/api/v1/namespaces/default/configmaps"

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


def without_nulls(value: Any) -> Any:
    """A value as a merge patch can write it."""
    if isinstance(value, dict):
        return {k: without_nulls(v) for k, v in value.items() if v is not None}
    return value


@given(VALUES, st.dictionaries(st.text(max_size=3), VALUES, max_size=4))
def test_merge_patches_are_idempotent_and_complete(value: Any, patch: dict[str, Any]) -> None:
    """Merged twice is merged once; a patch of an empty object is the patch without nulls."""
    once = merge_patch(value, patch)

    assert merge_patch(once, patch) == once
    assert merge_patch({}, patch) == without_nulls(patch)


@given(VALUES, VALUES)
def test_json_patches_replace_and_put_back(value: Any, other: Any) -> None:
    """Replacing the whole and testing for it holds, and the first value is not altered."""
    before = repr(value)

    changed = json_patch(
        value,
        [
            {"op": "replace", "path": "", "value": other},
            {"op": "test", "path": "", "value": other},
        ],
    )

    assert changed == other
    assert repr(value) == before


OPERATIONS: dict[str, tuple[list[dict[str, Any]], Any]] = {
    "add": ([{"op": "add", "path": "/l/0", "value": 0}], {"l": [0, 1, 2], "m": {"a/b": 1}}),
    "append": ([{"op": "add", "path": "/l/-", "value": 3}], {"l": [1, 2, 3], "m": {"a/b": 1}}),
    "remove": ([{"op": "remove", "path": "/l/1"}], {"l": [1], "m": {"a/b": 1}}),
    "escaped": ([{"op": "remove", "path": "/m/a~1b"}], {"l": [1, 2], "m": {}}),
    "replace": ([{"op": "replace", "path": "/l/0", "value": 9}], {"l": [9, 2], "m": {"a/b": 1}}),
    "move": (
        [{"op": "move", "from": "/l/0", "path": "/m/x"}],
        {"l": [2], "m": {"a/b": 1, "x": 1}},
    ),
    "copy": (
        [{"op": "copy", "from": "/l", "path": "/c"}],
        {"l": [1, 2], "m": {"a/b": 1}, "c": [1, 2]},
    ),
    "test for nothing": (
        [{"op": "test", "path": "/m/x", "value": None}],
        {"l": [1, 2], "m": {"a/b": 1}},
    ),
    "put": ([{"op": "replace", "path": "/m/a~1b", "value": 2}], {"l": [1, 2], "m": {"a/b": 2}}),
}


@pytest.mark.parametrize(("patch", "after"), OPERATIONS.values(), ids=OPERATIONS)
def test_json_patch_operations(patch: list[dict[str, Any]], after: Any) -> None:
    """Each operation does what RFC 6902 says."""
    assert json_patch({"l": [1, 2], "m": {"a/b": 1}}, patch) == after


BROKEN: dict[str, Any] = {
    "no list": {},
    "no object": [1],
    "no path": [{"op": "add", "value": 1}],
    "no pointer": [{"op": "add", "path": "a", "value": 1}],
    "no value": [{"op": "add", "path": "/a"}],
    "unknown": [{"op": "swap", "path": "/a"}],
    "missing key": [{"op": "remove", "path": "/x"}],
    "missing index": [{"op": "remove", "path": "/l/7"}],
    "bad index": [{"op": "add", "path": "/l/x", "value": 1}],
    "through a scalar": [{"op": "add", "path": "/l/0/x", "value": 1}],
    "the whole": [{"op": "remove", "path": ""}],
    "into itself": [{"op": "move", "from": "/m", "path": "/m/x"}],
    "failed test": [{"op": "test", "path": "/l/0", "value": 2}],
    "test of another type": [{"op": "test", "path": "/l/0", "value": True}],
    "test of another type within": [{"op": "test", "path": "/l", "value": [True, 2]}],
    "test beneath a missing key": [{"op": "test", "path": "/x/y", "value": None}],
    "beneath a scalar": [{"op": "test", "path": "/l/0/a", "value": 2}],
    "too many": [{"op": "test", "path": "", "value": 1}] * 10_001,
}


@pytest.mark.parametrize("patch", BROKEN.values(), ids=BROKEN)
def test_broken_json_patches_are_refused(patch: Any) -> None:
    """The error is one of their own, whatever is wrong."""
    with pytest.raises(PatchError):
        json_patch({"l": [1, 2], "m": {"a/b": 1}}, patch)


def spec(**fields: Any) -> dict[str, Any]:
    """A pod with a spec of two containers."""
    return {
        "spec": {
            "containers": [
                {"name": "a", "image": "1", "env": [{"name": "X", "value": "1"}]},
                {"name": "b", "image": "1"},
            ],
            "tolerations": [{"key": "k"}],
            **fields,
        }
    }


STRATEGIC_CASES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "merge by name": (
        {"spec": {"containers": [{"name": "b", "image": "2"}]}},
        {"containers": [spec()["spec"]["containers"][0], {"name": "b", "image": "2"}]},
    ),
    "nested merge": (
        {"spec": {"containers": [{"name": "a", "env": [{"name": "Y", "value": "2"}]}]}},
        {
            "containers": [
                {
                    "name": "a",
                    "image": "1",
                    "env": [{"name": "X", "value": "1"}, {"name": "Y", "value": "2"}],
                },
                {"name": "b", "image": "1"},
            ]
        },
    ),
    "delete an item": (
        {"spec": {"containers": [{"name": "a", "$patch": "delete"}]}},
        {"containers": [{"name": "b", "image": "1"}]},
    ),
    "replace a list": (
        {"spec": {"containers": [{"$patch": "replace"}, {"name": "c", "image": "3"}]}},
        {"containers": [{"name": "c", "image": "3"}]},
    ),
    "order": (
        {"spec": {"$setElementOrder/containers": [{"name": "b"}, {"name": "a"}]}},
        {"containers": list(reversed(spec()["spec"]["containers"]))},
    ),
    "order and add": (
        {
            "spec": {
                "$setElementOrder/containers": [{"name": "c"}, {"name": "a"}],
                "containers": [{"name": "c", "image": "3"}],
            }
        },
        {
            "containers": [
                {"name": "c", "image": "3"},
                {"name": "b", "image": "1"},
                spec()["spec"]["containers"][0],
            ]
        },
    ),
    "atomic list": ({"spec": {"tolerations": [{"key": "z"}]}}, {"tolerations": [{"key": "z"}]}),
    "null removes": ({"spec": {"tolerations": None}}, {"tolerations": None}),
    "a whole map goes": ({"spec": {"tolerations": {"$patch": "delete"}}}, {"tolerations": None}),
}


@pytest.mark.parametrize(("patch", "after"), STRATEGIC_CASES.values(), ids=STRATEGIC_CASES)
def test_strategic_patches(patch: dict[str, Any], after: dict[str, Any]) -> None:
    """Lists of built-in kinds merge by their keys, directives are obeyed."""
    found = strategic_patch(spec(), patch, POD)["spec"]

    for key, value in after.items():
        assert found.get(key) == value


def test_strategic_directives_for_plain_lists_and_maps() -> None:
    """Items are taken out of sets; a map can be replaced, kept in part, or emptied."""
    value = {
        "metadata": {"finalizers": ["a", "b"], "labels": {"x": "1"}},
        "spec": {"volumes": [{"name": "v", "emptyDir": {}}]},
    }
    patch = {
        "metadata": {
            "$deleteFromPrimitiveList/finalizers": ["a"],
            "finalizers": ["c"],
            "labels": {"$patch": "replace", "y": "2"},
        },
        "spec": {
            "volumes": [
                {"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/"}}
            ]
        },
    }

    found = strategic_patch(value, patch, POD)

    assert found["metadata"] == {"finalizers": ["b", "c"], "labels": {"y": "2"}}
    assert found["spec"]["volumes"] == [{"name": "v", "hostPath": {"path": "/"}}]
    assert strategic_patch(value, {"$patch": "delete"}, POD) == {}


@pytest.mark.parametrize(
    "patch",
    [
        [],
        {"$patch": "explode"},
        {"spec": {"containers": [{"image": "x"}]}},
        {"spec": {"containers": ["x"]}},
        {"metadata": {"$deleteFromPrimitiveList/finalizers": "x"}},
    ],
    ids=["no object", "directive", "no merge key", "no item", "no list"],
)
def test_broken_strategic_patches_are_refused(patch: Any) -> None:
    """The error is one of their own."""
    with pytest.raises(PatchError):
        strategic_patch(spec(), patch, POD)


def test_the_server_applies_all_kinds_of_patches() -> None:
    """The media type decides; an unknown one is refused with the known ones."""

    async def story(w: World) -> None:
        ok(await w.post(PODS, pod()), 201)
        path = f"{PODS}/web"

        ok(await w.patch(path, {"metadata": {"labels": {"a": "1"}}}, MERGE))
        ok(
            await w.patch(
                path, {"spec": {"containers": [{"name": "main", "image": "b"}]}}, STRATEGIC
            )
        )
        found = ok(
            await w.patch(
                path, [{"op": "add", "path": "/metadata/labels/c", "value": "2"}], JSON_PATCH
            )
        )
        wrong = await w.patch(path, {}, "application/json")
        unfit = await w.patch(path, [{"op": "remove", "path": "/x"}], JSON_PATCH)
        missing = await w.patch(f"{PODS}/nobody", {}, MERGE)
        none = await w.patch(path, [], MERGE)

        assert found["metadata"]["labels"] == {"a": "1", "c": "2"}
        assert found["spec"]["containers"][0]["image"] == "b"
        assert (wrong.code, unfit.code, missing.code, none.code) == (415, 422, 404, 400)

    run(story)


def test_a_patch_can_insist_on_a_revision() -> None:
    """A resourceVersion in the patch makes it conditional."""

    async def story(w: World) -> None:
        made = ok(await w.post(CONFIGS, config()), 201)
        version = made["metadata"]["resourceVersion"]
        ok(await w.patch(f"{CONFIGS}/settings", {"data": {"a": "1"}}))

        stale = await w.patch(
            f"{CONFIGS}/settings", {"metadata": {"resourceVersion": version}, "data": {"a": "2"}}
        )

        assert (stale.code, stale.reason) == (409, "Conflict")

    run(story)


def test_what_the_server_owns_cannot_be_patched() -> None:
    """UID, creation time and deletion stay as they are."""

    async def story(w: World) -> None:
        made = ok(await w.post(CONFIGS, named(config())), 201)

        found = ok(
            await w.patch(
                f"{CONFIGS}/settings",
                {
                    "metadata": {
                        "creationTimestamp": None,
                        "deletionTimestamp": "2020-01-01T00:00:00Z",
                    }
                },
            )
        )

        assert found == made

    run(story)


def test_copies_of_copies_have_an_end() -> None:
    """Each could double the document; a genuine server has the same bound."""
    grows = [{"op": "copy", "from": "/a", "path": f"/a/{number}"} for number in range(64)]

    with pytest.raises(PatchError, match="accumulated size increase of copy"):
        json_patch({"a": {"b": "c"}}, grows)


def env(letter: str, count: int, **more: str) -> list[dict[str, str]]:
    """Variables of a container."""
    return [{"name": f"{letter}{number}", **more} for number in range(count)]


MANY: dict[str, tuple[Callable[[], Any], int]] = {
    "moves": (
        lambda: json_patch(
            {"a": dict.fromkeys(map(str, range(20_000)), "")},
            [
                {"op": "move", "from": ways[0], "path": ways[1]}
                for ways in (("/a", "/b"), ("/b", "/a")) * 1000
            ],
        )["a"],
        20_000,
    ),
    "items": (
        lambda: strategic_patch(
            {"spec": {"containers": [{"name": "a", "env": env("a", 5000, value="b")}]}},
            {"spec": {"containers": [{"name": "a", "env": [*env("a", 2500), *env("b", 5000)]}]}},
            POD,
        )["spec"]["containers"][0]["env"],
        10_000,
    ),
    "deletions": (
        lambda: strategic_patch(
            {"spec": {"containers": [{"name": "a", "env": env("a", 5000)}]}},
            {
                "spec": {
                    "containers": [{"name": "a", "env": env("a", 4999, **{"$patch": "delete"})}]
                }
            },
            POD,
        )["spec"]["containers"][0]["env"],
        1,
    ),
    "values": (
        lambda: strategic_patch(
            {"metadata": {"finalizers": [f"a/{number}" for number in range(60_000)]}},
            {"metadata": {"finalizers": [f"b/{number}" for number in range(60_000)]}},
            POD,
        )["metadata"]["finalizers"],
        120_000,
    ),
    "dropped values": (
        lambda: strategic_patch(
            {"metadata": {"finalizers": [f"a/{number}" for number in range(60_000)]}},
            {
                "metadata": {
                    "$deleteFromPrimitiveList/finalizers": [f"a/{n}" for n in range(59_999, 0, -1)]
                }
            },
            POD,
        )["metadata"]["finalizers"],
        1,
    ),
    "order": (
        lambda: strategic_patch(
            {"metadata": {"finalizers": [f"a/{number}" for number in range(60_000)]}},
            {
                "metadata": {
                    "$setElementOrder/finalizers": [f"a/{n}" for n in range(59_999, -1, -1)]
                }
            },
            POD,
        )["metadata"]["finalizers"],
        60_000,
    ),
}


@pytest.mark.parametrize("case", MANY)
def test_many_items_are_merged_in_one_pass(case: str) -> None:
    """A patch of half a megabyte would otherwise keep every other client waiting for minutes."""
    merged, count = MANY[case]
    begun = process_time()

    assert len(merged()) == count
    assert process_time() - begun < 5
