"""Alerts and dashboards in deploy/observability stand on series and labels that programs export."""

import ast
import asyncio
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import generate
import pytest
import yaml

from reference.live import Exported, exported, routes_page, series_page

promql = pytest.importorskip("promql_parser", reason="promql-parser is not installed")

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"

RULES: list[dict[str, Any]] = [
    rule
    for group in yaml.safe_load((DEPLOY / "observability/alerts.yaml").read_text())["groups"]
    for rule in group["rules"]
]
CASES: list[dict[str, Any]] = yaml.safe_load(
    (DEPLOY / "observability/alerts_test.yaml").read_text()
)["tests"]
PAGE = (ROOT / "docs/how-to/react-to-an-alert.md").read_text(encoding="utf-8")
REFERENCE = "".join(
    (ROOT / f"docs/reference/{name}.md").read_text(encoding="utf-8")
    for name in ("metrics", "agent", "schedule", "controllers")
)
_VARIABLES = {"$__rate_interval": "5m", '=~"$node"': '=~".*"'}


MAKERS = ("Gauge", "Counter", "Histogram", "MetricFamily", "_gauge")
"""How the names of what makes a series end."""
OTHERS = "DCGM_"
"""How the series of NVIDIA's exporter begin, which a panel joins with ours."""


class Use(NamedTuple):
    """One series as an expression selects it."""

    name: str
    equal: dict[str, str]
    labels: set[str]


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    """What live programs export."""
    return asyncio.run(exported(tmp_path_factory.mktemp("tls")))


def named() -> dict[str, str]:
    """Every series that the program makes under a name that it spells, and the module that does."""
    found = {}
    for path in sorted((ROOT / "src/partage").rglob("*.py")):
        for call in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if (
                not isinstance(call, ast.Call)
                or not isinstance(call.func, ast.Name)
                or not call.args
            ):
                continue
            first = call.args[0]
            name = first.value if isinstance(first, ast.Constant) else None
            if call.func.id.endswith(MAKERS) and str(name).startswith("partage_"):
                found[str(name)] = path.name
    return found


def test_every_series_that_the_program_makes_is_asked_for(live: Exported) -> None:
    """The page has what the programs that were asked export; none may be forgotten there."""
    spelled = named()
    exported_ = {name.removesuffix("_total") for _, name in live.families}

    assert {"isolation_status.py", "mps.py", "metrics.py"} <= set(spelled.values())
    missing = {name: where for name, where in spelled.items() if name not in exported_}
    assert not missing, f"not on docs/reference/series.md: {missing}"


@pytest.mark.parametrize(
    ("name", "page"), [("routes.md", routes_page), ("series.md", series_page)]
)
def test_the_made_pages_are_what_live_programs_answer(
    name: str, page: Callable[[Exported], str], live: Exported
) -> None:
    """`make reference` brings docs/reference up to date."""
    assert (ROOT / "docs/reference" / name).read_text("utf-8") == page(live), (
        "run `make reference`"
    )


def test_every_series_of_the_service_is_explained(live: Exported) -> None:
    """Each has a row in the page of metrics; those of agents are in the made page of all series alone."""
    page = (ROOT / "docs/reference/metrics.md").read_text("utf-8")
    ours = {name for program, name in live.families if program != "agent"}

    assert {
        name for name in ours if name.startswith("partage_") and f"`{name}" not in page
    } == set()


def test_every_path_is_explained(live: Exported) -> None:
    """Each has a row in docs/reference/http.md."""
    page = (ROOT / "docs/reference/http.md").read_text("utf-8")
    told = {
        path.rstrip("/").replace("{", "<").replace("}", ">")
        for path in (r.path for r in live.routes)
    }

    assert {path for path in told if f"{path}`" not in page} == set()


def _expressions() -> Iterator[tuple[str, str, str]]:
    """The place, the expression, and the text that names labels of its result."""
    for rule in RULES:
        yield rule["alert"], rule["expr"], str(rule["annotations"])
    for uid, text in generate.dashboards().items():
        for panel in json.loads(text)["panels"]:
            for target in panel.get("targets", ()):
                plain = target["expr"]
                for variable, value in _VARIABLES.items():
                    plain = plain.replace(variable, value)
                yield f"{uid} {panel['title']}", plain, target["legendFormat"]


EXPRESSIONS = list(_expressions())


def uses(expression: str) -> list[Use]:
    """The series that an expression selects."""
    found: list[Use] = []

    def enter(node: Any) -> bool:
        if isinstance(node, promql.VectorSelector):
            matchers = node.matchers.matchers
            equal = {m.name: m.value for m in matchers if m.op == promql.MatchOp.Equal}
            found.append(Use(node.name, equal, {m.name for m in matchers}))
        return True

    promql.walk(promql.parse(expression), enter)
    return found


