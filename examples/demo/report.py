"""What the demo shows: a progress line, a table of figures, a picture of the losses."""

from __future__ import annotations

import statistics
import sys
import time
from pathlib import Path


class Progress:
    """One line that is overwritten, on a terminal; elsewhere only said()."""

    WIDTH = 32

    def __init__(self) -> None:
        self._live = sys.stdout.isatty()
        self._shown = False

    def bar(self, label: str, done: int, total: int, note: str = "") -> None:
        if self._live:
            filled = self.WIDTH * done // max(1, total)
            bar = "█" * filled + "·" * (self.WIDTH - filled)
            print(f"\r\033[K{label:<12} {bar} {done:>3}/{total} {note}", end="", flush=True)
            self._shown = True

    def wait(self, text: str, since_s: float) -> None:
        """What is waited for, on a terminal, once it takes a second."""
        seconds = time.monotonic() - since_s
        if self._live and seconds > 1:
            print(f"\r\033[K{text} ... {seconds:.0f} s", end="", flush=True)
            self._shown = True

    def say(self, text: str) -> None:
        self.clear()
        print(text, flush=True)

    def clear(self) -> None:
        if self._shown:
            print("\r\033[K", end="", flush=True)
            self._shown = False


def percentile_99(values: list[float]) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(0.99 * (len(ordered) - 1)))]


def table(rows: list[tuple[str, list[float]]]) -> str:
    """Median and p99 of each row's values, in milliseconds."""
    lines = [f"{'':<28}{'median':>12}{'p99':>12}"]
    for label, values in rows:
        if values:
            lines.append(f"{label:<28}{statistics.median(values):>9.2f} ms{percentile_99(values):>9.2f} ms")
        else:
            lines.append(f"{label:<28}{'-':>12}{'-':>12}")
    return "\n".join(lines)


def mib(size_bytes: float) -> str:
    return f"{size_bytes / (1 << 20):,.1f} MiB"


def draw_losses(
    path: Path, undisturbed: dict[int, float], incarnations: list[dict[int, float]], killed_at: int
) -> None:
    """Both loss curves. The second run's lives are drawn one by one: where they overlap, iterations were redone."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    matplotlib.rcParams["svg.hashsalt"] = "losses"  # the same losses make the same file
    figure, axes = pyplot.subplots(figsize=(9, 5), layout="constrained")
    axes.plot(*_points(undisturbed), color="#9aa5b1", linewidth=5, label="undisturbed")
    names = ["with snapshots, until a node died", "restored"]
    for incarnation, name, color in zip(incarnations, names, ["#1f6feb", "#d1242f"], strict=False):
        axes.plot(*_points(incarnation), color=color, linewidth=1.5, label=name)
    axes.axvline(killed_at, color="#57606a", linestyle=":", label=f"node killed in iteration {killed_at}")
    axes.set(xlabel="iteration", ylabel="loss", title="A training job loses a node and carries on")
    axes.legend(frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)


def _points(losses: dict[int, float]) -> tuple[list[int], list[float]]:
    return list(losses.keys()), list(losses.values())
