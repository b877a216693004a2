"""Discovery, tables, partial objects, YAML, protobuf, OpenAPI, authentication, limits."""

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest
import yaml
from apiserver_world import (
    DEFINITIONS,
    JSON,
    PODS,
    World,
    config,
    definition,
    deployment,
    named,
    ok,
    pod,
    run,
)
from hypothesis import given
from hypothesis import strategies as st

from partage.apiserver import Settings, User, protobuf, write_kubeconfig
from partage.apiserver.columns import age
from partage.apiserver.openapi import SENTENCES
from partage.wire.field_types import META, Field, Type, catalogue

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
PARTIAL = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
AGGREGATED = (
    "application/json;v=v2;g=apidiscovery.k8s.io;as=APIGroupDiscoveryList,application/json"
)
CONFIGS = "/api/v1/namespaces/default/configmaps"


def test_health_and_version() -> None:
    """The usual three, and the Kubernetes whose behaviour is followed."""

    async def story(w: World) -> None:
        for name in ("healthz", "livez", "readyz"):
            assert (await w.get(f"/{name}")).body == "ok"
        assert ok(await w.get("/version"))["gitVersion"].startswith("v1.36.")
        assert "/api" in ok(await w.get("/"))["paths"]

    run(story)


def test_discovery_in_both_forms() -> None:
    """Old and aggregated discovery name the same resources."""

    async def story(w: World) -> None:
        plain = {
            (group["name"], resource["name"])
            for group in ok(await w.get("/apis"))["groups"]
            for resource in ok(await w.get(f"/apis/{group['preferredVersion']['groupVersion']}"))[
                "resources"
            ]
            if "/" not in resource["name"]
        }
        core = {("", r["name"]) for r in ok(await w.get("/api/v1"))["resources"]}
        answer = await w.ask("GET", "/apis", accept=AGGREGATED)
        joined = {
            (group["metadata"].get("name", ""), resource["resource"])
            for path in ("/api", "/apis")
            for group in ok(await w.ask("GET", path, accept=AGGREGATED))["items"]
            for version in group["versions"]
            for resource in version["resources"]
        }

        assert "as=APIGroupDiscoveryList" in answer.headers["Content-Type"]
        assert joined == plain | {c for c in core if "/" not in c[1]}
        assert ok(await w.get("/api"))["versions"] == ["v1"]

    run(story)


UNKNOWN = [
    "/apis/none",
    "/apis/none/v1",
    "/api/v2",
    "/apis/none/v1/things",
    "/api/v1/things",
    "/nothing",
    f"{PODS}/web/none",
    "/api/v1/pods/web",
    "/api/v1/namespaces/a/nodes/x",
    "/openapi/v3/apis/none/v1",
    "/api/v1/namespaces/a/pods/b/c/d",
]


@pytest.mark.parametrize("path", UNKNOWN)
def test_unknown_paths_are_not_found(path: str) -> None:
    """404 with a Status."""

    async def story(w: World) -> None:
        answer = await w.get(path)

        assert (answer.code, answer.body["kind"]) == (404, "Status")

    run(story)


REFUSED = {
    "post to an object": ("POST", f"{PODS}/web"),
    "put to a collection": ("PUT", PODS),
    "post to all namespaces": ("POST", "/api/v1/pods"),
    "clear all namespaces": ("DELETE", "/api/v1/pods"),
    "options": ("OPTIONS", PODS),
    "discovery": ("POST", "/apis"),
    "binding": ("GET", "/api/v1/namespaces/default/bindings"),
    "binding anywhere": ("POST", "/api/v1/bindings"),
    "status": ("DELETE", f"{PODS}/web/status"),
    "scale": ("DELETE", "/apis/apps/v1/namespaces/default/deployments/web/scale"),
}


@pytest.mark.parametrize(("method", "path"), REFUSED.values(), ids=REFUSED)
def test_methods_that_make_no_sense_are_refused(method: str, path: str) -> None:
    """405."""

    async def story(w: World) -> None:
        ok(await w.post(PODS, pod()), 201)

        assert (await w.ask(method, path, {} if method == "POST" else None)).code == 405

    run(story)


