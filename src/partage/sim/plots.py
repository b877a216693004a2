"""Pictures of runs: allocation and fragmentation against arrived load, or free cards over time.

Needs matplotlib, the extra `plot`. Several policies share one picture.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from partage.model.errors import PartageError
from partage.sim.metrics import Curves, Waiting

FORMATS: Final = (".png", ".svg")
_LEAST_LOAD: Final = 50
_SIZE: Final = (11.0, 4.5)


class CannotPlot(PartageError):
    """A picture cannot be drawn or written."""


def check(path: Path) -> None:
    """Refuse early what `plot_*` could not do after a long run.

    Raises:
        CannotPlot: matplotlib is not installed, or the name ends in neither .png nor .svg.
    """
    if path.suffix.lower() not in FORMATS:
        raise CannotPlot(f"{path}: a picture's name must end in {' or '.join(FORMATS)}")
    _figure()


def plot_loads(path: Path, title: str, runs: Sequence[tuple[str, Curves]]) -> None:
    """Allocation and fragmentation against arrived load, a line a policy.

    Raises:
        CannotPlot: see `check`; or the file cannot be written.
    """
    figure = _figure()
    allocation, frag = figure.subplots(1, 2)
    for name, curves in runs:
        _line(allocation, name, curves.allocation)
        _line(frag, name, curves.frag)
    allocation.set_title("GPU allocation")
    allocation.set_ylabel("% of all GPUs")
    frag.set_title("Fragmentation")
    frag.set_ylabel("unusable GPUs, % of all")
    for axes in (allocation, frag):
        axes.set_xlabel("arrived load, % of all GPUs")
    _finish(figure, path, title)


def plot_waiting(path: Path, title: str, runs: Sequence[tuple[str, Waiting]]) -> None:
    """Free cards over virtual time, a line a policy.

    Raises:
        CannotPlot: see `check`; or the file cannot be written.
    """
    figure = _figure()
    axes = figure.subplots(1, 1)
    for name, waiting in runs:
        times = [time / 3600 for time, _ in waiting.idle]
        axes.plot(times, [free for _, free in waiting.idle], label=name, linewidth=1.3)
    axes.set_xlabel("virtual time, hours")
    axes.set_ylabel("free GPUs")
    _finish(figure, path, title)


def _figure() -> Any:
    try:
        from matplotlib.figure import Figure  # noqa: PLC0415 # an extra, and slow to import
    except ImportError:
        raise CannotPlot("plots need matplotlib: pip install 'partage[plot]'") from None
    return Figure(figsize=_SIZE, layout="constrained")


def _line(axes: Any, name: str, curve: dict[int, float]) -> None:
    levels = [level for level in sorted(curve) if level >= _LEAST_LOAD]
    axes.plot(levels, [curve[level] for level in levels], label=name, linewidth=1.3)


def _finish(figure: Any, path: Path, title: str) -> None:
    figure.suptitle(title)
    for axes in figure.axes:
        axes.grid(visible=True, alpha=0.3)
    figure.axes[0].legend()
    try:
        figure.savefig(path)
    except OSError as error:
        raise CannotPlot(f"{path}: {error.strerror or error}") from None
