"""The properties of each maker of cards: one row a vendor, read by all other modules.

The agent reads device files and the signs of an attempt to reach a card. Discovery reads PCI numbers. Koordinator's
family reads the names that count cards. The webhook and the command line read the annotations for a vendor's plugin.
Simulated nodes read a plugin's reports. No other module spells a vendor's name, number or device file;
`tests/vendors/test_a_vendor_is_one_row.py` checks that. Discovery's findings about a card override its row.

A vendor without a row, or with a row without device files, gets no pod, because a container would get a card that it
cannot open (`files_known`).

Source: docs/sources/kubernetes.md 6 (device files, PCI); docs/sources/koordinator.md 2.3, 5 and 11; the runtimes' own
hooks (`partage.vendors.runtimes`); HAMi's device plugins for the files of Hygon's, Cambricon's and Kunlun's cards.
Read, not run, except NVIDIA's.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from partage.vendors import names

FIRST_RENDER: Final = 128
"""Number of the first render node of the kernel's graphics drivers."""
FPGA_MAKER: Final = 0x10EE
"""PCI number of Xilinx, whose boards are the FPGAs that discovery knows."""

_DECORATION: Final = re.compile(
    r"\b(?:NVIDIA|AMD|Instinct|Tesla|GeForce)[ -]|[ -](?:SXM\d|HBM\d\w*)\b", re.IGNORECASE
)
"""Texts before and behind the model in models' names."""
_SGPU_SHARERS: Final = 16
"""The most virtual cards into which MetaX's plugin cuts a card (the MetaX document)."""
_SMLU_UNIT: Final = 256 * 2**20


@dataclass(frozen=True, slots=True)
class Reported:
    """The facts that a simulated node's plugin reports on.

    Attributes:
        healthy: cards that are healthy.
        memory: bytes of these cards together.
        mode: how the node's cards are cut, if the vendor has several ways.
    """

    healthy: int
    memory: int
    model: str = ""
    mode: str = ""


@dataclass(frozen=True, slots=True)
class Traits:
    """One vendor.

    Attributes:
        name: as in the label `node.koordinator.sh/gpu-vendor`.
        aliases: other spellings of the name.
        pci: its PCI number; None if discovery does not look for its cards.
        tool: its own program, if only this reports a card's memory.
        counts: resource names that count whole cards.
        units: native units that a card has beside memory.
        generic: whether `koordinator.sh/gpu` counts its cards.
        own: device files of one card that a container needs. `{minor}` is the card's number, `{render}` that of its
            render node.
        common: device files of the driver, which a container gets if the host has them.
        memory: device file that every program that initialises the driver has open; empty if unknown.
        complete: a container needs only these files, so its runtime's variable stays closed.
        kinds: names by which the kernel lists the major number of its cards.
        tampering: pattern of device files that no container has without a grant.
        shared: the same for files that belong to this vendor only on nodes with its cards.
        variable: the one by which its container runtime opens cards; empty without one.
        closed: the variable's value that opens none.
        others: further values that open none.
        domains: those of its CDI kinds.
        adapted: its own device plugin provides the files of the parts that it cuts, and reads annotations of the pod.
        annotations: those annotations, and their meaning.
        lock: annotation of the node by which its plugin serves one pod after the other; empty without one.
        wakes: resource names that only activate its plugin.
        sharers: the most of one card; 0 if it has no limit of its own.
        unit: bytes of the smallest part of a card's memory that its plugin cuts.
        unshareable: models that refuse shares.
        modes: those that a simulated node's cards may have.
        identity: form of a card's identity, of `{plain}` and `{minor}`.
        reports: its plugin's reports of a simulated node, by resource name.
    """

    name: str
    aliases: tuple[str, ...] = ()
    pci: int | None = None
    tool: str = ""
    counts: tuple[str, ...] = ()
    units: tuple[str, ...] = ()
    generic: bool = False
    own: tuple[str, ...] = ()
    common: tuple[str, ...] = ()
    memory: str = ""
    complete: bool = False
    kinds: tuple[str, ...] = ()
    tampering: str = ""
    shared: str = ""
    variable: str = ""
    closed: str = "none"
    others: frozenset[str] = frozenset()
    domains: tuple[str, ...] = ()
    adapted: bool = False
    annotations: Mapping[str, str] = field(default_factory=dict)
    lock: str = ""
    wakes: tuple[str, ...] = ()
    sharers: int = 0
    unit: int = 1
    unshareable: tuple[str, ...] = ()
    modes: tuple[str, ...] = ("",)
    identity: str = "{plain}"
    reports: Callable[[Reported], Mapping[str, int]] = lambda _told: {}

    def files(self, minor: int) -> tuple[str, ...]:
        """Device files of one card by its number, if discovery does not report them."""
        numbers = {"minor": minor, "render": FIRST_RENDER + minor}
        return tuple(path.format(**numbers) for path in self.own)

    def is_closed(self, value: str) -> bool:
        """Whether a value of its variable opens no card."""
        return value == self.closed or value in self.others


NVIDIA: Final = Traits(
    "nvidia",
    pci=0x10DE,
    counts=(names.COUNT_NVIDIA,),
    generic=True,
    own=("/dev/nvidia{minor}",),
    common=("/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"),
    memory="/dev/nvidia-uvm",
    kinds=("nvidia", "nvidia-frontend"),
    tampering=r"/dev/nvidia[0-9]+|/dev/nvidia-caps/.+",
    variable="NVIDIA_VISIBLE_DEVICES",
    closed="void",
    others=frozenset({"", "none"}),
    domains=("nvidia.com",),
    modes=("", "hami-core", "mig"),
    identity="GPU-{plain}",
)

