"""Bounds on a container, as the runtime describes it before its creation.

A runtime lists all pods and containers to each new connection. containerd 2 sends at least four of each in one message
of 4 MiB. If they do not fit it drops the plugin, and containers start unchanged until the long ones have ended. So the
agent starts no container of which four are too long beside four pods (admission bounds pods). The bound on fields is
for the thread that reads them: other containers wait for it.

Source: docs/sources/kubernetes.md 1.5.
"""

from itertools import islice
from typing import Final

from partage.wire.protobuf import pieces

LARGEST_CONTAINER: Final = 576 << 10
"""Bytes, before the agent's own edits. The kernel starts no program with more than 2 MiB of variables and arguments."""
MOST_FIELDS: Final = 16_384
LARGEST_IMAGE: Final = 1 << 20
"""Bytes of an image's configuration, which only the proxy has to read."""


def too_long(container: object, length: int = 0) -> str:
    """Why a container's description is too long by its bytes, or the `length` of an unread call. Raises `Malformed`."""
    if not isinstance(container, memoryview):
        return ""
    what = "variables, arguments, mounts and annotations are too long"
    if length or len(container) > LARGEST_CONTAINER:
        return f"{what}: {length or len(container)} bytes, {LARGEST_CONTAINER} at most"
    if sum(1 for _ in islice(pieces(container), MOST_FIELDS + 1)) > MOST_FIELDS:
        return f"{what}: more than {MOST_FIELDS} in number"
    return ""


def image_too_long(configuration: int, variables: int) -> str:
    """Why an image's configuration is too long, from its bytes and its variables; empty if it is not."""
    if configuration > LARGEST_IMAGE:
        return f"its image's configuration is too long: {configuration} bytes, {LARGEST_IMAGE} at most"
    if variables > MOST_FIELDS:
        return f"its image's variables are too long: {variables} in number, {MOST_FIELDS} at most"
    return ""
