"""The images as `make image` makes them: their users, labels and sizes, and what is not in them."""

import json
import re
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pods_cluster
import pytest

PACKED, UNPACKED = 250 * 10**6, 450 * 2**20
"""What a node pulls at most, with the fastest gzip, and what it keeps. LLVM, of which numba makes machine code, is 160 MB of that."""
NOT_IN_IT = {
    "a package manager of Python": r"(^|/)(pip|pip3[.0-9]*|uv|ensurepip|setuptools|wheel|hatchling)(/|$)",
    "a compiler": r"(^|/)(gcc|cc|g\+\+|c\+\+|cc1|ld|as|make|go|rustc|clang)$|x86_64-linux-gnu-",
    "a way to fetch": r"(^|/)(curl|wget|git|ssh|nc|ncat|socat)$",
    "headers": r"^usr/include/.+\.h$",
    "tests": r"^opt/.*/tests?/",
    "lists and logs of the build": r"^var/(log|cache/apt|lib/apt/lists)/.+",
    "keys and passwords": r"(^|/)(\.netrc|\.pypirc|\.git-credentials|id_rsa|id_ed25519|.*\.pem\.key|\.docker)$",
    "the tree itself": r"^(src|native|requirements|wheel|build)/",
    "files of a workplace": r"^(home|root)/.+/",
}
"""Patterns of paths."""


@dataclass(frozen=True)
class Image:
    """One image, as its archive says."""

    config: dict[str, Any]
    files: dict[str, tarfile.TarInfo]
    packed: int

    @property
    def size(self) -> int:
        """Bytes of its files."""
        return sum(one.size for one in self.files.values())


def read(path: Path) -> Image:
    """Layers laid on each other."""
    files: dict[str, tarfile.TarInfo] = {}
    packed = 0
    with tarfile.open(path) as archive:

        def document(name: str) -> Any:
            member = archive.extractfile(name)
            assert member is not None
            return json.load(member)

        (manifest,) = document("manifest.json")
        config = document(manifest["Config"])
        for layer in manifest["Layers"]:
            packed += _packed(archive.extractfile(layer))
            with tarfile.open(fileobj=archive.extractfile(layer)) as tar:
                for one in tar:
                    name = one.name.removeprefix("./").rstrip("/")
                    folder, _, last = name.rpartition("/")
                    if last.startswith(".wh."):
                        gone = f"{folder}/{last[4:]}".lstrip("/")
                        files = {
                            k: v
                            for k, v in files.items()
                            if k != gone and not k.startswith(f"{gone}/")
                        }
                    else:
                        files[name] = one
    return Image(config, files, packed)


def _packed(layer: IO[bytes] | None) -> int:
    """Bytes of a layer as registries keep it, or a few more."""
    assert layer is not None
    packer, length = zlib.compressobj(1), 0
    while piece := layer.read(2**20):
        length += len(packer.compress(piece))
    return length + len(packer.flush())


@pytest.fixture(scope="module", params=pods_cluster.IMAGES)
def image(request: pytest.FixtureRequest) -> Image:
    """Each of them."""
    return read(pods_cluster.ARCHIVES / f"{request.param}.tar")


def test_nobody_is_root_by_default(image: Image) -> None:
    """The chart gives root to the agent alone, and nothing in the image gives it to any user."""
    user = image.config["config"]["User"]
    assert re.fullmatch(r"6553[23]:65532", user)
    assert not [name for name, one in image.files.items() if one.isfile() and one.mode & 0o6000]


def test_it_says_what_it_is(image: Image) -> None:
    """Labels by OCI's names."""
    labels = image.config["config"]["Labels"]
    prefix = "org.opencontainers.image."
    told = {
        name.removeprefix(prefix): value
        for name, value in labels.items()
        if name.startswith(prefix)
    }
    assert set(told) >= {"title", "description", "licenses", "version", "revision"}
    assert told["licenses"] == "Apache-2.0"
    assert re.fullmatch(r"[0-9a-f]{40}", told["revision"])


def test_it_is_small(image: Image) -> None:
    """What a node has to pull and to keep."""
    tops: dict[str, int] = {}
    for name, one in image.files.items():
        top = "/".join(name.split("/")[:6])
        tops[top] = tops.get(top, 0) + one.size
    largest = sorted(tops.items(), key=lambda one: -one[1])[:12]
    assert image.size < UNPACKED, f"{image.size / 2**20:.0f} MiB, most of it {largest}"
    assert image.packed < PACKED, f"{image.packed / 10**6:.0f} MB, most of it {largest}"


@pytest.mark.parametrize("what", NOT_IN_IT)
def test_nothing_is_in_it_that_helps_an_intruder_alone(image: Image, what: str) -> None:
    """What only the build needed, and what no program needs."""
    found = [
        name
        for name, one in image.files.items()
        if not one.isdir() and re.search(NOT_IN_IT[what], name)
    ]
    assert not found, found[:10]
