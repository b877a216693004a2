"""How long simulated containers run and how they end, read from commands and annotations, and what follows."""

from typing import Any

import pytest
from up_world import PODS, node, pod, run, running

from partage.embedded.lifetimes import FOREVER, Course, course, duration, lifetime
from partage.embedded.pod_status import Life, started
from partage.embedded.turns import Ran, Turn, followed, length, pause, turn_of
from partage.vendors import names


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30", 30.0),
        ("1.5s", 1.5),
        ("5m", 300.0),
        ("1h30m", 5400.0),
        ("2d", 172800.0),
        ("250ms", 0.25),
        (" 10s ", 10.0),
        ("", None),
        ("soon", None),
        ("5m later", None),
        ("-5s", None),
        ("1.2.3", None),
        ("s", None),
    ],
)
def test_a_duration_is_read(text: str, seconds: float | None) -> None:
    """Numbers with units, or seconds; nothing else."""
    assert duration(text) == seconds


@pytest.mark.parametrize(
    ("words", "seconds"),
    [
        (["sleep", "30"], 30.0),
        (["sleep", "365d"], 365 * 86400.0),
        (["sleep", "infinity"], FOREVER),
        (["/bin/sleep", "1m", "30s"], 90.0),
        (["bash", "-c", "sleep 86400"], 86400.0),
        (["/bin/sh", "-c", "sleep 5;"], 5.0),
        (["sh", "-c", "echo hello; sleep 5"], FOREVER),
        (["python", "train.py"], FOREVER),
        ([], FOREVER),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, list) else None,
)
def test_a_command_that_sleeps_ends(words: list[str], seconds: float) -> None:
    """Commands of demonstrations, as the MetaX and HAMi documents write them; any other runs on."""
    assert course({"command": words[:1], "args": words[1:]}) == Course(seconds)


@pytest.mark.parametrize(("text", "seconds"), [("3s", 3.0), ("whenever", None)])
def test_an_annotation_decides_for_the_pod(text: str, seconds: float | None) -> None:
    """What cannot be read decides nothing."""
    assert lifetime({"metadata": {"annotations": {names.SIMULATE_LIFETIME: text}}}) == seconds
    assert lifetime({"metadata": {}}) is None


@pytest.mark.parametrize(
    ("script", "seconds", "code"),
    [
        ("exit 3", 0.0, 3),
        ("exit 256", 0.0, 0),
        ("true", 0.0, 0),
        ("false", 0.0, 1),
        ("sleep 5; exit 1", 5.0, 1),
        ("sleep 5 && exit 2", 5.0, 2),
        ("sleep 5\nexit 2\n", 5.0, 2),
        ("sleep 5 &&\n exit 2", 5.0, 2),
        ("sleep 5 || exit 2", 5.0, 0),
        ("false && sleep 5", 0.0, 1),
        ("false || sleep 5", 5.0, 0),
        ("false; exit", 0.0, 1),
        ("exit 1; python train.py", 0.0, 1),
        ("sleep infinity; exit 1", FOREVER, 1),
        ("python train.py; exit 1", FOREVER, 0),
        ("exit many", FOREVER, 0),
        ("sleep 5 & exit 1", FOREVER, 0),
        ("", FOREVER, 0),
    ],
)
def test_a_script_ends_as_it_exits(script: str, seconds: float, code: int) -> None:
    """Steps count that are reached; a script with one that cannot be read runs on."""
    assert course({"command": ["sh", "-c", script]}) == Course(seconds, code)


def test_a_program_that_fails_needs_no_shell() -> None:
    """`exit` is none."""
    assert course({"command": ["/bin/false"]}) == Course(0.0, 1)
    assert course({"command": ["true"]}) == Course(0.0, 0)
    assert course({"command": ["exit", "1"]}) == Course()


