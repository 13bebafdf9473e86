"""Finds the tensors of the training state and names them.

    model.<parameter>          parameters                                   overlapped
    optim.<key>.<parameter>    optimizer state: optim.exp_avg.fc.weight     overlapped
    param.group<g>:<i>         parameters that only the optimizer knows     overlapped
    tensor.<name>              tensors given by the caller                  overlapped
    buffer.<buffer>            persistent module buffers                    synchronous: the forward pass changes them

With several models or optimizers, each one's name follows the first word: model.ema.fc.weight. A tensor that appears
twice (tied weights) is captured once, under its first name. Of a DTensor, the local tensor is captured.

Parallel wrappers change a module's parameters while the module runs. FSDP2 replaces them by whole parameters; gather()
undoes that. A DDP model with tensor parallelism loses its parameters at the first forward pass. The inventory remembers
them under their names.

gather() looks at the real objects each time, so it sees state that was created late, replaced or moved.
"""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .._abi import Capture
from .._engine import Error, Status
from ._module_state import hooks_of_modules
from ._optimizer_protocol import hooks_of_optimizers
from ._optimizer_state import OptimizerState, is_own_tensor, prefix
from ._replicas import Replicas, is_partition, narrowest
from ._split import Mesh, Split, is_dtensor, joined, local, split_of


class Found(NamedTuple):
    name: str
    tensor: Tensor  # as the training loop has it, so it may be a DTensor
    capture: Capture
    of: Tensor | None = None  # for optimizer state: the parameter that it belongs to


