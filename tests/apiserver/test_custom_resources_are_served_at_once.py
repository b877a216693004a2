"""CustomResourceDefinitions: registration, validation, defaults, status, scale, columns."""

import sys
from time import process_time
from typing import Any, cast

import pytest
from apiserver_world import DEFINITIONS, WIDGETS, World, definition, named, ok, run, widget
from hypothesis import given
from hypothesis import strategies as st

from partage.apiserver import builtin, gnostic, jsonpath, openapi, structural
from partage.apiserver import server as module
from partage.apiserver.kinds import Registry
from partage.apiserver.problems import Problems
from partage.apiserver.router import Router
from partage.apiserver.status import invalid
from partage.apiserver.verbs import Verbs

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"


def test_a_definition_is_served_from_the_next_request_on() -> None:
    """Established at once, discoverable, and gone with its objects when it is deleted."""

    async def story(w: World) -> None:
        before = await w.get(WIDGETS)
        made = ok(await w.post(DEFINITIONS, definition()), 201)
        one = ok(await w.post(WIDGETS, widget()), 201)
        resources = ok(await w.get("/apis/example.com/v1"))["resources"]
        groups = [g["name"] for g in ok(await w.get("/apis"))["groups"]]
        schema = ok(await w.get("/openapi/v3/apis/example.com/v1"))["components"]["schemas"]
        ok(await w.delete(f"{DEFINITIONS}/widgets.example.com"))
        await w.server.settle()
        after = await w.get(WIDGETS)
        ok(await w.post(DEFINITIONS, definition()), 201)

        assert (before.code, after.code) == (404, 404)
        states = {c["type"]: c["status"] for c in made["status"]["conditions"]}
        assert states == {"NamesAccepted": "True", "Established": "True"}
        assert one["spec"] == {"size": 3, "color": "red"}
        assert one["metadata"]["generation"] == 1
        assert [r["name"] for r in resources] == ["widgets", "widgets/scale", "widgets/status"]
        assert "example.com" in groups
        assert "com.example.v1.Widget" in schema
        assert ok(await w.get(WIDGETS))["items"] == []

    run(story)


