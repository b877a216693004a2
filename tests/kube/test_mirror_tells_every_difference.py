"""The mirror alone: lists and events in, changes out. Laws first, then the named cases."""

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kube_builders import Pod, PodMeta, PodSpec

from partage.kube import mirror as mirror_module
from partage.kube.frames import Added, Bookmark, Deleted, Frame, Malformed, Modified
from partage.kube.mirror import Change, Gone, Mirror, Odd, Seen, Synced, WentBack, is_newer
from partage.kube.objects import Key, Listing, Meta, Undecodable


def thing(name: str, version: int | str, uid: str | None = None, priority: int = 0) -> Pod:
    """A pod in namespace `ns`."""
    meta = PodMeta(name, "ns", uid or f"uid-{name}", str(version))
    return Pod(meta, PodSpec(priority=priority))


def listing(version: int, *items: Pod, odd: Sequence[Undecodable] = ()) -> Listing[Pod]:
    """A list read at this version."""
    return Listing(items, str(version), tuple(odd))


def mirror_of(version: int, *items: Pod) -> Mirror[Pod]:
    """A mirror that has just taken over a list."""
    made: Mirror[Pod] = Mirror()
    made.replace(listing(version, *items))
    return made


def bookmark(version: int) -> Bookmark:
    """A bookmark of this version."""
    document = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(version)}}}
    return msgspec.convert(document, Bookmark)


@dataclass
class Believer:
    """An observer that knows only what it receives, and checks that it makes sense."""

    known: dict[str, Pod]

    def hear(self, changes: Sequence[Change[Pod]]) -> None:
        """Believe the changes."""
        for change in changes:
            if isinstance(change, Seen):
                meta = change.object.metadata
                before = self.known.get(meta.name)
                assert change.previous == before
                assert before is None or before.metadata.uid == meta.uid
                self.known[meta.name] = change.object
            elif isinstance(change, Gone):
                held = self.known.pop(change.object.metadata.name)
                assert held.metadata.uid == change.object.metadata.uid


NAMES = st.sampled_from("abc")
STEP = st.tuples(st.sampled_from(["put", "put", "delete", "recreate"]), NAMES)


def history(steps: Sequence[tuple[str, str]]) -> tuple[list[Frame[Pod]], list[dict[str, Pod]]]:
    """What a server would send, and what it holds after each event."""
    held: dict[str, Pod] = {}
    frames: list[Frame[Pod]] = []
    states: list[dict[str, Pod]] = [{}]
    version = 0
    for index, (step, name) in enumerate(steps):
        if step != "put" and name in held:
            version += 1
            last = held.pop(name)
            frames.append(Deleted(thing(name, version, last.metadata.uid)))
            states.append(dict(held))
        if step != "delete":
            version += 1
            before = held.get(name)
            uid = before.metadata.uid if before else f"uid-{index}"
            held[name] = thing(name, version, uid)
            frames.append(Modified(held[name]) if before else Added(held[name]))
            states.append(dict(held))
    return frames, states


@given(steps=st.lists(STEP, max_size=12), data=st.data())
def test_who_is_told_believes_what_the_server_holds(
    steps: list[tuple[str, str]], data: st.DataObject
) -> None:
    """It does so after a list at any moment, lost stretches with new lists, and repeated events."""
    frames, states = history(steps)
    mirror: Mirror[Pod] = Mirror()
    believer = Believer({})
    at = 0
    while at < len(states):
        state = states[at]
        believer.hear(mirror.replace(listing(at, *state.values())))
        assert believer.known == state
        until = data.draw(st.integers(at, len(frames)), label="watched until")
        back = data.draw(st.integers(0, at), label="replayed from")
        for frame in (*frames[back:at], *frames[at:until], *frames[at:until]):
            believer.hear(mirror.apply([frame]))
        assert believer.known == states[until]
        assert {key.name: item for key, item in mirror.objects.items()} == states[until]
        if until == len(frames):
            break
        at = data.draw(st.integers(until + 1, len(frames)), label="gap until")


@given(steps=st.lists(STEP, max_size=10), data=st.data())
def test_reordered_events_end_in_the_same_state(
    steps: list[tuple[str, str]], data: st.DataObject
) -> None:
    """Each object's newest event wins, in whatever order they come."""
    frames, states = history(steps)
    shuffled = data.draw(st.permutations(frames))
    mirror: Mirror[Pod] = Mirror()
    mirror.replace(listing(0))

    Believer({}).hear(mirror.apply(shuffled))

    assert {key.name: item for key, item in mirror.objects.items()} == states[-1]


