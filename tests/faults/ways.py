"""The ways in which a request may fail, by name."""

from typing import Any

__all__ = ["WAYS"]

WAYS: dict[str, dict[str, Any]] = {
    "conflict": {"status": 409, "reason": "Conflict"},
    "too many requests": {"status": 429, "reason": "TooManyRequests", "retry_after": "0"},
    "internal error": {"status": 500, "reason": "InternalError"},
    "timeout": {"status": 504, "reason": "Timeout"},
    "timeout though done": {"status": 504, "reason": "Timeout", "executed": True},
    "internal error though done": {"status": 500, "reason": "InternalError", "executed": True},
    "no answer": {"drop": True},
    "no answer though done": {"drop": True, "executed": True},
    "late": {"delay": 2.5},
}
"""What a `Fault` gets; two requests in a row are hit, one of those that are late."""
