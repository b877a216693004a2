"""YAML and JSON, one document or many, files and folders."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from manifests import card, device, node, pod

from partage.model.errors import InvalidDocument
from partage.wire import shapes
from partage.wire.documents import decode, precedes, read_paths
from partage.wire.json_values import keys_given_twice

A, B = json.dumps(node("a")), json.dumps(node("b"))
YAML = "kind: Node\nmetadata:\n  name: a\n---\nkind: Node\nmetadata: {name: b}\n"
TYPED = json.dumps(
    {
        "apiVersion": "v1",
        "kind": "NodeList",
        "items": [{"metadata": {"name": "a"}}, {"metadata": {"name": "b"}}],
    }
)
NESTED = json.dumps(
    {
        "kind": "List",
        "items": [{"kind": "NodeList", "items": [{"metadata": {"name": "a"}}]}, json.loads(B)],
    }
)


@pytest.mark.parametrize(
    "text",
    [
        pytest.param(YAML, id="yaml"),
        pytest.param("---\n---\n" + YAML + "---\n", id="yaml with empty documents"),
        pytest.param(f"[{A},{B}]".join(('{"kind":"List","items":', "}")), id="list"),
        pytest.param(TYPED, id="typed list"),
        pytest.param(NESTED, id="lists in a list"),
        pytest.param(
            "kind: NodeList\nitems:\n- metadata: {name: a}\n- metadata: {name: b}\n",
            id="yaml list",
        ),
        pytest.param(A + B, id="concatenated"),
        pytest.param(f"  {A}\n{B}\n", id="one a line"),
        pytest.param(json.dumps(json.loads(A), indent=1) + "\n" + B, id="indented"),
        pytest.param("\ufeff" + A + B, id="byte order mark"),
        pytest.param(
            "{kind: Node, metadata: {name: a}}\n---\n{kind: Node, metadata: {name: b}}",
            id="flow style",
        ),
        pytest.param(f"{A}\n---\n{B}", id="json between yaml marks"),
        pytest.param(
            "a: &x\n  name: a\nkind: Node\nmetadata: {<<: *x}\n---\n" + YAML[-32:], id="merge keys"
        ),
    ],
)
def test_every_way_of_writing_two_documents_gives_both(text: str) -> None:
    """Names arrive in the order written, without a note."""
    batch = decode("f.yaml", text.encode())

    assert [document.name for document in batch.documents] == ["a", "b"]
    assert batch.notes == ()


def test_json_between_yaml_marks_is_read_whatever_the_file_is_called() -> None:
    """As kubectl takes it: from `f.json`, too, and however much of it there is."""
    batch = decode("f.json", f"{A}\n---\n{B}\n---\n".encode())
    many = decode("f.yaml", "\n---\n".join([A, B] * 50_000).encode())

    assert [one.name for one in batch.documents] == ["a", "b"]
    assert len(many.documents) == 100_000


@pytest.mark.parametrize(
    "text",
    ["", "---\n", "# nothing\n", '{"kind":"List","items":null}', "null", '{"kind":"PodList"}'],
)
def test_a_source_may_be_empty(text: str) -> None:
    """Nothing in, nothing out."""
    assert decode("f", text.encode()).documents == ()


@pytest.mark.parametrize(
    "manifest",
    [
        {"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x"}},
        {"apiVersion": "batch/v1", "kind": "JobTemplate"},
        {"apiVersion": "other.io/v1", "kind": "Pod", "spec": 5},
        {"apiVersion": "v1", "kind": "Device"},
        {"apiVersion": "kustomize.config.k8s.io/v1beta1", "kind": "Kustomization"},
    ],
)
def test_unknown_kinds_are_skipped_with_a_note(manifest: dict[str, object]) -> None:
    """A kind of another API group is another kind."""
    batch = decode("f", json.dumps(manifest).encode())

    assert batch.documents == ()
    assert "is not known here; skipped" in batch.notes[0]


def test_dates_and_pci_addresses_stay_texts() -> None:
    """The MetaX document prints the year 20256; YAML 1.1 would take 0000:38:00.0 for a number to base 60."""
    text = (
        "kind: Device\nmetadata: {name: 2025-03-15}\nspec:\n  devices:\n  - minor: 0\n"
        "    topology: {busID: 0000:38:00.0, pcieID: 12:30}\n"
        "    conditions: [{lastTransitionTime: 20256-03-15T10:00:00Z, type: Healthy}]\n"
    )

    (document,) = decode("f", text.encode()).documents

    assert document.name == "2025-03-15"
    assert isinstance(document.shape, shapes.Device)
    assert document.shape.spec is not None
    topology = (document.shape.spec.devices or [])[0].topology
    assert topology is not None
    assert (topology.bus, topology.pcie) == ("0000:38:00.0", "12:30")


def test_quantities_may_be_texts_or_numbers() -> None:
    """YAML authors leave quotes out."""
    text = "kind: Node\nmetadata: {name: a}\nstatus:\n  allocatable: {cpu: 1.5, memory: 1024, pods: '5', x: ~}\n"

    (document,) = decode("f", text.encode()).documents

    assert isinstance(document.shape, shapes.Node)
    assert document.shape.status is not None
    assert document.shape.status.allocatable == {
        "cpu": 1.5,
        "memory": 1024,
        "pods": "5",
        "x": None,
    }


@pytest.mark.parametrize(
    ("data", "message"),
    [
        pytest.param(b"a: \xff", "f: not UTF-8 text (byte 4)", id="encoding"),
        pytest.param(
            "a: 1".encode("utf-16"), "looks like UTF-16: save it as UTF-8", id="powershell"
        ),
        pytest.param(b"a: b: c", "f: not YAML: line 1, column 5", id="yaml"),
        pytest.param(b'{"kind":"Node"', "f: not JSON: Input data was truncated", id="json"),
        pytest.param(b'{"kind":"Node"}}', "f: not JSON", id="json with a rest"),
        pytest.param(b"image: {{ .Values.image }}", "render the chart first", id="template"),
        pytest.param(
            b"{{ .Values.image }}", "render the chart first", id="template in flow style"
        ),
        pytest.param(b"metadata: {name: x}", "f: document 1: field kind: missing", id="no kind"),
        pytest.param(b"- a", "f: document 1: expected object, got array", id="a sequence"),
        pytest.param(
            b"kind: Node\nmetadata: {}", "(Node): field metadata.name: missing", id="no name"
        ),
        pytest.param(
            b"kind: Pod\nmetadata: {name: p, labels: {a: 1}}",
            "f: document 1 (Pod): field metadata.labels[a]: expected str | null, got int",
            id="label",
        ),
        pytest.param(
            b'{"kind":"Pod","metadata":{"name":"p","namespace":"ns"},"spec":{"priority":"high"}}',
            "f: document 1 (Pod ns/p): field spec.priority: expected int | null, got str",
            id="type",
        ),
        pytest.param(
            b'{"kind":"NodeList","items":[{"metadata":{"name":"a"}},{"metadata":{"name":"b"},"spec":[]}]}',
            "f: document 2 (Node b): field spec:",
            id="second item",
        ),
        pytest.param(
            b'{"kind":"NodeList","items":{}}',
            "f: document 1: field items: expected array",
            id="items",
        ),
        pytest.param(
            b'{"kind":"NodeList","items":[3]}', "f: document 1: expected object", id="item"
        ),
        pytest.param(
            "a: \u00e9\nc: \x07".encode(),
            "f: not YAML: line 2: control character U+0007; write it as an escape, or give a text file",
            id="control character",
        ),
        pytest.param(b'{"a" 1}', "f: not JSON: expected ':'", id="colon"),
        pytest.param(b"!!bool x", "f: not YAML", id="tag"),
        pytest.param(b"? [a]\n: b", "f: not YAML", id="key"),
        pytest.param(b"&a [*a]", "an alias contains itself", id="recursion"),
        pytest.param(b"- " * 100_000 + b"a", "nested deeper than 200", id="deep sequence"),
        pytest.param(b"[" * 100_000, "f: nested too deeply", id="deep flow"),
        pytest.param(b"a: " + b"[" * 100_000, "nested deeper than 200", id="deep flow in yaml"),
        pytest.param(
            b"a: " + b'["]",' * 100_000 + b"1" + b"]" * 100_000,
            "nested deeper than 200",
            id="deep flow with brackets in texts",
        ),
        pytest.param(
            b"".join(b" " * 400 * line + b"- " * 199 + b"\n" for line in range(60))
            + b" " * 24_000
            + b"a",
            "nested deeper than 200",
            id="deep sequences on many lines",
        ),
        pytest.param(
            b"a: &a " + b"[" * 150 + b"]" * 150 + b"\nb: " + b"[" * 150 + b"*a" + b"]" * 150,
            "nested deeper than 200",
            id="deep by an alias",
        ),
        pytest.param(
            b"\n".join(b" " * i + b"a:" for i in range(300)),
            "nested deeper than 200",
            id="deep mapping",
        ),
        pytest.param(
            b'{"kind":"List","items":[' * 9 + b"]}" * 9,
            "lists are nested deeper than 8",
            id="deep lists",
        ),
        pytest.param(b"x" * (2**26 + 1), "give large lists as JSON", id="size"),
    ],
)
def test_what_cannot_be_decoded_is_named(data: bytes, message: str) -> None:
    """The error names file, document and field."""
    with pytest.raises(InvalidDocument) as caught:
        decode("f", data)

    assert message in str(caught.value)


def test_aliases_cannot_multiply() -> None:
    """Nine references to nine references, twelve times, are refused before they are built."""
    levels = [b"a: &a [" + b",".join([b"1"] * 9) + b"]"]
    for level in range(12):
        here, below = bytes([98 + level]), bytes([97 + level])
        levels.append(here + b": &" + here + b" [" + b",".join([b"*" + below] * 9) + b"]")

    with pytest.raises(InvalidDocument, match="aliases stand for more than"):
        decode("f", b"\n".join(levels))


def test_a_long_json_file_is_not_tried_as_yaml() -> None:
    """A truncated dump is reported at once, as JSON."""
    data = json.dumps({"kind": "List", "items": ["x" * 100] * 12_000}).encode()[:-2]

    with pytest.raises(InvalidDocument, match="not JSON"):
        decode("f.yaml", data)


def test_generated_names_differ_and_repeat() -> None:
    """`generateName` becomes a name that is the same in every run."""
    pods = [{"kind": "Pod", "metadata": {"generateName": "web-"}}] * 2
    data = "\n".join(map(json.dumps, pods)).encode()

    first, second = decode("f", data).documents

    assert first.name.startswith("web-")
    assert first.name != second.name
    assert [d.name for d in decode("f", data).documents] == [first.name, second.name]


def test_namespaces_default() -> None:
    """A namespaced object without a namespace is in `default`; a node is in none."""
    a, b, c = decode(
        "f", "\n".join(map(json.dumps, (pod(), node(), device("n", card())))).encode()
    ).documents

    assert (a.identity, b.identity) == (("Pod", "default", "web"), ("Node", "", "n1"))
    assert (a.label, c.label) == ("Pod default/web", "Device n")


def test_folders_are_read_in_order(tmp_path: Path) -> None:
    """Manifests are read in the order of names, those of folders inside too; hidden folders are not."""
    for name in ("b.yml", "a.yaml", "c.json", "README.md"):
        (tmp_path / name).write_text(name)
    (tmp_path / "d.yaml").mkdir()
    (tmp_path / "d.yaml" / "e.yaml").write_text("e.yaml")
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "f.yaml").write_text("f.yaml")

    found = read_paths([tmp_path, tmp_path / "README.md"])

    assert [data for _name, data in found] == [
        b"a.yaml",
        b"b.yml",
        b"c.json",
        b"e.yaml",
        b"README.md",
    ]
    assert found[0][0] == str(tmp_path / "a.yaml")


def test_missing_files_and_empty_folders_are_errors(tmp_path: Path) -> None:
    """Both are named."""
    with pytest.raises(InvalidDocument, match=r"gone\.yaml: cannot be read: No such file"):
        read_paths([tmp_path / "gone.yaml"])
    with pytest.raises(InvalidDocument, match=r"no \*\.yaml"):
        read_paths([tmp_path])
    with pytest.raises(InvalidDocument, match="cannot be read"):
        read_paths([tmp_path / "a\x00b"])


HUGE = "9" * 5000
LIMITS = "kind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: c, resources: {limits: {x: NUMBER}}}]}"
JSON_LIMITS = '{"kind":"Pod","metadata":{"name":"a"},"spec":{"containers":[{"resources":{"limits":{"x":NUMBER}}}]}}'


@pytest.mark.parametrize("number", [HUGE, f"-{HUGE}", "1e400"])
@pytest.mark.parametrize(
    "text", [LIMITS, JSON_LIMITS, JSON_LIMITS + JSON_LIMITS], ids=["yaml", "json", "concatenated"]
)
def test_quantities_that_no_decoder_holds_reach_their_reader(text: str, number: str) -> None:
    """Whether that is a fault depends on the name, which the decoder does not know."""
    document, *_others = decode("f", text.replace("NUMBER", number).encode()).documents

    assert isinstance(document.shape, shapes.Pod)
    assert document.shape.spec is not None
    (container,) = document.shape.spec.containers or []
    assert container.resources is not None
    assert str((container.resources.limits or {})["x"]) in (number, "inf")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param(
            '{"kind":"Pod","metadata":{"name":"a","labels":{"ok":"x","a.b/c":5}}}',
            "field metadata.labels[a.b/c]: expected str | null, got int",
            id="label",
        ),
        pytest.param(
            '{"kind":"Pod","metadata":{"name":"a","labels":{"big":"' + HUGE + '","a":[1e400]}}}',
            "field metadata.labels[a]: ",
            id="label beside what no decoder holds",
        ),
        pytest.param(
            "kind: Pod\nmetadata: {name: a, annotations: {n: ~, x: {}}}",
            "field metadata.annotations[x]: expected str | null, got object",
            id="annotation",
        ),
        pytest.param(
            "kind: ConfigMap\nmetadata: {name: a}\ndata: {x: y, policy: [1]}",
            "field data[policy]: expected str | null, got array",
            id="data",
        ),
        pytest.param(
            "kind: Pod\nmetadata: {name: a}\nspec: {nodeSelector: {zone: true}}",
            "field spec.nodeSelector[zone]: expected str | null, got bool",
            id="selector",
        ),
        pytest.param(
            "kind: Node\nmetadata: {name: a}\nstatus: {allocatable: {5: 1}}",
            "field status.allocatable: a key: expected str, got int",
            id="a key",
        ),
        pytest.param(
            '{"kind":"Pod","metadata":{"name":"a"},"spec":{"priority":' + HUGE + "}}",
            "field spec.priority: integer value out of range",
            id="a number that is no quantity",
        ),
    ],
)
def test_what_cannot_be_decoded_is_named_with_its_key(text: str, message: str) -> None:
    """Labels, annotations and data may have many entries."""
    with pytest.raises(InvalidDocument) as caught:
        decode("f", text.encode())

    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "notes"),
    [
        pytest.param(
            "kind: Pod\nmetadata: {name: a}\nspec:\n  nodeName: x\n  nodeName: y\n",
            ["f: line 5: key 'nodeName' is given twice; the last holds"],
            id="twice",
        ),
        pytest.param(
            "{kind: Pod, metadata: {name: a, name: b}}",
            ["f: line 1: key 'name' is given twice; the last holds"],
            id="flow",
        ),
        pytest.param(
            "x: &d {nodeName: x}\nkind: Pod\nmetadata: {name: a}\nspec: {<<: *d, nodeName: y}",
            [],
            id="merged",
        ),
        pytest.param(
            "kind: Pod\nmetadata: {name: a}\n---\nkind: Pod\nmetadata: {name: b}",
            [],
            id="two documents",
        ),
        pytest.param(
            "kind: Pod\nmetadata: {name: a}\nspec: {? [b] : c}", None, id="a key that is no text"
        ),
    ],
)
def test_a_key_that_is_given_twice_is_told(text: str, notes: list[str] | None) -> None:
    """Decoders keep one of the two without a word; which one was meant is unknown."""
    if notes is None:
        with pytest.raises(InvalidDocument):
            decode("f", text.encode())
        return

    assert list(decode("f", text.encode()).notes) == notes


def test_notes_on_keys_are_bounded() -> None:
    """A generated file may repeat them without end."""
    text = "kind: Pod\nmetadata: {name: a}\nx:\n" + "  a: 1\n" * 1000

    assert len(decode("f", text.encode()).notes) == 100


POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "a", "labls": {}},
    "spec": {
        "contaners": [],
        "containers": [{"name": "m", "image": "i", "resources": {"limit": {}}}],
    },
}
TWICE = b'{"kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": [{"name": "b", "name": "c"}]}}'


@pytest.mark.parametrize("write", [json.dumps, yaml.safe_dump])
def test_fields_that_a_kind_lacks_are_told_with_the_nearest(write: Callable[[Any], str]) -> None:
    """The note gives the path at any depth; an object that a server returned gets no such note."""
    told = decode("f", write(POD).encode(), written=True)

    where = "f: document 1 (Pod default/a): field"
    assert sorted(told.doubtful) == [
        f"{where} metadata.labls is not known and does nothing; did you mean labels?",
        f"{where} spec.containers[0].resources.limit is not known and does nothing; did you mean limits?",
        f"{where} spec.contaners is not known and does nothing; did you mean containers?",
    ]
    assert set(told.doubtful) <= set(told.notes)
    assert not decode("f", write(POD).encode()).doubtful
    read = {**POD, "metadata": {**POD["metadata"], "uid": "1"}}
    assert not decode("f", write(read).encode(), written=True).doubtful


@pytest.mark.parametrize(
    ("kind", "version", "known"),
    [
        ("Deployment", "apps/v1", True),
        ("Deployment", None, True),
        ("Job", None, True),
        ("Node", "v1", True),
        ("ResourceClaim", "resource.k8s.io/v1", True),
        ("Device", "scheduling.koordinator.sh/v1alpha1", False),
        ("Deployment", "extensions/v1beta1", False),
    ],
)
def test_only_kinds_with_a_table_are_looked_at(
    kind: str, version: str | None, *, known: bool
) -> None:
    """Vendors add fields of their own to Devices; old versions have no table."""
    value = {"kind": kind, "metadata": {"name": "a"}, "spec": {"nope": 1}}
    told = decode(
        "f",
        json.dumps(value | ({"apiVersion": version} if version else {})).encode(),
        written=True,
    )

    assert bool(told.doubtful) is known


def test_doubts_are_bounded() -> None:
    """A file of thousands of misspelt fields gets a hundred notes."""
    spec = {f"nope{number}": 1 for number in range(1000)}
    text = json.dumps({"kind": "Pod", "metadata": {"name": "a"}, "spec": spec})

    assert len(decode("f", (text * 3).encode(), written=True).doubtful) == 100


def test_keys_given_twice_in_json_are_told_by_path() -> None:
    """YAML's are reported by line."""
    (told,) = decode("f", TWICE, written=True).doubtful

    assert told.endswith("field spec.containers[0].name is given twice; the last holds")
    assert keys_given_twice(b'{"a": [{"b": 1, "b": 2}], "c": {"d": 1}, "c": {}}') == [
        "c",
        "a[0].b",
    ]
    assert not keys_given_twice(b"[" * 100_000)


