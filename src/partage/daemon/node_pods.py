"""Mirrors the pods of an agent's own node."""

import logging
from collections.abc import Callable
from typing import Final

from partage.daemon.watched import LivePod
from partage.kube.client import Client
from partage.kube.informer import Informer
from partage.kube.mirror import Change, Interrupted, Odd
from partage.kube.resources import PODS, Scope

_LOG: Final = logging.getLogger("partage.daemon")


def pods_of(client: Client, node: str, changed: Callable[[], None]) -> Informer[LivePod]:
    """An informer that calls `changed` for every change, and logs each problem of reading once."""
    problem = ""

    def heard(change: Change[LivePod]) -> None:
        nonlocal problem
        if isinstance(change, Interrupted | Odd):
            why = str(change.error if isinstance(change, Interrupted) else change.problem)
            if why != problem:
                _LOG.warning("pods of node %s cannot be read: %s", node, why)
            problem = why
            return
        problem = ""
        changed()

    scope = Scope(PODS, fields=f"spec.nodeName={node}")
    return Informer(client, scope, into=LivePod, observer=heard)
