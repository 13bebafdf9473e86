"""Jobs of real agents under every strategy: what is lost and what comes back is what the placement promises."""

from __future__ import annotations

import pytest
from ckptengine import Status
from conftest import nightly_but, refused, together
from small_job import BYTES, Job

STRATEGIES = [("auto", False), ("auto", True), ("group", False), ("group", True), ("ring", False), ("mixed", False),
              ("cover", False), ("sharded+copy", True)]
EACH_CHANGE = [("auto", True), ("group", False), ("mixed", False), ("sharded+copy", True)]
LOSSES = [("group", False, (0, 1)), ("ring", False, (1, 2)), ("auto", True, (0, 1)), ("sharded", True, (2,))]


@pytest.mark.parametrize(("strategy", "shared"), nightly_but(EACH_CHANGE, STRATEGIES))
def test_any_node_may_be_lost_repeatedly(cluster, strategy, shared):
    job = Job(cluster, shared, placement=strategy)
    job.start()
    job.restore()
    job.commit(0)
    for round_, node in enumerate((1, 3)):
        job.lose(node)
        job.start()
        job.assert_restored(round_)
        job.commit(round_ + 1)
    job.close()


@pytest.mark.parametrize(("strategy", "shared", "nodes"), nightly_but([LOSSES[1], LOSSES[3]], LOSSES))
def test_loss_beyond_the_tolerance_is_reported(cluster, strategy, shared, nodes):
    job = Job(cluster, shared, placement=strategy)
    job.start()
    job.restore()
    job.commit(0)
    job.lose(*nodes)
    job.start()
    results = together(*(lambda engine=engine: refused(engine.restore) for engine in job.engines))
    for status, message in results:
        assert status is Status.LOST and "beyond tolerance" in message, message


def test_whole_rack_may_be_lost_if_nodes_name_their_racks(cluster):
    """Without domains nodes 0 and 1 would hold each other's copies."""
    job = Job(cluster, False)
    plain = cluster.options
    cluster.options = lambda rank=0, world_size=1, **changes: plain(
        rank, world_size, **({"domain": f"rack{rank // 2}"} | changes))
    job.start()
    job.restore()
    job.commit(0)
    job.lose(0, 1)
    job.start()
    job.assert_restored(0)


def test_ranks_that_share_a_shard_store_one_part_each(cluster):
    job = Job(cluster, True)
    job.start()
    job.restore()
    job.commit(0)
    segments = {file: file.read_bytes()[:300] for file in cluster.arena.glob("*/*/*.segment")}
    names = [head[40:104].split(b"\0")[0].decode() for head in segments.values()]
    parts = [name for name in names if name.startswith("model.")]
    assert sorted(parts) == sorted(f"model.{i}of4" for i in range(4) for _ in range(2)), names
    largest = max(file.stat().st_size for file, head in segments.items() if b"model." in head)
    assert largest < 3 * BYTES, "three slots of a quarter each, and no slot of all of it"


def test_another_strategy_finds_pieces_stored_by_the_last_one(cluster):
    job = Job(cluster, True, placement="group")
    job.start()
    job.restore()
    job.commit(0)
    for round_, strategy in enumerate(("auto", "sharded+copy", "group")):
        job.close()
        cluster.kill_agents()  # the memory stays; agents keep to the strategy that they were started with
        job.options["placement"] = strategy
        job.start()
        job.assert_restored(round_)
        job.commit(round_ + 1)
