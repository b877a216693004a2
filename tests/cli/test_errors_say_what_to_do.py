"""Whatever a command cannot do, its one line names the thing, the rule, and the next step."""

import ast
import importlib
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from subprocess import PIPE

import msgspec
import pytest
from click.testing import CliRunner

from partage.cli.main import main

EXAMPLES = str(Path(__file__).parents[2] / "examples")
MIXED = f"{EXAMPLES}/mixed"
NOBODY = ["--scheduler", "http://127.0.0.1:1"]
CASES = {
    "an address": (
        ["schedule", "https://example.com/x.yaml"],
        "https://example.com/x.yaml",
        "fetch",
    ),
    "an address, up": (["up", "-f", "https://example.com/x.yaml"], "no address is read", "by -"),
    "no kubeconfig": (["top"], "no kubeconfig", "Or name a scheduler with --scheduler"),
    "no kubeconfig, doctor": (["doctor"], "no kubeconfig", "correct KUBECONFIG"),
    "no kubeconfig, snapshot": (["snapshot"], "no kubeconfig", "correct KUBECONFIG"),
    "no kubeconfig, scheduler": (["scheduler", "--plain"], "no kubeconfig", "correct KUBECONFIG"),
    "no kubeconfig, webhook": (["webhook"], "no kubeconfig", "correct KUBECONFIG"),
    "no service there": (["top", *NOBODY], "cannot be reached", "Check the address"),
    "no URL": (["top", "--scheduler", "foo"], "--scheduler foo: must be a URL", "such as http"),
    "no URL of the web": (["top", "--scheduler", "ftp://x"], "--scheduler ftp://x", "such as"),
    "no such port": (
        ["top", "--scheduler", "http://127.0.0.1:99999"],
        "--scheduler http://127.0.0.1:99999: must be a URL",
        "such as",
    ),
    "no address": (["top", "--scheduler", "http://[x"], "--scheduler http://[x", "such as"),
    "no such port, webhook": (
        ["webhook", "--manifests", "--url", "https://a:99999"],
        "'https://a:99999' is no URL",
        "form https://host:port",
    ),
    "no address, claims": (
        ["webhook", "--manifests", "--claims", "http://[x"],
        "--claims: 'http://[x' is no URL",
        "write",
    ),
    "no address, Prometheus": (
        ["top", "pods", "--idle", "--prometheus", "nope"],
        "--prometheus nope: must be a URL",
        "such as",
    ),
    "no Prometheus": (
        ["top", "pods", "--idle", "--prometheus", "http://127.0.0.1:1"],
        "not answer as Prometheus does (Connection refused)",
        "give the URL",
    ),
    "no token": (
        ["top", *NOBODY, "--token-file", os.devnull],
        f"{os.devnull}: no token there.",
        "Or name manifests with -f",
    ),
    "a token for none": (
        ["top", "--token-file", f"{MIXED}/pods.yaml"],
        "--token-file needs --scheduler",
        "name one",
    ),
    "files and a service": (["top", "-f", MIXED, *NOBODY], "-f and --scheduler", "leave one out"),
    "an order of pods": (
        ["top", "pods", "--sort", "free", "-f", MIXED],
        "--sort orders nodes and cards",
        "leave it out",
    ),
    "a namespace of cards": (
        ["top", "cards", "-n", "x", "-f", MIXED],
        "-n chooses among pods",
        "leave it out",
    ),
    "a root of no node": (["doctor", "--root", MIXED], "--root needs --node", "add it"),
    "no simulated devices": (
        ["discover", "--simulated", "gone"],
        "gone: No such file or directory",
        "name a file",
    ),
    "empty simulated devices": (
        ["discover", "--simulated", os.devnull],
        f"{os.devnull}: no documents",
        "such as",
    ),
    "two who answer": (
        ["top", *NOBODY, "--service", "a/b:1"],
        "exclude each other",
        "leave one out",
    ),
    "no pod": (["explain", "x", "-f", MIXED], "no pod default/x", "Check the name"),
    "two namespaces": (
        ["explain", "a/x", "-n", "b", "-f", MIXED],
        "not in namespace b",
        "name one namespace",
    ),
    "no node": (
        ["inspect", "x", "-f", MIXED],
        "no node x",
        "partage top nodes with the same -f lists",
    ),
    "near node": (["inspect", "node/t4-nod", "-f", MIXED], "no node t4-nod", "there is t4-node"),
    "no file": (["schedule", "gone.yaml"], "gone.yaml: cannot be read", "name a file or folder"),
    "no file, up": (
        ["up", "-f", "gone.yaml"],
        "gone.yaml: cannot be read",
        "name a file or folder",
    ),
    "no record": (["replay", "gone"], "gone: No such file", "name a file of partage snapshot"),
    "neither": (
        ["replay", f"{MIXED}/pods.yaml"],
        "neither a snapshot nor a recording",
        "write one with",
    ),
    "no trace": (
        ["simulate", "openb", ".", "--trace", "x", "--policy", "fgd"],
        "nodes.csv",
        "name a folder with",
    ),
    "no such node": (
        ["simulate", "cluster", EXAMPLES, "--add-nodes", "x=1"],
        "no node is called 'x'",
        "there are",
    ),
    "no policy": (["schedule", MIXED, "--policy", "x"], "no policy 'x'", "choose one of"),
    "no mix": (
        [
            "simulate",
            "mig",
            "--model",
            "A100-80GB",
            "--cards",
            "1",
            "--mix",
            "1/2",
            "--rho",
            "1",
            "--policy",
            "partage",
        ],
        "1/2",
        "such as",
    ),
}


