"""One look at a card: which step comes next, and what is never touched."""

import pytest

from partage.agent.mig.cdi import Spec
from partage.agent.mig.journal import CardJournal, Entry, Stage
from partage.agent.mig.nvml import ComputeInstance, GpuInstance, Mode
from partage.agent.mig.plan import Act, Observed, Obstacle, Plan, Step, Wanted, plan
from partage.vendors.mig import MIG_CARDS

AXIS = MIG_CARDS["A100-80GB"].axis
PLACE = AXIS.profile("2g.20gb").at(2)
NUMBER = AXIS.profile("2g.20gb").id
WANTED = (Wanted(PLACE, "a"),)
INTENT = Entry(PLACE, "a", Stage.INTENT, "1")
MADE = Entry(PLACE, "a", Stage.GPU_INSTANCE, "1", 5)
READY = Entry(PLACE, "a", Stage.READY, "1", 5, 0, "MIG-x")
EMPTY = GpuInstance(5, NUMBER, 2, 2)
FULL = GpuInstance(5, NUMBER, 2, 2, (ComputeInstance(0, "MIG-x"),))
OTHER = GpuInstance(5, NUMBER, 2, 2, (ComputeInstance(0, "MIG-y"),))
ON = Mode(current=True, pending=True)
OFF = Mode(current=False, pending=False)


def look(
    wanted: tuple[Wanted, ...],
    entry: Entry | None,
    *there: GpuInstance,
    specs: tuple[Spec, ...] = (),
    epoch: str = "1",
    mode: Mode = ON,
    keeps: bool = True,
) -> Plan:
    """The plan for a card with at most one entry."""
    journal = CardJournal("GPU-0", () if entry is None else (entry,))
    return plan(wanted, journal, Observed(epoch, mode, keeps, AXIS, there, specs))


def acts(found: Plan) -> list[Act]:
    """What the steps do."""
    return [step.act for step in found.steps]


SPEC = (Spec(2, "MIG-x"),)


@pytest.mark.parametrize(
    ("entry", "there", "specs", "expected"),
    [
        pytest.param(None, None, (), Step(Act.NOTE, INTENT), id="intent first"),
        pytest.param(INTENT, None, (), Step(Act.MAKE_GPU, INTENT, NUMBER), id="then it is made"),
        pytest.param(INTENT, EMPTY, (), Step(Act.NOTE, MADE), id="made before a crash"),
        pytest.param(MADE, EMPTY, (), Step(Act.MAKE_COMPUTE, MADE), id="half made"),
        pytest.param(MADE, None, (), Step(Act.NOTE, INTENT), id="made, and nothing is there"),
        pytest.param(READY, FULL, SPEC, None, id="ready"),
        pytest.param(READY, FULL, (), Step(Act.WRITE_SPEC, READY), id="specification lost"),
        pytest.param(READY, FULL, (Spec(2, "MIG-z"),), Step(Act.WRITE_SPEC, READY), id="stale"),
        pytest.param(
            READY, EMPTY, SPEC, Step(Act.REMOVE_SPEC, READY, start=2), id="compute instance gone"
        ),
        pytest.param(READY, EMPTY, (), Step(Act.NOTE, MADE), id="and made again"),
        pytest.param(READY, None, (), Step(Act.NOTE, INTENT), id="all gone, as after a reset"),
    ],
)
def test_the_next_step_follows_from_what_is_there(
    entry: Entry | None, there: GpuInstance | None, specs: tuple[Spec, ...], expected: Step | None
) -> None:
    """An instance that is wanted goes on from wherever it is."""
    found = look(WANTED, entry, *([] if there is None else [there]), specs=specs)

    assert found.steps == (() if expected is None else (expected,))
    assert not found.hindrances


@pytest.mark.parametrize(
    ("there", "specs", "expected"),
    [
        pytest.param(FULL, SPEC, Act.REMOVE_SPEC, id="the specification goes first"),
        pytest.param(FULL, (), Act.END_COMPUTE, id="then the compute instance"),
        pytest.param(EMPTY, (), Act.END_GPU, id="then the GPU instance"),
        pytest.param(None, (), Act.FORGET, id="then the journal"),
        pytest.param(OTHER, (), Act.FORGET, id="one of others is left there"),
    ],
)
def test_what_nobody_wants_is_removed_backwards(
    there: GpuInstance | None, specs: tuple[Spec, ...], expected: Act
) -> None:
    """Removing takes the steps back, and only those of our own instances."""
    assert acts(look((), READY, *([] if there is None else [there]), specs=specs)) == [expected]


