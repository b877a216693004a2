"""What pages count or repeat, held to the thing that is counted: checks, dashboards, versions, profiles, folders, values."""

import ast
import json
import re
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import yaml
from page_blocks import LINES

from partage.vendors import names
from partage.vendors.mig import MIG_CARDS

ROOT: Final = Path(__file__).parents[2]
CHART: Final = ROOT / "deploy/helm/partage"
OBSERVED: Final = ROOT / "deploy/observability"
NUMBERS: Final = ("no", "one", "two", "three", "four", "five", "six")
FIGURES: Final = re.compile(r"\[figures\]\(([^)#]+)(?:#([^)]+))?\)")
NUMBER: Final = re.compile(r"(?<![\w.])\d[\d,]*(?:\.\d+)?(?!\w)")
BEGIN: Final = re.compile(r"\.\s|\| |\n\s*\* |\n\n")
"""Where a sentence, a cell or an entry of a list begins."""


def page(name: str) -> str:
    """The text of a page."""
    return (ROOT / "docs" / name).read_text(encoding="utf-8")


def rows(text: str) -> list[list[str]]:
    """Cells of every row of every table, heads and rules left out."""
    lines = [line.strip() for line in text.splitlines()]
    heads = {at - 1 for at, line in enumerate(lines) if line.startswith("| ---")}
    return [
        [cell.strip() for cell in line.strip("|").split(" |")]
        for at, line in enumerate(lines)
        if line.startswith("| ") and not line.startswith("| ---") and at not in heads
    ]


def _values() -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))
    return found


def _checks() -> set[str]:
    """Names of all findings in the source of doctor."""
    trees = [
        ast.parse(path.read_text("utf-8")) for path in (ROOT / "src/partage/doctor").glob("*.py")
    ]
    return {
        call.args[0].value
        for tree in trees
        for call in ast.walk(tree)
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in ("Finding", "error", "warning")
        and isinstance(call.args[0], ast.Constant)
    }


def test_the_page_of_doctor_has_its_checks_and_no_other() -> None:
    """One row a check; one that is gone leaves the page too."""
    tables = page("reference/doctor.md").split("## Of a cluster", maxsplit=1)[1]
    told = {row[0].strip("`") for row in rows(tables)}

    assert _checks() - told == set()
    assert {name for name in told if name not in _source("doctor")} == set()


def _source(folder: str) -> str:
    return "".join(p.read_text("utf-8") for p in (ROOT / "src/partage" / folder).glob("*.py"))


def test_the_page_names_every_dashboard() -> None:
    """It has all dashboards, each by its file and its title."""
    text = page("how-to/watch-it.md")
    found = sorted(OBSERVED.glob("*.json"))
    titles = {json.loads(one.read_text("utf-8"))["title"] for one in found}

    assert f"alert rules and {NUMBERS[len(found)]} dashboards" in text
    assert [one.name for one in found if f"{one.name}`" not in text] == []
    assert titles == {row[0] for row in rows(text) if row[0].startswith("Partage: ")}


def test_the_readme_compares_with_the_versions_that_were_read() -> None:
    """The head of its table against the sources of docs/comparison.md; our own is the package's."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    head = next(line for line in readme.splitlines() if line.startswith("| | HAMi"))
    read = {row[0]: row[1] for row in rows(page("comparison.md").split("## Sources")[1])}
    named = dict(re.findall(r"(\w+) (\d+\.\d+) ", head))

    assert named.pop("Partage") == version("partage").rpartition(".")[0]
    assert set(named) == {"HAMi", "Koordinator", "KAI"}
    for name, number in named.items():
        assert f"v{number}." in read.get(name, "") + read.get(f"{name}-Scheduler", ""), name


def test_versions_are_those_of_the_chart() -> None:
    """The plugin's own and the next minor; for claims, the versions below which the chart refuses."""
    built = _values()["kubeScheduler"]["pluginImage"]["kubernetes"]
    major, minor = built.split(".")
    told = f"{built} and {major}.{int(minor) + 1}"
    needs = re.search(r"agent\.dra\.enabled needs Kubernetes (\S+)", _template("agent.yaml"))
    table = {row[0]: row[1] for row in rows(page("reference/versions.md"))}

    (plugin,) = (cell for part, cell in table.items() if "[plugin]" in part)
    (claims,) = (cell for part, cell in table.items() if "[ResourceClaims]" in part)
    assert plugin.startswith(told)
    assert f"Kubernetes {told}" in page("how-to/choose-the-seam.md")
    assert f"Kubernetes {told.replace('and', 'or')}," in page("how-to/install.md")
    assert needs is not None
    assert claims.startswith(needs[1])
    for guide in ("use-resource-claims", "offer-cards-to-claims"):
        assert f"Kubernetes {needs[1]} or later" in page(f"how-to/{guide}.md")


def test_what_removes_templates_names_their_label() -> None:
    """Where translation is off, an operator's command finds what the service made."""
    label = f"{names.CLAIMS_LABEL}={names.CLAIMS_TRANSLATE}"
    told = f"kubectl delete resourceclaimtemplates -A -l {label}`"
    assert told in page("how-to/offer-cards-to-claims.md")