@pytest.mark.parametrize(
    ("one", "other", "older"),
    [
        ("9", "10", True),
        ("10", "9", False),
        ("010", "10", False),
        ("9" * 5_000, "1" + "0" * 5_000, True),
        ("9" * 5_000, "1", False),
        ("", "1", False),
        ("1", "abc", False),
        ("1", "\uff12", False),
    ],
    ids=lambda value: str(value)[:6],
)
def test_versions_of_any_length_are_compared(one: str, other: str, older: bool) -> None:  # noqa: FBT001
    """Python makes no number of more than 4,300 digits, and its error ended what read the pod."""
    assert precedes(one, other) is older


def test_the_head_of_a_snapshot_is_no_unknown_kind() -> None:
    """Its pages say that other commands read a snapshot as manifests, so they skip its first object without a note."""
    assert decode("f", b'{"kind": "Snapshot", "apiVersion": "partage.io/v1"}').notes == ()
    assert decode("f", b'{"kind": "Snapshot", "apiVersion": "x/v1"}').notes


@pytest.mark.parametrize(
    ("kind", "hint"),
    [
        ("pod", "; did you mean Pod?; skipped"),
        ("Deploymnet", "; did you mean Deployment?; skipped"),
        ("SimulatedNode", "; partage up alone makes nodes of it; skipped"),
        ("CronJob", "; no pods are made of it, try a Deployment or a Job; skipped"),
        ("Lease", "is not known here; skipped"),
    ],
)
def test_an_unknown_kind_that_is_nearly_a_known_one_is_told_so(kind: str, hint: str) -> None:
    """Kubernetes' kinds have capitals; a note of a skipped pod alone did not say what to write."""
    (note,) = decode("f", f"kind: {kind}\nmetadata: {{name: a}}".encode()).notes

    assert note.endswith(hint)
