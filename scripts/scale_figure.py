"""Draws how the protocol's cost grows with the nodes, as ckpt_sim --scale measures it, and prints it as a table.

What was measured can be recorded, a JSON line for each number of nodes, and drawn again from there.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = {
    "messages_leader": "messages at the leader",
    "bytes_leader": "MiB at the leader",
    "messages_worker": "messages at a worker",
    "bytes_worker": "KiB at a worker",
    "messages_relay": "messages at a relay",
    "bytes_relay": "KiB at a relay",
    "hops": "hops",
    "commit_ms": "commit, ms",
    "cpu_leader_ms": "leader's CPU per commit, ms",
    "decide_ms": "decide, ms of CPU",
    "memory_mb": "leader's memory, MiB",
}
SCALES = {"bytes_leader": 1 << 20, "bytes_worker": 1 << 10, "bytes_relay": 1 << 10}
PANELS = {
    "per commit, at the leader": [("messages_leader", "messages"), ("bytes_leader", "MiB")],
    "per commit, at a worker": [("messages_worker", "messages"), ("bytes_worker", "KiB")],
    "leader's CPU, ms": [("decide_ms", "recovery decision"), ("cpu_leader_ms", "per commit")],
    "leader's memory, MiB": [("memory_mb", "memory")],
}


def measure(program: Path, nodes: int) -> dict[str, float]:
    run = subprocess.run([program, "--scale", str(nodes)], stdout=subprocess.PIPE, text=True, timeout=3600, check=False)
    figures = {name: float(value) for name, value in re.findall(r"(\w+)=([\d.]+)", run.stdout)}
    if run.returncode != 0 or figures.get("violations") != 0:
        raise SystemExit(f"{program} --scale {nodes} failed:\n{run.stdout}")
    return {name: value / SCALES.get(name, 1) for name, value in figures.items()}


def show(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def table(rows: list[dict[str, float]]) -> str:
    lines = ["| nodes | " + " | ".join(COLUMNS.values()) + " |", "|---:" * (len(COLUMNS) + 1) + "|"]
    for row in rows:
        lines.append(f"| {row['nodes']:,.0f} | " + " | ".join(show(row[name]) for name in COLUMNS) + " |")
    return "\n".join(lines)


def draw(rows: list[dict[str, float]], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, all_axes = pyplot.subplots(1, len(PANELS), figsize=(4 * len(PANELS), 3.6), layout="constrained")
    nodes = [row["nodes"] for row in rows]
    for axes, (title, lines) in zip(all_axes, PANELS.items(), strict=True):
        for (name, label), color in zip(lines, ["#1f6feb", "#d1242f"], strict=False):
            axes.plot(nodes, [row[name] for row in rows], marker="o", markersize=4, label=label, color=color)
        top = max(rows[-1][name] for name, _ in lines)
        if title != "per commit, at a worker":
            axes.plot(nodes, [top * n / nodes[-1] for n in nodes], ":", color="#57606a", label="in proportion to nodes")
            axes.set_yscale("log")
        else:
            axes.set_ylim(bottom=0)
        axes.set(xscale="log", xlabel="nodes", title=title)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--program", type=Path, default=ROOT / "build" / "release" / "bin" / "ckpt_sim")
    parser.add_argument("--nodes", type=int, nargs="+", default=[100, 300, 1000, 3000, 10000, 30000, 100000])
    parser.add_argument("--rows", type=Path, help="draw the rows of this file, and measure nothing")
    parser.add_argument("--record", type=Path, help="append the measured rows to this file")
    parser.add_argument("--plot", type=Path, default=ROOT / "build" / "scale.png", metavar="PATH")
    arguments = parser.parse_args()
    if arguments.rows:
        rows = [json.loads(line) for line in arguments.rows.read_text().splitlines()]
    else:
        rows = []
        for nodes in arguments.nodes:
            rows.append(measure(arguments.program, nodes))
            print(f"{nodes} nodes measured", flush=True)
            if arguments.record:
                with arguments.record.open("a") as record:
                    record.write(json.dumps(rows[-1]) + "\n")
    draw(sorted(rows, key=lambda row: row["nodes"]), arguments.plot)
    print(table(sorted(rows, key=lambda row: row["nodes"])))


if __name__ == "__main__":
    main()
