"""A training job of real processes on this machine: some "nodes", each with an arena and an agent of its own, one
chaos_trainer per rank, and perhaps agents that stand by. One thread uses a Job; every wait has a deadline and raises
Violation when it passes.

Trainers train in lockstep: each says "ready" before an iteration and waits for the word to go on.
"""

import json
import os
import queue
import shutil
import subprocess
import threading
import time
from collections import Counter
from pathlib import Path

from chaos_settings import (
    CUTS,
    DEADLINE_S,
    OPTIONS,
    PLAIN,
    RECOMPUTE,
    RESIZE,
    SPREAD,
    Violation,
    WrongBytes,
)
from processes import agent_pids, build_file, has_ended, kill_agents, kill_process, process_state
from recomputations import Recomputations
from surroundings import Surroundings
from trainers import SUPERSEDED, Trainer
from watch import Answer, Commits, Watch


class Job:
    def __init__(self, settings, root, name):
        self.settings = settings
        self.name = name
        self.logs = root / "logs"
        self.arena = Path("/dev/shm") / name
        self.digests = root / "digests"  # of the states that an optimizer made
        self.exchange = root / "exchange"  # where ranks of another number give each other what they have taken over
        self.world_size = settings.world_size
        self.recomputations = Recomputations()
        self.resized = 0  # restores by another number of ranks
        self.nodes = []
        self.standbys = []
        self.names_used = 0
        self.trainers = []
        self.frozen = []  # stopped trainers of earlier incarnations
        self.events = queue.Queue()
        self.incarnation = 0
        self.floor = -1  # newest iteration that anybody was told is committed
        self.nodes_of_floor = 0  # how many nodes had ranks when that was captured
        self.restored = -1  # the iteration that this incarnation began from
        self.commits = Commits()
        self.watch = Watch(self.health, lambda: [*self.nodes, *self.standbys], self.commits)
        for folder in (self.logs, self.arena, self.digests, self.exchange):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.surroundings = Surroundings(root, settings.network, settings.coordinator)
        self.network, self.store = self.surroundings.network, self.surroundings.store
        try:
            self.nodes = [self.new_node() for _ in range(settings.nodes)]
        except BaseException:
            self.close()
            raise

    def new_node(self):
        """A machine with nothing on it, of a name that there has not been yet."""
        node = f"n{self.names_used}"
        self.names_used += 1
        self.network.add(node)
        return node

    # ---- Processes ----

    def options(self, node):
        return OPTIONS | {
            "job": self.name,
            "node": node,
            "arena_dir": self.arena,
            "coordination": self.store.location,
            "interface": self.network.interface,
            "world_size": self.world_size,
            "slot_bytes": self.settings.slot_bytes,
            "ckptd": self._program("ckptd"),
            "log_file": self.logs / f"ckptd-{node}.log",
        } | self.settings.protection | ({"shard": "model"} if self.settings.mode == SPREAD else {})

    def place_of(self, rank):
        """The index of its node in `nodes`: ranks are spread over all of them, neighbours side by side."""
        return rank * len(self.nodes) // self.world_size

    def nodes_with_ranks(self):
        return [self.nodes[place] for place in sorted({self.place_of(rank) for rank in range(self.world_size)})]

    def start_incarnation(self, strikes=None):
        """Starts a trainer per rank. `strikes`: rank -> what the trainer does to itself (the arguments strike_... of
        chaos_trainer)."""
        self.incarnation += 1
        self.commits.begin()
        if self.settings.changes_size:
            self.start_agents()
        clean = {key: value for key, value in os.environ.items() if not key.startswith("CKPTENGINE_")}
        program = [self._program("chaos_trainer"), "lockstep=1"]
        program += [f"bytes={self.settings.megabytes << 20}", f"iteration_ms={self.settings.iteration_ms}"]
        if self.settings.mode != PLAIN:
            exchange = self.exchange / str(self.incarnation)
            exchange.mkdir()
            program += [f"digests={self.digests}", f"cut={CUTS[self.settings.mode]}", f"exchange={exchange}"]
        self.trainers = []
        for rank in range(self.world_size):
            node = self.nodes[self.place_of(rank)]
            options = self.options(node) | {"rank": rank}
            environment = clean | {f"CKPTENGINE_{key.upper()}": str(value) for key, value in options.items()}
            command = [*self.network.enter(node), *program, *(strikes or {}).get(rank, [])]
            with open(self.logs / f"rank{rank}.log", "ab") as log:
                process = subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                           stderr=log, start_new_session=True)
            trainer = Trainer(rank, node, process)
            self.trainers.append(trainer)
            threading.Thread(target=self._read, args=(trainer, self.incarnation), daemon=True).start()

    def start_agents(self):
        """On the nodes without ranks, which no trainer starts an agent on, and which may have pieces."""
        for node in sorted(set(self.nodes) - set(self.nodes_with_ranks())):
            if not agent_pids(self.name, node):
                self.run(node, "ckptd", "--detach", *(f"{key}={value}" for key, value in self.options(node).items()))

    def start_standbys(self):
        """As many as there shall be."""
        while len(self.standbys) < self.settings.standbys:
            node = self.new_node()
            options = [f"{key}={value}" for key, value in self.options(node).items()]
            self.run(node, "ckptd", "--detach", "--standby", *options)
            self.standbys.append(node)

    def run(self, node, program, *words):
        """A program on a node, from begin to end; what it says."""
        command = [*self.network.enter(node), self._program(program), *words]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=DEADLINE_S)
        if done.returncode != 0 and words[0] not in ("status", "health"):  # these tell their verdict with it
            raise Violation(f"{program} {words[0]} on {node} failed ({done.returncode}): {done.stderr.strip()}")
        return done.stdout

    def _program(self, name):
        return build_file(self.settings.build, name)

    def _read(self, trainer, incarnation):
        with open(self.logs / f"rank{trainer.rank}.log", "a") as log:
            for line in trainer.process.stdout:
                log.write(f"{time.monotonic():.3f} start {incarnation}: {line.decode()}")
                log.flush()
                if line.endswith(b"\n"):  # else it was cut off by a kill
                    event = json.loads(line)
                    if incarnation == self.incarnation:
                        self.commits.take(event["event"], event)
                    self.events.put((trainer, event))
        trainer.process.wait()
        self.events.put((trainer, {"event": "eof"}))

    # ---- Events ----

    def pause(self, seconds):
        """Lets time pass, and takes in what the trainers say meanwhile."""
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0:
            self._take_event(left)

    def wait_until(self, condition, what, timeout_s=DEADLINE_S):
        end = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > end:
                raise Violation(f"{what} did not come about within {timeout_s:.0f} s")
            self._take_event(0.05)

    def _take_event(self, timeout_s):
        try:
            trainer, event = self.events.get(timeout=timeout_s)
        except queue.Empty:
            return
        if event["event"] == "restored" and event["stored_world_size"] not in (0, self.world_size):
            self.resized += trainer in self.trainers and trainer.restored is None and trainer.rank == 0
        trainer.take(event)
        if trainer in self.trainers and trainer.committed > self.floor:
            self.floor = trainer.committed
            self.nodes_of_floor = len(self.nodes_with_ranks())
        if trainer.diverged:
            raise WrongBytes(f"rank {trainer.rank} made another state in iteration {trainer.diverged['iteration']} "
                             "than was made there before")
        if (trainer.ended or trainer.failed) and not trainer.doomed:
            trainer.doomed = True
            raise Violation(f"rank {trainer.rank} on {trainer.node} ended with status {trainer.process.poll()}: "
                            f"{trainer.failed or 'it did not say why'}")

    # ---- Training ----

    def release(self, orders=None):
        """Lets all ranks go into the next iteration; orders: rank -> something else than "go"."""
        self.wait_until(lambda: all(t.ready for t in self.trainers), "every rank ready for its next iteration")
        for trainer in self.trainers:
            trainer.tell((orders or {}).get(trainer.rank, "go"))

    def train(self, iterations):
        for _ in range(iterations):
            self.release()

    def train_for(self, seconds):
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            self.release()

    def train_until_commit(self):
        """Trains until every rank was told of the commit of something that it has not even tried yet."""
        before = max(trainer.attempted for trainer in self.trainers)
        end = time.monotonic() + DEADLINE_S
        while not all(trainer.committed > before for trainer in self.trainers):
            if time.monotonic() > end:
                raise Violation(f"no snapshot was committed within {DEADLINE_S:.0f} s of training")
            self.release()

    def train_until_commit_or_superseded(self):
        """Trains until every rank was told of such a commit, or that its incarnation has ended, which ends it.
        Whether it was
        the commit."""
        before = max(trainer.attempted for trainer in self.trainers)
        for trainer in self.trainers:
            trainer.doomed = True

        def is_settled():
            if not any(trainer.ended or trainer.failed for trainer in self.trainers):
                if all(trainer.ready for trainer in self.trainers):
                    self.release()
                return all(trainer.committed > before for trainer in self.trainers)
            for trainer in self.trainers:  # each has to take a snapshot to be told
                if trainer.ready:
                    trainer.tell("go")
            return all(trainer.ended for trainer in self.trainers)

        self.wait_until(is_settled, "a commit, or the end of an incarnation that cannot be led on")
        ended = [trainer for trainer in self.trainers if trainer.ended]
        for trainer in ended:
            if not trainer.failed or trainer.failed["status"] != SUPERSEDED:
                raise Violation(f"rank {trainer.rank} failed. It was not superseded: {trainer.failed}")
        for trainer in self.trainers:
            trainer.doomed = trainer.ended
        return not ended

    # ---- Restores ----

    def await_restored(self):
        def are_restored():
            return all(trainer.restored or trainer.ended or trainer.failed for trainer in self.trainers)

        self.wait_until(are_restored, "a restore on every rank")

    def await_protected(self):
        """Until what was restored is held by as many nodes as the placement asks for."""
        shards = [f"rank{rank}{suffix}" for rank in range(self.world_size) for suffix in ("", ".private")]

        def is_protected():
            agents = [agent for agent in map(self.status, self.nodes) if agent is not None]
            checkpoint = agents[0]["decision"]["checkpoint"] if agents else None
            held = Counter(segment["shard"] for agent in agents for segment in agent["segments"]
                           if any(slot["checkpoint"] == checkpoint for slot in segment["slots"]))
            return all(held[shard] >= self.settings.copies for shard in shards)

        self.wait_until(is_protected, "copies of what was restored")

    # ---- Ends ----

    def end_incarnation(self, rng):
        """Ends the trainers that are left: the launcher kills them, or they notice and close their engine."""
        self.commits.end()
        for trainer in self.trainers:
            if trainer in self.frozen:
                continue
            trainer.doomed = True
            if rng.random() < 0.7 or trainer.restored is None:
                trainer.kill()
            else:
                trainer.hang_up()
        left = [trainer for trainer in self.trainers if trainer not in self.frozen]
        self.wait_until(lambda: all(t.ended for t in left), "the end of all trainers")

    def kill_agent(self, node):
        pids = agent_pids(self.name, node)
        self.see_recomputations([node])
        for pid in pids:
            kill_process(pid)
        self.wait_until(lambda: all(has_ended(pid) for pid in pids), "the end of an agent")
        if node in self.standbys:  # whose agents nobody starts again
            self.standbys.remove(node)
            self.network.remove(node)
        return len(pids)

    def see_recomputations(self, nodes=None):
        """What agents have counted so far, before they die."""
        for node in (nodes or self.nodes) if self.settings.mode in (RECOMPUTE, RESIZE) else ():
            pids = agent_pids(self.name, node)
            if pids and process_state(pids[0]) not in ("T", None):
                self.recomputations.see(pids[0], self.status(node))

    def lose_node(self, node):
        """The whole machine is gone: processes and memory."""
        for trainer in self.trainers:
            if trainer.node == node:
                trainer.kill()
        while self.kill_agent(node) > 0:
            pass  # a trainer may have started another one just before it died
        shutil.rmtree(self.arena / self.name / node, ignore_errors=True)

    def replace_node(self, node, by=None):
        """A machine of another name takes its place: `by`, or one that is new."""
        self.nodes[self.nodes.index(node)] = by or self.new_node()

    def retire_node(self, node):
        """A machine that nobody needs any more is handed back."""
        self.lose_node(node)
        self.network.remove(node)

    # ---- What agents tell ----

    def status(self, node):
        """What the node's agent tells, or None where none answers."""
        words = ["--json", f"job={self.name}", f"arena_dir={self.arena}", f"node={node}"]
        done = subprocess.run([self._program("ckptctl"), "status", *words], check=False, capture_output=True,
                              timeout=DEADLINE_S)  # its exit status tells whether the job is protected
        agents = json.loads(done.stdout).get("agents")
        return agents[0] if agents else None

    def health(self, node):
        """What `ckptctl health` says there, or None where no agent answers. The thread that watches calls this."""
        words = ["--json", f"job={self.name}", f"arena_dir={self.arena}", f"node={node}"]
        done = subprocess.run([self._program("ckptctl"), "health", *words], check=False, capture_output=True,
                              text=True, timeout=DEADLINE_S)
        return Answer.of(done.returncode, done.stdout, done.stderr)

    def await_health(self, nodes, is_so, what):
        """Until each of the nodes, asked after this call, has answered so."""
        since = time.monotonic()

        def is_told():
            answers = [self.watch.answer(node, since) for node in nodes]
            return all(answer is not None and is_so(answer) for answer in answers)

        self.wait_until(is_told, what)

    def await_status(self, node, is_so, what):
        """Until the node's agent tells so."""
        seen = [None]

        def is_told():
            seen[0] = self.status(node)
            return seen[0] is not None and is_so(seen[0])

        self.wait_until(is_told, what)
        return seen[0]

    def current_leader(self):
        """The node whose agent leads the job; it may be one that stands by."""
        node = self.nodes[0]
        return self.await_status(node, lambda agent: agent["leader"] is not None, "a leader")["leader"]

    # ---- Placement ----

    def holders(self, index):
        """The nodes that hold the shards of node `index`: groups of `copies` neighbours, the remainder in the last."""
        count, copies = len(self.nodes), min(self.settings.copies, len(self.nodes))
        group = min(index // copies, count // copies - 1)
        first = group * copies
        size = count - first if group == count // copies - 1 else copies
        return [self.nodes[first + (index - first + i) % size] for i in range(copies)]

    def survivable(self, lost):
        return all(set(self.holders(i)) - set(lost) for i in range(len(self.nodes)))

    # ---- The end ----

    def wipe(self):
        """Gives up all that is stored, as the error of a lost state advises."""
        where = [f"job={self.name}", f"arena_dir={self.arena}", f"coordination={self.store.location}"]
        for command in ("stop", "gc"):
            self.run(self.nodes[0], "ckptctl", command, *where)
        for node in list(self.standbys):
            self.kill_agent(node)
        self.floor = self.restored = -1

    def close(self):
        """Ends and removes what this job started and made, whatever state it is in."""
        self.watch.stop()
        for trainer in self.trainers + self.frozen:
            trainer.kill()
        kill_agents(self.name)
        self.surroundings.close()
        shutil.rmtree(self.arena, ignore_errors=True)
