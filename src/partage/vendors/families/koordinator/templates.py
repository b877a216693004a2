"""Templates of shared NPUs: the only sizes into which a card of a model can be cut.

The published table (docs/sources/koordinator.md 3.5a, chart 1.8) is data here; an operator's own, from the ConfigMap
`gpu-shared-resource-templates`, replaces it. A template is a name and (native unit, amount) pairs; memory in bytes has
the unit `memory`.
"""

from collections.abc import Mapping
from typing import Final

from partage.vendors import names
from partage.vendors.settings import KoordinatorSettings

MEMORY: Final = "memory"
"""The unit of a template's memory, in bytes."""

Template = tuple[tuple[str, int], ...]
Table = Mapping[str, Template]

_GIB: Final = 2**30


def _cut(core: int, cpu: int, gib: int, dvpp: int = 0) -> Template:
    units = {names.NPU_CORE: core, names.NPU_CPU: cpu, names.NPU_DVPP: dvpp, MEMORY: gib * _GIB}
    return tuple(sorted((unit, amount) for unit, amount in units.items() if amount))


_310P: Final[Table] = {
    "vir01": _cut(1, 1, 3, dvpp=12),
    "vir02": _cut(2, 2, 6, dvpp=25),
    "vir02_1c": _cut(2, 1, 6, dvpp=25),
    "vir04": _cut(4, 4, 12, dvpp=50),
    "vir04_3c": _cut(4, 3, 12, dvpp=50),
    "vir04_3c_ndvpp": _cut(4, 3, 12),
    "vir04_4c_dvpp": _cut(4, 4, 12, dvpp=100),
}
_910: Final[Table] = {
    "vir02": _cut(2, 1, 2),
    "vir04": _cut(4, 1, 4),
    "vir08": _cut(8, 3, 8),
    "vir16": _cut(16, 7, 16),
}
_910B: Final[Table] = {
    "vir03_1c_8g": _cut(3, 1, 8),
    "vir06_1c_16g": _cut(6, 1, 16),
    "vir12_3c_32g": _cut(12, 3, 32),
}
_910B3: Final[Table] = {"vir05_1c_16g": _cut(5, 1, 16), "vir10_3c_32g": _cut(10, 3, 32)}
_910B4: Final[Table] = {
    "vir05_1c_8g": _cut(5, 1, 8, dvpp=25),
    "vir10_3c_16g": _cut(10, 3, 16, dvpp=50),
    "vir10_3c_16g_nm": _cut(10, 3, 16),
    "vir10_4c_16g_m": _cut(10, 4, 16, dvpp=100),
}

_PUBLISHED: Final[Mapping[str, Table]] = {
    "huawei-Ascend-310P": _310P,
    "huawei-Ascend-310P3": _310P,
    "huawei-Ascend-910": _910,
    "huawei-Ascend-910B1": _910B,
    "huawei-Ascend-910B2": _910B,
    "huawei-Ascend-910B2C": _910B,
    "huawei-Ascend-910B3": _910B3,
    "huawei-Ascend-910B4": _910B4,
}


def tables(settings: KoordinatorSettings) -> Mapping[str, Table]:
    """Every table in force, by `<vendor>-<model>`."""
    return _PUBLISHED if settings.templates is None else settings.templates


def templates_of(vendor: str, model: str, settings: KoordinatorSettings) -> Table:
    """The templates of one model; empty if it has none."""
    return tables(settings).get(f"{vendor}-{model}", {})


def template_equal(table: Table, extras: Template, memory: int) -> str:
    """The template that equals a request for native units (`extras`) exactly, or an empty name."""
    wanted = {**dict(extras), MEMORY: memory}
    return next((name for name, units in table.items() if dict(units) == wanted), "")
