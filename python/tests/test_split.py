"""How tensors are split over ranks, who has the same, and what is refused. Whole jobs are in
tests/process/test_frameworks.py."""

from __future__ import annotations

import itertools
import json
import re

import pytest
import torch
import torch.distributed as dist
from ckptengine import Error, Stage, Status
from ckptengine.torch import Checkpointer, _split
from ckptengine.torch._replicas import is_partition
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._utils import _compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import _StridedShard
from torch.nn.parallel import DistributedDataParallel


@pytest.fixture
def mesh(tmp_path):
    """Of one rank, which is enough for what a rank decides by itself."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,), mesh_dim_names=("data",))
    dist.destroy_process_group()


PLACEMENTS = [
    [Shard(0), Replicate()],
    [Shard(0), Shard(1)],
    [Shard(0), Shard(0)],
    [_StridedShard(0, split_factor=2), Shard(0)],
    [_StridedShard(0, split_factor=3), Shard(0)],
]


@pytest.mark.parametrize("placements", PLACEMENTS, ids=str)
@pytest.mark.parametrize("rows", [0, 1, 2, 3, 7, 8, 10, 13])
def test_elements_have_the_same_offsets_as_in_torch(rows, placements):
    sizes, shape = (2, 3), (rows, 5)
    words = [_split._word("x", placement) for placement in placements]
    covered = torch.zeros(shape, dtype=torch.int64)
    for at in itertools.product(*map(range, sizes)):
        ranges = _split._ranges(_split.Mesh(("a", "b"), sizes, tuple(range(6)), at), words, shape)
        local_shape, offset = _compute_local_shape_and_global_offset(shape, sizes, list(at), placements)
        split = _split.Split(_split.Mesh((), sizes, (), at), tuple(words), shape, ranges)
        assert split.local_shape() == local_shape
        if 0 not in local_shape:
            assert tuple(r[0][0] for r in ranges) == offset
        for row, column in itertools.product(*(itertools.chain(*(range(*r) for r in dim)) for dim in ranges)):
            covered[row, column] += 1
    assert (covered == (3 if Replicate() in placements else 1)).all()


def test_split_record_is_read_as_written():
    mesh = _split.Mesh(("data", "tensor"), (2, 2), (0, 1, 2, 3), (1, 0))
    odd = _split.Split(mesh, ("S0/2", "S0"), (10, 7), (((0, 2), (5, 7)), ((0, 7),)))
    empty = _split.Split(mesh, ("R", "S0"), (1,), ((),))
    name, data = _split.record(2, "rank0.and1", {"model.a": odd, "model.b": empty, "optim.m.a": odd})
    assert _split.read_record(data + b"   ") == _split.Record(
        2, "rank0.and1", {"model.a": odd, "model.b": empty, "optim.m.a": odd}
    )
    assert name != _split.record(2, "rank0.and1", {"model.a": empty, "model.b": odd})[0]
    for damaged in (b"", b"{}", b"[]", data[:-5], data.replace(b'"format":1', b'"format":2')):
        with pytest.raises(ValueError):
            _split.read_record(damaged)


def test_ranks_along_replicated_dimensions_share_a_shard():
    def alike(at, *words):
        return _split.Split(_split.Mesh((), (2, 2), (4, 5, 6, 7), at), words, (), ()).alike()

    assert alike((1, 0), "R", "S0") == {4, 6} and alike((0, 1), "R", "S0") == {5, 7}
    assert (
        alike((1, 0), "S0", "R") == {6, 7}
        and alike((1, 1), "S0", "S1") == {7}
        and alike((0, 0), "R", "R") == {4, 5, 6, 7}
    )


class Wrapped(torch.Tensor):
    """A tensor whose memory is that of another, as quantized tensors are."""

    @staticmethod
    def __new__(cls, inner):
        return torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=inner.dtype)

    def __init__(self, inner):
        self.inner = inner

    def __tensor_flatten__(self):
        return ["inner"], None

    @classmethod
    def __torch_dispatch__(cls, function, types, arguments=(), options=None):
        return Wrapped(arguments[0].inner) if "detach" in str(function) else NotImplemented


REFUSED = {
    "Partial": (lambda mesh: DTensor.from_local(torch.ones(3), mesh, [Partial()]), r"P\(sum\).*redistribute"),
    "meta": (lambda mesh: torch.ones(3, device="meta"), r"meta device.*to_empty\(\)"),
    "meta DTensor": (lambda mesh: distribute_tensor(torch.ones(3, device="meta"), mesh, [Shard(0)]), r"to_empty\(\)"),
    "subclass": (lambda mesh: Wrapped(torch.ones(3)), "Wrapped.*without memory of its own"),
    "not yet": (lambda mesh: nn.LazyLinear(3).weight, "no shape yet.*forward pass"),
    "odd size": (
        lambda mesh: DTensor.from_local(torch.ones(3), mesh, [Shard(0)], shape=torch.Size([5]), stride=(1,)),
        "distribute_tensor",
    ),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_constructor_refuses_state_that_cannot_be_captured(job, mesh, kind):
    make, words = REFUSED[kind]
    with pytest.raises(Error, match=rf"'tensor\.odd'.*{words}") as caught:
        Checkpointer(tensors={"odd": make(mesh)}, **job)
    assert caught.value.status is Status.INVALID and "\n" not in str(caught.value)


def test_a_dtensor_among_plain_values_is_refused_by_its_path(job, mesh):
    with pytest.raises(Error, match=r"'position'.*DTensor: give it as one of `tensors`"):
        Checkpointer(extra={"position": distribute_tensor(torch.ones(3), mesh, [Shard(0)])}, **job)


def test_fsdp2_state_is_restored_as_dtensors_before_the_first_step(job, mesh):
    def make():
        model = nn.Sequential(nn.Linear(3, 4), nn.LayerNorm(4))
        fully_shard(model, mesh=mesh)
        return model, torch.optim.AdamW(model.parameters())

    model, optimizer = make()
    with Checkpointer(model, optimizer, **job) as checkpointer:
        checkpointer.restore()
        model(torch.randn(2, 3)).square().mean().backward()
        with checkpointer.update(0):
            optimizer.step()
        checkpointer.before_update()
        assert checkpointer.ticket.wait(Stage.COMMITTED, 20_000), checkpointer.ticket.message
    again, fresh = make()
    with Checkpointer(again, fresh, **job) as checkpointer:
        assert checkpointer.restore().iteration == 0
        ticket = checkpointer.snapshot(1)
        assert ticket.taken, ticket.message
    for mine, theirs in zip(again.parameters(), model.parameters(), strict=True):
        assert torch.equal(mine.to_local(), theirs.to_local())
        for key, value in optimizer.state[theirs].items():
            restored = fresh.state[mine][key]
            assert type(restored) is type(value) and torch.equal(_split.local(restored), _split.local(value))
            assert key == "step" or (restored.placements, restored.shape) == (value.placements, value.shape)
    again(torch.randn(2, 3)).square().mean().backward()
    fresh.step()


def test_forward_pass_does_not_change_the_captured_fsdp2_state(job, mesh):
    model = nn.Sequential(nn.Linear(3, 4))
    fully_shard(model, mesh=mesh, reshard_after_forward=False)
    with Checkpointer(model, **job) as checkpointer:
        checkpointer.restore()
        for k in range(2):
            ticket = checkpointer.snapshot(k)
            assert ticket.taken, ticket.message
            with torch.no_grad():
                model(torch.randn(2, 3))
            checkpointer.before_update()
            assert ticket.wait(Stage.COMMITTED, 20_000), ticket.message
            registered = {re.split(r"(?:split|structure)\.", name)[0] for name in checkpointer.engine.registered}
            assert registered == {"model.0.bias", "model.0.weight", "python_state", ""}, "no split, no DTensor"


def test_a_restore_into_another_split_is_refused_before_it_changes_anything(job, mesh):
    tensor = DTensor.from_local(torch.full((4,), 7.0), mesh, [Shard(0)])
    with Checkpointer(tensors={"x": tensor}, **job) as checkpointer:
        checkpointer.restore()
        ticket = checkpointer.snapshot(0)
        checkpointer.before_update()
        assert ticket.wait(Stage.COMMITTED, 20_000), ticket.message
    other = {"x": torch.zeros(4)}
    with Checkpointer(tensors=other, **job) as checkpointer:
        with pytest.raises(Error, match="split over the ranks in another way") as caught:
            checkpointer.restore()
    assert caught.value.status is Status.MISMATCH and not other["x"].any()


def test_optimizer_with_only_some_of_the_parameters_is_a_partition():
    net, average = nn.Linear(2, 2), nn.Linear(2, 2)
    assert not is_partition([net, average], [torch.optim.SGD(net.parameters())])
    assert not is_partition([net], [torch.optim.SGD([net.weight]), torch.optim.SGD([net.bias])])
    assert is_partition([net], [torch.optim.SGD([net.weight])])
    net.bias.requires_grad_(False)
    assert not is_partition([net], [torch.optim.SGD([net.weight])])


def alike_of_two(model, monkeypatch, **more):
    """What rank 0 of two finds, if DDP's group were of two."""
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: [0, 1])
    from ckptengine.torch._inventory import Inventory

    optimizer = torch.optim.AdamW(model.parameters())
    return Inventory({"": model}, {"": optimizer}, more).alike(0, 2)


