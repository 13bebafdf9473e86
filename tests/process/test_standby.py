"""A node that stands by takes the place of one that is lost, and the job's next incarnation goes on from what it
holds."""

from __future__ import annotations

import json
import signal
import subprocess
import time

import pytest
from ckptengine import Stage, Tier
from conftest import BUILD, build_file_of, nightly_but, together
from processes import kill_process
from small_job import BYTES, RANKS, Job, content

DEADLINE_S = 90
# So that agents that have no CPU for a moment are not taken for lost, which the hook would tell.
PATIENT = {"node_timeout_ms": 2000, "lease_ms": 2000}
NODES = [f"n{rank}" for rank in range(RANKS)]


def start_standby(cluster, name: str = "spare") -> None:
    options = cluster.options() | {"node": name} | PATIENT
    keys = [f"{key}={value}" for key, value in options.items() if key not in ("rank", "world_size", "ckptd")]
    subprocess.run([build_file_of("ckptd"), "--detach", "--standby", *keys], check=True, timeout=DEADLINE_S)


def status_text(cluster, node: str, *options: str) -> str:
    command = [BUILD / "bin" / "ckptctl", "status", *options, "--job", cluster.job, "--node", node]
    command += ["--arena-dir", cluster.arena]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=DEADLINE_S).stdout


def status(cluster, node: str) -> dict:
    return json.loads(status_text(cluster, node, "--json"))["agents"][0]


def await_status(cluster, node: str, is_so) -> dict:
    deadline = time.monotonic() + DEADLINE_S
    while not is_so(seen := status(cluster, node)):
        assert time.monotonic() < deadline, seen
        time.sleep(0.05)
    return seen


def hook(told) -> str:
    said = "$CKPTENGINE_MEMBER_CHANGE $CKPTENGINE_MEMBER_NODE $CKPTENGINE_MEMBER_REASON$CKPTENGINE_MEMBER_REPLACEMENT"
    return f"echo {said} >> {told}"


def await_told(told, expected: list[str], also: str = "") -> None:
    """What the hook was told, in that order, each once or, by another leader, again. `also` may be among it."""
    deadline = time.monotonic() + DEADLINE_S
    while (seen := list(dict.fromkeys(told.read_text().splitlines() if told.exists() else []))) != expected:
        if also in seen and [line for line in seen if line != also] == expected:
            return
        assert time.monotonic() < deadline, seen
        time.sleep(0.05)


def start_job(cluster, told) -> Job:
    """With a node that stands by, and iteration 1 committed."""
    job = Job(cluster, shared=False, member_hook=hook(told), **PATIENT)
    job.start()
    job.restore()
    start_standby(cluster)
    job.commit(1)
    return job


def replaced(node: str):
    return lambda agent: agent["copies_now"] == 2 and agent["replacements"] == [{"node": "spare", "instead_of": node}]


@pytest.mark.parametrize("leads", nightly_but([False], [True, False]))
def test_standby_node_gets_the_lost_nodes_pieces_and_its_rank_restores_locally(cluster, tmp_path, leads):
    told = tmp_path / "told"
    job = start_job(cluster, told)
    leader = await_status(cluster, "n0", lambda agent: agent["leader"] in NODES)["leader"]
    lost = leader if leads else next(node for node in NODES if node != leader)
    rank, other = NODES.index(lost), next(node for node in NODES if node != lost)
    assert "stands by" in status_text(cluster, "spare")
    job.lose(rank)
    agent = await_status(cluster, other, replaced(lost))
    assert agent["highest_commit"]["iteration"] == 1
    held = {segment["shard"] for segment in status(cluster, "spare")["segments"]}
    assert held >= {f"rank{rank}", f"rank{rank}.private"}

    nodes = ["spare" if node == lost else node for node in NODES]
    engines = together(*(
        lambda rank=rank: cluster.engine(rank, RANKS, shard=f"rank{rank}", node=nodes[rank], **job.options)
        for rank in range(RANKS)))
    states = [bytearray(BYTES) for _ in range(RANKS)]
    for engine, state in zip(engines, states, strict=True):
        engine.register("state", state)
    starts = together(*(engine.restore for engine in engines))
    assert [start.iteration for start in starts] == [1] * RANKS
    assert [start.main_tier for start in starts] == [Tier.LOCAL] * RANKS
    assert states == [content(f"rank{rank}", 1) for rank in range(RANKS)]
    assert "stands by" not in status_text(cluster, "spare")

    def commit(engine) -> None:
        ticket = engine.snapshot(2)
        assert ticket.taken and engine.before_update()
        assert ticket.wait(Stage.COMMITTED, 20_000), ticket.message

    together(*(lambda engine=engine: commit(engine) for engine in engines))
    await_told(told, [f"lost {lost} ended", f"replaced {lost} spare", f"released {lost}"])


def test_standby_node_holds_nothing_while_no_node_is_lost(cluster):
    job = Job(cluster, shared=False, **PATIENT)
    job.start()
    job.restore()
    start_standby(cluster)
    await_status(cluster, "spare", lambda agent: agent["leader"] is not None and agent["incarnation"] == 1)
    for iteration in range(3):
        job.commit(iteration)
    agent = await_status(cluster, "spare", lambda agent: (agent["committed"] or {}).get("iteration") == 2)
    assert agent["standby"] and agent["segments"] == [] and agent["ranks"] == []


@pytest.mark.parametrize("leads", nightly_but([True], [True, False]))
def test_stopped_agent_is_reported_as_silent_and_returns(cluster, tmp_path, leads):
    told = tmp_path / "told"
    job = start_job(cluster, told)
    leader = await_status(cluster, "n0", lambda agent: agent["leader"] in NODES)["leader"]
    stopped = leader if leads else next(node for node in NODES if node != leader)
    other = next(node for node in NODES if node != stopped)
    (pid,) = cluster.agents(stopped)
    kill_process(pid, signal.SIGSTOP)
    await_status(cluster, other, replaced(stopped))
    await_told(told, [f"lost {stopped} silent", f"replaced {stopped} spare"])
    kill_process(pid, signal.SIGCONT)
    returned = [f"lost {stopped} silent", f"replaced {stopped} spare", f"returned {stopped}"]
    await_told(told, returned, also=f"lost {stopped} answers")  # by a leader that took over in between
    job.commit(2)
    await_status(cluster, "spare", lambda agent: not any(s["slots"][0]["checkpoint"] for s in agent["segments"]))
