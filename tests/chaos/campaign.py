"""A campaign: fault after fault on one job, a restore after each, and every restore judged."""

import random
import time
from collections import Counter
from dataclasses import dataclass, field

import neighbour_faults  # noqa: F401 (they add their kinds)
import network_faults  # noqa: F401
import pause_faults  # noqa: F401
import recompute_faults  # noqa: F401
import repair_faults  # noqa: F401
import resize_faults  # noqa: F401
import store_faults  # noqa: F401
from chaos_settings import (
    PLAIN,
    RECOMPUTE,
    RECOMPUTED,
    RESIZE,
    SPREAD,
    TIER_LOCAL,
    TIER_PEER,
    LostWithinTolerance,
    Violation,
    WrongBytes,
    WrongHealth,
)
from faults import KINDS
from job import Job
from trainers import LOST


@dataclass
class Tally:
    kills: int = 0
    restores: int = 0
    wrong: int = 0
    lost: int = 0
    silent: int = 0  # moments in which commits had stopped for too long, and health said that the job is protected
    slowest_restore_ms: float = 0.0
    mode: str = PLAIN
    resized: int = 0  # restores by another number of ranks
    repeated: Counter = field(default_factory=Counter)  # updates, as agents counted

    def line(self):
        line = (f"chaos: kills={self.kills} restores={self.restores} wrong={self.wrong} "
                f"lost_within_tolerance={self.lost} silent={self.silent} "
                f"slowest_restore_ms={self.slowest_restore_ms:.0f}")
        if self.mode in (RESIZE, SPREAD):
            line += f" resized={self.resized}"
        if self.mode in (RECOMPUTE, RESIZE):
            line += "".join(f" {name}={self.repeated[name]}" for name in RECOMPUTED)
        return line


def schedule(settings, seed, only=()):
    """The kinds of faults, without end: each that fits once, then at random. The same for the same seed."""
    rng = random.Random(f"schedule {seed}")
    names = [name for name, fault in KINDS.items() if fault.fits(settings) and (not only or name in only)]
    rng.shuffle(names)
    yield from names
    while True:
        yield rng.choice(names)


class Campaign:
    def __init__(self, settings, seed, root, name, say=print):
        self.job = Job(settings, root, name)
        self.seed = seed
        self.tally = Tally(mode=settings.mode)
        self.say = say
        self.incarnation = 0
        self.is_protected = False  # there is a commit, and no memory was lost since

    def begin(self):
        """A fresh start: nothing is stored."""
        self.job.start_incarnation()
        self.job.await_restored()
        for trainer in self.job.trainers:
            if trainer.restored["found"]:
                raise Violation(f"a fresh start found something: {trainer.restored}")
        self.job.start_standbys()

    def run(self, number, name):
        """One fault of kind `name` and the restore that follows, and what health said meanwhile."""
        self.job.watch.start()
        try:
            self._strike(number, name)
        finally:
            self.tally.silent = self.job.watch.silent
            self.tally.resized = self.job.resized
            self.tally.repeated = self.job.recomputations.total()
        if faults := self.job.watch.faults():
            raise WrongHealth(faults[0])

    def _strike(self, number, name):
        job, fault = self.job, KINDS[name]
        rng = random.Random(f"run {self.seed} {number}")
        begin = time.monotonic()
        # One lost node may follow a restore at once: what was restored is perhaps not protected yet, but the commit
        # before it is. More of them may not: which nodes may go together is only known of a commit of this incarnation.
        simultaneous = not fault.needs_commit and (fault.loses_nodes == 0 or rng.random() < 0.5)
        if not self.is_protected or not simultaneous:
            job.train_until_commit()
        job.train(rng.randrange(0, 10))
        job.see_recomputations()
        aftermath = fault(job, rng)
        self.tally.kills += aftermath.kills
        self.is_protected = fault.loses_nodes == 0
        if fault.loses_nodes == 0:
            job.floor = max(job.floor, job.restored)
        job.end_incarnation(rng)
        job.start_incarnation()
        if aftermath.after_start:
            aftermath.after_start()
        outcome = self._await_lost() if aftermath.lost else self.judge(aftermath)
        if aftermath.after_restore:
            aftermath.after_restore()
        job.start_standbys()
        took = time.monotonic() - begin
        self.say(f"run {number}: {name} ({aftermath.what}): {outcome}; {took:.1f} s")

    def close(self):
        self.job.close()

    # ---- Judgement ----

    def judge(self, aftermath):
        job, floor = self.job, self.job.floor
        try:
            job.await_restored()
        except Violation as violation:
            if any(t.failed and t.failed["status"] == LOST for t in job.trainers):
                self.tally.lost += 1
                raise LostWithinTolerance(str(violation)) from None
            if any(t.restored and t.restored["wrong"] for t in job.trainers):
                self.tally.wrong += 1
                raise WrongBytes(str(violation)) from None
            raise
        results = [trainer.restored for trainer in job.trainers]
        checkpoints = {(r["found"], r["iteration"], r["incarnation"]) for r in results}
        if len(checkpoints) != 1 or any(r["wrong"] for r in results):
            self.tally.wrong += 1
            raise WrongBytes(f"the ranks restored different or wrong states: {results}")
        found, iteration, incarnation = checkpoints.pop()
        if not found or iteration < floor:
            self.tally.lost += 1
            raise LostWithinTolerance(f"iteration {floor} was committed, but {iteration} was restored: {results}")
        if incarnation <= self.incarnation:
            raise Violation(f"incarnation {incarnation} follows incarnation {self.incarnation}")
        from_local = aftermath.from_local if iteration <= aftermath.local_until else set()
        for ranks, tier in ((aftermath.from_peer, TIER_PEER), (from_local, TIER_LOCAL)):
            for trainer in job.trainers:
                if trainer.rank in ranks and trainer.restored["main_tier"] != tier:
                    raise Violation(f"rank {trainer.rank} restored, but not from tier {tier}: {trainer.restored}")
        self.incarnation = incarnation
        job.restored = iteration
        self.tally.restores += 1
        slowest = max(r["restore_ms"] for r in results)
        self.tally.slowest_restore_ms = max(self.tally.slowest_restore_ms, slowest)
        unknown = ", newer commit not excluded" if any(r["status_unknown"] for r in results) else ""
        return f"restored {iteration} (committed: {floor}) in {slowest:.0f} ms{unknown}"

    def _await_lost(self):
        """Beyond the tolerance every rank must be told so; then all that is stored is given up, for a fresh start."""
        job = self.job
        for trainer in job.trainers:
            trainer.doomed = True
        job.wait_until(lambda: all(t.ended for t in job.trainers), "a clear end of a restore beyond tolerance")
        for trainer in job.trainers:
            if not trainer.failed or trainer.failed["status"] != LOST:
                raise Violation(f"rank {trainer.rank} lost its state beyond tolerance, and was told {trainer.failed}")
        job.wipe()
        self.incarnation = 0
        self.is_protected = False
        self.begin()
        return f'lost, as it must be: "{job_message(trainer)}"; fresh start'


def job_message(trainer):
    message = trainer.failed["message"]
    return message if len(message) < 160 else message[:160] + "..."