@pytest.mark.parametrize(
    ("entry", "there", "epoch"),
    [
        pytest.param(INTENT, EMPTY, "2", id="made after a reboot"),
        pytest.param(INTENT, FULL, "1", id="complete, while ours was never made"),
        pytest.param(MADE, GpuInstance(6, NUMBER, 2, 2), "1", id="another number"),
        pytest.param(MADE, GpuInstance(5, AXIS.profile("1g.20gb").id, 2, 2), "1", id="profile"),
        pytest.param(READY, OTHER, "1", id="another UUID"),
        pytest.param(READY, FULL, "2", id="everything alike, after a reboot"),
    ],
)
def test_what_is_not_ours_is_never_ended(entry: Entry, there: GpuInstance, epoch: str) -> None:
    """Wanted or not: no step changes the device, and the instance is reported as foreign."""
    changing = {Act.END_GPU, Act.END_COMPUTE, Act.MAKE_COMPUTE}
    for wanted in ((), WANTED):
        found = look(wanted, entry, there, epoch=epoch)

        assert found.foreign == (there,)
        assert not changing & set(acts(found))


def test_somebody_elses_compute_instance_keeps_ours_alive() -> None:
    """A GPU instance of ours in which others made something is not ended."""
    shared = GpuInstance(
        5, NUMBER, 2, 2, (ComputeInstance(1, "MIG-y"), ComputeInstance(0, "MIG-x"))
    )
    left = GpuInstance(5, NUMBER, 2, 2, (ComputeInstance(1, "MIG-y"),))

    assert acts(look((), READY, shared)) == [Act.END_COMPUTE]
    assert acts(look((), READY, left)) == [Act.FORGET]


def test_a_place_that_is_being_freed_is_awaited() -> None:
    """The journal gets the next pod's intent only when the last one's instance is gone; until then a hindrance says so."""
    following = (Wanted(AXIS.profile("1g.10gb").at(3), "b"),)
    waiting = look(following, READY, FULL).hindrances

    assert [(h.owner, h.obstacle) for h in waiting] == [("b", Obstacle.CONFLICT)]
    assert "pod a still has 2g.20gb at 2" in waiting[0].message
    assert not look(following, None).hindrances
    assert acts(look(following, READY, FULL)) == [Act.END_COMPUTE]
    assert acts(look(following, READY)) == [Act.FORGET]
    assert acts(look(following, None)) == [Act.NOTE]


@pytest.mark.parametrize(
    ("wanted", "there", "mode", "keeps", "obstacle"),
    [
        (("9g.90gb", 0, 1), None, ON, True, Obstacle.PROFILE),
        (("2g.20gb", 1, 2), None, ON, True, Obstacle.PROFILE),
        (("2g.20gb", 2, 2), GpuInstance(1, 19, 3, 1), ON, True, Obstacle.FOREIGN),
        (("2g.20gb", 2, 2), None, OFF, True, Obstacle.MODE),
        (("2g.20gb", 2, 2), None, Mode(current=False, pending=True), True, Obstacle.MODE),
        (("2g.20gb", 2, 2), None, Mode(current=True, pending=False), False, Obstacle.MODE),
    ],
    ids=["profile", "start", "foreign", "mode off", "mode pending", "mode going"],
)
def test_what_cannot_be_made_is_hindered(
    wanted: tuple[str, int, int],
    there: GpuInstance | None,
    mode: Mode,
    keeps: bool,  # noqa: FBT001 # a column of the table
    obstacle: Obstacle,
) -> None:
    """No step is planned, and the hindrance says why."""
    one = Wanted(type(PLACE)(*wanted), "a")

    found = look((one,), None, *([] if there is None else [there]), mode=mode, keeps=keeps)

    assert not found.steps
    assert [(h.owner, h.obstacle) for h in found.hindrances] == [("a", obstacle)]
    assert found.hindrances[0].message


def test_of_two_records_for_one_place_the_first_counts() -> None:
    """The agent decides last: the later pod is hindered, unless its instance is there."""
    both = (*WANTED, Wanted(PLACE, "b"))

    found = look(both, None)
    reversed_ = look(tuple(reversed(both)), READY, FULL, specs=SPEC)

    assert found.steps == (Step(Act.NOTE, INTENT),)
    for each in (found, reversed_):
        assert [(h.owner, h.obstacle) for h in each.hindrances] == [("b", Obstacle.CONFLICT)]


def test_the_mode_is_ours_to_change_only_where_it_is_not_kept() -> None:
    """Noted first, then turned on; a mode that was on before is left on."""
    assert acts(look(WANTED, None, mode=OFF, keeps=False)) == [Act.NOTE_MODE]
    noted = CardJournal("GPU-0", (), "1")
    off = Observed("1", OFF, False, AXIS)
    assert acts(plan(WANTED, noted, off)) == [Act.MODE_ON]
    on = Observed("1", ON, False, AXIS)
    assert acts(plan((), noted, on)) == [Act.MODE_OFF]
    assert acts(plan((), CardJournal("GPU-0"), on)) == []
    assert acts(plan((), noted, Observed("1", ON, False, AXIS, (EMPTY,)))) == []
