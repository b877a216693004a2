"""Pictures of runs: allocation and fragmentation against arrived load, or free cards over time.

Needs matplotlib, the extra `plot`. Several policies share one picture, so it begins where they differ, and each line
has its name at its end.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from partage.model.errors import PartageError
from partage.sim.metrics import Curves, Waiting

FORMATS: Final = (".png", ".svg")
_LEAST_LOAD: Final = 88
"""Below it hardly any pod is refused, and all policies allocate everything that has arrived."""
_SIZE: Final = (11.0, 4.5)
_COLOURS: Final = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00")
"""Okabe and Ito's colours, which colour-blind readers can distinguish; without yellow, which is too pale on white."""
_DASHES: Final = (
    "-",
    (0, (6, 2)),
    (0, (2, 1.5)),
    (0, (8, 2, 2, 2)),
    (0, (4, 1.5, 1, 1.5, 1, 1.5)),
)
"""One fewer than colours, so that a line shares both with none of the next thirty."""
_BOUND: Final[dict[str, Any]] = {"color": "black", "linestyle": (0, (1, 1.5)), "linewidth": 1.2}
_APART: Final = 0.045
"""Least distance of two names at the ends of lines, part of the height."""
_NAMES_AT: Final = 1.04
"""Where names begin, part of the width."""


class CannotPlot(PartageError):
    """A picture cannot be drawn or written."""


def check(path: Path) -> None:
    """Refuse early what `plot_*` could not do after a long run.

    Raises `CannotPlot`: matplotlib is not installed, or the name ends in neither .png nor .svg.
    """
    if path.suffix.lower() not in FORMATS:
        raise CannotPlot(f"{path}: a picture's name must end in {' or '.join(FORMATS)}")
    _figure()


def plot_loads(
    path: Path, title: str, runs: Sequence[tuple[str, Curves]], most: float | None = None
) -> None:
    """Allocation and fragmentation against arrived load, a line a policy.

    `most`: allocation that no policy can exceed, if known. Raises `CannotPlot`: see `check`; or the file cannot be
    written.
    """
    figure = _figure()
    allocation, frag = figure.subplots(1, 2)
    least = _least([curves.allocation for _, curves in runs])
    _draw(allocation, [_from(least, name, curves.allocation) for name, curves in runs], most)
    _draw(frag, [_from(least, name, curves.frag) for name, curves in runs])
    allocation.set_title("GPU allocation")
    allocation.set_ylabel("% of all GPUs")
    frag.set_title("Fragmentation")
    frag.set_ylabel("unusable GPUs, % of all")
    for axes in (allocation, frag):
        axes.set_xlabel("arrived load, % of all GPUs")
    _write(figure, path, title)


def plot_waiting(path: Path, title: str, runs: Sequence[tuple[str, Waiting]]) -> None:
    """Free cards over virtual time, a line a policy. Raises `CannotPlot`: see `check`."""
    figure = _figure()
    axes = figure.subplots(1, 1)
    _draw(
        axes,
        [(name, [(time / 3600, free) for time, free in waiting.idle]) for name, waiting in runs],
    )
    axes.set_xlabel("virtual time, hours")
    axes.set_ylabel("free GPUs")
    _write(figure, path, title)


def _figure() -> Any:
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 # an extra, and slow to import
    except ImportError:
        raise CannotPlot("plots need matplotlib: pip install matplotlib") from None
    return Figure(figsize=_SIZE, layout="constrained")


def _least(curves: Sequence[dict[int, float]]) -> int:
    """The load at which a picture begins: the usual one, or 0 if lines would have no length."""
    there = all(sum(level >= _LEAST_LOAD for level in curve) > 1 for curve in curves)
    return _LEAST_LOAD if there else 0


def _from(least: int, name: str, curve: dict[int, float]) -> tuple[str, list[tuple[float, float]]]:
    return name, [(level, curve[level]) for level in sorted(curve) if level >= least]


def _draw(
    axes: Any,
    lines: Sequence[tuple[str, Sequence[tuple[float, float]]]],
    most: float | None = None,
) -> None:
    """Lines, the bound, tight limits, and names at the ends."""
    xs = [x for _, points in lines for x, _ in points]
    ys = [y for _, points in lines for _, y in points]
    if not xs:
        return
    ends: list[tuple[float, float, str, dict[str, Any]]] = []
    for number, (name, points) in enumerate(lines):
        style: dict[str, Any] = {
            "color": _COLOURS[number % len(_COLOURS)],
            "linestyle": _DASHES[number % len(_DASHES)],
            "linewidth": 1.5,
        }
        axes.plot([x for x, _ in points], [y for _, y in points], **style)
        ends.append((*points[-1], name, style))
    right = max(xs)
    if most is not None:
        ys.append(most)
        axes.axhline(most, **_BOUND)
        ends.append((right, most, "bound", _BOUND))
    low, high = min(ys), max(ys)
    margin = 0.04 * (high - low) or 1.0
    low, high = low - margin, high + margin
    left = min(xs)
    axes.set_xlim(left, right if right > left else left + 1)
    axes.set_ylim(low, high)
    ends.sort(key=lambda end: end[1])
    places = apart([(y - low) / (high - low) for _, y, *_ in ends])
    for place, (x, y, name, style) in zip(places, ends, strict=True):
        axes.annotate(
            name,
            xy=(x, y),
            xytext=(_NAMES_AT, place),
            textcoords="axes fraction",
            va="center",
            fontsize=8,
            annotation_clip=False,
            arrowprops={"arrowstyle": "-", "color": style["color"], "linewidth": 0.8},
        )


def apart(places: Sequence[float]) -> list[float]:
    """Heights of names, parts of the whole from the lowest up, moved just enough to avoid overlaps.

    Names that touch become a group around the mean of their wanted heights; groups stay inside.
    """
    distance = min(_APART, 1.0 / max(len(places) - 1, 1))
    groups: list[list[float]] = []
    for wanted in places:
        groups.append([wanted])
        while len(groups) > 1 and _start(groups[-1], distance) < (
            _start(groups[-2], distance) + distance * len(groups[-2])
        ):
            groups[-2:] = [groups[-2] + groups[-1]]
    return [
        _start(group, distance) + distance * number
        for group in groups
        for number in range(len(group))
    ]


def _start(group: Sequence[float], distance: float) -> float:
    """The height of a group's lowest name."""
    length = distance * (len(group) - 1)
    return min(max(sum(group) / len(group) - length / 2, 0.0), 1.0 - length)


def _write(figure: Any, path: Path, title: str) -> None:
    from matplotlib import rc_context  # noqa: PLC0415 # an extra, and slow to import

    figure.suptitle(title, parse_math=False)  # a trace may have any name
    for axes in figure.axes:
        axes.grid(visible=True, alpha=0.3)
    try:
        with rc_context({"svg.fonttype": "none"}):  # text stays searchable text
            figure.savefig(path)
    except OSError as error:
        raise CannotPlot(f"{path}: {error.strerror or error}") from None
