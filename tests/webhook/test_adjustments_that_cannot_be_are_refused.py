"""What a running pod asks its shares to be is judged when it is written: its form, its bounds, and what the pod has."""

import pytest
from reviews import Json, container, context, pod, review, validated

from partage.model.adjustment import least, most, within
from partage.model.allocation import Allocation, Grant, GrantMode
from partage.model.device import DeviceType
from partage.model.errors import InvalidValue
from partage.vendors import names
from partage.webhook.installation import VALIDATE, conditions
from partage.wire.adjustment import asked
from partage.wire.record import encode

GIB = 2**30
SHARE = Grant("main", DeviceType.GPU, 0, "GPU-0", 300, 4 * GIB, GrantMode.SHARE, protocol="hami")
SIDE = Grant("side", DeviceType.GPU, 0, "GPU-0", 100, GIB, GrantMode.SHARE, protocol="hami")
WHOLE = Grant("main", DeviceType.GPU, 0, "GPU-0", 1000, 16 * GIB, GrantMode.WHOLE)


def running(wish: str | None, *grants: Grant, status: str = "Running") -> Json:
    """A bound pod with a record, that asks."""
    record = encode(Allocation("u-1", "team", "web", "n1", grants))
    said = {names.ALLOCATION: record} | ({} if wish is None else {names.ADJUST: wish})
    meta = {"uid": "u-1", "annotations": said}
    return {**pod(container("main"), meta=meta, nodeName="n1"), "status": {"phase": status}}


def changed(wish: str, *grants: Grant) -> Json:
    """The answer to an annotation that is written."""
    before = running(None, *grants)
    return validated(review(running(wish, *grants), operation="UPDATE", before=before))


@pytest.mark.parametrize(
    ("wish", "why"),
    [
        ("", "is not compute=PERCENT or memory=BYTES"),
        ("60", "is not compute=PERCENT or memory=BYTES"),
        ("cores=60", "is not compute=PERCENT or memory=BYTES"),
        ("compute=0", "1 to 100"),
        ("compute=101", "1 to 100"),
        ("compute=1e2", "1 to 100"),
        ("compute=60%", "1 to 100"),
        ("compute=" + "9" * 2000, "1 to 100"),
        ("compute=" + "9" * 3000, "longer than"),
        ("memory=much", "memory=much"),
        ("memory=0", "whole number of MiB"),
        ("memory=-1Gi", "whole number of MiB"),
        ("memory=1k", "whole number of MiB"),
        ("compute=10,compute=20", "asked twice"),
        ("other/compute=10", "container other has no share"),
    ],
)
def test_what_cannot_be_is_refused_with_its_rule(wish: str, why: str) -> None:
    """Annotation, value and rule."""
    response = changed(wish, SHARE)

    assert not response["allowed"]
    assert f"annotation {names.ADJUST}" in response["status"]["message"]
    assert why in response["status"]["message"]


@pytest.mark.parametrize(
    "wish", ["compute=60", "memory=12Gi", " compute=60 , memory=512Mi", "main/compute=1"]
)
def test_what_can_be_is_admitted(wish: str) -> None:
    """Whether there is room is the scheduler's to say."""
    assert changed(wish, SHARE)["allowed"]


def test_whole_cards_and_unnamed_containers_are_refused_with_a_sentence() -> None:
    """Nothing of a whole card can be lowered, and of two containers one must be named."""
    assert "whole cards, hardware instances" in changed("compute=50", WHOLE)["status"]["message"]
    assert (
        "several containers have shares (main, side)"
        in changed("compute=50", SHARE, SIDE)["status"]["message"]
    )
    assert changed("side/compute=50", SHARE, SIDE)["allowed"]


def test_what_was_asked_before_holds_up_no_other_change() -> None:
    """An older release admitted it, or the webhook was away."""
    before = running("nonsense", SHARE)
    assert validated(review(running("nonsense", SHARE), operation="UPDATE", before=before))[
        "allowed"
    ]


def test_the_nodes_report_is_partages_alone() -> None:
    """A user who could write it could have amounts released that the node still enforces."""
    forged = running(None, SHARE)
    forged["metadata"]["annotations"][names.ENFORCED] = "{}"
    before = running(None, SHARE)
    response = validated(review(forged, operation="UPDATE", before=before))

    assert f"only Partage may write annotation {names.ENFORCED}" in response["status"]["message"]


def test_the_webhook_is_asked_where_the_annotation_changes() -> None:
    """This includes bound pods, whose other changes do not reach it."""
    (condition,) = conditions(VALIDATE, context())
    assert f"'{names.ADJUST}' in object.metadata.annotations" in condition["expression"]


def test_amounts_are_compared_one_by_one() -> None:
    """What is not named stays; grants of other devices cannot be compared."""
    wanted = asked("side/compute=40,main/memory=1Gi", (SHARE, SIDE))

    assert [(one.core_milli, one.memory_bytes) for one in wanted] == [(300, GIB), (400, GIB)]
    assert not within(wanted, (SHARE, SIDE))
    assert within(least(wanted, (SHARE, SIDE)), (SHARE, SIDE))
    assert within(wanted, most(wanted, (SHARE, SIDE)))
    with pytest.raises(InvalidValue):
        least((SHARE,), (SIDE,))
