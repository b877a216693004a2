"""cosign, of Debian's package, takes what deploy/evidence.py signed, as the page types it, and refuses what was changed since."""

import subprocess
import sys
from pathlib import Path

import pods_cluster
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

ROOT = Path(__file__).parents[2]
WHEEL = "partage-0.1.0-py3-none-any.whl"


def cosign(folder: Path, what: str, signature: str, *options: str) -> int:
    """Its exit status."""
    command = [str(pods_cluster.TOOLS / "cosign/usr/bin/cosign"), what, "--key", "release.pub"]
    command += ["--signature", f"dist/{signature}", "--insecure-ignore-tlog", *options]
    done = subprocess.run(
        [*command, f"dist/{WHEEL}"],
        cwd=folder,
        env={"HOME": str(folder)},
        capture_output=True,
        check=False,
    )
    return done.returncode


def test_a_file_and_the_statement_are_verified(tmp_path: Path) -> None:
    """Both by the public key alone, without a network."""
    dist = tmp_path / "dist"
    dist.mkdir()
    (dist / WHEEL).write_bytes(b"the wheel")
    key, pem = ec.generate_private_key(ec.SECP256R1()), serialization.Encoding.PEM
    (tmp_path / "release.key").write_bytes(
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    (tmp_path / "release.pub").write_bytes(
        key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo)
    )
    script = [sys.executable, str(ROOT / "deploy/evidence.py"), str(dist)]
    subprocess.run([*script, "--key", str(tmp_path / "release.key")], check=True)

    def told() -> tuple[int, int]:
        kind = ("--type", "slsaprovenance1")
        return (
            cosign(tmp_path, "verify-blob", f"{WHEEL}.sig"),
            cosign(tmp_path, "verify-blob-attestation", "provenance.intoto.json", *kind),
        )

    assert told() == (0, 0)
    (dist / WHEEL).write_bytes(b"The wheel")
    assert told() == (1, 1)
