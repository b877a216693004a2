"""Kubeconfig documents into a `Config`; pure, so reading files is left to `loading`.

Several documents merge as in kubectl: for each name the first document that has it wins, and paths
are relative to the document that contains them. As in kubectl, only servers with TLS get a user's
credentials, because every machine on the way to a plain HTTP server could read them.
"""

import base64
import binascii
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar
from urllib.parse import quote

import msgspec
import yaml

from partage.kube.config import ClusterConfig, Config, ExecPlugin, Material, UserConfig, is_url
from partage.kube.errors import ConfigError

E = TypeVar("E", bound="_Entry")

_EXEC_EXTENSION: Final = "client.authentication.k8s.io/exec"
_EXEC_VERSIONS: Final = frozenset(
    {"client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1"}
)
_IN_NAMES: Final = "!#$&'*+-.^_`|~"
"""What the name of a header may hold beside letters and digits; `%` is escaped too."""
_MODES: Final = ("Never", "IfAvailable", "Always")


class _Part(msgspec.Struct, frozen=True, rename="kebab"):
    """A part of the document; unknown fields are skipped, as kubectl does."""


class _Extension(_Part, frozen=True):
    name: str
    extension: Any = None


class _Cluster(_Part, frozen=True):
    server: str = ""
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    insecure_skip_tls_verify: bool = False
    tls_server_name: str | None = None
    proxy_url: str | None = None
    extensions: list[_Extension] | None = None


class _Variable(_Part, frozen=True):
    name: str
    value: str


class _Exec(msgspec.Struct, frozen=True, rename="camel"):
    command: str
    api_version: str = ""
    args: list[str] | None = None
    env: list[_Variable] | None = None
    install_hint: str = ""
    provide_cluster_info: bool = False
    interactive_mode: str = "IfAvailable"


class _User(_Part, frozen=True):
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = msgspec.field(default=None, name="tokenFile")
    username: str | None = None
    password: str | None = None
    as_: str | None = msgspec.field(default=None, name="as")
    as_uid: str | None = None
    as_groups: list[str] | None = None
    as_user_extra: dict[str, list[str]] | None = None
    auth_provider: Any = None
    exec_: _Exec | None = msgspec.field(default=None, name="exec")


class _Context(_Part, frozen=True):
    cluster: str = ""
    user: str = ""
    namespace: str | None = None


class _Entry(_Part, frozen=True):
    name: str


class _NamedCluster(_Entry, frozen=True):
    cluster: _Cluster | None = None


class _NamedUser(_Entry, frozen=True):
    user: _User | None = None


class _NamedContext(_Entry, frozen=True):
    context: _Context | None = None


class _Document(_Part, frozen=True):
    current_context: str | None = None
    clusters: list[_NamedCluster] | None = None
    users: list[_NamedUser] | None = None
    contexts: list[_NamedContext] | None = None


def parse_kubeconfig(
    documents: Sequence[tuple[Path, bytes]], context: str | None = None
) -> Config:
    """The configuration of a context, by default the current one.

    `documents`: each file's path and content, in order of precedence. Raises `ConfigError`: names the file and field,
    and never quotes a value that may be secret.
    """
    parsed = [(path, _decode(path, data)) for path, data in documents]
    name = context or next((d.current_context for _, d in parsed if d.current_context), None)
    if not name:
        raise ConfigError(f"{_files(parsed)}: no current-context, and none was named")
    _, named = _find(parsed, "context", name, lambda one: one.contexts)
    chosen = named.context or _Context()
    path, cluster = _find(parsed, "cluster", chosen.cluster, lambda one: one.clusters)
    server = _cluster(path, cluster.name, cluster.cluster or _Cluster())
    user = UserConfig()
    if chosen.user:
        path, found = _find(parsed, "user", chosen.user, lambda one: one.users)
        user = _user(path, found.name, found.user or _User())
    return Config(server, user if server.by_tls else UserConfig(), chosen.namespace or "default")


def _decode(path: Path, data: bytes) -> _Document:
    # The causes are dropped on purpose: a YAML error quotes its line, which may contain a token.
    try:
        value = yaml.safe_load(data)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else "?"
        raise ConfigError(f"{path}: not YAML at line {line}: {error.problem}") from None
    except (yaml.YAMLError, RecursionError, ValueError):
        raise ConfigError(f"{path}: not YAML") from None
    try:
        return msgspec.convert(value if value is not None else {}, _Document)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{path}: not a kubeconfig: {error}") from error


def _find(
    parsed: Sequence[tuple[Path, _Document]],
    kind: str,
    name: str,
    entries: Callable[[_Document], list[E] | None],
) -> tuple[Path, E]:
    there = [(path, one) for path, document in parsed for one in entries(document) or ()]
    for path, one in there:
        if one.name == name:
            return path, one
    known = ", ".join(sorted({one.name for _, one in there})) or "none"
    raise ConfigError(f"{_files(parsed)}: no {kind} named {name!r} (there are: {known})")


