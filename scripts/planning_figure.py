"""Draws how the formulas of `ckptctl plan` meet its simulation, and where they part, and prints both as tables.

It needs no job and no trace. With --trace it also prints the strategies of a fault trace.
"""

from __future__ import annotations

import argparse
import json
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TEN_THOUSAND = ["--gpus", "10000"]
# What is simulated, the arguments, and the strategy that is shown.
RACKS = ["--domain-nodes", "16", "--domains-unnamed"]
CASES = [
    ("independent failures, 10,000 GPUs", TEN_THOUSAND, "every iteration"),
    ("the same, own memory", TEN_THOUSAND, "own memory"),
    ("the same, storage", TEN_THOUSAND, "storage"),
    ("the same, jit", TEN_THOUSAND, "jit"),
    ("independent failures, 100,000 GPUs", ["--gpus", "100000"], "every iteration"),
    ("the same, storage", ["--gpus", "100000"], "storage"),
    *[
        (
            f"racks of 16, {share} % of lost nodes, {known}",
            [*TEN_THOUSAND, *RACKS, "--domain-share", str(share / 100), *words],
            "every iteration",
        )
        for share in (1, 5)
        for known, words in [("planned", []), ("not planned", ["--domains-unplanned"])]
    ],
    *[
        (f"{nodes} standby nodes, repair 24 h", [*TEN_THOUSAND, "--standby", str(nodes)], "every iteration")
        for nodes in (12, 6, 4, 3)
    ],
    *[
        (f"new nodes, Weibull shape {shape}", [*TEN_THOUSAND, "--weibull", str(shape)], "every iteration")
        for shape in (0.5, 0.7, 1.5)
    ],
]
GPUS = [1000, 3000, 10000, 30000, 100000, 200000]


def plan(program: Path, words: list[str], days: float) -> dict[str, dict]:
    command = [program, "plan", "--json", "--simulate", str(days), *words]
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=600, check=True)
    return {each["name"]: each for each in json.loads(run.stdout)["strategies"] if each["effective_time"] is not None}


def wasted(strategy: dict) -> tuple[float, float, float]:
    """First-order form, renewal form, simulation."""
    return strategy["wasted"]["first_order"], strategy["wasted"]["all"], strategy["simulated"]["wasted"]["all"]


def off(formula: float, simulated: float) -> str:
    return f"{100 * (formula / simulated - 1):+.0f} %"


def case_table(rows: list[tuple[str, str, tuple[float, float, float]]]) -> str:
    lines = [
        "| simulated | strategy | wasted: simulation | first order | off | renewal | off |",
        "|---|---|---|---|---|---|---|",
    ]
    for title, strategy, (first, renewal, simulated) in rows:
        lines.append(
            f"| {title} | {strategy} | {100 * simulated:.2f} % | {100 * first:.2f} % | {off(first, simulated)} "
            f"| {100 * renewal:.2f} % | {off(renewal, simulated)} |"
        )
    return "\n".join(lines)


def trace_table(program: Path, trace: Path, trace_nodes: int, gpus: int, standby: int) -> str:
    words = ["--trace", str(trace), "--trace-nodes", str(trace_nodes), "--gpus", str(gpus), "--standby", str(standby)]
    lines = ["| strategy | formula | simulated | redone | from storage |", "|---|---|---|---|---|"]
    for name, each in plan(program, words, 0).items():
        simulated = each["simulated"]
        lines.append(
            f"| {name} | {100 * each['effective_time']:.2f} % | {100 * simulated['effective_time']:.2f} % "
            f"| {100 * simulated['wasted']['redone']:.2f} % | {simulated['storage_losses']} times |"
        )
    return f"{gpus:,} GPUs, {standby} standby nodes\n" + "\n".join(lines)


def draw(curves: dict[str, list], rows: list, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 4.4), layout="constrained")
    for (name, points), color in zip(curves.items(), ["#d1242f", "#8250df", "#1f6feb"], strict=True):
        for index, (style, label) in enumerate([(":", "first order"), ("-", "renewal"), ("o", "simulated")]):
            values = [100 * point[index] for point in points]
            left.plot(GPUS, values, style, color=color, markersize=5, label=f"{name}, {label}")
    left.set(xscale="log", xlabel="GPUs", ylabel="wasted time, %", title="independent failures")
    left.legend(frameon=False, fontsize=7)
    names = [f"{title}: {strategy}" for title, strategy, _ in rows]
    for index, (label, color) in enumerate([("first order", "#d0d7de"), ("renewal", "#1f6feb")]):
        values = [100 * (figures[index] / figures[2] - 1) for *_, figures in rows]
        right.barh([i + 0.2 - 0.4 * index for i in range(len(rows))], values, 0.4, color=color, label=label)
    right.set_yticks(range(len(rows)), names, fontsize=6)
    right.invert_yaxis()
    right.axvspan(-5, 5, color="#1a7f37", alpha=0.15)
    right.set(xlabel="wasted time of the formula over the simulation's, %", title="where they part (band: within 5 %)")
    right.legend(frameon=False, fontsize=8)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=Path, default=ROOT / "build" / "release" / "bin" / "ckptctl")
    parser.add_argument("--days", type=float, default=3650, help="how many days each case simulates")
    parser.add_argument("--plot", type=Path, default=ROOT / "docs" / "planning.png", metavar="PATH")
    parser.add_argument("--trace", type=Path, help="print the table of strategies for this fault trace instead")
    parser.add_argument("--trace-nodes", type=int, default=400)
    parser.add_argument("--standby", type=int, nargs="+", default=[0])
    parser.add_argument("--gpus", type=int, nargs="+", default=[3200, 10000])
    arguments = parser.parse_args()
    if arguments.trace:
        for gpus in arguments.gpus:
            for standby in arguments.standby:
                print(trace_table(arguments.program, arguments.trace, arguments.trace_nodes, gpus, standby) + "\n")
        return
    rows = []
    for title, words, strategy in CASES:
        rows.append((title, strategy, wasted(plan(arguments.program, words, arguments.days)[strategy])))
    curves = {name: [] for name in ("storage", "own memory", "every iteration")}
    for gpus in GPUS:
        plans = plan(arguments.program, ["--gpus", str(gpus)], arguments.days)
        for name, points in curves.items():
            points.append(wasted(plans[name]))
    draw(curves, rows, arguments.plot)
    print(case_table(rows))


if __name__ == "__main__":
    main()
