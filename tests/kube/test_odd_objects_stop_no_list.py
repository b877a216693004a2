"""An object may be nested thousands of levels deep or have broken texts; it is read, and so are all others.

A genuine API server keeps `managedFields` of 9,000 levels in a pod, and gives them to all who list pods.
"""

import json
import re
import sys
import threading
from collections.abc import Iterator
from itertools import permutations
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube_builders import PODS_PATH, Pod, client_of

from fakes.kube_server import KubeServer
from fakes.wire import Fault
from partage.kube.frames import Added, Deleted, WatchDecoder
from partage.kube.lenient import repaired
from partage.kube.objects import Meta
from partage.kube.resources import NODES, PODS, Scope


class Open(msgspec.Struct, frozen=True):
    """An object of which a field of any type is read, as of ResourceClaims."""

    metadata: Meta
    status: Any = ""


LEVELS = (1_200, 9_000)
SHALLOW = 8


def nested(levels: int) -> bytes:
    """An object of so many objects, one in the other."""
    return b'{"f:a":' * levels + b"{}" + b"}" * levels


def deep(name: str, levels: int) -> bytes:
    """A pod with such an object in its metadata, before what is read of it."""
    head = b'{"metadata":{"managedFields":[{"fieldsV1":' + nested(levels) + b"}],"
    rest = f'"name":"{name}","namespace":"default","uid":"u-{name}","resourceVersion":"7"}}'
    return head + rest.encode() + b',"spec":{"nodeName":"n1"}}'


def plain(name: str) -> bytes:
    """A pod as they are."""
    meta = {"name": name, "namespace": "default", "uid": f"u-{name}", "resourceVersion": "8"}
    return json.dumps({"metadata": meta}).encode()


@pytest.mark.parametrize("levels", LEVELS)
async def test_a_list_with_one_is_whole(levels: int) -> None:
    """The object itself is there too: what it holds must not count as free."""
    body = b'{"metadata":{"resourceVersion":"9"},"items":[%s]}'
    items = b",".join((plain("a"), deep("b", levels), plain("c")))
    async with KubeServer() as server, client_of(server) as client:
        server.fail(Fault(path=PODS_PATH, body=body % items))
        listing = await client.list_all(Scope(PODS), into=Pod)

    assert [item.metadata.name for item in listing.items] == ["a", "b", "c"]
    assert listing.items[1].spec.node_name == "n1"
    assert not listing.undecodable


@pytest.mark.parametrize("levels", LEVELS)
async def test_so_is_it_alone(levels: int) -> None:
    """A pod is read alone when it is read back."""
    async with KubeServer() as server, client_of(server) as client:
        server.fail(Fault(body=deep("b", levels)))
        found = await client.get(PODS, "b", namespace="default", into=Pod)

    assert found.spec.node_name == "n1"


@pytest.mark.parametrize("levels", LEVELS)
def test_a_watch_goes_on(levels: int) -> None:
    """Its events and those after them arrive."""
    stream = b'{"type":"ADDED","object":%s}\n{"type":"DELETED","object":%s}\n{"type":"ADDED","object":%s}\n'

    first, second, third = WatchDecoder(Pod).feed(
        stream % (deep("b", levels), deep("b", levels), plain("c"))
    )

    assert isinstance(first, Added)
    assert first.object.spec.node_name == "n1"
    assert isinstance(second, Deleted)
    assert isinstance(third, Added)
    assert third.object.metadata.name == "c"


def odd(name: str) -> Iterator[bytes]:
    """Claims with several odd parts, in either order: a decoder reports the first one only."""
    rest = b'"metadata":{"name":"%s","uid":"u","resourceVersion":"7"}}' % name.encode()
    parts = (b'"\\ud800"', nested(1_500), b'"\xff"')
    for first, second, third in permutations(parts):
        yield b'{"a":%s,"b":%s,"c":%s,' % (first, second, third) + rest


@pytest.mark.parametrize("written", list(odd("b")), ids=range(6))
async def test_several_odd_parts_hide_no_object(written: bytes) -> None:
    """One claim of 4 KB must not end the service, whatever its drivers' data is."""
    body = b'{"metadata":{"resourceVersion":"9"},"items":[%s,%s]}' % (plain("a"), written)
    async with KubeServer() as server, client_of(server) as client:
        server.fail(Fault(path=PODS_PATH, body=body))
        listing = await client.list_all(Scope(PODS), into=Open)
        server.fail(Fault(body=written))
        found = await client.get(NODES, "b", into=Open)

    assert [item.metadata.name for item in listing.items] == ["a", "b"]
    assert found.metadata.name == "b"
    (added,) = WatchDecoder(Open).feed(b'{"type":"ADDED","object":%s}\n' % written)
    assert isinstance(added, Added)
    assert added.object.metadata.name == "b"


