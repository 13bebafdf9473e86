"""Cases of torch's tests of distributed checkpoints with sharded tensors, of FSDP1 and before."""

from __future__ import annotations

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from dcp_case import Medium, case, check, layers, trained
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec, EnumerableShardingSpec, ShardMetadata
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.checkpoint.state_dict import (
    get_state_dict,
)
from torch.distributed.fsdp import FullyShardedDataParallel, StateDictType


def even(*ranks: int) -> ChunkShardingSpec:
    return ChunkShardingSpec(dim=0, placements=[f"rank:{rank}/cpu" for rank in ranks])


def uneven(*shards: tuple[list[int], list[int], int]) -> EnumerableShardingSpec:
    return EnumerableShardingSpec([ShardMetadata(begin, size, f"rank:{rank}/cpu") for begin, size, rank in shards])


def sharded(spec, *size: int) -> sharded_tensor.ShardedTensor:
    return sharded_tensor.rand(spec, *size, init_rrefs=False)


def gathered(tensor: sharded_tensor.ShardedTensor) -> torch.Tensor | None:
    whole = torch.zeros(tensor.size()) if dist.get_rank() == 0 else None
    tensor.gather(out=whole)
    return whole


def same_everywhere(one: torch.Tensor | None, other: torch.Tensor | None) -> None:
    assert (one is None) == (other is None) and (one is None or torch.equal(one, other))


@case(2)
def sharded_tensors(medium: Medium) -> None:
    state = {"weight": sharded(even(0, 1), 10, 20), "bias": torch.rand(3)}
    medium.save(state)
    for reader in medium.readers():
        found = {"weight": sharded(even(0, 1), 10, 20), "bias": torch.zeros(3)}
        dcp.load(found, storage_reader=reader)
        check(found, state)


@case(2)
def sharded_tensors_are_split_in_another_way(medium: Medium) -> None:
    specs = [
        even(0, 1),
        even(0, 1, 1, 0),
        uneven(([0, 0], [2, 20], 0), ([2, 0], [1, 20], 1), ([3, 0], [3, 20], 0), ([6, 0], [3, 20], 1),
               ([9, 0], [1, 20], 0)),
        uneven(([0, 0], [8, 20], 1), ([8, 0], [2, 20], 0)),
    ]
    for spec in specs:
        stored = {"weight": sharded(spec, 10, 20)}
        medium.save(stored)
        expected = gathered(stored["weight"])
        for reader in medium.readers():
            for other in specs:
                found = {"weight": sharded(other, 10, 20)}
                dcp.load(found, storage_reader=reader)
                same_everywhere(gathered(found["weight"]), expected)


@case(2)
def rows_become_columns(medium: Medium) -> None:
    stored = {"weight": sharded(even(0, 1), 20, 20)}
    medium.save(stored)
    expected = gathered(stored["weight"])
    for reader in medium.readers():
        columns = ChunkShardingSpec(dim=1, placements=["rank:0/cpu", "rank:1/cpu"])
        found = {"weight": sharded(columns, 20, 20)}
        dcp.load(found, storage_reader=reader)
        same_everywhere(gathered(found["weight"]), expected)


@case(2)
def bytes_of_ranks(medium: Medium) -> None:
    medium.save({"one": [1], "two": "of all"})
    for reader in medium.readers():
        state = {"one": [3], "two": "?"}
        dcp.load(state, storage_reader=reader)
        check(state, {"one": [1], "two": "of all"})


@case(2)
def a_sharded_tensor_becomes_a_tensor_and_back(medium: Medium) -> None:
    specs = [even(0, 1), uneven(([0], [8], 1), ([8], [2], 0))]
    for spec in specs:
        stored = {"weight": sharded(spec, 10)}
        medium.save(stored)
        whole = gathered(stored["weight"])
        for reader in medium.readers():
            found = {"weight": torch.zeros(10)}
            dcp.load(found, storage_reader=reader)
            assert whole is None or torch.equal(found["weight"], whole)
        plain = torch.arange(10.0)
        medium.save({"weight": plain})
        for reader in medium.readers():
            found = {"weight": sharded(spec, 10)}
            dcp.load(found, storage_reader=reader)
            again = gathered(found["weight"])
            assert again is None or torch.equal(again, plain)


def fsdp1(seed: int, **more) -> FullyShardedDataParallel:
    return FullyShardedDataParallel(layers(seed), device_id=torch.device("cpu"), **more)


def fsdp1_state(model) -> dict:
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        return {"model": model.state_dict()}


@case(2)
def a_model_of_fsdp1(medium: Medium) -> None:
    model = fsdp1(0)
    stored = fsdp1_state(model)
    medium.save(stored)
    for reader in medium.readers():
        other = fsdp1(5)
        state = fsdp1_state(other)
        dcp.load(state, storage_reader=reader)
        check(state, stored)
        with FullyShardedDataParallel.state_dict_type(other, StateDictType.SHARDED_STATE_DICT):
            other.load_state_dict(state["model"])
        with FullyShardedDataParallel.summon_full_params(model), FullyShardedDataParallel.summon_full_params(other):
            check(list(other.parameters()), list(model.parameters()))


@case(2)
def the_optimizer_of_fsdp1(medium: Medium) -> None:
    model = fsdp1(0, use_orig_params=True)
    optimizer = trained(model)
    state = dict(zip(("model", "optim"), get_state_dict(model, optimizer), strict=True))
    medium.save(state)
    for reader in medium.readers():
        other = fsdp1(5, use_orig_params=True)
        again = trained(other, steps=1)
        found = dict(zip(("model", "optim"), get_state_dict(other, again), strict=True))
        dcp.load(found, storage_reader=reader)
        check(found, state)


@case(2)
def the_sharded_state_of_an_optimizer(medium: Medium) -> None:
    model = fsdp1(0)
    optimizer = trained(model)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state = {"model": model.state_dict(), "optim": FullyShardedDataParallel.optim_state_dict(model, optimizer)}
        medium.save(state)
        for reader in medium.readers():
            found = load_sharded_optimizer_state_dict(state["model"], "optim", reader)
            for name, moments in state["optim"]["state"].items():
                for key, value in moments.items():
                    check(found["optim"]["state"][name][key], value, f"{name}.{key}")
