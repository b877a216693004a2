"""Kubeconfig documents and where they are found. Using them is tested with the credentials."""

import base64
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from kube_builders import written

from partage.kube.config import ClusterConfig, Config, ExecPlugin, Material, UserConfig
from partage.kube.errors import ConfigError
from partage.kube.kubeconfig import parse_kubeconfig
from partage.kube.loading import in_cluster, load_config

HOME = Path("/home/me/.kube/config")
PEM = base64.b64encode(b"pem").decode()


def kubeconfig(
    cluster: dict[str, Any] | None = None, user: dict[str, Any] | None = None, **more: Any
) -> bytes:
    """A document with one context, `main`."""
    return yaml.safe_dump(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "main",
            "contexts": [{"name": "main", "context": {"cluster": "c", "user": "u"}}],
            "clusters": [
                {"name": "c", "cluster": {"server": "https://api:6443/", **(cluster or {})}}
            ],
            "users": [{"name": "u", "user": user or {}}],
            **more,
        }
    ).encode()


def parse(document: bytes, context: str | None = None) -> Config:
    """The configuration of one document at the usual place."""
    return parse_kubeconfig([(HOME, document)], context)


def test_a_plain_context_is_read() -> None:
    """Server, namespace and name; the slash at the end goes."""
    config = parse(kubeconfig())

    assert config == Config(ClusterConfig("https://api:6443"), UserConfig(), "default")


def test_a_context_can_be_named() -> None:
    """Its namespace and cluster are used; it needs no user."""
    other = {"name": "b", "context": {"cluster": "c", "namespace": "team"}}
    config = parse(kubeconfig(contexts=[other]), "b")

    assert (config.namespace, config.user) == ("team", UserConfig())


def test_everything_a_cluster_may_say_is_read() -> None:
    """Inline data, name, proxy and the plugin's own extension."""
    extension = {"name": "client.authentication.k8s.io/exec", "extension": {"audience": "x"}}
    config = parse(
        kubeconfig(
            {
                "certificate-authority-data": PEM,
                "tls-server-name": "kubernetes",
                "proxy-url": "http://me:pw@proxy:3128",
                "extensions": [{"name": "other"}, extension],
            }
        )
    )

    assert config.cluster == ClusterConfig(
        "https://api:6443",
        Material(data=b"pem"),
        True,
        "kubernetes",
        "http://me:pw@proxy:3128",
        {"audience": "x"},
    )


def test_files_are_relative_to_their_document() -> None:
    """A relative file is beside its document, as for kubectl; absolute ones stay."""
    config = parse(
        kubeconfig(
            {"certificate-authority": "ca.crt"},
            {"client-certificate": "/pki/me.crt", "client-key": "me.key", "tokenFile": "token"},
        )
    )

    folder = HOME.parent
    assert config.cluster.authority == Material(path=folder / "ca.crt")
    assert config.user.certificate == Material(path=Path("/pki/me.crt"))
    assert config.user.key == Material(path=folder / "me.key")
    assert config.user.token_file == folder / "token"


def test_inline_data_outranks_files() -> None:
    """Both may be there after an import."""
    user = {"client-certificate": "x", "client-certificate-data": PEM, "client-key-data": PEM}

    assert parse(kubeconfig(user=user)).user.certificate == Material(data=b"pem")


def test_impersonation_is_kept() -> None:
    """Dropping it would ask with more rights than meant."""
    extra = {"k": ["v"], "example.com/50% off": ["x"]}
    user = {"as": "jane", "as-uid": "7", "as-groups": ["a", "b"], "as-user-extra": extra}

    assert parse(kubeconfig(user=user)).user.impersonation == (
        ("Impersonate-User", "jane"),
        ("Impersonate-Uid", "7"),
        ("Impersonate-Group", "a"),
        ("Impersonate-Group", "b"),
        ("Impersonate-Extra-example.com%2F50%25%20off", "x"),
        ("Impersonate-Extra-k", "v"),
    )


