"""What the default strategy learns: tables with the best prices for the requests seen.

Importing this module imports the compiled loops of rehearsals where numba is installed, which takes
a second; a service that decides has a process of its own do it.
"""

from collections.abc import Mapping
from dataclasses import replace

from partage.model.policy import Strategy
from partage.placement.mix import Ask, Mix, Standing, Stock, workload_of
from partage.placement.selection import Rules, chosen
from partage.placement.tables import Tables

__all__ = ["learned"]


def learned(
    tables: Tables,
    seen: Mapping[Ask, int],
    stock: Stock,
    standing: Standing | None = None,
    *,
    rules: Rules | None = None,
    fast: bool | None = None,
) -> Tables | None:
    """Tables with the best prices for the requests seen, or with the best stand-in.

    Args:
        tables: in force.
        seen: how often each ask came.
        stock: the empty cluster.
        standing: what is placed already.
        rules: how gain and cost are weighed.
        fast: use compiled loops; None for where numba is installed.

    Returns:
        None where nothing can be learnt: nobody asks for cards, or there are none.
    """
    mix = Mix.of(seen, stock)
    choice = chosen(mix, stock, standing, rules=rules, fast=fast)
    if choice is None:
        return None
    usual = workload_of(mix, stock) if choice.stand_in is Strategy.FGD else tables.workload
    return replace(
        tables,
        version=tables.version + 1,
        workload=usual,
        prices=choice.prices,
        stand_in=choice.stand_in,
    )
