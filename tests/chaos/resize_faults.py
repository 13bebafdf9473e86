"""Restarts with another number of ranks, which take over shards (docs/elastic.md) or fetch the parts of a shard that
all ranks have (docs/mechanisms.md): processes and nodes are struck at each stage of the restore, and before the
first commit of the new ranks.
"""

import signal

from chaos_settings import RESIZE, SPREAD, Violation
from faults import Aftermath, check_what_is_restored, kind, longer_than_lease_s, random_moment, resize
from pause_faults import stop, wake

BOTH = (RESIZE, SPREAD)
STAGES = {RESIZE: ("decide", "load", "exchange", "restore", "trained"), SPREAD: ("decide", "restore", "trained")}
LONGEST_US = 30_000  # after a stage has begun
WOKEN_WITHIN_S = 6  # less than a restore may take


def has_spare_copies(settings):
    return settings.copies > 1 and settings.nodes > 1


def of(job):
    return f"{job.world_size} ranks"


@kind(modes=BOTH)
def resized(job, rng):
    before = of(job)
    random_moment(job, rng)
    resize(job, rng)
    return Aftermath(0, f"{before}, then {of(job)}")


@kind(modes=BOTH)
def resized_again_and_again(job, rng):
    """Perhaps before the first commit of the ranks in between."""
    sizes = [of(job)]
    random_moment(job, rng)
    for _ in range(rng.randrange(2, 4)):
        job.end_incarnation(rng)
        resize(job, rng)
        sizes.append(of(job))
        job.start_incarnation()
        job.await_restored()
        check_what_is_restored(job)
        job.train(rng.randrange(0, 3))
    resize(job, rng)
    return Aftermath(0, ", then ".join([*sizes, of(job)]))


def struck_in_stage(job, rng, how):
    """A start of another number of ranks than captured the checkpoint, one or two of which strike themselves in a stage
    of their restore. The ranks, and the stage."""
    random_moment(job, rng)
    job.end_incarnation(rng)
    resize(job, rng)
    stage = rng.choice(STAGES[job.settings.mode])
    ranks = rng.sample(range(job.world_size), min(job.world_size, rng.choice([1, 1, 2])))
    strikes = {
        rank: [f"strike_in={stage}", f"strike_with={how}", f"strike_us={rng.randrange(LONGEST_US)}"] for rank in ranks
    }
    job.start_incarnation(strikes)
    for trainer in job.trainers:
        trainer.doomed = True
    return ranks, stage


@kind(needs_commit=True, modes=BOTH)
def trainer_killed_in_stage(job, rng):
    ranks, stage = struck_in_stage(job, rng, "die")
    job.wait_until(lambda: all(job.trainers[rank].ended for rank in ranks), f"the end of ranks {ranks} in {stage}")
    job.pause(rng.uniform(0, 0.3))
    check_what_is_restored(job)
    what = f"ranks {ranks} of {of(job)} in {stage}"
    if rng.random() < 0.5:
        resize(job, rng)
    return Aftermath(len(ranks), what)


@kind(needs_commit=True, modes=BOTH)
def trainer_stopped_in_stage(job, rng):
    """The others wait for it, and all restore the same."""
    ranks, stage = struck_in_stage(job, rng, "freeze")
    seconds = rng.uniform(0, WOKEN_WITHIN_S)
    job.pause(seconds)
    for rank in ranks:
        job.trainers[rank].process.send_signal(signal.SIGCONT)
    end = f"a restore on every rank, after ranks {ranks} were stopped in {stage}"

    def is_over():
        for rank in ranks:
            if not job.trainers[rank].ended:
                job.trainers[rank].process.send_signal(signal.SIGCONT)
        return all(trainer.restored or trainer.failed or trainer.ended for trainer in job.trainers)

    job.wait_until(is_over, end)
    check_what_is_restored(job)
    if failed := [trainer for trainer in job.trainers if not trainer.restored]:
        raise Violation(f"rank {failed[0].rank} has not restored after ranks {ranks} stopped for {seconds:.1f} s in "
                        f"{stage}: {failed[0].failed}")
    for _ in range(20):  # one that stopped itself after its restore
        job.pause(0.01)
        is_over()
    what = f"ranks {ranks} of {of(job)} in {stage}, {seconds:.1f} s"
    if rng.random() < 0.5:
        resize(job, rng)
    return Aftermath(0, what)


def stop_for(job, nodes, seconds):
    pids = stop(job, nodes)
    job.pause(seconds)
    wake(pids)


