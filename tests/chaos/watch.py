"""Watches `ckptctl health` during a campaign, and judges it by what the trainers alone say of commits.

A moment is silent when commits have stopped for longer than allowed and health still calls the job protected.
"""

import json
import statistics
import threading
import time
from collections import deque
from dataclasses import dataclass

SLACK_S = 2.0  # from the moment when commits are overdue until health must say so
LEAST_BOUND_S = 12.0  # health may allow itself so much at any pace, and never more than the bound
GAPS_IN_BOUND = 20  # gaps between commits that it may allow itself at a slow pace
FALSE_ALARMS_MAX = 20  # answers in a row that say "not protected" while commits go on
PROTECTED, DEGRADED, NOT_PROTECTED = "protected", "degraded", "not protected"
EXIT_STATUS = {PROTECTED: 0, DEGRADED: 1, NOT_PROTECTED: 2}


@dataclass
class Answer:
    """What health said on one node."""

    state: str
    allowed_s: float | None
    facts: dict

    @classmethod
    def of(cls, exit_status, said, complaint):
        """What the program printed. None where it says that nobody answered."""
        try:
            facts = json.loads(said)
            state, allowed_ms = facts["state"], facts["allowed_ms"]
        except (ValueError, KeyError):
            raise ValueError(f"exit status {exit_status}, '{said.strip()}', '{complaint.strip()}'") from None
        if EXIT_STATUS.get(state) != exit_status:
            raise ValueError(f"exit status {exit_status} with {facts}")
        return cls(state, None if allowed_ms is None else allowed_ms / 1000, facts)


class Commits:
    """When the newest commit was, by what the trainers of the present incarnation tell. Any thread may call this."""

    def __init__(self, clock=time.monotonic):
        self.clock = clock
        self._lock = threading.Lock()
        self._gaps = deque(maxlen=32)
        self._newest = -1
        self._since = None

    def begin(self):
        """An incarnation starts. Nothing is at risk before its first snapshot."""
        with self._lock:
            self._newest, self._since = -1, None

    def end(self):
        """Its trainers are about to be ended, and nothing more can be committed."""
        with self._lock:
            self._since = None
            self._newest = float("inf")

    def take(self, kind, event):
        """What a trainer of this incarnation has said."""
        now = self.clock()
        with self._lock:
            if self._newest == float("inf"):
                return
            if kind == "snapshot" and self._since is None:
                self._since = now
            elif kind == "committed" and event["iteration"] > self._newest:
                if self._since is not None and self._newest >= 0:
                    self._gaps.append(now - self._since)
                self._newest, self._since = event["iteration"], now

    def newest(self):
        """The newest commit, and when it was or, before the first one, since when there is something to commit. None
        while there is nothing to commit."""
        with self._lock:
            return None if self._since is None else (self._newest, self._since)

    def bound_s(self):
        """What health may allow at most, by the pace that the trainers saw."""
        with self._lock:
            usual = statistics.median(self._gaps) if self._gaps else 0.0
        return max(LEAST_BOUND_S, GAPS_IN_BOUND * usual)


class Watch:
    """Asks for health on one node after the other, from a thread of its own. `ask(node)` returns an Answer, or None
    where no agent answers; `nodes()` are those to be asked."""

    def __init__(self, ask, nodes, commits, period_s=1.0):
        self.ask = ask
        self._nodes = nodes
        self._commits = commits
        self._period_s = period_s
        self._lock = threading.Lock()
        self._latest = {}
        self._false_alarms = {}
        self._told = []  # what is wrong with the answers, for the thread that runs the campaign
        self.silent = 0
        self.asked = 0
        self.asked_when_stopped = 0
        self.allowed_s = 5.0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def start(self):
        """Does nothing where it runs."""
        if not self._thread.is_alive():
            self._thread.start()

    def stop(self):
        self._ending.set()
        if self._thread.is_alive():
            self._thread.join()

    def faults(self):
        """All that was wrong with the answers so far, one sentence each."""
        with self._lock:
            return list(self._told)

    def answer(self, node, since):
        """What the node said when it was last asked, if that was later than `since`; else None."""
        with self._lock:
            asked_at, answer = self._latest.get(node, (since, None))
            return answer if asked_at > since else None

    def line(self):
        return (f"health was asked {self.asked} times, {self.asked_when_stopped} of them while commits had stopped "
                "for longer than allowed")

    def _run(self):
        while not self._ending.is_set():
            begun = time.monotonic()
            for node in self._nodes():
                if self._ending.is_set():
                    return
                self.look(node)
            self._ending.wait(max(0.0, self._period_s - (time.monotonic() - begun)))

    def look(self, node):
        """Asks one node and judges what it says. The thread does this over and over."""
        before, asked_at = self._commits.newest(), self._commits.clock()
        try:
            answer = self.ask(node)
        except Exception as error:  # the thread goes on; the campaign ends because of it
            with self._lock:
                self._told.append(f"ckptctl health on {node}: {error}")
            return
        with self._lock:
            self.asked += 1
            self._latest[node] = (asked_at, answer)
            if answer is not None and before is not None:
                self._judge(node, answer, before, self._commits.newest(), asked_at)

    def _judge(self, node, answer, before, after, asked_at):
        if answer.allowed_s is not None:
            self.allowed_s = min(answer.allowed_s, self._commits.bound_s())
        stopped_s = asked_at - before[1]
        if before != after:
            self._false_alarms[node] = 0 if answer.state != NOT_PROTECTED else self._false_alarms.get(node, 0) + 1
            if self._false_alarms[node] == FALSE_ALARMS_MAX:
                self._told.append(f"health on {node} said {FALSE_ALARMS_MAX} times in a row that the job is not "
                                  f"protected, while commits went on: {answer.facts}")
        elif stopped_s > self.allowed_s + SLACK_S:
            self.asked_when_stopped += 1
            if answer.state == PROTECTED:
                self.silent += 1
                self._told.append(f"iteration {before[0]} was the last commit {stopped_s:.1f} s ago, "
                                  f"{self.allowed_s:.1f} s are allowed, and health on {node} said {answer.facts}")
