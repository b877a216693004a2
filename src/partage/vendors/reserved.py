"""Keys of pods that only Partage, and the vendors' own plugins, may write.

With these keys a user could claim devices that were never granted. The admission webhook refuses them. The in-process
admission policies are generated from the same list, so the two cannot disagree.

The list leaves out `partage.io/original-request`, which admission itself writes and which grants nothing, and the
annotations by which a pod's author chooses (policies, hints, wishes).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from partage.vendors import names
from partage.vendors.traits import ROWS


@dataclass(frozen=True, slots=True)
class ReservedKeys:
    """The keys, by their place.

    Attributes:
        annotations: whole keys of annotations.
        prefixes: beginnings of keys of annotations and labels; a container's name follows.
        labels: whole keys of labels.
    """

    annotations: frozenset[str]
    prefixes: tuple[str, ...]
    labels: frozenset[str]

    def in_annotations(self, keys: Iterable[str]) -> list[str]:
        """The given keys that are reserved as annotations, in order."""
        return sorted(
            key for key in keys if key in self.annotations or key.startswith(self.prefixes)
        )

    def in_labels(self, keys: Iterable[str]) -> list[str]:
        """The given keys that are reserved as labels, in order."""
        return sorted(key for key in keys if key in self.labels or key.startswith(self.prefixes))

    def differing(
        self,
        annotations: tuple[Mapping[str, str], Mapping[str, str]],
        labels: tuple[Mapping[str, str], Mapping[str, str]],
    ) -> list[str]:
        """Reserved keys that were added, changed or removed, as `annotation x` or `label y`.

        `annotations`: before and after. `labels`: before and after.
        """
        return [
            f"{what} {key}"
            for what, (before, after), keys in (
                (
                    "annotation",
                    annotations,
                    self.in_annotations({**annotations[0], **annotations[1]}),
                ),
                ("label", labels, self.in_labels({**labels[0], **labels[1]})),
            )
            for key in keys
            if before.get(key) != after.get(key)
        ]


RESERVED: Final = ReservedKeys(
    annotations=frozenset(
        {
            names.ALLOCATION,
            names.ENFORCED,
            names.PERMIT,
            names.DEVICE_ALLOCATED,
            names.BIND_TIMESTAMP,
            names.GPU_MINORS,
            names.HAMI_POD_NODE,
            names.HAMI_POD_TIME,
            names.HAMI_TO_ALLOCATE,
            names.HAMI_ALLOCATED,
            names.HAMI_MIG_ALLOCATIONS,
            names.HAMI_BIND_PHASE,
            names.HAMI_BIND_TIME,
            names.QGPU_ALLOCATED,
        }
    ).union(*(row.annotations for row in ROWS)),
    prefixes=(names.QGPU_CARDS,),
    labels=frozenset({names.HAMI_POD_NODE, names.QGPU_ALLOCATED}),
)
