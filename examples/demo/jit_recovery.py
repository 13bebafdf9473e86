"""One fault of ./dev demo --jit, and where the time goes until all ranks have trained again.

    detection       until the job is halted, or a rank notices by itself that its peer is gone
    halt, capture   until every survivor has been captured and has left its communication
    rejoin          until every survivor has joined the next incarnation
    new process     until the process that takes the failed one's place has built and warmed up its model
    restore         until every rank has its state, and the groups are connected again
    iteration       until every rank has finished its next iteration
"""

from __future__ import annotations

from dataclasses import dataclass

from cluster import DemoFailure
from jit_job import JitJob

PHASES = ["detection", "halt, capture", "rejoin", "new process", "restore", "iteration"]
RECOVERY_S = 60
SOON_S = 30


@dataclass(frozen=True)
class Recovery:
    """Seconds in each phase. `kept` are the processes that are the same as before, by rank."""

    fault: str
    iteration: int  # that was restored
    failed: int  # rank
    phases: dict[str, float]
    kept: dict[int, int]
    ended: dict[int, int]  # healthy processes that are gone
    tiers: dict[int, str]
    lost_iterations: int

    @property
    def seconds(self) -> float:
        return sum(self.phases.values())


def in_order(begin_s: float, ends_s: dict[str, float]) -> dict[str, float]:
    """How long each phase took. One that ended before the phase ahead of it took no time."""
    found = {}
    for phase in PHASES:
        end_s = max(begin_s, ends_s[phase])
        found[phase] = end_s - begin_s
        begin_s = end_s
    return found


def strike(job: JitJob, rank: int, fault: str, place: str, seconds: float = 0) -> Recovery:
    """Lets a rank fail, and waits until all have trained again. The fault "node" kills the rank's node at once."""
    job.read()
    before, starts = job.pids(), [len(told.of("started")) for told in job.told]
    counts = [len(told.events) for told in job.told]
    incarnation = job.told[rank].of("restored")[-1]["incarnation"]
    if fault == "node":
        at_s = job.kill_node(job.node_of(rank))
    else:
        known = len(job.told[rank].of("fault"))
        job.command(rank, fault, place, seconds)
        job.until(lambda: len(job.told[rank].of("fault")) > known, f"let rank {rank} fail", SOON_S)
        at_s = job.told[rank].of("fault")[-1]["at_s"]
    job.until(lambda: all(has_gone_on(job, each, incarnation) for each in range(job.ranks)), "go on", RECOVERY_S)
    newest = max(
        event["k"] for told, count in zip(job.told, counts, strict=True) for event in told.events
        if event["event"] == "iteration" and event["at_s"] < at_s
    )  # fmt: skip
    restored = [told.of("restored")[-1] for told in job.told]
    now = job.pids()
    healthy = [each for each in range(job.ranks) if each != rank or fault == "late"]
    return Recovery(
        name_of(fault, place), restored[0]["iteration"], rank,
        phases_of(job, at_s, healthy, incarnation, starts),
        {each: now[each] for each in range(job.ranks) if now[each] == before[each]},
        {each: before[each] for each in healthy if now[each] != before[each]},
        {each: event["tier"] for each, event in enumerate(restored)},
        max(0, newest - restored[0]["iteration"]),
    )  # fmt: skip


def name_of(fault: str, place: str) -> str:
    names = {"kill": "killed", "stop": "stopped", "spin": "spins", "late": "is late", "node": "node lost"}
    where = {"backward": "backward", "forward": "forward", "update": "update"}.get(place, "")
    return f"{names[fault]} in {where}" if where else names[fault]


def has_gone_on(job: JitJob, rank: int, incarnation: int) -> bool:
    restored = job.told[rank].of("restored")
    return restored[-1]["incarnation"] > incarnation and job.since_begin(rank) >= 1


def phases_of(job: JitJob, at_s: float, healthy: list[int], incarnation: int, starts: list[int]) -> dict[str, float]:
    def last(rank: int, event: str) -> float:
        return job.told[rank].of(event)[-1]["at_s"]

    stayed = [each for each in healthy if len(job.told[each].of("started")) == starts[each]]
    if not stayed:
        raise DemoFailure("no process has stayed")
    halted_s = min(last(each, "interrupted") for each in stayed)
    # Agents log at heartbeats. A halt that is over before does not appear.
    logged_s = min((when for when, number in job.halts(at_s) if number == incarnation), default=halted_s)
    everybody = range(job.ranks)
    return in_order(at_s, {
        "detection": min(halted_s, logged_s),
        "halt, capture": max(max(last(each, "interrupted"), last(each, "halted")) for each in stayed),
        "rejoin": max(last(each, "restoring") for each in stayed),
        "new process": max(last(each, "restoring") for each in everybody),
        "restore": max(last(each, "begins") for each in everybody),
        "iteration": max(first_iteration(job, each) for each in everybody),
    })  # fmt: skip


def first_iteration(job: JitJob, rank: int) -> float:
    """When this rank had finished its first iteration since it last began to train."""
    begin_s = job.told[rank].of("begins")[-1]["at_s"]
    return next(each["at_s"] for each in job.told[rank].of("iteration") if each["at_s"] > begin_s)


def restart_all(job: JitJob, rank: int, fault: str, place: str) -> float:
    """Lets a rank fail in a job that starts all ranks anew. Seconds until all have trained again."""
    incarnation = job.told[rank].of("restored")[-1]["incarnation"]
    job.command(rank, fault, place)
    job.until(lambda: all(has_gone_on(job, each, incarnation) for each in range(job.ranks)), "go on", RECOVERY_S)
    begun_s = job.told[rank].of("fault")[-1]["at_s"]
    return max(first_iteration(job, each) for each in range(job.ranks)) - begun_s
