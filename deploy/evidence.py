"""Writes and signs a release's list of contents and origins, so that users need not trust its storage.

    .venv/bin/python deploy/evidence.py dist --key release.key             writes beside the files of dist/
    .venv/bin/python deploy/evidence.py dist --verify --key release.pub    2 if a file differs from the signed one

Writes `sbom.cdx.json` (CycloneDX 1.6: Python packages of the lock, Go modules of the kube-scheduler, Debian packages
of the archives of images in the folder), `provenance.intoto.json` (in-toto statement with SLSA's provenance 1, in a
DSSE envelope) and FILE.sig for every file but these. Formats are cosign's: `cosign verify-blob --key release.pub
--signature FILE.sig --insecure-ignore-tlog FILE` and `cosign verify-blob-attestation` give the same result. It asks no
network. The key is a PEM file of ECDSA on P-256, which never needs to be on a machine with a network, and
RELEASE_KEY_PASSWORD decrypts it.
"""

import argparse
import base64
import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterator
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

ROOT: Final = Path(__file__).parents[1]
_KIND: Final = "application/vnd.in-toto+json"
_SBOM, _PROVENANCE = "sbom.cdx.json", "provenance.intoto.json"
_INPUTS: Final = (
    "requirements/image.txt",
    "requirements/build.txt",
    "kube-scheduler/go.sum",
    "Dockerfile",
    "kube-scheduler/Dockerfile",
)
"""Inputs of the build beside the commit."""
_STATUS: Final = "var/lib/dpkg/status"
_ECDSA: Final = ec.ECDSA(hashes.SHA256())


class NotTrusted(Exception):
    """A file differs from the signed one, or cannot be signed; the message names it."""


