"""The ranks of this node, and the spare processes that can become ranks."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import dataclass

from ._loop import Loop
from ._output import Output
from ._process import Process, how_it_ended, worker_words
from ._restarts import Failure, end_of_trace
from ._settings import Settings

SPARE_DEATHS_MAX = 3  # in a row, before ckptrun goes on without spares
KILL_WAIT_S = 10.0


@dataclass
class Rank:
    """One rank of this node. `process` is None before it starts, while it waits to be restarted, and when it is
    done."""

    number: int
    local: int
    process: Process | None = None
    done: bool = False


class Node:
    """Starts the node's ranks. Calls `on_failure(failure)` for each that fails, and `on_done()` once all have ended
    with status 0."""

    def __init__(
        self,
        loop: Loop,
        output: Output,
        settings: Settings,
        on_failure: Callable[[Failure], None],
        on_done: Callable[[], None],
    ) -> None:
        self._loop, self._output, self._settings = loop, output, settings
        self._on_failure, self._on_done = on_failure, on_done
        self._node_rank = 0
        self._common: dict[str, str] = {}
        self.ranks: dict[int, Rank] = {}
        self._spares: list[Process] = []
        self._spare_deaths = 0
        self._ending = False
        self._when_cleared: Callable[[], None] | None = None
        self._base = dict(os.environ)
        if settings.ranks_per_node > 1:
            self._base.setdefault("OMP_NUM_THREADS", "1")  # as torchrun does

    # ---- ranks ----

    def start(self, node_rank: int, common: dict[str, str], restarts: dict[int, int]) -> None:
        """Starts all ranks. `common`: environment variables of all ranks. `restarts`: how often each rank was
        restarted."""
        if self._ending:
            return
        self._node_rank, self._common, self._when_cleared = node_rank, common, None
        first = node_rank * self._settings.ranks_per_node
        for local in range(self._settings.ranks_per_node):
            rank = self.ranks[first + local] = Rank(first + local, local)
            self._begin(rank, restarts.get(rank.number, 0))
        self._fill_spares()

    def restart(self, number: int, restarts: int, delay_s: float) -> None:
        rank = self.ranks[number]
        self._loop.after(delay_s, lambda: self._begin(rank, restarts))

    def clear(self, then: Callable[[], None]) -> None:
        """Ends all ranks, so that all can restart together. Calls `then()` once they have ended."""
        self._when_cleared = then
        self._ask_to_end(signal.SIGTERM)

        def kill() -> None:
            if self._when_cleared is then:
                for rank in self.ranks:
                    self.kill(rank)

        self._loop.after(self._settings.shutdown_timeout_s, kill)
        self._tell_if_cleared()

    def _tell_if_cleared(self) -> None:
        if self._when_cleared is not None and not any(rank.process for rank in self.ranks.values()):
            then, self._when_cleared = self._when_cleared, None
            then()

    def _ask_to_end(self, number: signal.Signals) -> None:
        self.pass_on(number)
        self.pass_on(signal.SIGCONT)  # so that stopped processes get the signal, too

    def pass_on(self, number: signal.Signals) -> None:
        for rank in self.ranks.values():
            if rank.process is not None:
                rank.process.signal(number)

    def kill(self, number: int) -> None:
        """Kills the rank's process. The rank is then restarted like any other that dies."""
        if (process := self.ranks[number].process) is not None:
            process.signal(signal.SIGKILL)

    def _begin(self, rank: Rank, restarts: int) -> None:
        if self._ending or rank.process is not None:
            return
        process = self._spares.pop(0) if self._spares else self._spawn("-", "")
        process.name = str(rank.number)
        rank.process = process
        process.tell(json.dumps(self._environment_of(rank, restarts)).encode() + b"\n")
        if restarts:
            self._output.say(f"rank {rank.number} starts anew as process {process.pid}")
        self._fill_spares()

    def _environment_of(self, rank: Rank, restarts: int) -> dict[str, str]:
        settings = self._settings
        return self._common | {
            "RANK": str(rank.number),
            "LOCAL_RANK": str(rank.local),
            "WORLD_SIZE": str(settings.world_size),
            "LOCAL_WORLD_SIZE": str(settings.ranks_per_node),
            "GROUP_RANK": str(self._node_rank),
            "GROUP_WORLD_SIZE": str(settings.nodes),
            "ROLE_NAME": "default",
            "ROLE_RANK": str(rank.number),
            "ROLE_WORLD_SIZE": str(settings.world_size),
            "CKPTENGINE_RANK": str(rank.number),
            "CKPTENGINE_WORLD_SIZE": str(settings.world_size),
            "TORCHELASTIC_RUN_ID": settings.run_id,
            "TORCHELASTIC_RESTART_COUNT": str(restarts),
            "TORCHELASTIC_MAX_RESTARTS": str(settings.max_restarts),
            "TORCHELASTIC_USE_AGENT_STORE": "True",  # no rank hosts the store
        }

    def _spawn(self, preload: str, name: str) -> Process:
        settings, made = self._settings, []
        words = worker_words(settings.kind, settings.words, preload)
        made.append(Process(self._loop, self._output, words, name, lambda s: self._ended(made[0], s), self._base))
        return made[0]

    def _ended(self, process: Process, status: int) -> None:
        rank = next((rank for rank in self.ranks.values() if rank.process is process), None)
        if rank is None:
            self._spare_ended(process, status)
            return
        rank.process = None
        if self._ending:
            return
        if self._when_cleared is not None:
            self._tell_if_cleared()
            return
        if status == 0:
            rank.done = True
            if all(each.done for each in self.ranks.values()):
                self._on_done()
            return
        trace = end_of_trace(process.error_text())
        where = f"process {process.pid} on {os.uname().nodename}"
        self._on_failure(Failure(rank.number, how_it_ended(status), status, trace, None, where))

    # ---- spares ----

    def _fill_spares(self) -> None:
        wanted = self._settings.spares if self._spare_deaths < SPARE_DEATHS_MAX else 0
        while not self._ending and len(self._spares) < wanted:
            self._spares.append(self._spawn(self._settings.preload, "spare"))

    def _spare_ended(self, process: Process, status: int) -> None:
        if self._ending or process not in self._spares:
            self._spares = [spare for spare in self._spares if spare is not process]
            return
        self._spares.remove(process)
        self._spare_deaths += 1
        if self._spare_deaths < SPARE_DEATHS_MAX:
            self._loop.after(2.0**self._spare_deaths, self._fill_spares)
        else:
            self._output.say(
                f"{SPARE_DEATHS_MAX} spare processes have ended; the last {how_it_ended(status)}. ckptrun goes on "
                "without spares: ranks that start anew import their modules first. See what ended them: perhaps memory"
            )

    # ---- the end ----

    @property
    def processes(self) -> list[Process]:
        found = [rank.process for rank in self.ranks.values() if rank.process is not None] + self._spares
        return [process for process in found if process.runs]

    def end(self, number: signal.Signals) -> None:
        """Asks all processes to end, and kills them after --shutdown-timeout. A second call kills them at once."""
        if self._ending:
            self._kill_all()
            return
        self._ending = True
        for spare in self._spares:
            spare.signal(signal.SIGKILL)
        self._ask_to_end(number)
        self._loop.after(self._settings.shutdown_timeout_s, self._kill_all)

    def _kill_all(self) -> None:
        for process in self.processes:
            process.signal(signal.SIGKILL)
