"""Tables of the embedded API server and of a genuine one, of the same objects: the same columns and cells.

`kubectl get` prints these tables. Both servers start empty, without controllers. Ages are not compared, as
the two servers store an object at different times. Kinds without columns of their own are left out: the
embedded server shows their name and age.
"""

import asyncio
import json
import re
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from control_plane import OF_THE_PINNED, control_plane

from partage.apiserver import ApiServer, Settings, serve

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
STRATEGIC = "application/strategic-merge-patch+json"
MERGE = "application/merge-patch+json"
OLD = "2020-01-02T03:04:05Z"
PODS = "/api/v1/namespaces/team/pods"
APPS = "/apis/apps/v1/namespaces/team"
BATCH = "/apis/batch/v1/namespaces/team"
CONTROLLERS = "/api/v1/namespaces/team/replicationcontrollers"
WIDGETS = "/apis/example.com/v1/namespaces/team/widgets"
Call = Callable[..., Any]
Made = tuple[str, dict[str, Any], dict[str, Any], bool]

TIMES = (
    (re.compile(r"\b\d{4}-\d\d-\d\dT[\d:]+Z"), "TIME"),
    (re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b"), "UID"),
    (re.compile(r"\b(?:\d+[ydhms]){1,2}\b"), "AGE"),
)


def state(name: str, how: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """A container's status."""
    return {"name": name, "image": "b", "imageID": "", "state": how, **more}


RUNS = {"running": {"startedAt": OLD}}
LAST = {"terminated": {"exitCode": 1, "finishedAt": OLD, "startedAt": OLD}}


def ended(code: int, reason: str = "", signal: int = 0) -> dict[str, Any]:
    """The state of a container that has ended."""
    return {"terminated": {"exitCode": code, "reason": reason, "signal": signal}}


def one(how: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """The status of a pod whose first container is in this state."""
    return {"phase": "Running", "containerStatuses": [state("a", how, **more)]}


def two(first: Mapping[str, Any], second: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """The status of a pod with two containers, of which the second is ready."""
    states = [state("a", first), state("b", second, ready=True)]
    return {"phase": "Running", "containerStatuses": states, **more}


def begun(*states: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    """The status of a pod whose init containers are in these states."""
    names = ("i", "s")
    told = [state(name, how) for name, how in zip(names, states, strict=False)]
    return {"phase": "Pending", "initContainerStatuses": told, **more}


READY = [{"type": "Ready", "status": "True"}]
STATUSES: dict[str, tuple[dict[str, Any], bool]] = {
    "none": ({}, False),
    "running": (one(RUNS, ready=True), False),
    "ready-without-state": (one({}, ready=True), False),
    "restarted": (one(RUNS, ready=True, restartCount=3, lastState=LAST), False),
    "restarted-unknown": (one(RUNS, restartCount=3), False),
    "loops": (one({"waiting": {"reason": "CrashLoopBackOff"}}), False),
    "code": (one(ended(3)), False),
    "signal": (one(ended(137, signal=9)), False),
    "error": ({**one(ended(1, "Error")), "phase": "Failed"}, False),
    "evicted": ({"phase": "Failed", "reason": "Evicted"}, False),
    "completed": ({**one(ended(0, "Completed")), "phase": "Succeeded"}, False),
    "one-completed": (two(ended(0, "Completed"), RUNS, conditions=READY), False),
    "one-completed-not-ready": (two(ended(0, "Completed"), RUNS), False),
    "one-failed": (two(ended(0, "Completed"), ended(1, "Error")), False),
    "one-failed-first": (two(ended(1, "Error"), ended(0, "Completed")), False),
    "going": (one(RUNS, ready=True), True),
    "going-completed": ({**one(ended(0, "Completed")), "phase": "Succeeded"}, True),
    "lost": ({**one(RUNS), "reason": "NodeLost"}, True),
    "init-first": (begun(RUNS), False),
    "init-second": (begun(ended(0)), False),
    "init-code": (begun(ended(2)), False),
    "init-error": (begun(ended(2, "Error")), False),
    "init-waits": (begun({"waiting": {"reason": "ImagePullBackOff"}}), False),
    "init-initializing": (begun({"waiting": {"reason": "PodInitializing"}}), False),
    "init-sidecar": (begun(ended(0), RUNS), False),
    "init-done": (
        {
            "phase": "Running",
            "initContainerStatuses": [
                state("i", ended(0), restartCount=2),
                state("s", RUNS, started=True, ready=True, restartCount=1, lastState=LAST),
            ],
            "containerStatuses": [state("a", RUNS, ready=True)],
        },
        False,
    ),
    "addresses": ({"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}, False),
}


def pods() -> list[Made]:
    """A pod in each state."""
    found: list[Made] = []
    for name, (status, going) in STATUSES.items():
        containers = [
            {"name": letter, "image": "b"} for letter in ("ab" if "one-" in name else "a")
        ]
        spec: dict[str, Any] = {"containers": containers, "nodeName": "n1"}
        if name.startswith("init"):
            spec["initContainers"] = [
                {"name": "i", "image": "b"},
                {"name": "s", "image": "b", "restartPolicy": "Always"},
            ]
        head: dict[str, Any] = {"name": name}
        if going:  # one that has ended would be gone at once
            head["finalizers"] = ["example.com/x"]
        found.append((PODS, {"metadata": head, "spec": spec}, status, going))
    gated = {
        "schedulingGates": [{"name": "example.com/x"}],
        "containers": [{"name": "a", "image": "b"}],
    }
    found.append((PODS, {"metadata": {"name": "gated"}, "spec": gated}, {}, False))
    return found


TEMPLATE = {
    "metadata": {"labels": {"z": "1", "a": "2"}},
    "spec": {
        "containers": [{"name": "a", "image": "b"}, {"name": "c", "image": "d"}],
        "nodeSelector": {"z": "1", "a": "2"},
    },
}
ONCE = {"spec": {"containers": [{"name": "a", "image": "b"}], "restartPolicy": "Never"}}
SELECTOR = {
    "matchLabels": {"z": "1"},
    "matchExpressions": [
        {"key": "a", "operator": "In", "values": ["3", "2"]},
        {"key": "q", "operator": "NotIn", "values": ["1"]},
        {"key": "z", "operator": "Exists"},
        {"key": "y", "operator": "DoesNotExist"},
    ],
}


def done(*kinds: str) -> dict[str, Any]:
    """The status of a Job with these conditions."""
    return {
        "conditions": [
            {"type": kind, "status": "True", "lastTransitionTime": OLD} for kind in kinds
        ]
    }


def workloads() -> list[Made]:
    """Workloads, and Jobs in each state."""
    both = {"selector": SELECTOR, "template": TEMPLATE}
    found: list[Made] = [
        (
            f"{APPS}/deployments",
            {"metadata": {"name": "d"}, "spec": {"replicas": 3, **both}},
            {},
            False,
        ),
        (f"{APPS}/replicasets", {"metadata": {"name": "r"}, "spec": both}, {}, False),
        (f"{APPS}/daemonsets", {"metadata": {"name": "d"}, "spec": both}, {}, False),
        (
            f"{APPS}/statefulsets",
            {"metadata": {"name": "s"}, "spec": {"serviceName": "s", **both}},
            {},
            False,
        ),
        (
            CONTROLLERS,
            {
                "metadata": {"name": "rc"},
                "spec": {"selector": {"z": "1", "a": "2"}, "template": TEMPLATE},
            },
            {},
            False,
        ),
        (
            f"{BATCH}/cronjobs",
            {
                "metadata": {"name": "c"},
                "spec": {"schedule": "* * * * *", "jobTemplate": {"spec": {"template": ONCE}}},
            },
            {},
            False,
        ),
    ]
    jobs: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
        "plain": ({"completions": 3, "parallelism": 2}, {}),
        "queue": ({"parallelism": 3}, {}),
        "single": ({}, {}),
        "suspended": ({"suspend": True}, done("Suspended")),
        "ending": ({}, done("SuccessCriteriaMet")),
        "failing": ({}, done("FailureTarget")),
    }
    for name, (spec, status) in jobs.items():
        made = {"metadata": {"name": name}, "spec": {"template": ONCE, **spec}}
        found.append((f"{BATCH}/jobs", made, status, False))
    held = {
        "metadata": {"name": "going", "finalizers": ["example.com/x"]},
        "spec": {"template": ONCE},
    }
    found.append((f"{BATCH}/jobs", held, {}, True))
    return found


def event(name: str, **more: Any) -> Made:
    """An event about a pod."""
    about = {"kind": "Pod", "name": "web", "namespace": "team"}
    made = {"metadata": {"name": name}, "involvedObject": about, "reason": "R", "type": "Normal"}
    return "/api/v1/namespaces/team/events", {**made, **more}, {}, False


def service(name: str, status: Mapping[str, Any] | None = None, **spec: Any) -> Made:
    """A service."""
    made = {
        "metadata": {"name": name},
        "spec": {"clusterIP": "None", "ports": [{"port": 80}], **spec},
    }
    return "/api/v1/namespaces/team/services", made, dict(status or {}), False


def others() -> list[Made]:
    """Events, services, nodes, quotas, bindings of roles, budgets, and objects of a definition."""
    subjects = [
        {"kind": "User", "name": "u", "apiGroup": "rbac.authorization.k8s.io"},
        {"kind": "Group", "name": "g", "apiGroup": "rbac.authorization.k8s.io"},
        {"kind": "ServiceAccount", "name": "s", "namespace": "team"},
    ]
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", "name": "r"}
    info = {"kubeletVersion": "v1", "kernelVersion": "6", "architecture": "amd64", "osImage": "o"}
    node = {
        "metadata": {
            "name": "n1",
            "labels": {"node-role.kubernetes.io/b": "", "kubernetes.io/role": "a"},
        }
    }
    micro = "2020-01-02T03:04:05.000000Z"
    return [
        event("plain", message=" said \n", firstTimestamp=OLD, lastTimestamp=OLD, count=3),
        event("bare"),
        event(
            "reporter", reportingComponent="c", reportingInstance="i", source={"component": "s"}
        ),
        event("host", reportingInstance="i", source={"component": "s", "host": "h"}),
        event(
            "series",
            eventTime=micro,
            action="A",
            reportingComponent="example.com/c",
            reportingInstance="i",
            series={"count": 7, "lastObservedTime": micro},
        ),
        service("plain", selector={"z": "1", "a": "2"}),
        service("outside", externalIPs=["192.0.2.7"]),
        service("named", type="ExternalName", externalName="example.com", clusterIP=""),
        ("/api/v1/nodes", node, {"nodeInfo": {**NODE_INFO, **info}}, False),
        (
            "/api/v1/nodes",
            {"metadata": {"name": "n2"}},
            {"conditions": [{"type": "Ready", "status": "Unknown"}]},
            False,
        ),
        (
            "/api/v1/namespaces/team/resourcequotas",
            {"metadata": {"name": "q"}, "spec": {"hard": {"secrets": "100", "limits.cpu": "5"}}},
            {
                "hard": {"secrets": "100", "limits.cpu": "5"},
                "used": {"secrets": "0", "limits.cpu": "0"},
            },
            False,
        ),
        (
            "/apis/rbac.authorization.k8s.io/v1/namespaces/team/rolebindings",
            {"metadata": {"name": "b"}, "subjects": subjects, "roleRef": role},
            {},
            False,
        ),
        (
            "/apis/policy/v1/namespaces/team/poddisruptionbudgets",
            {"metadata": {"name": "b"}, "spec": {"minAvailable": "50%", "selector": SELECTOR}},
            {},
            False,
        ),
        (
            "/api/v1/namespaces/team/configmaps",
            {"metadata": {"name": "c"}, "data": {"a": "b"}},
            {},
            False,
        ),
        (
            "/apis/scheduling.k8s.io/v1/priorityclasses",
            {"metadata": {"name": "p"}, "value": 5},
            {},
            False,
        ),
        (
            WIDGETS,
            {
                "apiVersion": "example.com/v1",
                "kind": "Widget",
                "metadata": {"name": "w"},
                "spec": SPEC,
            },
            {},
            False,
        ),
        (
            WIDGETS,
            {"apiVersion": "example.com/v1", "kind": "Widget", "metadata": {"name": "empty"}},
            {},
            False,
        ),
    ]


NODE_INFO = dict.fromkeys(
    (
        "machineID",
        "systemUUID",
        "bootID",
        "kernelVersion",
        "osImage",
        "containerRuntimeVersion",
        "kubeletVersion",
        "kubeProxyVersion",
        "operatingSystem",
        "architecture",
    ),
    "",
)
SPEC = {
    "list": ["b", "a"],
    "map": {"z": 1, "a": [True, "x"]},
    "text": "said",
    "number": 5,
    "part": 1.5,
    "yes": True,
    "when": OLD,
}
PRINTED = [
    ("every", "string", ".spec.list[*]"),
    ("list", "string", ".spec.list"),
    ("map", "string", ".spec.map"),
    ("text", "string", ".spec.text"),
    ("number", "string", ".spec.number"),
    ("yes", "string", ".spec.yes"),
    ("count", "integer", ".spec.number"),
    ("rounded", "integer", ".spec.part"),
    ("odd", "integer", ".spec.text"),
    ("part", "number", ".spec.part"),
    ("holds", "boolean", ".spec.yes"),
    ("no", "boolean", ".spec.text"),
    ("when", "date", ".spec.when"),
    ("never", "date", ".spec.text"),
]
DEFINITION = {
    "metadata": {"name": "widgets.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Namespaced",
        "names": {
            "plural": "widgets",
            "singular": "widget",
            "kind": "Widget",
            "listKind": "WidgetList",
        },
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "x-kubernetes-preserve-unknown-fields": True,
                    }
                },
                "additionalPrinterColumns": [
                    {"name": name, "type": kind, "jsonPath": path} for name, kind, path in PRINTED
                ],
            }
        ],
    },
}


def plain(cell: Any) -> Any:
    """A cell without what differs from one object to another of the same name."""
    if not isinstance(cell, str):
        return cell
    for pattern, instead in TIMES:
        cell = pattern.sub(instead, cell)
    return cell


def shown(call: Call) -> dict[str, Any]:
    """Make all objects; returns the columns of each resource, the cells of each object, and selectors of scales."""
    call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", DEFINITION)
    for _ in range(100):
        try:
            call("GET", WIDGETS)
            break
        except OSError:
            call("GET", "/version")
    found: dict[str, Any] = {}
    for path, made, status, going in [*pods(), *workloads(), *others()]:
        name = made["metadata"]["name"]
        call("POST", path, made)
        if status:
            kind = MERGE if path == WIDGETS else STRATEGIC
            call("PATCH", f"{path}/{name}/status", {"status": status}, kind=kind)
        if going:
            call("DELETE", f"{path}/{name}")
        table = call("GET", f"{path}/{name}", accept=TABLE)
        columns = table["columnDefinitions"]
        found[path] = [(one["name"], one["priority"], one["format"]) for one in columns]
        cells = zip((one["name"] for one in columns), table["rows"][0]["cells"], strict=True)
        found[f"{path}/{name}"] = {head: plain(cell) for head, cell in cells}
    for path in (f"{APPS}/deployments/d", f"{APPS}/replicasets/r", f"{CONTROLLERS}/rc"):
        found[f"{path}/scale"] = call("GET", f"{path}/scale")["status"].get("selector")
    return found


def caller(url: str) -> Call:
    """Requests to the embedded server."""

    def call(
        method: str, path: str, body: Any = None, *, kind: str = "", accept: str = "*/*"
    ) -> Any:
        request = urllib.request.Request(  # noqa: S310 # loopback
            url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Content-Type": kind or "application/json", "Accept": accept},
        )
        with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310 # loopback
            return json.loads(answer.read())

    return call


async def embedded() -> dict[str, Any]:
    """What the embedded server shows."""
    server = ApiServer(Settings())
    async with serve(server) as url:
        await server.create("namespaces", {"metadata": {"name": "team"}})
        await server.settle()
        return await asyncio.to_thread(shown, caller(url))


@OF_THE_PINNED
def test_tables_show_what_a_genuine_server_shows(tmp_path: Path) -> None:
    """The same columns of each resource, and the same cells of each object."""
    with control_plane(tmp_path) as plane:
        plane.call("POST", "/api/v1/namespaces", {"metadata": {"name": "team"}})
        account = {"metadata": {"name": "default"}}
        plane.call("POST", "/api/v1/namespaces/team/serviceaccounts", account)
        genuine = shown(plane.call)
    ours = asyncio.run(embedded())

    differing = {key: (ours[key], said) for key, said in genuine.items() if ours[key] != said}
    assert not differing