async def test_a_page_is_repaired_in_another_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have many megabytes; an object of another type before odd ones has each object read by itself."""
    threads: list[threading.Thread] = []

    def noted(data: bytes) -> bytes:
        threads.append(threading.current_thread())
        return repaired(data)

    monkeypatch.setattr("partage.kube.decoding.repaired", noted)
    monkeypatch.setattr("partage.kube.lenient.repaired", noted)
    other = b'{"metadata":{"name":"x","resourceVersion":"1"},"spec":7}'
    half = b'{"a":"\\ud800","metadata":{"name":"d","resourceVersion":"1"},"b":"\xff"}'
    async with KubeServer() as server, client_of(server) as client:
        for items in (
            (other, half, plain("c"), deep("b", 9_000)),
            (deep("b", 9_000), half, other),
        ):
            body = b'{"metadata":{"resourceVersion":"9"},"items":[%s]}' % b",".join(items)
            server.fail(Fault(path=PODS_PATH, body=body))
            listing = await client.list_all(Scope(PODS), into=Pod)
            assert {"b", "d"} <= {item.metadata.name for item in listing.items}
            assert [one.meta.name for one in listing.undecodable] == ["x"]

    assert threads
    assert threading.main_thread() not in threads


BROKEN = {
    b'"\\ud800"': "\ufffd",
    b'"\\uDC00x"': "\ufffdx",
    b'"\\\\ud800"': "\\ud800",
    b'"\\\\\\ud800\\n"': "\\\ufffd\n",
    b'"\\ud83d\\ude00\\ud83d"': "\U0001f600\ufffd",
    b'"\\ud83d\\ud83d\\ude00"': "\ufffd\U0001f600",
    b'"\\u00e9\\udfff\\u0041"': "\u00e9\ufffdA",
    b'"a\xff\xc3\xa9"': "a???",
}


@pytest.mark.parametrize("written", BROKEN)
async def test_broken_text_that_is_read_hides_no_object(written: bytes) -> None:
    """A genuine API server keeps half of a surrogate pair in what a ResourceClaim holds for drivers."""
    body = b'{"metadata":{"name":"c","resourceVersion":"1"},"status":%s}' % written
    async with KubeServer() as server, client_of(server) as client:
        listed = b'{"metadata":{"resourceVersion":"9"},"items":[%s,%s]}' % (body, plain("a"))
        server.fail(Fault(path=PODS_PATH, body=listed))
        listing = await client.list_all(Scope(PODS), into=Open)

    first, second = listing.items
    assert (first.status, second.status) == (BROKEN[written], "")
    (added,) = WatchDecoder(Open).feed(b'{"type":"ADDED","object":%s}\n' % body)
    assert isinstance(added, Added)
    assert added.object.status == BROKEN[written]


TEXTS = st.text(alphabet='[]{}"\\,:é\n', max_size=6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=30,
)


def cut(value: Any, level: int) -> Any:
    """The value without what is below a level."""
    if not isinstance(value, dict | list):
        return value
    if level > SHALLOW:
        return 0
    if isinstance(value, dict):
        return {key: cut(one, level + 1) for key, one in value.items()}
    return [cut(one, level + 1) for one in value]


@given(VALUES, st.integers(0, 12), st.integers(1, 40))
def test_all_that_is_not_too_deep_stays_as_it_is(value: Any, around: int, block: int) -> None:
    """This holds for any quotation marks and brackets in texts, and any ends of blocks of work."""
    for number in range(around):
        value = [value, '"]'] if number % 2 else {'\\"{': value}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("partage.kube.lenient._DEEPEST", SHALLOW)
        patch.setattr("partage.kube.lenient._BLOCK", block)
        found = repaired(json.dumps(value, ensure_ascii=False).encode())

    assert json.loads(found) == cut(value, 1)


@given(st.binary(max_size=60))
def test_what_is_no_json_is_no_traceback(data: bytes) -> None:
    """The decoder says what is wrong with it."""
    repaired(data)


HALF = re.compile(r"[\ud800-\udfff]")


@given(st.text(st.characters(codec=None), max_size=30), st.integers(1, 20))
def test_only_halves_that_stand_alone_are_replaced(text: str, block: int) -> None:
    """This holds for any text around them, and any ends of blocks of work."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("partage.kube.lenient._BLOCK", block)
        found = json.loads(repaired(json.dumps([text, "x" * 12, text]).encode()))

    wanted = HALF.sub("\ufffd", json.loads(json.dumps(text)))
    assert found == [wanted, "x" * 12, wanted]


def test_a_repair_looks_at_no_single_character() -> None:
    """A user may write a megabyte of escapes beside an odd part, and change the object again and again."""
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    texts = (b"\\n", b'\\"', b"\\\\", b"\\ud83d", b"\\ud83d\\ude00", b"\xff", b"x\\n")
    for text in (b"first", *texts):
        body = b'{"metadata":{"name":"c","resourceVersion":"1"},"a":%s,"b":"\\ud800","c":"%s"}'
        body %= nested(1_500), text * 100_000
        calls = 0
        sys.setprofile(count)
        try:
            (added,) = WatchDecoder(Open).feed(b'{"type":"ADDED","object":%s}\n' % body)
        finally:
            sys.setprofile(None)
        assert isinstance(added, Added)
        assert text == b"first" or calls < 200  # the first imports NumPy and makes a decoder