@given(
    old=st.dictionaries(NAMES, st.integers(1, 3)), new=st.dictionaries(NAMES, st.integers(1, 3))
)
def test_a_relist_tells_the_set_difference(old: dict[str, int], new: dict[str, int]) -> None:
    """Vanished, changed and new objects, each once; nothing for those that are the same."""
    mirror = mirror_of(9, *(thing(name, version) for name, version in old.items()))
    new = {name: v if v == old.get(name) else v + 9 for name, v in new.items()}

    changes = mirror.replace(listing(19, *(thing(n, version) for n, version in new.items())))

    gone = {c.object.metadata.name for c in changes if isinstance(c, Gone)}
    seen = {c.object.metadata.name for c in changes if isinstance(c, Seen)}
    assert gone == old.keys() - new.keys()
    assert seen == {name for name in new if new[name] != old.get(name)}
    assert changes[-1] == Synced("19")


def test_the_first_list_tells_all() -> None:
    """Each object is new, then the marker."""
    mirror: Mirror[Pod] = Mirror()

    changes = mirror.replace(listing(5, thing("a", 3)))

    assert changes == [Seen(thing("a", 3)), Synced("5")]
    assert mirror.resource_version == "5"
    assert mirror.objects[Key("ns", "a")] == thing("a", 3)


def test_a_change_comes_with_the_state_before() -> None:
    """An observer that counts can then undo it."""
    mirror = mirror_of(1, thing("a", 1))

    assert mirror.apply([Modified(thing("a", 2))]) == [Seen(thing("a", 2), thing("a", 1))]


@pytest.mark.parametrize("kind", [Added, Modified], ids=["added", "modified"])
def test_an_old_or_repeated_event_changes_nothing(kind: type[Added[Pod]]) -> None:
    """The newest state stays."""
    mirror = mirror_of(5, thing("a", 5))

    assert mirror.apply([kind(thing("a", 5)), kind(thing("a", 4))]) == []


def test_a_late_event_does_not_bring_an_object_back() -> None:
    """Its deletion is remembered."""
    mirror = mirror_of(1, thing("a", 1))

    mirror.apply([Deleted(thing("a", 3))])

    assert mirror.apply([Modified(thing("a", 2)), Deleted(thing("a", 3))]) == []
    assert mirror.apply([Added(thing("a", 4, "new"))]) == [Seen(thing("a", 4, "new"))]


def test_deletions_out_of_order_leave_the_newest_remembered() -> None:
    """The end of an earlier object does not hide that of a later one."""
    mirror = mirror_of(1)

    mirror.apply([Deleted(thing("a", 4, "second")), Deleted(thing("a", 2, "first"))])

    assert mirror.apply([Modified(thing("a", 3, "second"))]) == []


def test_a_deletion_tells_the_last_state() -> None:
    """It does so even with the version of the last change, as old servers send it."""
    mirror = mirror_of(1, thing("a", 1), thing("b", 1))

    changes = mirror.apply([Deleted(thing("a", 2, priority=7)), Deleted(thing("b", 1))])

    assert changes == [Gone(thing("a", 2, priority=7)), Gone(thing("b", 1))]


def test_a_late_deletion_does_not_touch_what_is_newer() -> None:
    """It ends neither the same object, changed since, nor another of its name."""
    mirror = mirror_of(9, thing("a", 9), thing("b", 9, "new"))

    assert mirror.apply([Deleted(thing("a", 8)), Deleted(thing("b", 8, "old"))]) == []


def test_a_deletion_of_a_later_object_ends_the_one_we_knew() -> None:
    """Its own deletion and the other's creation were missed."""
    mirror = mirror_of(1, thing("a", 1, "old"))

    changes = mirror.apply([Deleted(thing("a", 4, "new"))])

    assert changes == [Gone(thing("a", 1, "old"))]
    assert not mirror.objects


def test_another_object_of_the_same_name_ends_the_first() -> None:
    """The stream and a list report the same: first gone, then seen."""
    for changes in (
        mirror_of(1, thing("a", 1, "old")).apply([Added(thing("a", 2, "new"))]),
        mirror_of(1, thing("a", 1, "old")).replace(listing(2, thing("a", 2, "new")))[:-1],
    ):
        assert changes == [
            Gone(thing("a", 1, "old")),
            Seen(thing("a", 2, "new")),
        ]


def test_a_bookmark_moves_the_version_only_forward() -> None:
    """No change is reported."""
    mirror = mirror_of(5)

    assert mirror.apply([bookmark(9), bookmark(7)]) == []
    assert mirror.resource_version == "9"
    mirror.expire()
    assert mirror.resource_version == ""


def test_a_list_from_a_restored_cluster_is_believed() -> None:
    """Its versions may be smaller than ours; an object in an earlier state is another, and events count from there."""
    mirror = mirror_of(1000, thing("a", 900), thing("b", 7), thing("c", 950))

    changes = mirror.replace(listing(10, thing("a", 8), thing("b", 7)))

    assert changes == [
        WentBack("1000"),
        Gone(thing("a", 900)),
        Gone(thing("c", 950)),
        Seen(thing("a", 8)),
        Synced("10"),
    ]
    assert mirror.resource_version == "10"
    assert mirror.apply([Modified(thing("a", 11))]) == [Seen(thing("a", 11), thing("a", 8))]


