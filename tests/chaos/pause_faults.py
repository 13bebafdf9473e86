"""Processes that are stopped for a while and go on, as in a container that is paused or a machine that is suspended:
one trainer, all agents, or the one that leads, in training or while a restore is decided.
"""

import signal

from faults import Aftermath, has_spare_copies, kind, random_moment, ranks_on
from processes import agent_pids, kill_process
from watch import NOT_PROTECTED, SLACK_S

LONGEST_IN_RESTORE_S = 9  # several times all timeouts of agents, and less than a restore may take


@kind()
def trainer_stopped(job, rng):
    """Nothing can be committed, and every node says so. Woken, the trainer goes on, and so do commits."""
    victim = rng.choice(job.trainers)
    random_moment(job, rng)
    victim.process.send_signal(signal.SIGSTOP)
    job.pause(job.watch.allowed_s + SLACK_S + rng.uniform(0, 2))

    def names_it(answer):
        return answer.state == NOT_PROTECTED and (answer.facts["held_up_by"] or {}).get("rank") == victim.rank

    job.await_health(job.nodes, names_it, f"word on every node that rank {victim.rank} holds up commits")
    victim.process.send_signal(signal.SIGCONT)
    job.train_until_commit()
    return Aftermath(0, f"rank {victim.rank}")


@kind()
def all_agents_stopped(job, rng):
    """Trainers go on meanwhile. Afterwards commits go on, and nothing is decided because nobody was heard."""
    seconds = rng.uniform(1, LONGEST_IN_RESTORE_S)
    random_moment(job, rng)
    pids = stop(job, [*job.nodes, *job.standbys])
    job.train_for(seconds)
    wake(pids)
    job.train_until_commit()
    return Aftermath(0, f"{seconds:.1f} s")


@kind()
def all_agents_stopped_in_restore(job, rng):
    random_moment(job, rng)
    return stopped_in_restore(job, rng, everybody(job), late=rng.choice(job.trainers).rank)


@kind()
def leader_stopped_in_restore(job, rng):
    random_moment(job, rng)
    return stopped_in_restore(job, rng, leader(job), late=rng.choice(job.trainers).rank)


@kind(loses_nodes=1, fits=has_spare_copies)
def node_lost_and_all_agents_stopped_in_restore(job, rng):
    """While what the node had can come from another one alone."""
    return stopped_after_loss(job, rng, everybody(job))


@kind(loses_nodes=1, fits=has_spare_copies)
def node_lost_and_leader_stopped_in_restore(job, rng):
    return stopped_after_loss(job, rng, leader(job))


def everybody(job):
    return lambda: [*job.nodes, *job.standbys]


def leader(job):
    return lambda: [job.current_leader()]


def stopped_after_loss(job, rng, whom):
    """The node comes back empty and one of its ranks late, or another node takes its place and all wait for the lost
    one in vain."""
    node = rng.choice(job.nodes)
    ranks = ranks_on(job, node)
    random_moment(job, rng)
    if rng.random() < 0.5:
        job.lose_node(node)
        late = min(ranks)
    else:
        job.retire_node(node)
        job.replace_node(node)
        late = None
    aftermath = stopped_in_restore(job, rng, whom, late)
    aftermath.kills, aftermath.from_peer = 1, ranks
    aftermath.what = f"{node} lost{' and replaced' if late is None else ''}, {aftermath.what}"
    return aftermath


def stopped_in_restore(job, rng, whom, late=None):
    """`whom()`: the nodes whose agents are stopped in the next start. `late`: a rank that is missing until some
    moment of that pause, so that nothing can be decided before."""
    seconds = rng.uniform(0.5, LONGEST_IN_RESTORE_S)

    def pause():
        trainer = None if late is None else job.trainers[late]
        if trainer:
            trainer.process.send_signal(signal.SIGSTOP)
        job.pause(rng.uniform(0.2, 1.5))
        pids = stop(job, whom())
        before_late = rng.uniform(0, seconds)
        job.pause(before_late)
        if trainer:
            trainer.process.send_signal(signal.SIGCONT)
        job.pause(seconds - before_late)
        wake(pids)

    return Aftermath(0, f"{seconds:.1f} s", after_start=pause)


def stop(job, nodes):
    """Their agents, all at one moment; their numbers."""
    pids = [pid for node in nodes for pid in agent_pids(job.name, node)]
    for pid in pids:
        kill_process(pid, signal.SIGSTOP)
    return pids


def wake(pids):
    for pid in pids:
        kill_process(pid, signal.SIGCONT)