def test_ddp_ranks_share_a_main_shard_unless_there_is_a_plain_tensor(mesh, monkeypatch):
    model = DistributedDataParallel(nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3)))
    assert alike_of_two(model, monkeypatch) == ({0, 1}, "")
    assert alike_of_two(model, monkeypatch, average=torch.zeros(3)) == ({0}, "tensor.average")
    assert alike_of_two(nn.Linear(2, 2), monkeypatch)[0] == {0}


@pytest.mark.parametrize("where", ["argument", "environment", "file"])
def test_main_shard_named_by_the_caller_keeps_its_name(job, mesh, monkeypatch, tmp_path, where):
    monkeypatch.setattr("ckptengine.torch._inventory.Inventory.alike", lambda *_: (frozenset({0, 1}), ""))
    given = {}
    if where == "argument":
        given = {"shard": "mine"}
    elif where == "environment":
        monkeypatch.setenv("CKPTENGINE_SHARD", "mine")
    else:
        (tmp_path / "options.json").write_text(json.dumps({"shard": "mine"}))
        given = {"config": tmp_path / "options.json"}
    with Checkpointer(nn.Linear(2, 2), **given, **job) as checkpointer:
        assert checkpointer.shard == "mine"
    monkeypatch.delenv("CKPTENGINE_SHARD", raising=False)
    with Checkpointer(nn.Linear(2, 2), **job) as checkpointer:
        assert checkpointer.shard == "rank0.and1"


def test_late_state_that_may_differ_is_refused_while_ranks_share(job, mesh, monkeypatch):
    monkeypatch.setattr(dist, "get_process_group_ranks", lambda group: [0, 1])
    monkeypatch.setattr(dist, "get_world_size", lambda *_: 2)
    model = DistributedDataParallel(nn.Linear(3, 3))
    with Checkpointer(model, **(job | {"world_size": 1})) as checkpointer:
        assert checkpointer.shard == "all_ranks"
        checkpointer.restore()
        assert checkpointer.snapshot(0).taken
        checkpointer.before_update()
        model.module.register_parameter("late", nn.Parameter(torch.zeros(3)))
        ticket = checkpointer.snapshot(1)
    assert (
        ticket.status is Status.INVALID and "'model.module.late' may differ between the ranks [0, 1]" in ticket.message
    )
