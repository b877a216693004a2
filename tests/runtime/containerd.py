"""A genuine containerd in a folder of its own, with NRI: of Debian packages in the tool cache.

Source of the recipe: the packages' own defaults; only paths, NRI and what needs a system's services are set.
"""

import gzip
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cri

TOOLS = Path(os.environ.get("PARTAGE_TOOLS", "~/.cache/partage/tools")).expanduser()
RUNC = TOOLS / "runc/usr/sbin/runc"
BUSYBOX = TOOLS / "runc/bin/busybox"
GENERATIONS = ("1.7", "2.1")
_PAUSE = "localhost/pause:test"
_READY = 240
_APPLETS = ("cat", "env", "ls", "sh", "sleep", "tail", "true", "wc", "mkdir", "touch")

_COMMON = """
root = "{folder}/root"
state = "{folder}/state"
disabled_plugins = [{disabled}]
[grpc]
  address = "{folder}/containerd.sock"
[ttrpc]
  address = "{folder}/containerd.sock.ttrpc"
[plugins."io.containerd.nri.v1.nri"]
  disable = false
  disable_connections = false
  socket_path = "{nri}"
  plugin_path = "{folder}/nri"
  plugin_config_path = "{folder}/nri"
  plugin_registration_timeout = "5s"
  plugin_request_timeout = "2s"
"""
_OLD = """version = 2
{common}
[plugins."io.containerd.grpc.v1.cri"]
  enable_cdi = true
  cdi_spec_dirs = ["{folder}/cdi"]
  sandbox_image = "{pause}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    conf_dir = "{folder}/cni"
    bin_dir = "{programs}"
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      BinaryName = "{runc}"
      SystemdCgroup = false
"""
_NEW = """version = 3
{common}
[plugins."io.containerd.cri.v1.images".pinned_images]
  sandbox = "{pause}"
[plugins."io.containerd.cri.v1.runtime"]
  enable_cdi = true
  cdi_spec_dirs = ["{folder}/cdi"]
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.cri.v1.runtime".cni]
    conf_dir = "{folder}/cni"
    bin_dirs = ["{programs}"]
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "{runc}"
      SystemdCgroup = false
"""
_DISABLED = (
    "snapshotter.v1.btrfs",
    "snapshotter.v1.zfs",
    "snapshotter.v1.devmapper",
    "snapshotter.v1.blockfile",
    "internal.v1.tracing",
    "tracing.processor.v1.otlp",
)


def missing() -> str:
    """What keeps containerd from running here, in one line; empty when nothing does."""
    if os.geteuid() != 0:
        return "containerd needs root"
    absent = [f"containerd-{one}" for one in GENERATIONS if not _program(one).exists()]
    absent += [path.name for path in (RUNC, BUSYBOX) if not path.exists()]
    return f"{', '.join(absent)} not there; run tests/runtime/fetch" if absent else ""


def _program(generation: str, name: str = "containerd") -> Path:
    return TOOLS / f"containerd-{generation}/usr/bin" / name


def write_image(
    path: Path, files: Mapping[str, Path | bytes] | None = None, name: str = cri.IMAGE
) -> None:
    """Three images with busybox, as an archive in the OCI layout.

    Args:
        path: of the archive.
        files: what the second has besides, by their place in it.
        name: of the second.
    """
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for folder in ("bin", "dev", "etc", "proc", "sys", "tmp"):
            entry = tarfile.TarInfo(folder)
            entry.type, entry.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(entry)
        tar.add(BUSYBOX, "bin/busybox")
        for applet in _APPLETS:
            entry = tarfile.TarInfo(f"bin/{applet}")
            entry.type, entry.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(entry)
        text = b"root:x:0:0::/:/bin/sh\n"
        entry = tarfile.TarInfo("etc/passwd")
        entry.size = len(text)
        tar.addfile(entry, io.BytesIO(text))
        for place, source in (files or {}).items():
            content = source if isinstance(source, bytes) else source.read_bytes()
            entry = tarfile.TarInfo(place)
            entry.size, entry.mode = len(content), 0o755
            tar.addfile(entry, io.BytesIO(content))
    plain = layer.getvalue()
    blobs: dict[str, bytes] = {}

    def put(data: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(data).hexdigest()
        blobs[digest] = data
        return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(data)}

    oci = "application/vnd.oci.image"
    packed = put(gzip.compress(plain, 1, mtime=0), f"{oci}.layer.v1.tar+gzip")
    manifests = []
    greedy = ["NVIDIA_VISIBLE_DEVICES=all", "CUDA_DISABLE_CONTROL=true"]
    for image, entry_point, env in (
        (_PAUSE, ["/bin/tail", "-f", "/dev/null"], []),
        (name, None, []),
        (cri.GREEDY, None, greedy),
    ):
        config = {
            "architecture": "amd64",
            "os": "linux",
            "config": {"Env": ["PATH=/bin", *env], "Entrypoint": entry_point},
            "rootfs": {
                "type": "layers",
                "diff_ids": [f"sha256:{hashlib.sha256(plain).hexdigest()}"],
            },
        }
        manifest = {
            "schemaVersion": 2,
            "mediaType": f"{oci}.manifest.v1+json",
            "config": put(json.dumps(config).encode(), f"{oci}.config.v1+json"),
            "layers": [packed],
        }
        listed = put(json.dumps(manifest).encode(), f"{oci}.manifest.v1+json")
        manifests.append({**listed, "annotations": {"io.containerd.image.name": image}})
    with tarfile.open(path, "w") as tar:
        written = {f"blobs/sha256/{digest}": data for digest, data in blobs.items()}
        written["oci-layout"] = b'{"imageLayoutVersion":"1.0.0"}'
        written["index.json"] = json.dumps({"schemaVersion": 2, "manifests": manifests}).encode()
        for place, data in written.items():
            entry = tarfile.TarInfo(place)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))


