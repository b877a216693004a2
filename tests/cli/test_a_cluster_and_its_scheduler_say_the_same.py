"""The service, and the engine over objects that any user may list, give the same answers."""

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner

from partage.cli import completion
from partage.cli.main import main

sys.path.append(str(Path(__file__).parents[1] / "embedded"))

from up_world import PATIENCE, PODS, World, node, pod, run, running

HALF = {"koordinator.sh/gpu-core": 50, "koordinator.sh/gpu-memory-ratio": 50}


async def told(world: World, *arguments: str, service: bool) -> tuple[int, Any]:
    """What a command says in JSON, asked in one of two ways; never by this loop's thread."""
    where = world.cluster.addresses
    way = ("--scheduler", where.scheduler) if service else ("--kubeconfig", where.kubeconfig)
    given = [*arguments, *way, "-o", "json"]
    result = await asyncio.to_thread(CliRunner().invoke, main, given)
    return result.exit_code, json.loads(result.stdout)


def without(document: Any, *keys: str) -> Any:
    """The document without what differs by nature."""
    return {key: value for key, value in document.items() if key not in keys}


def test_both_ways_agree() -> None:
    """A placed and a waiting pod, sums, nodes and pods are the same both ways."""

    async def story() -> None:
        async with running([node(cards=1)]) as world:
            await world.create(PODS, pod("fits", HALF))
            await world.phase("fits", "Running")
            await world.create(PODS, pod("waits", {"koordinator.sh/gpu": 100}))
            await world.refused("waits")

            for name, code in (("fits", 0), ("waits", 3)):
                one, first = await told(world, "explain", name, service=True)
                two, second = await told(world, "explain", name, service=False)
                own = ("answered_by", "kube_scheduler", "last_refusal")
                assert (one, two) == (code, code)
                assert without(first, *own) == without(second, *own)
            for what in (("top", "pods"), ("top", "cards"), ("inspect", "n0")):
                one, first = await told(world, *what, service=True)
                two, second = await told(world, *what, service=False)
                assert (one, two) == (0, 0)
                assert without(first, "history") == without(second, "history")

    run(story())


@pytest.mark.parametrize(
    ("named", "typed", "who"),
    [
        ("PARTAGE_SCHEDULER", "--kubeconfig", "the engine, over the objects of {api}"),
        ("PARTAGE_SERVICE", "--scheduler", "the scheduler service at {scheduler}"),
    ],
)
def test_a_typed_option_goes_before_the_environment(
    monkeypatch: pytest.MonkeyPatch, named: str, typed: str, who: str
) -> None:
    """A shell keeps the service of another cluster; the answer would be of that one, or there would be none."""
    monkeypatch.delenv("PARTAGE_SERVICE", raising=False)
    monkeypatch.delenv("PARTAGE_SCHEDULER", raising=False)
    monkeypatch.setenv(named, "http://127.0.0.1:9")

    async def story() -> None:
        async with running([node(cards=1)]) as world:
            where = world.cluster.addresses
            value = {"--kubeconfig": where.kubeconfig, "--scheduler": where.scheduler}[typed]
            asked = await asyncio.to_thread(CliRunner().invoke, main, ["top", typed, str(value)])
            told = who.format(api=where.api, scheduler=where.scheduler)
            assert (asked.exit_code, asked.stderr) == (0, f"answered by {told}\n")

    run(story())


def test_a_shell_completes_the_names_of_pods_and_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names in the typed namespace, and commands; without a server nothing, and at once."""
    monkeypatch.setattr(completion, "_SECONDS", PATIENCE)  # a busy machine's answer is one too

    def completed(*typed: str) -> set[str]:
        asked = ShellComplete(main, {}, "partage", "_PARTAGE_COMPLETE")
        return {item.value for item in asked.get_completions(list(typed[:-1]), typed[-1])}

    async def story() -> None:
        async with running([node(cards=1)]) as world:
            await world.create(PODS, pod("first", HALF))
            await world.create(PODS, pod("second", HALF))
            here = ("--kubeconfig", str(world.cluster.addresses.kubeconfig))

            assert await asyncio.to_thread(completed, "explain", *here, "fi") == {"first"}
            own = await asyncio.to_thread(completed, "explain", *here, "default/")
            assert own == {"default/first", "default/second"}
            assert await asyncio.to_thread(completed, "inspect", *here, "") == {"n0"}

    run(story())
    assert completed("explain", "--kubeconfig", "/nonexistent", "fi") == set()
    assert completed("comp") == {"completion"}
    assert completed("top", "") == {"nodes", "pods", "cards"}
    assert completed("top", "p") == {"pods"}


def test_each_shell_gets_its_script() -> None:
    """What click writes, for the variable that this program reads."""
    for shell in ("bash", "zsh", "fish"):
        said = CliRunner().invoke(main, ["completion", shell])
        assert said.exit_code == 0
        assert "_PARTAGE_COMPLETE" in said.stdout
