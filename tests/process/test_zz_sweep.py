import pytest
from test_integrations import *  # noqa
import test_integrations as ti
del test_a_job_goes_on_bit_for_bit_after_the_loss_of_a

@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("die_at", range(1, 9))
def test_sweep(cluster, ranks, undisturbed, tmp_path, kind, die_at):
    job = Job(ranks, tmp_path, kind, cluster)
    first = job.start(die_at, die_at % 2)
    second = job.start()
    for rank, events in enumerate(second):
        assert [(event["found"], event["first"]) for event in events if "found" in event] == [(True, die_at)]
        before = [event for event in computed(first[rank]) if event[0] < die_at]
        assert before + computed(events) == undisturbed(kind)[rank], (rank, die_at)
