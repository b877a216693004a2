"""The models of cards for simulated nodes: vendor, memory, and how they are reported.

NVIDIA's memory is the driver's figure for the model, rounded to whole GiB as people write it. MetaX's is
the Koordinator document's. Huawei's native units are those of its device daemon (docs/sources/koordinator.md 2.3,
11). A node's own document may describe other models in full.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from partage.vendors.traits import AMD, CAMBRICON, HUAWEI, METAX, NVIDIA

_GIB: Final = 2**30


@dataclass(frozen=True, slots=True)
class CardModel:
    """One model of card.

    Attributes:
        vendor: in the words of Koordinator's label.
        memory: bytes.
        product: the name in the vendor's own label and driver; empty if it equals the model.
        units: native units that a card has beside or instead of percent of compute.
        percent: whether the card's compute is reported in percent.
    """

    vendor: str
    memory: int
    product: str = ""
    units: Mapping[str, str] = field(default_factory=dict)
    percent: bool = True
    driver: str = ""


def _nvidia(gib: int, product: str, driver: str = "535.161.08") -> CardModel:
    return CardModel(NVIDIA.name, gib * _GIB, product, driver=driver)


def _huawei(gib: int, cores: int, cpus: int) -> CardModel:
    units = dict(zip(HUAWEI.units, (str(cores), str(cpus), "100"), strict=True))
    return CardModel(HUAWEI.name, gib * _GIB, units=units, percent=False)


MODELS: Final[Mapping[str, CardModel]] = {
    "A10": _nvidia(24, "NVIDIA A10"),
    "A30": _nvidia(24, "NVIDIA A30"),
    "A100-SXM4-40GB": _nvidia(40, "NVIDIA A100-SXM4-40GB"),
    "A100-SXM4-80GB": _nvidia(80, "NVIDIA A100-SXM4-80GB"),
    "H100-80GB-HBM3": _nvidia(80, "NVIDIA H100 80GB HBM3"),
    "H200": _nvidia(141, "NVIDIA H200"),
    "L40S": _nvidia(48, "NVIDIA L40S"),
    "Tesla-T4": _nvidia(15, "Tesla T4"),
    "Tesla-V100-SXM2-32GB": _nvidia(32, "Tesla V100-SXM2-32GB"),
    "AMD-Instinct-MI300X": CardModel(AMD.name, 192 * _GIB, "AMD Instinct MI300X"),
    "C500": CardModel(METAX.name, 64 * _GIB),
    "MLU-370": CardModel(CAMBRICON.name, 24 * _GIB),
    "Ascend-310P3": _huawei(24, 8, 7),
    "Ascend-910B3": _huawei(64, 20, 7),
}
