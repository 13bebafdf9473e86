"""What ./dev demo --resize concludes from what ranks told, and which arguments it refuses."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples" / "demo"))

import resize_demo  # noqa: E402


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--resize", "4"], "must name two numbers of ranks"),
        (["--resize", "4:x"], "must name two numbers of ranks"),
        (["--resize", "3:3"], "must differ"),
        (["--resize", "0:3"], "from 1 to 16"),
        (["--resize", "4:17"], "from 1 to 16"),
        (["--resize", "4:3", "--iterations", "3", "--kill-at", "2"], "at least 2 less than --iterations"),
        (["--resize", "4:3", "--batch", "0"], "must be at least 1"),
    ],
)
def test_wrong_arguments_are_refused_in_one_sentence(capsys, words, why):
    with pytest.raises(SystemExit) as ended:
        resize_demo.parse_arguments(words)
    said = capsys.readouterr().err.splitlines()
    assert ended.value.code == 2 and why in said[-1] and said[-1].startswith("./dev demo: error: ")


class FakeRun:
    def __init__(self, losses: list[dict[int, str]], stored: int = 4) -> None:
        told = {rank: [{"k": k, "loss": loss} for k, loss in of.items()] for rank, of in enumerate(losses)}
        self.incarnations = [Namespace(iterations=told)]
        begin = {"iteration": 4, "stored": stored, "main": "peer", "bytes": 0, "message": ""}
        self._restored = {rank: begin for rank in range(len(losses))}

    def restored(self) -> dict[int, dict]:
        return self._restored


CONTROL = [{5: "0x1p+0", 6: "0x1p-1"}] * 3


@pytest.mark.parametrize(
    ("job", "is_good"),
    [
        (FakeRun(CONTROL), True),
        (FakeRun([*CONTROL[:2], {5: "0x1p+0", 6: "0x1p-2"}]), False),  # another loss
        (FakeRun([*CONTROL[:2], {5: "0x1p+0"}]), False),  # too few
        (FakeRun([{}, {}, {}]), False),
        (FakeRun(CONTROL[:2]), False),  # a rank restored nothing
        (FakeRun(CONTROL, stored=3), False),
    ],
)
def test_demo_passes_only_if_all_ranks_repeat_the_controls_losses(capsys, job, is_good):
    good = resize_demo.show(Namespace(before=4, after=3), job, FakeRun(CONTROL))
    assert good == is_good
    line = f"resized 4 -> 3; losses as after a DCP load: {'yes' if is_good else 'no'}"
    assert capsys.readouterr().out.splitlines()[-1] == line
