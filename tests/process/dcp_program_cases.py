"""Cases of torch's tests of distributed checkpoints with whole programs: models and optimizers of DDP, FSDP, HSDP."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from dcp_case import WAIT_MS, Medium, case, check, layers, trained
from dcp_dtensor_cases import fully_sharded
from dcp_sharded_cases import fsdp1
from torch import nn
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import ShardingStrategy, fully_shard
from torch.nn.parallel import DistributedDataParallel


def wrapped(kind: str, seed: int) -> nn.Module:
    if kind == "ddp":
        return DistributedDataParallel(layers(seed))
    if kind == "fsdp1":
        return fsdp1(seed, use_orig_params=True, device_mesh=init_device_mesh("cpu", (4,)))
    if kind == "hsdp1":
        return fsdp1(seed, use_orig_params=True, device_mesh=init_device_mesh("cpu", (2, 2)),
                     sharding_strategy=ShardingStrategy.HYBRID_SHARD)
    return fully_sharded(seed, (4,))


def save_and_load_a_program(medium: Medium, kind: str, save: Callable) -> None:
    model = wrapped(kind, 0)
    optimizer = trained(model)
    plain = layers(0)
    trained(plain)
    save(dict(zip(("model", "optim"), get_state_dict(model, optimizer), strict=True)) | {"step": torch.tensor(2)})
    whole = StateDictOptions(full_state_dict=True)
    for reader in medium.readers():
        other = wrapped(kind, 5)
        again = torch.optim.Adam(other.parameters(), lr=0.5)
        weights, moments = get_state_dict(other, again)
        state = {"model": weights, "optim": moments, "step": torch.tensor(0)}
        dcp.load(state, storage_reader=reader)
        set_state_dict(other, again, model_state_dict=weights, optim_state_dict=moments)
        assert state["step"] == 2 and again.param_groups[0]["lr"] == 0.1
        found = get_model_state_dict(other, options=whole)
        for name, value in plain.state_dict().items():  # gradients of ranks are added in another order
            torch.testing.assert_close(found[name], value)
        check(get_optimizer_state_dict(other, again, options=whole),
              get_optimizer_state_dict(model, optimizer, options=whole))


@case(4)
def a_program_with_ddp(medium: Medium) -> None:
    save_and_load_a_program(medium, "ddp", medium.save)


@case(4)
def a_program_with_fsdp1(medium: Medium) -> None:
    save_and_load_a_program(medium, "fsdp1", medium.save)


@case(4)
def a_program_with_hsdp1(medium: Medium) -> None:
    save_and_load_a_program(medium, "hsdp1", medium.save)


@case(4)
def an_asynchronous_save_with_fsdp2(medium: Medium) -> None:
    def save(state: dict) -> None:
        writer = medium.writer()
        done: Future = dcp.async_save(state, storage_writer=writer)
        done.result(WAIT_MS / 1000)
        medium.await_storage(writer)

    save_and_load_a_program(medium, "fsdp2", save)


@case(4)
def keys_in_another_order_on_each_rank(medium: Medium) -> None:
    class Collective:
        def state_dict(self) -> dict:
            return {}

        def load_state_dict(self, state: dict) -> None:
            dist.all_gather([torch.zeros(2) for _ in range(4)], torch.ones(2))

    class Other(Collective):
        def load_state_dict(self, state: dict) -> None:
            dist.all_reduce(torch.ones(3))

    state = {"a": Collective(), "b": Other()}
    if dist.get_rank():
        state = dict(reversed(state.items()))
    medium.save(state)
    for reader in medium.readers():
        dcp.load(state, storage_reader=reader)


@case(4)
def a_part_by_its_keys(medium: Medium) -> None:
    model = fully_sharded(0, (4,))
    optimizer = trained(model)
    weights, moments = get_state_dict(model, optimizer)
    medium.save({"model": weights, "optimizer": moments})
    whole = {name: value.full_tensor() for name, value in weights.items()}
    for reader in medium.readers():
        found = {"model": get_model_state_dict(fully_sharded(5, (4,)))}
        dcp.load(found, storage_reader=reader)
        check(dict(found["model"]), dict(weights))
        check(_load_state_dict_from_keys("model", storage_reader=reader)["model"], whole)
        state = _load_state_dict_from_keys("optimizer.state", storage_reader=reader)["optimizer"]["state"]
        assert "param_groups" not in state
        for name, value in moments["state"].items():
            check(state[name]["exp_avg"], value["exp_avg"].full_tensor())


@case(2)
def a_later_save_is_the_one_that_is_loaded(medium: Medium) -> None:
    for number in (1.0, 2.0):
        medium.save({"number": torch.full((10,), number)})
    for reader in medium.readers():
        state = {"number": torch.zeros(10)}
        dcp.load(state, storage_reader=reader)
        assert state["number"].tolist() == [2.0] * 10


@case(4)
def fine_tuning_of_a_part(medium: Medium) -> None:
    """A model is loaded into a larger one; then the larger one, of which a part is frozen, is saved and loaded."""
    base = fully_sharded(0, (4,), 8, 8)
    medium.save({"model": get_model_state_dict(base)})
    expected = [parameter.full_tensor() for parameter in base.parameters()]

    def larger(seed: int) -> nn.Module:
        model = layers(seed, 8, 8, 3)
        for parameter in model[0].parameters():
            parameter.requires_grad = False
        for part in (*model, model):
            fully_shard(part, mesh=init_device_mesh("cpu", (4,)))
        return model

    for reader in medium.readers():
        model = larger(5)
        state = {"model": get_model_state_dict(model[0])}
        dcp.load({"model": {f"0.{key}": value for key, value in state["model"].items()}}, storage_reader=reader)
        set_model_state_dict(model[0], state["model"])
        check([p.full_tensor() for p in model[0].parameters()], expected)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.1)
    model(torch.rand(2, 8)).sum().backward()
    optimizer.step()
    trainable = StateDictOptions(ignore_frozen_params=True)
    weights, moments = get_state_dict(model, optimizer, options=trainable)
    medium.save({"model": weights, "optim": moments})
    for reader in medium.readers():
        found = {"model": get_model_state_dict(larger(6), options=trainable)}
        dcp.load(found, storage_reader=reader)
        check(dict(found["model"]), dict(weights))
        assert not [name for name in found["model"] if name.startswith("0.")]
