#!/usr/bin/env python3
"""Draws docs/overview.svg: how a checkpoint leaves a trainer, and from where it comes back.

    draw_overview.py [--output FILE]

The picture has colors for light and for dark pages, and needs no program but a browser to be shown.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from xml.sax.saxutils import escape

ROOT = Path(__file__).resolve().parents[1]
WIDTH, HEIGHT = 1000, 560
NODES = (26, 370, 714)  # left edges
NODE_WIDTH, NODE_TOP, NODE_HEIGHT = 260, 26, 340
AGENT_TOP, AGENT_HEIGHT = 206, 140
SLOT_TOP, SLOT_HEIGHT = AGENT_TOP + 66, 54
STORAGE_TOP, STORAGE_HEIGHT = 430, 52

# name: (light, dark)
COLORS = {
    "page": ("#ffffff", "#12161d"),
    "edge": ("#d0d7de", "#39424e"),
    "node": ("#f6f8fa", "#1a2029"),
    "box": ("#ffffff", "#232b36"),
    "text": ("#1f2328", "#e6edf3"),
    "quiet": ("#59636e", "#9aa7b4"),
    "out": ("#0969da", "#58a6ff"),
    "back": ("#1a7f37", "#3fb950"),
    "own": ("#cfe5ff", "#12407a"),
    "copy": ("#e2d9fb", "#45317e"),
    "parity": ("#fde3c4", "#70410f"),
}

STYLE = """
    text { font-family: -apple-system, "Segoe UI", Roboto, "Noto Sans", "DejaVu Sans", sans-serif; font-size: 13px;
           fill: var(--text); }
    .name { font-weight: 600; font-size: 15px; }
    .quiet { fill: var(--quiet); font-size: 12px; }
    .code { font-family: ui-monospace, SFMono-Regular, Menlo, "DejaVu Sans Mono", monospace; font-size: 12.5px; }
    .middle { text-anchor: middle; }
    .end { text-anchor: end; }
    .out { stroke: var(--out); } .back { stroke: var(--back); }
    .says-out { fill: var(--out); } .says-back { fill: var(--back); }
    .arrow { fill: none; stroke-width: 2.25; }
    .back.arrow { stroke-dasharray: 6 4; }
    .badge { fill: var(--back); } .digit { fill: var(--page); font-weight: 700; font-size: 12px; text-anchor: middle; }
