"""The undocumented parts of torch that replaceable groups, run() and restore() use. All such uses are in this file,
because they depend on torch's version. require() says what this torch lacks. Tested with torch 2.13."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.utils import _sync_module_states
from torch.nn.parallel import DistributedDataParallel

from .._engine import Error, Status

# Methods of ProcessGroup that communicate. Versions of torch have different ones.
COLLECTIVES = tuple(
    name
    for name in (
        "allreduce allreduce_coalesced reduce broadcast allgather _allgather_base all_gather_single "
        "allgather_coalesced allgather_into_tensor_coalesced all_gather_single_coalesced gather scatter reduce_scatter "
        "_reduce_scatter_base reduce_scatter_single reduce_scatter_tensor_coalesced reduce_scatter_single_coalesced "
        "alltoall alltoall_base all_to_all_single send recv recv_anysource barrier"
    ).split()
    if hasattr(getattr(dist, "ProcessGroup", None), name)
)


def missing(models: Iterable[nn.Module] = ()) -> list[str]:
    """Returns what this torch lacks for replaceable groups, and for the given models."""
    wanted: list[tuple[str, bool]] = [
        ("torch.distributed.ProcessGroup", hasattr(dist, "ProcessGroup")),
        ("Backend.register_backend", hasattr(getattr(dist, "Backend", None), "register_backend")),
        ("torch._C._current_graph_task_id", hasattr(torch._C, "_current_graph_task_id")),
    ]
    for model in _each(models):
        if isinstance(model, DistributedDataParallel):
            wanted.append(("Reducer._reset_state", hasattr(getattr(model, "reducer", None), "_reset_state")))
            wanted.append(("DistributedDataParallel._has_rebuilt_buckets", hasattr(model, "_has_rebuilt_buckets")))
        elif is_fsdp(model):
            wanted.append(("FSDPModule.reset_iter_state", hasattr(model, "reset_iter_state")))
    return sorted({name for name, is_there in wanted if not is_there})


def require(models: Iterable[nn.Module] = ()) -> None:
    """Raises Error if this torch lacks something that replaceable groups, or these models, need."""
    lacks = missing(models)
    if lacks:
        raise Error(
            Status.INVALID,
            f"torch {torch.__version__} has no {' and no '.join(lacks)}, which run() needs; use torch 2.13, or "
            "restart all ranks after a failure",
        )


def in_backward() -> bool:
    """Whether this thread is within a backward pass."""
    return torch._C._current_graph_task_id() != -1


# ---- groups ----


def make_gloo(store: Any, rank: int, size: int, timeout: timedelta, name: str) -> dist.ProcessGroup:
    """Connects a group over gloo. Blocks until all its ranks do the same, at most `timeout`."""
    backend = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
    backend._set_sequence_number_for_group()
    return _group_of(backend, "gloo", store, rank, size, name)


def make_nccl(store: Any, rank: int, size: int, timeout: timedelta, name: str) -> dist.ProcessGroup:
    """Makes a group over NCCL. It connects at its first communication."""
    if not dist.is_nccl_available():
        raise Error(Status.INVALID, "this torch has no NCCL; use the backend 'ckpt:gloo'")
    options = dist.ProcessGroupNCCL.Options()
    options._timeout = timeout
    backend = dist.ProcessGroupNCCL(store, rank, size, options)
    backend._set_sequence_number_for_group()
    return _group_of(backend, "nccl", store, rank, size, name)


def _group_of(backend: Any, kind: str, store: Any, rank: int, size: int, name: str) -> dist.ProcessGroup:
    group = dist.ProcessGroup(store, rank, size)
    backend_type = dist.Backend.backend_type_map[kind]
    group._set_default_backend(backend_type)
    for device in devices_of(kind):
        group._register_backend(device, backend_type, backend)
    group._set_group_name(name)
    return group


def devices_of(kind: str) -> list[torch.device]:
    return [torch.device(name) for name in dist.Backend.backend_capability[kind]]


def set_timeout(group: dist.ProcessGroup, timeout: timedelta) -> None:
    for device in group._device_types:
        group._get_backend(device)._set_default_timeout(timeout)


def timeout_of(group: dist.ProcessGroup) -> timedelta:
    return group._get_backend(group._device_types[0]).options._timeout


def default_store() -> Any:
    """Returns the store through which the ranks of the default group met. None if they met without one."""
    find = getattr(dist.distributed_c10d, "_get_default_store", None)
    return None if find is None else find()


def made_groups() -> tuple[set[Any], int]:
    """Returns the process groups of this process, and the number from which torch names the next one."""
    world = dist.distributed_c10d._world
    return set(world.pg_map), world.group_count


def forget_groups_since(before: tuple[set[Any], int]) -> None:
    """Destroys groups that were made since made_groups() returned `before`. torch then names the next group as if they
    had never existed. So all ranks give it the same name, also ranks that have just started."""
    world = dist.distributed_c10d._world
    known, count = before
    for group in [group for group in world.pg_map if group not in known]:
        dist.destroy_process_group(group)
    world.group_count = count


# ---- models ----


def _each(models: Iterable[nn.Module]) -> Iterator[nn.Module]:
    return (module for model in models for module in model.modules())


def is_fsdp(module: nn.Module) -> bool:
    fsdp = sys.modules.get("torch.distributed.fsdp")  # it is imported if any model uses it
    return isinstance(module, getattr(fsdp, "FSDPModule", ()))


def needs_warm_up(models: Iterable[nn.Module]) -> bool:
    """Whether a DDP model still has its first buckets. DDP replaces them in the second forward pass. Ranks whose
    buckets differ cannot reduce gradients together."""
    return any(
        isinstance(module, DistributedDataParallel)
        and (module.static_graph or not module.find_unused_parameters)
        and not _has_final_buckets(module)
        for module in _each(models)
    )


def reset_models(models: Iterable[nn.Module]) -> None:
    """Lets the next forward pass succeed, wherever the last pass was interrupted. Drops all gradients. All ranks must
    call it at the same iteration, because the ranks' DDP models then agree on their buckets again."""
    fsdp_roots = []
    for model in models:
        for module in model.modules():
            if isinstance(module, DistributedDataParallel):
                # The buckets stay as they are, although torch regards them as its first ones now.
                module._ckpt_has_rebuilt_buckets = _has_final_buckets(module)
                module._has_rebuilt_buckets = False
                module.reducer._reset_state()
            elif is_fsdp(module) and module._get_fsdp_state()._is_root:
                fsdp_roots.append(module)
        for parameter in model.parameters():
            parameter.grad = None
    for root in fsdp_roots:
        root.reset_iter_state()


def _has_final_buckets(module: DistributedDataParallel) -> bool:
    return module._has_rebuilt_buckets or getattr(module, "_ckpt_has_rebuilt_buckets", False)


def send_states(models: Iterable[nn.Module]) -> None:
    """Sends rank 0's parameters and buffers of DDP models to all ranks. DDP's constructor does this, too."""
    for module in _each(models):
        if isinstance(module, DistributedDataParallel):
            _sync_module_states(
                module=module.module,
                process_group=module.process_group,
                broadcast_bucket_size=module.broadcast_bucket_size,
                src=0,
                params_and_buffers_to_ignore=module.parameters_to_ignore,
            )


def reset_scaler(scaler: Any) -> None:
    """Makes a GradScaler forget that it has unscaled gradients of the interrupted iteration."""
    states = getattr(scaler, "_per_optimizer_states", None)
    if states is not None:
        states.clear()