@kind(modes=BOTH)
def agent_stopped_in_resize(job, rng):
    """While ranks take over shards, or fetch parts. All restore nevertheless."""
    random_moment(job, rng)
    job.end_incarnation(rng)
    resize(job, rng)
    job.start_incarnation()
    job.pause(rng.uniform(0, 0.5))
    seconds, node = rng.choice([rng.uniform(0, 0.3), longer_than_lease_s(rng)]), rng.choice(job.nodes)
    stop_for(job, [node], seconds)
    job.await_restored()
    check_what_is_restored(job)
    what = f"{node} for {seconds:.2f} s, {of(job)}"
    resize(job, rng)
    return Aftermath(0, f"{what}, then {of(job)}")


@kind(modes=BOTH)
def agents_killed_before_first_commit(job, rng):
    """Of the new ranks: what they have restored is still that of the former ones. Training goes on, and commits."""
    random_moment(job, rng)
    job.end_incarnation(rng)
    resize(job, rng)
    job.start_incarnation()
    job.await_restored()
    check_what_is_restored(job)
    nodes = rng.sample(job.nodes_with_ranks(), rng.randrange(1, len(job.nodes_with_ranks()) + 1))
    for _ in range(rng.randrange(0, 3)):
        job.release()
    kills = sum(job.kill_agent(node) for node in nodes)
    if rng.random() < 0.5:
        job.train_until_commit()
    what = f"{' '.join(nodes)}, {of(job)}"
    resize(job, rng)
    return Aftermath(kills, what)


# ---- With a node's memory ----


def lose_one(job, rng, nodes):
    node = rng.choice(nodes)
    job.lose_node(node)
    return node


def may_lose_one(job):
    """Its state was captured by ranks of several nodes, and lies on more than one."""
    return job.nodes_of_floor > 1


@kind(loses_nodes=1, needs_commit=True, fits=has_spare_copies, modes=BOTH)
def node_lost_and_resized(job, rng):
    """The next ranks fetch from the nodes that are left, several of them from one."""
    random_moment(job, rng)
    if not may_lose_one(job):
        return resized(job, rng)
    node = lose_one(job, rng, job.nodes)
    before = of(job)
    resize(job, rng)
    return Aftermath(1, f"{node}, {before}, then {of(job)}")


@kind(loses_nodes=1, needs_commit=True, fits=has_spare_copies, modes=BOTH)
def node_lost_in_resize(job, rng):
    random_moment(job, rng)
    can_lose = may_lose_one(job)
    job.end_incarnation(rng)
    resize(job, rng)
    job.start_incarnation()
    for trainer in job.trainers:
        trainer.doomed = True
    job.pause(rng.uniform(0, 0.6))
    node = lose_one(job, rng, job.nodes) if can_lose else None
    job.pause(rng.uniform(0, 0.3))
    check_what_is_restored(job)
    what = f"{node}, {of(job)}"
    resize(job, rng)
    return Aftermath(1 if node else 0, f"{what}, then {of(job)}")


@kind(loses_nodes=1, needs_commit=True, fits=has_spare_copies, modes=BOTH)
def node_lost_and_agent_killed_while_fetched(job, rng):
    """One node has lost its memory, so all fetch from few. Then an agent dies that sends, or one that receives."""
    random_moment(job, rng)
    if not may_lose_one(job):
        return resized(job, rng)
    node = lose_one(job, rng, job.nodes)
    job.end_incarnation(rng)
    if rng.random() < 0.5:
        resize(job, rng)
    job.start_incarnation()
    for trainer in job.trainers:
        trainer.doomed = True
    job.pause(rng.uniform(0, 0.6))
    victim = rng.choice(job.nodes)
    kills = job.kill_agent(victim)
    job.pause(rng.uniform(0, 0.3))
    check_what_is_restored(job)
    what = f"{node} lost, the agent of {victim} killed, {of(job)}"
    resize(job, rng)
    return Aftermath(1 + kills, what)


@kind(loses_nodes=1, needs_commit=True, fits=has_spare_copies, modes=BOTH)
def node_lost_and_agent_stopped_while_fetched(job, rng):
    """Likewise, and the agent goes on a moment or a lease later. All restore nevertheless."""
    random_moment(job, rng)
    if not may_lose_one(job):
        return resized(job, rng)
    node = lose_one(job, rng, job.nodes)
    job.end_incarnation(rng)
    if rng.random() < 0.5:
        resize(job, rng)
    job.start_incarnation()
    job.pause(rng.uniform(0, 0.6))
    victim, seconds = rng.choice(job.nodes), rng.choice([rng.uniform(0, 0.3), longer_than_lease_s(rng)])
    stop_for(job, [victim], seconds)
    job.await_restored()
    check_what_is_restored(job)
    what = f"{node} lost, the agent of {victim} stopped for {seconds:.2f} s, {of(job)}"
    resize(job, rng)
    return Aftermath(1, what)
