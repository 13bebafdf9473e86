"""What can go wrong with the store through which the nodes meet, whichever it is: it hangs, is gone for a while, or has
lost all records. Training and commits go on meanwhile. network_faults.py has more that only etcd can suffer.
"""

from faults import Aftermath, kind, longer_than_lease_s, random_moment


def has_directory(settings):
    return settings.coordinator == "directory"


@kind(needs_commit=True)
def store_hangs(job, rng):
    """For longer than the lease that the leader renews there. An agent that waits for it still answers."""
    seconds = longer_than_lease_s(rng)
    random_moment(job, rng)
    job.store.hang()
    job.train_for(seconds)
    job.train_until_commit()
    job.await_status(job.nodes[0], lambda agent: agent["coordination_trouble"], "word that the store hangs")
    job.train_until_commit()
    job.store.answer()
    job.await_status(job.nodes[0], lambda agent: not agent["coordination_trouble"], "word that the store answers again")
    job.train_until_commit()
    return Aftermath(0, f"{seconds:.1f} s")


@kind(needs_commit=True)
def store_hangs_in_restore(job, rng):
    """The restore waits until it answers again."""
    seconds = rng.uniform(0.1, 3)
    random_moment(job, rng)

    def hang():
        job.pause(rng.uniform(0, 0.4))
        job.store.hang()
        job.pause(seconds)
        job.store.answer()

    return Aftermath(0, f"{seconds:.1f} s", after_start=hang)


@kind(needs_commit=True, fits=has_directory)
def store_answers_some_never(job, rng):
    """It hangs and answers again, but who waited already is never answered."""
    seconds = longer_than_lease_s(rng)
    random_moment(job, rng)
    job.store.hang()
    job.train_for(seconds)
    job.store.answer(lets_go=False)
    job.train_until_commit()
    return Aftermath(0, f"{seconds:.1f} s")


@kind(needs_commit=True, fits=has_directory)
def store_moved_away(job, rng):
    """As when a mount is gone. What it had is there again afterwards, and nothing of what came later."""
    seconds = longer_than_lease_s(rng)
    random_moment(job, rng)
    job.store.move_away()
    job.train_for(seconds)
    job.train_until_commit()
    job.store.move_back()
    job.train_until_commit()
    return Aftermath(0, f"{seconds:.1f} s")


@kind(needs_commit=True)
def store_wiped(job, rng):
    """All records are gone under a running job, which goes on; a restart perhaps comes before anybody notices."""
    seconds = rng.choice([0, longer_than_lease_s(rng)])
    random_moment(job, rng)
    job.store.wipe()
    job.train_for(seconds)
    if seconds > 0:
        job.train_until_commit()
    return Aftermath(0, f"restarted after {seconds:.1f} s")


@kind(needs_commit=True)
def store_wiped_and_agent_killed(job, rng):
    """The agent that comes back must end nobody else."""
    node = rng.choice(job.nodes)
    random_moment(job, rng)
    job.store.wipe()
    job.train_for(rng.uniform(0, 2))
    kills = job.kill_agent(node)
    job.train_until_commit()
    return Aftermath(kills, node)