@dataclass
class Containerd:
    """One containerd.

    Attributes:
        generation: of `GENERATIONS`.
        folder: its own.
        popen: its process, where it was started here.
        plugins: folder of the network plugins; its own, without any, by default.
        place: of the socket for NRI; in its folder by default.
    """

    generation: str
    folder: Path
    popen: subprocess.Popen[bytes] | None = None
    plugins: Path | None = None
    place: Path | None = None

    @property
    def nri(self) -> Path:
        """Socket for plugins."""
        return self.place or self.folder / "nri.sock"

    @property
    def socket(self) -> Path:
        """Socket for the kubelet."""
        return self.folder / "containerd.sock"

    def configure(self) -> None:
        """Write its configuration."""
        for name in ("nri", "cni", "logs", "cdi"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        devices = [
            {"name": uuid, "containerEdits": {"env": [f"GIVEN_BY_CDI={uuid}"]}}
            for uuid in ("GPU-a", "GPU-b")
        ]
        spec = {"cdiVersion": "0.6.0", "kind": cri.CDI, "devices": devices}
        (self.folder / "cdi/cards.json").write_text(json.dumps(spec))
        disabled = ", ".join(f'"io.containerd.{name}"' for name in _DISABLED)
        common = _COMMON.format(folder=self.folder, disabled=disabled, nri=self.nri)
        text = (_OLD if self.generation == "1.7" else _NEW).format(
            common=common,
            folder=self.folder,
            pause=_PAUSE,
            runc=RUNC,
            programs=self.plugins or self.folder / "cni",
        )
        # Top-level keys must come before tables.
        (self.folder / "config.toml").write_text(text)

    @property
    def command(self) -> tuple[str, ...]:
        """What runs it."""
        return (str(_program(self.generation)), "--config", str(self.folder / "config.toml"))

    @property
    def path(self) -> str:
        """Where it finds its own programs."""
        return f"{_program(self.generation).parent}:{RUNC.parent}:{os.environ['PATH']}"

    def start(self) -> None:
        """Start it, or start it again; ready when this returns."""
        log = (self.folder / "containerd.log").open("ab")
        self.popen = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "PATH": self.path},
            start_new_session=True,
        )
        log.close()
        self._wait()

    def _wait(self) -> None:
        deadline = time.monotonic() + _READY
        while time.monotonic() < deadline:
            if self.popen is None or self.popen.poll() is not None:
                break
            if self.ctr("version").returncode == 0 and self.nri.exists():
                return
            time.sleep(0.05)
        raise RuntimeError(f"containerd is not ready:\n{self.log()[-3000:]}")

    def log(self) -> str:
        """What it said."""
        return (self.folder / "containerd.log").read_text(errors="replace")

    def ctr(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        """Run its own command."""
        return subprocess.run(
            self.client(*arguments), capture_output=True, timeout=_READY, check=False
        )

    def client(self, *arguments: str) -> tuple[str, ...]:
        """What runs its own command."""
        program = str(_program(self.generation, "ctr"))
        return (program, "-a", str(self.socket), "-n", "k8s.io", *arguments)

    def stop(self) -> None:
        """End it; containers go on."""
        if self.popen is not None:
            self.popen.terminate()
            self.popen.wait(_READY)
            self.nri.unlink(missing_ok=True)

    def kill(self) -> None:
        """End it as a crash would; containers go on."""
        if self.popen is not None:
            self.popen.kill()
            self.popen.wait(_READY)

    def forget(self) -> None:
        """Lose what it had in memory, as a machine that boots; nothing of it may run.

        What it keeps on the disk, images and the names of containers, stays.
        """
        state = self.folder / "state"
        for line in reversed(Path("/proc/self/mounts").read_text().splitlines()):
            place = line.split()[1]
            if place.startswith(f"{state}/"):
                subprocess.run(["/usr/bin/env", "umount", "-l", place], check=True)
        shutil.rmtree(state)
        for path in (self.nri, self.socket):
            path.unlink(missing_ok=True)

    def spec(self, container: str) -> Mapping[str, Any]:
        """What the runtime got as the specification of a container."""
        path = self.folder / "state/io.containerd.runtime.v2.task/k8s.io" / container
        found: dict[str, Any] = json.loads((path / "config.json").read_text())
        return found


def _remove_cgroups() -> None:
    """Remove what this run's pods leave; a process that has just ended may keep it a moment."""
    for cgroup in (
        *Path("/sys/fs/cgroup").glob(f"*/{cri.CGROUP}"),
        Path("/sys/fs/cgroup", cri.CGROUP),
    ):
        deadline = time.monotonic() + _READY
        while cgroup.exists() and time.monotonic() < deadline:
            with suppress(OSError):
                cgroup.rmdir()
                break
            time.sleep(0.05)


@contextmanager
def running(generation: str, folder: Path) -> Iterator[tuple[Containerd, cri.Cri]]:
    """A containerd with its images and a client; everything is gone at the end."""
    one = Containerd(generation, folder)
    one.configure()
    one.start()
    try:
        write_image(folder / "image.tar")
        imported = one.ctr("image", "import", str(folder / "image.tar"))
        assert imported.returncode == 0, imported.stderr
        with cri.connected(one.socket, folder / "logs") as client:
            try:
                yield one, client
            finally:
                client.remove_all()
    finally:
        one.stop()
        _remove_cgroups()
