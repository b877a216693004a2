"""pods/binding, pods/eviction, pods/log, and what is not supported."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from apiserver_world import PODS, World, named, ok, pod, run

from partage.apiserver import LogRequest, Settings


def binding(node: str = "n1", **metadata: Any) -> dict[str, Any]:
    """A Binding of the pod `web`."""
    return {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "web", **metadata},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }


BOTH = {
    "of the pod": f"{PODS}/web/binding",
    "of the namespace": "/api/v1/namespaces/default/bindings",
}


@pytest.mark.parametrize("path", BOTH.values(), ids=BOTH)
def test_a_binding_brings_annotations_labels_and_node_at_once(path: str) -> None:
    """One revision carries all of it, and the condition that the pod is scheduled."""

    async def story(w: World) -> None:
        value = named(pod(), annotations={"a": "1"}, labels={"l": "1"})
        ok(await w.post(PODS, value), 201)
        before = w.server.store.revision

        extra = {"annotations": {"b": "2"}, "labels": {"l": "2"}}
        answer = ok(await w.post(path, binding(**extra)), 201)

        assert answer["status"] == "Success"
        assert w.server.store.revision == before + 1
        found = ok(await w.get(f"{PODS}/web"))
        assert found["spec"]["nodeName"] == "n1"
        assert found["metadata"]["annotations"] == {"a": "1", "b": "2"}
        assert found["metadata"]["labels"] == {"l": "2"}
        assert found["status"]["conditions"] == [
            {
                "type": "PodScheduled",
                "status": "True",
                "lastTransitionTime": "2023-11-14T22:13:20Z",
            }
        ]

    run(story)


REFUSED: dict[str, tuple[dict[str, Any], int, str]] = {
    "uid": (binding(uid="other"), 409, "Precondition failed: UID in precondition: other, UID in"),
    "version": (binding(resourceVersion="1"), 409, "ResourceVersion in precondition: 1"),
    "no target": ({**binding(), "target": {}}, 422, "target.name: Required value"),
    "target kind": (
        {**binding(), "target": {"kind": "Pod", "name": "x"}},
        422,
        "target.kind: Unsupported value",
    ),
    "target name": (binding("N_1"), 422, "target.name: Invalid value"),
    "annotation": (binding(annotations={"-": "x"}), 422, "metadata.annotations"),
    "large annotations": (
        binding(annotations={"b": "x" * 200_000}),
        422,
        "Too long: may not be more than 262144 bytes",
    ),
    "name": (binding(name="other"), 400, "name in URL does not match name in Binding"),
    "namespace": (binding(namespace="other"), 400, "namespace of the provided object"),
    "type": ({"target": []}, 400, "cannot be handled as a Binding"),
}


@pytest.mark.parametrize(("body", "code", "why"), REFUSED.values(), ids=REFUSED)
def test_impossible_bindings_are_refused(body: dict[str, Any], code: int, why: str) -> None:
    """Preconditions, targets and annotations are checked before anything is written."""

    async def story(w: World) -> None:
        ok(await w.post(PODS, named(pod(), annotations={"a": "x" * 100_000})), 201)

        answer = await w.post(f"{PODS}/web/binding", body)

        assert answer.code == code
        assert why in answer.message
        assert "nodeName" not in ok(await w.get(f"{PODS}/web"))["spec"]

    run(story)


async def make_bound(w: World) -> None:
    """Binds the pod."""
    ok(await w.post(f"{PODS}/web/binding", binding("n0")), 201)


async def make_deleting(w: World) -> None:
    """Begins to delete the pod."""
    ok(await w.patch(f"{PODS}/web", {"metadata": {"finalizers": ["e.com/x"]}}))
    ok(await w.delete(f"{PODS}/web"))


STATES: dict[str, tuple[Any, dict[str, Any], str]] = {
    "bound": (make_bound, {}, 'pod web is already assigned to node "n0"'),
    "deleting": (make_deleting, {}, "pod web is being deleted, cannot be assigned to a host"),
    "gated": (
        None,
        {"schedulingGates": [{"name": "e.com/g"}]},
        "pod web has non-empty .spec.schedulingGates",
    ),
}


@pytest.mark.parametrize(("prepare", "spec", "why"), STATES.values(), ids=STATES)
def test_only_a_free_pod_is_bound(prepare: Any, spec: dict[str, Any], why: str) -> None:
    """409 for bound, deleting and gated pods."""

    async def story(w: World) -> None:
        ok(await w.post(PODS, pod(**spec)), 201)
        if prepare is not None:
            await prepare(w)

        answer = await w.post(f"{PODS}/web/binding", binding())

        assert (answer.code, answer.reason) == (409, "Conflict")
        assert answer.message == (f'Operation cannot be fulfilled on pods/binding "web": {why}')

    run(story)


def test_of_many_binders_one_wins() -> None:
    """Many bind at once, and the pod has one node."""

    async def story(w: World) -> None:
        ok(await w.post(PODS, pod()), 201)

        answers = await asyncio.gather(
            *(w.post(f"{PODS}/web/binding", binding(f"n{i}")) for i in range(20))
        )

        codes = sorted(answer.code for answer in answers)
        assert codes == [201] + [409] * 19
        winner = next(i for i, answer in enumerate(answers) if answer.code == 201)
        assert ok(await w.get(f"{PODS}/web"))["spec"]["nodeName"] == f"n{winner}"

    run(story)


def test_a_dry_binding_binds_nothing() -> None:
    """A dry run of a pod that is not there binds nothing either."""

    async def story(w: World) -> None:
        ok(await w.post(PODS, pod()), 201)

        ok(await w.post(f"{PODS}/web/binding", binding(), dryRun="All"), 201)
        missing = await w.post(f"{PODS}/none/binding", binding(name="none"))

        assert "nodeName" not in ok(await w.get(f"{PODS}/web"))["spec"]
        assert missing.code == 404

    run(story)


def test_evictions_hold_to_budgets() -> None:
    """A pod goes, unless it runs and a disruption budget keeps it."""

    async def story(w: World) -> None:
        for name in ("web", "pending", "over"):
            ok(await w.post(PODS, named(pod(name), labels={"app": "x"})), 201)
        for name, phase in (("web", "Running"), ("over", "Succeeded")):
            ok(await w.patch(f"{PODS}/{name}/status", {"status": {"phase": phase}}))
        budgets = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
        body = {"metadata": {"name": "b"}, "spec": {"selector": {"matchLabels": {"app": "x"}}}}
        ok(await w.post(budgets, body), 201)
        ok(await w.patch(f"{budgets}/b/status", {"status": {"disruptionsAllowed": 0}}))
        eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "web"}}

        for name in ("pending", "over"):
            ok(await w.post(f"{PODS}/{name}/eviction", {"metadata": {"name": name}}), 201)
        kept = await w.post(f"{PODS}/web/eviction", eviction)
        other = await w.post(f"{PODS}/web/eviction", {"metadata": {"name": "other"}})
        listed = await w.post(f"{PODS}/web/eviction", [])
        ok(await w.patch(f"{budgets}/b/status", {"status": {"disruptionsAllowed": 1}}))
        ok(await w.post(budgets, body | {"metadata": {"name": "more"}}), 201)
        torn = await w.post(f"{PODS}/web/eviction", eviction)
        ok(await w.delete(f"{budgets}/more"))
        gone = await w.post(f"{PODS}/web/eviction", eviction)

        assert (kept.code, kept.headers["Retry-After"]) == (429, "10")
        assert kept.body["details"]["causes"][0]["reason"] == "DisruptionBudget"
        assert (other.code, listed.code, torn.code, gone.code) == (400, 400, 500, 201)
        assert (await w.get(f"{PODS}/web")).code == 404

    run(story)


def test_logs_come_from_the_provider() -> None:
    """As text or piece by piece, with the options of the request."""
    asked: list[LogRequest] = []

    async def pieces(request: LogRequest) -> AsyncIterator[bytes]:
        yield b"one\n"
        yield b"two\n"

    async def later(request: LogRequest) -> str:
        return f"later {request.container}\n"

    def logs(request: LogRequest) -> Any:
        asked.append(request)
        return pieces(request) if request.follow else later(request)

    async def story(w: World) -> None:
        two = pod(containers=[{"name": "a", "image": "x"}, {"name": "b", "image": "x"}])
        ok(await w.post(PODS, two), 201)

        path = f"{PODS}/web/log"
        ok(await w.get(path, container="b", previous="true"))
        assert not asked.pop().previous
        ok(await w.post(f"{PODS}/web/binding", {"target": {"name": "n1"}}), 201)
        first = await w.get(path, container="b", previous="true")
        ended = {"name": "b", "restartCount": 1, "lastState": {"terminated": {"exitCode": 1}}}
        ok(await w.patch(f"{PODS}/web/status", {"status": {"containerStatuses": [ended]}}))
        text = await w.get(path, container="b", tailLines="3", previous="true")
        stream = await w.get(path, container="a", follow="true")
        unnamed = await w.get(path)
        wrong = await w.get(path, container="c")
        tail = await w.get(path, container="a", tailLines="x")

        assert first.message == 'previous terminated container "b" in pod "web" not found'
        assert (text.body, stream.body) == ("later b\n", "one\ntwo\n")
        assert (asked[0].tail, asked[0].previous, asked[0].container) == (3, True, "b")
        assert "choose one of: [a b]" in unnamed.message
        assert "container c is not valid for pod web" in wrong.message
        assert tail.code == 422

    run(story, Settings(logs=logs))


def test_without_a_provider_logs_say_so() -> None:
    """One line, no error."""

    async def story(w: World) -> None:
        ok(await w.post(PODS, pod()), 201)

        assert (await w.get(f"{PODS}/web/log")).body == "no log is kept for container main\n"

    run(story)


@pytest.mark.parametrize("part", ["resize", "ephemeralcontainers"])
def test_what_runs_is_not_changed(part: str) -> None:
    """It is read as the pod; a change is refused, also of a pod that waits; one of a missing pod is not found."""

    async def story(w: World) -> None:
        made = ok(await w.post(PODS, pod()), 201)

        answer = await w.patch(f"{PODS}/web/{part}", {"spec": {}})

        assert answer.code == 400
        assert f"pods/{part} is not supported" in answer.message
        assert ok(await w.get(f"{PODS}/web/{part}")) == ok(await w.get(f"{PODS}/web")) == made
        assert (await w.patch(f"{PODS}/nope/{part}", {})).code == 404

    run(story)


@pytest.mark.parametrize("part", ["exec", "attach", "portforward"])
def test_processes_cannot_be_entered(part: str) -> None:
    """The message says why: the pod has no node yet, or runs no process."""

    async def story(w: World) -> None:
        ok(await w.post(PODS, pod()), 201)
        early = await w.post(f"{PODS}/web/{part}", {})
        ok(await w.post(f"{PODS}/web/binding", {"target": {"name": "n1"}}), 201)

        answer = await w.post(f"{PODS}/web/{part}", {})

        assert (early.code, early.message) == (400, "pod web does not have a host assigned")
        assert answer.code == 400
        assert f"pods/{part} is not supported" in answer.message

    run(story)
