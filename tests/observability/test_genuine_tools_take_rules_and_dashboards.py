"""What Prometheus and Grafana themselves say of the rules, the dashboards and the page's configuration.

Prometheus' server and promtool come from Debian; Grafana's server is in no package registry, so
its own published types of dashboards stand for it, of three generations (`tests/tools/watching`).
"""

import asyncio
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import generate
import pytest
import yaml
from page_blocks import BLOCKS

from fakes.ports import free_port
from partage.embedded.cluster import EmbeddedCluster, Plan
from partage.embedded.manifests import examples, read

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"

CACHE = Path(os.environ.get("PARTAGE_TOOLS", str(Path.home() / ".cache/partage/tools")))
WATCHING = CACHE / "prometheus/usr/bin"
TYPES = CACHE / "grafana-types"
FETCH = "tests/tools/watching/fetch brings it"
GENERATIONS = ("grafana-11", "grafana-12", "grafana-13")
PATIENCE = 240.0


def tool(name: str) -> str:
    """Where a program of Prometheus is; empty where it is not."""
    own = WATCHING / name
    return str(own) if own.is_file() else shutil.which(name) or ""


needs_promtool = pytest.mark.skipif(not tool("promtool"), reason=f"no promtool: {FETCH}")
needs_prometheus = pytest.mark.skipif(not tool("prometheus"), reason=f"no prometheus: {FETCH}")
needs_types = pytest.mark.skipif(
    not (TYPES / "node_modules/.bin/tsc").exists() or not shutil.which("node"),
    reason=f"no types of Grafana: {FETCH}",
)


