"""What the launcher of node 0 decides for all nodes: which ranks start and restart, and when the job ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from ._loop import Loop, Timer
from ._restarts import Failure, Restart, Restarts, Stop
from ._settings import Settings

Message = dict[str, Any]


class Peer(Protocol):
    """A launcher, this one or one on another node."""

    def send(self, message: Message) -> None: ...


@dataclass
class Member:
    """The launcher that serves a node."""

    peer: Peer
    name: str  # host and process, for people
    done: bool = False  # all ranks of the node have ended with status 0
    gone: bool = False  # the launcher has ended after that


class Job:
    """Takes the launchers' messages (`heard`, `lost`), and sends them orders:

    `start` (all ranks of a node), `restart` (one rank), `clear` (end all ranks of a node, so that all can restart),
    `told` (a sentence to print), `end`, `finished`, `refused`. `prepare(then)` makes a new store, and calls `then` with
    the environment variables by which ranks find it.
    """

    def __init__(
        self,
        loop: Loop,
        settings: Settings,
        prepare: Callable[[Callable[[dict[str, str]], None]], None],
        say: Callable[[str], None],
    ) -> None:
        self._loop, self._settings, self._prepare, self._say = loop, settings, prepare, say
        self._common: dict[str, str] = {}
        self._members: dict[int, Member] = {}
        self._standbys: list[Member] = []
        self._vacant: dict[int, Timer] = {}  # by node without a launcher: ends the job if none comes in time
        self._held: list[int] = []  # ranks that failed meanwhile, because others were missing
        self._restarts = Restarts(settings.max_restarts, settings.restart_window_s)
        self._counts: dict[int, int] = {}
        self._uncleared: set[int] | None = None  # nodes whose ranks are being ended, so that all ranks can restart
        self._restarts_of_all = 0
        self._start_not_before_s = 0.0
        self._preparing = False
        self._started = self._ended = False
        loop.after(settings.join_timeout_s, self._all_have_joined_or_end)

    # ---- what launchers tell ----

    def heard(self, peer: Peer, message: Message) -> None:
        what = message["say"]
        if what == "hello":
            self._admit(peer, message)
            return
        number = self._number_of(peer)
        if number is None or self._ended:
            return  # from a launcher whose node another launcher serves now
        if what == "failed":
            failure = Failure(**message["failure"])
            if failure.rank in self._ranks_of(number):
                self._judge(failure)
        elif what == "cleared" and self._uncleared is not None:
            self._uncleared.discard(number)
            self._start_all_if_cleared()
        elif what == "done":
            self._members[number].done = True
            if len(self._members) == self._settings.nodes and all(member.done for member in self._members.values()):
                self._ended = True
                self._tell_all({"do": "finished"})
        elif what == "ending":
            self.end(str(message["text"]), int(message["signal"]))

    def lost(self, peer: Peer, why: str) -> None:
        self._standbys = [standby for standby in self._standbys if standby.peer is not peer]
        number = self._number_of(peer)
        if number is None or self._ended:
            return
        member = self._members[number]
        if member.done:  # its node is not missed, unless all ranks restart
            member.gone = True
            return
        del self._members[number]
        if not self._started:
            self._say(f"the launcher of node {number} ({member.name}) {why}, and may join again")
            return
        text = f"node {number} is lost: its launcher ({member.name}) {why}"
        self._say(text)
        self._tell_all({"do": "told", "text": text}, but=0)
        self._held = [rank for rank in self._held if rank not in self._ranks_of(number)]
        for rank in self._ranks_of(number):
            decision = self._restarts.judge(Failure(rank, f"was lost with node {number}"), time.monotonic())
            if isinstance(decision, Stop):
                self.end(f"{text}. {decision.text}")
                return
            self._counts[rank] = self._counts.get(rank, 0) + 1
        wait_s = self._settings.replace_timeout_s
        self._vacant[number] = self._loop.after(wait_s, lambda: self.end(
            f"{text}, and no other has taken its place within {wait_s:g} s. Start one on a healthy machine with "
            f"--node-rank {number}, or start launchers with --standby beforehand"))  # fmt: skip
        if self._settings.restarts_all:
            self._clear_all(0.0)
        self._fill_vacant()

    def end(self, text: str, number: int = 0) -> None:
        """Ends the job on all nodes. `number` is the signal that ended it, 0 for a failure."""
        if not self._ended:
            self._ended = True
            self._tell_all({"do": "end", "text": text, "signal": number})

    # ---- nodes ----

    def _admit(self, peer: Peer, hello: Message) -> None:
        member = Member(peer, str(hello["name"]))
        ours = [self._settings.nodes, self._settings.ranks_per_node]
        number = hello["node_rank"]
        if self._ended:
            peer.send({"do": "refused", "text": "the job has ended"})
        elif hello["shape"] != ours:
            theirs = "--nnodes {} --nproc-per-node {}".format(*hello["shape"])
            text = f"it was given {theirs}, and node 0 --nnodes {ours[0]} --nproc-per-node {ours[1]}"
            peer.send({"do": "refused", "text": text})
        elif number is None:
            self._standbys.append(member)
            self._say(f"{member.name} stands by")
            self._fill_vacant()
        elif not isinstance(number, int) or not 0 <= number < self._settings.nodes:
            peer.send({"do": "refused", "text": f"there is no node {number}"})
        elif number in self._members:
            text = f"node {number} has a launcher already: {self._members[number].name}. Give each its own --node-rank"
            peer.send({"do": "refused", "text": text})
        else:
            self._take(number, member)

    def _take(self, number: int, member: Member) -> None:
        self._members[number] = member
        if self._started:
            self._vacant.pop(number).cancel()
            text = f"{member.name} is node {number} now"
            self._say(text)
            self._tell_all({"do": "told", "text": text}, but=0)
            if self._uncleared is None:
                self._start(number)
                self._start_held()
            else:
                self._start_all_if_cleared()
        elif len(self._members) == self._settings.nodes:
            self._started = True
            self._start_all()

    def _fill_vacant(self) -> None:
        while self._vacant and self._standbys:
            self._take(min(self._vacant), self._standbys.pop(0))

    def _start_all(self) -> None:
        def start(common: dict[str, str]) -> None:
            self._common, self._uncleared, self._preparing = common, None, False
            for each in list(self._members):
                self._start(each)

        self._preparing = True
        self._prepare(start)

    def _start(self, number: int) -> None:
        self._members[number].done = False
        counts = {str(rank): self._count_of(rank) for rank in self._ranks_of(number)}
        self._members[number].peer.send(
            {"do": "start", "node_rank": number, "common": self._common, "restarts": counts}
        )

    def _all_have_joined_or_end(self) -> None:
        if not self._started:
            missing = ", ".join(str(each) for each in range(self._settings.nodes) if each not in self._members)
            self.end(
                f"no launcher of node {missing} has joined within {self._settings.join_timeout_s:g} s. Start all "
                "launchers again, or allow more time with --join-timeout"
            )

    # ---- ranks ----

    def _judge(self, failure: Failure) -> None:
        if self._uncleared is not None:
            return  # a consequence of the failure for which all ranks end
        if self._vacant:  # it cannot go on without the ranks of the lost node: this says nothing of itself
            self._held.append(failure.rank)
            return
        decision = self._restarts.judge(failure, time.monotonic())
        if isinstance(decision, Restart) and self._settings.restarts_all:
            self._clear_all(decision.delay_s)
        elif isinstance(decision, Restart):
            self._restart(failure.rank, decision.delay_s)
        else:
            self.end(decision.text)

    def _restart(self, rank: int, delay_s: float) -> None:
        self._counts[rank] = self._counts.get(rank, 0) + 1
        peer = self._members[rank // self._settings.ranks_per_node].peer
        peer.send({"do": "restart", "rank": rank, "number": self._counts[rank], "delay_s": delay_s})

    def _start_held(self) -> None:
        held, self._held = ([], self._held) if self._vacant else (self._held, [])
        for rank in held:
            self._restart(rank, 0.0)

    def _clear_all(self, delay_s: float) -> None:
        if self._uncleared is None:
            self._restarts_of_all += 1
            self._start_not_before_s = time.monotonic() + delay_s
            self._uncleared = set(self._members)
            self._tell_all({"do": "clear"})
            for member in [member for member in self._members.values() if member.gone]:
                member.done = False
                self.lost(member.peer, "has ended")
        else:
            self._uncleared &= set(self._members)

    def _start_all_if_cleared(self) -> None:
        wait_s = self._start_not_before_s - time.monotonic()
        if self._ended or self._uncleared or len(self._members) < self._settings.nodes:
            return
        if wait_s > 0:
            self._loop.after(wait_s, self._start_all_if_cleared)
        elif not self._preparing:
            self._start_all()

    def _count_of(self, rank: int) -> int:
        return self._restarts_of_all if self._settings.restarts_all else self._counts.get(rank, 0)

    def _ranks_of(self, number: int) -> range:
        count = self._settings.ranks_per_node
        return range(number * count, (number + 1) * count)

    def _number_of(self, peer: Peer) -> int | None:
        return next((number for number, member in self._members.items() if member.peer is peer), None)

    def _tell_all(self, message: Message, but: int | None = None) -> None:
        for number, member in list(self._members.items()):
            if number != but:
                member.peer.send(message)
        for standby in list(self._standbys):
            standby.peer.send(message)
