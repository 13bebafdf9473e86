"""What torch.distributed communicates is told by itself, begun and ended once each, and computes what it did."""

from __future__ import annotations

import contextlib
import copy
import gc
import logging
import pickle
import threading
from types import SimpleNamespace

import communicating
import pytest
import torch
import torch.distributed as dist
from ckptengine import Engine, Error
from ckptengine.torch import Checkpointer, _communication
from ckptengine.torch._communication import Communication
from comm_words import BEGIN, END, ITERATION, CommWords
from communicating import Told, until
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@pytest.fixture
def alone():
    """A process group of one rank."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@contextlib.contextmanager
def communication(engine):
    placed = Communication(engine, patch=True)
    try:
        yield placed
    finally:
        placed.close()


ONE = {
    "all_reduce": dist.all_reduce,
    "broadcast": lambda t: dist.broadcast(t, 0),
    "reduce": lambda t: dist.reduce(t, 0),
    "all_gather": lambda t: dist.all_gather([torch.empty_like(t)], t),
    "all_gather_into_tensor": lambda t: dist.all_gather_into_tensor(torch.empty_like(t), t),
    "reduce_scatter_tensor": lambda t: dist.reduce_scatter_tensor(torch.empty_like(t), t),
    "gather": lambda t: dist.gather(t, [torch.empty_like(t)]),
    "scatter": lambda t: dist.scatter(t, [t.clone()]),
    "all_to_all_single": lambda t: dist.all_to_all_single(torch.empty_like(t), t),
    "barrier": lambda t: dist.barrier(),
}


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("name", ONE)
def test_each_collective_is_marked_once(job, alone, name):
    with Engine(**job) as engine, communication(engine):
        engine.restore()
        words = CommWords(job)
        for _ in range(3):
            ONE[name](torch.ones(4))
        assert words.kinds() == [(BEGIN, 0), (END, 0)] * 3
        assert not words.is_busy()


def test_composed_collectives_are_marked_in_pairs(alone):
    told = Told()
    with communication(told):
        found = [None]
        dist.all_gather_object(found, {"a": 1})
        assert found == [{"a": 1}]
        dist.broadcast_object_list([1, 2], 0)
        with dist._coalescing_manager():
            dist.all_reduce(torch.ones(3))
            dist.all_reduce(torch.ones(3))
    assert told == [(True, 0), (False, 0)] * (len(told) // 2) and len(told) >= 2 * 5


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_failed_collective_is_marked_as_ended(alone):
    told = Told()
    with communication(told):
        with pytest.raises(RuntimeError):
            dist.broadcast(torch.ones(4), 3)
        with pytest.raises((RuntimeError, ValueError)):
            dist.reduce_scatter_tensor(torch.empty(3), torch.ones(4))
    assert not told.is_busy()


def test_dropped_work_is_marked_as_ended(alone):
    told = Told()
    with communication(told):
        options = dist.AllreduceOptions()
        options.asyncOp = False  # says that the caller waits
        work = dist.group.WORLD.allreduce([torch.ones(4)], options)
        assert told == [(True, 0)]
        del work
        gc.collect()
        assert told == [(True, 0), (False, 0)]


def test_wait_of_the_training_thread_is_a_bubble(alone):
    told = Told()
    with communication(told):
        dist.all_reduce(torch.ones(4))
        assert told.bubbles == [True, False]
        work = dist.all_reduce(torch.ones(4), async_op=True)
        assert told.bubbles == [True, False]
        work.wait()
        assert told.bubbles == [True, False] * 2
        other = threading.Thread(target=lambda: dist.all_reduce(torch.ones(4)))
        other.start()
        other.join()
    assert told.bubbles == [True, False] * 2 and len(told) == 2 * 3


@pytest.fixture
def on_gpu(monkeypatch):
    """All tensors seem to be on a GPU whose current stream is 7."""
    monkeypatch.setattr(torch.cuda, "current_stream", lambda gpu: SimpleNamespace(cuda_stream=7))
    monkeypatch.setattr(_communication, "_gpu_of", lambda tensors: torch.device("cuda", 0))


def test_wait_for_gpu_tensors_is_a_bubble_of_the_current_stream(alone, on_gpu):
    told = Told()
    with communication(told):
        dist.all_reduce(torch.ones(4))
        assert told.bubbles == [(True, 7), (False, 7)]
        work = dist.all_reduce(torch.ones(4), async_op=True)
        assert told.bubbles == [(True, 7), (False, 7)]
        other = threading.Thread(target=work.wait)
        other.start()
        other.join()
    assert told.bubbles == [(True, 7), (False, 7)] * 2 and not told.is_busy()


def test_synchronous_gpu_collective_is_a_bubble_from_its_begin(alone, on_gpu, monkeypatch):
    told = Told()
    begun: list = []
    original = dist.ProcessGroup.allreduce
    monkeypatch.setattr(dist.ProcessGroup, "allreduce",
                        lambda *a, **o: (begun.append(list(told.bubbles)), original(*a, **o))[1])  # fmt: skip
    with communication(told):
        dist.all_reduce(torch.ones(4))
    assert begun == [[(True, 7)]] and told.bubbles == [(True, 7), (False, 7)]


def test_failed_or_dropped_gpu_collective_ends_its_bubble(alone, on_gpu):
    told = Told()
    with communication(told):
        with pytest.raises(RuntimeError):
            dist.broadcast(torch.ones(4), 3)
        options = dist.AllreduceOptions()
        options.asyncOp = False
        dist.group.WORLD.allreduce([torch.ones(4)], options)
        gc.collect()
    assert told.bubbles.count((True, 7)) == told.bubbles.count((False, 7)) >= 1 and not told.is_busy()


def test_coalesced_calls_are_one_communication_until_their_wait(alone, on_gpu, monkeypatch):
    """As torch.distributed.pipelining receives with NCCL. gloo coalesces nothing, so its works stand for NCCL's."""
    works: list = []
    monkeypatch.setattr(dist.ProcessGroup, "_start_coalescing", lambda group, device: works.clear())
    monkeypatch.setattr(dist.ProcessGroup, "_end_coalescing", lambda group, device: works.pop())
    told = Told()
    group = dist.group.WORLD
    with communication(told):
        group._start_coalescing(torch.device("cuda", 0))
        for _ in range(2):
            works.append(group.allreduce([torch.ones(4)], dist.AllreduceOptions()))
        work = group._end_coalescing(torch.device("cuda", 0))
        assert told == [(True, 0, 7)] and told.bubbles == []
        work.wait()
    assert told == [(True, 0, 7), (False, 0, 7)] and told.bubbles == [(True, 7), (False, 7)]