@pytest.mark.parametrize(
    ("policy", "code", "restarts", "comes"),
    [
        ("Never", 1, 0, Turn("a", 0, over=Ran("a", "b", 1))),
        ("Never", 0, 0, Turn("a", 0, over=Ran("a", "b", 0))),
        ("OnFailure", 0, 2, Turn("a", 2, over=Ran("a", "b", 0))),
        ("OnFailure", 1, 0, Turn("b", 1, last=Ran("a", "b", 1))),
        ("OnFailure", 1, 1, Turn("a", 1, last=Ran("a", "b", 1), waits=True)),
        ("Always", 1, 1, Turn("a", 1, last=Ran("a", "b", 1), waits=True)),
        ("Always", 0, 1, Turn("b", 2, last=Ran("a", "b", 0))),
    ],
)
def test_the_policy_says_what_follows_an_end(
    policy: str, code: int, restarts: int, comes: Turn
) -> None:
    """What failed is started again at once the first time, and after a pause later."""
    assert followed(Turn("a", restarts), Course(1.0, code), policy, "b") == comes


def test_pauses_grow_to_a_bound() -> None:
    """After a pause the container runs again; one that ran for ten minutes gets none."""
    pauses = [pause(Turn("a", restarts)) for restarts in (1, 2, 3, 4, 5, 6, 7, 1000)]
    assert pauses == [10, 20, 40, 80, 160, 300, 300, 300]

    waiting = Turn("a", 1, last=Ran("a", "b", 1), waits=True)
    assert length(waiting, Course(0.0, 1), "Always") == 10.0
    assert followed(waiting, Course(0.0, 1), "Always", "c") == Turn("c", 2, last=waiting.last)
    assert not followed(Turn("a", 5), Course(600.0, 1), "Always", "b").waits
    assert length(Turn("a"), Course(0.0, 1), "Always") == 1.0
    assert length(Turn("a", over=Ran("a", "b")), Course(), "Never") == FOREVER


@pytest.mark.parametrize(
    "turn",
    [
        Turn("a"),
        Turn("b", 2, last=Ran("a", "b", 1)),
        Turn("a", 2, last=Ran("a", "b", 1), waits=True),
        Turn("a", 1, over=Ran("a", "b", 3), last=Ran("z", "a", 1)),
    ],
)
def test_what_a_status_says_goes_on(turn: Turn) -> None:
    """A cluster whose state was kept finds each container where it was."""
    status = started(pod("web"), Life("a", "10.0.0.1", (turn,)), "c")
    assert turn_of(status["containerStatuses"][0]) == turn
    assert turn_of({"state": {"waiting": {"reason": "ContainerCreating"}}}) is None


def test_pods_fail_as_their_commands_do() -> None:
    """They fail for good, once every container has ended; or again and again, with a pause."""

    def script(text: str) -> dict[str, Any]:
        return {"command": ["sh", "-c", text]}

    async def story() -> None:
        async with running([node()]) as w:
            both = pod("both", container=script("exit 3"), restartPolicy="Never")
            other = {"name": "other", "image": "busybox", **script("sleep 0.2")}
            both["spec"]["containers"].append(other)
            await w.create(PODS, both)
            await w.create(PODS, pod("loops", container=script("exit 1")))
            await w.create(PODS, pod("once", container=script("true"), restartPolicy="OnFailure"))

            found = (await w.phase("both", "Failed"))["status"]
            ended = [one["state"]["terminated"] for one in found["containerStatuses"]]
            assert [(one["exitCode"], one["reason"]) for one in ended] == [
                (3, "Error"),
                (0, "Completed"),
            ]
            assert {c["reason"] for c in found["conditions"] if c["type"] == "Ready"} == {
                "PodFailed"
            }
            await w.phase("once", "Succeeded")

            looped = await w.until("loops", lambda one: "waiting" in state(one))
            (told,) = looped["status"]["containerStatuses"]
            assert told["state"]["waiting"]["reason"] == "CrashLoopBackOff"
            assert told["state"]["waiting"]["message"].startswith("back-off 10s restarting failed")
            assert told["lastState"]["terminated"]["exitCode"] == 1
            assert (told["restartCount"], told["ready"]) == (1, False)
            assert looped["status"]["phase"] == "Running"

    def state(found: dict[str, Any]) -> dict[str, Any]:
        (one,) = found["status"].get("containerStatuses") or [{"state": {}}]
        return dict(one["state"])

    run(story())
