"""A job under ckptrun whose healthy ranks stay when another one fails: real agents, four ranks, a node for each."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import jit_trainer
from conftest import BUILD, build_file_of
from fork_server import TORCH, Processes
from processes import build_file, kill_process

# Each rank would import torch._dynamo when its optimizer takes a step.
PRELOADED = ["torch", "torch._dynamo", "ckptengine.torch"]
processes = Processes(*TORCH)

RANKS = 4
DEADLINE_S = 90
FLOOR_MS = 1000
CAPTURE_EVERY = 10


@dataclass(frozen=True)
class Begin:
    """One call of a rank's training function."""

    pid: int
    iteration: int  # that was restored; -1 if none
    tier: str  # where the main shard came from
    at_s: float


class JitJob:
    def __init__(self, cluster, folder: Path, kind: str = "ddp", first: tuple | None = None, **options: object) -> None:
        """`first`: a fault of the first iteration, as fault() takes it."""
        self.cluster, self.folder = cluster, folder
        folder.mkdir()
        if first is not None:
            self.fault(*first)
        given = cluster.options(0, RANKS, **{
            "hang_floor_ms": FLOOR_MS, "on_suspicion": "halt", "capture_every": CAPTURE_EVERY,
            "restore_timeout_ms": 30_000} | options)
        for name in ("rank", "world_size", "node"):
            del given[name]
        given = {key: str(value) if isinstance(value, Path) else value for key, value in given.items()}
        given["library"] = str(build_file(BUILD, "libckptengine.so"))
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(sys.path),
            "PATH": f"{build_file_of('ckptctl').parent}{os.pathsep}{os.environ['PATH']}",
            "GLOO_SOCKET_IFNAME": "lo",
            "CKPTENGINE_JOB": cluster.job,
            "CKPTENGINE_ARENA_DIR": str(cluster.arena),
            "CKPTENGINE_COORDINATION": str(cluster.coordination),
        }
        self.log = (folder / "log").open("w")
        self.launcher = subprocess.Popen(
            [sys.executable, "-m", "ckptengine.run", "--nproc-per-node", str(RANKS), "--spares", "1",
             "--halt-grace", "1", "--preload", ",".join(PRELOADED),
             Path(__file__).with_name("jit_trainer.py"), folder, kind, json.dumps(given)],
            env=environment, stdout=self.log, stderr=subprocess.STDOUT)

    def close(self) -> None:
        self.launcher.send_signal(signal.SIGTERM)
        try:
            self.launcher.wait(10)
        except subprocess.TimeoutExpired:
            self.launcher.kill()
            self.launcher.wait(DEADLINE_S)
        self.log.close()

    def told(self) -> str:
        return (self.folder / "log").read_text()[-5000:]

    def until(self, condition) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, self.told()
            assert self.launcher.poll() is None, self.told()
            time.sleep(0.03)

    def lines(self, name: str, rank: int) -> list[list[str]]:
        path = self.folder / f"{name}-{rank}"
        text = path.read_text() if path.exists() else ""
        return [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def begins(self, rank: int) -> list[Begin]:
        return [Begin(int(pid), int(iteration), tier, float(at_s))
                for pid, iteration, tier, at_s in self.lines("begins", rank)]

    def losses(self, rank: int) -> dict[int, str]:
        """By iteration. An iteration that was done twice has to have the same loss."""
        found: dict[int, str] = {}
        for iteration, loss, _ in self.lines("losses", rank):
            assert found.setdefault(int(iteration), loss) == loss, f"rank {rank}, iteration {iteration}"
        return found

    def newest(self) -> list[int]:
        return [max(self.losses(rank), default=-1) for rank in range(RANKS)]

    def await_iteration(self, past: int) -> None:
        """Waits until some iterations after the last capture of main shards. So a newer iteration can only come from a
        late capture."""
        self.until(lambda: min(self.newest()) >= past and 3 <= self.newest()[0] % CAPTURE_EVERY <= 6)

    def cause(self, rank: int, what: str, where: str) -> None:
        """A fault, and waits until all have gone on."""
        number = len(self.begins(0))
        self.fault(rank, what, where)
        self.await_begins(number + 1)
        before = [max(float(line[2]) for line in self.lines("losses", each) if float(line[2]) < begin.at_s)
                  for each in range(RANKS) for begin in self.begins(each)[number:]]
        latest = max(self.begins(each)[number].at_s for each in range(RANKS))
        print(f"{what} {where}: {latest - max(before):.2f} s from the last update to the next begin")
        self.await_iteration(self.begins(0)[number].iteration + 5)

    def fault(self, rank: int, what: str, where: str) -> None:
        whole = self.folder / f"do-{rank}.new"
        whole.write_text(f"{what} {where}")
        whole.rename(self.folder / f"do-{rank}")

    def await_fault(self, rank: int) -> None:
        """Until the rank does what it was asked for."""
        self.until(lambda: not (self.folder / f"do-{rank}").exists())

    def pids(self) -> list[int]:
        return [self.begins(rank)[-1].pid for rank in range(RANKS)]

    def restores(self, rank: int) -> list[int]:
        """The process of each restore that has begun."""
        return [int(pid) for [pid] in self.lines("restores", rank)]

    def told_times(self, words: str) -> int:
        return (self.folder / "log").read_text().count(words)

    def kill_agents(self, *nodes: str) -> None:
        for node in nodes:
            for agent in self.cluster.agents(node):
                kill_process(agent, signal.SIGKILL)

    def status(self, node: str) -> dict:
        asked = subprocess.run(
            [build_file_of("ckptctl"), "status", "--json", f"node={node}", f"job={self.cluster.job}",
             f"arena_dir={self.cluster.arena}"], capture_output=True, text=True, check=False, timeout=DEADLINE_S)
        agents = json.loads(asked.stdout).get("agents") if asked.stdout else None
        return agents[0] if agents else {}

    def await_begins(self, count: int) -> None:
        """Until each rank has begun to train `count` times."""
        self.until(lambda: all(len(self.begins(rank)) >= count for rank in range(RANKS)))

    def check_survivors(self, *failed: int, same_state: bool = True) -> None:
        """After the last fault: the failed ranks have other processes, the others have the same, and their tensors."""
        number = len(self.begins(0)) - 1
        assert len({self.begins(rank)[number].iteration for rank in range(RANKS)}) == 1
        for rank in range(RANKS):
            before, after = self.begins(rank)[number - 1 :]
            assert (before.pid == after.pid) == (rank not in failed), rank
            if rank not in failed and same_state:
                assert after.tier == "LIVE", rank

    def check_losses(self, kind: str) -> None:
        """Against those of a run without faults."""
        end = max(self.newest()) + 6
        assert self.run_to_the_end(end) == self.undisturbed(kind, end)

    def run_to_the_end(self, end: int) -> dict[int, dict[int, str]]:
        whole = self.folder / "end.new"
        whole.write_text(str(end))
        whole.rename(self.folder / "end")
        assert self.launcher.wait(DEADLINE_S) == 0, self.told()
        assert all((self.folder / f"done-{rank}").exists() for rank in range(RANKS))
        return {rank: self.losses(rank) for rank in range(RANKS)}

    def undisturbed(self, kind: str, end: int) -> dict[int, dict[int, str]]:
        """The losses of a run of torch alone, without faults."""
        folder = self.folder / "undisturbed"
        folder.mkdir()
        started = [processes.Process(target=jit_trainer.undisturbed, args=(folder, rank, RANKS, kind, end))
                   for rank in range(RANKS)]
        for process in started:
            process.start()
        for process in started:
            process.join(DEADLINE_S)
            assert process.exitcode == 0
        return {rank: {int(iteration): loss for iteration, loss in
                       json.loads((folder / f"undisturbed-{rank}").read_text()).items()} for rank in range(RANKS)}


def started_jobs(cluster, folder: Path):
    """For a fixture: yields a function that starts a job, and closes it afterwards."""
    jobs = []

    def make(**options) -> JitJob:
        jobs.append(JitJob(cluster, folder / f"job{len(jobs)}", **options))
        return jobs[-1]

    yield make
    for job in jobs:
        job.close()