EMPTY = {
    "a pod": (["explain", ""], "explain"),
    "a pod after its kind": (["explain", "pod", " "], "pod"),
    "a node": (["inspect", "-f", MIXED, ""], MIXED),
    "a namespace": (["top", "-n", ""], "-n"),
    "a namespace, at once": (["explain", "x", "--namespace="], "--namespace="),
    "a list": (["top", ""], "top"),
    "a file": (["schedule", ""], "schedule"),
    "a file of nodes": (["up", "--nodes", ""], "--nodes"),
    "a kubeconfig": (["snapshot", "--kubeconfig", ""], "--kubeconfig"),
    "a folder": (["simulate", "openb", ""], "openb"),
    "a recording": (["replay", ""], "replay"),
    "a context": (["doctor", "--context=", "x"], "--context="),
    "a host": (["agent", "--node="], "--node="),
    "a command": ([""], "partage"),
}


@pytest.mark.parametrize("name", EMPTY)
def test_an_empty_argument_is_never_one_that_was_left_out(name: str) -> None:
    """An empty argument, as of an unset variable, would mean every pod, node or file."""
    given, before = EMPTY[name]

    result = CliRunner().invoke(main, given)

    assert result.exit_code == 2
    assert f"the value after {before} is empty" in " ".join(result.stderr.split())
    assert result.stdout == ""


NO_NAMES = {
    "explain": ("a b", "/x", "x/", "ns/x/y", "pod/", "pod/ns/x/y", "a\nb", "x-", "x" * 254),
    "inspect": ("a b", "a/b", "node/", "node/a/b", "pod/x"),
    "top -n": ("a b", "a/b"),
    "explain x -n": ("a b", "a/b"),
    "scheduler --lease-name": ("a/b",),
    "webhook --exclude-namespace": ("a b",),
    "agent --config-map": ("a", "a/b/c", "a/", "/b"),
}


@pytest.mark.parametrize(
    ("command", "given"), [(command, one) for command, some in NO_NAMES.items() for one in some]
)
def test_no_object_can_have_such_a_name(command: str, given: str) -> None:
    """One rule for names of pods, nodes and namespaces, before anything is asked."""
    result = CliRunner().invoke(main, [*command.split(), given])

    assert result.exit_code == 2
    said = " ".join(result.stderr.split())
    assert re.search(r"is not (NAMESPACE/NAME or )?(NAMESPACE/)?NAME; a name has letters", said)
    assert result.stdout == ""


