"""Files that a configuration names: kubeconfigs, tokens, certificates and keys, none of them large."""

import errno
from pathlib import Path
from typing import Final

from partage.kube.errors import ConfigError

_MOST: Final = 2**24


def read_small(path: Path) -> bytes:
    """All of a file. Raises `OSError`, also beyond 16 MiB, since the file may be a device or a pipe without an end."""
    with path.open("rb") as file:
        data = bytearray()
        while piece := file.read(_MOST // 16):
            data += piece
            if len(data) > _MOST:
                raise OSError(errno.EFBIG, f"holds more than the {_MOST >> 20} MiB that are read")
    return bytes(data)


def read_named(path: Path) -> bytes:
    """All of a file that a person named. Raises `ConfigError`: it cannot be read."""
    try:
        return read_small(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
