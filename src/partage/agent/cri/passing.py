"""How calls pass through the proxy: limits of its connections, and what of a call belongs to it alone."""

from typing import Any, Final

import grpc

UNBOUNDED: Final = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)
PROMPT: Final = (
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
)
"""A runtime that restarts is back within a second."""
_OWN: Final = frozenset({"user-agent", "grpc-accept-encoding", "grpc-encoding", "te"})
"""Metadata that belong to one connection."""


def streams(method: str) -> bool:
    """Whether a call has many answers; CRI has none with many requests."""
    name = method.rpartition("/")[2]
    return name == "GetContainerEvents" or name.startswith("Stream")


def passed(context: Any) -> tuple[tuple[str, str | bytes], ...]:
    """What came with a call and belongs to it."""
    return tuple(
        (key, value) for key, value in context.invocation_metadata() or () if key not in _OWN
    )


async def refused(context: Any, error: grpc.aio.AioRpcError) -> bytes:
    """End a call as the runtime has ended it."""
    trailing = tuple(error.trailing_metadata() or ())
    await context.abort(error.code(), error.details() or "", trailing)
    raise AssertionError("a call that was ended goes on")