def promtool(*arguments: str) -> None:
    """Run it beside the rules.

    Raises:
        AssertionError: it finds a fault; says which.
    """
    done = subprocess.run(
        [tool("promtool"), *arguments],
        cwd=DEPLOY / "observability",
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


@needs_promtool
@pytest.mark.parametrize("what", [("check", "alerts.yaml"), ("test", "alerts_test.yaml")])
def test_promtool_takes_the_rules_and_they_fire_as_told(what: tuple[str, str]) -> None:
    """Prometheus' own checker, and its unit tests of rules."""
    verb, file = what

    promtool(verb, "rules", file)


@needs_promtool
def test_promtool_takes_what_the_page_has_prometheus_read(tmp_path: Path) -> None:
    """Both blocks of the page are one configuration; where its files are is the reader's."""
    shown = [
        b.text for b in BLOCKS if b.page == "docs/how-to/watch-it.md" and b.language == "yaml"
    ]
    file = tmp_path / "prometheus.yaml"
    file.write_text("".join(shown), encoding="utf-8")

    promtool("check", "config", "--syntax-only", str(file))


# --- Grafana's types -----------------------------------------------------------------------------

_PLAIN = """
type Plain<T> = T extends string ? `${T}` : T extends (infer U)[] ? Plain<U>[]
  : T extends object ? { [K in keyof T]: Plain<T[K]> } : T;
"""
"""A type as JSON has it: an enum is one of its texts."""


def checked(generation: str, folder: Path, dashboards: dict[str, str]) -> list[str]:
    """What the compiler finds wrong with dashboards, by the types of a generation of Grafana."""
    lines = [
        f'import type * as dash from "{generation}";',
        f'import type * as series from "./node_modules/{generation}/dist/esm/raw/composable/timeseries/panelcfg/x/TimeSeriesPanelCfg_types.gen";',
        _PLAIN,
    ]
    for number, text in enumerate(dashboards.values()):
        board = json.loads(text)
        panels = board.pop("panels")
        lines.append(typed(f"b{number}", 'Omit<Plain<dash.Dashboard>, "panels">', board))
        for at, panel in enumerate(panels):
            if panel["type"] == "row":
                lines.append(typed(f"b{number}p{at}", "Plain<dash.RowPanel>", panel))
                continue
            custom = panel["fieldConfig"]["defaults"].pop("custom", None)
            lines.append(typed(f"b{number}p{at}", "Plain<dash.Panel>", panel))
            if custom is not None:
                assert panel["type"] == "timeseries"
                lines.append(typed(f"b{number}c{at}", "Plain<series.FieldConfig>", custom))
    (folder / "node_modules").symlink_to(TYPES / "node_modules")
    (folder / "boards.ts").write_text("\n".join(lines), encoding="utf-8")
    done = subprocess.run(
        [
            str(TYPES / "node_modules/.bin/tsc"),
            "--noEmit",
            "--strict",
            "--skipLibCheck",
            "--module",
            "esnext",
            "--moduleResolution",
            "bundler",
            "--target",
            "es2022",
            "--preserveSymlinks",
            "boards.ts",
        ],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode == 0) == (not done.stdout), done.stdout + done.stderr
    return done.stdout.splitlines()


def typed(name: str, kind: str, value: Any) -> str:
    """A constant that the compiler compares with a type, unknown keys included."""
    return f"export const {name}: {kind} = {json.dumps(value)};"


@needs_types
@pytest.mark.parametrize("generation", GENERATIONS)
def test_the_dashboards_are_of_grafanas_own_types(generation: str, tmp_path: Path) -> None:
    """Every key is known to that generation, and has a value that it takes."""
    assert checked(generation, tmp_path, generate.dashboards()) == []


WRONG = (
    (r'"gridPos"', '"gridPosition"', "gridPosition"),
    (r'"absolute"', '"relative"', '"relative"'),
    (r'"refresh": "30s"', '"refreshes": "30s"', "refreshes"),
    (
        r'"fillOpacity": \d+',
        '"fillOpacity": "much"',
        "'string' is not assignable to type 'number'",
    ),
)
"""A key, a word, a key of the whole and a kind of value: what is replaced by what, and what is said of it."""


@needs_types
def test_wrong_dashboards_are_noticed(tmp_path: Path) -> None:
    """The check can fail."""
    boards = {
        f"{right} {name}": re.sub(right, wrong, text)
        for right, wrong, _ in WRONG
        for name, text in generate.dashboards().items()
    }

    said = checked("grafana-13", tmp_path, boards)

    for _, _, told in WRONG:
        assert any(told in line for line in said), told


# --- Prometheus itself ---------------------------------------------------------------------------

ELSEWHERE = ("partage_webhook_", "partage_agent_", "container_gpu_")
"""Series of programs that are not in the embedded cluster's process."""
_WINDOW = "15s"


@contextmanager
def prometheus(folder: Path, target: str) -> Iterator[str]:
    """A server that scrapes one program every second, with the alert rules; its address."""
    config = {
        "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
        "rule_files": [str(DEPLOY / "observability/alerts.yaml")],
        "scrape_configs": [{"job_name": "partage", "static_configs": [{"targets": [target]}]}],
    }
    (folder / "prometheus.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    port = free_port()
    with (folder / "prometheus.log").open("w") as log:
        server = subprocess.Popen(
            [
                tool("prometheus"),
                f"--config.file={folder / 'prometheus.yaml'}",
                f"--storage.tsdb.path={folder / 'data'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        try:
            server.wait(20)
        except subprocess.TimeoutExpired:
            server.kill()
            server.wait()


@asynccontextmanager
async def cluster() -> Any:
    """The embedded cluster with the examples, at rest."""
    found = read([*examples()])
    plan = Plan(simulated=tuple(found.simulated), objects=tuple(found.objects))
    async with EmbeddedCluster(plan) as made:
        assert await made.settled(PATIENCE)
        yield made


async def asked(http: aiohttp.ClientSession, url: str, **query: str) -> Any:
    """What an address of Prometheus answers; None while it does not."""
    try:
        async with http.get(url, params=query) as answer:
            text = await answer.text()
            assert answer.status in (200, 503), f"{query}: {text}"
            return json.loads(text)["data"] if answer.status == 200 else None
    except aiohttp.ClientConnectionError:
        return None


async def scraped(http: aiohttp.ClientSession, url: str) -> bool:
    """Whether there are enough samples for a rate, and every alert was evaluated."""
    seen = await asked(
        http, f"{url}/api/v1/query", query="count_over_time(partage_leader[1m]) > 4"
    )
    rules = await asked(http, f"{url}/api/v1/rules")
    return bool(seen and seen["result"] and rules) and all(
        rule["health"] != "unknown" for group in rules["groups"] for rule in group["rules"]
    )


async def numbers(http: aiohttp.ClientSession, url: str, expression: str, end: float) -> list[Any]:
    """What an expression gives; where it must give something, once it does: after a missed scrape there is no rate.

    Args:
        http: for the question.
        url: Prometheus's.
        expression: as a panel has it.
        end: when to give up, by the loop.
    """
    while True:
        answer = await asked(http, f"{url}/api/v1/query", query=expression)
        found = list(answer["result"]) if answer else []
        known = found or (answer and elsewhere(expression))
        if known or asyncio.get_running_loop().time() >= end:
            return found
        await asyncio.sleep(0.2)


def elsewhere(expression: str) -> bool:
    """Whether its series are of a program that is not there."""
    return any(name in expression for name in ELSEWHERE)


def expressions() -> Iterator[tuple[str, str]]:
    """Title of each panel and its expression, with Grafana's variables as it would fill them in."""
    for text in generate.dashboards().values():
        for panel in json.loads(text)["panels"]:
            for target in panel.get("targets", ()):
                plain = (
                    target["expr"]
                    .replace("$__rate_interval", _WINDOW)
                    .replace("[1d:1m]", "[1m:1s]")
                )
                yield panel["title"], plain.replace('=~"$node"', '=~".*"')


@needs_prometheus
def test_prometheus_scrapes_and_answers_what_panels_ask(tmp_path: Path) -> None:
    """All that are over series of the scheduler give numbers, and every alert is evaluated."""

    async def story() -> tuple[dict[tuple[str, str], list[Any]], Any]:
        async with cluster() as made, aiohttp.ClientSession() as http:
            target = made.addresses.scheduler.removeprefix("http://")
            with prometheus(tmp_path, target) as url:
                async with asyncio.timeout(PATIENCE):
                    while not await scraped(http, url):  # noqa: ASYNC110 # another process's
                        await asyncio.sleep(0.2)
                end = asyncio.get_running_loop().time() + PATIENCE
                found = {
                    (title, expression): await numbers(http, url, expression, end)
                    for title, expression in expressions()
                }
                return found, await asked(http, f"{url}/api/v1/rules")

    found, judged = asyncio.run(story())

    assert len(found) > 25
    for asked_for, series in found.items():
        assert bool(series) != elsewhere(asked_for[1]), asked_for
    every = [rule for group in judged["groups"] for rule in group["rules"]]
    assert {rule["health"] for rule in every} <= {"ok"}