@pytest.mark.parametrize(
    ("command", "expected"),
    [("aws", "aws"), ("./bin/aws", "/home/me/.kube/bin/aws"), ("/bin/aws", "/bin/aws")],
    ids=["in-path", "relative", "absolute"],
)
def test_a_plugin_is_read(command: str, expected: str) -> None:
    """Its command is looked up as kubectl does."""
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": command,
        "args": ["token"],
        "env": [{"name": "A", "value": "b"}],
        "installHint": "install it",
        "provideClusterInfo": True,
        "interactiveMode": "Never",
    }

    assert parse(kubeconfig(user={"exec": plugin})).user.plugin == ExecPlugin(
        expected,
        ("token",),
        {"A": "b"},
        "client.authentication.k8s.io/v1",
        True,
        "install it",
        "Never",
    )


def test_documents_merge_and_the_first_wins() -> None:
    """Names from several files; of the same name the first file's."""
    first = yaml.safe_dump({"users": [{"name": "u", "user": {"token": "one"}}]}).encode()
    second = kubeconfig(user={"token": "two"})

    config = parse_kubeconfig([(Path("/a/x"), first), (Path("/b/y"), second)])

    assert config.user.token == "one"  # noqa: S105


V1 = "client.authentication.k8s.io/v1"
WRONG = [
    pytest.param(b"a: [", "not YAML at line", id="not-yaml"),
    pytest.param(b"\x00", "not YAML", id="not-text"),
    pytest.param(b"- 1", "not a kubeconfig", id="a-list"),
    pytest.param(b"", "no current-context", id="empty"),
    pytest.param(
        kubeconfig(contexts=None), "no context named 'main' (there are: none)", id="no-context"
    ),
    pytest.param(kubeconfig(clusters=[]), "no cluster named 'c'", id="no-cluster"),
    pytest.param(
        kubeconfig(users=[{"name": "x"}]), "no user named 'u' (there are: x)", id="no-user"
    ),
    pytest.param(kubeconfig({"server": ""}), "cluster 'c': server: not a URL", id="no-server"),
    pytest.param(kubeconfig({"server": "ftp://x"}), "not a URL of http or https", id="scheme"),
    pytest.param(kubeconfig({"server": "https://x:port"}), "server: not a URL", id="port"),
    pytest.param(kubeconfig({"server": "https://x:0"}), "server: not a URL", id="port 0"),
    pytest.param(kubeconfig({"proxy-url": "socks5://x"}), "proxy-url: not a URL", id="socks"),
    pytest.param(kubeconfig({"certificate-authority-data": "*"}), "is not base64", id="base64"),
    pytest.param(
        kubeconfig({"certificate-authority": "x", "insecure-skip-tls-verify": True}),
        "certificate-authority with insecure-skip-tls-verify",
        id="insecure-with-ca",
    ),
    pytest.param(kubeconfig(user={"client-key": "x"}), "go together", id="half-a-pair"),
    pytest.param(
        kubeconfig(user={"auth-provider": {"name": "gcp"}}), "gcp was removed in", id="removed"
    ),
    pytest.param(
        kubeconfig(user={"auth-provider": {"name": "oidc"}}), "oidc is not known here", id="oidc"
    ),
    pytest.param(kubeconfig(user={"auth-provider": []}), "is not known here", id="no-provider"),
    pytest.param(kubeconfig(user={"as-groups": ["x"]}), "need as", id="groups-alone"),
    pytest.param(
        kubeconfig(user={"token": 7}), "Expected `str | null`, got `int`", id="token-type"
    ),
    pytest.param(
        kubeconfig(user={"exec": {"command": "x"}}), "exec.apiVersion ''", id="exec-version"
    ),
    pytest.param(
        kubeconfig(user={"exec": {"command": "", "apiVersion": V1}}),
        "command is empty",
        id="exec-empty",
    ),
    pytest.param(
        kubeconfig(user={"exec": {"command": "x", "apiVersion": V1, "interactiveMode": "always"}}),
        "'always' is not Never, IfAvailable, Always",
        id="exec-interactive",
    ),
]


