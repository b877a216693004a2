"""Which of many waiting pods of a replay a node could possibly host, all asked at once.

When room appears on one node, most of those that wait still do not fit there. What is necessary is
checked for all of them together; who passes is worth a real decision, who does not would be refused
by it.
"""

from collections.abc import Sequence

import numpy as np

from partage.inventory.ledger import Ledger
from partage.inventory.plane import Bools, Ints
from partage.model.device import DeviceType
from partage.model.pod import Pod
from partage.model.request import DeviceRequest, PodRequest
from partage.placement.fast import is_plain


class Prefilter:
    """What each of some pods needs at least."""

    def __init__(self, pods: Sequence[Pod]) -> None:
        """Take down what the pods need.

        Requests that are not plain, or may be served by
        instances, are judged by their host alone.
        """
        self._names = sorted({name for pod in pods for name in pod.host})
        needs = [[pod.host.get(name, 0) for name in self._names] for pod in pods]
        self._needs: Ints = np.array(needs, np.int64).reshape(len(pods), len(self._names))
        asked = [_by_cards(pod.request) for pod in pods]
        self._count: Ints = np.array([r.count if r else 0 for r in asked], np.int64)
        self._core: Ints = np.array([r.core_milli if r else 0 for r in asked], np.int64)
        self._whole: Bools = np.array([r is not None and r.whole for r in asked], np.bool_)

    def on(self, ledger: Ledger, index: int) -> Bools:
        """By pod, whether the node could host it; False is certain, True is not."""
        left = ledger.host_left(index, self._names)
        room = np.array([left[name] for name in self._names], np.int64)
        able: Bools = np.all((self._needs <= room) | (self._needs <= 0), axis=1)
        plane = ledger.planes[DeviceType.GPU]
        open_ = plane.open[:, index]
        idle = int((open_ & (plane.tenants[:, index] == 0)).sum())
        most = int(np.where(open_, plane.core_free[:, index], -1).max(initial=-1))
        shared: Bools = (self._count == 0) | (self._core <= most)
        result: Bools = able & np.where(self._whole, self._count <= idle, shared)
        return result


def _by_cards(request: PodRequest) -> DeviceRequest | None:
    """The request, where what the columns of cards say is all that counts."""
    if not is_plain(request) or request.groups[0].request.instances:
        return None
    return request.groups[0].request
