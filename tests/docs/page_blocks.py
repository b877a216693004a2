"""Fenced blocks of all pages, command lines in them, and how each of them is proven.

A block is one of these, and `test_every_block_has_a_proof` refuses any other:

* lines of a shell: a page's lines are typed in order, by tests/embedded against `partage up` and,
  where they install something, by tests/cluster against a genuine API server;
* an outline of a command (`[--option X]`, `...`): its words and options exist;
* manifests: the embedded cluster admits and schedules them;
* a page that the program writes: a test compares it with what the program would write now;
* whatever else: `GROUND` names the test that holds it to the program.

What cannot be typed here is in `UNTYPED`, line by line, with the reason and what proves it instead.
"""

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import yaml

ROOT: Final = Path(__file__).parents[2]
PAGES: Final = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")]
)
_PRINTED: Final = "tests/conformance/test_what_the_documents_print_comes_out.py"
WRITTEN: Final = {
    "docs/conformance.md": _PRINTED,
    "docs/conformance/hami.md": _PRINTED,
    "docs/conformance/koordinator.md": _PRINTED,
    "docs/conformance/metax.md": _PRINTED,
    "docs/conformance/qgpu.md": _PRINTED,
    "docs/reference/commands.md": "tests/docs/test_the_reference_is_complete.py",
}
"""Pages that the program writes, and the test that compares them."""
_FENCE: Final = re.compile(r"^( *)(`{3,}|~{3,})(.*)$")
_SHELLS: Final = ("sh", "console")
_PROGRAMS: Final = ("partage ", "kubectl ", "sudo ", "make ")


class Block(NamedTuple):
    """One fenced block.

    Attributes:
        page: path in the repository.
        line: of the page where it begins, from 1.
        language: after the fence; empty when none is said.
        text: without the indentation of the fence.
    """

    page: str
    line: int
    language: str
    text: str

    @property
    def first(self) -> str:
        """Its first line that is not empty; names it in tables."""
        return next((one.strip() for one in self.text.splitlines() if one.strip()), "")

    def __str__(self) -> str:
        return f"{self.page}:{self.line}: {self.first}"


class Line(NamedTuple):
    """One command line.

    Attributes:
        page: where it stands.
        text: without prompt and comment; continued lines are joined.
        shown: what the page prints below it; None when it prints nothing.
    """

    page: str
    text: str
    shown: str | None = None

    @property
    def words(self) -> list[str]:
        """The program and its arguments, without pipes, redirections and what comes after."""
        found = shlex.split(self.text)
        ends = [n for n, word in enumerate(found) if word in ("|", ">", "||", "&&", "<")]
        return found[: min(ends, default=len(found))]

    @property
    def outline(self) -> bool:
        """Whether it tells the form of a command instead of one."""
        return bool(re.search(r"(^|\s)\[-|\.\.\.|\bFILE…", self.text))

    def __str__(self) -> str:
        return f"{self.page}: {self.text}"


class Untyped(NamedTuple):
    """Why a line is not typed by any test, and which test stands for it."""

    why: str
    proof: str