def _template(name: str) -> str:
    return (CHART / "templates" / name).read_text(encoding="utf-8")


def test_every_installation_names_its_image() -> None:
    """The default is a placeholder, so a line without one starts nothing; and each names its namespace."""
    typed = [one for one in LINES if one.words[0] == "helm"]

    assert len(typed) > 8
    assert [one for one in typed if not re.search(r" (-n|--namespace) ", one.text)] == []
    installs = [one for one in typed if one.words[1] == "install"]
    assert [one for one in installs if "image.repository=" not in one.text] == []


def _numbers(text: str) -> set[str]:
    """Numbers as they are printed, without what parts thousands."""
    return set(re.findall(r"\d+(?:\.\d+)?", text.replace(",", "")))


def _missed(result: str, section: str) -> list[str]:
    """Numbers of a result that a section has neither as they are nor with more digits."""
    found = _numbers(section)
    return [
        one
        for one in _numbers(result)
        if one not in found
        and not any(
            f"{float(more):.{len(one.partition('.')[2])}f}" == one
            for more in found
            if len(more.partition(".")[2]) > len(one.partition(".")[2])
        )
    ]


def test_results_of_performance_are_those_of_its_sections() -> None:
    """Each number of the first table stands in the section that its row leads to."""
    text = page("performance.md")
    parts = re.split(r"^##+ ", text, flags=re.MULTILINE)
    sections = {
        re.sub(r"[^\w\- ]", "", part.split("\n")[0].lower()).replace(" ", "-"): part
        for part in parts[1:]
    }
    results = [row for row in rows(parts[0]) if row[0].startswith("[")]

    assert len(results) > 10
    for question, result, _ in results:
        anchor = re.findall(r"\(#([\w-]+)\)", question)[0]
        assert _missed(result, sections[anchor]) == [], question
    assert _missed("0.6 of 40", "0.64 and 0.46, 40.2") == []
    assert _missed("0.59 of 387", "0.70 of 387") == ["0.59"]


def test_profiles_of_instances_are_those_of_the_table() -> None:
    """Memory and places of an A100 with 80 GiB."""
    profiles = MIG_CARDS["A100-80GB"].axis.profiles
    known = {one.name: (f"{one.memory_bytes >> 20:,} MiB", str(one.count)) for one in profiles}
    told = {
        row[0].split("`")[1]: (row[1], row[3])
        for row in rows(page("how-to/use-hardware-instances.md"))
        if re.match(r"`\dg\.", row[0])
    }

    assert told == {name: known[name] for name in known if "+" not in name}


def test_the_folders_that_the_agents_pod_makes_are_told() -> None:
    """The page about what stays names each folder that the kubelet makes because the chart mounts it."""
    agent = _values()["agent"]
    made = re.findall(
        r"hostPath: \{path: (.+), type: DirectoryOrCreate\}", _template("agent.yaml")
    )
    places = {
        "{{ $a.stateDir }}": agent["stateDir"],
        "{{ dir $a.nriSocket }}": str(Path(agent["nriSocket"]).parent),
        "{{ $hamiDir }}": "/usr/local/vgpu",
        "{{ $a.devicePlugin.kubeletDir }}": agent["devicePlugin"]["kubeletDir"],
    }
    text = page("how-to/uninstall.md")

    assert len(made) > 8
    for one in made:
        path = re.sub(r"\{\{.*?\}\}", lambda found: places[found[0]], one)
        assert path in text or path.startswith("/run/partage/"), path


def _section(page: Path, anchor: str | None) -> str:
    """The text below a head, to the next of its level; of the whole page without an anchor."""
    if anchor is None:
        return page.read_text(encoding="utf-8")
    found: list[str] = []
    level = 0
    for line in page.read_text(encoding="utf-8").splitlines():
        head = re.match(r"(#+) (.*)", line)
        if head and level and len(head[1]) <= level:
            level = 0
        if head and re.sub(r"[^\w\- ]", "", head[2].lower()).replace(" ", "-") == anchor:
            level = len(head[1])
        if level:
            found.append(line)
    return "\n".join(found)


def _linked_figures() -> list[tuple[str, str, str, list[str]]]:
    """Page, linked page, section, and the numbers of each sentence that ends in a link named *figures*."""
    found = []
    for path in sorted((ROOT / "docs").rglob("*.md")):
        text = path.read_text(encoding="utf-8")
        for link in FIGURES.finditer(text):
            sentence = BEGIN.split(text[: link.start()])[-1]
            there = _section((path.parent / link[1]).resolve(), link[2])
            found.append((path.name, link[0], there, NUMBER.findall(sentence)))
    return found


def test_a_page_repeats_figures_as_their_own_page_has_them() -> None:
    """Every number of a sentence that links to figures is in the linked section."""
    linked = _linked_figures()
    wrong = [
        f"{page}: {number} is not at {link}"
        for page, link, there, numbers in linked
        for number in numbers
        if not re.search(rf"(?<![\d.]){re.escape(number)}(?!\d)", there)
    ]

    assert len(linked) > 10
    assert sum(len(numbers) for _, _, _, numbers in linked) > 20
    assert all(there for _, _, there, _ in linked)
    assert wrong == []
