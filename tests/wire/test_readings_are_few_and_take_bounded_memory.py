"""A user changes his pods all the time: what no rule reads costs no new reading, and kept readings have a bound."""

import tracemalloc
from typing import Any

import msgspec
import pytest

from partage.daemon.watched import LivePod, as_document
from partage.vendors import names
from partage.vendors.settings import Settings
from partage.wire import shapes, translation
from partage.wire.context import Context
from partage.wire.documents import Document
from partage.wire.limits import LIMITS
from partage.wire.translation import Translation

Manifest = dict[str, Any]


def pod(annotations: dict[str, str], containers: int = 1) -> Manifest:
    """A waiting pod that asks for a card."""
    listed: list[Manifest] = [
        {"name": f"c{number}", "resources": {"limits": {"cpu": "1m"}, "requests": {"cpu": "1m"}}}
        for number in range(containers)
    ]
    listed[0]["resources"]["limits"]["nvidia.com/gpu"] = "1"
    head = {"name": "p", "namespace": "t", "uid": "u", "annotations": annotations}
    return {"metadata": head, "spec": {"containers": listed}}


def document(manifest: Manifest, into: type[shapes.Pod] = LivePod) -> Document:
    """As a watch tells it, or as kube-scheduler sends it."""
    return as_document("Pod", msgspec.convert(manifest, into))


@pytest.fixture
def readings(monkeypatch: pytest.MonkeyPatch) -> list[Document]:
    """The pods that are read whole."""
    read: list[Document] = []
    whole = translation.translate_pod
    monkeypatch.setattr(
        translation, "translate_pod", lambda one, context: read.append(one) or whole(one, context)
    )
    return read


@pytest.mark.parametrize("into", [LivePod, shapes.Pod])
def test_what_no_rule_reads_costs_no_reading(
    readings: list[Document], into: type[shapes.Pod]
) -> None:
    """However often it changes; what a rule reads is read, and each entry has its own annotations."""
    known = Translation(Context.of(Settings()))
    for turn in range(100):
        entry = known.read(document(pod({"note": f"{turn:02}", f"n{turn:02}": "x"}), into))
        assert (entry.view.annotations, entry.view.dropped) == ({}, 10)
    assert len(readings) == 1
    for policy in ("spread", "binpack", "spread"):
        assert (
            known.read(document(pod({names.NODE_POLICY: policy}), into)).pod.request.fault is None
        )
    assert len(readings) == 3


def test_a_pod_that_grows_beyond_its_bound_is_read_again(readings: list[Document]) -> None:
    """And again when it is within; the sentence has the size."""
    known, most = Translation(Context.of(Settings())), LIMITS["bytes of annotations"]
    for size, counted in ((most, 1), (most + 1, 2), (most + 2, 3), (most - 1, 3)):
        fault = known.read(document(pod({"a": "b" * (size - 1)}))).pod.request.fault
        assert len(readings) == counted
        assert (fault is not None and f"{size} bytes" in fault.message) is (size > most)


@pytest.mark.parametrize(("containers", "turns"), [(1, 100), (512, 25)])
def test_kept_readings_take_no_more_than_they_may(
    monkeypatch: pytest.MonkeyPatch, containers: int, turns: int
) -> None:
    """The bound is of memory: a reading takes many times its text. Readings of small pods are kept all the same."""
    most = 2**20
    monkeypatch.setattr(translation, "_MOST_BYTES", most)
    known = Translation(Context.of(Settings()))
    known.read(document(pod({}, containers)))
    tracemalloc.start()
    try:
        for turn in range(turns):
            known.read(document(pod({names.HAMI_USE_UUID: f"GPU-{turn}"}, containers)))
        assert tracemalloc.get_traced_memory()[0] < 1.2 * most
    finally:
        tracemalloc.stop()
    assert (len(known._known) > turns) is (containers == 1)


def test_a_pod_that_is_there_is_not_read_again(
    monkeypatch: pytest.MonkeyPatch, readings: list[Document]
) -> None:
    """Its reading is kept with it, however many others there are; other settings read it afresh."""
    monkeypatch.setattr(translation, "_MOST_BYTES", 0)
    known = Translation(Context.of(Settings()))
    before = known.read(document(pod({"note": "1"})))
    known.read(document(pod({}, 2)))
    again = known.read(document(pod({"note": "22"})), before=before)
    assert len(readings) == 2
    assert again.pod.request is before.pod.request
    assert (before.view.dropped, again.view.dropped) == (5, 6)
    assert known.read(document(pod({}, 3)), before=again).view.containers[2:]
    known.reset(known.context)
    known.read(document(pod({"note": "22"})), before=again)
    assert len(readings) == 4