def grouped(expression: str) -> set[str]:
    """Labels in `by`, `on` and `ignoring`."""
    lists = re.findall(r"\b(?:by|on|ignoring)\s*\(([^)]*)\)", expression)
    return {label.strip() for names in lists for label in names.split(",")}


@pytest.mark.parametrize(
    ("where", "expression", "text"), EXPRESSIONS, ids=[e[0] for e in EXPRESSIONS]
)
def test_every_series_and_label_is_exported(
    where: str, expression: str, text: str, live: Exported
) -> None:
    """A selected series has the labels by which it is selected, grouped and shown."""
    selected = [use for use in uses(expression) if not use.name.startswith(OTHERS)]
    assert selected, where
    for use in selected:
        assert use.name in live.series, f"{where}: no program exports {use.name}"
        labels = live.labels([use.name])
        for label in use.labels:
            assert label in labels, f"{where}: {use.name} has no label {label}"
        for label, value in use.equal.items():
            known = value in labels[label] or f"`{value}`" in REFERENCE
            assert known, f"{where}: {use.name} never has {label}={value}"

    everything = live.labels([use.name for use in selected])
    assert grouped(expression) <= {*everything}, where
    told = {*re.findall(r"\$labels\.(\w+)", text), *re.findall(r"{{(\w+)}}", text)}
    aggregated = re.search(r"\bby\s*\(", expression)
    assert told <= (grouped(expression) if aggregated else {*everything}), where


def test_a_series_that_nobody_exports_is_noticed(live: Exported) -> None:
    """The check itself can fail: a name, a label and a value that are not there."""
    assert "partage_no_such_series" not in live.series
    assert "no_such_label" not in live.labels(["partage_leader"])
    (use,) = uses(
        'sum by (verb) (rate(partage_decisions_total{verb="bind", outcome!="done"}[5m]))'
    )
    assert use == ("partage_decisions_total", {"verb": "bind"}, {"verb", "outcome"})


@pytest.mark.parametrize("rule", RULES, ids=[rule["alert"] for rule in RULES])
def test_an_alert_says_what_is_wrong_what_to_do_and_where_to_read_on(rule: dict[str, Any]) -> None:
    """Summary, action, severity, and a section of the page of alerts."""
    told = rule["annotations"]

    assert set(told) == {"summary", "action", "runbook"}
    assert told["summary"].endswith(".")
    assert told["action"].endswith(".")
    assert rule["labels"]["severity"] in ("critical", "warning", "info")
    assert told["runbook"] == f"docs/how-to/react-to-an-alert.md#{rule['alert'].lower()}"
    section = PAGE.split(f"\n### {rule['alert']}\n")[1].split("\n#")[0]
    assert section.strip().startswith(f"*{rule['labels']['severity'].capitalize()}.*")
    assert "\n* " in section


@pytest.mark.parametrize("alert", [rule["alert"] for rule in RULES])
def test_an_alert_has_a_case_in_which_it_fires_and_one_in_which_it_does_not(alert: str) -> None:
    """They are for promtool, which is not everywhere: both over series that the alert selects."""
    (rule,) = (one for one in RULES if one["alert"] == alert)
    selected = {use.name for use in uses(rule["expr"])}
    found = {
        bool(asked["exp_alerts"])
        for case in CASES
        for asked in case["alert_rule_test"]
        if asked["alertname"] == alert
        and selected & {one["series"].partition("{")[0] for one in case["input_series"]}
    }

    assert found == {True, False}


def test_cases_are_of_series_that_are_exported(live: Exported) -> None:
    """They have their labels, beside those that Prometheus adds."""
    for case in CASES:
        for one in case["input_series"]:
            (use,) = uses(one["series"])
            assert use.name in live.series, case["name"]
            known = {*live.labels([use.name]), "instance"}
            assert use.labels <= known, f"{case['name']}: {one['series']}"


def test_the_page_has_the_alerts_of_the_file_and_no_others() -> None:
    """In their order."""
    assert re.findall(r"^### (\w+)$", PAGE, re.MULTILINE) == [rule["alert"] for rule in RULES]


def test_the_dashboards_are_what_the_tables_say() -> None:
    """`deploy/generate.py dashboards` brings the files up to date."""
    folder = DEPLOY / "observability"
    assert {p.name: p.read_text() for p in folder.glob("*.json")} == generate.dashboards()


def test_panels_stand_beside_each_other() -> None:
    """No two panels cover one another, and none leaves the page."""
    for text in generate.dashboards().values():
        taken: set[tuple[int, int]] = set()
        for panel in json.loads(text)["panels"]:
            at = panel["gridPos"]
            cells = {
                (x, y)
                for x in range(at["x"], at["x"] + at["w"])
                for y in range(at["y"], at["y"] + at["h"])
            }
            assert not cells & taken, panel["title"]
            assert at["x"] + at["w"] <= 24, panel["title"]
            taken |= cells