def test_a_client_may_delete_a_definition_and_then_its_objects(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`kubectl delete -f` of one file does so; it holds for a namespace and its objects as well."""
    monkeypatch.setattr(module, "_TIDY_AFTER", 3600)

    async def story(w: World) -> None:
        ok(await w.post(DEFINITIONS, definition()), 201)
        ok(await w.post("/api/v1/namespaces", {"metadata": {"name": "team"}}), 201)
        ok(await w.post(WIDGETS, widget()), 201)
        ok(await w.post("/api/v1/namespaces/team/configmaps", {"metadata": {"name": "a"}}), 201)

        ok(await w.delete(f"{DEFINITIONS}/widgets.example.com"))
        ok(await w.delete(f"{WIDGETS}/one"))
        ok(await w.delete("/api/v1/namespaces/team"))
        ok(await w.delete("/api/v1/namespaces/team/configmaps/a"))
        await w.server.settle()

        assert (await w.get(f"{DEFINITIONS}/widgets.example.com")).code == 404
        assert (await w.get("/api/v1/namespaces/team")).code == 404

    run(story)


SPECS: dict[str, tuple[dict[str, Any], str]] = {
    "missing": ({}, "spec.size: Required value"),
    "type": ({"size": "big"}, 'spec.size in body must be of type integer: "string"'),
    "boolean": ({"size": True}, 'spec.size in body must be of type integer: "boolean"'),
    "least": ({"size": 0}, "should be greater than or equal to 1"),
    "most": ({"size": 11}, "should be less than or equal to 10"),
    "enum": ({"size": 1, "color": "green"}, 'supported values: "blue", "red"'),
    "items": (
        {"size": 1, "tags": ["a", "b", "c"]},
        "spec.tags: Too many: 3: must have at most 2 items",
    ),
    "item": ({"size": 1, "tags": [1]}, "spec.tags[0] in body must be of type string"),
}


@pytest.mark.parametrize(("spec", "why"), SPECS.values(), ids=SPECS)
def test_objects_that_break_the_schema_are_refused(spec: dict[str, Any], why: str) -> None:
    """The refusal has the field and the rule."""

    async def story(w: World) -> None:
        ok(await w.post(DEFINITIONS, definition()), 201)

        answer = await w.post(WIDGETS, {**widget(), "spec": spec})

        assert answer.code == 422
        assert why in answer.message

    run(story)


def test_unknown_fields_are_pruned_or_refused() -> None:
    """`fieldValidation` decides, as for built-in kinds."""

    async def story(w: World) -> None:
        ok(await w.post(DEFINITIONS, definition()), 201)

        pruned = ok(await w.post(WIDGETS, widget(sise=1)), 201)
        strict = await w.post(WIDGETS, widget("two", sise=1), fieldValidation="Strict")

        assert "sise" not in pruned["spec"]
        assert 'strict decoding error: unknown field "spec.sise"' in strict.message

    run(story)


def test_status_and_scale_have_their_own_paths() -> None:
    """The status changes no generation; the scale is the definition's paths."""

    async def story(w: World) -> None:
        ok(await w.post(DEFINITIONS, definition()), 201)
        made = ok(await w.post(WIDGETS, {**widget(replicas=2), "status": {"replicas": 9}}), 201)
        status = ok(await w.patch(f"{WIDGETS}/one/status", {"status": {"replicas": 2}}))
        scale = ok(await w.get(f"{WIDGETS}/one/scale"))
        scale["spec"]["replicas"] = 4
        scaled = ok(await w.put(f"{WIDGETS}/one/scale", scale))
        again = ok(await w.patch(f"{WIDGETS}/one/scale", {"spec": {"replicas": 5}}))
        negative = await w.patch(f"{WIDGETS}/one/scale", {"spec": {"replicas": -1}})
        stale = await w.put(f"{WIDGETS}/one/scale", scale)
        other = await w.put(f"{WIDGETS}/one/scale", named(scale, uid="x", resourceVersion=""))

        assert "status" not in made
        assert status["status"] == {"replicas": 2}
        assert status["metadata"]["generation"] == 1
        assert (scaled["spec"], scaled["status"]) == ({"replicas": 4}, {"replicas": 2})
        assert again["spec"] == {"replicas": 5}
        assert (negative.code, stale.code, other.code) == (422, 409, 409)
        assert ok(await w.get(f"{WIDGETS}/one"))["metadata"]["generation"] == 3

    run(story)


def test_columns_are_the_definitions() -> None:
    """`kubectl get` shows what the definition asks for."""

    async def story(w: World) -> None:
        columns = [
            {"name": "Size", "type": "integer", "jsonPath": ".spec.size"},
            {"name": "Tags", "type": "string", "jsonPath": ".spec.tags[*]", "priority": 1},
            {"name": "None", "type": "string", "jsonPath": ".spec.none"},
            {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
        ]
        ok(await w.post(DEFINITIONS, definition(additionalPrinterColumns=columns)), 201)
        ok(await w.post(WIDGETS, widget(tags=["a", "b"])), 201)
        w.around.seconds += 150

        table = ok(await w.ask("GET", WIDGETS, accept=TABLE))

        assert table["rows"][0]["cells"] == ["one", 3, "a", None, "2m30s"]
        assert [c["priority"] for c in table["columnDefinitions"]] == [0, 0, 1, 0, 0]

    run(story)


def test_versions_show_the_same_object() -> None:
    """Two served versions differ in nothing but their apiVersion."""

    async def story(w: World) -> None:
        value = definition()
        older = {**value["spec"]["versions"][0], "name": "v1beta1", "storage": False}
        value["spec"]["versions"].append(older)
        ok(await w.post(DEFINITIONS, value), 201)
        ok(await w.post(WIDGETS, widget()), 201)

        old = "/apis/example.com/v1beta1/namespaces/default/widgets"
        seen = ok(await w.get(f"{old}/one"))
        listed = ok(await w.get(old))
        ok(await w.patch(f"{old}/one", {"spec": {"size": 5}}))

        assert seen["apiVersion"] == "example.com/v1beta1"
        assert listed["apiVersion"] == "example.com/v1beta1"
        assert ok(await w.get(f"{WIDGETS}/one"))["spec"]["size"] == 5
        group = ok(await w.get("/apis/example.com"))
        assert group["preferredVersion"]["version"] == "v1"

    run(story)


def broken(change: Any) -> dict[str, Any]:
    """A definition after a change."""
    value = definition()
    change(value["spec"])
    return value


def built_in(plural: str, group: str) -> dict[str, Any]:
    """A definition with the name of a resource that the server has itself."""
    value = named(definition(), name=f"{plural}.{group}")
    value["spec"]["group"] = group
    value["spec"]["names"] |= {"plural": plural, "singular": plural}
    return value


BROKEN = {
    "built in": (built_in("leases", "coordination.k8s.io"), "of the API server itself"),
    "built in twice": (built_in("events", "events.k8s.io"), "of the API server itself"),
    "name": (named(definition(), name="x.example.com"), "must be spec.names.plural"),
    "group": (broken(lambda s: s.update(group="")), "spec.group: Required value"),
    "plain group": (broken(lambda s: s.update(group="x")), "should be a domain"),
    "kind": (broken(lambda s: s["names"].pop("kind")), "spec.names.kind: Required value"),
    "scope": (broken(lambda s: s.update(scope="World")), "spec.scope: Unsupported value"),
    "no versions": (broken(lambda s: s.update(versions=[])), "spec.versions: Required value"),
    "no storage": (
        broken(lambda s: s["versions"][0].update(storage=False)),
        "must have exactly one version marked as storage version",
    ),
    "no schema": (broken(lambda s: s["versions"][0].pop("schema")), "schemas are required"),
    "no object": (
        broken(lambda s: s["versions"][0].update(schema={"openAPIV3Schema": {"type": "string"}})),
        "must be object at the root",
    ),
    "odd schema": (
        broken(
            lambda s: s["versions"][0].update(
                schema={"openAPIV3Schema": {"type": "object", "properties": {"a": {"items": 1}}}}
            )
        ),
        "has a wrong type",
    ),
    "odd required": (
        broken(
            lambda s: s["versions"][0].update(
                schema={"openAPIV3Schema": {"type": "object", "required": [1]}}
            )
        ),
        "names of fields must be strings",
    ),
    "twice": (
        broken(lambda s: s["versions"].append({**s["versions"][0], "storage": False})),
        "Duplicate value",
    ),
}


@pytest.mark.parametrize(("value", "why"), BROKEN.values(), ids=BROKEN)
def test_malformed_definitions_are_refused(value: dict[str, Any], why: str) -> None:
    """The refusal has the field and the rule."""

    async def story(w: World) -> None:
        answer = await w.post(DEFINITIONS, value)

        assert answer.code == 422
        assert why in answer.message

    run(story)


@pytest.mark.parametrize(
    "odd",
    [
        {"type": ["string"]},
        {"maxLength": "abc"},
        {"minItems": {}},
        {"multipleOf": "x"},
        {"maximum": 10**400},
        {"allOf": "x"},
        {"allOf": ["x"]},
        {"additionalProperties": "x"},
        {"pattern": 5},
        {"description": None, "maxLength": None, "nullable": None},
    ],
    ids=str,
)
def test_no_schema_spoils_the_document_of_all(odd: dict[str, Any]) -> None:
    """A keyword of another type is refused, and null is no value: clients read the schemas of all kinds together."""

    async def story(w: World) -> None:
        schema = {"type": "object", "properties": {"a": odd}}
        answer = await w.post(DEFINITIONS, definition(schema={"openAPIV3Schema": schema}))

        gnostic.encoded(openapi.v2(w.server.registry))
        assert answer.code == (201 if None in odd.values() else 422)

    run(story)


def test_a_definition_keeps_its_names() -> None:
    """Scope, group, plural and kind do not change; the schema does."""

    async def story(w: World) -> None:
        path = f"{DEFINITIONS}/widgets.example.com"
        ok(await w.post(DEFINITIONS, definition()), 201)

        fixed = await w.patch(path, {"spec": {"scope": "Cluster", "names": {"kind": "Gadget"}}})
        open_ = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        value = definition(schema={"openAPIV3Schema": open_})
        ok(await w.put(path, value))
        free = ok(await w.post(WIDGETS, widget(anything={"goes": [1]})), 201)

        assert "field is immutable" in fixed.message
        assert free["spec"]["anything"] == {"goes": [1]}

    run(story)


RULES: dict[str, tuple[dict[str, Any], Any, bool]] = {
    "null": ({"type": "string"}, None, False),
    "nullable": ({"type": "string", "nullable": True}, None, True),
    "int or string": ({"x-kubernetes-int-or-string": True}, "50%", True),
    "neither": ({"x-kubernetes-int-or-string": True}, 1.5, False),
    "whole float": ({"type": "integer"}, 2.0, True),
    "broken float": ({"type": "integer"}, 2.5, False),
    "number": ({"type": "number"}, 2.5, True),
    "pattern": ({"type": "string", "pattern": "^a+$"}, "b", False),
    "fits pattern": ({"type": "string", "pattern": "^a+$"}, "aa", True),
    "odd pattern": ({"type": "string", "pattern": "("}, "b", True),
    "nested pattern": ({"type": "string", "pattern": "^(a+)+$"}, "a" * 40 + "b", False),
    "dear pattern": (
        {"type": "string", "pattern": "a([ab]{300}|[ab]{200})c"},
        "ab" * 200_000,
        True,
    ),
    "long pattern": ({"type": "string", "pattern": "(" * 5_000 + ")" * 5_000}, "b", True),
    "short": ({"type": "string", "minLength": 2}, "b", False),
    "long": ({"type": "string", "maxLength": 2}, "bbb", False),
    "few": ({"type": "object", "minProperties": 1}, {}, False),
    "more": ({"type": "object", "additionalProperties": {"type": "string"}}, {"a": 1}, False),
    "map keys": (
        {
            "type": "array",
            "items": {"type": "object"},
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["n"],
        },
        [{"n": 1}, {"n": 1}],
        False,
    ),
    "set": ({"type": "array", "x-kubernetes-list-type": "set"}, ["a", "b"], True),
    "set twice": ({"type": "array", "x-kubernetes-list-type": "set"}, ["a", "b", "a"], False),
    "set of lists": ({"type": "array", "x-kubernetes-list-type": "set"}, [["a"], ["a"]], False),
    "many": (
        {
            "type": "array",
            "items": {"type": "object"},
            "x-kubernetes-list-type": "map",
            "x-kubernetes-list-map-keys": ["n"],
        },
        [{"n": str(number)} for number in range(30_000)],
        True,
    ),
}


@pytest.mark.parametrize(("schema", "value", "good"), RULES.values(), ids=RULES)
def test_schema_rules(schema: dict[str, Any], value: Any, *, good: bool) -> None:
    """Each keyword that is honoured, within a time that other clients can wait."""
    if "pattern" in schema:
        pytest.importorskip("re2", reason="google-re2 is not installed: patterns are left out")
    problems, begun = Problems(), process_time()

    structural.check(value, schema, "x", problems)

    assert bool(problems) is not good
    assert process_time() - begun < 5


def test_patterns_are_left_out_without_their_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own expressions may take for ever."""
    monkeypatch.setitem(sys.modules, "re2", None)
    structural._pattern.cache_clear()
    problems = Problems()

    structural.check("a" * 40 + "b", {"type": "string", "pattern": "^(a+)+$"}, "x", problems)
    structural._pattern.cache_clear()

    assert not problems


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (
            {"type": "array", "items": {"enum": [f"{n:0300}" for n in range(5_000)]}},
            ["x"] * 300_000,
        ),
        (
            {"additionalProperties": {"additionalProperties": {"type": "string"}}},
            {"x" * 1_000_000: {f"{n}": 1 for n in range(30_000)}},
        ),
    ],
    ids=["against a large enumeration", "below a long name"],
)
def test_a_million_problems_are_told_briefly(schema: dict[str, Any], value: Any) -> None:
    """The work and the text of each do not grow with the values that it is compared with."""
    problems, begun = Problems(), process_time()

    structural.check(value, schema, "x", problems)

    told = str(invalid("Widget", "example.com", "one", problems.causes))
    assert len(problems.causes) == 1000
    assert len(problems.causes[0].message) < 1200
    assert len(told) < 3_000_000
    assert process_time() - begun < 5


def test_defaults_go_deep() -> None:
    """Into lists and maps, and over nulls that are not nullable."""
    inner = {"type": "object", "properties": {"a": {"type": "string", "default": "x"}}}
    schema = {
        "properties": {
            "list": {"type": "array", "items": inner},
            "map": {"type": "object", "additionalProperties": inner},
            "null": {"type": "string", "default": "y"},
            "kept": {"type": "string", "default": "y", "nullable": True},
        }
    }
    value = {"list": [{}], "map": {"k": {}}, "null": None, "kept": None}

    structural.fill(value, schema)

    assert value == {"list": [{"a": "x"}], "map": {"k": {"a": "x"}}, "null": "y", "kept": None}


DOCUMENT = {
    "a": {"b.c": 1, "l": [{"t": "x", "v": 1}, {"t": "y", "v": 2}], "m": {"k": 3}},
    "s": "text",
}
PATHS = {
    ".a['b.c']": [1],
    ".a.b\\.c": [1],
    "{.a.l[0].v}": [1],
    ".a.l[-1].v": [2],
    ".a.l[9]": [],
    ".a.l[*].v": [1, 2],
    '.a.l[?(@.t=="y")].v': [2],
    ".a.m[*]": [3],
    "$.s": ["text"],
    "s": ["text"],
    ".s.x": [],
    ".s[0]": [],
    ".a.none": [],
    "..": [],
    ".a[": [],
    "": [DOCUMENT],
}


@pytest.mark.parametrize("path", PATHS)
def test_jsonpaths_find_what_they_name(path: str) -> None:
    """They find nothing where they name nothing, or say what they do not understand."""
    assert jsonpath.find_all(DOCUMENT, path) == PATHS[path]


@given(st.text(max_size=30))
def test_any_jsonpath_is_harmless(path: str) -> None:
    """The text may be any."""
    assert isinstance(jsonpath.find_all(DOCUMENT, path), list)


def test_documents_of_earlier_resources_are_forgotten() -> None:
    """Each is large, and a client may define resources and ask again and again."""
    registry = Registry()
    router = Router(registry, cast("Verbs", None))
    for text in (b"first", b"second"):
        registry.add(*builtin.kinds()[:1])
        assert router._kept("openapi/v2", lambda text=text: text) == text

    assert list(router._documents.values()) == [b"second"]