def test_a_context_without_a_kubeconfig_blames_no_variable(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """KUBECONFIG is not set, so it cannot be corrected."""
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))

    said = " ".join(CliRunner().invoke(main, ["doctor", "--context", "nope"]).stderr.split())

    assert said.endswith("name the one with context nope by --kubeconfig or KUBECONFIG")


def test_another_pod_of_the_namespace_is_no_near_name(tmp_path: Path) -> None:
    """`default/j` and `default/p` are alike only by their namespace."""
    file = tmp_path / "p.yaml"
    limits = '{limits: {nvidia.com/gpu: "1"}}'
    file.write_text(
        "{apiVersion: v1, kind: Pod, metadata: {name: p},"
        f" spec: {{containers: [{{name: a, resources: {limits}}}]}}}}"
    )

    said = CliRunner().invoke(main, ["explain", "j", "-f", str(file)]).stderr

    assert "there is no pod default/j. Check" in " ".join(said.split())


def test_a_kind_may_stand_before_a_name_as_after_kubectl_get() -> None:
    """It may also be a name itself."""
    for given in (["pod/x"], ["po/x"], ["pods/default/x"], ["pod", "x"], ["pod", "po/default/x"]):
        said = CliRunner().invoke(main, ["explain", *given, "-f", MIXED]).stderr
        assert "there is no pod default/x." in said
    said = CliRunner().invoke(main, ["explain", "pod", "-f", MIXED]).stderr
    assert "there is no pod default/pod." in said


