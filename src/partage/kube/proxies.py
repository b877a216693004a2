"""The proxy that the environment names for a server: HTTPS_PROXY, HTTP_PROXY and NO_PROXY, read as kubectl reads them.

`NO_PROXY` lists hosts, domains, addresses and networks, each with or without a port; `*` matches all of
them. A domain matches all hosts below it, and without a leading dot also itself. Requests to
this machine never use a proxy.
"""

from collections.abc import Mapping
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network
from urllib.parse import SplitResult, urlsplit

from partage.kube.config import is_here, is_url
from partage.kube.errors import ConfigError


def proxy_of(server: str, environ: Mapping[str, str]) -> str | None:
    """The proxy's URL; None if there is none.

    `environ`: the environment; lower-case names count too, after upper-case ones. Raises `ConfigError`: it is not an
    HTTP proxy; its URL is not quoted, as it may contain a password.
    """
    parts = urlsplit(server)
    name = f"{parts.scheme}_proxy".upper()
    proxy = _value(environ, name)
    if not proxy or _bypassed(parts, _value(environ, "NO_PROXY")):
        return None
    proxy = proxy if "://" in proxy else f"http://{proxy}"
    if not is_url(proxy):
        raise ConfigError(f"{name}: not a URL of http or https")
    return proxy


def _value(environ: Mapping[str, str], name: str) -> str:
    return environ.get(name) or environ.get(name.lower(), "")


def _bypassed(server: SplitResult, listed: str) -> bool:
    host = (server.hostname or "").rstrip(".")
    port = str(server.port or (443 if server.scheme == "https" else 80))
    if is_here(host):
        return True
    address = _address(host)
    entries = (entry.strip().lower() for entry in listed.split(","))
    return any(_matches(entry, host, port, address) for entry in entries if entry)


def _matches(entry: str, host: str, port: str, address: IPv4Address | IPv6Address | None) -> bool:
    if entry == "*":
        return True
    if "/" in entry:
        try:
            return address is not None and address in ip_network(entry, strict=False)
        except ValueError:
            return False
    name, colon, number = entry.rpartition(":")
    if colon and number.isdigit() and (name.endswith("]") or ":" not in name):
        if number != port:
            return False
        entry = name
    entry = entry.strip("[]")
    if address is not None:
        return _address(entry) == address
    entry = entry.removeprefix("*")
    return host.endswith(entry) if entry.startswith(".") else f".{host}".endswith(f".{entry}")


def _address(text: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(text)
    except ValueError:
        return None
