"""A genuine Kubernetes control plane on loopback: etcd, API server, controllers, schedulers.

Binaries come from the tool cache, where `tests/cluster/build` puts them. Every process is this
machine's own, in a folder of the run's own, and can be killed, paused and started again, which is
what the fault tests do. Nothing listens beyond 127.0.0.1.
"""

import base64
import http.client
import json
import os
import secrets
import signal
import ssl
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

from fakes.ports import free_port

PINNED = "1.36.4"
"""Kubernetes, as in go.mod."""
VERSION = os.environ.get("PARTAGE_KUBERNETES", PINNED)
OF_THE_PINNED = pytest.mark.skipif(VERSION != PINNED, reason=f"what {PINNED} has, and others not")
TOOLS = Path(os.environ.get("PARTAGE_TOOLS", "~/.cache/partage/tools")).expanduser()
KUBERNETES = TOOLS / f"kubernetes-v{VERSION}"
ETCD = TOOLS / "etcd" / "usr" / "bin" / "etcd"
HELM = TOOLS / "helm-v4.3.1" / "helm"
HELM3 = TOOLS / "helm3-v3.22.0" / "helm"
KUBECONFORM = TOOLS / "kubeconform-v0.8.0" / "kubeconform"
ADMIN = "system:masters"
READY_SECONDS = 240
STOP_SECONDS = 20


def missing(*programs: str) -> str:
    """What keeps the control plane from running here, in one line; empty when nothing does."""
    wanted = {name: KUBERNETES / name for name in programs or ("kube-apiserver",)} | {
        "etcd": ETCD,
        "helm": HELM,
    }
    absent = [name for name, path in wanted.items() if not os.access(path, os.X_OK)]
    return f"{', '.join(absent)} not built; run tests/cluster/build" if absent else ""


