"""Creating, replacing and deleting over HTTP; what the server adds, and what it refuses."""

import asyncio
from typing import Any

import pytest
from apiserver_world import (
    APPLY,
    JSON,
    JSON_PATCH,
    MERGE,
    PODS,
    STRATEGIC,
    World,
    config,
    deployment,
    named,
    ok,
    pod,
    run,
)

from partage.apiserver import Refused, Review, server

CONFIGS = "/api/v1/namespaces/default/configmaps"


def test_a_new_object_gets_its_identity() -> None:
    """UID, time, resourceVersion and generation come from the server, whatever the client says."""

    async def story(w: World) -> None:
        sent = named(pod(), uid="mine", creationTimestamp="2001-01-01T00:00:00Z", generation=7)

        made = ok(await w.post(PODS, sent), 201)

        head = made["metadata"]
        assert head["uid"].startswith("00000000-")
        assert head["creationTimestamp"] == "2023-11-14T22:13:20Z"
        assert head["generation"] == 1
        assert int(head["resourceVersion"]) == w.server.store.revision
        assert made["status"] == {"phase": "Pending", "qosClass": "BestEffort"}
        assert ok(await w.get(f"{PODS}/web")) == made

    run(story)


def test_names_are_generated_and_taken_only_once() -> None:
    """`generateName` finds a free name; a taken name is a conflict."""

    async def story(w: World) -> None:
        value = config()
        value["metadata"] = {"generateName": "job-"}

        first = ok(await w.post(CONFIGS, value), 201)["metadata"]["name"]
        w.around.drawn -= 2  # the same suffix is drawn again
        second = ok(await w.post(CONFIGS, value), 201)["metadata"]["name"]
        taken = await w.post(CONFIGS, config(first))

        assert first.startswith("job-")
        assert first != second
        assert (taken.code, taken.reason) == (409, "AlreadyExists")
        assert taken.message == f'configmaps "{first}" already exists'

    run(story)


NAMES = {
    "upper case": ("Web", "a lowercase RFC 1123 subdomain must consist of"),
    "underscore": ("a_b", "a lowercase RFC 1123 subdomain must consist of"),
    "too long": ("a" * 254, "must be no more than 253 characters"),
    "empty": ("", "Required value: name or generateName is required"),
}


@pytest.mark.parametrize(("name", "why"), NAMES.values(), ids=NAMES)
def test_malformed_names_are_refused(name: str, why: str) -> None:
    """Names follow DNS-1123, with the message people know."""

    async def story(w: World) -> None:
        answer = await w.post(PODS, pod(name))

        assert (answer.code, answer.reason) == (422, "Invalid")
        assert f"metadata.name: {'Invalid value: ' if name else ''}" in answer.message
        assert why in answer.message

    run(story)


METADATA = {
    "label key": ({"labels": {"-a": "x"}}, "name part must consist of alphanumeric"),
    "label prefix": ({"labels": {"A_/a": "x"}}, "prefix part a lowercase RFC 1123 subdomain"),
    "label value": ({"labels": {"a": "x y"}}, "a valid label must be an empty string or"),
    "long label value": ({"labels": {"a": "x" * 64}}, "must be no more than 63 bytes"),
    "two slashes": ({"labels": {"a/b/c": "x"}}, "a valid label key must consist of"),
    "annotation key": ({"annotations": {"a b": "x"}}, "name part must consist of alphanumeric"),
    "large annotations": (
        {"annotations": {"a": "x" * 2**18}},
        "metadata.annotations: Too long: may not be more than 262144 bytes",
    ),
    "finalizer": ({"finalizers": ["x"]}, "neither a standard finalizer name nor is it fully"),
    "owner": (
        {"ownerReferences": [{"kind": "X"}]},
        'ownerReferences.uid: Invalid value: "": must not be empty',
    ),
}


@pytest.mark.parametrize(("metadata", "why"), METADATA.values(), ids=METADATA)
def test_malformed_metadata_is_refused(metadata: dict[str, Any], why: str) -> None:
    """Labels, annotations, finalizers and owners are checked on creation and on update."""

    async def story(w: World) -> None:
        refused = await w.post(CONFIGS, named(config(), **metadata))
        ok(await w.post(CONFIGS, config()), 201)
        again = await w.put(f"{CONFIGS}/settings", named(config(), **metadata))

        assert (refused.code, again.code) == (422, 422)
        assert why in refused.message
        assert why in again.message

    run(story)


