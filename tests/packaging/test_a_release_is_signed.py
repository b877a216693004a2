"""deploy/evidence.py: what a release is made of, where it comes from, and that it is unchanged, by other programs."""

import base64
import importlib.util
import io
import json
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def evidence() -> ModuleType:
    """The script."""
    spec = importlib.util.spec_from_file_location("evidence", ROOT / "deploy" / "evidence.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["evidence"] = module
    spec.loader.exec_module(module)
    return module


def image(path: Path) -> None:
    """The archive of an image of two layers: the second has a package more."""

    def tar(**files: bytes) -> bytes:
        made = io.BytesIO()
        with tarfile.open(fileobj=made, mode="w") as archive:
            for name, data in files.items():
                info = tarfile.TarInfo(name.replace("__", "/"))
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
        return made.getvalue()

    first = (
        b"Package: libc6\nStatus: install ok installed\nArchitecture: amd64\nVersion: 2.41-12\n"
    )
    second = first + b"\nPackage: python3\nArchitecture: amd64\nVersion: 3.13.5-1\n"
    layers = {
        "a.tar": tar(var__lib__dpkg__status=first),
        "b.tar": tar(var__lib__dpkg__status=second),
    }
    manifest = json.dumps([{"Config": "c.json", "Layers": list(layers)}]).encode()
    with tarfile.open(path, "w") as archive:
        for name, data in {"manifest.json": manifest, **layers}.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


@pytest.fixture
def dist(tmp_path: Path) -> Path:
    """A wheel, an image, and a pair of keys beside the folder."""
    folder = tmp_path / "dist"
    folder.mkdir()
    (folder / "partage-0.1.0-py3-none-any.whl").write_bytes(b"the wheel")
    image(folder / "partage.tar")
    key = ec.generate_private_key(ec.SECP256R1())
    password = serialization.BestAvailableEncryption(b"offline")
    (tmp_path / "release.key").write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, password)
    )
    (tmp_path / "release.pub").write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return folder


