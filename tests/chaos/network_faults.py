"""What can go wrong between nodes: links that are cut or pass one way alone, and an etcd that dies or is full.
Training goes on meanwhile, and commits again afterwards.
"""

from faults import Aftermath, has_spare_copies, kind, longer_than_lease_s, random_moment, ranks_on
from surroundings import STORE


def has_links(settings):
    return settings.network and settings.nodes > 1


def has_etcd(settings):
    return settings.coordinator == "etcd"


# ---- Links ----


@kind(fits=has_links)
def link_down(job, rng):
    """For a moment, or for so long that the node is taken for dead."""
    return cut_off(job, rng, rng.choice(job.nodes), rng.uniform(0, longer_than_lease_s(rng)))


@kind(fits=has_links)
def leader_cut_off(job, rng):
    """Others take its lead; back on the network, it must not lead any more."""
    return cut_off(job, rng, job.current_leader(), longer_than_lease_s(rng))


def cut_off(job, rng, node, seconds):
    random_moment(job, rng)
    job.network.unplug(node)
    job.train_for(seconds)
    job.network.plug_in(node)
    job.train_until_commit()
    return Aftermath(0, f"{node}, {seconds:.1f} s")


@kind(fits=has_links)
def link_one_way(job, rng):
    """Its node hears the others, and they do not hear it."""
    node, seconds = rng.choice(job.nodes), longer_than_lease_s(rng)
    random_moment(job, rng)
    job.network.mute(node)
    job.train_for(seconds)
    job.network.unmute(node)
    job.train_until_commit()
    return Aftermath(0, f"{node}, {seconds:.1f} s")


@kind(fits=has_links)
def link_down_in_restore(job, rng):
    """Of a node that the restore needs: it is waited for."""
    node, seconds = rng.choice(job.nodes), rng.uniform(0.1, 1.5)
    random_moment(job, rng)

    def cut():
        job.pause(rng.uniform(0, 0.3))
        job.network.unplug(node)
        job.pause(seconds)
        job.network.plug_in(node)

    return Aftermath(0, f"{node}, {seconds:.1f} s", after_start=cut)


@kind(loses_nodes=1, fits=lambda settings: has_links(settings) and has_spare_copies(settings))
def node_cut_off_and_replaced(job, rng):
    """It comes back with its memory after the job has gone on without it, and must do no harm."""
    node = rng.choice(job.nodes)
    random_moment(job, rng)
    job.network.unplug(node)
    from_peer = ranks_on(job, node)
    job.replace_node(node)

    def comes_back():
        job.network.plug_in(node)
        job.train_until_commit()
        job.retire_node(node)

    return Aftermath(1, node, from_peer=from_peer, after_restore=comes_back)


# ---- etcd ----
# Commits go on without it, but a standby node neither takes a place nor gives it back: a commit first shows that none
# is about to, because of an earlier fault.


@kind(needs_commit=True, fits=has_etcd)
def etcd_killed(job, rng):
    """Nothing that runs needs it."""
    random_moment(job, rng)
    job.store.kill()
    job.train_until_commit()
    job.store.start()
    return Aftermath(1, "etcd")


@kind(fits=has_etcd)
def etcd_killed_in_restore(job, rng):
    """The restore waits until it is back."""
    random_moment(job, rng)

    def kill():
        job.pause(rng.uniform(0, 0.4))
        job.store.kill()
        job.pause(rng.uniform(0, 2))
        job.store.start()

    return Aftermath(1, "etcd", after_start=kill)


@kind(needs_commit=True, fits=has_etcd)
def etcd_full(job, rng):
    """It has reached its quota: it reads, and refuses to write."""
    random_moment(job, rng)
    job.store.fill()
    job.train_until_commit()
    job.store.free()
    return Aftermath(0, "etcd")


@kind(needs_commit=True, fits=lambda settings: has_etcd(settings) and settings.network)
def etcd_disk_full(job, rng):
    """It dies of that, and comes back when there is room."""
    random_moment(job, rng)
    job.store.fill_disk()
    job.train_until_commit()
    job.store.free_disk()
    job.store.start()
    job.store.free()  # of what filled it, which would reach its quota after some such runs
    return Aftermath(1, "etcd")


@kind(needs_commit=True, fits=lambda settings: has_etcd(settings) and has_links(settings))
def etcd_cut_off(job, rng):
    return cut_off(job, rng, STORE, longer_than_lease_s(rng))
