"""Cases of torch's tests of distributed checkpoints with DTensors: meshes, tensor parallel, FSDP2."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from dcp_case import Medium, case, check, layers, trained
from dcp_sharded_cases import fsdp1, fsdp1_state
from torch import nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_state_dict,
    set_model_state_dict,
)
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, zeros
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

PLACEMENTS = {1: [[Shard(0)], [Replicate()]],
              2: [[Replicate(), Replicate()], [Replicate(), Shard(0)], [Shard(0), Replicate()], [Shard(0), Shard(0)]]}


def meshes() -> list[tuple[DeviceMesh, list]]:
    """Each mesh of one and two dimensions, with each placement on it."""
    two = (2, dist.get_world_size() // 2)
    return [(init_device_mesh("cpu", shape), placement)
            for shape in ((dist.get_world_size(),), two) for placement in PLACEMENTS[len(shape)]]


@case(2, 4)
def dtensors_change_mesh_and_placement(medium: Medium) -> None:
    """A tensor for each mesh and placement, all in one checkpoint."""
    whole = torch.arange(16.0).reshape(4, 4)
    medium.save({str(i): distribute_tensor(whole + i, *stored) for i, stored in enumerate(meshes())})
    for reader in medium.readers():
        for other, target in meshes():
            state = {str(i): zeros([4, 4], device_mesh=other, placements=target) for i in range(len(meshes()))}
            dcp.load(state, storage_reader=reader)
            for i in range(len(state)):
                check(state[str(i)].full_tensor(), whole + i)


@case(4)
def dtensors_of_which_a_rank_has_nothing(medium: Medium) -> None:
    mesh = init_device_mesh("cpu", (4,))
    for length in (1, 2, 5):
        whole = torch.rand(length, 3)
        medium.save({"weight": distribute_tensor(whole, mesh, [Shard(0)])})
        for reader in medium.readers():
            state = {"weight": zeros([length, 3], device_mesh=mesh, placements=[Shard(0)])}
            dcp.load(state, storage_reader=reader)
            check(state["weight"].full_tensor(), whole)


@case(4)
def dtensors_on_a_part_of_the_ranks(medium: Medium) -> None:
    mesh, half = DeviceMesh("cpu", range(4)), DeviceMesh("cpu", [0, 2])

    def make(factor: float) -> dict:
        return {
            "split": distribute_tensor(torch.arange(4.0) * factor, mesh, [Shard(0)]),
            "same": distribute_tensor(torch.arange(4.0, 8.0) * factor, mesh, [Replicate()]),
            "half split": zeros([4], device_mesh=half, placements=[Shard(0)]).add_(factor),
            "half same": zeros([4], device_mesh=half, placements=[Replicate()]).add_(factor),
            "extra": {"number": int(factor), "tensor": torch.tensor([factor])},
        }

    expected = make(1.0)
    medium.save(expected)
    for reader in medium.readers():
        state = make(9.0)
        dcp.load(state, storage_reader=reader)
        check(state, expected)


@case(2, 4)
def tensor_parallel(medium: Medium) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel(), "2": ColwiseParallel()}
    model = parallelize_module(layers(0), mesh, plan)
    expected = model.state_dict()
    medium.save({"model": expected}, planner=DefaultSavePlanner())
    for reader in medium.readers():
        state = {"model": parallelize_module(layers(5), mesh, plan).state_dict()}
        dcp.load(state, storage_reader=reader, planner=DefaultLoadPlanner())
        check(dict(state["model"]), dict(expected))


@case(2)
def a_model_on_the_meta_device(medium: Medium) -> None:
    mesh = init_device_mesh("cpu", (2,))
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel(), "2": ColwiseParallel()}
    expected = parallelize_module(layers(0), mesh, plan).state_dict()
    medium.save({"model": expected})
    for reader in medium.readers():
        with torch.device("meta"):
            other = layers(5)
        other = parallelize_module(other, mesh, plan)
        given = other.state_dict()
        state = {"model": given}
        dcp.load(state, storage_reader=reader)
        assert state["model"] is given
        other.load_state_dict(given, assign=True)
        check(dict(other.state_dict()), dict(expected))


def fully_sharded(seed: int, shape: tuple[int, ...], *sizes: int) -> nn.Module:
    names = ("replicate", "shard")[-len(shape):]
    model = layers(seed, *sizes)
    fully_shard(model[0], mesh=init_device_mesh("cpu", shape, mesh_dim_names=names))
    return fully_shard(model, mesh=init_device_mesh("cpu", shape, mesh_dim_names=names))


@case(4)
def hsdp_and_fsdp2_in_both_directions(medium: Medium) -> None:
    even, uneven = (8, 16, 8), (5, 10, 15, 7)
    for sizes, stored, loaded in ((even, (2, 2), (2, 2)), (uneven, (2, 2), (4,)), (uneven, (4,), (2, 2))):
        model = fully_sharded(0, stored, *sizes)
        state = dict(zip(("model", "optim"), get_state_dict(model, trained(model, sizes[0])), strict=True))
        medium.save(state)
        for reader in medium.readers():
            other = fully_sharded(5, loaded, *sizes)
            found = dict(zip(("model", "optim"), get_state_dict(other, trained(other, sizes[0], 1)), strict=True))
            dcp.load(found, storage_reader=reader)
            for one, value in state["model"].items():
                check(found["model"][one].full_tensor(), value.full_tensor())
            for one, moments in state["optim"]["state"].items():
                for key, value in moments.items():
                    value = value.full_tensor() if isinstance(value, DTensor) else value
                    again = found["optim"]["state"][one][key]
                    check(again.full_tensor() if isinstance(again, DTensor) else again, value)


@case(2)
def fsdp1_becomes_fsdp2_and_tensor_parallel(medium: Medium) -> None:
    model = fsdp1(0)
    with FullyShardedDataParallel.summon_full_params(model):
        expected = [parameter.detach().clone() for parameter in model.parameters()]
    medium.save(fsdp1_state(model))
    mesh = init_device_mesh("cpu", (2,))
    for reader in medium.readers():
        for other in (fully_sharded(5, (2,)),
                      parallelize_module(layers(5), mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})):
            state = {"model": get_model_state_dict(other)}
            dcp.load(state, storage_reader=reader)
            set_model_state_dict(other, state["model"])
            parameters = [p.full_tensor() if isinstance(p, DTensor) else p for p in other.parameters()]
            check([p.detach() for p in parameters], expected)
