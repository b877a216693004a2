"""The optional file: what one run stored, the next one serves."""

import asyncio
import json
import threading
from pathlib import Path

import pytest
from apiserver_world import (
    DEFINITIONS,
    PODS,
    WIDGETS,
    World,
    config,
    definition,
    ok,
    pod,
    run,
    widget,
)

from partage.apiserver import ApiServer, Settings, UnreadableState, persistence, serve


def test_objects_definitions_and_revisions_survive(tmp_path: Path) -> None:
    """The next run goes on counting, serves custom resources, and expires old watches."""
    settings = Settings(file=tmp_path / "state.json")
    kept = {}

    async def first(w: World) -> None:
        ok(await w.post(DEFINITIONS, definition()), 201)
        ok(await w.post(WIDGETS, widget()), 201)
        kept["pod"] = ok(await w.post(PODS, pod()), 201)
        kept["revision"] = w.server.store.revision

    async def second(w: World) -> None:
        assert ok(await w.get(f"{PODS}/web")) == kept["pod"]
        assert ok(await w.get(f"{WIDGETS}/one"))["spec"]["size"] == 3
        assert (await w.get(PODS, watch="1", resourceVersion="3")).code == 410
        assert (await w.get(WIDGETS, watch="1", resourceVersion="3")).code == 410
        made = ok(await w.post("/api/v1/namespaces/default/configmaps", config()), 201)
        assert int(made["metadata"]["resourceVersion"]) > kept["revision"]

    run(first, settings)
    assert settings.file is not None
    assert settings.file.stat().st_mode & 0o777 == 0o600
    run(second, settings)


def test_objects_of_an_earlier_release_get_the_defaults_of_this_one(tmp_path: Path) -> None:
    """Otherwise a pod could not be changed any more: what is filled in then looks like a change."""
    settings = Settings(file=tmp_path / "state.json")
    files = [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]

    async def first(w: World) -> None:
        volume = {"name": "v", "downwardAPI": {"items": files}}
        made = ok(await w.post(PODS, pod(volumes=[volume])), 201)
        old = w.server.store.get("pods", "default", "web")
        assert old is not None
        del made["spec"]["volumes"][0]["downwardAPI"]["items"][0]["fieldRef"]["apiVersion"]
        w.server.store.replace("pods", made, old.revision)

    async def second(w: World) -> None:
        ok(await w.patch(f"{PODS}/web", {"metadata": {"labels": {"a": "b"}}}))

    run(first, settings)
    run(second, settings)


def saved(resource: str, spec: object) -> str:
    """A state of one object with this spec."""
    one = {"metadata": {"name": "a", "resourceVersion": "1"}, "spec": spec}
    return json.dumps({"version": 1, "revision": 1, "objects": {resource: [one]}})


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"version": 9, "revision": 1, "objects": {}}',
        '{"version": 1, "revision": 1, "objects": {"pods": [{}]}}',
        saved("pods", 5),
        saved("customresourcedefinitions.apiextensions.k8s.io", {}),
    ],
    ids=["empty", "list", "nothing", "another version", "no metadata", "no pod", "no definition"],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str) -> None:
    """The error names it; it is not overwritten."""
    path = tmp_path / "state.json"
    path.write_text(text)

    with pytest.raises(UnreadableState, match=r"state\.json"):
        ApiServer(Settings(file=path))

    assert path.read_text() == text


@pytest.mark.parametrize("cancelled", [True, False])
def test_two_saves_never_write_at_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    cancelled: bool,  # noqa: FBT001
) -> None:
    """Both would write into the same unfinished file; the thread of a cancelled one goes on."""
    began, may_end, writing = threading.Event(), threading.Event(), threading.Lock()
    alone: list[bool] = []

    def slow(*_: object) -> None:
        alone.append(writing.acquire(blocking=False))
        began.set()
        may_end.wait(240)
        if alone[-1]:
            writing.release()

    monkeypatch.setattr(persistence, "save", slow)

    async def story() -> None:
        server = ApiServer(Settings(file=tmp_path / "state.json"))
        first = asyncio.create_task(server.save())
        await asyncio.to_thread(began.wait, 240)
        if cancelled:
            first.cancel()
        second = asyncio.create_task(server.save())
        done, _ = await asyncio.wait((first, second), timeout=0.2)
        may_end.set()
        assert not done
        await asyncio.gather(first, second, return_exceptions=True)

    asyncio.run(story())

    assert alone == [True, True]


def test_a_port_in_use_is_an_error() -> None:
    """Nothing is left behind."""

    async def main() -> None:
        async with serve(ApiServer()) as url:
            port = int(url.rpartition(":")[2])
            with pytest.raises(OSError, match="address already in use"):
                await ApiServer().start(port=port)

    asyncio.run(main())


def test_a_file_that_cannot_be_written_is_told_without_a_fault(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The server ends normally; one line says what the file lacks, and no traceback is in it."""
    file = tmp_path / "gone" / "state.json"

    async def main() -> None:
        async with serve(ApiServer(Settings(file=file))):
            pass

    asyncio.run(main())

    (record,) = caplog.records
    assert record.getMessage() == (
        f"{file} cannot be written: No such file or directory; it lacks the latest changes"
    )
    assert record.exc_info is None