def test_a_missing_namespace_is_not_found() -> None:
    """Nothing is created where there is no namespace; the usual four are there."""

    async def story(w: World) -> None:
        answer = await w.post("/api/v1/namespaces/nowhere/configmaps", config())
        names = [n["metadata"]["name"] for n in ok(await w.get("/api/v1/namespaces"))["items"]]

        assert (answer.code, answer.message) == (404, 'namespaces "nowhere" not found')
        assert names == ["default", "kube-node-lease", "kube-public", "kube-system"]

    run(story)


def test_a_stale_write_is_a_conflict() -> None:
    """The second of two writers from the same state gets an error that says to try again."""

    async def story(w: World) -> None:
        old = ok(await w.post(CONFIGS, config(a="1")), 201)
        ok(await w.put(f"{CONFIGS}/settings", {**old, "data": {"a": "2"}}))

        late = await w.put(f"{CONFIGS}/settings", {**old, "data": {"a": "3"}})
        other = await w.put(f"{CONFIGS}/settings", named(config(), uid="another"))

        assert (late.code, late.reason) == (409, "Conflict")
        assert late.message == (
            'Operation cannot be fulfilled on configmaps "settings": the object has been '
            "modified; please apply your changes to the latest version and try again"
        )
        assert "Precondition failed: UID in precondition: another" in other.message

    run(story)


def test_a_write_that_changes_nothing_leaves_no_trace() -> None:
    """A write of the same content changes no resourceVersion and sends no event."""

    async def story(w: World) -> None:
        old = ok(await w.post(CONFIGS, config(a="1")), 201)

        same = ok(await w.put(f"{CONFIGS}/settings", old))

        assert same == old
        assert w.server.store.revision == int(old["metadata"]["resourceVersion"])

    run(story)


def test_the_status_and_the_rest_are_written_apart() -> None:
    """The main path leaves the status alone, the status path everything else."""

    async def story(w: World) -> None:
        path = "/apis/apps/v1/namespaces/default/deployments"
        made = ok(await w.post(path, {**deployment(), "status": {"replicas": 9}}), 201)
        changed = {**made, "spec": {**made["spec"], "replicas": 4}, "status": {"replicas": 4}}
        by_status = ok(await w.put(f"{path}/web/status", changed))
        changed["metadata"] = {"name": "web"}
        by_main = ok(await w.put(f"{path}/web", {**changed, "status": {"replicas": 7}}))

        assert made["status"] == {}
        assert (by_status["spec"]["replicas"], by_status["status"]) == (1, {"replicas": 4})
        assert by_status["metadata"]["generation"] == 1
        assert (by_main["spec"]["replicas"], by_main["status"]) == (4, {"replicas": 4})
        assert by_main["metadata"]["generation"] == 2

    run(story)


def test_dry_run_stores_nothing() -> None:
    """Every verb can be tried out."""

    async def story(w: World) -> None:
        path = f"{CONFIGS}/kept"
        ok(await w.post(CONFIGS, config("kept", a="1")), 201)
        before = w.server.store.revision

        created = ok(await w.post(CONFIGS, config(), dryRun="All"), 201)
        patched = ok(await w.patch(path, {"data": {"a": "2"}}, dryRun="All"))
        deleted = await w.delete(path, dryRun="All")
        by_body = await w.delete(path, {"dryRun": ["All"]})
        taken = await w.post(CONFIGS, config("kept"), dryRun="All")
        wrong = await w.post(CONFIGS, config(), dryRun="Some")

        assert created["metadata"]["name"] == "settings"
        assert patched["data"] == {"a": "2"}
        assert (deleted.code, by_body.code, taken.code, wrong.code) == (200, 200, 409, 422)
        assert w.server.store.revision == before

    run(story)


def test_finalizers_hold_an_object_until_they_let_go() -> None:
    """Deletion begins, is visible, takes no new finalizer, and ends with the last one."""

    async def story(w: World) -> None:
        path = f"{CONFIGS}/settings"
        ok(await w.post(CONFIGS, named(config(), finalizers=["example.com/hold"])), 201)

        begun = ok(await w.delete(path))
        more = await w.patch(path, {"metadata": {"finalizers": ["example.com/x", "a/b"]}})
        ended = ok(await w.patch(path, {"metadata": {"finalizers": None}}))

        assert begun["metadata"]["deletionTimestamp"] == "2023-11-14T22:13:20Z"
        assert "no new finalizers can be added" in more.message
        assert ended["metadata"]["name"] == "settings"
        assert (await w.get(path)).code == 404

    run(story)