class Inventory(OptimizerState):
    def __init__(self, models: Mapping[str, nn.Module], optimizers: Mapping[str, Any], tensors: Mapping[str, Tensor]):
        super().__init__(optimizers)
        self.models = models
        self.tensors = tensors
        self._local_parameters: dict[str, dict[str, Tensor]] = {key: {} for key in models}
        self._replicas = Replicas()
        self._found: list[Any] = []  # by the last identities(): all objects, the tensors among them, the result
        self._sizes: list[int] = []
        self._tensors: list[Tensor] = []
        self._dtensors: list[Tensor] = []
        self._identities: tuple[list[int], ...] = ()
        self._captured: set[tuple] = set()  # by the last gather(): what identifies the memory of each tensor
        _refuse_hidden_state(optimizers)
        self._find_modules()

    def _find_modules(self) -> None:
        """Remembers the dicts in which modules keep their members, to compare members without walking the tree."""
        modules = list({id(m): m for model in self.models.values() for m in model.modules()}.values())
        self._children = [m._modules for m in modules]
        self._members = [d for m in modules for d in (m._parameters, m._buffers)]
        self._hooks = [*hooks_of_modules(modules), *hooks_of_optimizers(self.optimizers.values())]
        dicts = self._children + self._members + self._hooks
        self._full, self._empty = [d for d in dicts if d], [d for d in dicts if not d]
        fsdp = sys.modules.get("torch.distributed.fsdp")  # it is imported if any model uses it
        self._sharded = [m for m in modules if isinstance(m, getattr(fsdp, "FSDPModule", ()))]
        for key, model in self.models.items():
            named = model.named_parameters()
            self._local_parameters[key] |= {name: p for name, p in named if hasattr(p, "_st_info")}

    def _parameters(self, key: str) -> Iterator[tuple[str, Tensor]]:
        """Yields the parameters of a model by name, also those that a DDP model with tensor parallelism has removed."""
        present = dict(self.models[key].named_parameters())
        yield from present.items()
        yield from ((name, p) for name, p in self._local_parameters[key].items() if name not in present)

    def identities(self) -> tuple[list[int], ...]:
        """Returns identities, addresses and lengths of all tensors, identities of modules and hooks, and the members of
        parameter groups. If they are equal at two calls, nothing was replaced or moved. Every snapshot calls it, so it
        is quick while all objects are those of the last call."""
        for module in self._sharded:
            module.reshard()  # after a forward pass without a backward pass, FSDP2 leaves whole parameters
        found = self._objects()
        is_same = len(found) == len(self._found) and all(map(operator.is_, found, self._found))
        if is_same and self._sizes == self._groups():
            if self._places() == self._identities[2:] and not any(map(len, self._empty)):
                return self._identities
        self._identities = self._look_anew()
        self._found, self._sizes = found, self._groups()
        return self._identities

    def _objects(self) -> list[Any]:
        """All objects that may be tensors of the state, or have them."""
        holders: list[Any] = [*_values_of(self._full), self.tensors.values()]
        for optimizer in self.optimizers.values():
            holders += [group["params"] for group in optimizer.param_groups]
            holders += _values_of(optimizer.state.values())
        return list(itertools.chain.from_iterable(holders))

    def _groups(self) -> list[int]:
        """Returns how many parameters each group has."""
        return [len(group["params"]) for optimizer in self.optimizers.values() for group in optimizer.param_groups]

    def _places(self) -> tuple[list[int], ...]:
        """Returns addresses and lengths."""
        return (
            list(map(Tensor.data_ptr, self._tensors)),
            [local(tensor).data_ptr() for tensor in self._dtensors],
            list(map(Tensor.numel, self._tensors)),
            list(map(Tensor.numel, self._dtensors)),
        )

    def _look_anew(self) -> tuple[list[int], ...]:
        found: list[Any] = [member for members in self._members for member in members.values()]
        for optimizer in self.optimizers.values():
            for group in optimizer.param_groups:
                found += group["params"]
            found += itertools.chain.from_iterable(_values_of(optimizer.state.values()))
        found += self.tensors.values()
        tensors = list({id(value): value for value in found if isinstance(value, Tensor)}.values())
        children = [child for members in self._children + self._hooks for child in members.values()]
        self._tensors = [tensor for tensor in tensors if not is_dtensor(tensor)]
        self._dtensors = [tensor for tensor in tensors if is_dtensor(tensor)]
        self.look_at_states()
        groups = (group["params"] for optimizer in self.optimizers.values() for group in optimizer.param_groups)
        members = [*self._groups(), *map(id, itertools.chain.from_iterable(groups))]
        return (list(map(id, children)) + members, list(map(id, tensors)), *self._places())

    def gather(self) -> Iterator[Found]:
        """Yields every tensor once, with its name. The order is the same in every run of the program."""
        self._find_modules()
        for module in self._sharded:
            module.reshard()
        seen: set[tuple] = set()
        captured: set[tuple] = set()
        for found in self._all():
            refuse_without_memory(found.name, found.tensor)
            memory = _memory_of(found.tensor)
            captured.add(memory)
            identity = (memory, found.capture) if local(found.tensor).numel() else (found.name,)
            if identity not in seen:
                seen.add(identity)
                yield found
        self._captured = captured

    def is_captured(self, tensor: Tensor) -> bool:
        """Whether the last gather() has found a tensor that is the same memory."""
        return _memory_of(tensor) in self._captured

    def _all(self) -> Iterator[Found]:
        for key in self.models:
            for name, parameter in self._parameters(key):
                yield Found(f"{prefix('model', key)}.{name}", parameter, Capture.OVERLAPPED)
        for key, optimizer in self.optimizers.items():
            known = self._model_names()
            names = self.parameter_names(key)
            for parameter, name in names.items():
                if parameter not in known:
                    yield Found(f"{prefix('param', key)}.{name}", parameter, Capture.OVERLAPPED)
            for parameter, state in optimizer.state.items():
                for state_key, value in state.items() if parameter in names else ():
                    if is_own_tensor(state_key, value):
                        name = self.state_name(key, state_key, names[parameter])
                        yield Found(name, value, Capture.OVERLAPPED, parameter)
        for name, tensor in self.tensors.items():
            yield Found(f"tensor.{name}", tensor, Capture.OVERLAPPED)
        for key, model in self.models.items():
            transient = _transient_buffers(model)
            for name, buffer in model.named_buffers(prefix("buffer", key)):
                if id(buffer) not in transient:
                    yield Found(name, buffer, Capture.SYNCHRONOUS)

    def tied(self) -> dict[str, str]:
        """Returns the further names of tied model tensors, each with the name under which it is captured."""
        found: dict[str, str] = {}
        for key, model in self.models.items():
            for kind, every in (("model", model.named_parameters), ("buffer", model.named_buffers)):
                first: dict[Tensor, str] = {}
                for name, tensor in every(prefix(kind, key), remove_duplicate=False):
                    if first.setdefault(tensor, name) != name:
                        found[name] = first[tensor]
        return found

    # ---- how tensors lie over the ranks ----

    def splits(self) -> dict[str, Split]:
        """Returns how tensors are split, by name. Optimizer state of a parameter's shape is split like it."""
        found: dict[str, Split] = {}
        for name, tensor, _, of in self.gather():
            split = split_of(name, tensor)
            if split is None and of is not None and not is_dtensor(of) and tensor.shape == of.shape:
                split = split_of(name, of)
            if split is not None:
                found[name] = split
        return found

    def alike(self, rank: int, world_size: int) -> tuple[frozenset[int], str]:
        """Returns the ranks whose main shard is the same as this rank's, and the name of the tensor that excludes the
        other ranks. The name is empty if all ranks have the same main shard."""
        self._replicas.look_at(self.models.values())
        if is_partition(self.models.values(), self.optimizers.values()):
            return frozenset({rank}), "optim"
        alike = {
            found.name: self._ranks_alike(found, rank)
            for found in self.gather()
            if found.capture is not Capture.SYNCHRONOUS
        }
        return narrowest(alike, rank, world_size) if alike else (frozenset({rank}), "")

    def is_in_ddp(self) -> bool:
        """Whether all tensors of the main shard belong to DDP models. True even if there is only one rank now."""
        main = [found for found in self.gather() if found.capture is not Capture.SYNCHRONOUS]
        held = (self._replicas.of_parameter(found.tensor if found.of is None else found.of) for found in main)
        return bool(main) and all(ranks is not None for ranks in held)

    def _ranks_alike(self, found: Found, rank: int) -> frozenset[int]:
        of_model = self._replicas.of_parameter(found.tensor if found.of is None else found.of)
        if of_model is not None:
            return of_model
        for tensor in (found.tensor, found.of):
            split = None if tensor is None else split_of(found.name, tensor)
            if split is not None:
                return split.alike()
        return frozenset({rank})

    def join_created_state(self, stored: Mapping[str, Split]) -> None:
        """Turns state that create_missing_state() made into DTensors, with the splits that are stored."""
        meshes: dict[Mesh, Any] = {}
        for found in self.gather():
            for tensor in (found.tensor, found.of):
                if is_dtensor(tensor):
                    split = split_of(found.name, tensor)
                    if split is not None:
                        meshes[split.mesh] = tensor.device_mesh
        for key, optimizer in self.optimizers.items():
            for parameter, name in self.parameter_names(key).items():
                for state_key, value in optimizer.state.get(parameter, {}).items() if is_dtensor(parameter) else ():
                    if is_own_tensor(state_key, value) and not is_dtensor(value):
                        split = stored.get(self.state_name(key, state_key, name))
                        if split is None:
                            continue
                        here = split_of(name, parameter)
                        if split.mesh not in meshes and here is not None:
                            # Another number of ranks stored it, with another mesh, if all of them have all of it.
                            split = here if (split.shape, split.at) == (here.shape, here.at) else split
                        optimizer.state[parameter][state_key] = joined(value, split, meshes)

    def _model_names(self) -> dict[Tensor, str]:
        return {p: f"{key}.{name}" if key else name for key in self.models for name, p in self._parameters(key)}


