"""A small job of four ranks, each on a node of its own, whose state is known byte by byte."""

from __future__ import annotations

import os
import signal
import time

from ckptengine import Stage
from conftest import together
from processes import has_ended, kill_process

DEADLINE_S = 60
RANKS = 4
BYTES = 600_000  # several digest leaves for each part


def content(name: str, iteration: int) -> bytearray:
    seed = f"{name} at {iteration}.".encode()
    return bytearray((seed * (BYTES // len(seed) + 1))[:BYTES])


class Job:
    def __init__(self, cluster, shared: bool, **options) -> None:
        self.cluster, self.shared = cluster, shared
        self.options = {"restore_timeout_ms": 20_000} | options
        self.engines: list = []
        self.states: list[bytearray] = []

    def name(self, rank: int) -> str:
        return "model" if self.shared else f"rank{rank}"

    def start(self) -> list:
        """An incarnation: the ranks that are not there say hello, and all restore."""
        self.close()
        self.engines = together(*(
            lambda rank=rank: self.cluster.engine(rank, RANKS, shard=self.name(rank), **self.options)
            for rank in range(RANKS)))
        self.states = [bytearray(BYTES) for _ in range(RANKS)]
        for engine, state in zip(self.engines, self.states, strict=True):
            engine.register("state", state)
        return self.engines

    def restore(self) -> list:
        return together(*(engine.restore for engine in self.engines))

    def commit(self, iteration: int) -> list:
        """All ranks snapshot `iteration` and wait until it is committed. Their tickets."""
        for rank, state in enumerate(self.states):
            state[:] = content(self.name(rank), iteration)
        def one(engine):
            ticket = engine.snapshot(iteration)
            assert ticket.taken, ticket.message
            assert ticket.wait(Stage.CAPTURING, 20_000), ticket.message
            assert engine.before_update()
            assert ticket.wait(Stage.COMMITTED, 20_000), ticket.message
            return ticket
        return together(*(lambda engine=engine: one(engine) for engine in self.engines))

    def close(self) -> None:
        for engine in self.engines:
            engine.close()
        self.engines = []
        self.cluster.engines.clear()

    def lose(self, *nodes: int) -> None:
        """The nodes' agents and all their memory."""
        self.close()
        for node in nodes:
            pids = self.cluster.agents(f"n{node}")
            for pid in pids:
                kill_process(pid, signal.SIGKILL)
            deadline = time.monotonic() + DEADLINE_S
            while not all(has_ended(pid) for pid in pids):
                assert time.monotonic() < deadline, f"the agent of n{node} did not end in {DEADLINE_S} s"
                time.sleep(0.01)
            for folder in self.cluster.arena.glob(f"*/n{node}"):
                for file in folder.iterdir():
                    file.unlink()
                os.rmdir(folder)

    def assert_restored(self, iteration: int) -> None:
        starts = self.restore()
        assert [start.iteration for start in starts] == [iteration] * RANKS
        self.assert_state(iteration)

    def assert_state(self, iteration: int) -> None:
        for rank, state in enumerate(self.states):
            assert state == content(self.name(rank), iteration), rank