def run(dist: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """As it is typed."""
    key = dist.parent / ("release.pub" if "--verify" in options else "release.key")
    return subprocess.run(
        [
            sys.executable,
            str(ROOT / "deploy" / "evidence.py"),
            str(dist),
            "--key",
            str(key),
            *options,
        ],
        capture_output=True,
        text=True,
        check=False,
        env={"RELEASE_KEY_PASSWORD": "offline", "PATH": "/usr/bin:/bin"},
    )


def test_what_was_signed_is_verified_and_openssl_says_so_too(dist: Path) -> None:
    """Signatures are cosign's: of the file itself, ECDSA with SHA-256, DER in base64."""
    made = run(dist)
    assert made.returncode == 0, made.stderr
    told = run(dist, "--verify")
    assert told.returncode == 0, told.stderr
    assert told.stdout.split() == [
        "partage-0.1.0-py3-none-any.whl",
        "partage.tar",
        "sbom.cdx.json",
    ]
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl is not installed")
    for name in told.stdout.split():
        raw = dist.parent / "raw.sig"
        raw.write_bytes(base64.b64decode((dist / f"{name}.sig").read_bytes()))
        done = subprocess.run(
            [
                openssl,
                "dgst",
                "-sha256",
                "-verify",
                str(dist.parent / "release.pub"),
                "-signature",
                str(raw),
                str(dist / name),
            ],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.stdout == "Verified OK\n", done.stderr


def changed(dist: Path) -> None:
    """One byte of the wheel."""
    (dist / "partage-0.1.0-py3-none-any.whl").write_bytes(b"The wheel")


def added(dist: Path) -> None:
    """A file without a signature."""
    (dist / "partage-0.1.1-py3-none-any.whl").write_bytes(b"another")


def swapped(dist: Path) -> None:
    """Another file of the release under this name, with its own genuine signature."""
    for suffix in ("", ".sig"):
        shutil.copy(
            dist / f"partage.tar{suffix}", dist / f"partage-0.1.0-py3-none-any.whl{suffix}"
        )


def told_otherwise(dist: Path) -> None:
    """The statement is about other digests; its signature is the old one."""
    path = dist / "provenance.intoto.json"
    envelope = json.loads(path.read_text())
    payload = base64.b64decode(envelope["payload"]).replace(b"sha256", b"sha512", 1)
    path.write_text(json.dumps({**envelope, "payload": base64.b64encode(payload).decode()}))


def gone(dist: Path) -> None:
    """No signature of the image."""
    (dist / "partage.tar.sig").unlink()


@pytest.mark.parametrize(
    ("what", "named"),
    [
        (changed, "partage-0.1.0-py3-none-any.whl: not signed"),
        (added, "partage-0.1.1-py3-none-any.whl"),
        (swapped, "another file of this name"),
        (told_otherwise, "provenance.intoto.json"),
        (gone, "partage.tar"),
    ],
)
def test_what_was_changed_afterwards_is_refused_by_name(
    dist: Path, what: object, named: str
) -> None:
    """The file, its signature, or the statement."""
    assert run(dist).returncode == 0
    assert callable(what)
    what(dist)
    told = run(dist, "--verify")
    assert told.returncode == 2
    assert named in told.stderr


def test_the_bill_has_what_is_locked_and_what_the_image_installed(
    dist: Path, evidence: ModuleType
) -> None:
    """Python packages, Go modules, and Debian's packages of the last layer; each once, by its package URL."""
    assert run(dist).returncode == 0
    told = json.loads((dist / "sbom.cdx.json").read_text())
    assert (told["bomFormat"], told["specVersion"]) == ("CycloneDX", "1.6")
    purls = [one["purl"] for one in told["components"]]
    assert len(purls) == len(set(purls)) == len({one["bom-ref"] for one in told["components"]})
    assert {
        "pkg:deb/debian/libc6@2.41-12?arch=amd64",
        "pkg:deb/debian/python3@3.13.5-1?arch=amd64",
    } < {*purls}
    locked = (ROOT / "requirements/image.txt").read_text()
    for line in (one for one in locked.splitlines() if "==" in one and not one.startswith(" ")):
        name, version = line.split(" ")[0].split("==")
        assert f"pkg:pypi/{name}@{version.rstrip(';')}" in purls
    modules = [one for one in purls if one.startswith("pkg:golang/k8s.io/kubernetes@v")]
    assert len(modules) == 1
    assert evidence.ROOT == ROOT


def test_the_statement_names_the_commit_and_the_locks(dist: Path) -> None:
    """A reader of the tree can build the same, and see that it is the same."""
    assert run(dist).returncode == 0
    envelope = json.loads((dist / "provenance.intoto.json").read_text())
    payload = json.loads(base64.b64decode(envelope["payload"]))
    definition = payload["predicate"]["buildDefinition"]
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    source, *inputs = definition["resolvedDependencies"]
    assert source["digest"]["gitCommit"] == commit.stdout.strip()
    assert {one["uri"] for one in inputs} >= {"requirements/image.txt", "kube-scheduler/go.sum"}
    assert [one["name"] for one in payload["subject"]] == [
        "partage-0.1.0-py3-none-any.whl",
        "partage.tar",
        "sbom.cdx.json",
    ]


def test_what_cannot_be_signed_is_told(dist: Path, tmp_path: Path) -> None:
    """No file, no key, a key of another kind: a sentence, and 2."""
    empty = tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "other.key").write_text("no key")
    script = [sys.executable, str(ROOT / "deploy" / "evidence.py")]
    for folder, key, words in (
        (empty, "release.key", "no file of a release"),
        (dist, "missing.key", "missing.key"),
        (dist, "other.key", "evidence: "),
    ):
        done = subprocess.run(
            [*script, str(folder), "--key", str(tmp_path / key)],
            capture_output=True,
            text=True,
            check=False,
            env={"RELEASE_KEY_PASSWORD": "offline", "PATH": "/usr/bin:/bin"},
        )
        assert done.returncode == 2
        assert words in done.stderr
        assert "Traceback" not in done.stderr
