"""What can go wrong with the store through which the nodes meet, whichever it is: it hangs, is gone for a while, or has
lost all records. Training and commits go on meanwhile. network_faults.py has more that only etcd can suffer.
"""

import hung_mount
from faults import Aftermath, kind, longer_than_lease_s, random_moment
from pause_faults import stop


def has_directory(settings):
    return settings.coordinator == "directory"


def can_hang(settings):
    # Nodes with a network of their own do not see what is mounted later.
    return not has_directory(settings) or (not settings.network and hung_mount.can_be_made())


@kind(needs_commit=True, fits=can_hang)
def store_hangs(job, rng):
    """For longer than the lease that the leader renews there. Agents go on, and tell."""
    return in_trouble(job, rng, job.store.hang, job.store.answer)


@kind(needs_commit=True, fits=lambda settings: has_directory(settings) and can_hang(settings))
def store_never_answers_some(job, rng):
    """It hangs and answers again, but not to those who have waited."""
    aftermath = in_trouble(job, rng, job.store.hang, lambda: job.store.answer(lets_go=False))
    # The kernel does not end a process completely while one of its threads waits so: its sockets stay.
    job.store.answer()
    return aftermath


@kind(needs_commit=True, fits=has_directory)
def store_has_pipe(job, rng):
    """In the place of a record."""
    return in_trouble(job, rng, job.store.put_pipe, job.store.take_pipe)


def in_trouble(job, rng, begin, end):
    """An agent says so while it lasts, and that it is over."""
    seconds, node = longer_than_lease_s(rng), rng.choice(job.nodes)
    random_moment(job, rng)
    begin()
    job.train_for(seconds)
    job.train_until_commit()
    job.await_status(node, lambda agent: agent["coordination_trouble"], "word of a store that does not answer")
    job.train_until_commit()
    end()
    job.await_status(node, lambda agent: not agent["coordination_trouble"], "word that the store answers again")
    job.train_until_commit()
    return Aftermath(0, f"{seconds:.1f} s")


@kind(needs_commit=True, fits=can_hang)
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
    return wiped_and_killed(job, rng, rng.choice(job.nodes), stops=False)


@kind(needs_commit=True)
def store_wiped_and_leader_killed(job, rng):
    """It has perhaps not written again what it alone knows: who sat where."""
    return wiped_and_killed(job, rng, job.current_leader(), stops=rng.random() < 0.5)


def wiped_and_killed(job, rng, node, stops):
    """Commits go on, or a leader that does not know the rank assignments ends the incarnation, which the ranks are
    told."""
    random_moment(job, rng)
    if stops:  # whoever runs has written what it knows within a moment
        stop(job, [node])
    job.store.wipe()
    if not stops:
        job.train_for(rng.uniform(0, 2))
    kills = job.kill_agent(node)
    goes_on = job.train_until_commit_or_superseded()
    return Aftermath(kills, f"{node}{' in the same moment' if stops else ''}{'' if goes_on else ', superseded'}")
