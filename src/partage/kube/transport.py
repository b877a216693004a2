"""One request, one answer: connections, credentials and the mapping of failures; no retries.

Only a request answered 401 is sent twice, with fresh credentials, because it was not carried out.
Redirects are not followed, since an API server sends none that a token should follow.
"""

import base64
import contextlib
import os
import socket
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Self
from urllib.parse import quote, urlencode

import aiohttp
from yarl import URL

from partage.kube.clock import Clock
from partage.kube.config import Config
from partage.kube.credentials import Credentials, Identity
from partage.kube.errors import (
    AnswerTooLarge,
    ApiError,
    ConfigError,
    Outcome,
    TimedOut,
    TransportError,
    api_error,
    retry_after_seconds,
)
from partage.kube.proxies import proxy_of
from partage.kube.tls import Tls

_HEADERS: Final = {
    "User-Agent": "partage",
    "Accept": "application/json",
    "Accept-Encoding": "identity",  # compressed answers cost the server time
}
_READ_BUFFER: Final = 2**18
"""Bytes of a watch that are buffered before the socket pushes back."""
_ERROR_BODY: Final = 2**16
"""Bytes of an error's body that are read."""
_CONNECTING: Final = 0.2
"""Share of the rest of a request's time for a connection. The server gets the rest. It counts from the
request's arrival, and cannot know how long the way took."""
_LEAST: Final = 0.001
"""Seconds; with less time left a request is not sent. To the server a time-out of 0 means none."""


@dataclass(frozen=True, slots=True)
class TransportSettings:
    """Times in seconds."""

    request_timeout: float = 30.0
    """One request, from start to the last byte of its answer."""
    connect_timeout: float = 5.0
    """One connection, TLS included, and the wait for a free one."""
    unheard_timeout: float = 5.0
    """The other machine's acknowledgement of sent data. After this time the connection is broken, and the
    kernel sends nothing more on it, not even after a network has recovered."""
    reload_period: float = 10.0
    """Between looks at token and certificate files."""
    plugin_timeout: float = 30.0
    """One run of a credential plugin."""
    heard: bool = False
    """Whether a person sees a credential plugin's output, and answers questions if there is a terminal."""
    connections: int = 256
    """The most connections at a time; each watch holds one."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request: method, path, query and body.

    `until` is a moment of the transport's clock. The request is not sent after it, and each try gives the
    server the time that is left. If an answer has more bytes than `most`, the rest is not read.
    """

    method: str
    path: str
    query: Mapping[str, str] | None = None
    body: bytes | None = None
    content_type: str = "application/json"
    until: float | None = None
    most: int | None = None


