"""Tables are as wide as the terminal: numbers are whole, names are cut in their middle, figures stand below each other.

Where output is no terminal, each row is a line, and nothing is left out.
"""

import copy
import json
import os
import re
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from partage.cli import tables
from partage.cli.main import main
from partage.cli.tables import PlainTable, screen
from partage.cli.top import holders
from partage.vendors.traits import short_models

EXAMPLES = str(Path(__file__).parents[2] / "examples")
COMMANDS = {
    "nodes": ["top", "nodes", "-f", EXAMPLES],
    "cards": ["top", "cards", "-f", EXAMPLES],
    "pods": ["top", "pods", "-f", EXAMPLES],
    "card": ["inspect", "a100-node", "-f", EXAMPLES],
    "why": ["explain", "waiting/too-big-for-t4", "-f", EXAMPLES],
    "decisions": ["schedule", f"{EXAMPLES}/mixed"],
}
SPARE = {"PROTOCOL", "koordinator", "hami", "qgpu", "claim", "SHARERS"}
"""What a narrow `top pods` and `top cards` do without."""
NAME = re.compile(r"[a-z0-9…/-]+")


def shown(command: list[str], width: int) -> list[str]:
    """What a terminal of so many columns gets, without colours."""
    env = {"FORCE_COLOR": "1", "COLUMNS": str(width), "NO_COLOR": None}
    done = CliRunner().invoke(main, command, env=env)
    assert done.exit_code in (0, 3), done.output
    return [re.sub(r"\x1b\[[0-9;]*m", "", line) for line in done.stdout.splitlines()]


def words(lines: list[str]) -> set[str]:
    """Their words, models with their short names; no bars, and nothing that may be broken."""
    return {
        word
        for line in lines
        for word in short_models(line).split()
        if len(word) <= 24 and not set(word) & set("█░")
    }


def is_cut(name: str, lines: list[str]) -> bool:
    """Whether a name is there without its middle."""
    cut = {word for line in lines for word in line.split() if "…" in word}
    patterns = (re.escape(word).replace("…", ".+") for word in cut)
    return any(re.fullmatch(pattern, name) for pattern in patterns)


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_is_lost_or_broken(name: str, width: int) -> None:
    """Every word of the wide table is there, except bars, empty columns, protocols, and the middle of names."""
    narrow = shown(COMMANDS[name], width)
    lost = words(shown(COMMANDS[name], 400)) - words(narrow) - {"INSTANCES"}

    assert not [one for one in lost if not is_cut(one, narrow) and one not in SPARE]
    assert not [line for line in narrow if line != line.rstrip()]


@pytest.mark.parametrize("name", COMMANDS)
def test_a_usual_terminal_is_wide_enough(name: str) -> None:
    """No line runs on."""
    assert max(map(len, shown(COMMANDS[name], 80))) <= 80


@pytest.mark.parametrize(("width", "drawn"), [(80, ""), (160, "░")])
def test_bars_are_drawn_where_there_is_room(width: int, drawn: str) -> None:
    """Without room, their heading stays above the numbers."""
    table = "\n".join(shown(COMMANDS["decisions"], width))

    assert set("░") & set(table) == set(drawn)
    assert re.search(r"COMPUTE +MEMORY", table)
    assert "77.8Gi of 80Gi" in table


def test_a_table_that_cannot_fit_runs_on() -> None:
    """Numbers stay whole."""
    lines = shown(COMMANDS["cards"], 30)

    assert max(map(len, lines)) > 30
    assert {"50%", "40Gi"} <= words(lines)


