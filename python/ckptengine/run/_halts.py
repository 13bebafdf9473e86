"""Finds ranks that hold a halted job up, by asking the node's agent (`ckptctl status --json`) at least every second."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .._programs import REMEDY, find_program
from ._loop import Loop

PERIOD_S = 1.0
TROUBLE_PERIOD_S = 0.2  # while ranks are suspected, halted or behind
ANSWER_WAIT_S = 5.0
ANSWER_BYTES_MAX = 64 << 20
UNKNOWN_MAX = 120  # about two minutes: a script may take that long before it restores

Agent = dict[str, Any]  # an agent's status (docs/jit.md explains its field `halt`)
Processes = dict[int, int]  # rank: process


class Question:
    """One run of `ckptctl status --json`. Calls `on_answer(agents)` once; without an answer the list is empty."""

    def __init__(self, loop: Loop, ckptctl: str, on_answer: Callable[[list[Agent]], None]) -> None:
        self._loop, self._on_answer = loop, on_answer
        self._answer = b""
        try:
            self._popen = subprocess.Popen(
                [ckptctl, "status", "--json"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        except OSError:  # for example while the program is being replaced
            loop.after(0, lambda: on_answer([]))
            return
        self._pipe = self._popen.stdout.fileno()
        os.set_blocking(self._pipe, False)
        loop.watch(self._pipe, self._read)
        self._limit = loop.after(ANSWER_WAIT_S, self._end)

    def _read(self) -> None:
        data = os.read(self._pipe, 1 << 20)
        self._answer += data
        if not data or len(self._answer) > ANSWER_BYTES_MAX:
            self._end()

    def _end(self) -> None:
        self._limit.cancel()
        self._loop.forget(self._pipe)
        self._popen.kill()  # it has closed its output, or hangs
        self._popen.wait()
        self._popen.stdout.close()
        try:
            agents = json.loads(self._answer)["agents"]
        except (ValueError, KeyError, TypeError):
            agents = []
        self._on_answer([agent for agent in agents if isinstance(agent, dict)])


def agents_of(agents: list[Agent], ours: Processes) -> list[Agent]:
    """Returns the agents of this launcher's ranks. That is one agent, unless several nodes run on this machine."""
    pids = set(ours.values())
    return [agent for agent in agents if any(rank["pid"] in pids for rank in agent["ranks"])]


@dataclass
class Halts:
    """Judges which ranks stay behind when the other ranks go on, mainly after a halt. Pure."""

    grace_s: float
    _behind: dict[int, float] = field(default_factory=dict)  # by process: since when it is behind
    _named: set[int] = field(default_factory=set)

    @property
    def waits(self) -> bool:
        """True if a rank is behind and its grace time has not passed yet."""
        return bool(self._behind)

    def left_behind(
        self, agents: list[Agent], ours: Processes, is_stopped: Callable[[int], bool], now_s: float
    ) -> dict[int, str]:
        """Returns the ranks to kill, each with the reason. Names each process once: at once if it is stopped, otherwise
        after it was behind for `grace_s`. A rank is behind if its halt is over, or if the job is already in a later
        incarnation."""
        is_behind = {rank["pid"]: _is_behind(rank, agent) for agent in agents for rank in agent["ranks"]}
        for pid in set(ours.values()) & set(is_behind):
            if not is_behind[pid]:
                self._behind.pop(pid, None)
            elif pid not in self._named:
                self._behind.setdefault(pid, now_s)
        self._behind = {pid: since for pid, since in self._behind.items() if pid in ours.values()}
        found = {}
        for rank, pid in ours.items():
            if pid in self._behind and is_stopped(pid):
                found[rank] = "its process is stopped"
            elif pid in self._behind and now_s - self._behind[pid] >= self.grace_s:
                found[rank] = f"it has neither ended nor rejoined within {self.grace_s:g} s"
        for rank in found:
            self._named.add(ours[rank])
            del self._behind[ours[rank]]
        return found


def _is_behind(rank: dict[str, Any], agent: Agent) -> bool:
    own, halt = rank["incarnation"], agent["halt"]
    if own == 0 or rank["restoring"]:
        return False  # it joins
    return own < agent["incarnation"] or bool(halt and halt["over"] and own <= halt["incarnation"])


def halts_are_on() -> bool:
    """Whether the option on_suspicion is halt. Knows only the environment, not options that a script sets."""
    return os.environ.get("CKPTENGINE_ON_SUSPICION") == "halt"


def is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False


class HaltWatch:
    """Asks the agent again and again while ranks run. Calls `kill(rank, why)` for each rank that stays behind."""

    def __init__(
        self,
        loop: Loop,
        grace_s: float,
        ours: Callable[[], Processes],
        kill: Callable[[int, str], None],
        say: Callable[[str], None],
    ) -> None:
        self._loop, self._ours, self._kill, self._say = loop, ours, kill, say
        self._halts = Halts(grace_s)
        found = find_program("ckptctl")
        self._ckptctl = str(found) if found else shutil.which("ckptctl")
        self._homes: set[tuple[str, str]] = set()  # jobs and nodes of the agents of this launcher's ranks
        self._unknown = 0  # questions in a row that no agent of this launcher's ranks has answered
        if self._ckptctl is not None:
            loop.after(PERIOD_S, self._ask_again)
        elif halts_are_on():
            say(f"ckptctl is not found, so ranks that hang in a halted job are not ended; {REMEDY}")

    def ask(self, then: Callable[[list[Agent]], None]) -> None:
        """Asks the agents of this launcher's ranks, and calls `then(agents)` within 5 s. The list is empty if none
        answers."""
        if self._ckptctl is None:
            then([])
        else:
            Question(self._loop, self._ckptctl, lambda agents: then(self._pick(agents)))

    def _pick(self, agents: list[Agent]) -> list[Agent]:
        self._homes |= {(agent["job"], agent["node"]) for agent in agents_of(agents, self._ours())}
        return [agent for agent in agents if (agent["job"], agent["node"]) in self._homes]

    def _ask_again(self) -> None:
        if self._ours():
            self.ask(self._answered)
        else:
            self._loop.after(PERIOD_S, self._ask_again)

    def _answered(self, agents: list[Agent]) -> None:
        self._unknown = 0 if agents else self._unknown + 1
        if self._unknown == UNKNOWN_MAX and halts_are_on():
            self._say(
                "`ckptctl status` knows no agent of these ranks, so ranks that hang in a halted job are not ended. "
                "Does the agent run? Are the options job and arena_dir in the environment (CKPTENGINE_JOB, "
                "CKPTENGINE_ARENA_DIR)?"
            )
        for rank, why in self._halts.left_behind(agents, self._ours(), is_stopped, time.monotonic()).items():
            self._kill(rank, why)
        in_trouble = self._halts.waits or any(agent["halt"] or agent["suspicion"] for agent in agents)
        self._loop.after(TROUBLE_PERIOD_S if in_trouble else PERIOD_S, self._ask_again)


def reached_iteration(agents: list[Agent]) -> int | None:
    """Returns the newest iteration that the job has committed or a rank of these agents has ended. None if there is
    none."""
    committed = [agent["committed"]["iteration"] for agent in agents if agent["committed"]]
    ended = [rank["attempted"] for agent in agents for rank in agent["ranks"] if rank["attempted"] >= 0]
    return max(committed + ended, default=None)


def halt_of(agents: list[Agent]) -> dict[str, Any] | None:
    """Returns the job's halt from the first of these agents that reports one. None if no agent does."""
    return next((agent["halt"] for agent in agents if agent["halt"]), None)