@pytest.mark.parametrize("name", CASES)
def test_one_line_says_what_is_wrong_and_what_to_do(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Exit code 2 or 4, the thing by name, and how to go on; never a traceback."""
    given, thing, step = CASES[name]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    for variable in ("PARTAGE_SCHEDULER", "PARTAGE_SERVICE", "KUBERNETES_SERVICE_HOST"):
        monkeypatch.delenv(variable, raising=False)

    result = CliRunner().invoke(main, given)

    assert result.exit_code in (2, 4)
    assert "Traceback" not in result.output
    line = " ".join(result.stderr.split())
    assert thing in line
    assert step in line.split(thing)[1]
    assert result.stdout == ""


ONE_FILE = {
    "the page of a dump": "simulate cluster {0} --page {1}",
    "a state and a kubeconfig": "up --state {0} --kubeconfig {1}",
    "new ones": "up --state new --kubeconfig ./new",
    "manifests and a kubeconfig": "up -f {0} --kubeconfig {1}",
    "a snapshot of its kubeconfig": "snapshot --kubeconfig {0} -o {1}",
    "a snapshot and its key": "snapshot --mask --mask-key {0} -o {1}",
    "a plot and a history": "simulate openb . --trace x --save-history {0} --plot {1}",
}


@pytest.mark.parametrize("name", ONE_FILE)
def test_no_file_is_written_that_another_option_names(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A dump, a state or a key in it would be lost."""
    monkeypatch.chdir(tmp_path)
    kept, again = tmp_path / "kept.yaml", tmp_path / "again.yaml"
    kept.write_text("kind: List\n")
    again.symlink_to(kept)

    result = CliRunner().invoke(main, ONE_FILE[name].format(kept, again).split())

    assert result.exit_code == 2
    assert "name the same file" in result.stderr
    assert "give each a file of its own" in " ".join(result.stderr.split())
    assert kept.read_text() == "kind: List\n"
    assert sorted(tmp_path.iterdir()) == [again, kept]


def test_a_device_may_be_named_twice(tmp_path: Path) -> None:
    """What is written to it is lost anyway."""
    given = ["simulate", "openb", str(tmp_path), "--trace", "x", "--save-history", os.devnull]

    result = CliRunner().invoke(main, [*given, "--history", os.devnull, "--plot", os.devnull])

    assert "name the same file" not in result.stderr


def test_commands_end_in_one_way() -> None:
    """No module of the command line prints an error and ends by itself."""
    folder = Path(importlib.import_module("partage.cli").__file__ or "").parent
    for module in folder.glob("*.py"):
        text = module.read_text(encoding="utf-8")
        assert 'click.echo(f"Error' not in text, module.name
        assert "def _refuse" not in text, module.name
        assert "def _fail" not in text, module.name


_STEP = re.compile(
    r"\b(name|choose|leave|write|give|say|set|use|check|correct|add|install|mount|make|see|wait)\b"
    r"|\bneeded\b|\bneeds\b|\bmust be\b|go together|exclude each other|stands alone"
    r"|is not published|not a JSON list|partage top",
    re.IGNORECASE,
)
"""Words of a next step, or of a rule that leaves no doubt about it."""


def _told(node: ast.AST) -> str:
    """The text of a message, with what is filled in left out."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_told, node.values))
    return ""


def _messages() -> dict[str, str]:
    """Place and text of every message that a command ends with, as far as the command words it itself."""
    folder = Path(importlib.import_module("partage.cli").__file__ or "").parent
    found = {}
    for module in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
            call = node.exc if isinstance(node, ast.Raise) else node
            ends = isinstance(call, ast.Call) and getattr(call.func, "id", "") == "end"
            if isinstance(call, ast.Call) and (ends or isinstance(node, ast.Raise)):
                text = next((t for t in map(_told, call.args) if t.strip(":; ")), "")
                if text:
                    found[f"{module.name}:{node.lineno}"] = text
    return found


@pytest.mark.parametrize(("where", "text"), _messages().items(), ids=str)
def test_every_message_has_a_next_step(where: str, text: str) -> None:
    """Every message before a command's end says what to do, or has a rule that does."""
    assert _STEP.search(text), f"{where}: {text}"


def test_the_messages_were_found() -> None:
    """The test above has something to look at, and can fail."""
    assert len(_messages()) > 40
    assert not _STEP.search("no model 'x'; there are A100 and H100")


@pytest.mark.parametrize(("typed", "meant"), [("shedule", "schedule"), ("explian", "explain")])
def test_a_misspelt_command_gets_a_suggestion(typed: str, meant: str) -> None:
    """The nearest name, and the exit code of wrong usage."""
    found = CliRunner().invoke(main, [typed])

    assert found.exit_code == 2
    assert f"Did you mean {meant}" in found.stderr


@pytest.mark.parametrize("text", ["", "# a comment\n---\n"])
@pytest.mark.parametrize("command", ["schedule", "top -f"])
def test_a_file_without_documents_is_an_error(tmp_path: Path, text: str, command: str) -> None:
    """The output is not "0 of 0", because the wrong file was given; an empty file among others does no harm."""
    empty = tmp_path / "empty.yaml"
    empty.write_text(text)

    found = CliRunner().invoke(main, [*command.split(), str(empty)])

    assert found.exit_code == 2
    assert f"{empty}: no document there" in found.stderr
    examples = str(Path(__file__).parents[2] / "examples/metax")
    assert CliRunner().invoke(main, ["schedule", examples, str(empty)]).exit_code in (0, 3)


@pytest.mark.parametrize(
    "command",
    [
        "schedule",
        "explain a -f",
        "top -f",
        "inspect -f",
        "simulate cluster",
        "simulate repack --may-restart x",
    ],
)
def test_a_misspelt_field_is_told_and_refused_with_strict(tmp_path: Path, command: str) -> None:
    """It has the file, document, path and the nearest name, in every command that reads manifests."""
    file = tmp_path / "pod.yaml"
    file.write_text(
        "kind: Node\nmetadata: {name: n}\n---\nkind: Pod\nmetadata: {name: a}\nspec: {contaners: []}\n"
    )
    where = f"{file}: document 2 (Pod default/a): field spec.contaners"

    found = CliRunner().invoke(main, [*command.split(), str(file)])
    refused = CliRunner().invoke(main, [*command.split(), str(file), "--strict"])

    assert f"{where} is not known and does nothing; did you mean containers?" in found.output
    assert refused.exit_code == 2
    assert where in refused.stderr
    assert refused.stdout == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device on this machine")
@pytest.mark.parametrize(
    "typed", [["--help"], ["schedule", MIXED], ["schedule", MIXED, "-o", "json"]]
)
def test_a_full_disk_is_told_in_one_line(typed: list[str]) -> None:
    """This holds for all that the command prints; the exit code is 2."""
    with Path("/dev/full").open("wb") as full:
        ended = subprocess.run(
            [sys.executable, "-m", "partage.cli.main", *typed],
            stdout=full,
            stderr=PIPE,
            check=False,
        )

    assert ended.returncode == 2
    assert ended.stderr.decode().splitlines() == [
        "partage: the output cannot be written: No space left on device; free some space, or write elsewhere"
    ]


@pytest.mark.parametrize(
    "typed",
    ["--help", "--version", f"schedule {MIXED}", f"schedule {MIXED} -o json", "top -f " + MIXED],
)
def test_an_output_that_is_closed_is_told(typed: str) -> None:
    """A script that closes it would take the exit code 0 for an answer."""
    run = ["sh", "-c", f"exec {sys.executable} -m partage.cli.main {typed} >&-"]

    ended = subprocess.run(run, stderr=PIPE, check=False)

    assert ended.returncode == 2
    assert "the output cannot be written: Bad file descriptor" in ended.stderr.decode()
    assert "Traceback" not in ended.stderr.decode()


def test_an_input_that_is_closed_is_told() -> None:
    """One line, as for any input that cannot be read."""
    run = ["sh", "-c", f"exec {sys.executable} -m partage.cli.main schedule - <&-"]

    ended = subprocess.run(run, capture_output=True, check=False)

    assert ended.returncode == 2
    assert ended.stderr.decode().startswith("partage schedule: standard input is closed; name")


PRESSED = """
import signal, sys

when = sys.argv.pop(1)
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever runs the tests may ignore it

class Pressed:
    def find_spec(self, name, *_):
        if name == when:
            signal.raise_signal(signal.SIGINT)

sys.meta_path.insert(0, Pressed())
from partage.cli.entry import main
main()
"""
"""The program, which gets a signal as it begins to load a module."""


@pytest.mark.parametrize("module", ["partage.cli.main", "click", "partage.cli.top", "aiohttp"])
def test_a_key_that_is_pressed_at_once_ends_it_without_a_word(module: str) -> None:
    """Ctrl-C while the program is being loaded: no traceback, and the shell knows why it ended."""
    typed = [sys.executable, "-c", PRESSED, module, "top", "--scheduler", "http://127.0.0.1:1"]

    ended = subprocess.run(typed, capture_output=True, check=False)

    assert (ended.returncode, ended.stderr) == (-signal.SIGINT, b"")


@pytest.mark.parametrize(
    "typed", [["schedule", "-"], ["top", "-f", "-"], ["simulate", "cluster", "-"]]
)
def test_a_key_ends_a_command_that_works_by_its_signal(typed: list[str]) -> None:
    """The exit is not an error of the command's own, of which the help knows no code."""
    reset = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
    run = [sys.executable, "-c", f"{reset}from partage.cli.entry import main; main()", *typed]
    with subprocess.Popen(run, stdin=PIPE, stdout=PIPE, stderr=PIPE) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(b"x" * 2**20)  # more than a pipe holds, so that it reads
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        assert process.wait(240) == -signal.SIGINT
        assert process.stderr.read() == b""


def test_a_folder_in_the_place_of_a_kubeconfig_is_named(tmp_path: Path) -> None:
    """It is there, so "not found" would be wrong."""
    result = CliRunner(env={"KUBECONFIG": str(tmp_path)}).invoke(main, ["top"])

    assert result.exit_code == 2
    assert f"{tmp_path} is a folder; name a kubeconfig file in it" in result.stderr


def test_an_old_terminal_gets_what_it_can_show() -> None:
    """Signs that its encoding lacks become question marks; nothing else is lost."""
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}

    ended = subprocess.run(
        [sys.executable, "-m", "partage.cli.main", "inspect", "t4-node", "-f", MIXED],
        env=environment,
        capture_output=True,
        check=False,
    )

    assert (ended.returncode, b"Traceback" in ended.stderr) == (0, False)
    assert "??????" in ended.stdout.decode("latin-1")