class Transport:
    """Sends requests to one API server; use it as an async context manager."""

    def __init__(
        self,
        config: Config,
        *,
        clock: Clock,
        settings: TransportSettings,
        environ: Mapping[str, str],
    ) -> None:
        self._settings = settings
        self._server = config.cluster.server
        self._server_name = config.cluster.server_name
        self._clock = clock
        self._tls = Tls(config, clock=clock, period=settings.reload_period)
        self._credentials = Credentials(
            config,
            clock=clock,
            environ=environ,
            period=settings.reload_period,
            plugin_timeout=settings.plugin_timeout,
            heard=settings.heard,
        )
        proxy = config.cluster.proxy or proxy_of(config.cluster.server, environ)
        self._proxy, self._proxy_headers = _proxy(proxy)
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> Self:
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                limit=self._settings.connections, socket_factory=self._socket
            ),
            headers=_HEADERS,
            auto_decompress=False,  # a compressed answer without a request for one may inflate to any size
            cookie_jar=aiohttp.DummyCookieJar(),
            read_bufsize=_READ_BUFFER,
        )
        # aiohttp silently repeats PUT and DELETE when a kept connection breaks. Our retry rules must decide
        # whether a change may be sent twice; there is no public switch.
        session._retry_connection = False  # noqa: SLF001
        self._session = session
        return self

    async def __aexit__(self, *error: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _socket(self, address: tuple[Any, ...]) -> socket.socket:
        """A socket whose kernel stops sending a request that we gave up.

        Otherwise the kernel tries for minutes. A Binding that was cut off by a broken network would arrive
        after the network's repair, when another instance leads.
        """
        made = socket.socket(*address[:3])
        if hasattr(socket, "TCP_USER_TIMEOUT"):  # Linux
            milliseconds = int(self._settings.unheard_timeout * 1000)
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)
        return made

    async def send(self, request: Request) -> bytes:
        """Send and return the answer's body.

        Raises `ApiError`: an answer of 300 or more; `TransportError`: no complete answer, or its deadline passed before
        the request was sent; `AnswerTooLarge`: it has more bytes than the request allows; `ConfigError`: no usable
        credentials or certificates.
        """
        limits = aiohttp.ClientTimeout(
            total=self._settings.request_timeout,
            connect=self._settings.connect_timeout,
        )
        with _mapped(request):
            async with self._answered(request, limits) as response:
                if request.most is None:
                    return await response.read()
                body = bytearray()
                async for chunk in response.content.iter_any():
                    body += chunk
                    if len(body) > request.most:
                        raise AnswerTooLarge(request.method, request.path, request.most)
                return bytes(body)

    @contextlib.asynccontextmanager
    async def stream(
        self, request: Request, *, idle_timeout: float
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """Send and yield the answer's body as it arrives.

        `idle_timeout`: after so many seconds without a byte, the connection counts as lost. Raises `ApiError` and
        `TransportError` and `ConfigError`: as `send`, also while reading.
        """
        limits = aiohttp.ClientTimeout(
            total=None, connect=self._settings.connect_timeout, sock_read=idle_timeout
        )
        async with contextlib.AsyncExitStack() as stack:
            with _mapped(request):
                response = await stack.enter_async_context(self._answered(request, limits))
            yield _chunks(request, response)

    @contextlib.asynccontextmanager
    async def _answered(
        self, request: Request, limits: aiohttp.ClientTimeout
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """A successful answer; after one 401, tries again with fresh credentials."""
        identity = await self._credentials.current()
        for last in (False, True):
            async with self._sent(request, identity, limits) as got:
                if got.status < 300:
                    yield got
                    return
                error = await self._refusal(request, got)
            if last or error.status != 401 or not await self._credentials.renew(identity):
                raise error
            identity = await self._credentials.current()

    def _sent(
        self, request: Request, identity: Identity, limits: aiohttp.ClientTimeout
    ) -> contextlib.AbstractAsyncContextManager[aiohttp.ClientResponse]:
        if self._session is None:
            raise RuntimeError("the client is not open; use it with `async with`")
        if request.until is not None:
            request, limits = _hurried(request, request.until - self._clock.monotonic(), limits)
        context: ssl.SSLContext | None = self._tls.context(identity.certificate)
        sent = [*identity.headers]
        # Only a tunnel has its own headers; without TLS the proxy reads those of the request.
        sent += self._proxy_headers.items() if context is None else ()
        if request.body is not None:
            sent.append(("Content-Type", request.content_type))
        query = urlencode(request.query, quote_via=quote) if request.query else ""
        return self._session.request(
            request.method,
            URL(f"{self._server}{request.path}{'?' if query else ''}{query}", encoded=True),
            data=request.body,
            headers=sent,
            timeout=limits,
            allow_redirects=False,
            ssl=context if context is not None else True,
            server_hostname=self._server_name if context is not None else None,
            proxy=self._proxy,
            proxy_headers={**self._proxy_headers} if context is not None else None,
        )

    async def _refusal(self, request: Request, response: aiohttp.ClientResponse) -> ApiError:
        # Not StreamReader.read(n), because that returns the arrived bytes, which may be half a document.
        body = b""
        async for chunk in response.content.iter_any():
            body += chunk
            if len(body) > _ERROR_BODY:
                break
        told = response.headers
        after = retry_after_seconds(told.get("Retry-After"), self._clock.now(), told.get("Date"))
        return api_error(
            request.method, request.path, response.status, body[:_ERROR_BODY], retry_after=after
        )


def _hurried(
    request: Request, left: float, limits: aiohttp.ClientTimeout
) -> tuple[Request, aiohttp.ClientTimeout]:
    """The request and its limits with this many seconds left; computed for each try."""
    connecting = min(limits.connect or left, left * _CONNECTING)
    served = int((left - connecting) * 1000)
    if left < _LEAST or not served:
        text = "not sent: its deadline had passed"
        raise TimedOut(request.method, request.path, text, Outcome.REFUSED)
    query = {**(request.query or {}), "timeout": f"{served}ms"}
    total = min(limits.total or left, left)
    return replace(request, query=query), aiohttp.ClientTimeout(total=total, connect=connecting)


async def _chunks(request: Request, response: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """The body as it arrives; maps only the errors of the reading, not those of the reader."""
    with _mapped(request):
        async for chunk in response.content.iter_any():
            yield chunk


@contextlib.contextmanager
def _mapped(request: Request) -> Iterator[None]:
    try:
        yield
    except aiohttp.InvalidURL as error:
        raise ConfigError(f"{request.method} {request.path}: the server's URL is wrong") from error
    except aiohttp.ClientResponseError as error:
        # From a proxy. Its cause is dropped, because it contains the headers of the request and so the token.
        text = f"{type(error).__name__}: {error.status} {error.message}"
        raise TransportError(request.method, request.path, text, Outcome.REFUSED) from None
    except (aiohttp.ClientError, OSError) as error:
        early = isinstance(error, aiohttp.ConnectionTimeoutError | aiohttp.ClientConnectorError)
        outcome = Outcome.REFUSED if early else Outcome.UNKNOWN
        if isinstance(error, TimeoutError):
            text = f"no {'connection' if early else 'answer'} in time"
            raise TimedOut(request.method, request.path, text, outcome) from error
        raise TransportError(request.method, request.path, _said(error), outcome) from error


def _said(error: Exception) -> str:
    """The error in words, because the library's own texts show objects of the program."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"cannot connect to {error.host}:{error.port}: {_why(error.os_error)}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "the server closed the connection before it answered"
    if isinstance(error, OSError) and error.errno:
        return _why(error)
    text = str(error)
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _why(error: OSError) -> str:
    """The system's text for an error, or the TLS library's."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"certificate verify failed: {error.verify_message}"
    if isinstance(error, ssl.SSLError) and error.reason:
        return f"TLS: {error.reason.replace('_', ' ').lower()}"
    if isinstance(error, socket.gaierror) or not error.errno:
        return error.strerror or str(error)
    return os.strerror(error.errno)  # asyncio puts the address into `strerror`


def _proxy(url: str | None) -> tuple[URL | None, dict[str, str]]:
    """Split the password off, so that no message about the proxy can contain it."""
    if url is None:
        return None, {}
    parsed = URL(url)
    if not parsed.user:
        return parsed, {}
    pair = base64.b64encode(f"{parsed.user}:{parsed.password or ''}".encode()).decode()
    return parsed.with_user(None), {"Proxy-Authorization": f"Basic {pair}"}
