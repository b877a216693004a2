"""`partage top pods --idle`: granted shares with little use, as Prometheus measured them."""

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

import aiohttp

from partage.cli.ending import end
from partage.kube.config import is_url
from partage.serving.listener import cause

_KEYS: Final = ("namespace", "pod", "container", "node", "card")
_QUERIES: Final = {
    "granted_percent": "container_request_gpu_utilization",
    "used_percent": "avg_over_time(container_gpu_utilization[1h])",
    "granted_mib": "container_request_gpu_memory",
    "used_mib": "max_over_time(container_gpu_memory_total[1h])",
}
"""Series of the agent: compute in percent of a card, memory in MiB."""
_IDLE: Final = 5
"""Percent of a card's time below which a container is idle, as on the Grafana page."""
_LARGEST: Final = 64 * 2**20
_SECONDS: Final = 30


def idle_shares(url: str, namespace: str) -> list[dict[str, Any]]:
    """Containers that received less than 5 % of their card's time in the last hour, the largest grant first.

    Only containers with measured use; the command ends if Prometheus does not answer. `url`: of Prometheus, or of
    another server with its API.
    """
    if not is_url(url):
        end(f"--prometheus {url}: must be a URL, such as http://127.0.0.1:9090")
    try:
        answers = asyncio.run(_asked(url.rstrip("/")))
        found = {name: _values(answer) for name, answer in answers.items()}
    except (
        aiohttp.ClientError,
        TimeoutError,
        OSError,
        ValueError,
        LookupError,
        TypeError,
    ) as error:
        end(
            f"{url} does not answer as Prometheus does ({_why(error)}); "
            "give the URL of one that scrapes the agents"
        )
    rows: list[dict[str, Any]] = [
        {**dict(zip(_KEYS, key, strict=True)), **{name: of.get(key) for name, of in found.items()}}
        for key in found["granted_percent"]
    ]
    return sorted(
        (
            row
            for row in rows
            if namespace in ("", row["namespace"])
            and row["granted_percent"]
            and row["used_percent"] is not None
            and row["used_percent"] < _IDLE
        ),
        key=lambda row: (-row["granted_percent"], *(row[key] for key in _KEYS)),
    )


def _why(error: Exception) -> str:
    """What went wrong, without the words of a Python program."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return cause(error.os_error)
    if isinstance(error, LookupError | TypeError):
        return "its answer has another form"
    return str(error) or type(error).__name__


async def _asked(url: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    timeout = aiohttp.ClientTimeout(total=_SECONDS)
    async with aiohttp.ClientSession(timeout=timeout) as http:
        for name, query in _QUERIES.items():
            async with http.get(f"{url}/api/v1/query", params={"query": query}) as answer:
                if answer.status != 200:
                    raise ValueError(f"{answer.status} {answer.reason}")
                body = bytearray()
                async for part in answer.content.iter_chunked(2**16):
                    body += part
                    if len(body) > _LARGEST:
                        raise ValueError(f"its answer must be {_LARGEST} bytes or less")
                found[name] = json.loads(body)["data"]["result"]
    return found


def _values(result: Iterable[Mapping[str, Any]]) -> dict[tuple[str, ...], float]:
    """Values by container and card; if the target's labels had the same names, Prometheus renamed ours."""
    found = {}
    for one in result:
        labels = one["metric"]
        key = tuple(labels.get(f"exported_{name}") or labels.get(name, "") for name in _KEYS)
        found[key] = float(one["value"][1])
    return found