GRACE = {
    "on a node": ({"nodeName": "n1"}, None, 30),
    "own grace": ({"nodeName": "n1", "terminationGracePeriodSeconds": 5}, None, 5),
    "told": ({"nodeName": "n1"}, {"gracePeriodSeconds": 7}, 7),
    "without an end": (
        {"nodeName": "n1", "terminationGracePeriodSeconds": 2**63 - 1},
        None,
        2**63 - 1,
    ),
    "forced": ({"nodeName": "n1"}, {"gracePeriodSeconds": 0}, 0),
    "not on a node": ({}, None, 0),
}


@pytest.mark.parametrize(("spec", "body", "seconds"), GRACE.values(), ids=GRACE)
def test_pods_end_gracefully(spec: dict[str, Any], body: Any, seconds: int) -> None:
    """A pod on a node waits for its kubelet, here the test; others go at once."""

    async def story(w: World) -> None:
        ok(await w.post(PODS, pod(**spec)), 201)

        ok(await w.delete(f"{PODS}/web", body))
        left = await w.get(f"{PODS}/web")

        if not seconds:
            assert left.code == 404
            return
        assert left.body["metadata"]["deletionGracePeriodSeconds"] == seconds
        ok(await w.delete(f"{PODS}/web", {"gracePeriodSeconds": 0}))
        assert (await w.get(f"{PODS}/web")).code == 404

    run(story)


def test_deletion_holds_to_its_preconditions() -> None:
    """A UID or resourceVersion that is not the stored one stops a deletion."""

    async def story(w: World) -> None:
        made = ok(await w.post(CONFIGS, config()), 201)["metadata"]
        path = f"{CONFIGS}/settings"

        wrong = await w.delete(path, {"preconditions": {"uid": "another"}})
        stale = await w.delete(path, {"preconditions": {"resourceVersion": "1"}})
        right = await w.delete(path, {"preconditions": {"uid": made["uid"]}})

        assert (wrong.code, stale.code, right.code) == (409, 409, 200)
        assert right.body["details"]["uid"] == made["uid"]

    run(story)


async def owned(w: World) -> None:
    """A ConfigMap that owns a pod."""
    owner = ok(await w.post(CONFIGS, config("owner")), 201)["metadata"]
    reference = {"apiVersion": "v1", "kind": "ConfigMap", "name": "owner", "uid": owner["uid"]}
    ok(await w.post(PODS, named(pod(), ownerReferences=[reference])), 201)


POLICIES = {
    "background": ({"propagationPolicy": "Background"}, 404),
    "default": (None, 404),
    "foreground": ({"propagationPolicy": "Foreground"}, 404),
    "orphan": ({"propagationPolicy": "Orphan"}, 200),
    "old orphan": ({"orphanDependents": True}, 200),
}


@pytest.mark.parametrize(("body", "code"), POLICIES.values(), ids=POLICIES)
def test_dependents_follow_their_owner(body: Any, code: int) -> None:
    """What belongs to a deleted object goes too, unless it is orphaned."""

    async def story(w: World) -> None:
        await owned(w)

        ok(await w.delete(f"{CONFIGS}/owner", body))
        await w.server.settle()

        left = await w.get(f"{PODS}/web")
        assert left.code == code
        assert (await w.get(f"{CONFIGS}/owner")).code == 404
        if code == 200:
            assert "ownerReferences" not in left.body["metadata"]
        assert not w.server._janitor._dependents  # a table that could grow

    run(story)