def _digest(data: bytes) -> dict[str, str]:
    return {"sha256": sha256(data).hexdigest()}


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(  # noqa: S603 # our own words
        ["git", "-C", str(root), *arguments],  # noqa: S607
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise NotTrusted(f"git {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout.strip()


def _python(root: Path) -> Iterator[str]:
    lock = (root / "requirements/image.txt").read_text("utf-8")
    for name, version in re.findall(r"(?m)^([A-Za-z0-9._-]+)==([^ ;\\]+)", lock):
        yield f"pkg:pypi/{name.lower()}@{version}"


def _go(root: Path) -> Iterator[str]:
    text = (root / "kube-scheduler/go.mod").read_text("utf-8")
    for name, version in re.findall(r"(?m)^(?:require )?\s*([\w.\-/]+\.[\w.\-/]+) (v\S+)", text):
        yield f"pkg:golang/{name}@{version}"


def _member(archive: tarfile.TarFile, which: str | tarfile.TarInfo) -> bytes:
    file = archive.extractfile(which)
    return b"" if file is None else file.read()


def _debian(archive: Path) -> Iterator[str]:
    """Installed packages in the archive of an image, by the last layer that lists them."""
    told = b""
    with tarfile.open(archive) as outer:
        if "manifest.json" not in outer.getnames():
            return
        for name in json.loads(_member(outer, "manifest.json"))[0]["Layers"]:
            with tarfile.open(fileobj=outer.extractfile(name)) as layer:
                for one in layer:
                    if one.name.removeprefix("./") == _STATUS:
                        told = _member(layer, one)
    for part in told.decode().split("\n\n"):
        words = dict(re.findall(r"(?m)^(Package|Version|Architecture): (.+)$", part))
        if words:
            yield f"pkg:deb/debian/{words['Package']}@{words['Version']}?arch={words['Architecture']}"


def bill(root: Path, files: list[Path], version: str, moment: str) -> dict[str, Any]:
    """The content of the release, as CycloneDX 1.6.

    Args:
        root: of the repository.
        files: of the release; archives of images are looked into.
        version: of the release.
        moment: of the commit, in ISO format, so that the same tree has the same bill.
    """
    found = {*_python(root), *_go(root)}
    for file in files:
        if file.suffix == ".tar":
            found |= {*_debian(file)}
    components = []
    for purl in sorted(found):
        name, _, rest = purl.split("/", 1)[1].rpartition("@")
        components.append(
            {
                "type": "library",
                "name": name.removeprefix("debian/"),
                "version": rest.split("?")[0],
                "purl": purl,
                "bom-ref": purl,
            }
        )
    about = {"type": "application", "name": "partage", "version": version, "bom-ref": "partage"}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {"timestamp": moment, "component": about},
        "components": components,
    }


def statement(root: Path, files: list[Path], version: str) -> dict[str, Any]:
    """The origin of the release, as in-toto statement 1 with SLSA's provenance 1."""
    commit = _git(root, "rev-parse", "HEAD")
    source = {"uri": "git:partage", "digest": {"gitCommit": commit}}
    inputs = [{"uri": name, "digest": _digest((root / name).read_bytes())} for name in _INPUTS]
    clean = not _git(root, "status", "--porcelain", "--untracked-files=no")
    return {
        "_type": "https://in-toto.io/Statement/v1",
        "subject": [{"name": one.name, "digest": _digest(one.read_bytes())} for one in files],
        "predicateType": "https://slsa.dev/provenance/v1",
        "predicate": {
            "buildDefinition": {
                "buildType": "urn:partage:deploy/release.py",
                "externalParameters": {"version": version, "unchanged": clean},
                "resolvedDependencies": [source, *inputs],
            },
            "runDetails": {"builder": {"id": "urn:partage:by-hand"}},
        },
    }


def _encoded(payload: bytes) -> bytes:
    """The signed bytes of an envelope: DSSE's pre-authentication encoding."""
    return b"DSSEv1 %d %s %d %s" % (len(_KIND), _KIND.encode(), len(payload), payload)


def signed(folder: Path, key: ec.EllipticCurvePrivateKey, root: Path = ROOT) -> list[Path]:
    """Write the evidence beside the files of a folder; returns the written files.

    Raises:
        NotTrusted: there is nothing to sign, or the tree is no checkout.
    """
    files = _files(folder)
    if not files:
        raise NotTrusted(f"{folder}: no file of a release is there")
    version = tomllib.loads((root / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    moment = datetime.fromtimestamp(int(_git(root, "log", "-1", "--format=%ct")), UTC).isoformat()
    told = folder / _SBOM
    told.write_text(json.dumps(bill(root, files, version, moment), indent=1) + "\n", "utf-8")
    payload = json.dumps(statement(root, [*files, told], version), sort_keys=True).encode()
    signature = {"sig": base64.b64encode(key.sign(_encoded(payload), _ECDSA)).decode()}
    envelope = {
        "payloadType": _KIND,
        "payload": base64.b64encode(payload).decode(),
        "signatures": [signature],
    }
    (folder / _PROVENANCE).write_text(json.dumps(envelope) + "\n", "utf-8")
    written = [told, folder / _PROVENANCE]
    for file in [*files, told]:
        written.append(file.with_name(f"{file.name}.sig"))
        written[-1].write_bytes(base64.b64encode(key.sign(file.read_bytes(), _ECDSA)))
    return written


def verified(folder: Path, key: ec.EllipticCurvePublicKey) -> list[str]:
    """Compare the files of a folder with its evidence; the names of unchanged ones.

    Raises:
        NotTrusted: a file, a signature or the statement is missing or different.
    """
    try:
        envelope = json.loads((folder / _PROVENANCE).read_text("utf-8"))
        payload = base64.b64decode(envelope["payload"])
        key.verify(base64.b64decode(envelope["signatures"][0]["sig"]), _encoded(payload), _ECDSA)
        subjects = {one["name"]: one["digest"] for one in json.loads(payload)["subject"]}
    except (OSError, ValueError, KeyError, IndexError, TypeError, InvalidSignature) as error:
        raise NotTrusted(f"{_PROVENANCE}: not signed by this key ({error!r})") from error
    files = {one.name: one for one in [*_files(folder), folder / _SBOM]}
    if files.keys() != subjects.keys():
        raise NotTrusted(
            f"other files than were signed: {', '.join(sorted(files.keys() ^ subjects.keys()))}"
        )
    for name, file in files.items():
        try:
            data = file.read_bytes()
            key.verify(base64.b64decode((folder / f"{name}.sig").read_bytes()), data, _ECDSA)
        except (OSError, ValueError, InvalidSignature) as error:
            raise NotTrusted(f"{name}: not signed by this key ({error!r})") from error
        if subjects[name] != _digest(data):
            raise NotTrusted(f"{name}: the statement is about another file of this name")
    return sorted(files)


def _files(folder: Path) -> list[Path]:
    own = {_SBOM, _PROVENANCE}
    return sorted(
        one
        for one in folder.iterdir()
        if one.is_file() and one.suffix != ".sig" and one.name not in own
    )


def _public(path: Path) -> ec.EllipticCurvePublicKey:
    key = serialization.load_pem_public_key(path.read_bytes())
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise NotTrusted(f"{path}: no key of ECDSA")
    return key


def _private(path: Path) -> ec.EllipticCurvePrivateKey:
    password = os.environ.get("RELEASE_KEY_PASSWORD", "").encode() or None
    key = serialization.load_pem_private_key(path.read_bytes(), password)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise NotTrusted(f"{path}: no key of ECDSA")
    return key


def main(arguments: list[str]) -> int:
    """Sign or verify; 2 where something is in the way or not what was signed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--key", type=Path, required=True, help="PEM file, private to sign")
    parser.add_argument("--verify", action="store_true")
    given = parser.parse_args(arguments)
    try:
        if given.verify:
            names = verified(given.folder, _public(given.key))
        else:
            names = [one.name for one in signed(given.folder, _private(given.key))]
    except (NotTrusted, OSError, ValueError, TypeError) as error:
        sys.stderr.write(f"evidence: {error}\n")
        return 2
    sys.stdout.writelines(f"{name}\n" for name in names)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