_INSTALL: Final = "docs/how-to/install.md"
_ASKING: Final = "docs/reference/asking.md"
_TRACE: Final = "docs/how-to/trace-a-pod.md"
_RECORD: Final = "docs/how-to/take-a-decision-again.md"
_TRACED: Final = "tests/tracing/test_collectors_are_sent_otlp.py"
_FOLLOWED: Final = "tests/embedded/test_the_pages_are_followed.py"
_OFFLINE: Final = "tests/packaging/test_the_package_is_whole.py::test_it_installs_offline_from_a_folder_of_wheels"
_IMAGE: Final = (
    "tests/pods/test_the_images_have_what_they_need_and_no_more.py::test_it_says_what_it_is"
)
_IMAGES: Final = "docs/how-to/build-the-images.md"
_UNINSTALL: Final = "docs/how-to/uninstall.md"
_LEFT: Final = "tests/cluster/test_nothing_is_left_after_it_ran.py::test_nothing_is_left"
_FILES: Final = "tests/docs/test_what_pages_show_comes_out.py::test_a_nodes_files_go"
_CHANGING: Final = "docs/how-to/change-a-running-share.md"
_ADJUSTED: Final = (
    "tests/cluster/test_a_genuine_server_keeps_the_rules.py"
    "::test_adjustments_are_written_as_a_genuine_server_takes_them"
)
UNTYPED: Final[Mapping[tuple[str, str], Untyped]] = {
    (_INSTALL, "make image"): Untyped("no registry has the bases where tests run", _IMAGE),
    (_INSTALL, "for image in partage kube-scheduler"): Untyped(
        "there is no registry to push to", _IMAGE
    ),
    (_INSTALL, "kubectl get --raw /api/v1/namespaces/partage-system/services"): Untyped(
        "no API server of the tests reaches Services of pods; the chart has this one",
        "tests/docs/test_every_block_has_a_proof.py::test_the_port_that_the_page_asks_is_the_charts",
    ),
    (_INSTALL, "pip wheel"): Untyped("it asks PyPI for everything again", _OFFLINE),
    (_INSTALL, "pip install"): Untyped("it would change the environment of the tests", _OFFLINE),
    (_CHANGING, "kubectl annotate pod trainer"): Untyped(
        "no container of the page's cluster runs the library", _ADJUSTED
    ),
    (_CHANGING, "kubectl get pod trainer"): Untyped("the same", _ADJUSTED),
    (_TRACE, "docker run"): Untyped("there is no runtime of images where tests run", _TRACED),
    (_TRACE, "pip install"): Untyped("it would change the environment of the tests", _TRACED),
    (_TRACE, "OTEL_BSP_SCHEDULE_DELAY"): Untyped(
        "it needs the collector of the line before", _TRACED
    ),
    (_UNINSTALL, "helm uninstall"): Untyped(
        "it runs a Job, and the page's cluster has no nodes", _LEFT
    ),
    (_UNINSTALL, "awk"): Untyped("it is for a node's own root folder", _FILES),
    (_UNINSTALL, "rm -rf"): Untyped("the same", _FILES),
    (_RECORD, "kubectl -n partage-system exec"): Untyped(
        "no container of the page's cluster runs",
        "tests/packaging/test_pods_of_the_chart_take_what_is_given.py::test_a_record_of_decisions_has_room_for_two",
    ),
    (_ASKING, "source <(partage completion zsh)"): Untyped(
        "zsh is not there; what it would read is looked at", f"{_FOLLOWED}::STORIES"
    ),
    (_ASKING, "partage completion fish"): Untyped(
        "fish is not there; what it would read is looked at", f"{_FOLLOWED}::STORIES"
    ),
}
"""Page and beginning of a line, to why nothing types it. `make` is asked what it would do instead:
`make run` starts what the followed pages start, and `make test` runs these tests."""
_SHOWN: Final = "tests/docs/test_what_pages_show_comes_out.py"
_INSTANCES: Final = "docs/how-to/use-hardware-instances.md"
_HALF: Final = "docs/how-to/ask-for-half-a-gpu.md"
_NRI: Final = f"{_SHOWN}::test_nri_is_on_with_what_the_page_prints"
GROUND: Final[Mapping[tuple[str, str], str]] = {
    ("ARCHITECTURE.md", "manifests ──wire"): f"{_SHOWN}::test_the_drawing_names_packages",
    ("docs/concepts.md", "card 0"): f"{_SHOWN}::test_the_drawn_cards_are_full",
    ("docs/concepts.md", "user ── pod"): f"{_SHOWN}::test_the_drawings_use_words_that_exist",
    (
        "docs/concepts.md",
        "in the cluster",
    ): f"{_SHOWN}::test_the_drawn_programs_are_those_of_the_chart",
    ("docs/concepts.md", "plugin"): f"{_SHOWN}::test_the_two_ways_of_asking_are_there",
    ("docs/concepts.md", "webhook away"): f"{_SHOWN}::test_the_drawings_use_words_that_exist",
    (
        "docs/how-to/beside-kueue.md",
        "apiVersion: kueue",
    ): "tests/packaging/test_kueue_counts_what_every_protocol_asks.py::test_the_queue_of_the_page_covers_all_that_requests_become",
    (
        _HALF,
        "apiVersion: batch",
    ): "tests/packaging/test_kueue_counts_what_every_protocol_asks.py::test_the_job_of_the_page_needs_the_quota_that_it_says",
    (
        "docs/how-to/certificates.md",
        "apiVersion: cert-manager",
    ): "tests/packaging/test_the_chart_gives_rights_with_their_rule.py::test_the_certificate_of_the_page_is_the_charts",
    (_INSTALL, "agent:"): f"{_SHOWN}::test_values_for_the_agent_are_values_of_the_chart",
    (
        "docs/how-to/first-card.md",
        "python3 bench/gpu.py",
    ): "tests/native/test_the_gpu_script_runs.py::test_it_runs_to_its_end_with_nothing_but_python",
    ("docs/how-to/run-the-agent.md", "[plugins"): _NRI,
    (
        "docs/isolation.md",
        "isolation:",
    ): "tests/packaging/test_the_chart_takes_values_as_typed.py::test_rules_for_wishes_reach_the_scheduler",
    (
        "docs/how-to/run-the-scheduler.md",
        "apiVersion: kubescheduler",
    ): f"{_SHOWN}::test_the_second_scheduler_is_configured_as_the_program_does",
    (
        _IMAGES,
        "image:",
    ): "tests/packaging/test_the_chart_takes_values_as_typed.py::test_a_digest_goes_before_the_tag",
    (
        "docs/reference/plugin.md",
        "apiVersion: kubescheduler",
    ): f"{_SHOWN}::test_the_plugin_is_configured_as_the_page_says",
    (
        _INSTANCES,
        '{"nodeconfig"',
    ): f"{_SHOWN}::test_a_node_is_put_in_mode_mig_and_gives_two_instances",
    (
        _INSTANCES,
        "devicePlugin:",
    ): f"{_SHOWN}::test_cards_are_cut_into_the_layouts_of_the_page_alone",
    (_INSTANCES, "needs 3g.20gb"): f"{_SHOWN}::test_a_pod_in_the_way_is_told_as_printed",
    (_INSTANCES, "needs 3g.40gb"): f"{_SHOWN}::test_others_instances_are_told_as_printed",
    (_INSTANCES, "batch/big waits"): f"{_SHOWN}::test_a_plan_of_restarts_is_printed_as_shown",
    (
        "docs/how-to/find-out-why-a-pod-waits.md",
        "team/train-0 waits",
    ): f"{_SHOWN}::test_what_is_free_in_sum_is_on_no_card_as_shown",
    (
        "docs/how-to/watch-it.md",
        "scrape_configs",
    ): f"{_SHOWN}::test_prometheus_finds_every_program_by_its_labels_and_ports",
    (
        "docs/how-to/watch-it.md",
        "rule_files",
    ): f"{_SHOWN}::test_the_rules_have_the_name_that_the_page_loads",
    (
        "docs/isolation.md",
        "partage-limits 2",
    ): f"{_SHOWN}::test_the_file_of_limits_is_what_the_agent_writes",
    (
        "docs/reference/agent-discovery.md",
        "model:",
    ): f"{_SHOWN}::test_simulated_devices_are_those_of_the_file",
    (
        "docs/reference/schedule.md",
        '{"pods"',
    ): f"{_SHOWN}::test_the_outline_of_the_json_has_the_keys_that_come",
}
"""Page and beginning of a block that is neither typed nor applied, to the test that holds it to the
program."""
_INSTALLERS: Final = ("helm", "kubectl", "curl")
_RUNNING: Final = "docs/how-to/stay-available.md"
"""It asks about the parts that an installation runs."""
_AUTOSCALER: Final = "docs/how-to/beside-an-autoscaler.md"
"""It changes a Deployment that no page of ours makes."""