def test_an_object_with_another_owner_stays() -> None:
    """Only the reference to the owner that is gone is dropped; an unknown owner counts as gone."""

    async def story(w: World) -> None:
        owners = [ok(await w.post(CONFIGS, config(n)), 201)["metadata"] for n in ("a", "b")]
        references = [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": o["name"], "uid": o["uid"]}
            for o in owners
        ]
        ghost = {**references[0], "name": "ghost", "uid": "ghost"}
        ok(await w.post(PODS, named(pod(), ownerReferences=references)), 201)
        ok(await w.post(PODS, named(pod("haunted"), ownerReferences=[ghost])), 201)
        await w.server.settle()

        ok(await w.delete(f"{CONFIGS}/a"))
        await w.server.settle()

        left = ok(await w.get(f"{PODS}/web"))["metadata"]["ownerReferences"]
        assert [one["name"] for one in left] == ["b"]
        assert (await w.get(f"{PODS}/haunted")).code == 404

    run(story)


def test_a_namespace_goes_with_all_that_is_in_it() -> None:
    """Deletion empties the namespace first; pods on nodes are waited for; nothing new enters."""

    async def story(w: World) -> None:
        ok(await w.post("/api/v1/namespaces", {"metadata": {"name": "team"}}), 201)
        await w.server.settle()
        assert ok(await w.get("/api/v1/namespaces/team/serviceaccounts"))["items"]
        ok(await w.post("/api/v1/namespaces/team/configmaps", config()), 201)
        ok(await w.post("/api/v1/namespaces/team/pods", pod(nodeName="n1")), 201)

        leaving = ok(await w.delete("/api/v1/namespaces/team"))
        await w.server.settle()
        late = await w.post("/api/v1/namespaces/team/configmaps", config("late"))
        ok(await w.delete("/api/v1/namespaces/team/pods/web", {"gracePeriodSeconds": 0}))
        await w.server.settle()

        assert leaving["status"]["phase"] == "Terminating"
        assert late.code == 403
        assert "because it is being terminated" in late.message
        assert (await w.get("/api/v1/namespaces/team")).code == 404

    run(story)


def test_a_refused_deletion_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Deletions of a namespace's objects, and of an owner's dependents."""
    monkeypatch.setattr(server, "_TIDY_AGAIN", 0.05)

    async def story(w: World) -> None:
        asked: list[str] = []

        def refuses(review: Review) -> None:
            if review.operation == "DELETE" and review.name in ("inside", "below"):
                asked.append(review.name)
                if asked.count(review.name) < 3:
                    raise Refused("not yet")

        w.server.admission.validators.append(refuses)
        ok(await w.post("/api/v1/namespaces", {"metadata": {"name": "team"}}), 201)
        ok(await w.post("/api/v1/namespaces/team/configmaps", config("inside")), 201)
        above = ok(await w.post(CONFIGS, config("above")), 201)
        head = {"kind": "ConfigMap", "apiVersion": "v1", "name": "above"}
        below = config("below")
        below["metadata"]["ownerReferences"] = [{**head, "uid": above["metadata"]["uid"]}]
        ok(await w.post(CONFIGS, below), 201)

        ok(await w.delete("/api/v1/namespaces/team"))
        ok(await w.delete(f"{CONFIGS}/above"))
        async with asyncio.timeout(20):
            for path in ("/api/v1/namespaces/team", f"{CONFIGS}/below"):
                while (await w.get(path)).code != 404:  # noqa: ASYNC110 # only HTTP shows it
                    await asyncio.sleep(0.02)

        assert sorted(asked) == ["below"] * 3 + ["inside"] * 3

    run(story)


def test_a_fault_in_one_namespace_leaves_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are deleted together are emptied, without another change."""
    monkeypatch.setattr(server, "_TIDY_AFTER", 0.2)

    async def story(w: World) -> None:
        def fails(review: Review) -> None:
            if review.operation == "DELETE" and review.namespace == "a":
                raise RuntimeError("a fault of ours")

        w.server.admission.validators.append(fails)
        for name in "abc":
            ok(await w.post("/api/v1/namespaces", {"metadata": {"name": name}}), 201)
            ok(await w.post(f"/api/v1/namespaces/{name}/configmaps", config("inside")), 201)
        for name in "abc":
            ok(await w.delete(f"/api/v1/namespaces/{name}"))
        async with asyncio.timeout(20):
            for name in "bc":
                while (await w.get(f"/api/v1/namespaces/{name}")).code != 404:  # noqa: ASYNC110 # only HTTP shows it
                    await asyncio.sleep(0.02)

        assert (await w.get("/api/v1/namespaces/a")).code == 200

    run(story)


