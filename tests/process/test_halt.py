"""A job whose ranks freeze when one of them hangs or dies comes back at the iteration that was live."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from ckptengine import Stage, Status
from conftest import BUILD, build_file_of, together
from fork_server import Processes
from halt_trainer import group_bytes
from processes import build_file, kill_process
from rank_processes import Program

DEADLINE_S = 90
RANKS = 4
FLOOR_MS = 1000
CAPTURE_EVERY = 10
END = 75

processes = Processes("numpy", "ckptengine")


class HaltingJob:
    """Four trainers in processes of their own, each on a node of its own, with the same parameters."""

    program = "halt_trainer"

    def __init__(self, cluster, folder: Path, **options: object) -> None:
        self.cluster, self.folder, self.options = cluster, folder, options
        self.trainers: list[Program] = []
        folder.mkdir()

    def start(self) -> None:
        """All ranks, in a new incarnation."""
        assert not self.trainers
        (self.folder / "group").write_bytes(bytes(group_bytes(RANKS)))
        (self.folder / "end").unlink(missing_ok=True)
        for name in ("spin", "die", "died", "stop", "update"):
            for command in self.folder.glob(f"{name}-*"):
                command.unlink()
        self.trainers = [self.start_rank(rank) for rank in range(RANKS)]

    def start_rank(self, rank: int) -> Program:
        given = self.cluster.options(rank, RANKS, **{
            "hang_floor_ms": FLOOR_MS, "on_suspicion": "halt", "capture_every": CAPTURE_EVERY,
            "restore_timeout_ms": 30_000} | self.options)
        given = {key: str(value) if isinstance(value, Path) else value for key, value in given.items()}
        given["library"] = str(build_file(BUILD, "libckptengine.so"))
        return Program(processes, self.program, self.folder, rank, RANKS, json.dumps(given))

    def kill(self) -> None:
        """All that are left, as a launcher does."""
        for trainer in self.trainers:
            trainer.kill()
        for trainer in self.trainers:
            trainer.wait(DEADLINE_S)
        self.trainers = []

    def run_to_the_end(self, end: int = END) -> None:
        whole = self.folder / "end.new"
        whole.write_text(str(end))
        whole.rename(self.folder / "end")
        assert [trainer.wait(DEADLINE_S) for trainer in self.trainers] == [0] * RANKS
        self.trainers = []

    def signal(self, rank: int, number: signal.Signals) -> None:
        kill_process(self.trainers[rank].pid, number)

    def command(self, name: str, rank: int) -> None:
        (self.folder / f"{name}-{rank}").touch()

    def losses(self, rank: int) -> dict[int, str]:
        """By iteration. An iteration that was done twice has to have the same loss."""
        path, found = self.folder / f"losses-{rank}", {}
        for line in path.read_text().splitlines() if path.exists() else []:
            iteration, loss = line.split()
            assert found.setdefault(int(iteration), loss) == loss, f"rank {rank}, iteration {iteration}"
        return found

    def newest(self) -> list[int]:
        """The iteration whose update each rank has finished last."""
        return [max(self.losses(rank), default=-1) for rank in range(RANKS)]

    def restored(self) -> list[int]:
        return [int((self.folder / f"restored-{rank}").read_text().split()[-1]) for rank in range(RANKS)]

    def status(self, rank: int) -> dict:
        asked = subprocess.run(
            [build_file_of("ckptctl"), "status", "--json", f"node=n{rank}", f"job={self.cluster.job}",
             f"arena_dir={self.cluster.arena}"], capture_output=True, text=True, check=False, timeout=DEADLINE_S)
        agents = json.loads(asked.stdout).get("agents") if asked.stdout else None
        return agents[0] if agents else {}

    def await_status(self, rank: int, is_so) -> dict:
        deadline = time.monotonic() + DEADLINE_S
        while not is_so(status := self.status(rank)):
            assert time.monotonic() < deadline, status.get("halt") or status
            time.sleep(0.05)
        return status

    def await_iteration(self, past: int) -> None:
        """Waits until some iterations after the last capture of main shards. So a newer iteration can only come from a
        late capture."""
        deadline = time.monotonic() + DEADLINE_S
        while not (all(newest >= past for newest in self.newest()) and 3 <= self.newest()[0] % CAPTURE_EVERY <= 6):
            assert time.monotonic() < deadline, self.newest()
            time.sleep(0.02)

    def await_halt(self, captured: set[int]) -> dict:
        """Until every rank that can be captured is, as every node says."""
        others = set(range(RANKS)) - captured

        def is_over(status: dict) -> bool:
            halt = status.get("halt")
            return bool(halt) and halt["over"] and {each["rank"] for each in halt["others"]} == others

        halts = [self.await_status(rank, is_over)["halt"] for rank in range(RANKS)]
        return halts[0]

    def text(self, rank: int) -> str:
        return subprocess.run(
            [build_file_of("ckptctl"), "status", f"node=n{rank}", f"job={self.cluster.job}",
             f"arena_dir={self.cluster.arena}"], capture_output=True, text=True, check=False,
            timeout=DEADLINE_S).stdout

    def come_back(self, expected: dict[int, dict[int, str]]) -> None:
        """Restarts all. The iteration that was live is restored, and losses go on as if nothing had happened."""
        live = self.newest()
        assert len(set(live)) == 1 and live[0] % CAPTURE_EVERY != 0, live
        self.kill()
        self.start()
        self.run_to_the_end()
        assert self.restored() == [live[0]] * RANKS
        assert {rank: self.losses(rank) for rank in range(RANKS)} == expected


@pytest.fixture
def job(cluster, tmp_path):
    job = HaltingJob(cluster, tmp_path / "job")
    yield job
    job.kill()


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """The losses of a job without faults, by rank and iteration: computed, not trained, as the sums are exact."""
    import halt_trainer as trainer
    import numpy as np

    parameters = np.linspace(-1, 1, trainer.PARAMETERS)
    generators = [np.array([rank + 1], np.uint64) for rank in range(RANKS)]
    losses: dict[int, dict[int, str]] = {rank: {} for rank in range(RANKS)}
    with np.errstate(over="ignore"):
        for iteration in range(END):
            noises = []
            for generator in generators:
                generator[0] = generator[0] * np.uint64(6364136223846793005) + np.uint64(1442695040888963407)
                noises.append(float(generator[0] >> np.uint64(11)) / 2**53)
            gradient = np.array([parameters[:trainer.GRADIENTS] * (1 + noise) for noise in noises]).sum(axis=0)
            parameters *= 1 - 1e-3
            parameters[:trainer.GRADIENTS] -= 1e-3 * gradient
            for rank, noise in enumerate(noises):
                losses[rank][iteration] = (parameters.sum() + noise).hex()
    return losses


def test_a_rank_that_is_killed_costs_no_finished_iteration(job, undisturbed):
    job.start()
    job.await_iteration(12)
    job.command("die", 1)
    halt = job.await_halt(captured={0, 2, 3})
    assert halt["culprits"] == [1]
    assert halt["iteration"] == job.newest()[0]
    assert "captured: 3 of 4 ranks; rank 1 on node n1 does not answer" in halt["text"]
    assert "  HALTED: incarnation 1 is halted at iteration " in job.text(0)
    job.come_back(undisturbed)


def test_ranks_that_end_after_a_peers_loss_leave_their_state(job, undisturbed):
    job.start()
    (job.folder / "notice").touch()
    job.await_iteration(12)
    job.command("die", 1)
    assert [trainer.wait(DEADLINE_S) for trainer in job.trainers] == [1, -signal.SIGKILL, 1, 1]
    job.come_back(undisturbed)


def test_a_rank_that_is_stopped_costs_no_finished_iteration(job, undisturbed):
    job.start()
    job.await_iteration(12)
    job.command("stop", 2)
    halt = job.await_halt(captured={0, 1, 3})
    assert halt["culprits"] == [2]
    assert halt["others"] == [{"rank": 2, "node": "n2", "state": "none", "iteration": None}]
    job.come_back(undisturbed)


def test_rank_that_spins_with_the_interpreter_lock_is_captured(job, undisturbed):
    job.start()
    job.await_iteration(12)
    job.command("spin", 3)
    halt = job.await_halt(captured={0, 1, 2, 3})
    assert halt["culprits"] == [3]
    iteration = job.newest()[0]
    # All ranks have it, so it is committed.
    job.await_status(0, lambda status: status["committed"]["iteration"] == iteration)
    job.come_back(undisturbed)


def test_a_survivor_whose_interpreter_lock_is_held_is_captured(job, undisturbed):
    job.options["hang_floor_ms"] = 10_000  # nobody is suspected to hang before the other rank dies
    job.start()
    job.await_iteration(12)
    job.command("spin", 3)
    before = job.newest()
    deadline = time.monotonic() + DEADLINE_S
    while len(set(before)) != 1 or job.newest() != before or not job.status(3)["ranks"]:
        assert time.monotonic() < deadline
        before = job.newest()
        time.sleep(0.2)
    # Once that is committed, rank 1 has a free slot, and its own state is sealed there.
    job.await_status(1, lambda status: status["committed"]["iteration"] == before[1] // CAPTURE_EVERY * CAPTURE_EVERY)
    time.sleep(0.5)
    job.signal(1, signal.SIGKILL)
    job.await_halt(captured={0, 2, 3})
    job.come_back(undisturbed)


def test_a_false_alarm_costs_at_most_one_minibatch(job, undisturbed):
    job.start()
    job.await_iteration(12)
    job.command("sleep", 2)
    halt = job.await_halt(captured={0, 1, 2, 3})
    assert halt["culprits"] == [2]
    (job.folder / "wake").touch()
    # It wakes, all finish the forward pass, and nobody begins the update.
    assert [trainer.wait(DEADLINE_S) for trainer in job.trainers] == [17] * RANKS
    for rank in range(RANKS):
        told = (job.folder / f"halted-{rank}").read_text()
        assert told.startswith("the job was halted: incarnation 1 is halted at iteration "), told
        assert f"the state of iteration {halt['iteration']} is captured; call ckpt_rejoin()" in told
    assert job.newest() == [halt["iteration"]] * RANKS
    job.come_back(undisturbed)


def test_a_rank_that_is_stopped_within_its_update_costs_no_finished_iteration(job, undisturbed):
    job.start()
    job.await_iteration(12)
    job.command("update", 2)
    halt = job.await_halt(captured={0, 1, 3})
    newest = job.newest()
    assert newest[2] == newest[0] - 1
    assert halt["iteration"] == newest[0]
    # The others have the main shard of that iteration. The rank has sealed its own state of it before the update.
    job.kill()
    job.start()
    job.run_to_the_end()
    assert job.restored() == [newest[0]] * RANKS
    losses = {rank: job.losses(rank) for rank in range(RANKS)}
    assert losses[2].pop(newest[0], None) is None, "it has not finished that update"
    losses[2][newest[0]] = undisturbed[2][newest[0]]
    assert losses == undisturbed


def test_rank_killed_within_its_update_with_its_node_restores_the_last_commit(
        job, undisturbed):
    job.start()
    job.await_iteration(12)
    job.command("update", 2)
    newest = job.await_halt(captured={0, 1, 3})["iteration"]
    for agent in job.cluster.agents("n2"):
        kill_process(agent, signal.SIGKILL)
    job.kill()
    for left in job.cluster.arena.glob("*/n2"):
        shutil.rmtree(left)
    job.start()
    job.run_to_the_end()
    assert job.restored() == [newest // CAPTURE_EVERY * CAPTURE_EVERY] * RANKS
    assert {rank: job.losses(rank) for rank in range(RANKS)} == undisturbed


def test_agents_that_die_in_the_middle_of_a_halt_lose_nothing(job, undisturbed):
    job.start()
    job.await_iteration(12)
    job.command("stop", 2)
    status = job.await_status(0, lambda status: status.get("halt"))
    for node in {"n1", status["leader"]} - {"n2"}:
        for agent in job.cluster.agents(node):
            kill_process(agent, signal.SIGKILL)
    halt = job.await_halt(captured={0, 1, 3})
    assert halt["iteration"] == job.newest()[0]
    job.come_back(undisturbed)


def test_without_a_fault_nothing_is_halted_and_the_last_iteration_is_kept(job, undisturbed):
    job.start()
    job.run_to_the_end(64)
    assert job.status(0)["halt"] is None
    logs = [path.read_text() for path in job.cluster.arena.glob("*/n*/ckptd.log")]
    assert len(logs) == RANKS and not any("halt: " in log for log in logs)
    job.start()
    job.run_to_the_end()
    assert job.restored() == [63] * RANKS
    assert {rank: job.losses(rank) for rank in range(RANKS)} == undisturbed


def test_awaited_snapshot_is_complete_despite_capture_every(cluster):
    engines = together(*(lambda rank=rank: cluster.engine(rank, 2, shard="model", capture_every=10) for rank in (0, 1)))
    for engine in engines:
        engine.register("state", bytearray(100_000))
    together(*(engine.restore for engine in engines))

    def train(engine):
        tickets = []
        for iteration in (0, 1, 2):
            engine.before_update()
            tickets.append(engine.snapshot(iteration, wait=iteration == 2))
        return tickets

    for first, second, last in together(*(lambda engine=engine: train(engine) for engine in engines)):
        assert first.taken
        assert second.status is Status.SKIPPED and "capture_every" in second.message
        assert last.stage is Stage.COMMITTED
