"""The API server to use and the identity for it: values only, secrets kept out of their repr."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

WEB: Final = frozenset({"http", "https"})


def is_url(text: str, schemes: Collection[str] = WEB) -> bool:
    """Whether this is a URL with a host, one of these schemes, and a port, if any, that exists."""
    try:
        parts = urlsplit(text)
        return parts.scheme in schemes and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


def is_here(host: str) -> bool:
    """Whether a host name or address is this machine's alone."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True, slots=True)
class Material:
    """A certificate or key in PEM: in a file, which may change, or inline. Exactly one of the two is set."""

    path: Path | None = None
    data: bytes | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class ClusterConfig:
    """The way to an API server, and the means to verify it."""

    server: str
    """URL, possibly with a path, without a trailing slash."""
    authority: Material | None = None
    """The trusted authorities; None means the system's authorities."""
    verify: bool = True
    """False accepts any certificate."""
    server_name: str | None = None
    """The name that the server's certificate must have if it is not the URL's host."""
    proxy: str | None = field(default=None, repr=False)
    """URL of an HTTP proxy; may hold a password."""
    exec_config: Any = None
    """The cluster entry's data for credential plugins; passed through."""

    @property
    def by_tls(self) -> bool:
        """Whether TLS protects the requests on the way."""
        return self.server[:6].lower() == "https:"


@dataclass(frozen=True, slots=True)
class ExecPlugin:
    """A program that prints a credential (client.authentication.k8s.io)."""

    command: str
    arguments: tuple[str, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Added to the environment that `load_config` was given."""
    api_version: str = "client.authentication.k8s.io/v1"
    provide_cluster: bool = False
    install_hint: str = ""
    interactive: str = "IfAvailable"
    """Whether the plugin may ask on a terminal: Never, IfAvailable or Always."""


@dataclass(frozen=True, slots=True)
class UserConfig:
    """Our identity. Fields that are None or empty are not used; a token file outranks a fixed token."""

    certificate: Material | None = None
    key: Material | None = None
    token: str | None = field(default=None, repr=False)
    token_file: Path | None = None
    plugin: ExecPlugin | None = None
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    impersonation: tuple[tuple[str, str], ...] = ()
    """Headers `Impersonate-…`, in order."""


@dataclass(frozen=True, slots=True)
class Config:
    """A cluster, a user and the default namespace."""

    cluster: ClusterConfig
    user: UserConfig = UserConfig()
    namespace: str = "default"