async def shown(w: World, path: str, *, wide: bool = False) -> dict[str, Any]:
    """The first row of a table, by heading."""
    table = ok(await w.ask("GET", path, accept=TABLE))
    heads = [c["name"] for c in table["columnDefinitions"] if wide or not c["priority"]]
    return dict(zip(heads, table["rows"][0]["cells"], strict=wide))


def test_pods_and_nodes_are_shown_as_people_know_them() -> None:
    """Ready counts, status words, restarts, roles, cordons, and the wide columns."""

    async def story(w: World) -> None:
        labels = {"node-role.kubernetes.io/worker": ""}
        node = {
            "metadata": {"name": "n1", "labels": labels},
            "spec": {"unschedulable": True},
            "status": {
                "conditions": [{"type": "Ready", "status": "True"}],
                "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}],
                "nodeInfo": {"kubeletVersion": "v1.36.0"},
            },
        }
        ok(await w.post("/api/v1/nodes", node), 201)
        ok(await w.post(PODS, pod(readinessGates=[{"conditionType": "x"}], nodeName="n1")), 201)
        state = {"name": "main", "ready": True, "restartCount": 2, "image": "b", "imageID": ""}
        state["state"] = {"running": {"startedAt": "2023-11-14T22:13:20Z"}}
        status = {
            "phase": "Running",
            "podIP": "10.1.1.1",
            "podIPs": [{"ip": "10.1.1.1"}],
            "containerStatuses": [state],
            "conditions": [{"type": "x", "status": "True"}],
        }
        ok(await w.patch(f"{PODS}/web/status", {"status": status}))
        w.around.seconds += 3 * 86400

        nodes = await shown(w, "/api/v1/nodes", wide=True)
        one = await shown(w, f"{PODS}/web", wide=True)
        state["state"] = {"waiting": {"reason": "CrashLoopBackOff"}}
        ok(await w.patch(f"{PODS}/web/status", {"status": status}))
        waiting = await shown(w, PODS)
        ok(await w.delete(f"{PODS}/web"))
        ending = await shown(w, PODS)

        assert nodes["Status"] == "Ready,SchedulingDisabled"
        assert (nodes["Roles"], nodes["Internal-IP"]) == ("worker", "10.0.0.1")
        assert (one["Ready"], one["Restarts"], one["Age"]) == ("1/1", "2", "3d")
        assert (one["IP"], one["Node"], one["Readiness Gates"]) == ("10.1.1.1", "n1", "1/1")
        assert (waiting["Status"], ending["Status"]) == ("CrashLoopBackOff", "Terminating")

    run(story)


