"""Agents and nodes that die or stop while a node repeats the update that led to a checkpoint (docs/mechanisms.md)."""

from chaos_settings import RECOMPUTE, Violation
from faults import Aftermath, has_spare_copies, kind, longer_than_lease_s, ranks_on
from pause_faults import stop, wake

LONGEST_MS = 12  # how long nodes fetch gradients and repeat updates at most, after a capture


def in_repeat(job, rng):
    """A moment in which nodes repeat the newest update. The iteration of that."""
    job.train_until_commit()
    for _ in range(200):
        job.release()
        job.wait_until(lambda: all(t.ready for t in job.trainers), "every rank ready for its next iteration")
        captured = min(trainer.captured for trainer in job.trainers)
        if captured > max(trainer.committed for trainer in job.trainers):
            job.pause(rng.uniform(0, LONGEST_MS) / 1000)
            return captured
    raise Violation("no snapshot was captured on all ranks in 200 iterations")


@kind(fits=has_spare_copies, modes=(RECOMPUTE,))
def agent_killed_in_repeat(job, rng):
    """It captures, sends gradients and repeats updates at once. Training goes on, and so do commits."""
    node = rng.choice(job.nodes)
    iteration = in_repeat(job, rng)
    kills = job.kill_agent(node)
    job.train_until_commit()
    return Aftermath(kills, f"{node}, iteration {iteration}")


@kind(fits=has_spare_copies, modes=(RECOMPUTE,))
def all_agents_killed_in_repeat(job, rng):
    iteration = in_repeat(job, rng)
    kills = sum(job.kill_agent(node) for node in job.nodes)
    if rng.random() < 0.5:
        job.train_until_commit()
    return Aftermath(kills, f"iteration {iteration}")


@kind(fits=has_spare_copies, modes=(RECOMPUTE,))
def agent_stopped_in_repeat(job, rng):
    """For a moment, or for so long that others take its node for dead."""
    node, seconds = rng.choice(job.nodes), rng.choice([rng.uniform(0, 0.2), longer_than_lease_s(rng)])
    iteration = in_repeat(job, rng)
    pids = stop(job, [node])
    job.train_for(seconds)
    wake(pids)
    job.train_until_commit()
    return Aftermath(0, f"{node} for {seconds:.2f} s, iteration {iteration}")


@kind(fits=has_spare_copies, modes=(RECOMPUTE,))
def trainer_killed_in_repeat(job, rng):
    victim = rng.choice(job.trainers)
    iteration = in_repeat(job, rng)
    victim.kill()
    return Aftermath(1, f"rank {victim.rank}, iteration {iteration}")


@kind(loses_nodes=1, needs_commit=True, fits=has_spare_copies, modes=(RECOMPUTE,))
def node_lost_in_repeat(job, rng):
    """What its ranks had comes from copies that were made by repeated updates, or of the checkpoint before."""
    node = rng.choice(job.nodes)
    iteration = in_repeat(job, rng)
    ranks = ranks_on(job, node)
    job.lose_node(node)
    return Aftermath(1, f"{node}, iteration {iteration}", from_peer=ranks)