@dataclass
class Process:
    """One program of the control plane; what it says goes to a file."""

    name: str
    command: Sequence[str]
    log: Path
    env: Mapping[str, str] = field(default_factory=dict)
    popen: subprocess.Popen[bytes] | None = None
    wanted: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)
    whole: dict[str, str] = field(default_factory=dict)
    """Its environment, read once: a thread that reads `os.environ` fails where pytest changes it meanwhile."""

    def start(self) -> None:
        """Start it, or start it again; nothing where it runs."""
        self.wanted = True
        self.whole = {**os.environ, **self.env}
        self.revive()

    def revive(self) -> None:
        """Start it again where it has ended by itself, as a kubelet does."""
        with self.lock, self.log.open("ab") as log:
            if self.running or not self.wanted:
                return
            self.popen = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.whole,
                start_new_session=True,
            )

    @property
    def running(self) -> bool:
        """Whether it has been started and has not ended."""
        return self.popen is not None and self.popen.poll() is None

    def signal(self, number: int) -> None:
        """Send a signal, if it runs; after SIGSTOP all of its threads stand still."""
        if self.popen is not None and self.running:
            self.popen.send_signal(number)
            if number == signal.SIGSTOP:
                # Otherwise one of its threads may go on with what comes next.
                os.waitid(os.P_PID, self.popen.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def kill(self) -> None:
        """End it at once, as a crash would."""
        self.wanted = False
        self.signal(signal.SIGKILL)
        if self.popen is not None:
            self.popen.wait()

    def stop(self) -> None:
        """Let it end; kill it when it does not."""
        self.wanted = False
        self.signal(signal.SIGCONT)
        self.signal(signal.SIGTERM)
        if self.popen is not None:
            try:
                self.popen.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()

    def tail(self, lines: int = 25) -> str:
        """The last lines of what it said."""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


class ControlPlane:
    """etcd and kube-apiserver, with controllers and schedulers on request.

    Attributes:
        folder: certificates, logs, etcd's data.
        url: of the API server.
        processes: by name.
        trust: of its certificate, for clients.
    """

    def __init__(
        self, folder: Path, address: str = "127.0.0.1", inside: Sequence[str] = ()
    ) -> None:
        """Nothing runs yet.

        Args:
            folder: as below.
            address: where the API server listens.
            inside: what runs a command in the network that has this address.
        """
        self.folder = folder
        self.address = address
        self.inside = inside
        self.port = free_port()
        self.url = f"https://{address}:{self.port}"
        self.processes: dict[str, Process] = {}
        self._tokens: dict[str, tuple[str, tuple[str, ...]]] = {}
        self._authority = trustme.CA()
        self._authority.cert_pem.write_to_path(str(folder / "ca.crt"))
        # The first address of Services is its own, for pods.
        server = self._authority.issue_cert(address, "localhost", "10.96.0.1")
        server.private_key_pem.write_to_path(str(folder / "server.key"))
        for number, blob in enumerate(server.cert_chain_pems):
            blob.write_to_path(str(folder / "server.crt"), append=number > 0)
        key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
        (folder / "accounts.key").write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        self.trust = ssl.create_default_context(cafile=str(folder / "ca.crt"))
        # `urlopen` reads the environment for proxies at each call; see `Process.whole`.
        self._opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self.trust)
        )
        self.admin = self.token("admin", ADMIN)

    # --- credentials -------------------------------------------------------------------------

    def token(self, user: str, *groups: str) -> str:
        """A bearer token of a user; known to the API server that starts afterwards."""
        token = secrets.token_hex(16)
        self._tokens[token] = (user, groups)
        lines = (
            f'{secret},{name},{name},"{",".join(of)}"'
            for secret, (name, of) in self._tokens.items()
        )
        (self.folder / "tokens.csv").write_text("\n".join(lines) + "\n")
        return token

    def token_of(self, user: str) -> str:
        """The token of a user that has one."""
        return next(token for token, (name, _) in self._tokens.items() if name == user)

    def kubeconfig(self, token: str | None = None, server: str | None = None) -> Path:
        """A kubeconfig for the administrator, or for the token's user; written whole, as programs may be reading it."""
        token = token or self.admin
        path = (
            self.folder
            / f"kubeconfig-{sha256(token.encode()).hexdigest()[:8]}-{(server or self.url).rsplit(':', 1)[1]}"
        )
        if path.exists():
            return path
        authority = base64.b64encode((self.folder / "ca.crt").read_bytes()).decode()
        cluster = {"server": server or self.url, "certificate-authority-data": authority}
        text = json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "clusters": [{"name": "test", "cluster": cluster}],
                "users": [{"name": "user", "user": {"token": token}}],
                "contexts": [{"name": "test", "context": {"cluster": "test", "user": "user"}}],
                "current-context": "test",
            }
        )
        fresh = path.with_suffix(f".{secrets.token_hex(4)}")
        fresh.write_text(text)
        fresh.chmod(0o600)
        return fresh.replace(path)

    # --- processes ---------------------------------------------------------------------------

    def start(self, *extra: str) -> None:
        """Start etcd and the API server, and wait until it is ready.

        Args:
            extra: further flags of the API server.

        Raises:
            RuntimeError: one of them ended or is not ready in time; says what it said.
        """
        client, peer = free_port(), free_port()
        self.run(
            "etcd",
            [
                str(ETCD),
                f"--data-dir={self.folder / 'etcd'}",
                f"--listen-client-urls=http://127.0.0.1:{client}",
                f"--advertise-client-urls=http://127.0.0.1:{client}",
                f"--listen-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-advertise-peer-urls=http://127.0.0.1:{peer}",
                f"--initial-cluster=default=http://127.0.0.1:{peer}",
                "--unsafe-no-fsync",
                "--log-level=warn",
            ],
        )
        self.run(
            "kube-apiserver",
            [
                str(KUBERNETES / "kube-apiserver"),
                f"--etcd-servers=http://127.0.0.1:{client}",
                f"--bind-address={self.address}",
                f"--advertise-address={self.address}",
                f"--secure-port={self.port}",
                f"--tls-cert-file={self.folder / 'server.crt'}",
                f"--tls-private-key-file={self.folder / 'server.key'}",
                f"--token-auth-file={self.folder / 'tokens.csv'}",
                "--authorization-mode=Node,RBAC",
                "--allow-privileged=true",  # as kubeadm starts it: node agents need it
                "--service-account-issuer=https://127.0.0.1/accounts",
                f"--service-account-key-file={self.folder / 'accounts.key'}",
                f"--service-account-signing-key-file={self.folder / 'accounts.key'}",
                "--service-cluster-ip-range=10.96.0.0/16",
                "--endpoint-reconciler-type=none",
                "--enable-priority-and-fairness=false",
                "--max-requests-inflight=2000",
                "--max-mutating-requests-inflight=2000",
                *extra,
            ],
        )
        self.wait_ready()

    def start_controllers(self, *extra: str) -> None:
        """Start kube-controller-manager: workloads, garbage, service accounts, taints."""
        self.run(
            "kube-controller-manager",
            [
                str(KUBERNETES / "kube-controller-manager"),
                f"--kubeconfig={self.kubeconfig()}",
                "--leader-elect=false",
                "--bind-address=127.0.0.1",
                f"--secure-port={free_port()}",
                f"--cert-dir={self.folder / 'kcm'}",
                f"--service-account-private-key-file={self.folder / 'accounts.key'}",
                f"--root-ca-file={self.folder / 'ca.crt'}",
                "--use-service-account-credentials=false",
                "--kube-api-qps=500",
                "--kube-api-burst=1000",
                *extra,
            ],
        )

    def start_scheduler(
        self,
        config: Mapping[str, Any],
        name: str = "kube-scheduler",
        *extra: str,
        token: str | None = None,
        limits: Mapping[str, int] | None = None,
        env: Mapping[str, str] | None = None,
        program: Path = KUBERNETES / "kube-scheduler",
        wire: str = "",
    ) -> None:
        """Start a kube-scheduler.

        Args:
            config: a KubeSchedulerConfiguration without its client connection.
            name: of the process; several may run.
            extra: further flags.
            token: of its user; the administrator's by default.
            limits: of its client, `qps` and `burst`; by default what no test reaches.
            env: variables of its environment.
            program: the kube-scheduler.
            wire: by which it reaches the API server, in JSON; directly if empty.
        """
        path = self.folder / f"{name}.json"
        rates = limits or {"qps": 1000, "burst": 2000}
        connection = {"kubeconfig": str(self.kubeconfig(token, wire or None)), **rates}
        if wire:
            connection |= dict.fromkeys(("contentType", "acceptContentTypes"), "application/json")
        head = {
            "apiVersion": "kubescheduler.config.k8s.io/v1",
            "kind": "KubeSchedulerConfiguration",
            "leaderElection": {"leaderElect": False},
        }
        path.write_text(json.dumps({**head, **config, "clientConnection": connection}))
        self.run(
            name,
            [
                str(program),
                f"--config={path}",
                "--bind-address=127.0.0.1",
                f"--secure-port={free_port()}",
                f"--cert-dir={self.folder / name}",
                *extra,
            ],
            env,
        )

    def run(self, name: str, command: Sequence[str], env: Mapping[str, str] | None = None) -> None:
        """Start any program as a part of the control plane."""
        process = Process(name, [*self.inside, *command], self.folder / f"{name}.log", env or {})
        self.processes[name] = process
        process.start()

    def wait_ready(self, seconds: float = READY_SECONDS) -> None:
        """Wait until the API server says that it is ready."""
        deadline = time.monotonic() + seconds
        while True:
            for process in (self.processes["etcd"], self.processes["kube-apiserver"]):
                if not process.running:
                    raise RuntimeError(f"{process.name} has ended:\n{process.tail()}")
            try:
                self.call("GET", "/readyz", decode=False)
            except OSError as error:
                if time.monotonic() > deadline:
                    tail = self.processes["kube-apiserver"].tail()
                    raise RuntimeError(f"the API server is not ready: {error}\n{tail}") from error
                time.sleep(0.1)
            else:
                return

    def stop(self) -> None:
        """End everything, what depends on others first."""
        for process in reversed(self.processes.values()):
            process.stop()

    # --- the API -----------------------------------------------------------------------------

    def call(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        decode: bool = True,
        kind: str = "",
        accept: str = "*/*",
        token: str = "",
    ) -> Any:
        """One request, as the administrator or as the owner of the token.

        Args:
            method: HTTP method.
            path: with its query.
            body: sent as JSON; bytes as they are.
            decode: whether the answer is JSON.
            kind: content type, where it is not JSON (patches).
            accept: the form of the answer.
            token: of another user.

        Raises:
            urllib.error.HTTPError: the API server refused; it has the answer.
            OSError: it cannot be reached.
        """
        request = urllib.request.Request(  # noqa: S310 # loopback, by https
            self.url + path,
            method=method,
            data=body if body is None or isinstance(body, bytes) else json.dumps(body).encode(),
            headers={
                "Authorization": f"Bearer {token or self.admin}",
                "Content-Type": kind or "application/json",
                "Accept": accept,
            },
        )
        with self._opener.open(request, timeout=120) as response:
            try:
                data = response.read()
            except http.client.HTTPException as error:  # it ended in the middle of its answer
                raise ConnectionError(str(error)) from error
        return json.loads(data) if decode else data


@contextmanager
def control_plane(
    folder: Path, *flags: str, users: Mapping[str, Sequence[str]] | None = None
) -> Iterator[ControlPlane]:
    """A control plane that runs while the context does.

    Args:
        folder: an empty folder of its own.
        flags: further flags of the API server.
        users: names to groups of users who get a token; see `token_of`.
    """
    plane = ControlPlane(folder)
    for user, groups in (users or {}).items():
        plane.token(user, *groups)
    try:
        plane.start(*flags)
        yield plane
    finally:
        plane.stop()
