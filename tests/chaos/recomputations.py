"""What the agents of a chaos job say of repeated updates (docs/mechanisms.md)."""

from collections import Counter

from chaos_settings import RECOMPUTED


class Recomputations:
    """What agents counted of repeated updates. An agent that is killed may have counted more than was seen of it."""

    def __init__(self):
        self._seen = {}

    def see(self, pid, agent):
        if agent is not None:
            self._seen[pid] = Counter({key: agent["counters"][key] for key in RECOMPUTED})

    def total(self):
        return sum(self._seen.values(), Counter())
