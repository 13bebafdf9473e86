"""What can go wrong, one function per kind. Each brings it about at a random moment of a training job and returns what
must be true of the restore that follows. A fault leaves the trainers it does not strike alive; the caller ends them.
Here are those of trainers, agents and single nodes; the other *_faults.py have more.
"""

import math
import signal
from dataclasses import dataclass, field

from chaos_settings import MODES, OPTIONS, PLAIN, RECOMPUTE, LostWithinTolerance, Violation, WrongBytes
from processes import agent_pids, kill_process, process_state
from trainers import SUPERSEDED

KINDS = {}


@dataclass
class Aftermath:
    kills: int = 0
    what: str = ""  # who was struck
    lost: bool = False  # beyond the tolerance: restore must say so
    from_peer: set = field(default_factory=set)  # ranks whose state must come from another node's memory
    from_local: set = field(default_factory=set)  # ranks that must find it in their own node's
    local_until: float = math.inf  # where a later iteration is restored, they may get it from another's
    after_start: object = None  # called once the next incarnation's trainers run
    after_restore: object = None  # called once they have restored


def kind(loses_nodes=0, needs_commit=False, fits=lambda settings: True, modes=(PLAIN, RECOMPUTE)):
    """loses_nodes: how many nodes' memory goes. needs_commit: it may only strike after a commit of the present
    incarnation. modes: of jobs, see Settings.mode."""

    def add(function):
        function.loses_nodes = loses_nodes
        function.needs_commit = needs_commit
        function.fits = lambda settings: settings.mode in modes and fits(settings)
        KINDS[function.__name__] = function
        return function

    return add


def random_moment(job, rng):
    """Somewhere in an iteration: its computation, update, capture, replication or commit."""
    job.release()
    job.pause(rng.uniform(0, 3 * job.settings.iteration_ms / 1000))


def longer_than_lease_s(rng):
    """Others take the node for dead, and the leader's place is taken."""
    longest_ms = max(OPTIONS["lease_ms"], OPTIONS["node_timeout_ms"])
    return rng.uniform(1.2, 2.5) * longest_ms / 1000


def has_spare_copies(settings):
    return settings.copies > 1 and settings.nodes > 1


def rotate(job, rng):
    """The ranks come back on other nodes, every one of them."""
    by = rng.randrange(1, len(job.nodes))
    job.nodes = job.nodes[by:] + job.nodes[:by]


def resize(job, rng):
    """The next start has another number of ranks, up to twice as many as nodes, if that may change."""
    if job.settings.changes_size:
        job.world_size = rng.choice([size for size in range(1, 2 * len(job.nodes) + 1) if size != job.world_size])


def capture_micros(job, rng):
    """Somewhere in a capture, as long as a copy at some GB/s takes."""
    return rng.randrange(0, 400 * job.settings.megabytes)


# ---- Trainers ----


@kind(modes=MODES)
def trainer_killed(job, rng):
    victim = rng.choice(job.trainers)
    random_moment(job, rng)
    victim.kill()
    return Aftermath(1, f"rank {victim.rank}")


@kind(modes=MODES)
def trainer_killed_in_capture(job, rng):
    victim = strike_in_capture(job, rng, "die")
    return Aftermath(1, f"rank {victim.rank}")


def strike_in_capture(job, rng, order):
    victim = rng.choice(job.trainers)
    victim.doomed = True
    job.release({victim.rank: f"{order} {capture_micros(job, rng)}"})
    end_after = 200  # iterations: the order waits for a snapshot that is not skipped
    while victim.struck is None and end_after > 0:
        job.pause(0.005)
        if all(trainer.ready for trainer in job.trainers):
            job.release()
            end_after -= 1
    if victim.struck is None:
        raise Violation(f"rank {victim.rank} took no snapshot in 200 iterations")
    return victim


