"""The users of the documents' steps: a genuine kubectl where there is one, and plain HTTP always."""

import asyncio
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from up_world import PODS, World

CACHE = Path(os.environ.get("PARTAGE_TOOLS", str(Path.home() / ".cache/partage/tools")))
PATIENCE = 240


def binaries() -> list[Any]:
    """Every kubectl to be had, or one parameter that skips with a reason."""
    told = os.environ.get("PARTAGE_KUBECTL")
    built = [*CACHE.glob("kubectl-v*[0-9]"), *CACHE.glob("kubernetes-v*/kubectl")]
    found = [Path(told)] if told else sorted(built)
    installed = shutil.which("kubectl")
    if not found and installed:
        found = [Path(installed)]
    if found:
        return [pytest.param(path, id="-".join(path.parts[-2:])) for path in found]
    reason = f"no kubectl in {CACHE}; run tests/tools/kubectl/build"
    return [pytest.param(None, id="none", marks=pytest.mark.skip(reason=reason))]


class Kubectl:
    """Runs one binary with the kubeconfig that `partage up` wrote."""

    def __init__(self, binary: Path, kubeconfig: str, home: Path) -> None:
        self._binary = binary
        self._environment = {"KUBECONFIG": kubeconfig, "HOME": str(home), "PATH": "/usr/bin:/bin"}

    async def __call__(self, *words: str, text: str | None = None, code: int = 0) -> str:
        """Runs a command; the answer is its output, errors included where it is to fail."""

        def go() -> subprocess.CompletedProcess[str]:
            return subprocess.run(
                [self._binary, *words],
                env=self._environment,
                input=text,
                capture_output=True,
                text=True,
                timeout=PATIENCE,
                check=False,
            )

        done = await asyncio.to_thread(go)
        assert done.returncode == code, f"kubectl {' '.join(words)}\n{done.stdout}{done.stderr}"
        return done.stdout + (done.stderr if code else "")

    async def get(self, kind: str, name: str) -> dict[str, Any]:
        """An object as `get -o yaml` prints it."""
        return dict(yaml.safe_load(await self("get", kind, name, "-o", "yaml")))

    async def apply(self, text: str) -> None:
        """Apply manifests."""
        await self("apply", "-f", "-", text=text)

    async def logs(self, name: str) -> str:
        """A pod's log."""
        return await self("logs", name)

    async def running(self, name: str) -> dict[str, Any]:
        """A pod, once it runs."""
        phase = "--for=jsonpath={.status.phase}=Running"
        await self("wait", f"pod/{name}", phase, "--timeout=240s")
        return await self.get("pod", name)


class PlainHttp:
    """The same steps without kubectl."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def get(self, kind: str, name: str) -> dict[str, Any]:
        """An object."""
        path = {
            "node": "/api/v1/nodes",
            "device": "/apis/scheduling.koordinator.sh/v1alpha1/devices",
            "deployment": "/apis/apps/v1/namespaces/default/deployments",
        }.get(kind, f"/api/v1/namespaces/default/{kind}s")
        return dict(await self._world.get(f"{path}/{name}"))

    async def apply(self, text: str) -> None:
        """Create what the manifests say."""
        for value in yaml.safe_load_all(text):
            path = {"Pod": PODS, "Deployment": "/apis/apps/v1/namespaces/default/deployments"}
            await self._world.create(path[value["kind"]], value)

    async def logs(self, name: str) -> str:
        """A pod's log."""
        return str(await self._world.get(f"{PODS}/{name}/log"))

    async def running(self, name: str) -> dict[str, Any]:
        """A pod, once it runs."""
        return await self._world.phase(name, "Running")


USERS = pytest.mark.parametrize("binary", [pytest.param("", id="http"), *binaries()])
"""The user of a test: plain HTTP, and every kubectl there is."""


def user(binary: Path | str, world: World, home: Path) -> "Kubectl | PlainHttp":
    """The user that a parameter names."""
    if isinstance(binary, str):
        return PlainHttp(world)
    return Kubectl(binary, world.cluster.addresses.kubeconfig, home)
