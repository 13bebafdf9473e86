"""Finds out which ranks have the same main shard: ranks for which every tensor of the main shard is the same.

For which ranks a tensor is the same depends on its kind:

    a DTensor                         the ranks along the mesh dimensions that replicate it
    a parameter in a DDP model        the ranks of the model's process group
    optimizer state of a parameter    a DTensor as above; otherwise the ranks of the parameter
    any other tensor                  this rank alone, because nothing says that other ranks have the same

The result is the ranks that all these sets have in common. Each tensor divides the ranks into groups, so all ranks of a
result compute the same result. An optimizer that has only some of the parameters is a partition (ZeRO), which differs
between the ranks of a DDP model.
"""

from __future__ import annotations

import json
import os
import weakref
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from .._engine import Error, Status

if TYPE_CHECKING:
    from ._inventory import Inventory


class Replicas:
    """Remembers the parameters of DDP models, because with tensor parallelism the first forward pass removes them from
    the modules."""

    def __init__(self) -> None:
        self._ranks: dict[int, frozenset[int]] = {}  # by identity of the parameter
        self._seen: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()
        self._parameters: list[Tensor] = []  # kept, so that no other tensor gets the same identity

    def look_at(self, models: Iterable[nn.Module]) -> None:
        for model in models:
            for module in model.modules():
                # Looks at a model only once, because DDP does not reduce gradients of parameters that it gets later.
                if isinstance(module, DistributedDataParallel) and module not in self._seen:
                    self._seen.add(module)
                    self._look_at(module)

    def _look_at(self, model: DistributedDataParallel) -> None:
        ranks = frozenset(torch.distributed.get_process_group_ranks(model.process_group))
        for name, parameter in model.module.named_parameters():
            if name not in model.parameters_to_ignore and id(parameter) not in self._ranks:
                self._ranks[id(parameter)] = ranks
                self._parameters.append(parameter)

    def of_parameter(self, parameter: Tensor) -> frozenset[int] | None:
        return self._ranks.get(id(parameter))


def is_partition(models: Iterable[nn.Module], optimizers: Iterable[Any]) -> bool:
    """Whether the optimizers have some, but not all, of the parameters that the models train."""
    optimizers = list(optimizers)
    if any(type(optimizer).__name__ == "ZeroRedundancyOptimizer" for optimizer in optimizers):
        return True
    updated = {id(p) for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]}
    for model in models:
        trained = [id(parameter) in updated for parameter in model.parameters() if parameter.requires_grad]
        if any(trained) and not all(trained):
            return True
    return False


def narrowest(alike: Mapping[str, frozenset[int]], rank: int, all_ranks: int) -> tuple[frozenset[int], str]:
    """Returns the ranks that all tensors have in common, and the name of the tensor that excluded the last rank."""
    common, why = frozenset(range(all_ranks)), ""
    for name, ranks in alike.items():
        if common - ranks:
            common, why = common & ranks, name
    return common | {rank}, why


# Name of the main shard that all ranks share. It does not depend on their number, which a restart may change.
ALL_RANKS = "all_ranks"


class MainShard:
    """The name of this rank's main shard with torch.distributed. If nobody gave a name, `ranks` share the shard."""

    def __init__(self, inventory: Inventory, given: Mapping[str, Any]) -> None:
        self._inventory = inventory
        self.ranks: frozenset[int] = frozenset()
        self.name = given_option(given, "shard")
        if not self.name:
            ranks, _ = self._alike()
            self.name = f"rank{given['rank']}"
            world_size = torch.distributed.get_world_size()
            if len(ranks) == world_size and (world_size > 1 or self._inventory.is_in_ddp()):
                self.ranks, self.name = ranks, ALL_RANKS
            elif len(ranks) > 1:
                self.ranks, self.name = ranks, f"rank{min(ranks)}.and{len(ranks) - 1}"

    def refuse_what_differs(self) -> None:
        """Raises Error if new state has appeared that may differ between the ranks that share the main shard."""
        if not self.ranks:
            return
        ranks, why = self._alike()
        if not self.ranks <= ranks:
            raise Error(
                Status.INVALID,
                f"'{why}' may differ between the ranks {sorted(self.ranks)}, which share the main shard '{self.name}'; "
                f"create '{why}' before the Checkpointer, or give each rank its own `shard`",
            )

    def _alike(self) -> tuple[frozenset[int], str]:
        return self._inventory.alike(this_rank(), torch.distributed.get_world_size())


def given_option(given: Mapping[str, Any], key: str) -> str:
    """Returns an option from an argument, the environment or the file of options. "" if none has it."""
    if given.get(key) is not None:
        return str(given[key])
    if in_environment := os.environ.get(f"CKPTENGINE_{key.upper()}"):
        return in_environment
    file = given.get("config") or os.environ.get("CKPTENGINE_CONFIG")
    try:
        return str(json.loads(Path(file).read_text()).get(key, "")) if file else ""
    except (OSError, ValueError, AttributeError):
        return ""  # the engine raises an error about the file


def is_distributed() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


def this_rank() -> int:
    return torch.distributed.get_rank() if is_distributed() else 0