def test_the_first_namespaces_cannot_be_deleted() -> None:
    """The same holds in every cluster."""

    async def story(w: World) -> None:
        answer = await w.delete("/api/v1/namespaces/default")

        assert answer.code == 403
        assert 'namespaces "default" is forbidden' in answer.message

    run(story)


def test_collections_are_deleted_by_selector() -> None:
    """Only what the selector names goes."""

    async def story(w: World) -> None:
        for name, label in (("a", "x"), ("b", "x"), ("c", "y")):
            ok(await w.post(CONFIGS, named(config(name), labels={"app": label})), 201)

        gone = ok(await w.delete(CONFIGS, labelSelector="app=x"))

        assert [one["metadata"]["name"] for one in gone["items"]] == ["a", "b"]
        left = ok(await w.get(CONFIGS))["items"]
        assert [one["metadata"]["name"] for one in left] == ["c"]

    run(story)


def test_concurrent_patches_are_all_kept() -> None:
    """Patches that do not name a resourceVersion are retried from the newest state."""

    async def story(w: World) -> None:
        ok(await w.post(CONFIGS, config()), 201)

        answers = await asyncio.gather(
            *(w.patch(f"{CONFIGS}/settings", {"data": {f"k{i}": "v"}}) for i in range(30))
        )

        assert {answer.code for answer in answers} == {200}
        assert len(ok(await w.get(f"{CONFIGS}/settings"))["data"]) == 30

    run(story)


MISFITS = {
    "another namespace": ({"namespace": "other"}, {}, "namespace of the provided object does not"),
    "another name": ({"name": "other"}, {}, "the name of the object (other) does not match"),
    "another kind": ({}, {"kind": "Secret"}, "cannot be handled as a ConfigMap"),
    "another version": ({}, {"apiVersion": "v2"}, "does not match the expected API version"),
    "wrong type": ({"labels": {"a": 1}}, {}, "json: cannot unmarshal number into Go struct field"),
}


@pytest.mark.parametrize(("head", "top", "why"), MISFITS.values(), ids=MISFITS)
def test_bodies_that_do_not_belong_there_are_refused(
    head: dict[str, Any], top: dict[str, Any], why: str
) -> None:
    """A body has to be of the path's kind, namespace and name."""

    async def story(w: World) -> None:
        ok(await w.post(CONFIGS, config()), 201)

        answer = await w.put(f"{CONFIGS}/settings", {**named(config(), **head), **top})

        assert (answer.code, answer.reason) == (400, "BadRequest")
        assert why in answer.message

    run(story)


TWICE = (
    b'{"metadata": {"name": "x", "labels": {"a": "1", "a": "2"}, "nope": 1}, "data": {"b": "3"}}'
)
YAML_TWICE = b"metadata:\n  name: x\n  name: x\nnope: 1\n"
PATCH_TWICE = b'{"data": {"a": "1", "a": "2"}, "nope": 1}'
OPS_TWICE = b'[{"op": "add", "path": "/nope", "value": "1", "value": "2"}]'
DOUBTS = {
    "json": (
        "POST",
        CONFIGS,
        TWICE,
        JSON,
        ['duplicate field "metadata.labels.a"', 'unknown field "metadata.nope"'],
    ),
    "yaml": (
        "POST",
        CONFIGS,
        YAML_TWICE,
        "application/yaml",
        ['line 3: key "name" already set in map', 'unknown field "nope"'],
    ),
    "put": (
        "PUT",
        f"{CONFIGS}/settings",
        TWICE.replace(b'"x"', b'"settings"'),
        JSON,
        ['duplicate field "metadata.labels.a"', 'unknown field "metadata.nope"'],
    ),
    "merge": (
        "PATCH",
        f"{CONFIGS}/settings",
        PATCH_TWICE,
        MERGE,
        ['duplicate field "data.a"', 'unknown field "nope"'],
    ),
    "strategic": (
        "PATCH",
        f"{CONFIGS}/settings",
        PATCH_TWICE,
        STRATEGIC,
        ['duplicate field "data.a"', 'unknown field "nope"'],
    ),
    "json patch": (
        "PATCH",
        f"{CONFIGS}/settings",
        OPS_TWICE,
        JSON_PATCH,
        ['json patch duplicate field "[0].value"', 'unknown field "nope"'],
    ),
}


