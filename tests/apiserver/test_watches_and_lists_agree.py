"""Lists in pages, watches from a revision, and selectors over both."""

import asyncio
import contextlib
import json
from typing import Any

import pytest
from apiserver_world import PODS, World, config, named, ok, pod, run
from hypothesis import given
from hypothesis import strategies as st

from partage.apiserver import ApiError, Settings
from partage.apiserver.listing import Selection
from partage.apiserver.negotiation import Form
from partage.apiserver.selectors import FieldSelector, parse_labels, parse_selector
from partage.apiserver.storage import Absent, Compacted, Store, Taken
from partage.apiserver.streams import Watch, watch

CONFIGS = "/api/v1/namespaces/default/configmaps"


def told(events: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """Type and name of each event that is not a bookmark."""
    return [
        (e["type"], e["object"]["metadata"]["name"]) for e in events if e["type"] != "BOOKMARK"
    ]


def test_a_watch_tells_what_happened_since() -> None:
    """Every change after the revision, once and in order, and nothing before."""

    async def story(w: World) -> None:
        ok(await w.post(CONFIGS, config("early")), 201)
        since = ok(await w.get(CONFIGS))["metadata"]["resourceVersion"]
        ok(await w.post(CONFIGS, config("a")), 201)
        ok(await w.patch(f"{CONFIGS}/a", {"data": {"x": "1"}}))
        ok(await w.delete(f"{CONFIGS}/a"))

        events = await w.watch(CONFIGS, resourceVersion=since)

        assert told(events) == [("ADDED", "a"), ("MODIFIED", "a"), ("DELETED", "a")]
        versions = [int(e["object"]["metadata"]["resourceVersion"]) for e in events]
        assert versions == sorted(set(versions))

    run(story)


def test_a_watch_that_the_servers_end_cuts_off_claims_no_untold_change() -> None:
    """Its client would go on after the bookmark, and never hear of it."""

    async def story(w: World) -> None:
        closing = asyncio.Event()
        call = w.server.call("configmaps", "default")
        wanted = Watch(Selection(), Form(), since=w.server.store.revision, bookmarks=True)
        lines = watch(w.server.cluster, call, wanted, closing)
        assert await anext(lines) == b""
        waiting = asyncio.create_task(anext(lines, b""))
        await asyncio.sleep(0)

        w.server.store.insert("configmaps", config("a") | {"metadata": {"name": "a"}})
        closing.set()

        assert await waiting == b""

    run(story)


def test_a_watch_without_a_revision_begins_with_what_is_there() -> None:
    """The objects of now come first; `sendInitialEvents` marks their end."""

    async def story(w: World) -> None:
        ok(await w.post(CONFIGS, config("a")), 201)

        plain = await w.watch(CONFIGS)
        marked = await w.watch(
            CONFIGS,
            sendInitialEvents="true",
            resourceVersionMatch="NotOlderThan",
            allowWatchBookmarks="true",
        )
        wrong = await w.get(CONFIGS, watch="1", sendInitialEvents="true")

        assert told(plain) == [("ADDED", "a")]
        end = marked[1]["object"]["metadata"]
        assert (marked[0]["type"], marked[1]["type"]) == ("ADDED", "BOOKMARK")
        assert end["annotations"] == {"k8s.io/initial-events-end": "true"}
        assert end["resourceVersion"] == str(w.server.store.revision)
        assert wrong.code == 422

    run(story)


def test_bookmarks_tell_how_far_a_watch_is() -> None:
    """They come in between and at the end, where they are wanted."""

    async def story(w: World) -> None:
        events = await w.watch(CONFIGS, allowWatchBookmarks="true", resourceVersion="1")

        assert len(events) >= 2
        assert {e["type"] for e in events} == {"BOOKMARK"}
        assert events[-1]["object"]["kind"] == "ConfigMap"

    run(story, Settings(beat=0.3))


def test_a_selected_watch_sees_objects_come_and_go() -> None:
    """An object that begins or ceases to match is an addition or a deletion."""

    async def story(w: World) -> None:
        since = str(w.server.store.revision)
        for labels in ({"app": "x"}, {"app": "x", "y": "1"}, {"app": "z"}, {"app": "x"}):
            value = named(config("a"), labels=labels)
            answer = await w.put(f"{CONFIGS}/a", value)
            if answer.code == 404:
                ok(await w.post(CONFIGS, value), 201)
        ok(await w.delete(f"{CONFIGS}/a"))
        ok(await w.post(CONFIGS, config("other")), 201)

        events = await w.watch(CONFIGS, resourceVersion=since, labelSelector="app=x")

        kinds = [kind for kind, _name in told(events)]
        assert kinds == ["ADDED", "MODIFIED", "DELETED", "ADDED", "DELETED"]

    run(story)


def test_watches_stay_in_their_namespace() -> None:
    """A namespace's watch does not see another's objects; the watch of all does."""

    async def story(w: World) -> None:
        since = str(w.server.store.revision)
        ok(await w.post("/api/v1/namespaces/kube-system/configmaps", config("far")), 201)
        ok(await w.post(CONFIGS, config("near")), 201)

        here = await w.watch(CONFIGS, resourceVersion=since)
        everywhere = await w.watch("/api/v1/configmaps", resourceVersion=since)
        one = await w.watch("/api/v1/watch/namespaces/default/configmaps/near")

        assert told(here) == [("ADDED", "near")]
        assert told(everywhere) == [("ADDED", "far"), ("ADDED", "near")]
        assert told(one) == [("ADDED", "near")]

    run(story)


def test_a_watch_from_too_long_ago_has_expired() -> None:
    """410 tells the client to list again; so does a revision that this server never had."""

    async def story(w: World) -> None:
        for i in range(12):
            ok(await w.post(CONFIGS, config(f"c{i}")), 201)

        old = await w.get(CONFIGS, watch="1", resourceVersion="1")
        future = await w.get(CONFIGS, watch="1", resourceVersion="999999")
        listed = await w.get(CONFIGS, resourceVersion="1", resourceVersionMatch="Exact")

        assert (old.code, old.reason) == (410, "Expired")
        assert old.message.startswith("too old resource version: 1 (")
        assert (future.code, listed.code) == (410, 410)

    run(story, Settings(history=5))


def test_a_revision_that_the_server_never_had_is_named() -> None:
    """504, so that the client reads without one; an answer would seem as new as it asked for."""

    async def story(w: World) -> None:
        ok(await w.post(CONFIGS, config("a")), 201)

        for path in (CONFIGS, f"{CONFIGS}/a"):
            answer = await w.get(path, resourceVersion="999999")

            assert (answer.code, answer.reason) == (504, "Timeout")
            newest = w.server.store.revision
            assert answer.message == (
                f"Timeout: Too large resource version: 999999, current: {newest}"
            )
            ok(await w.get(path, resourceVersion=str(newest)))

    run(story)


def test_a_client_that_falls_behind_is_told_so() -> None:
    """A stream whose events have left the history ends with an `Expired` event."""

    async def story(w: World) -> None:
        since = w.server.store.revision
        url = f"{w.url}{CONFIGS}"
        params = {"watch": "1", "resourceVersion": str(since)}
        async with w.session.get(url, params=params) as response:
            for i in range(20):
                await w.server.create("configmaps", config(f"c{i}"), "default")
            lines = [json.loads(line) async for line in response.content]

        assert lines[-1]["type"] == "ERROR"
        assert lines[-1]["object"]["code"] == 410

    run(story, Settings(history=5))


def test_watches_end_when_the_server_does() -> None:
    """Stopping does not wait for clients to go away."""

    async def story(w: World) -> None:
        async with w.session.get(f"{w.url}{CONFIGS}", params={"watch": "1"}) as response:
            stopping = asyncio.create_task(w.server.stop())
            rest = await asyncio.wait_for(response.content.read(), 240)
            await asyncio.wait_for(stopping, 240)

        assert rest == b""

    run(story)


def test_pages_belong_to_one_revision() -> None:
    """What changes between two pages is not seen in the second."""

    async def story(w: World) -> None:
        for i in range(7):
            ok(await w.post(CONFIGS, config(f"c{i}", v="old")), 201)
        first = ok(await w.get(CONFIGS, limit="3"))
        ok(await w.delete(f"{CONFIGS}/c5"))
        ok(await w.post(CONFIGS, config("c55")), 201)
        ok(await w.patch(f"{CONFIGS}/c6", {"data": {"v": "new"}}))

        second = ok(await w.get(CONFIGS, limit="3", **{"continue": first["metadata"]["continue"]}))
        last = ok(await w.get(CONFIGS, limit="3", **{"continue": second["metadata"]["continue"]}))

        names = [o["metadata"]["name"] for page in (first, second, last) for o in page["items"]]
        assert names == [f"c{i}" for i in range(7)]
        assert last["items"][0]["data"] == {"v": "old"}
        assert first["metadata"]["remainingItemCount"] == 4
        assert last["metadata"]["resourceVersion"] == first["metadata"]["resourceVersion"]
        assert "continue" not in last["metadata"]

    run(story)


BAD_QUERIES = {
    "token": {"continue": "x!"},
    "token and version": {"continue": "abc", "resourceVersion": "3"},
    "limit": {"limit": "few"},
    "version": {"resourceVersion": "abc"},
    "label selector": {"labelSelector": "a=b=c"},
    "label set": {"labelSelector": "a in (b"},
    "label end": {"labelSelector": "a,"},
    "label key": {"labelSelector": "-a"},
    "label value": {"labelSelector": "a=%"},
    "label number": {"labelSelector": "a>x"},
    "label not": {"labelSelector": "!a=b"},
    "field": {"fieldSelector": "spec.foo=1"},
    "field term": {"fieldSelector": "metadata.name"},
}


@pytest.mark.parametrize("query", BAD_QUERIES.values(), ids=BAD_QUERIES)
def test_malformed_queries_are_refused(query: dict[str, str]) -> None:
    """400, and a message."""

    async def story(w: World) -> None:
        answer = await w.get(CONFIGS, **query)

        assert answer.code == 400
        assert answer.message

    run(story)


def test_replica_sets_are_not_selected_by_their_replicas() -> None:
    """Unlike those of ReplicationControllers, as on a genuine server."""

    async def story(w: World) -> None:
        query = {"fieldSelector": "status.replicas=0"}
        ok(await w.get("/api/v1/replicationcontrollers", **query))
        answer = await w.get("/apis/apps/v1/replicasets", **query)

        assert answer.code == 400
        assert '"status.replicas" is not a known field selector' in answer.message

    run(story)


FIELDS = {
    "node": ("spec.nodeName=n1", ["a"]),
    "no node": ("spec.nodeName=", ["b"]),
    "not a node": ("spec.nodeName!=n1", ["b"]),
    "phase": ("status.phase==Pending,metadata.name!=b", ["a"]),
    "name": ("metadata.name=b", ["b"]),
    "nobody": ("metadata.name=c", []),
    "namespace": ("metadata.namespace=default", ["a", "b"]),
}


@pytest.mark.parametrize(("selector", "names"), FIELDS.values(), ids=FIELDS)
def test_pods_are_selected_by_fields(selector: str, names: list[str]) -> None:
    """Node, phase, name and namespace are such fields."""

    async def story(w: World) -> None:
        ok(await w.post(PODS, pod("a", nodeName="n1")), 201)
        ok(await w.post(PODS, pod("b")), 201)

        found = ok(await w.get(PODS, fieldSelector=selector))["items"]

        assert [one["metadata"]["name"] for one in found] == names

    run(story)


LABELS = {
    "a=1": True,
    "a==1": True,
    "a!=1": False,
    "a": True,
    "!a": False,
    "!b": True,
    "b": False,
    "a in (1, 2)": True,
    "a notin (1,2)": False,
    "b notin (1)": True,
    "b!=1": True,
    "a>0": True,
    "a<1": False,
    "b>0": False,
    "a=1,b": False,
    " a = 1 , !b ": True,
    "": True,
    "t>1": False,
}


@pytest.mark.parametrize("text", LABELS)
def test_label_selectors_mean_what_they_say(text: str) -> None:
    """Every operator, over present and absent labels."""
    assert parse_selector(text.strip()).matches({"a": "1", "t": "text"}) is LABELS[text]


@given(st.text(max_size=40))
def test_selectors_are_parsed_or_refused(text: str) -> None:
    """Any text gives a selector or an `ApiError`."""
    for parse in (parse_selector, lambda t: FieldSelector.parse(t, ("metadata.name",), "%s")):
        with contextlib.suppress(ApiError):
            parse(text)


def test_selector_documents_mean_the_same() -> None:
    """Both matchLabels and matchExpressions, all operators."""
    selector = parse_labels(
        {
            "matchLabels": {"a": "1"},
            "matchExpressions": [
                {"key": "a", "operator": "In", "values": ["1", "2"]},
                {"key": "b", "operator": "NotIn", "values": ["1"]},
                {"key": "a", "operator": "Exists"},
                {"key": "c", "operator": "DoesNotExist"},
            ],
        }
    )

    assert selector.matches({"a": "1"})
    assert not selector.matches({"a": "1", "c": "x"})


STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "drop"]), st.sampled_from(["a", "b", "c"]), st.integers()),
    max_size=40,
)