@pytest.mark.parametrize(
    ("listed", "back"),
    [
        pytest.param([thing("a", 8)], True, id="an-earlier-state"),
        pytest.param([thing("a", 9), thing("b", 4)], True, id="a-deletion-undone"),
        pytest.param([thing("a", 9), thing("b", 11)], False, id="a-new-object"),
        pytest.param([thing("a", 12)], False, id="a-change"),
        pytest.param([], False, id="a-deletion"),
    ],
)
def test_a_store_that_went_back_shows_whatever_its_version(
    listed: list[Pod],
    back: bool,  # noqa: FBT001
) -> None:
    """After a restore as etcd advises it, the store begins with a version beyond all that it ever gave."""
    mirror = mirror_of(1, thing("b", 1))
    mirror.apply([Deleted(thing("b", 5)), Added(thing("a", 9))])
    mirror.expire()

    changes = mirror.replace(listing(1_000_000, *listed))

    assert (WentBack("9") in changes) is back


def odd(name: str, version: int, uid: str | None = None) -> Undecodable:
    """An object that is not a pod."""
    return Undecodable(Meta(name, "ns", uid or f"uid-{name}", str(version)), "Expected `int`")


def test_an_odd_object_is_told_and_its_last_state_kept() -> None:
    """The stream and a list report the same."""
    mirror = mirror_of(1, thing("a", 1))
    key = Key("ns", "a")

    in_stream = mirror.apply([Malformed(odd("a", 2), deleted=False)])
    in_list = mirror.replace(listing(5, odd=[odd("a", 2)]))

    assert in_stream == [Odd(key, odd("a", 2))]
    assert in_list == [Odd(key, odd("a", 2)), Synced("5")]
    assert mirror.objects[key] == thing("a", 1)


@pytest.mark.parametrize(
    "frame",
    [
        pytest.param(Malformed(odd("a", 2), deleted=True), id="deleted"),
        pytest.param(Malformed(odd("a", 1), deleted=True), id="deleted-at-the-same-version"),
        pytest.param(Malformed(odd("a", 2, "new"), deleted=False), id="another-object"),
    ],
)
def test_an_odd_event_still_frees_what_is_gone(frame: Malformed) -> None:
    """Being unable to read an object is no reason to keep what it replaced."""
    mirror = mirror_of(1, thing("a", 1))

    changes = mirror.apply([frame])

    assert changes[0] == Gone(thing("a", 1))
    assert not mirror.objects


def test_a_late_odd_event_is_nothing() -> None:
    """It counts as any late event."""
    assert mirror_of(5, thing("a", 5)).apply([Malformed(odd("a", 4), deleted=False)]) == []


def test_an_odd_object_in_a_list_ends_another_of_its_name() -> None:
    """The UID tells that the first is gone."""
    changes = mirror_of(1, thing("a", 1)).replace(listing(5, odd=[odd("a", 2, "new")]))

    assert changes[0] == Gone(thing("a", 1))


def test_remembered_deletions_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest is forgotten first."""
    monkeypatch.setattr(mirror_module, "_DELETIONS", 2)
    mirror = mirror_of(1)

    mirror.apply([Deleted(thing(name, 10 + index)) for index, name in enumerate("abc")])

    assert mirror.apply([Modified(thing("c", 5))]) == []
    assert mirror.apply([Modified(thing("a", 5))]) == [Seen(thing("a", 5))]


@pytest.mark.parametrize(
    ("version", "than", "newer"),
    [
        pytest.param("10", "9", True, id="by-number"),
        pytest.param("9", "10", False, id="older"),
        pytest.param("007", "7", False, id="leading-zeros"),
        pytest.param("9" * 5000, "8" * 5000, True, id="beyond-any-integer-limit"),
        pytest.param("abc", "abc", False, id="opaque-same"),
        pytest.param("abc", "9", True, id="opaque-different"),
        pytest.param(None, "", False, id="absent"),
        pytest.param("²", "1", True, id="a-digit-that-is-none"),
    ],
)
def test_versions_compare_as_numbers(version: str | None, than: str, newer: bool) -> None:  # noqa: FBT001
    """Versions that are no numbers are the same or not."""
    assert is_newer(version, than) is newer


def test_opaque_versions_still_delete() -> None:
    """A server whose versions are not numbers."""
    mirror = mirror_of(1, thing("a", "x"))

    assert mirror.apply([Deleted(thing("a", "y"))]) == [Gone(thing("a", "y"))]
