"""run() calls the training function, and refuses what it could not interrupt."""

from __future__ import annotations

import group_scenarios
import pytest
import torch
import torch.distributed as dist
from ckptengine import Error
from ckptengine.torch import Checkpointer, groups, run
from ckptengine.torch._group_state import state
from torch import nn
from torch.distributed import _functional_collectives as functional
from torch.nn.parallel import DistributedDataParallel


@pytest.fixture
def make(job):
    """A checkpointer of one rank with groups of the given backend."""
    made = []

    def checkpointer(backend: str = "ckpt:gloo", **options) -> Checkpointer:
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
        model = DistributedDataParallel(nn.Linear(4, 4))
        made.append(
            Checkpointer(model, torch.optim.SGD(model.parameters(), lr=0.1), **job | {"on_suspicion": "halt"} | options)
        )
        made[-1].model = model
        return made[-1]

    yield checkpointer
    for each in made:
        each.close()
    if dist.is_initialized():
        dist.destroy_process_group()


def one_iteration(checkpointer: Checkpointer, iteration: int = 0) -> None:
    checkpointer.model(torch.ones(1, 4)).sum().backward()
    with checkpointer.update(iteration):
        pass


def test_the_result_of_the_training_function_is_returned(make):
    checkpointer = make()

    def train(given):
        assert given is checkpointer and not given.restored.found and given.next_iteration == 0
        one_iteration(given)
        return "trained"

    assert run(train, checkpointer) == "trained"
    one_iteration(checkpointer, 1)  # without run() nothing has changed


def test_exception_of_the_training_function_is_raised_by_run(make):
    calls = []

    def train(checkpointer):
        calls.append(1)
        raise ValueError("of train itself")

    with pytest.raises(ValueError, match="of train itself"):
        run(train, make())
    assert calls == [1]


def test_no_update_begins_after_a_communication_has_failed(make):
    begun = []

    def train(checkpointer):
        groups.interrupt("the test says so")
        with checkpointer.update(0):
            begun.append(1)

    with pytest.raises(groups.Interrupted, match="the test says so"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("ckptengine.torch._run.HALT_WAIT_S", 0.0)
        run(train, make())
    assert not begun


def test_no_snapshot_is_taken_of_an_update_with_a_failed_communication(make):
    taken = []

    def train(checkpointer):
        with checkpointer.update(0):
            state.fail(RuntimeError("a peer has gone"))
        taken.append(checkpointer.ticket)

    with pytest.raises(groups.Interrupted, match="may have used wrong values"), pytest.MonkeyPatch.context() as patch:
        patch.setattr("ckptengine.torch._run.HALT_WAIT_S", 0.0)
        run(train, make())
    assert not taken


def test_training_continues_without_gradients_of_interrupted_and_warmup_passes(make):
    """A loop may clear them after its update."""
    gradients = []

    def train(checkpointer):
        parameters = list(checkpointer.model.parameters())
        if not checkpointer.is_warming_up:
            gradients.append([parameter.grad for parameter in parameters])
        if len(gradients) == 2:
            return
        one_iteration(checkpointer, checkpointer.next_iteration)
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        checkpointer.engine.report_trouble("the test says so")
        assert checkpointer.engine.wait_halt(20)
        checkpointer.before_update()

    run(train, make())
    assert gradients == [[None, None]] * 2


def marks_of(checkpointer: Checkpointer, communicate) -> list[str]:
    """What the engine is told while `communicate` runs under run()."""
    told: list[str] = []
    for name in ("comm_begin", "comm_end"):
        setattr(checkpointer.engine, name, lambda *_, name=name: told.append(name))

    def train(checkpointer):
        told.clear()
        communicate()
        return list(told)

    return run(train, checkpointer)


@pytest.mark.parametrize(
    "communicate",
    [
        lambda: dist.all_reduce(torch.ones(2)),
        lambda: dist.broadcast(torch.ones(2), 0, async_op=True).wait(),
        lambda: functional.all_reduce(torch.ones(2), "sum", dist.group.WORLD) + 1,
    ],
    ids=["all_reduce", "asynchronous", "functional"],
)
def test_group_marks_its_communications(make, communicate):
    assert marks_of(make(), communicate) == ["comm_begin", "comm_end"]


def test_group_marks_waits_of_the_training_thread(make):
    told: list[str] = []
    checkpointer = make()
    for name in ("bubble_begin", "bubble_end"):
        setattr(checkpointer.engine, name, lambda name=name: told.append(name))

    def train(checkpointer):
        told.clear()
        dist.all_reduce(torch.ones(2))
        return list(told)

    assert run(train, checkpointer) == ["bubble_begin", "bubble_end"]


def test_a_reduction_of_ddp_is_marked_once(make):
    checkpointer = make()
    assert marks_of(checkpointer, lambda: one_iteration(checkpointer)) == ["comm_begin", "comm_end"]


def test_interrupted_communication_does_not_end_a_later_one(make):
    checkpointer = make()
    communication = checkpointer._communication
    interrupted = communication.mark(dist.group.WORLD, ())
    communication.forget()
    checkpointer.engine.comm_end = lambda *_: pytest.fail("an end without its begin")
    interrupted.end()


@pytest.mark.parametrize("how", ["patch", None])
def test_group_marks_nothing_if_another_adapter_does_or_marking_is_off(make, how):
    checkpointer = make(communication=how)
    begun = marks_of(checkpointer, lambda: dist.all_reduce(torch.ones(2))).count("comm_begin")
    assert begun == (1 if how == "patch" else 0)


def test_a_job_that_is_never_halted_is_refused(make):
    with pytest.raises(Error, match="on_suspicion"):
        run(one_iteration, make(on_suspicion="report"))


def test_groups_that_cannot_be_interrupted_are_refused():
    group_scenarios.run("refuses_torchs_own_groups", 2)