@pytest.mark.parametrize(("document", "message"), WRONG)
def test_what_is_wrong_is_said_with_the_file(document: bytes, message: str) -> None:
    """File, entry and field; no traceback of another library."""
    with pytest.raises(ConfigError) as caught:
        parse(document)

    assert message in str(caught.value)
    assert str(HOME) in str(caught.value)


def test_a_broken_document_is_not_quoted() -> None:
    """The line with the mistake may be the one with the token."""
    with pytest.raises(ConfigError) as caught:
        parse(b'users: [{user: {token: "s3cr3t}]')

    assert "s3cr3t" not in f"{caught.value}{caught.value.__cause__}"


@given(st.binary(max_size=200))
def test_noise_is_refused(document: bytes) -> None:
    """Only a ConfigError may leave."""
    with pytest.raises(ConfigError):
        parse(document)


TREE = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(["name", "user", "cluster", "server", "exec", "token"]), inner
        )
    ),
    max_leaves=8,
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(("clusters", "users", "contexts"), TREE)))
def test_any_tree_is_read_or_refused(tree: dict[str, Any]) -> None:
    """Well-formed nonsense."""
    with pytest.raises(ConfigError):
        parse(yaml.safe_dump({"current-context": "main", **tree}).encode())


def test_the_environment_names_the_files(tmp_path: Path) -> None:
    """KUBECONFIG's missing files are skipped; home comes after it, an explicit file before."""
    listed = written(tmp_path / "listed", kubeconfig({"server": "https://listed"}).decode())
    home = written(tmp_path / ".kube" / "config", kubeconfig({"server": "https://home"}).decode())
    both = {"KUBECONFIG": f"{tmp_path}/missing::{listed}", "HOME": str(tmp_path)}

    assert load_config(both).cluster.server == "https://listed"
    assert load_config({"HOME": str(tmp_path)}).cluster.server == "https://home"
    assert load_config(both, kubeconfig=home).cluster.server == "https://home"


@pytest.mark.parametrize(
    ("environ", "options", "message"),
    [
        pytest.param({}, {}, "no cluster configured", id="nothing"),
        pytest.param({"KUBECONFIG": "/missing"}, {}, "looked at /missing", id="missing"),
        pytest.param({}, {"context": "x"}, "looked at nowhere", id="context-without-file"),
        pytest.param({}, {"kubeconfig": Path("/missing")}, "cannot be read", id="explicit"),
    ],
)
def test_nothing_found_says_where_it_looked(
    environ: dict[str, str], options: dict[str, Any], message: str
) -> None:
    """A person then knows what to set."""
    with pytest.raises(ConfigError, match=message):
        load_config(environ, **options)


POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


def test_a_pod_uses_its_service_account(tmp_path: Path) -> None:
    """It does so without a kubeconfig."""
    for name, text in (("token", "t"), ("ca.crt", "pem"), ("namespace", "team\n")):
        written(tmp_path / name, text)

    config = load_config(POD, service_account=tmp_path)

    assert config == Config(
        ClusterConfig("https://10.0.0.1:443", Material(path=tmp_path / "ca.crt")),
        UserConfig(token_file=tmp_path / "token"),
        "team",
    )


def test_an_address_of_version_six_gets_brackets(tmp_path: Path) -> None:
    """What is not mounted has its default."""
    written(tmp_path / "token", "t")

    config = in_cluster(POD | {"KUBERNETES_SERVICE_HOST": "fd00::1"}, tmp_path)

    assert config.cluster == ClusterConfig("https://[fd00::1]:443")
    assert config.namespace == "default"


@pytest.mark.parametrize("environ", [POD, {}], ids=["no-token", "not-in-a-pod"])
def test_outside_a_pod_there_is_no_account(environ: dict[str, str], tmp_path: Path) -> None:
    """Said before anything is sent."""
    with pytest.raises(ConfigError, match=r"no service account token|not in a pod"):
        in_cluster(environ, tmp_path)