def test_other_kinds_are_shown_too() -> None:
    """Deployments, jobs, leases, events, quotas, services, and those without own columns."""

    async def story(w: World) -> None:
        apps = "/apis/apps/v1/namespaces/default"
        ok(await w.post(f"{apps}/deployments", deployment(replicas=2)), 201)
        batch = "/apis/batch/v1/namespaces/default/jobs"
        inner = {"restartPolicy": "Never", "containers": [{"name": "a", "image": "b"}]}
        ok(
            await w.post(
                batch, {"metadata": {"name": "j"}, "spec": {"template": {"spec": inner}}}
            ),
            201,
        )
        done = {
            "succeeded": 1,
            "startTime": "2023-11-14T22:13:20Z",
            "completionTime": "2023-11-14T22:14:20Z",
            "conditions": [{"type": "Complete", "status": "True"}],
        }
        ok(await w.patch(f"{batch}/j/status", {"status": done}))
        leases = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
        ok(
            await w.post(leases, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "me"}}),
            201,
        )
        event = {
            "metadata": {"name": "e"},
            "type": "Normal",
            "reason": "R",
            "message": "m",
            "involvedObject": {"kind": "Pod", "name": "web", "namespace": "default"},
            "source": {"component": "c", "host": "h"},
            "lastTimestamp": "2023-11-14T22:13:00Z",
        }
        ok(await w.post("/api/v1/namespaces/default/events", event), 201)
        ok(await w.post(CONFIGS, config(a="1")), 201)
        services = "/api/v1/namespaces/default/services"
        ok(
            await w.post(services, {"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}}),
            201,
        )

        assert (await shown(w, f"{apps}/deployments", wide=True))["Ready"] == "0/2"
        job = await shown(w, batch)
        assert (job["Status"], job["Completions"], job["Duration"]) == ("Complete", "1/1", "60s")
        assert (await shown(w, leases))["Holder"] == "me"
        found = await shown(w, "/api/v1/namespaces/default/events", wide=True)
        assert (found["Last Seen"], found["Object"], found["Source"]) == ("20s", "pod/web", "c, h")
        assert (await shown(w, CONFIGS))["Data"] == 1
        assert (await shown(w, services))["Port(s)"] == "80/TCP"
        assert set(await shown(w, "/api/v1/namespaces/default/serviceaccounts")) == {"Name", "Age"}

    run(story)


AGES = {
    0: "0s",
    119: "119s",
    120: "2m",
    330: "5m30s",
    660: "11m",
    3600 * 2: "120m",
    3600 * 5 + 60: "5h1m",
    3600 * 30: "30h",
    86400 * 3 + 7200: "3d2h",
    86400 * 30: "30d",
    86400 * 365 * 3: "3y",
    86400 * 365 * 9: "9y",
    -5: "<invalid>",
}


@pytest.mark.parametrize("seconds", AGES)
def test_ages_read_like_kubectls(seconds: int) -> None:
    """They go from seconds to years."""
    assert age("2023-11-14T22:13:20Z", 1_700_000_000 + seconds) == AGES[seconds]
    assert age(None, 0) == age("never", 0) == "<unknown>"


def test_rows_carry_what_is_asked_for() -> None:
    """Metadata, the whole object, or nothing; and partial objects for lists and watches."""

    async def story(w: World) -> None:
        ok(await w.post(CONFIGS, config(a="1")), 201)

        async def row(include: str) -> Any:
            found = await w.ask("GET", CONFIGS, accept=TABLE, includeObject=include)
            return ok(found)["rows"][0].get("object")

        whole, head, none = await row("Object"), await row("Metadata"), await row("None")
        partial = ok(await w.ask("GET", CONFIGS, accept=PARTIAL))
        single = ok(await w.ask("GET", f"{CONFIGS}/settings", accept=PARTIAL.replace("List", "")))

        assert whole["data"] == {"a": "1"}
        assert (head["kind"], none) == ("PartialObjectMetadata", None)
        assert partial["items"][0]["metadata"]["name"] == "settings"
        assert (single["kind"], "data" in single) == ("PartialObjectMetadata", False)
        for accept in (TABLE, PARTIAL):
            params = {"watch": "1", "timeoutSeconds": "1", "allowWatchBookmarks": "1"}
            async with w.session.get(
                w.url + CONFIGS, params=params, headers={"Accept": accept}
            ) as response:
                lines = [json.loads(line) async for line in response.content]
            assert [one["type"] for one in lines] == ["ADDED", "BOOKMARK"]

    run(story)


ACCEPTED = {
    "nothing": ("", 200),
    "anything": ("*/*", 200),
    "application": ("application/*", 200),
    "with quality": ("application/json;q=0.9", 200),
    "unknown table": ("application/json;as=Table;v=v9;g=meta.k8s.io,application/json", 200),
    "yaml": ("application/yaml", 200),
    "protobuf": ("application/vnd.kubernetes.protobuf", 406),
    "text": ("text/plain", 406),
}


@pytest.mark.parametrize(("accept", "code"), ACCEPTED.values(), ids=ACCEPTED)
def test_the_accept_header_is_honoured(accept: str, code: int) -> None:
    """406 when the server can send none of the requested forms."""

    async def story(w: World) -> None:
        answer = await w.ask("GET", CONFIGS, accept=accept)

        assert answer.code == code
        if accept == "application/yaml":
            assert yaml.safe_load(answer.body)["kind"] == "ConfigMapList"

    run(story)


def test_yaml_bodies_are_read_and_curl_gets_readable_json() -> None:
    """They serve people without kubectl."""

    async def story(w: World) -> None:
        body = b"metadata:\n  name: settings\ndata:\n  a: 'yes'\n"
        ok(await w.ask("POST", CONFIGS, body, media="application/yaml"), 201)
        broken = await w.ask("POST", CONFIGS, b"a: [", media="application/yaml")
        two = await w.ask("POST", CONFIGS, b"a: 1\n---\nb: 2\n", media="application/yaml")
        headers = {"User-Agent": "curl/8.0", "Accept": "*/*"}
        async with w.session.get(w.url + CONFIGS, headers=headers) as response:
            text = await response.text()
        async with w.session.get(w.url + CONFIGS, params={"pretty": "true"}) as response:
            again = await response.text()

        assert text.startswith('{\n  "kind": "ConfigMapList",\n')
        assert again == text
        assert (broken.code, two.code) == (400, 400)

    run(story)


def test_large_and_odd_bodies_are_refused() -> None:
    """3 MiB is the limit, by the head or by the bytes read; other media types and deep nesting are refused."""

    async def story(w: World) -> None:
        large = b" " * (3 * 2**20 + 1)

        async def trickle() -> Any:
            for _ in range(4):
                yield b" " * 2**20

        told = await w.ask("POST", CONFIGS, large)
        async with w.session.post(
            w.url + CONFIGS, data=trickle(), headers={"Content-Type": JSON}
        ) as response:
            found = response.status
        form = await w.ask("POST", CONFIGS, b"a=b", media="application/x-www-form-urlencoded")
        deep = await w.ask("POST", CONFIGS, b'{"a":' + b"[" * 500 + b"]" * 500 + b"}")
        deeper = await w.ask("POST", CONFIGS, b"[" * 100_000)
        empty = await w.ask("POST", CONFIGS, b"")

        assert (told.code, found, form.code) == (413, 413, 415)
        assert (deep.code, deeper.code, empty.code) == (400, 400, 400)

    run(story)


def varint(value: int) -> bytes:
    """A number as protobuf writes it."""
    value &= 2**64 - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def encoded(value: Any, type_: Type) -> bytes:
    """A value as a protobuf message, for the tests alone."""
    out = b""
    for number, field in type_.numbers.items():
        if isinstance(field, dict):
            inner = Type("struct", numbers=field)
            body = encoded(value, inner)
            out += varint(number << 3 | 2) + varint(len(body)) + body if body else b""
        elif field.name in value:
            out += piece(number, field, value[field.name])
    return out


def piece(number: int, field: Field, value: Any) -> bytes:
    """One field of a message."""
    type_ = field.type
    if type_.form == "list":
        one = Field(field.name, type_.item or type_)
        return b"".join(piece(number, one, item) for item in value)
    if type_.form == "map":
        pair = Type(
            "struct", numbers={1: Field("k", Type("string")), 2: Field("v", type_.item or type_)}
        )
        one = Field(field.name, pair)
        return b"".join(piece(number, one, {"k": k, "v": v}) for k, v in value.items())
    if type_.form in ("int", "long", "bool"):
        return varint(number << 3) + varint(int(value))
    if type_.form == "float":
        return varint(number << 3 | 1) + struct.pack("<d", value)
    body = raw(type_, value)
    return varint(number << 3 | 2) + varint(len(body)) + body


def raw(type_: Type, value: Any) -> bytes:
    """The bytes of one value."""
    text = Field("t", Type("string"))
    if type_.form == "struct":
        return encoded(value, type_)
    if type_.form == "quantity":
        return piece(1, text, value)
    if type_.form == "intorstring":
        number = Field("n", Type("long"))
        if isinstance(value, int):
            return piece(1, number, 0) + piece(2, number, value)
        return piece(1, number, 1) + piece(3, text, value)
    if type_.form in ("time", "microtime"):
        return piece(1, Field("n", Type("long")), value)
    if type_.form == "any":
        return piece(1, text, json.dumps(value))
    return base64.b64decode(value) if type_.form == "bytes" else value.encode()


def enveloped(kind: str, version: str, body: bytes) -> bytes:
    """A message in Kubernetes' envelope."""
    head = Type("struct", numbers={1: Field("a", Type("string")), 2: Field("k", Type("string"))})
    meta = encoded({"a": version, "k": kind}, head)
    return b"k8s\x00" + b"\x0a" + varint(len(meta)) + meta + b"\x12" + varint(len(body)) + body


def test_protobuf_bodies_are_read() -> None:
    """As kubectl's create subcommands send them: nested, embedded, maps, amounts, times."""
    type_ = catalogue()["io.k8s.api.apps.v1.Deployment"]
    value = deployment(replicas=2)
    value["metadata"]["labels"] = {"a": "b"}
    template = value["spec"]["template"]["spec"]
    template["containers"][0] |= {
        "resources": {"limits": {"cpu": "500m"}},
        "ports": [{"containerPort": 80}],
        "readinessProbe": {"httpGet": {"port": "web", "path": "/x"}},
        "livenessProbe": {"tcpSocket": {"port": 81}},
    }
    template["volumes"] = [{"name": "v", "hostPath": {"path": "/v"}}]
    template["hostNetwork"] = True

    async def story(w: World) -> None:
        path = "/apis/apps/v1/namespaces/default/deployments"
        body = enveloped("Deployment", "apps/v1", encoded(value, type_))
        made = ok(await w.ask("POST", path, body, media=protobuf.MEDIA), 201)
        options = encoded({"propagationPolicy": "Orphan"}, catalogue()[f"{META}DeleteOptions"])
        gone = await w.ask(
            "DELETE",
            f"{path}/web",
            enveloped("DeleteOptions", "v1", options),
            media=protobuf.MEDIA,
        )
        broken = await w.ask("POST", path, b"k8s\x00\xff", media=protobuf.MEDIA)
        plain = await w.ask("POST", path, b"{}", media=protobuf.MEDIA)

        spec = made["spec"]["template"]["spec"]
        assert (made["metadata"]["labels"], made["spec"]["replicas"]) == ({"a": "b"}, 2)
        assert spec["volumes"] == [{"name": "v", "hostPath": {"path": "/v", "type": ""}}]
        assert spec["containers"][0]["resources"] == {"limits": {"cpu": "500m"}}
        assert spec["containers"][0]["readinessProbe"]["httpGet"]["port"] == "web"
        assert spec["containers"][0]["livenessProbe"]["tcpSocket"]["port"] == 81
        assert ok(gone)["metadata"]["finalizers"] == ["orphan"]
        assert (broken.code, plain.code) == (400, 400)

    run(story)


EVERY = Type(
    "struct",
    numbers={
        1: Field("text", Type("string")),
        2: Field("number", Type("long")),
        3: Field("real", Type("float")),
        4: Field("bytes", Type("bytes")),
        5: Field("flag", Type("bool")),
        6: Field("any", Type("any")),
        7: Field("numbers", Type("list", item=Type("long"))),
        8: Field("amounts", Type("map", item=Type("quantity"))),
        9: {1: Field("inner", Type("string"))},
        10: Field("either", Type("intorstring")),
    },
)
VALUES = st.fixed_dictionaries(
    {},
    optional={
        "text": st.text(max_size=20),
        "number": st.integers(-(2**63), 2**63 - 1),
        "real": st.floats(allow_nan=False),
        "bytes": st.binary(max_size=9).map(lambda raw: base64.b64encode(raw).decode()),
        "flag": st.booleans(),
        "any": st.dictionaries(st.text(max_size=3), st.integers(), max_size=3),
        "numbers": st.lists(st.integers(-(2**63), 2**63 - 1), min_size=1, max_size=3),
        "amounts": st.dictionaries(st.text(max_size=3), st.sampled_from(["1", "2Gi"]), min_size=1),
        "inner": st.text(max_size=5, min_size=1),
        "either": st.integers(0, 2**31) | st.text(max_size=5),
    },
)


@given(VALUES)
def test_protobuf_messages_round_trip(value: dict[str, Any]) -> None:
    """What was written is read."""
    assert protobuf.message(encoded(value, EVERY), EVERY) == value


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(body: bytes) -> None:
    """Never another error."""
    for type_ in (EVERY, catalogue()["io.k8s.api.core.v1.Pod"]):
        try:
            protobuf.message(body, type_)
            protobuf.envelope(b"k8s\x00" + body)
        except protobuf.Malformed:
            continue


def test_openapi_tells_merge_keys_and_field_validation() -> None:
    """What kubectl needs for validation, explain and client-side apply; version 2 as well."""

    async def story(w: World) -> None:
        index = ok(await w.get("/openapi/v3"))["paths"]
        document = ok(await w.get(index["api/v1"]["serverRelativeURL"].partition("?")[0]))
        patch = document["paths"]["/api/v1/namespaces/{namespace}/pods/{name}"]["patch"]
        containers = document["components"]["schemas"]["io.k8s.api.core.v1.PodSpec"]["properties"][
            "containers"
        ]
        older = ok(await w.get("/openapi/v2"))
        refused = await w.ask("GET", "/openapi/v2", accept="application/com.github.proto-openapi")

        assert "fieldValidation" in {p["name"] for p in patch["parameters"]}
        assert containers["x-kubernetes-patch-merge-key"] == "name"
        assert "apis/apps/v1" in index
        assert "io.k8s.api.core.v1.Pod" in older["definitions"]
        assert refused.code == 406

    run(story)


def test_openapi_v2_names_no_fields_where_any_are_kept() -> None:
    """Clients that check by it refuse fields beside those that it names; version 3 can say both."""

    async def story(w: World) -> None:
        body = definition()
        version = body["spec"]["versions"][0]
        version["schema"]["openAPIV3Schema"]["x-kubernetes-preserve-unknown-fields"] = True
        ok(await w.post(DEFINITIONS, body), 201)
        older = ok(await w.get("/openapi/v2"))["definitions"]["com.example.v1.Widget"]
        newer = ok(await w.get("/openapi/v3/apis/example.com/v1"))["components"]["schemas"]

        assert "properties" not in older
        assert "spec" in newer["com.example.v1.Widget"]["properties"]

    run(story)


def test_openapi_says_what_the_fields_of_pods_mean() -> None:
    """Each sentence is of a struct or field that is served, in both versions; others say where they are documented."""

    async def story(w: World) -> None:
        older = ok(await w.get("/openapi/v2"))["definitions"]
        newer: dict[str, Any] = {}
        for path in ok(await w.get("/openapi/v3"))["paths"]:
            newer |= ok(await w.get(f"/openapi/v3/{path}"))["components"]["schemas"]
        for served in (older, newer):
            structs = {
                kind: [one for name, one in served.items() if name.endswith(f".{kind}")]
                for kind in {place.partition(".")[0] for place in SENTENCES}
            }
            for place, sentence in SENTENCES.items():
                kind, _, field = place.partition(".")
                told = [
                    one["properties"].get(field, {}) if field else one for one in structs[kind]
                ]
                assert any(one.get("description", "").startswith(sentence) for one in told), place
            claim = next(one for name, one in served.items() if name.endswith(".PodCondition"))
            assert claim["description"].startswith("Documented at https://kubernetes.io/")

    run(story)


def test_every_reference_in_openapi_leads_somewhere() -> None:
    """No schema refers to one that is not there."""

    async def story(w: World) -> None:
        for path in ok(await w.get("/openapi/v3"))["paths"]:
            document = ok(await w.get(f"/openapi/v3/{path}"))
            known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
            assert references(document) <= known

    run(story)


def references(value: Any) -> set[str]:
    """Every `$ref` in a document."""
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*(references(inner) for inner in value.values()))
    if isinstance(value, list):
        return set().union(*(references(inner) for inner in value)) if value else set()
    return set()


def test_tokens_keep_strangers_out() -> None:
    """With tokens, each names its user; without one there is 401, but health is for all."""
    tokens = {"secret": User("alice", ("system:masters",))}
    seen: list[str] = []

    async def story(w: World) -> None:
        w.server.admission.validators.append(lambda review: seen.append(review.user.name))
        nobody = await w.get(CONFIGS)
        wrong = await w.get(CONFIGS, headers={"Authorization": "Bearer guess"})
        right = await w.post(CONFIGS, config(), headers={"Authorization": "Bearer secret"})

        assert (nobody.code, wrong.code, right.code) == (401, 401, 201)
        assert nobody.headers["WWW-Authenticate"].startswith("Bearer")
        assert seen[-1] == "alice"
        assert (await w.get("/healthz")).code == 200

    run(story, Settings(tokens=tokens))


def test_strangers_may_stand_for_somebody() -> None:
    """Beside tokens, requests without one count as the configured user; a wrong token does not."""
    settings = Settings(tokens={"secret": User("alice")}, anonymous=User("guest"))
    seen: list[str] = []

    async def story(w: World) -> None:
        w.server.admission.validators.append(lambda review: seen.append(review.user.name))
        ok(await w.post(CONFIGS, config("one")), 201)
        ok(await w.post(CONFIGS, config("two"), headers={"Authorization": "Bearer secret"}), 201)
        wrong = await w.post(CONFIGS, config("three"), headers={"Authorization": "Bearer guess"})

        assert wrong.code == 401
        assert seen[-2:] == ["guest", "alice"]

    run(story, settings)


def test_reviews_allow_everything() -> None:
    """A user that asks for its rights has them all."""

    async def story(w: World) -> None:
        group = "/apis/authorization.k8s.io/v1"
        spec = {"resourceAttributes": {"verb": "create", "resource": "pods"}}
        for kind in ("selfsubjectaccessreviews", "subjectaccessreviews"):
            found = ok(await w.post(f"{group}/{kind}", {"spec": spec}), 201)
            assert found["status"]["allowed"] is True
        body = {"spec": {"namespace": "default"}}
        rules = ok(await w.post(f"{group}/selfsubjectrulesreviews", body), 201)
        assert rules["status"]["resourceRules"]

    run(story)


def test_a_kubeconfig_says_where(tmp_path: Path) -> None:
    """Readable by its owner alone."""
    path = tmp_path / "config"

    write_kubeconfig(path, "http://127.0.0.1:1")

    found = yaml.safe_load(path.read_text())
    assert path.stat().st_mode & 0o777 == 0o600
    assert found["users"][0]["user"] == {}
    assert found["clusters"][0]["cluster"] == {"server": "http://127.0.0.1:1"}


def test_names_in_paths_are_unquoted() -> None:
    """A role's name may hold a colon."""

    async def story(w: World) -> None:
        path = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
        ok(await w.post(path, named({"metadata": {}}, name="system:x")), 201)

        assert ok(await w.get(f"{path}/system%3Ax"))["metadata"]["name"] == "system:x"

    run(story)


def _fields(raw: bytes) -> list[tuple[int, bytes]]:
    """Fields with a length, by number; the others are passed over."""
    found, at = [], 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte, at = raw[at], at + 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(raw):
        key = number()
        if key & 7 == 2:
            size = number()
            found.append((key >> 3, raw[at : at + size]))
            at += size
        elif key & 7 == 1:
            at += 8
        else:
            number()
    return found


def _named(raw: bytes) -> dict[str, bytes]:
    """Entries of a map of schemas."""
    entries = [dict(_fields(entry)) for _, entry in _fields(raw)]
    return {entry[1].decode(): entry[2] for entry in entries}


def test_openapi_v2_is_told_as_protobuf_too() -> None:
    """The form that kubectl requests where OpenAPI v3 does not do; the same definitions as in JSON."""

    async def story(w: World) -> None:
        ok(await w.post(DEFINITIONS, definition()), 201)
        accept = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf"
        async with w.session.get(f"{w.url}/openapi/v2", headers={"Accept": accept}) as response:
            media, raw = response.headers["Content-Type"], await response.read()
        plain = ok(await w.get("/openapi/v2"))

        assert media.startswith("application/com.github.proto-openapi.spec.v2.v1.0+protobuf")
        document = dict(_fields(raw))
        assert document[1] == b"2.0"
        definitions = _named(document[9])
        assert definitions.keys() == plain["definitions"].keys()
        for name, schema in definitions.items():
            fields, meant = _fields(schema), plain["definitions"][name]
            properties = _named(dict(fields).get(25, b""))
            assert properties.keys() == (meant.get("properties") or {}).keys()
            required = [text.decode() for number, text in fields if number == 19]
            assert required == meant.get("required", [])
            own = [dict(_fields(text)) for number, text in fields if number == 31]
            told = {one[1].decode(): json.loads(dict(_fields(one[2]))[2]) for one in own}
            assert told == {key: value for key, value in meant.items() if key.startswith("x-")}
        custom = _named(dict(_fields(definitions["com.example.v1.Widget"]))[25])
        size = _named(dict(_fields(custom["spec"]))[25])["size"]
        assert b"".join([bytes([9 << 3 | 1]), struct.pack("<d", 1)]) in size, "minimum"
        assert dict(_fields(size))[22] == b"\x0a\x07integer"
        paths = [dict(_fields(path)) for number, path in _fields(document[8]) if number == 2]
        assert {path[1].decode() for path in paths} == plain["paths"].keys()

    run(story)