def _files(parsed: Sequence[tuple[Path, _Document]]) -> str:
    return ", ".join(str(path) for path, _ in parsed) or "no kubeconfig"


def _cluster(path: Path, name: str, cluster: _Cluster) -> ClusterConfig:
    where = f"{path}: cluster {name!r}"
    server = cluster.server.rstrip("/")
    _check_url(server, f"{where}: server")
    if cluster.proxy_url:
        _check_url(cluster.proxy_url, f"{where}: proxy-url")
    authority = _material(
        path,
        where,
        "certificate-authority",
        cluster.certificate_authority,
        cluster.certificate_authority_data,
    )
    if authority and cluster.insecure_skip_tls_verify:
        raise ConfigError(f"{where}: certificate-authority with insecure-skip-tls-verify")
    config = next(
        (e.extension for e in cluster.extensions or () if e.name == _EXEC_EXTENSION), None
    )
    return ClusterConfig(
        server,
        authority,
        not cluster.insecure_skip_tls_verify,
        cluster.tls_server_name or None,
        cluster.proxy_url or None,
        config,
    )


def _check_url(url: str, where: str) -> None:
    if not is_url(url):
        raise ConfigError(f"{where}: not a URL of http or https")


def _user(path: Path, name: str, user: _User) -> UserConfig:
    where = f"{path}: user {name!r}"
    if user.auth_provider is not None:
        raise ConfigError(f"{where}: {_provider(user.auth_provider)}")
    certificate = _material(
        path, where, "client-certificate", user.client_certificate, user.client_certificate_data
    )
    key = _material(path, where, "client-key", user.client_key, user.client_key_data)
    if (certificate is None) != (key is None):
        raise ConfigError(f"{where}: client-certificate and client-key go together")
    return UserConfig(
        certificate=certificate,
        key=key,
        token=user.token or None,
        token_file=_beside(path, user.token_file) if user.token_file else None,
        plugin=_plugin(path, where, user.exec_) if user.exec_ else None,
        username=user.username or None,
        password=user.password,
        impersonation=tuple(_impersonation(where, user)),
    )


def _impersonation(where: str, user: _User) -> Iterator[tuple[str, str]]:
    if not user.as_:
        if user.as_uid or user.as_groups or user.as_user_extra:
            raise ConfigError(f"{where}: as-uid, as-groups and as-user-extra need as")
        return
    yield "Impersonate-User", user.as_
    if user.as_uid:
        yield "Impersonate-Uid", user.as_uid
    for group in user.as_groups or ():
        yield "Impersonate-Group", group
    for key, values in (user.as_user_extra or {}).items():
        for value in values:
            # As client-go writes it: a header's name holds no slash, and keys usually do.
            yield f"Impersonate-Extra-{quote(key, safe=_IN_NAMES)}", value


def _plugin(path: Path, where: str, plugin: _Exec) -> ExecPlugin:
    if plugin.api_version not in _EXEC_VERSIONS:
        known = " or ".join(sorted(_EXEC_VERSIONS))
        raise ConfigError(f"{where}: exec.apiVersion {plugin.api_version!r} is not {known}")
    if plugin.interactive_mode not in _MODES:
        raise ConfigError(
            f"{where}: exec.interactiveMode {plugin.interactive_mode!r} is not {', '.join(_MODES)}"
        )
    if not plugin.command:
        raise ConfigError(f"{where}: exec.command is empty")
    # As kubectl does: a bare name is looked up in PATH, a path is relative to its file.
    bare = "/" not in plugin.command
    return ExecPlugin(
        plugin.command if bare else str(_beside(path, plugin.command)),
        tuple(plugin.args or ()),
        {variable.name: variable.value for variable in plugin.env or ()},
        plugin.api_version,
        plugin.provide_cluster_info,
        plugin.install_hint,
        plugin.interactive_mode,
    )


def _provider(given: Any) -> str:
    """The reason that an auth-provider cannot be used."""
    name = str(given.get("name", ""))[:64] if isinstance(given, dict) else ""
    if name in ("gcp", "azure"):
        return f"auth-provider {name} was removed in Kubernetes 1.26; use exec with its plugin"
    return f"auth-provider {name} is not known here; use exec with a credential plugin"


def _beside(path: Path, given: str) -> Path:
    """The file that a document names; absolute, so that a program of its name in PATH is not run."""
    return path.parent.absolute() / given


def _material(
    path: Path, where: str, field: str, file: str | None, data: str | None
) -> Material | None:
    if data:
        try:
            # Tools wrap long lines.
            return Material(data=base64.b64decode("".join(data.split()), validate=True))
        except (binascii.Error, ValueError):
            raise ConfigError(f"{where}: {field}-data is not base64") from None
    return Material(path=_beside(path, file)) if file else None
