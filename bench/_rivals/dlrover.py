"""dlrover's flash checkpoint: the call copies the state into shared memory, which the node's agent keeps."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from dlrover.python.common.multi_process import SOCKET_TMP_DIR
from dlrover.python.elastic_agent.torch.ckpt_saver import AsyncCheckpointSaver
from dlrover.trainer.torch.flash_checkpoint.checkpointer import StorageType
from dlrover.trainer.torch.flash_checkpoint.ddp import DdpCheckpointer

from .way import WORLD_SIZE, Nodes, Place, State, Way, copy_into

SHARED_MEMORY = Path("/dev/shm")
AGENT_S = 30
STATE = "state"
ITERATION = "iteration"


def node_name(place: Place, number: int) -> str:
    return f"{place.name}-n{number}"


def set_environment(place: Place, rank: int) -> None:
    """What dlrover-run and torchrun tell an agent and its trainer. The run's name keeps nodes on one machine apart."""
    os.environ |= {
        "TORCHELASTIC_RUN_ID": node_name(place, rank),
        "ROLE_NAME": "dlrover-trainer",
        "NODE_RANK": str(rank),
        "NODE_NUM": str(WORLD_SIZE),
        "GROUP_RANK": str(rank),
        "GROUP_WORLD_SIZE": str(WORLD_SIZE),
        "RANK": str(rank),
        "WORLD_SIZE": str(WORLD_SIZE),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
    }


def run_agent(place: Place, number: int, is_ready: Any) -> None:
    """The part of dlrover-run's agent that keeps checkpoints."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the handler that the driver installed
    set_environment(place, number)
    AsyncCheckpointSaver.start_async_saving_ckpt()
    is_ready.set()  # a trainer that calls earlier gets no answer
    while True:
        signal.pause()


class DlroverNodes(Nodes):
    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self._agents: dict[int, Any] = {}

    def start(self) -> None:
        super().start()
        for number in range(WORLD_SIZE):
            self._start_agent(number)

    def lose(self, number: int) -> None:
        self._end_agent(number)
        super().lose(number)
        self._start_agent(number)

    def copies_of(self, rank: int) -> Iterator[Path]:
        yield from sorted(SHARED_MEMORY.glob(f"{node_name(self.place, rank)}_*"))

    def files(self) -> Iterator[Path]:
        yield from super().files()
        yield from SHARED_MEMORY.glob(f"{self.place.name}-n*")

    def close(self) -> None:
        for number in list(self._agents):
            self._end_agent(number)

    def _start_agent(self, number: int) -> None:
        context = multiprocessing.get_context("fork")
        is_ready = context.Event()
        agent = context.Process(target=run_agent, args=(self.place, number, is_ready))
        agent.start()
        self._agents[number] = agent
        if not is_ready.wait(AGENT_S):
            raise TimeoutError(f"the agent of node {number} is not ready after {AGENT_S} s")

    def _end_agent(self, number: int) -> None:
        agent = self._agents.pop(number)
        agent.kill()
        agent.join()
        for file in SHARED_MEMORY.glob(f"{node_name(self.place, number)}_*"):
            file.unlink()
        shutil.rmtree(Path(SOCKET_TMP_DIR) / node_name(self.place, number), ignore_errors=True)


class Dlrover(Way):
    nodes_type = DlroverNodes

    def __init__(self, nodes: Nodes, rank: int, state: State) -> None:
        super().__init__(nodes, rank, state)
        set_environment(self.place, rank)
        self._checkpointer = DdpCheckpointer(
            str(self.place.shared),
            local_shard_num=1,
            global_shard_num=WORLD_SIZE,
        )

    def save(self, iteration: int) -> None:
        state = {STATE: self.state, ITERATION: iteration}
        self._checkpointer.save_checkpoint(iteration, state, storage_type=StorageType.MEMORY)

    def restore(self) -> int | None:
        found = self._checkpointer.load_checkpoint()
        if not found:
            return None
        copy_into(self.state, found[STATE])
        return found[ITERATION]