@pytest.mark.parametrize(
    ("model", "short"),
    [
        ("NVIDIA A100-SXM4-40GB", "A100-40GB"),
        ("NVIDIA H100 80GB HBM3", "H100 80GB"),
        ("Tesla-V100-SXM2-32GB", "V100-32GB"),
        ("AMD-Instinct-MI300X", "MI300X"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("Ascend-910B3", "Ascend-910B3"),
        ("nvidia", "nvidia"),
        ("3 x NVIDIA A100-SXM4-40GB, Tesla-T4", "3 x A100-40GB, T4"),
    ],
)
def test_models_get_short_before_texts_are_folded(
    model: str, short: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens only if the table would be too wide."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")

    def printed(width: int) -> str:
        table = PlainTable("NODE", "MODEL", "STATE")
        table.add_row("n" * 20, model, "ok")
        console = screen()
        console.width = width
        with console.capture() as captured:
            console.print(table)
        return captured.get()

    whole = 20 + 2 + max(len(model), len("MODEL")) + 2 + len("STATE")
    assert model in printed(whole)
    if model != short:
        assert f" {short} " in printed(whole - 1)
        assert model not in printed(whole - 1)


@pytest.mark.parametrize(
    ("pods", "claims", "told"),
    [(0, 0, "0"), (2, 0, "2"), (0, 1, "1 claim"), (0, 5, "5 claims"), (2, 5, "2, 5 claims")],
)
def test_claims_are_counted_beside_pods(pods: int, claims: int, told: str) -> None:
    """A node that claims have filled does not look empty."""
    assert holders(pods, claims) == told


# --- long names -------------------------------------------------------------------------------


def long(name: str) -> str:
    """A name as long as names may be; two of one controller differ at the end."""
    return f"{name}-{'middle-' * 9}"[:57] + f"-{sum(name.encode()) % 100000:05}"


def renamed(document: dict[str, Any]) -> dict[str, Any]:
    """The same with long names of namespaces, nodes and pods."""
    one = copy.deepcopy(document)
    meta, kind = one["metadata"], one["kind"]
    if kind in ("Pod", "ResourceQuota"):
        meta["namespace"] = long(meta["namespace"])
    if kind in ("Pod", "Node", "Device", "Namespace"):
        meta["name"] = long(meta["name"])
    spec = one.get("spec", {})
    if "nodeName" in spec:
        spec["nodeName"] = long(spec["nodeName"])
    for labels in (meta.get("labels", {}), spec.get("nodeSelector", {})):
        if "kubernetes.io/hostname" in labels:
            labels["kubernetes.io/hostname"] = long(labels["kubernetes.io/hostname"])
    return one


@pytest.fixture(scope="module")
def manifests(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The mixed example with names of 63 signs; its file."""
    found = [
        renamed(document)
        for path in sorted(Path(EXAMPLES, "mixed").glob("*.yaml"))
        for document in yaml.safe_load_all(path.read_text())
    ]
    target = tmp_path_factory.mktemp("long") / "long.yaml"
    target.write_text(yaml.safe_dump_all(found))
    return str(target)


A100, POD = long("a100-node"), f"{long('team-vision')}/{long('already-running')}"
WAITS = f"{long('waiting')}/{long('too-big-for-t4')}"
LONG: dict[str, Callable[[str], list[str]]] = {
    "all": lambda file: ["top", "-f", file],
    "nodes": lambda file: ["top", "nodes", "-f", file],
    "cards": lambda file: ["top", "cards", "-f", file],
    "pods": lambda file: ["top", "pods", "-f", file],
    "node": lambda file: ["inspect", A100, "-f", file],
    "inspect": lambda file: ["inspect", "-f", file],
    "placed": lambda file: ["explain", POD, "-f", file],
    "why": lambda file: ["explain", WAITS, "-f", file],
    "decisions": lambda file: ["schedule", file],
    "compared": lambda file: [
        *("simulate", "cluster", file, "--policy", "spread/binpack"),
        *("--policy", "binpack", "--share", "25", "--add-nodes", f"{A100}=2"),
    ],
}


@pytest.mark.parametrize("name", LONG)
def test_long_names_leave_numbers_their_room(name: str, manifests: str) -> None:
    """At 80 columns all but names is there whole, and only lines that hold a whole name are longer."""
    command = LONG[name](manifests)
    wide, narrow = shown(command, 1000), shown(command, 80)

    too_long = [line for line in narrow if len(line) > 80]
    assert not [line for line in too_long if not re.search(r"(^|/)[a-z0-9-]{63}\b", line)]
    lost = {word for word in words(wide) - words(narrow) if not NAME.fullmatch(word)}
    assert lost <= {"INSTANCES", *SPARE}


@pytest.mark.parametrize("name", ["pods", "decisions"])
def test_names_keep_both_ends(name: str, manifests: str) -> None:
    """Namespace, pod and node keep both, each on a line of its own."""
    narrow = shown(LONG[name](manifests), 80)

    namespace, _slash, pod = POD.partition("/")
    assert is_cut(f"{namespace}/", narrow)
    assert is_cut(pod, narrow)
    assert is_cut(A100, narrow)


def narrow_table(width: int, *rows: tuple[str, str, str]) -> list[str]:
    """Lines of a table of pods on a terminal so wide."""
    table = PlainTable("POD", "CARD", "STATE")
    for row in rows:
        table.add_row(*row)
    console = screen()
    console.width = width
    with console.capture() as captured:
        console.print(table)
    text = re.sub(r"\x1b\[[0-9;]*m", "", captured.get())
    return [line.rstrip() for line in text.splitlines()]


def test_a_namespace_stands_above_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """They share a line only if both fit, so that a name can be copied; a card's number stays beside its kind."""
    monkeypatch.setenv("FORCE_COLOR", "1")

    lines = narrow_table(
        41, ("team/short", "gpu 0,1", "bound"), ("team/serve-5f7c9d-x2x4z", "gpu 1, rdma 0", "ok")
    )

    assert lines == [
        "POD                      CARD     STATE",
        "team/short               gpu 0,1  bound",
        "team/serve-5f7c9d-x2x4z  gpu 1,   ok",
        "                         rdma 0",
    ]
    pod = ("team-of-many-words/serve-5f7c9d-x2x4z", "gpu 1, rdma 0", "waiting: CardNotIdle")
    assert narrow_table(40, pod) == [
        "POD               CARD    STATE",
        "team-of…y-words/  gpu 1,  waiting:",
        "serve-5f…d-x2x4z  rdma 0  CardNotIdle",
    ]
    pod = ("team-of-many-words/serve-5f7c9d-x2x4z", "gpu 1, rdma 0", "waiting: InsufficientMemory")
    assert narrow_table(40, pod) == [
        "POD           CARD    STATE",
        "team-…words/  gpu 1,  waiting:",
        "serve-…x2x4z  rdma 0  InsufficientMemory",
    ]


def test_a_fleet_is_drawn_as_one_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """`inspect` of all nodes: their cards are aligned, and a text that comes again is measured and drawn once."""
    drawn: list[object] = []
    real = tables._lines
    monkeypatch.setattr(tables, "_lines", lambda *given: (drawn.append(given[1]), real(*given))[1])

    lines = shown(["inspect", "-f", EXAMPLES, "-o", "wide"], 200)

    heads = {line for line in lines if line.startswith("CARD")}
    cards = sum(line.startswith(("gpu ", "rdma ")) for line in lines)
    assert len(heads) == 1
    assert cards > 20
    assert sum(str(one) == "idle" for one in drawn) == 1


@pytest.mark.parametrize("name", ["pods", "nodes", "cards", "inspect"])
def test_wide_has_names_whole(name: str, manifests: str) -> None:
    """They are whole on a narrow terminal too, where lines run on."""
    lines = shown([*LONG[name](manifests), "-o", "wide"], 80)

    assert A100 in {word for line in lines for word in line.split()}
    assert "…" not in "".join(lines)


@pytest.mark.parametrize("name", ["pods", "cards", "decisions"])
def test_a_pipe_gets_whole_rows(name: str, manifests: str) -> None:
    """Each a line, with every column, however long names are and however wide the terminal is."""
    command = LONG[name](manifests)
    done = CliRunner().invoke(main, command, env={"COLUMNS": "80", "FORCE_COLOR": None})
    lines = done.stdout.splitlines()
    row = next(line for line in lines if A100 in line)

    assert "…" not in done.stdout
    assert row.split()[-1] in {"bound", "ok", "20Gi"}
    assert lines[0].split()[0] in {"POD", "NODE"}


def test_a_live_view_folds_what_is_too_long(manifests: str) -> None:
    """On a terminal of 80 columns the code behind a long name is on the screen, and no line is longer."""
    screenful = _watched(["top", "--watch", "--interval", "0.5", "-f", manifests])

    assert "QuotaExceeded" in screenful
    assert "InsufficientMemory" in screenful
    assert max(map(len, screenful.splitlines())) <= 80


def test_a_terminal_that_cannot_be_drawn_on_is_not_watched(manifests: str) -> None:
    """It showed an empty screen; now one line says what is wrong."""
    ours, theirs = os.openpty()
    command = [sys.executable, "-m", "partage.cli.main", "top", "--watch", "-f", manifests]
    environ = {**os.environ, "TERM": "dumb"}
    with subprocess.Popen(command, stdout=theirs, stderr=subprocess.PIPE, env=environ) as running:
        os.close(theirs)
        assert running.stderr is not None
        told = running.stderr.read().decode()
    os.close(ours)

    assert running.returncode == 2
    assert "TERM says that this one is dumb" in " ".join(told.split())


def test_a_live_view_is_moved_and_ended_by_keys(manifests: str) -> None:
    """On twelve lines the waiting pods are below the screen; the terminal is afterwards as it was."""
    ours, theirs = os.openpty()
    before = termios.tcgetattr(theirs)
    environ = os.environ | {"TERM": "xterm", "COLUMNS": "80", "LINES": "12"}
    program = [sys.executable, "-m", "partage.cli.main", "top", "--watch", "-f", manifests]
    program += ["--interval", "600"]
    with subprocess.Popen(
        program, stdin=theirs, stdout=theirs, stderr=theirs, env=environ
    ) as running:
        seen = b""
        for typed, told in (
            (b"", b"lines more; arrow keys move, q ends"),
            (b"\x1b[B\x1b[B", b"2 lines above,"),
        ):
            os.write(ours, typed)
            while told not in seen:
                seen += os.read(ours, 65536)
        assert b"there is room for it" not in seen
        os.write(ours, b"\x1b[F")
        while b" 0 lines more" not in seen:
            seen += os.read(ours, 65536)
        os.write(ours, b"q")
        while b"\x1b[?1049l" not in seen:
            seen += os.read(ours, 65536)
        running.wait()  # it leaves the screen first, and then resets the terminal
        after = termios.tcgetattr(theirs)
        os.close(theirs)
    os.close(ours)

    assert running.returncode == 0
    assert b"there is room for it" in seen
    assert after == before


def _watched(command: list[str]) -> str:
    """What the first full screen says, without colours."""
    ours, theirs = os.openpty()
    environ = os.environ | {"TERM": "xterm", "COLUMNS": "80", "LINES": "100"}
    program = [sys.executable, "-m", "partage.cli.main", *command]
    with subprocess.Popen(
        program, stdin=theirs, stdout=theirs, stderr=theirs, env=environ
    ) as running:
        os.close(theirs)
        seen = b""
        while seen.count(b"\x1b[H") < 3:
            seen += os.read(ours, 65536)
        running.terminate()
        while b"\x1b[?1049l" not in seen:
            seen += os.read(ours, 65536)
    os.close(ours)
    page = max(seen.split(b"\x1b[H"), key=len).decode().replace("\r", "")
    return re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", page)


# --- figures ----------------------------------------------------------------------------------


def comparisons(folder: Path) -> Iterator[list[str]]:
    """Commands that compare policies for instances."""
    sequences = folder / "sequences.json"
    sequences.write_text(json.dumps([["1g.10gb", "3g.40gb"]]))
    cards = ["simulate", "mig", "--model", "A100-SXM4-80GB", "--cards", "1"]
    policies = ["--policy", "hami-2.10-binpack", "--policy", "partage"]
    yield [*cards, "--sequences", str(sequences), *policies]
    stream = ["--mix", "20/20/20/20/20", "--rho", "0.8", "--arrivals", "3000", "--wait"]
    yield [*cards, *stream, *policies]


def test_figures_of_policies_are_whole(tmp_path: Path) -> None:
    """What a pipe gets in one line of each policy, but the time it took, is on a narrow terminal too."""
    for command in comparisons(tmp_path):
        lines = shown(command, 50)
        piped = CliRunner().invoke(main, command).stdout.splitlines()
        figures = [word for line in piped[:3] for word in line.split()[:-1]]

        assert max(map(len, lines)) <= 50
        assert set(figures) <= {word for line in lines for word in line.split()}


def test_figures_without_room_stand_below(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first column is repeated; headings fold, figures are aligned right and never broken."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    table = PlainTable("CASE", "POLICY", "OF VOLUME", "AT ONCE", "RUNNING", keys=2)
    table.add_row("today", "spread", "9.50%", "100.00%", "1 of 12")
    table.add_row("more", "binpack", "12.00%", "-", "12 of 12")
    console = screen()
    console.width = 34
    with console.capture() as captured:
        console.print(table)
    text = re.sub(r"\x1b\[[0-9;]*m", "", captured.get())

    assert text.splitlines() == [
        "CASE   POLICY       OF  AT ONCE",
        "                VOLUME",
        "today  spread    9.50%  100.00%",
        "more   binpack  12.00%        -",
        "",
        "CASE    RUNNING",
        "today   1 of 12",
        "more   12 of 12",
    ]
