"""HAMi: software slices and hardware instances of NVIDIA cards under one set of names.

`request` reads a pod's resources, `wishes` its annotations, `registration` and `cards` a node's reports. `result` and
`codec` write a placed pod. Source: the HAMi document, docs/sources/hami.md.
"""

from typing import Final

from partage.vendors.base import Family
from partage.vendors.families.hami.registration import register
from partage.vendors.families.hami.request import NAME, owned, read
from partage.vendors.families.hami.result import labels, recover, render
from partage.vendors.families.hami.wishes import HEEDED

FAMILY: Final = Family(
    name=NAME,
    owned=owned,
    heeded=HEEDED,
    read=read,
    register=register,
    render=render,
    labels=labels,
    recover=recover,
    by_container=True,
)
