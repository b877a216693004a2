"""Tencent qGPU: shares of NVIDIA cards in steps of 5 % and 1 GiB, and whole cards.

`rules` defines the valid requests of a container, `request` reads a pod, `registration` and `support` judge a node,
`result` writes and reads a placed pod. Source: the qGPU document, docs/sources/qgpu.md.
"""

from typing import Final

from partage.vendors.base import Family
from partage.vendors.families.qgpu.registration import register
from partage.vendors.families.qgpu.request import NAME, owned, read
from partage.vendors.families.qgpu.result import labels, recover, render

FAMILY: Final = Family(
    name=NAME,
    owned=owned,
    read=read,
    register=register,
    render=render,
    labels=labels,
    recover=recover,
    by_container=True,
    tells_amounts=False,
)