@pytest.mark.parametrize("typed", [["schedule", MIXED], ["webhook", "--manifests"]])
def test_a_reader_may_leave_early(typed: list[str]) -> None:
    """`head` does so: no complaint about the closed pipe, and no port or file is blamed."""
    with subprocess.Popen(
        [sys.executable, "-m", "partage.cli.main", *typed], stdout=PIPE, stderr=PIPE
    ) as process:
        assert process.stdout is not None
        process.stdout.close()
        assert process.stderr is not None
        assert process.stderr.read() == b""
        assert process.wait(240) in (1, 3)


@pytest.mark.parametrize(
    ("command", "says"),
    [
        (["up", "--port", "x"], "'x' is not a valid whole number"),
        (["scheduler", "--port", "x"], "'x' is not a valid whole number"),
        (["webhook", "--port", "x"], "'x' is not a valid whole number"),
        (["top", "--interval", "x"], "'x' is not a valid number"),
    ],
    ids=lambda one: one[0] if isinstance(one, list) else "",
)
def test_a_number_is_called_one(command: list[str], says: str) -> None:
    """The message asks for a number, and for no range where there are no bounds."""
    result = CliRunner().invoke(main, command)

    assert result.exit_code == 2
    assert says in result.stderr


@pytest.mark.parametrize("number", ["nan", "inf", "-inf"])
@pytest.mark.parametrize(
    "command",
    [
        ["top", "--interval"],
        ["scheduler", "--audit"],
        ["scheduler", "--agent-silence"],
        ["simulate", "cluster", MIXED, "--share"],
    ],
    ids=lambda one: one[-1],
)
def test_a_number_has_an_end(command: list[str], number: str) -> None:
    """No bound holds for nan, and no command waits for ever."""
    result = CliRunner().invoke(main, [*command, number])

    assert result.exit_code == 2
    assert f"Invalid value for '{command[-1]}'" in result.stderr


