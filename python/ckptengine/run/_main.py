"""The launcher of one node. Node 0's also decides for the others (_job.py) and hosts torch's store (_store.py)."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

from ._halts import Agent, HaltWatch, halt_of, halts_are_on, reached_iteration
from ._job import Job, Message
from ._link import Link, Listener, dial, listen, secret_of
from ._loop import Loop
from ._node import KILL_WAIT_S, Node
from ._output import Output
from ._restarts import Failure
from ._settings import Settings, parse
from ._store import Store

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
PASSED_ON = (signal.SIGUSR1, signal.SIGUSR2)
FLUSH_WAIT_S = 2.0
HALT_PERIOD_S = 0.2
HALT_BEGIN_WAIT_S = 2.0  # agents notice a death at once
HALT_WAIT_S = 75.0  # as long as before_update() waits in a halted job


class OwnPeer:
    """The Peer of node 0's own launcher: gives messages to it without a connection."""

    def __init__(self, launcher: Launcher) -> None:
        self._launcher = launcher

    def send(self, message: Message) -> None:
        self._launcher.loop.after(0, lambda: self._launcher.told(message))


class Launcher:
    """One ckptrun, with its node and, on node 0, the job. Made once in a process. run() returns the exit status."""

    def __init__(self, settings: Settings) -> None:
        self.loop = Loop()
        self._settings = settings
        self._output = Output()
        self._say = self._output.say
        self._node = Node(self.loop, self._output, settings, self._failed, lambda: self._report({"say": "done"}))
        self._halts = HaltWatch(self.loop, settings.halt_grace_s, self._processes, self._kill, self._say)
        self._status: int | None = None  # exit status; None until it is known how the job ends
        self._give_up_s: float | None = None
        self._flush_until_s: float | None = None
        self._job: Job | None = None
        self._own_peer = OwnPeer(self)
        self._store: Store | None = None
        self._links: list[Link] = []
        self._upstream: Link | None = None

    # ---- run ----

    def run(self) -> int:
        self._take_signals()
        try:
            self._host() if self._settings.hosts_job else self._join()
        except OSError as error:  # a port that is taken, a host that is unknown, a token that cannot be read
            self._end(1, text=f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror))
        while not self._is_over():
            self.loop.turn()
        self._kill_the_rest()
        self._output.close(FLUSH_WAIT_S)
        return self._status or 0

    def _is_over(self) -> bool:
        if self._status is None:
            return False
        if self._node.processes:
            return self._give_up_s is not None and time.monotonic() > self._give_up_s
        if self._flush_until_s is None:
            self._flush_until_s = time.monotonic() + FLUSH_WAIT_S
        return not any(link.unsent_bytes for link in self._all_links()) or time.monotonic() > self._flush_until_s

    def _kill_the_rest(self) -> None:
        left = self._node.processes
        if left:
            pids = ", ".join(str(process.pid) for process in left)
            self._say(f"processes {pids} have not ended {KILL_WAIT_S:g} s after SIGKILL: the kernel keeps them")
        for process in self._store.processes if self._store else []:
            process.signal(signal.SIGKILL)
        for link in self._all_links():
            link.close()

    def _all_links(self) -> list[Link]:
        return self._links + ([self._upstream] if self._upstream else [])

    # ---- signals ----

    def _take_signals(self) -> None:
        reader, self._signal_writer = socket.socketpair()
        reader.setblocking(False)
        self._signal_writer.setblocking(False)
        signal.set_wakeup_fd(self._signal_writer.fileno(), warn_on_full_buffer=False)
        for number in (*ENDING, *PASSED_ON):
            signal.signal(number, lambda *_: None)  # the loop reads which
        self._signal_reader = reader
        self.loop.watch(reader, self._signalled)

    def _signalled(self) -> None:
        with contextlib.suppress(BlockingIOError):
            for byte in self._signal_reader.recv(64):
                number = signal.Signals(byte)
                if number in PASSED_ON:
                    self._node.pass_on(number)
                elif self._status is not None:
                    self._node.end(number)  # at once, the second time
                else:
                    text = f"{number.name} was sent to the launcher on {os.uname().nodename}"
                    self._report({"say": "ending", "text": text, "signal": int(number)})
                    if self._job is None:
                        self._end(128 + number, number, text)

    # ---- the job ----

    def _host(self) -> None:
        settings = self._settings
        self._job = Job(self.loop, settings, self._make_store, self._say)
        if settings.port:
            listener = listen(settings.host, settings.port)
            Listener(self.loop, listener, secret_of(settings.run_id), settings.node_timeout_s, self._accept)
        self._report(self._hello())

    def _make_store(self, then: Callable[[dict[str, str]], None]) -> None:
        def make() -> None:
            settings = self._settings
            try:
                where = listen(settings.host, settings.master_port)
            except OSError as error:
                self._job_ends(str(error.strerror))
                return
            self._store = Store(self.loop, self._output, where, self._job_ends)
            then({"MASTER_ADDR": settings.master_addr, "MASTER_PORT": str(self._store.port)})

        if self._store is None:
            make()
        else:
            self._store.close(make)

    def _job_ends(self, text: str) -> None:
        if self._job is not None:
            self._job.end(text)

    def _accept(self, link: Link) -> None:
        self._links.append(link)

        def lost(why: str) -> None:
            self._links.remove(link)
            if self._job is not None:
                self._job.lost(link, why)

        link.on_lost = lost
        silent_s = self._settings.node_timeout_s
        link.farewell = {"do": "refused", "text": f"it was silent for {silent_s:g} s, so its node counts as lost"}
        link.on_message = lambda message: self._job.heard(link, message) if self._job else None

    def _join(self) -> None:
        settings = self._settings
        secret = secret_of(settings.run_id)
        until_s = time.monotonic() + settings.join_timeout_s
        where = f"{settings.host}:{settings.port}"

        def joined() -> None:
            self._report(self._hello())
            if settings.node_rank is None:
                self._node.stand_by()

        def connected(link: Link) -> None:
            self._upstream = link
            link.on_open = joined
            link.on_message = self.told
            link.on_lost = lambda why: self._end(
                1, text=f"the launcher of node 0 at {where} {why}. It hosted torch's store, so the ranks of this node "
                "end. Start all launchers again: checkpoints stay in the agents' memory")  # fmt: skip

        def failed(why: str) -> None:
            text = (
                f"no launcher of node 0 answers at {where} within {settings.join_timeout_s:g} s: {why}. Start it, or "
                "correct --rdzv-endpoint"
            )
            self._end(1, text=text)

        dial(self.loop, settings.host, settings.port, secret, settings.node_timeout_s, until_s, connected, failed)

    def _hello(self) -> Message:
        settings = self._settings
        name = f"host {os.uname().nodename}, process {os.getpid()}"
        shape = [settings.nodes, settings.ranks_per_node]
        return {"say": "hello", "node_rank": settings.node_rank, "shape": shape, "name": name}

    def _report(self, message: Message) -> None:
        if self._job is not None:
            self._job.heard(self._own_peer, message)
        elif self._upstream is not None:
            self._upstream.send(message)

    def told(self, message: dict[str, Any]) -> None:
        """Does what the job asks of this launcher (see Job)."""
        what = message["do"]
        if what == "told":
            self._say(str(message["text"]))
        elif what == "refused":
            self._end(1, text=f"node 0 refuses this launcher: {message['text']}")
        elif what == "end":
            number = int(message["signal"])
            self._end(128 + number if number else 1, signal.Signals(number or signal.SIGTERM), str(message["text"]))
        elif what == "finished":
            self._end(0)
        elif self._status is not None:
            pass  # it ends
        elif what == "start":
            restarts = {int(rank): int(count) for rank, count in message["restarts"].items()}
            common = {name: str(message["common"][name]) for name in ("MASTER_ADDR", "MASTER_PORT")}
            self._node.start(int(message["node_rank"]), common, restarts)
        elif what == "clear":
            self._when_captured(lambda: self._node.clear(lambda: self._report({"say": "cleared"})))
        elif what == "restart":
            self._node.restart(int(message["rank"]), int(message["number"]), float(message["delay_s"]))

    def _end(self, status: int, number: signal.Signals = signal.SIGTERM, text: str = "") -> None:
        if self._status is not None:
            return
        self._status = status
        self._give_up_s = time.monotonic() + self._settings.shutdown_timeout_s + KILL_WAIT_S
        if text:
            self._say(f"the job ends: {text}")
        self._node.end(number)

    # ---- ranks ----

    def _processes(self) -> dict[int, int]:
        ranks = self._node.ranks.values()
        return {rank.number: rank.process.pid for rank in ranks if rank.process is not None}

    def _kill(self, rank: int, why: str) -> None:
        self._say(f"rank {rank} holds the halted job up: {why}. It is killed, and starts anew")
        self._node.kill(rank)

    def _when_captured(self, then: Callable[[], None]) -> None:
        """Waits until the halt that a failure causes is over, and then calls `then()`. Processes must live until then,
        because the halt captures their state."""
        begun_s = time.monotonic()

        def look(agents: list[Agent]) -> None:
            halt, waited_s = halt_of(agents), time.monotonic() - begun_s
            if not agents or waited_s > (HALT_WAIT_S if halt else HALT_BEGIN_WAIT_S) or (halt and halt["over"]):
                then()
            else:
                self.loop.after(HALT_PERIOD_S, lambda: self._halts.ask(look))

        if halts_are_on():
            self._halts.ask(look)
        else:
            then()

    def _failed(self, failure: Failure) -> None:
        self._say(f"rank {failure.rank} {failure.how} ({failure.where})")
        if failure.has_place:  # the job's progress shows whether the failure repeats
            self._halts.ask(lambda agents: self._tell_failure(failure, reached_iteration(agents)))
        else:
            self._tell_failure(failure, None)

    def _tell_failure(self, failure: Failure, iteration: int | None) -> None:
        self._report({"say": "failed", "failure": failure.to_message() | {"iteration": iteration}})


def main(arguments: list[str] | None = None) -> int:
    """Runs `ckptrun` until the job has ended. For the main thread only.

    Args:
        arguments: The command line without the program's name. Default: that of this process.

    Returns:
        The exit status.
    """
    return Launcher(parse(arguments)).run()