AMD: Final = Traits(
    "amd",
    pci=0x1002,
    counts=(names.COUNT_AMD,),
    generic=True,
    own=("/dev/kfd", "/dev/dri/renderD{render}"),
    complete=True,
    tampering=r"/dev/kfd",
    shared=r"/dev/dri/(card|renderD)[0-9]+",
    variable="AMD_VISIBLE_DEVICES",
    domains=("amd.com",),
    identity="GPU-{plain}",
    reports=lambda told: {names.COUNT_AMD: told.healthy},
)

HYGON: Final = Traits(
    "hygon",
    aliases=("dcu",),
    counts=(names.COUNT_HYGON,),
    own=("/dev/kfd", "/dev/mkfd", "/dev/dri/renderD{render}"),
    tampering=r"/dev/m?kfd",
    shared=r"/dev/dri/(card|renderD)[0-9]+",
    reports=lambda told: {names.COUNT_HYGON: told.healthy},
)

HUAWEI: Final = Traits(
    "huawei",
    pci=0x19E5,
    tool="npu-smi",
    units=(names.NPU_CORE, names.NPU_CPU, names.NPU_DVPP),
    own=("/dev/davinci{minor}",),
    common=("/dev/davinci_manager", "/dev/devmm_svm", "/dev/hisi_hdc"),
    tampering=r"/dev/davinci[0-9]+",
    variable="ASCEND_VISIBLE_DEVICES",
    closed="",
    domains=("huawei.com", "ascend.com"),
    adapted=True,
    annotations={
        names.PREDICATE_TIME: "when it was placed, read by Huawei's plugin",
        names.NPU_CORE: "its NPUs or template, read by Huawei's plugin",
        names.ASCEND_310P: "its NPUs, read by Huawei's plugin",
    },
    wakes=(names.ASCEND_310P,),
    unshareable=("Ascend-310P3-300I-DUO",),
    identity="{plain}-{minor}",
    reports=lambda told: (
        {names.ASCEND_310P: told.healthy} if told.model.startswith("Ascend-310P") else {}
    ),
)

CAMBRICON: Final = Traits(
    "cambricon",
    pci=0xCABC,
    tool="cnmon",
    own=("/dev/cambricon_dev{minor}",),
    common=("/dev/cambricon_ctl",),
    tampering=r"/dev/cambricon_dev[0-9]+",
    variable="CAMBRICON_VISIBLE_DEVICES",
    domains=("cambricon.com",),
    adapted=True,
    annotations={
        names.DSMLU_ASSIGNED: "Cambricon: whether its plugin has allocated the share",
        names.DSMLU_PROFILE: "Cambricon: card, compute and memory of the share",
    },
    lock=names.DSMLU_LOCK,
    wakes=(names.SMLU_VCORE, names.SMLU_VMEMORY),
    unit=_SMLU_UNIT,
    reports=lambda told: {
        names.SMLU_VCORE: 100 * told.healthy,
        names.SMLU_VMEMORY: told.memory // _SMLU_UNIT,
    },
)

METAX: Final = Traits(
    "metax",
    pci=0x9999,
    own=("/dev/dri/card{minor}", "/dev/dri/renderD{render}"),
    common=("/dev/mxcd",),
    tampering=r"/dev/mx[a-z]+[0-9]*",
    shared=r"/dev/dri/(card|renderD)[0-9]+",
    variable="METAX_VISIBLE_DEVICES",
    domains=("metax-tech.com",),
    adapted=True,
    annotations={names.METAX_DEVICES_ALLOCATED: "its cards and amounts, read by MetaX's plugin"},
    lock=names.METAX_LOCK,
    wakes=(names.SGPU,),
    sharers=_SGPU_SHARERS,
    unit=2**20,
    modes=("", "sgpu", "native"),
    reports=lambda told: (
        {names.METAX_GPU: told.healthy}
        if told.mode == "native"
        else {names.SGPU: _SGPU_SHARERS * told.healthy}
    ),
)

KUNLUN: Final = Traits(
    "kunlun",
    aliases=("baidu",),
    own=("/dev/xpu{minor}",),
    common=("/dev/xpuctrl",),
    tampering=r"/dev/xpu[0-9]+",
)

ROWS: Final = (
    NVIDIA,
    AMD,
    HYGON,
    HUAWEI,
    CAMBRICON,
    METAX,
    KUNLUN,
    # No pod is placed on cards of these vendors, but their runtimes are kept from opening any.
    Traits("habana", variable="HABANA_VISIBLE_DEVICES", domains=("habana.ai",)),
    Traits("mthreads", variable="MTHREADS_VISIBLE_DEVICES", domains=("mthreads.com",)),
    Traits("iluvatar", variable="ILUVATAR_COREX_VISIBLE_DEVICES"),
)
"""All vendors."""

_BY_NAME: Final[Mapping[str, Traits]] = MappingProxyType(
    {spelt: row for row in ROWS for spelt in (row.name, *row.aliases)} | {"": NVIDIA}
)
_UNKNOWN: Final = Traits("unknown")


def traits_of(vendor: str) -> Traits:
    """The row of a vendor.

    A card without a vendor is NVIDIA's, as in Koordinator; a vendor without a row has no trait.
    """
    return _BY_NAME.get(vendor, _UNKNOWN)


def short_models(text: str) -> str:
    """A text's model names without brand, socket and kind of memory: `A100-40GB` for `NVIDIA A100-SXM4-40GB`."""
    return _DECORATION.sub("", text)


def files_known(vendor: str) -> bool:
    """Whether a container can get a card of the vendor."""
    return bool(traits_of(vendor).own)