def read(page: str, text: str) -> Iterator[Block]:
    """The blocks of a page.

    Raises:
        ValueError: a fence is not closed.
    """
    opened: tuple[str, str, str, int] | None = None
    inside: list[str] = []
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        found = _FENCE.match(line.rstrip("\n"))
        if opened is None:
            if found:
                opened, inside = (found[1], found[2], found[3].strip(), number), []
            continue
        indent, mark, language, begun = opened
        if found and found[2][:3] == mark[:3] and len(found[2]) >= len(mark) and not found[3]:
            yield Block(page, begun, language, "".join(inside))
            opened = None
        else:
            inside.append(line.removeprefix(indent))
    if opened is not None:
        raise ValueError(f"{page}: the block of line {opened[3]} is not closed")


def _all() -> list[Block]:
    return [
        block
        for path in PAGES
        for block in read(str(path.relative_to(ROOT)), path.read_text("utf-8"))
    ]


BLOCKS: Final = [block for block in _all() if block.page not in WRITTEN]


def is_shell(block: Block) -> bool:
    """Whether its lines are typed."""
    return block.language in _SHELLS or (not block.language and block.text.startswith(_PROGRAMS))


def is_manifest(block: Block) -> bool:
    """Whether it holds objects that a cluster takes."""
    grounded = any(block.page == page and block.first.startswith(one) for page, one in GROUND)
    if block.language != "yaml" or grounded:
        return False
    return all(
        isinstance(one, dict) and one.get("kind") and one.get("metadata")
        for one in yaml.safe_load_all(block.text)
    )


def lines(block: Block) -> list[Line]:
    """The command lines of a block of a shell."""
    text = re.sub(r"\\\n\s*", "", block.text)
    if block.language != "console":
        return [Line(block.page, plain) for one in text.splitlines() if (plain := _plain(one))]
    found = []
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        found.append(Line(block.page, _plain(command), shown or None))
    return found


def _plain(line: str) -> str:
    """The line without its comment."""
    return re.sub(r"(^|\s+)#( .*|)$", "", line).strip()


LINES: Final = [line for block in BLOCKS if is_shell(block) for line in lines(block)]


def untyped(line: Line) -> Untyped | None:
    """Why it is not typed, if it is not."""
    return next(
        (
            reason
            for (page, start), reason in UNTYPED.items()
            if line.page == page and line.text.startswith(start)
        ),
        None,
    )


def typed(page: str) -> list[Line]:
    """The lines of a page that are to be typed, in order."""
    return [one for one in LINES if one.page == page and not one.outline and not untyped(one)]


TRANSLATED: Final = "docs/zh/"
"""Pages here have the lines of the English ones, and are typed there."""


def on_genuine(line: Line) -> bool:
    """Whether a line is about an installation, and so typed against a genuine API server."""
    return line.page in (_RUNNING, _AUTOSCALER) or (
        line.page in _INSTALLING and line.words[0] in _INSTALLERS
    )


_INSTALLING: Final = {line.page for line in LINES if line.text.startswith("helm ")}
