"""A genuine kubelet on this machine, with a folder, a node name and a container runtime of its own.

Its folder of device plugins has a path that cannot be chosen (/var/lib/kubelet): the kubelet runs in a
mount namespace where that is a folder of the test. Pods share the host's network, bring no volumes, and
have no token, so that nothing is mounted that a runtime outside that namespace would not see.

Cgroups are made by the runtime alone: no node-wide limits are enforced, whichever version there is.
"""

import json
import os
import shutil
import subprocess
import uuid
from dataclasses import dataclass
from pathlib import Path

from control_plane import KUBERNETES, ControlPlane

from fakes.ports import free_port

_CNI = {
    "cniVersion": "1.0.0",
    "name": "none",
    "plugins": [{"type": "loopback"}],
}
"""What makes a node Ready; no pod here has a network of its own."""
_RUN = """set -e
mount --make-rprivate /
mount -t tmpfs tmpfs /var/lib
mkdir /var/lib/kubelet
mount --bind "$1" /var/lib/kubelet
mount --bind "$1/boot_id" /proc/sys/kernel/random/boot_id
shift
exec "$@"
"""


def missing() -> str:
    """What keeps a kubelet from running here, in one line; empty when nothing does."""
    if os.geteuid() != 0:
        return "a kubelet needs root"
    if not os.access(KUBERNETES / "kubelet", os.X_OK):
        return "kubelet not built; run tests/cluster/build"
    program = shutil.which("unshare")
    if program is None:
        return "unshare is not installed"
    tried = subprocess.run(
        [program, "-m", "sh", "-c", "mount --make-rprivate / && mount -t tmpfs tmpfs /var/lib"],
        capture_output=True,
        check=False,
        text=True,
    )
    if tried.returncode:
        return f"no mount namespace can be made here: {tried.stderr.strip()}"
    return ""


def inside(folder: Path) -> list[str]:
    """What runs a command where this folder is /var/lib/kubelet."""
    return ["unshare", "-m", "sh", "-c", _RUN, "kubelet", str(folder)]


@dataclass
class Kubelet:
    """One kubelet.

    Attributes:
        plane: the control plane, which runs it.
        node: its node's name.
        folder: its own; `device-plugins` and `pod-resources` appear in it.
        runtime: socket on which it asks for containers.
    """

    plane: ControlPlane
    node: str
    folder: Path
    runtime: Path

    @property
    def process(self) -> str:
        """Its name among the control plane's processes."""
        return f"kubelet-{self.node}"

    @property
    def manifests(self) -> Path:
        """Folder of pods that it runs without asking the API server."""
        return self.folder / "manifests"

    @property
    def boot(self) -> str:
        """The run of the machine that it sees."""
        return (self.folder / "boot_id").read_text()

    def reboot(self) -> None:
        """Have it see another run of the machine from its next start on."""
        (self.folder / "boot_id").write_text(f"{uuid.uuid4()}\n")

    def start(self, cni: Path) -> None:
        """Start it; its node appears by itself.

        Args:
            cni: folder where the runtime reads network configurations.
        """
        self.manifests.mkdir(parents=True, exist_ok=True)
        self.reboot()
        (cni / "10-none.conflist").write_text(json.dumps(_CNI))
        config = {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": "127.0.0.1",
            "port": free_port(),
            "readOnlyPort": 0,
            "healthzPort": 0,
            "authentication": {"anonymous": {"enabled": False}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "containerRuntimeEndpoint": f"unix://{self.runtime}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": "/",
            "cgroupsPerQOS": False,
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "evictionHard": {"memory.available": "0%", "nodefs.available": "0%"},
            "imageGCHighThresholdPercent": 100,
            "makeIPTablesUtilChains": False,
            "nodeStatusUpdateFrequency": "2s",
            "syncFrequency": "3s",  # after which a pod that could not start is tried again
            "podLogsDir": str(self.folder / "logs"),
            "resolvConf": "",
            "serializeImagePulls": False,
            "registerNode": True,
            "staticPodPath": str(self.manifests),
        }
        path = self.plane.folder / f"{self.process}.json"
        path.write_text(json.dumps(config))
        self.plane.run(
            self.process,
            [
                *inside(self.folder),
                str(KUBERNETES / "kubelet"),
                f"--config={path}",
                f"--root-dir={self.folder}",
                f"--hostname-override={self.node}",
                f"--cert-dir={self.folder / 'pki'}",
                f"--kubeconfig={self.plane.kubeconfig()}",
                "--v=2",
            ],
        )