@kind()
def trainer_frozen(job, rng):
    """Stopped in a capture and replaced on its node, where the replacement must find it dead before it gets a slot. No
    memory was lost with it, so nobody needs that of another node."""
    victim = freeze(job, rng)

    def is_proven_dead():
        job.wait_until(lambda: victim.ended, f"the proven death of frozen rank {victim.rank}")
        job.frozen.remove(victim)

    everybody = {trainer.rank for trainer in job.trainers}
    return Aftermath(1, f"rank {victim.rank}", from_local=everybody, after_restore=is_proven_dead)


@kind(fits=lambda settings: settings.nodes > 1)
def trainer_frozen_and_moved(job, rng):
    """Stopped in a capture while its rank comes back elsewhere, then woken: it must do no harm, and be told."""
    victim = freeze(job, rng)
    rotate(job, rng)

    def wake():
        job.pause(rng.uniform(0, 0.3))
        victim.process.send_signal(signal.SIGCONT)

    def was_told():
        job.wait_until(lambda: victim.woke is not None and victim.ended, f"the end of woken rank {victim.rank}")
        job.frozen.remove(victim)
        if victim.woke["status"] != SUPERSEDED:
            raise Violation(f"rank {victim.rank} woke in a later incarnation and was not told: {victim.woke}")

    early = rng.random() < 0.5

    def wake_now():
        wake()
        was_told()

    return Aftermath(1, f"rank {victim.rank}", after_start=wake if early else None,
                     after_restore=was_told if early else wake_now)


def freeze(job, rng):
    victim = strike_in_capture(job, rng, "freeze")
    job.wait_until(lambda: process_state(victim.process.pid) == "T", "a stopped trainer")
    job.frozen.append(victim)
    return victim


# ---- Agents ----


@kind()
def agent_killed(job, rng):
    node = rng.choice(job.nodes)
    random_moment(job, rng)
    return Aftermath(job.kill_agent(node), node)


@kind()
def agent_killed_in_training(job, rng):
    """The trainers go on: a new agent takes over the arena, and snapshots are committed again."""
    node = rng.choice(job.nodes)
    random_moment(job, rng)
    kills = job.kill_agent(node)
    job.train_until_commit()
    return Aftermath(kills, node)


@kind(fits=lambda settings: settings.nodes > 1)
def agent_killed_in_replication(job, rng):
    """Just when a snapshot is captured everywhere, while its copies are on their way."""
    node = rng.choice(job.nodes)
    job.train_until_commit()
    for _ in range(200):
        job.release()
        job.wait_until(lambda: all(t.ready for t in job.trainers), "every rank ready for its next iteration")
        captured = min(trainer.captured for trainer in job.trainers)
        if captured > max(trainer.committed for trainer in job.trainers):
            return Aftermath(job.kill_agent(node), f"{node}, iteration {captured}")
    raise Violation("no snapshot was captured on all ranks in 200 iterations")


@kind(modes=MODES)
def all_agents_killed(job, rng):
    random_moment(job, rng)
    return Aftermath(sum(job.kill_agent(node) for node in job.nodes), "all nodes")


@kind(modes=MODES)
def leader_killed(job, rng):
    """The leader dies; another one leads it on."""
    node = job.current_leader()
    random_moment(job, rng)
    kills = job.kill_agent(node)
    job.train_until_commit()
    return Aftermath(kills, node)


@kind()
def agent_frozen(job, rng):
    return freeze_agent(job, rng, rng.choice(job.nodes))


@kind()
def leader_frozen(job, rng):
    return freeze_agent(job, rng, job.current_leader())


def freeze_agent(job, rng, node):
    """Stopped while training goes on, and woken after its lease: it must do no harm, and commits go on."""
    random_moment(job, rng)
    pids = agent_pids(job.name, node)
    for pid in pids:
        kill_process(pid, signal.SIGSTOP)
    job.train_for(longer_than_lease_s(rng))
    for pid in pids:
        kill_process(pid, signal.SIGCONT)
    job.train_until_commit()
    return Aftermath(len(pids), node)


# ---- Nodes ----


