"""The price tables from which a rehearsal chooses: a fixed list, the same for every workload.

No theory gives the best settings for a mix, because duals of the programme are degenerate. Tables of one mix close
between none and 80 % of the gap to the bound. The list was drawn once over the range of the good ones seen. It is kept
unchanged, so that a result can be repeated and a number in a log names a table.
"""

from typing import Final

from partage.placement.prices import Config

_ROWS: Final = (
    # alpha, cpu_weight, scenarios, concentration, cpu_part, memory_part, load
    (4, 100, 8, 1000, 0.75, 0.9, 1.1),
    (1, 150, 1, 1000, 0.95, 1, 0.95),
    (0.5, 30, 8, 300, 0.9, 0.8, 1.1),
    (1, 58, 4, 1000, 0.95, 0.9, 1.1),
    (2, 100, 8, 1000, 0.9, 0.9, 1),
    (4, 150, 1, 300, 0.8, 0.8, 1),
    (8, 30, 4, 100, 0.75, 1, 1),
    (2, 58, 8, 1000, 1, 1, 1.1),
    (2, 58, 4, 300, 0.8, 0.9, 1),
    (0.5, 30, 8, 1000, 0.95, 0.8, 0.95),
    (4, 58, 4, 100, 0.75, 1, 1),
    (0.5, 58, 8, 1000, 0.8, 0.9, 1),
    (8, 100, 1, 300, 0.95, 0.9, 1.1),
    (0.5, 100, 4, 1000, 0.8, 0.9, 0.95),
    (4, 100, 1, 300, 0.85, 0.8, 1),
    (1, 58, 1, 100, 1, 0.9, 1),
    (2, 100, 4, 1000, 0.9, 0.8, 1),
    (4, 100, 8, 300, 0.85, 0.9, 1),
    (2, 58, 1, 100, 0.75, 1, 1),
    (0.5, 150, 1, 1000, 0.9, 0.8, 1),
    (0.5, 58, 1, 1000, 1, 0.8, 0.95),
    (0.5, 150, 8, 300, 0.85, 0.9, 1.1),
    (8, 58, 4, 100, 0.85, 0.8, 1),
    (8, 100, 1, 100, 0.95, 0.8, 0.95),
    (8, 100, 1, 300, 0.9, 0.8, 1),
    (2, 30, 1, 1000, 0.9, 0.8, 0.95),
    (2, 150, 4, 300, 0.75, 0.8, 1),
    (4, 30, 4, 1000, 0.95, 0.9, 0.95),
    (8, 58, 1, 1000, 0.8, 1, 0.95),
    (2, 100, 8, 300, 0.85, 0.8, 0.95),
    (0.5, 58, 8, 1000, 0.8, 0.9, 1),
    (2, 150, 8, 1000, 0.9, 0.8, 1),
    (2, 58, 4, 100, 0.75, 1, 1.1),
    (8, 30, 4, 1000, 0.8, 0.8, 1),
    (8, 150, 4, 300, 0.75, 0.8, 0.95),
    (2, 100, 1, 100, 0.8, 0.8, 0.95),
    (8, 30, 4, 100, 0.95, 1, 1),
    (8, 100, 4, 1000, 0.9, 1, 1.1),
    (0.5, 30, 1, 300, 1, 1, 1.1),
    (2, 100, 8, 1000, 0.75, 1, 1.1),
    (2, 150, 8, 300, 0.8, 0.8, 1),
    (2, 150, 1, 100, 0.75, 0.9, 1.1),
    (0.5, 100, 8, 1000, 0.95, 0.9, 1),
    (8, 100, 8, 100, 0.95, 0.8, 1.1),
    (8, 58, 4, 100, 1, 0.9, 1.1),
    (1, 30, 1, 300, 0.9, 0.8, 0.95),
    (8, 100, 8, 100, 0.95, 0.8, 1.1),
    (2, 100, 4, 300, 0.85, 0.8, 0.95),
)

CANDIDATES: Final = tuple(
    Config(alpha, cpu_weight, scenarios, concentration, seed, cpu_part, memory_part, load)
    for seed, (
        alpha,
        cpu_weight,
        scenarios,
        concentration,
        cpu_part,
        memory_part,
        load,
    ) in enumerate(_ROWS)
)
"""Settings, each with its own draws."""
