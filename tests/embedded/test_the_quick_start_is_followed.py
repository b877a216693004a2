"""The quick start, typed as printed: every command of its cluster, in both languages."""

import asyncio
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from kubectl import PATIENCE, binaries
from up_world import EXAMPLES, World, eventually, from_files, run, running

DOCS = Path(__file__).parents[2] / "docs"
WAITS = 3
"""Exit code of `partage explain` for a pod that waits."""


def printed(page: Path) -> tuple[str, list[str]]:
    """The manifest of a page, and its commands once the cluster runs."""
    text = page.read_text(encoding="utf-8").split("make run")[1]
    (manifest,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    return manifest, [line for block in blocks for line in block.splitlines()]


async def typed(line: str, folder: Path, environment: dict[str, str]) -> str:
    """What a command prints, once it ends well."""
    words = shlex.split(line, comments=True)
    if words[0] == "partage":
        words = [sys.executable, "-m", "partage.cli.main", *words[1:]]

    def go() -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            words, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE,
            check=False,
        )  # fmt: skip

    done = await asyncio.to_thread(go)
    good = (0, WAITS) if "explain" in words else (0,)
    assert done.returncode in good, f"{line}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


async def follow(world: World, page: Path, folder: Path, binary: Path) -> None:
    """Every command in order, and what must have come of it."""
    manifest, lines = printed(page)
    (folder / "half.yaml").write_text(manifest, encoding="utf-8")
    (folder / "bin").mkdir()
    (folder / "bin" / "kubectl").symlink_to(binary)
    environment = {
        **{k: v for k, v in os.environ.items() if not k.startswith("PARTAGE_")},
        "KUBECONFIG": world.cluster.addresses.kubeconfig,
        "PATH": f"{folder / 'bin'}:/usr/bin:/bin",
        "HOME": str(folder),
    }
    assert await world.cluster.settled(PATIENCE)
    said = {}
    for line in lines:
        said[line.split("#")[0].strip()] = await typed(line, folder, environment)
        if line.startswith("kubectl apply"):
            for name in ("half", "tenth"):
                await world.phase(name, "Running")
        if "unhealthy=" in line:
            await eventually(
                lambda: world.state("host05"), lambda node: "Unhealthy" in str(node["state"])
            )

    assert "qgpu-two-cards" in said["kubectl get nodes,devices,pods -A"]
    assert "InsufficientCards" in said["kubectl describe pod qgpu-two-cards"] or (
        "CardNotIdle" in said["kubectl describe pod qgpu-two-cards"]
    )
    assert "partage.io/allocation" in said["kubectl get pod half -o yaml"]
    assert "CUDA_DEVICE_MEMORY_LIMIT_0" in said["kubectl logs tenth"]
    await eventually(
        lambda: world.state("host05"), lambda node: "Unhealthy" not in str(node["state"])
    )


@pytest.mark.parametrize("page", ["quick-start.md", "zh/quick-start.md"])
@pytest.mark.parametrize("binary", binaries()[-1:])
def test_every_command_works_as_printed(page: str, binary: Path, tmp_path: Path) -> None:
    """A reader who types what the page prints sees what it says."""

    async def story() -> None:
        found = from_files(EXAMPLES)
        async with running(found.simulated, found.objects) as world:
            await follow(world, DOCS / page, tmp_path, binary)

    run(story())


def test_both_languages_print_the_same_commands() -> None:
    """The Chinese page is kept with the English one: manifest and commands are equal."""
    manifest, lines = printed(DOCS / "quick-start.md")
    other, translated = printed(DOCS / "zh/quick-start.md")

    assert manifest == other
    plain = [[line.split("#")[0].strip() for line in each] for each in (lines, translated)]
    assert plain[0] == plain[1]