def _refuse_hidden_state(optimizers: Mapping[str, Any]) -> None:
    """Raises Error for an optimizer that keeps state in an optimizer of its own, if that one was not given, too."""
    given = {id(optimizer) for optimizer in optimizers.values()}
    for optimizer in optimizers.values():
        for name, inner in getattr(optimizer, "__dict__", {}).items():
            is_hidden = isinstance(inner, torch.optim.Optimizer) and id(inner) not in given
            if is_hidden and inner.state is not optimizer.state:
                kind = type(optimizer).__name__
                raise Error(
                    Status.INVALID,
                    f"{kind} keeps state in an optimizer of its own, its attribute {name!r}, which would not be "
                    f"captured; give both to the Checkpointer: optimizer={{'outer': o, 'inner': o.{name}}}",
                )


def refuse_without_memory(name: str, tensor: Tensor) -> None:
    """Raises Error for tensors that have nothing to capture yet."""
    if nn.parameter.is_lazy(tensor):
        raise Error(Status.INVALID, f"tensor '{name}' has no shape yet: run a forward pass before the Checkpointer")
    if local(tensor).is_meta:
        raise Error(
            Status.INVALID,
            f"tensor '{name}' is on the meta device, without memory: call to_empty() of its module before the "
            "Checkpointer",
        )


def _memory_of(tensor: Tensor) -> tuple:
    mine = local(tensor)
    return mine.data_ptr(), mine.shape, mine.stride(), mine.dtype


def _values_of(mappings: Iterable[Any]) -> list[Any]:
    """Returns the values of each mapping. An object that is none stands for itself."""
    try:
        return [*map(dict.values, mappings)]  # three times faster
    except TypeError:
        return [item.values() if isinstance(item, Mapping) else (item,) for item in mappings]


def _transient_buffers(model: nn.Module) -> set[int]:
    """Identities of the buffers that are not in the module's state_dict."""
    return {id(m._buffers[name]) for m in model.modules() for name in m._non_persistent_buffers_set}


def named(what: str, value: Any) -> dict[str, Any]:
    """Returns one object, a sequence or a dict of objects as a dict by name. The name of a single object is empty."""
    if value is None:
        return {}
    if isinstance(value, Mapping):
        bad = [key for key in value if not isinstance(key, str) or not key or "." in key]
        if bad:
            raise Error(
                Status.INVALID,
                f"{what} has the name {bad[0]!r}, but a name must be a non-empty string without a dot; change it",
            )
        return dict(value)
    if isinstance(value, (list, tuple)):
        return {str(i): item for i, item in enumerate(value)}
    return {"": value}
