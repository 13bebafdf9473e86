"""Finds ranks that hold a halted job up. It asks the node's agent (`ckptctl status --json`), every second."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .._programs import find_program
from ._loop import Loop

PERIOD_S = 1.0
ANSWER_WAIT_S = 5.0
ANSWER_BYTES_MAX = 64 << 20

Agent = dict[str, Any]  # what the agent says of itself (docs/jit.md has `halt`)
Processes = dict[int, int]  # rank: process


class Question:
    """One run of `ckptctl status --json`. Calls `on_answer(agents)` once; without an answer the list is empty."""

    def __init__(self, loop: Loop, ckptctl: str, on_answer: Callable[[list[Agent]], None]) -> None:
        self._loop, self._on_answer = loop, on_answer
        self._answer = b""
        self._popen = subprocess.Popen(
            [ckptctl, "status", "--json"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
        )
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


def agent_of(agents: list[Agent], ours: Processes) -> Agent | None:
    """The agent to which a rank of this launcher belongs, or has belonged. None: there is none. If ranks act as if each
    had a node of its own, it is the first agent, with the ranks of all."""
    pids = set(ours.values())
    found = [agent for agent in agents if any(rank["pid"] in pids for rank in agent["ranks"])]
    if len(found) < 2:
        return found[0] if found else None
    return found[0] | {
        "incarnation": max(agent["incarnation"] for agent in found),
        "ranks": [rank for agent in found for rank in agent["ranks"]],
    }


@dataclass
class Halts:
    """Judges which ranks stay behind after a halt. Pure."""

    grace_s: float
    _incarnation: int = 0  # the newest that was halted and whose halt is over
    _due_s: float = 0.0
    _waiting: set[int] = field(default_factory=set)  # processes that have neither ended nor rejoined

    def left_behind(
        self, agent: Agent, ours: Processes, is_stopped: Callable[[int], bool], now_s: float
    ) -> dict[int, str]:
        """Ranks to be killed, and why. Those whose process is stopped are named at once, others after `grace_s`."""
        halt = agent["halt"]
        told = {rank["pid"]: rank for rank in agent["ranks"]}
        over = halt["incarnation"] if halt and halt["over"] else 0
        # The first ranks that rejoin begin the next incarnation, and that ends the halt.
        newest = agent.get("incarnation", 0)
        if any(0 < rank["incarnation"] < newest and rank["pid"] in ours.values() for rank in agent["ranks"]):
            over = max(over, newest - 1)
        if over > self._incarnation:
            self._incarnation, self._due_s = over, now_s + self.grace_s
            self._waiting = {pid for pid in ours.values() if pid in told}
        self._waiting &= set(ours.values())
        self._waiting -= {pid for pid in self._waiting if pid in told and self._has_rejoined(told[pid])}
        found = {}
        for rank, pid in ours.items():
            if pid in self._waiting and is_stopped(pid):
                found[rank] = "its process is stopped"
            elif pid in self._waiting and now_s >= self._due_s:
                found[rank] = f"it has neither ended nor rejoined {self.grace_s:g} s after the halt was over"
        self._waiting -= {ours[rank] for rank in found}  # each is named once
        return found

    def _has_rejoined(self, rank: dict[str, Any]) -> bool:
        return rank["incarnation"] > self._incarnation or rank["incarnation"] == 0 or bool(rank["restoring"])


def is_stopped(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False


class HaltWatch:
    """Asks the agent, as long as a rank runs. Calls `kill(rank, why)` for ranks that are left behind."""

    def __init__(
        self, loop: Loop, grace_s: float, ours: Callable[[], Processes], kill: Callable[[int, str], None]
    ) -> None:
        self._loop, self._ours, self._kill = loop, ours, kill
        self._halts = Halts(grace_s)
        found = find_program("ckptctl")
        self._ckptctl = str(found) if found else shutil.which("ckptctl")
        self._home: tuple[str, str] | None = None  # job and node of the agent of this launcher's ranks
        if self._ckptctl is not None:
            loop.after(PERIOD_S, self._ask_again)

    def ask(self, then: Callable[[Agent | None], None]) -> None:
        """Calls `then` with what the agent of this launcher's ranks says now, within 5 s. None: there is no answer."""
        if self._ckptctl is None:
            then(None)
        else:
            Question(self._loop, self._ckptctl, lambda agents: then(self._pick(agents)))

    def _pick(self, agents: list[Agent]) -> Agent | None:
        agent = agent_of(agents, self._ours())
        if agent is None and self._home is not None:
            agent = next((agent for agent in agents if (agent["job"], agent["node"]) == self._home), None)
        elif agent is not None:
            self._home = agent["job"], agent["node"]
        return agent

    def _ask_again(self) -> None:
        if self._ours():
            self.ask(self._answered)
        else:
            self._loop.after(PERIOD_S, self._ask_again)

    def _answered(self, agent: Agent | None) -> None:
        if agent is not None:
            for rank, why in self._halts.left_behind(agent, self._ours(), is_stopped, time.monotonic()).items():
                self._kill(rank, why)
        self._loop.after(PERIOD_S, self._ask_again)


def committed_iteration(agent: Agent | None) -> int | None:
    """Of what an agent says: the newest commit. None if there is none."""
    if agent is None or not agent.get("committed"):
        return None
    return int(agent["committed"]["iteration"])