def test_shares_of_a_mix_have_a_sum() -> None:
    """Each is a finite number, but their sum is not."""
    stream = ["--model", "A100-40GB", "--cards", "1", "--mix", "1e308/1e308/0/0/0", "--rho", "1"]
    result = CliRunner().invoke(main, ["simulate", "mig", *stream])

    assert result.exit_code == 2
    assert "shares of a mix" in result.stderr


def _pod(folder: Path, name: str, limits: dict[str, int]) -> str:
    """The path of a manifest of a pod with one container."""
    spec = {"containers": [{"name": "c", "image": "x", "resources": {"limits": limits}}]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    file = folder / "pod.json"
    file.write_bytes(msgspec.json.encode(pod))
    return str(file)


def test_a_waiting_pod_has_its_remarks_below_the_reason(tmp_path: Path) -> None:
    """`insufficient node resources` alone does not say that the name is misspelt."""
    file = _pod(tmp_path, "lost", {"nvidia.com/gpu": 1, "nvidia.com/gpumemm": 500})

    found = CliRunner().invoke(main, ["schedule", MIXED, file])

    assert "did you mean nvidia.com/gpumem?" in " ".join(found.stdout.split())


def test_a_placed_pod_has_its_remarks_among_the_notes(tmp_path: Path) -> None:
    """A pod with 8 KiB of a card is placed, and its author meant MiB."""
    limits = {"koordinator.sh/gpu-core": 10, "koordinator.sh/gpu-memory": 8192}
    file = _pod(tmp_path, "small", limits)

    found = CliRunner().invoke(main, ["schedule", MIXED, file])

    assert "note: pod default/small: koordinator.sh/gpu-memory: 8192 bytes a card" in found.stdout


def test_an_empty_file_among_others_is_named(tmp_path: Path) -> None:
    """A forgotten `> file` would otherwise look like a file whose pods are gone."""
    file = tmp_path / "empty.yaml"
    file.write_text("")

    found = CliRunner().invoke(main, ["schedule", MIXED, str(file)])

    assert f"note: {file}: no document there" in found.stdout