@given(STEPS, st.integers(min_value=1, max_value=50))
def test_history_and_state_tell_the_same(steps: list[Any], capacity: int) -> None:
    """Every earlier state that is remembered is exactly what it was; the events lead to now."""
    store = Store(history=capacity)
    states: dict[int, dict[str, Any]] = {0: {}}
    for kind, name, number in steps:
        found = store.get("x", "", name)
        value = {"metadata": {"name": name}, "n": number}
        if kind == "put" and found is None:
            store.insert("x", value)
        elif kind == "put" and found is not None:
            store.replace("x", value, found.revision)
        elif found is not None:
            store.remove("x", "", name, found.revision)
        states[store.revision] = {r.name: r.value["n"] for r in store.all("x")}

    for revision, state in states.items():
        try:
            seen = {r.name: r.value["n"] for r in store.list_at("x", "", revision)}
        except Compacted:
            forgotten = True
        else:
            forgotten = False
        assert forgotten is (revision < store.history("x").floor)
        if forgotten:
            continue
        assert seen == state
        position = store.history("x").position(revision)
        for change in store.history("x").after(position):
            if change.kind == "DELETED":
                del seen[change.record.name]
            else:
                seen[change.record.name] = change.record.value["n"]
        assert seen == states[store.revision]


def test_the_store_refuses_what_does_not_fit() -> None:
    """A taken name, an absent object, a reader too far behind."""
    store = Store(history=1)
    first = store.insert("x", {"metadata": {"name": "a"}})

    with pytest.raises(Taken):
        store.insert("x", {"metadata": {"name": "a"}})
    with pytest.raises(Absent):
        store.remove("x", "", "b", 1)
    store.replace("x", {"metadata": {"name": "a"}, "n": 1}, first.revision)
    with pytest.raises(Compacted):
        store.history("x").after(0)


def test_large_changes_are_forgotten_sooner() -> None:
    """Otherwise 20,000 changes of pods of a megabyte would be remembered; the last one always is."""
    store, large = Store(), "x" * 2**20
    for number in range(40):
        store.insert("x", {"metadata": {"name": f"a{number}"}, "large": large})
    history = store.history("x")

    assert 0 < len(history.after(history.position(history.floor))) <= 32
    with pytest.raises(Compacted):
        history.position(history.floor - 1)
    store.insert("x", {"metadata": {"name": "b"}, "large": 40 * large})
    assert [change.record.name for change in history.after(history.end - 1)] == ["b"]
    for number in range(40):
        store.insert("x", {"metadata": {"name": f"c{number}"}})
    assert len(history.after(history.position(history.floor))) == 40
