"""Koordinator device scheduling: GPU, RDMA and FPGA by percent, bytes and cards.

Sources: the Koordinator document (v1.4 names), the MetaX document (today's names), docs/sources/koordinator.md.
"""

from typing import Final

from partage.vendors.base import Family
from partage.vendors.families.koordinator.hints import HEEDED
from partage.vendors.families.koordinator.node import register
from partage.vendors.families.koordinator.recover import recover
from partage.vendors.families.koordinator.request import PROTOCOL, owned, read
from partage.vendors.families.koordinator.result import labels, render

FAMILY: Final = Family(
    name=PROTOCOL,
    owned=owned,
    heeded=HEEDED,
    read=read,
    register=register,
    render=render,
    labels=labels,
    recover=recover,
)