"""


def style() -> str:
    themes = ["; ".join(f"--{name}: {pair[theme]}" for name, pair in COLORS.items()) for theme in (0, 1)]
    return f"svg {{ {themes[0]} }}\n    @media (prefers-color-scheme: dark) {{ svg {{ {themes[1]} }} }}{STYLE}"


def text(x: float, y: float, words: str, kind: str = "") -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(words)}</text>'


def box(x: float, y: float, width: float, height: float, fill: str, radius: float = 8, edge: str = "edge") -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="{radius:g}" '
        f'style="fill: var(--{fill}); stroke: var(--{edge})"/>'
    )


def arrow(x: float, y: float, to_x: float, to_y: float, way: str) -> str:
    """A straight line with a head. It ends before the point, so that the head ends there."""
    length = ((to_x - x) ** 2 + (to_y - y) ** 2) ** 0.5
    along_x, along_y = (to_x - x) / length, (to_y - y) / length
    end_x, end_y = to_x - 9 * along_x, to_y - 9 * along_y
    corners = [(to_x, to_y)] + [(end_x - side * 5 * along_y, end_y + side * 5 * along_x) for side in (1, -1)]
    points = " ".join(f"{a:g},{b:g}" for a, b in corners)
    return (
        f'<path class="arrow {way}" d="M{x:g} {y:g} L{end_x:g} {end_y:g}"/>'
        f'<polygon class="says-{way}" points="{points}"/>'
    )


def badge(x: float, y: float, number: int) -> str:
    return f'<circle class="badge" cx="{x:g}" cy="{y:g}" r="9.5"/>{text(x, y + 4.2, str(number), "digit")}'


def slot(x: float, width: float, what: str, words: str, fill: str) -> list[str]:
    middle = x + width / 2
    return [
        box(x, SLOT_TOP, width, SLOT_HEIGHT, fill, radius=5),
        text(middle, SLOT_TOP + 23, what, "middle"),
        text(middle, SLOT_TOP + 41, words, "middle quiet"),
    ]


def node(left: float, number: int) -> list[str]:
    letter, middle = "ABC"[number], left + NODE_WIDTH / 2
    before = (number - 1) % 3
    parts = [
        box(left, NODE_TOP, NODE_WIDTH, NODE_HEIGHT, "node", radius=12),
        text(left + 16, NODE_TOP + 25, f"node {letter}", "name"),
        box(left + 16, 64, NODE_WIDTH - 32, 64, "box"),
        text(middle, 91, f"trainer, rank {number}", "middle name"),
        text(middle, 112, "model, optimizer, position in the data", "middle quiet"),
        box(left + 16, AGENT_TOP, NODE_WIDTH - 32, AGENT_HEIGHT, "box"),
        text(left + 28, AGENT_TOP + 24, "agent", "name"),
        text(left + 28, AGENT_TOP + 46, "arena: outlives the trainers", "quiet"),
    ]
    for place, (what, words, fill) in enumerate(
        [("own", f"rank {number}", "own"), ("copy", f"rank {before}", "copy"), ("parity", "of group", "parity")]
    ):
        parts += slot(left + 28 + 69 * place, 64, what, words, fill)
    return parts


def inside(left: float, number: int) -> list[str]:
    """Between trainer and agent: tier 1."""
    out, back = left + 54, left + 164
    parts = [arrow(out, 130, out, AGENT_TOP - 2, "out"), arrow(back, AGENT_TOP - 2, back, 130, "back")]
    if number == 0:
        parts += [
            text(out + 8, 172, "snapshot(k)", "code says-out"),
            text(back + 14, 172, "restore()", "code says-back"),
            badge(back, 168, 1),
        ]
    return parts


def between(number: int) -> list[str]:
    """Between two agents: tiers 2 and 3."""
    begin, end = NODES[number] + NODE_WIDTH - 14, NODES[number + 1] + 14
    middle = (begin + end) / 2
    out, back, tier = [("copy", "peer", 2), ("encode", "decode", 3)][number]
    return [
        text(middle, 254, out, "middle says-out"),
        arrow(begin, 264, end, 264, "out"),
        arrow(end, 300, begin, 300, "back"),
        text(middle + 11, 321, back, "middle says-back"),
        badge(middle - (20 if number == 0 else 27), 317, tier),
    ]


def storage() -> list[str]:
    left, right = NODES[0], NODES[2] + NODE_WIDTH
    parts = [
        box(left, STORAGE_TOP, right - left, STORAGE_HEIGHT, "node", radius=12),
        text((left + right) / 2, STORAGE_TOP + 24, "storage", "middle name"),
        text((left + right) / 2, STORAGE_TOP + 42, "safetensors files in a shared directory or on NFS", "middle quiet"),
    ]
    for number, x in enumerate(NODES):
        out, back = x + 54, x + 164
        top, bottom = NODE_TOP + NODE_HEIGHT - 18, STORAGE_TOP - 2
        parts += [arrow(out, top, out, bottom, "out"), arrow(back, bottom, back, top, "back")]
        if number == 0:
            parts += [
                text(out + 8, 402, "every 5 min", "says-out"),
                badge(back, 400, 4),
                text(back + 14, 404, "last resort", "says-back"),
            ]
    return parts


def legend() -> list[str]:
    y = 514
    parts = [
        arrow(28, y - 4, 72, y - 4, "out"),
        text(84, y, "out: in every iteration, while training goes on", "says-out"),
        arrow(572, y - 4, 528, y - 4, "back"),
        text(584, y, "back: from the fastest place that still has the state", "says-back"),
    ]
    for tier, (x, words) in enumerate(
        [(38, "the node's own memory"), (288, "another node's memory"), (538, "parity, decoded"), (788, "storage")], 1
    ):
        parts += [badge(x, y + 23, tier), text(x + 18, y + 27.5, words, "quiet")]
    return parts


def picture() -> str:
    parts = [box(0.5, 0.5, WIDTH - 1, HEIGHT - 1, "page", radius=14)]
    for number, left in enumerate(NODES):
        parts += node(left, number)
    parts += storage()
    for number, left in enumerate(NODES):
        parts += inside(left, number)
    parts += between(0) + between(1) + legend()
    title = "A checkpoint goes from the trainer to its node's memory, other nodes and storage, and comes back"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" height="{HEIGHT}" '
        f'role="img">\n  <title>{title}</title>\n  <style>\n    {style()}  </style>\n  '
        + "\n  ".join(parts)
        + "\n</svg>\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "overview.svg")
    parser.parse_args().output.write_text(picture())


if __name__ == "__main__":
    main()