def test_failed_wait_ends_its_bubble(alone, monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("a peer has gone")

    monkeypatch.setattr(dist.Work, "wait", fail)
    told = Told()
    with communication(told), pytest.raises(RuntimeError, match="a peer has gone"):
        dist.all_reduce(torch.ones(4))
    assert told.bubbles == [True, False] and not told.is_busy()


def test_gpu_begin_and_end_use_the_stream_current_at_each_call(alone, monkeypatch):
    current = iter([SimpleNamespace(cuda_stream=handle) for handle in (7, 9, 7, 7, 7)])
    monkeypatch.setattr(torch.cuda, "current_stream", lambda gpu: next(current))
    monkeypatch.setattr(_communication, "_gpu_of", lambda tensors: torch.device("cuda", 0))
    told = Told()
    with communication(told):
        work = dist.all_reduce(torch.ones(4), async_op=True)
        work.get_future().wait()
        communicating.until(lambda: not told.is_busy())
        assert told == [(True, 0, 7), (False, 0, 9)]
        dist.all_reduce(torch.ones(4))
        assert told[2:] == [(True, 0, 7), (False, 0, 7)]


def test_the_gpu_of_a_collective_is_that_of_its_tensors():
    on_gpu = torch.ones(1).as_subclass(OnGpu)
    for arguments in ([on_gpu], ([torch.ones(1)], [[on_gpu]]), (None, on_gpu, 3)):
        assert _communication._gpu_of(arguments) == torch.device("cuda", 1)
    assert _communication._gpu_of(([torch.ones(1)], None, dist.ReduceOp.SUM)) is None


class OnGpu(torch.Tensor):
    is_cuda = True
    device = torch.device("cuda", 1)


def test_network_counts_as_busy_while_a_rank_waits_for_others(job):
    communicating.run("busy_while_under_way", 2, job)


def test_each_process_group_has_its_own_channel_while_channels_last():
    communicating.run("groups_have_channels_of_their_own", 2)


@pytest.mark.parametrize("ranks", [2, 3])
def test_ddp_reduces_to_the_same_bits_with_and_without_hook(ranks):
    communicating.run("ddp_computes_the_same_bits", ranks)


def test_ddp_with_an_unknown_divisor_is_left_unchanged():
    communicating.run("ddp_that_cannot_be_matched_is_left_alone", 3)


def test_fsdp_communication_is_marked_without_setup():
    communicating.run("fsdp_is_told", 2)


def state_of_torch() -> list:
    ddp = DistributedDataParallel
    return [{k: v for k, v in owner.__dict__.items() if callable(v)} for owner in (dist.ProcessGroup, dist.Work, ddp)]


def test_close_restores_torch(job, alone):
    before = state_of_torch()
    net = nn.Linear(3, 3)
    with Checkpointer(net, communication="patch", **job) as checkpointer:
        checkpointer.restore()
        assert state_of_torch() != before
        dist.all_reduce(torch.ones(2))
        words = CommWords(job)
        assert words.written() == 4  # the wait is a bubble
    assert state_of_torch() == before
    dist.all_reduce(torch.ones(2))
    assert words.written() == 4


def test_dropped_engine_is_released_and_torch_restored(alone):
    before = state_of_torch()
    told = Told()
    Communication(told, patch=True)
    assert state_of_torch() != before
    dist.all_reduce(torch.ones(2))
    assert len(told) == 2
    del told
    gc.collect()
    assert state_of_torch() == before


@pytest.mark.parametrize("options", [{}, {"communication": "hooks"}, {"communication": None}])
def test_by_default_nothing_of_torch_is_replaced(job, alone, options):
    before = state_of_torch()
    ddp = DistributedDataParallel(nn.Linear(3, 3))
    with Checkpointer(ddp, **options, **job) as checkpointer:
        checkpointer.restore()
        ddp(torch.randn(5, 3)).sum().backward()
        dist.all_reduce(torch.ones(2))
        assert state_of_torch() == before
        assert bool(ddp._comm_hooks) == (options != {"communication": None})


def test_unknown_communication_option_is_refused(job):
    with pytest.raises(Error, match="give 'hooks', 'patch' or None"):
        Checkpointer(nn.Linear(3, 3), communication="magic", **job)


def test_hooks_see_when_ddp_reduces_gradients_and_nothing_else(alone):
    ddp = DistributedDataParallel(nn.Linear(4, 4))
    told = Told()
    placed = Communication(told)
    placed.place([ddp])
    dist.all_reduce(torch.ones(2))
    assert told == []
    for _ in range(2):
        ddp(torch.randn(5, 4)).sum().backward()
        until(lambda: told and not told.is_busy())
    assert told == [(True, 0), (False, 0)] * 2
    placed.close()
    ddp(torch.randn(5, 4)).sum().backward()
    assert len(told) == 4


def test_model_marks_each_communication_once_per_engine(alone):
    ddp = DistributedDataParallel(nn.Linear(4, 4))
    by_hook, by_patch = Told(), Told()
    first = Communication(by_hook)
    first.place([ddp])
    with communication(by_patch) as second:
        second.place([ddp])
        ddp(torch.randn(5, 4)).sum().backward()
        until(lambda: not by_hook.is_busy() and not by_patch.is_busy())
        assert by_hook == by_patch == [(True, 0), (False, 0)]
    first.close()


def test_ddp_wrapper_of_the_captured_model_can_be_watched(job, alone):
    net = nn.Linear(4, 4)
    ddp = DistributedDataParallel(net)
    with Checkpointer(net, **job) as checkpointer:
        checkpointer.restore()
        checkpointer.watch(ddp)
        words = CommWords(job)
        ddp(torch.randn(5, 4)).sum().backward()
        until(lambda: words.written() == 2)
        assert words.kinds() == [(BEGIN, 0), (END, 0)]


@pytest.mark.parametrize("first", [0, 1])
def test_two_engines_listen_independently(alone, first):
    before = state_of_torch()
    told = [Told(), Told()]
    placed = [Communication(engine, patch=True) for engine in told]
    dist.all_reduce(torch.ones(2))
    placed[first].close()
    dist.all_reduce(torch.ones(2))
    placed[1 - first].close()
    dist.all_reduce(torch.ones(2))
    assert len(told[first]) == 2 and len(told[1 - first]) == 4
    if first == 1:  # the other way round, what is left is idle
        assert state_of_torch() == before
    else:
        for owner, methods in zip((dist.ProcessGroup, dist.Work, DistributedDataParallel), before, strict=True):
            for name, method in methods.items():
                setattr(owner, name, method)


def test_ddp_training_loop_is_marked_iteration_by_iteration(job, alone):
    net = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
    ddp = DistributedDataParallel(net)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    with Checkpointer(net, optimizer, communication="patch", **job) as checkpointer:
        checkpointer.restore()
        words = CommWords(job)
        lengths = []
        for k in range(6):
            since = words.written()
            ddp(torch.randn(5, 4)).sum().backward()
            until(lambda: not words.is_busy())
            with checkpointer.update(k):
                optimizer.step()
                optimizer.zero_grad()
            told = words.kinds(since)
            assert told[-1] == (ITERATION, 0) and told.count((BEGIN, 0)) == told.count((END, 0)) > 0
            assert told[0] == (BEGIN, 0) and not words.is_busy()
            lengths.append(len(told))
        assert len(set(lengths[2:])) == 1  # the same pattern, once buckets are as they stay


def test_ddp_gets_its_hook_once_at_restore(job, alone):
    ddp = DistributedDataParallel(nn.Linear(4, 4))
    for _ in range(2):
        with Checkpointer(ddp, **job) as checkpointer:
            checkpointer.restore()
            ddp(torch.randn(5, 4)).sum().backward()
        assert len(ddp._comm_hooks) == 1
    ddp(torch.randn(5, 4)).sum().backward()


def test_copied_model_gets_its_own_hook(alone):
    ddp = DistributedDataParallel(nn.Linear(4, 4))
    told = Told()
    with communication(told):
        ddp(torch.randn(5, 4)).sum().backward()
        until(lambda: not told.is_busy())
        copies = [copy.deepcopy(ddp), pickle.loads(pickle.dumps(ddp))]
        for model in copies:
            del told[:]
            model(torch.randn(5, 4)).sum().backward()
            until(lambda: not told.is_busy())
            assert told == [(True, 0), (False, 0)]
            assert model.module.weight.grad is not None


def test_users_own_hook_is_kept_with_one_warning(alone, caplog):
    called = []

    def mine(state, bucket):
        called.append(bucket.index())
        return dist.all_reduce(bucket.buffer(), async_op=True).get_future().then(lambda done: done.value()[0])

    ddp = DistributedDataParallel(nn.Linear(4, 4))
    ddp.register_comm_hook(None, mine)
    told = Told()
    with caplog.at_level(logging.WARNING, "ckptengine"), communication(told) as placed:
        placed.place([ddp])
        for _ in range(3):
            ddp(torch.randn(5, 4)).sum().backward()
            until(lambda: not told.is_busy())
    assert ddp._comm_hooks == [(mine, None)] and len(called) == 3
    assert len(told) == 6 and not told.is_busy()  # it goes through torch.distributed
    assert len(caplog.records) == 1 and "has a communication hook already" in caplog.text


def test_built_in_ddp_hook_is_kept_with_one_warning(alone, caplog):
    ddp = DistributedDataParallel(nn.Linear(4, 4))
    ddp._register_builtin_comm_hook(dist.BuiltinCommHookType.ALLREDUCE)
    told = Told()
    with caplog.at_level(logging.WARNING, "ckptengine"), communication(told):
        for _ in range(3):
            ddp(torch.randn(5, 4)).sum().backward()
    assert told == [] and len(caplog.records) == 1 and "comm_begin()" in caplog.text


def test_join_that_changes_the_divisor_is_refused(alone):
    ddp = DistributedDataParallel(nn.Linear(4, 4))
    told = Told()
    with communication(told) as placed:
        placed.place([ddp])
        with ddp.join(divide_by_initial_world_size=True):
            ddp(torch.randn(5, 4)).sum().backward()
        with pytest.raises(RuntimeError, match="communication=None"), ddp.join(divide_by_initial_world_size=False):
            ddp(torch.randn(5, 4)).sum().backward()