@pytest.mark.parametrize("name", DOUBTS)
def test_keys_given_twice_are_refused_warned_of_or_ignored(name: str) -> None:
    """Every form of body gets the genuine server's words (tried with the same bodies)."""
    method, path, body, media, told = DOUBTS[name]

    async def story(w: World) -> None:
        ok(await w.post(CONFIGS, config()), 201)
        strict = await w.ask(method, path, body, media=media, fieldValidation="Strict")
        ignore = await w.ask(
            method, path, body, media=media, fieldValidation="Ignore", dryRun="All"
        )
        warn = await w.ask(method, path, body, media=media)

        assert strict.code == (422 if method == "PATCH" else 400)
        lines = [one for one in told if one.startswith("line")]
        others = [one for one in told if one not in lines]
        first = [f"yaml: unmarshal errors:\n  {lines[0]}"] if lines else []
        assert strict.message.endswith(f"strict decoding error: {', '.join([*first, *others])}")
        assert (ignore.code < 300, ignore.warnings) == (True, [])
        quoted = [one.replace('"', '\\"') for one in told]
        assert (warn.code < 300, warn.warnings) == (True, [f'299 - "{one}"' for one in quoted])

    run(story)


def test_a_patch_that_leads_to_no_object_is_shown() -> None:
    """A strategic one as Go prints it, others as what came of them."""

    async def story(w: World) -> None:
        ok(await w.post(CONFIGS, config()), 201)
        path = f"{CONFIGS}/settings"
        body = {"data": {"x": 5}, "immutable": [None, True, 1.5]}
        head = ' "" is invalid: patch: Invalid value: '
        strategic = await w.patch(path, body, media=STRATEGIC)
        merged = await w.patch(path, body, media=MERGE)
        lists = [
            (await w.patch(path, [1], media=media)).message
            for media in (STRATEGIC, MERGE, JSON_PATCH)
        ]

        assert strategic.message == (
            f'{head}"map[data:map[x:5] immutable:[<nil> true 1.5]]": cannot convert int64 to string'
        )
        assert merged.message.startswith(f'{head}"{{')
        assert (
            "cannot unmarshal number into Go struct field ConfigMap.data of type string"
            in merged.message
        )
        cannot = "json: cannot unmarshal array into Go value of type map[string]interface {}"
        assert lists == [
            cannot,
            f"error decoding patch: {cannot}",
            "error decoding patch: json: cannot unmarshal number into Go value of type handlers.jsonPatchOp",
        ]

    run(story)


def test_applied_fields_that_a_kind_lacks_are_refused_always() -> None:
    """The refusal has their paths with the keys of lists, whatever `fieldValidation` says."""

    async def story(w: World) -> None:
        value = {**pod(), "apiVersion": "v1", "kind": "Pod"}
        value["spec"]["containers"][0]["imagee"] = "x"
        one = await w.ask(
            "PATCH", f"{PODS}/web", value, media=APPLY, fieldManager="me", fieldValidation="Ignore"
        )
        value["metadata"]["nope"] = 1
        two = await w.ask("PATCH", f"{PODS}/web", value, media=APPLY, fieldManager="me")

        head = "failed to create typed patch object (/web; /v1, Kind=Pod): "
        field = '.spec.containers[name="main"].imagee: field not declared in schema'
        assert (one.code, one.message) == (500, head + field)
        assert (
            two.message
            == f"{head}errors:\n  .metadata.nope: field not declared in schema\n  {field}"
        )

    run(story)


def test_misspelt_fields_are_refused_warned_of_or_dropped() -> None:
    """`fieldValidation` decides; without it they are dropped with a warning."""

    async def story(w: World) -> None:
        value = pod(nodeNam="n1")
        outcomes = {}
        for how in ("Strict", "Warn", "Ignore", ""):
            query = {"fieldValidation": how} if how else {}
            answer = await w.post(PODS, named(value, name=f"p{how.lower()}"), **query)
            outcomes[how] = (answer.code, answer.warnings)

        warning = ['299 - "unknown field \\"spec.nodeNam\\""']
        assert outcomes == {
            "Strict": (400, []),
            "Warn": (201, warning),
            "Ignore": (201, []),
            "": (201, warning),
        }
        refused = await w.post(PODS, value, fieldValidation="Strict")
        assert refused.message == (
            'Pod in version "v1" cannot be handled as a Pod: strict decoding error: unknown field '
            '"spec.nodeNam"'
        )

    run(story)