@kind(loses_nodes=1, fits=has_spare_copies)
def node_lost(job, rng):
    node = rng.choice(job.nodes)
    random_moment(job, rng)
    job.lose_node(node)
    return Aftermath(1, node, from_peer=ranks_on(job, node))


@kind(loses_nodes=1, fits=has_spare_copies)
def node_replaced(job, rng):
    """Lost, and another machine under another name takes its place."""
    node = rng.choice(job.nodes)
    random_moment(job, rng)
    job.retire_node(node)
    from_peer = ranks_on(job, node)
    job.replace_node(node)
    return Aftermath(1, node, from_peer=from_peer)


@kind(loses_nodes=2, needs_commit=True, fits=lambda settings: 1 < settings.copies <= settings.nodes / 2)
def two_nodes_lost(job, rng):
    """At once, and of different groups."""
    pairs = [(a, b) for a in job.nodes for b in job.nodes if a < b and job.survivable([a, b])]
    pair = rng.choice(pairs)
    random_moment(job, rng)
    for node in pair:
        job.lose_node(node)
    return Aftermath(2, " and ".join(pair), from_peer=set().union(*(ranks_on(job, node) for node in pair)))


@kind(loses_nodes=2, needs_commit=True, fits=lambda settings: settings.nodes > settings.copies)
def group_lost(job, rng):
    """All holders of one node's state at once: beyond the tolerance."""
    nodes = job.holders(rng.randrange(len(job.nodes)))
    random_moment(job, rng)
    for node in nodes:
        job.lose_node(node)
    return Aftermath(len(nodes), " and ".join(nodes), lost=True)


def ranks_on(job, node):
    return {trainer.rank for trainer in job.trainers if trainer.node == node}


# ---- Restarts ----


@kind(fits=lambda settings: settings.nodes > 1)
def ranks_permuted(job, rng):
    victim = rng.choice(job.trainers)
    random_moment(job, rng)
    victim.kill()
    rng.shuffle(job.nodes)
    return Aftermath(1, f"rank {victim.rank}; nodes now {' '.join(job.nodes)}")


@kind(modes=MODES)
def restarted(job, rng):
    """Nothing failed; the job is started again."""
    random_moment(job, rng)
    return Aftermath(0, "all ranks")


@kind(modes=MODES)
def trainer_killed_in_restore(job, rng):
    def strike(victim):
        victim.kill()
        return f"rank {victim.rank}"

    return strike_in_restore(job, rng, strike)


@kind(modes=MODES)
def agent_killed_in_restore(job, rng):
    def strike(victim):
        job.kill_agent(victim.node)
        return victim.node

    return strike_in_restore(job, rng, strike)


@kind(modes=MODES)
def leader_killed_in_restore(job, rng):
    def strike(_):
        node = job.current_leader()
        job.kill_agent(node)
        return node

    return strike_in_restore(job, rng, strike)


@kind(loses_nodes=1, fits=has_spare_copies)
def node_lost_in_restore(job, rng):
    """Perhaps just when something was chosen that is not protected as well as the last commit."""
    def strike(victim):
        job.lose_node(victim.node)
        return victim.node

    return strike_in_restore(job, rng, strike)


def strike_in_restore(job, rng, strike):
    """If the number of ranks changes, mostly in a restore with another one."""
    job.end_incarnation(rng)
    resize(job, rng)
    job.start_incarnation()
    for trainer in job.trainers:
        trainer.doomed = True
    victim = rng.choice(job.trainers)
    job.pause(rng.uniform(0, 0.4))
    what = strike(victim)
    job.pause(rng.uniform(0, 0.2))
    check_what_is_restored(job)
    return Aftermath(1, what)


def check_what_is_restored(job):
    """By the ranks that have got so far."""
    for trainer in job.trainers:
        if trainer.restored and trainer.restored["wrong"]:
            raise WrongBytes(f"rank {trainer.rank} restored {trainer.restored}")
        if trainer.restored and trainer.restored["iteration"] < job.floor:
            raise LostWithinTolerance(f"{job.floor} was committed, rank {trainer.rank} restored {trainer.restored}")
