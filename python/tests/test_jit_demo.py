"""What ./dev demo --jit, ./dev bench jit and ./dev chaos --jit conclude from what ranks told. Whole runs are nightly
(tests/process/test_jit_demo_long.py)."""

from __future__ import annotations

import sys
from argparse import Namespace
from itertools import islice
from pathlib import Path

import pytest

pytest.importorskip("torch")
ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / name) for name in ("examples/demo", "bench", "scripts")]

import chaos_jit  # noqa: E402
import jit  # noqa: E402
import jit_demo  # noqa: E402
from jit_job import Told  # noqa: E402
from jit_recovery import PHASES, Recovery, in_order  # noqa: E402


def recovery(seconds: float = 0.5, ended: dict[int, int] | None = None) -> Recovery:
    phases = dict.fromkeys(PHASES, seconds)
    return Recovery("killed", 3, 1, phases, {0: 10}, ended or {}, {0: "live", 1: "peer"}, 0)


def verdict(capsys, tmp_path, disturbed, **changes) -> tuple[bool, str]:
    arguments = Namespace(output=tmp_path, faults=list(jit_demo.FAULTS))
    undisturbed = {0: {0: "0x1p+0", 1: "0x1p-1"}, 1: {0: "0x1p+0", 1: "0x1p-1"}}
    good = jit_demo.show(arguments, [recovery(**changes)], undisturbed, disturbed or undisturbed)
    return good, capsys.readouterr().out.splitlines()[-1]


def test_the_demo_is_good_if_all_losses_are_the_same_and_healthy_processes_stay(capsys, tmp_path):
    good, line = verdict(capsys, tmp_path, None)
    assert good and line == "jit: faults=1 healthy_ended=0 slowest_ms=3000; losses identical: yes"
    assert (tmp_path / "jit.png").stat().st_size > 0


@pytest.mark.parametrize("ours", [{0: "0x1p+0", 1: "0x1.8p-1"}, {0: "0x1p+0"}, {}])
def test_the_demo_fails_if_a_loss_differs_or_is_missing(capsys, tmp_path, ours):
    undisturbed = {0: {0: "0x1p+0", 1: "0x1p-1"}, 1: {0: "0x1p+0", 1: "0x1p-1"}}
    assert jit_demo.differences(undisturbed, undisturbed) == []
    assert jit_demo.differences(undisturbed, undisturbed | {1: ours})


def test_the_demo_fails_if_a_healthy_process_has_ended(capsys, tmp_path):
    good, line = verdict(capsys, tmp_path, None, ended={2: 77})
    assert not good and "healthy_ended=1" in line


def test_phases_add_up_and_none_is_negative():
    ends = dict(zip(PHASES, [10.5, 10.2, 10.6, 10.6, 11, 12], strict=True))  # the second ended before the first
    phases = in_order(10, ends)
    assert min(phases.values()) >= 0 and sum(phases.values()) == pytest.approx(2)
    assert phases["halt, capture"] == 0


def test_iterations_are_counted_since_the_ranks_last_begin(tmp_path):
    path = tmp_path / "told"
    told = Told(path)
    path.write_text('{"event": "begins"}\n{"event": "iteration"}\n{"event": "iteration"}\n{"event": "restor')
    told.read()
    assert told.since_begin == 2
    with path.open("a") as file:
        file.write('ing"}\n')
    told.read()
    assert told.since_begin == -1 and len(told.of("iteration")) == 2


class FakeJob:
    def __init__(self) -> None:
        self.numbers = [10, 11, 12, 13]

    def pids(self) -> list[int]:
        return list(self.numbers)

    def losses(self, rank: int) -> dict[int, str]:
        return {0: "0x1p+0"}


def test_chaos_counts_healthy_processes_that_end_and_not_the_one_that_failed():
    job, tally = FakeJob(), chaos_jit.Tally()
    campaign = chaos_jit.Campaign(job, 1, tally)
    before = job.pids()
    job.numbers[2] = 99
    campaign.judge("kill", 2, before)
    assert tally.healthy_ended == 0
    for kind in ("late", "agent"):  # nobody may end
        with pytest.raises(chaos_jit.Violation, match=r"healthy processes have ended: ranks \[2\]"):
            campaign.judge(kind, 2, before)
    assert tally.line().endswith("wrong=0 healthy_ended=2")


def test_chaos_finds_a_loss_that_differs_from_the_undisturbed_run():
    tally = chaos_jit.Tally()
    campaign = chaos_jit.Campaign(FakeJob(), 1, tally)
    campaign.compare(FakeJob())
    other = FakeJob()
    other.losses = lambda rank: {0: "0x1p+1"}
    with pytest.raises(chaos_jit.Violation, match="rank 0 has other losses than the undisturbed run, 1 in all: 0: "):
        campaign.compare(other)
    assert tally.wrong == 1


def test_chaos_tolerates_a_missing_loss_only_at_the_restored_iteration():
    tally, silent = chaos_jit.Tally(), FakeJob()
    silent.losses = lambda rank: {} if rank == 2 else FakeJob().losses(rank)
    campaign = chaos_jit.Campaign(silent, 1, tally)
    with pytest.raises(chaos_jit.Violation, match="rank 2 has other losses"):
        campaign.compare(FakeJob())
    campaign.restored = {0}
    campaign.compare(FakeJob())
    assert tally.unreported == 1


def test_chaos_repeats_its_faults_by_seed_and_begins_with_each_kind():
    first, again = (list(islice(chaos_jit.schedule(7, []), 20)) for _ in range(2))
    assert first == again and set(first[: len(chaos_jit.KINDS)]) == set(chaos_jit.KINDS)
    assert set(islice(chaos_jit.schedule(7, ["spin"]), 5)) == {"spin"}


def test_bench_ends_with_its_ratios_and_names_unmeasured_ones(capsys):
    figures = jit.Figures()
    figures.plain_ms, figures.ours_ms, figures.restart_s = [10.0, 20.0], [15.0], [9.0]
    figures.recoveries["kill"] = [recovery(0.5)]
    figures.rival_s["nvrx"], figures.why_not["torchft"] = [6.0, 7.0, 8.0], "it does not install: no network"
    jit.report(figures)
    said = capsys.readouterr().out.splitlines()
    assert [line.partition(" (")[0] for line in said if line.startswith("ratio: ")] == [
        "ratio: jit_iteration = 1.000", "ratio: jit_vs_restart = 3.00", "ratio: jit_vs_nvrx = 2.33"]  # fmt: skip
    assert "jit_vs_torchft was not measured: it does not install: no network" in said
    assert any(line.startswith("node lost") and line.endswith("not measured") for line in said)
