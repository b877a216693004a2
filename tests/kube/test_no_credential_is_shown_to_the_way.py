"""Tokens stay off plain HTTP, proxies are those of the environment, and credential plugins speak to people alone."""

import os
import pty
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from kube_builders import client_of, put, written

from fakes.kube_server import KubeServer
from partage.kube.config import ExecPlugin, UserConfig
from partage.kube.errors import ConfigError
from partage.kube.kubeconfig import parse_kubeconfig
from partage.kube.loading import load_config
from partage.kube.proxies import proxy_of
from partage.kube.resources import PODS

V1 = "client.authentication.k8s.io/v1"


def document(server: str, user: dict[str, Any]) -> bytes:
    """A kubeconfig."""
    return yaml.safe_dump(
        {
            "current-context": "m",
            "contexts": [{"name": "m", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": user}],
        }
    ).encode()


@pytest.mark.parametrize(
    "user",
    [
        {"token": "t"},
        {"tokenFile": "token"},
        {"username": "a", "password": "b"},
        {"exec": {"command": "x", "apiVersion": V1}},
        {"as": "jane"},
    ],
    ids=lambda one: next(iter(one)),
)
def test_a_server_by_plain_http_is_told_of_nobody(user: dict[str, Any]) -> None:
    """The rule is that of kubectl, and holds on this machine too."""
    for server in ("http://127.0.0.1:8001", "http://api.example:8080"):
        assert parse_kubeconfig([(Path("/c"), document(server, user))]).user == UserConfig()
    for server in ("https://x", "HTTPS://x"):
        assert parse_kubeconfig([(Path("/c"), document(server, user))]).user != UserConfig()


@pytest.mark.parametrize(
    "user",
    [UserConfig(token="t"), UserConfig(username="u"), UserConfig(plugin=ExecPlugin("/no"))],  # noqa: S106
    ids=["token", "password", "plugin"],
)
async def test_nor_does_a_program_send_any_to_another_machine(user: UserConfig) -> None:
    """This holds for any configuration; the error comes before anything is sent."""
    for url in (
        "http://api.example",
        "http://10.0.0.1",
        "http://localhost.example",
        "http://[fd00::1]",
    ):
        async with client_of(url, user=user) as client:
            with pytest.raises(ConfigError, match="by plain HTTP; use https"):
                await client.get(PODS, "a", namespace="default", into=msgspec.Raw)


def test_a_plugin_beside_its_document_is_that_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one of its name in PATH is not run, however the document was named."""
    plugin = {"exec": {"command": "./plug.sh", "apiVersion": V1}}
    (tmp_path / "config").write_bytes(document("https://x", plugin))
    monkeypatch.chdir(tmp_path)

    for name in (Path("config"), Path("./config"), tmp_path / "config"):
        found = load_config({}, kubeconfig=name).user.plugin
        assert found is not None
        assert found.command == str(tmp_path / "plug.sh")


def test_wrapped_data_is_read() -> None:
    """Editors and tools fold long lines of base64."""
    user = {"client-certificate-data": "cGVt\ncGVt\r\n cGVt", "client-key-data": "a2V5"}

    found = parse_kubeconfig([(Path("/c"), document("https://x", user))]).user.certificate

    assert found is not None
    assert found.data == b"pempempem"


PROXY = "http://proxy:3128"
BYPASSED = [
    ("https://api.example", ""),
    ("https://api.example", "other.example"),
    ("https://api.example", "pi.example"),
    ("https://api.example:6443", "api.example:443"),
    ("https://api.example", ".api.example"),
    ("https://10.1.2.3", "10.2.0.0/16"),
    ("https://10.1.2.3", "10.1.2.30"),
    ("https://[fd00::1]:6443", "[fd00::1]:443"),
    ("https://10.1.2.3", "nonsense/99"),
]
DIRECT = [
    ("https://api.example", "*"),
    ("https://api.example", "other, API.example"),
    ("https://api.example", "example"),
    ("https://api.example", ".example"),
    ("https://api.example", "*.example"),
    ("https://api.example:6443", "api.example:6443"),
    ("https://10.1.2.3", "10.1.0.0/16"),
    ("https://10.1.2.3", "10.1.2.3"),
    ("https://[fd00::1]", "fd00::/8"),
    ("https://[fd00::1]", "fd00::1"),
    ("https://localhost", ""),
    ("https://127.0.0.2", ""),
    ("https://[::1]", ""),
]


@pytest.mark.parametrize(("server", "listed"), BYPASSED)
def test_the_environments_proxy_is_used(server: str, listed: str) -> None:
    """NO_PROXY must not list the server; names in small letters count too."""
    for environ in (
        {"HTTPS_PROXY": PROXY, "NO_PROXY": listed},
        {"https_proxy": PROXY, "no_proxy": listed},
    ):
        assert proxy_of(server, environ) == PROXY
    assert proxy_of(server, {"HTTP_PROXY": PROXY}) is None


@pytest.mark.parametrize(("server", "listed"), DIRECT)
def test_what_no_proxy_lists_is_asked_directly(server: str, listed: str) -> None:
    """This machine is always asked directly."""
    assert proxy_of(server, {"HTTPS_PROXY": PROXY, "NO_PROXY": listed}) is None


def test_a_proxy_may_come_without_a_scheme_and_must_speak_http() -> None:
    """A wrong one is named without its password."""
    assert proxy_of("https://x", {"HTTPS_PROXY": "proxy:1"}) == "http://proxy:1"
    for wrong in ("socks5://me:s3cr3t@proxy:1", "http://me:s3cr3t@proxy:99999", "http://[x"):
        with pytest.raises(ConfigError, match="HTTPS_PROXY: not a URL of http or https") as told:
            proxy_of("https://x", {"HTTPS_PROXY": wrong})
        assert "s3cr3t" not in str(told.value)


async def test_a_client_goes_by_the_environments_proxy() -> None:
    """The proxy gets the request; the cluster's own proxy-url goes before it."""
    async with KubeServer() as proxy, KubeServer() as own:
        for server in (proxy, own):
            put(server, "a")
        environ = {"HTTP_PROXY": proxy.url}
        async with client_of("http://api.example", environ=environ) as client:
            await client.get(PODS, "a", namespace="default", into=msgspec.Raw)
        assert (len(proxy.requests), len(own.requests)) == (1, 0)
        async with client_of(
            "http://api.example", environ=environ, cluster={"proxy": own.url}
        ) as client:
            await client.get(PODS, "a", namespace="default", into=msgspec.Raw)
        assert (len(proxy.requests), len(own.requests)) == (1, 1)


ASKS = """
import json, os, sys
print("who are you?", file=sys.stderr)
print("asked", os.environ["KUBERNETES_EXEC_INFO"], file=open({log!r}, "w"))
name = sys.stdin.readline().strip() if sys.stdin.isatty() else "nobody"
print(json.dumps({{"apiVersion": "{version}", "kind": "ExecCredential", "status": {{"token": name}}}}))
"""


@pytest.mark.parametrize("heard", [True, False], ids=["a person", "a service"])
async def test_a_plugin_speaks_to_people_alone(
    heard: bool,  # noqa: FBT001 # a case
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """A person's terminal is the plugin's; a service's standard streams are not."""
    log = tmp_path / "log"
    file = written(tmp_path / "plugin.py", ASKS.format(log=str(log), version=V1))
    ours, theirs = pty.openpty()
    os.write(ours, b"jane\n")
    before = os.dup(0)
    os.dup2(theirs, 0)
    try:
        with os.fdopen(os.dup(theirs)) as terminal:
            monkeypatch.setattr(sys, "stdin", terminal)
            user = UserConfig(plugin=ExecPlugin(sys.executable, (str(file),)))
            async with KubeServer() as server:
                put(server, "a")
                transport = {"heard": heard, "plugin_timeout": 240.0}
                async with client_of(server, user=user, transport=transport) as client:
                    await client.get(PODS, "a", namespace="default", into=msgspec.Raw)
                sent = server.requests[0].headers["Authorization"]
    finally:
        os.dup2(before, 0)
        for one in (before, ours, theirs):
            os.close(one)

    assert sent == f"Bearer {'jane' if heard else 'nobody'}"
    assert ("who are you?" in capfd.readouterr().err) is heard
    assert (f'"interactive":{"true" if heard else "false"}' in log.read_text()) is True


async def test_a_plugin_that_needs_a_terminal_is_told_that_there_is_none() -> None:
    """The error comes before the plugin is run."""
    user = UserConfig(plugin=ExecPlugin("/no", interactive="Always"))
    async with client_of("https://x.invalid", user=user) as client:
        with pytest.raises(ConfigError, match="Always needs a terminal"):
            await client.get(PODS, "a", namespace="default", into=msgspec.Raw)
