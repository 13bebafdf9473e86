"""The two ranks of a run. They are processes that do what the driver asks for, and that can be killed."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import torch
import torch.distributed as dist

from .memory import children_of
from .way import WORLD_SIZE, Nodes, State, Way

TENSORS = 64
ANSWER_S = 60
ENDING_S = 30


class Failed(Exception):
    """A rank could not do what it was asked for."""


def content(rank: int, iteration: int) -> float:
    """The value that a rank's state has after an iteration. It is exact in float32."""
    return iteration * 16.0 + rank + 0.5


class Rank:
    """What a rank can be asked for, by the names of the methods."""

    def __init__(self, way_type: type[Way], nodes: Nodes, rank: int, state_bytes: int, incarnation: int) -> None:
        self._way_type, self._nodes, self._rank = way_type, nodes, rank
        if way_type.uses_group:
            rendezvous = f"file://{nodes.place.root}/rendezvous-{incarnation}"
            dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=WORLD_SIZE)
        floats = state_bytes // 4 // TENSORS
        self._state: State = {f"tensor{number}": torch.zeros(floats) for number in range(TENSORS)}
        for tensor in self._state.values():
            tensor.fill_(0.0)  # touches each page
        self._owner = 0 if way_type.survivors_go_on else rank  # if survivors go on, all ranks have the same state
        self._way: Way | None = None

    def begin(self) -> None:
        self._way = self._way_type(self._nodes, self._rank, self._state)

    def restore(self) -> tuple[float, int | None]:
        begin = time.perf_counter()
        iteration = self._way.restore()
        return 1e3 * (time.perf_counter() - begin), iteration

    def is_state_of(self, iteration: int) -> bool:
        expected = content(self._owner, iteration)
        return all(bool((tensor == expected).all()) for tensor in self._state.values())

    def update(self, iteration: int) -> None:
        for tensor in self._state.values():
            tensor.fill_(content(self._owner, iteration))

    def save(self, iteration: int) -> float:
        return self._timed(lambda: self._way.save(iteration))

    def before_update(self) -> float:
        return self._timed(self._way.before_update)

    def was_skipped(self) -> bool:
        return self._way.was_skipped()

    def wait(self) -> None:
        self._way.wait()

    def flip_a_bit(self) -> None:
        """For ways in which the state itself is the only copy."""
        next(iter(self._state.values())).view(torch.uint8)[4096] ^= 1

    def close(self) -> None:
        self._way.close()

    def _timed(self, call: Callable[[], None]) -> float:
        begin = time.perf_counter()
        call()
        return 1e3 * (time.perf_counter() - begin)


def _serve(pipe: Connection, log: str, *arguments: Any) -> None:
    """The rank's process, until it is asked to close."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)  # not the handler that the driver installed
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, sys.stdout.fileno())
    os.dup2(descriptor, sys.stderr.fileno())
    torch.set_num_threads(1)  # as torchrun does
    try:
        rank = Rank(*arguments)
        pipe.send((True, None))
        while True:
            order, *values = pipe.recv()
            pipe.send((True, getattr(rank, order)(*values)))
            if order == "close":
                return
    except Exception as error:
        traceback.print_exc()
        pipe.send((False, f"{type(error).__name__}: {error}"))


def end_processes(pids: list[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


class Ranks:
    """The ranks of a job, as the driver sees them."""

    def __init__(self, way_type: type[Way], nodes: Nodes, state_bytes: int) -> None:
        self._arguments = (way_type, nodes, state_bytes)
        self._processes: dict[int, Any] = {}
        self._pipes: dict[int, Connection] = {}
        self._incarnation = 0
        self.new: list[int] = []  # ranks that the last start() started

    def start(self) -> None:
        """Starts the ranks that are not there."""
        self._incarnation += 1
        way_type, nodes, state_bytes = self._arguments
        context = multiprocessing.get_context("fork")
        self.new = [rank for rank in range(WORLD_SIZE) if rank not in self._processes]
        for rank in self.new:
            self._pipes[rank], theirs = context.Pipe()
            log = str(nodes.place.root / f"rank{rank}.log")
            arguments = (theirs, log, way_type, nodes, rank, state_bytes, self._incarnation)
            self._processes[rank] = context.Process(target=_serve, args=arguments)
            self._processes[rank].start()
            theirs.close()
        self._answers("start", self.new)

    def begin(self) -> None:
        """The ranks that were just started begin to checkpoint."""
        self.ask("begin", of=self.new)

    def ask(self, order: str, *values: Any, of: list[int] | None = None) -> list[Any]:
        """Asks all ranks at once. Their answers, in order."""
        ranks = sorted(self._pipes) if of is None else of
        for rank in ranks:
            self._pipes[rank].send((order, *values))
        return self._answers(order, ranks)

    def _answers(self, order: str, ranks: list[int]) -> list[Any]:
        deadline = time.monotonic() + ANSWER_S
        answers = []
        for rank in ranks:
            if not self._pipes[rank].poll(max(0.0, deadline - time.monotonic())):
                raise Failed(f"rank {rank} did not answer '{order}' in {ANSWER_S} s")
            try:
                went_well, answer = self._pipes[rank].recv()
            except EOFError:
                raise Failed(f"rank {rank} ended at '{order}'") from None
            if not went_well:
                raise Failed(f"rank {rank} failed at '{order}': {answer}")
            answers.append(answer)
        return answers

    def kill(self, ranks: list[int]) -> None:
        """Ends these processes and all that they started."""
        for rank in ranks:
            process = self._processes.pop(rank, None)
            if process is None:
                continue
            end_processes([process.pid, *children_of(process.pid)])
            process.join()
            self._pipes.pop(rank).close()

    def stop(self) -> float:
        """Ends the survivors as a launcher does: SIGTERM, and time to end in order. Returns how many ms they took."""
        begin = time.monotonic()
        for process in self._processes.values():
            process.terminate()
        for process in self._processes.values():
            process.join(max(0.0, begin + ENDING_S - time.monotonic()))
        took_ms = 1e3 * (time.monotonic() - begin)
        self.kill(list(self._processes))
        return took_ms

    def close(self) -> None:
        self.kill(list(self._processes))
