"""Nodes that are lost one after the other, as soon as what the first one took has been made good: copied again, or
given to a standby node in its place.
"""

from faults import Aftermath, check_what_is_restored, has_spare_copies, kind, random_moment, ranks_on


@kind(loses_nodes=2, needs_commit=True, fits=has_spare_copies)
def two_failures_in_a_row(job, rng):
    """The second one takes the other holder of what the first one took, as soon as a restart has copied it again."""
    first, second = job.holders(rng.randrange(len(job.nodes)))[:2]
    random_moment(job, rng)
    job.lose_node(first)
    job.end_incarnation(rng)
    job.start_incarnation()
    job.await_restored()
    check_what_is_restored(job)
    job.await_protected()
    job.lose_node(second)
    return Aftermath(2, f"{first}, then {second}", from_peer=ranks_on(job, second))


def has_standby(settings):
    return settings.standbys > 0 and has_spare_copies(settings)


@kind(loses_nodes=1, needs_commit=True, fits=has_standby)
def standby_takes_over(job, rng):
    """And has all that was committed of what the lost node had before its ranks come back there."""
    victim = rng.choice(job.nodes)
    random_moment(job, rng)
    spare, committed = replace_by_standby(job, victim)
    return Aftermath(1, f"{victim}, {spare} in its place", from_local=ranks_of_place(job, spare), local_until=committed)


@kind(loses_nodes=2, needs_commit=True, fits=has_standby)
def standby_takes_over_and_another_is_lost(job, rng):
    """The other holder of what the first one took. Nobody has restarted anything in between."""
    victim, other = job.holders(rng.randrange(len(job.nodes)))[:2]
    random_moment(job, rng)
    spare, committed = replace_by_standby(job, victim)
    job.lose_node(other)
    return Aftermath(2, f"{victim}, {spare} in its place, then {other}", from_peer=ranks_on(job, other),
                     from_local=ranks_of_place(job, spare), local_until=committed)


def replace_by_standby(job, victim):
    """Which node that is, and the iteration that it has copied: of what came later it has no copy."""
    job.retire_node(victim)
    witness = next(node for node in job.nodes if node != victim)

    def is_whole_again(agent):
        replaced = [replacement["instead_of"] for replacement in agent["replacements"]]
        return replaced == [victim] and agent["copies_now"] == agent["copies"]

    agent = job.await_status(witness, is_whole_again, f"a standby node in the place of {victim}")
    spare = agent["replacements"][0]["node"]
    job.standbys.remove(spare)
    job.replace_node(victim, spare)
    return spare, agent["highest_commit"]["iteration"]


def ranks_of_place(job, node):
    """The ranks that come back there."""
    per_node = job.settings.ranks_per_node
    first = job.nodes.index(node) * per_node
    return set(range(first, first + per_node))
