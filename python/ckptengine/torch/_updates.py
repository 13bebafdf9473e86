"""Gives the engine the gradients of updates that other nodes can repeat (docs/mechanisms.md).

Optimizers call this right before they update, when gradients are final. An update that cannot be repeated is refused
with a sentence in the log, once for each reason. Nodes then fetch the checkpoint in full, so nothing is lost but time.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from .._abi import Memory, Optimizer
from .._engine import Engine, Error
from ._inventory import Inventory
from ._memory import Shown
from ._split import local

log = logging.getLogger("ckptengine")

ADAM_MOMENTS = {"first_moment": "exp_avg", "second_moment": "exp_avg_sq", "largest_second_moment": "max_exp_avg_sq"}
FIRST_TORCH_FOR_GPUS = (2, 11)  # before it, torch's kernels for GPUs compute in another way


class NotRepeatable(Exception):
    """The update cannot be repeated; the text says why."""


class Updates:
    def __init__(self, engine: Engine, inventory: Inventory) -> None:
        self._engine = engine
        self._inventory = inventory
        self._told: set[str] = set()
        # By optimizer: names of its parameters as the inventory gives them, and as they are captured.
        self._names: dict[str, tuple[dict[Tensor, str], dict[Tensor, str]]] = {}
        # By parameter and number of moments: the names of its tensors that were found to be right.
        self._registered: dict[tuple[Tensor, int], dict[str, str]] = {}
        self._known: Any = None  # the identities for which both are right

    def give(
        self,
        key: str,
        optimizer: Any,
        shown: Mapping[str, Shown],
        identities: Any,
        *,
        has_closure: bool = False,
        stream: int | None = None,
    ) -> None:
        """Gives the gradients of the update that `optimizer` is about to make. `key` is its name, `shown` has the
        registered tensors, and `identities` is another object when they are others. `has_closure`: step() computes the
        gradients itself. `stream`: the current stream, if tensors are on a GPU."""
        if not self._engine.wants_gradients():
            return
        if identities is None or identities is not self._known:
            self._names, self._registered, self._known = {}, {}, identities
        if key not in self._names:
            self._names[key] = self._inventory.parameter_names(key), self._inventory.captured_names(key)
        try:
            if _is_skipped(optimizer):
                return
            if has_closure:
                raise NotRepeatable("step() has a closure, so gradients are not final before it; call it without one")
            gradients = list(self._gradients(key, optimizer, shown))
            for gradient in gradients:
                self._engine.add_gradient(stream=stream, **gradient)
        except (NotRepeatable, Error) as why:
            self._tell(str(why))

    def _tell(self, why: str) -> None:
        if why not in self._told:
            self._told.add(why)
            log.warning("updates are not repeated on other nodes, which fetch checkpoints in full: %s", why)

    def _gradients(self, key: str, optimizer: Any, shown: Mapping[str, Shown]) -> Iterator[dict[str, Any]]:
        if type(optimizer) not in (torch.optim.AdamW, torch.optim.Adam, torch.optim.SGD):
            raise NotRepeatable(f"only torch.optim.AdamW, Adam and SGD are repeated, not {type(optimizer).__name__}")
        if getattr(optimizer, "grad_scale", None) is not None:
            raise NotRepeatable("the gradient scaler unscales within step(); call scaler.unscale_(optimizer) before it")
        for group in optimizer.param_groups:
            stepping = [parameter for parameter in group["params"] if parameter.grad is not None]
            moments = _moments(group)
            if moments and not any(optimizer.state.get(parameter) for parameter in stepping):
                continue  # this step creates the moments, so there is nothing to repeat it with
            factors = _factors(optimizer, group, stepping)
            for parameter in stepping:
                yield factors | self._gradient(key, parameter, optimizer.state[parameter], moments, shown)

    def _gradient(
        self, key: str, parameter: Tensor, state: Mapping, moments: Mapping[str, str], shown: Mapping[str, Shown]
    ) -> dict[str, Any]:
        registered = self._registered.get((parameter, len(moments)))
        if registered is None:
            registered = self._names_of(key, parameter, state, moments, shown)
            self._registered[parameter, len(moments)] = registered
        gradient = local(parameter.grad)
        if gradient.layout is not torch.strided or not gradient.is_contiguous():
            raise NotRepeatable(f"the gradient of {self._names[key][0][parameter]} is not contiguous")
        if gradient.dtype is not torch.float32:
            raise NotRepeatable(f"the gradient of {self._names[key][0][parameter]} is {gradient.dtype}, not float32")
        given: dict[str, Any] = {
            "data": gradient.data_ptr(),
            "elements": gradient.numel(),
            "memory": Memory.DEVICE if gradient.is_cuda else Memory.HOST,
        }
        if "step" in state and "step_count" not in registered:
            given["step"] = float(state["step"]) + 1
        return registered | given

    def _names_of(
        self, key: str, parameter: Tensor, state: Mapping, moments: Mapping[str, str], shown: Mapping[str, Shown]
    ) -> dict[str, str]:
        """Checks the tensors of the parameter, and returns their names."""
        names, captured = self._names[key]
        name = names[parameter]
        if any(state.get(kind) is None for kind in moments.values()):
            raise NotRepeatable(f"the moments of parameter {name} do not exist yet")
        registered = {"parameter": captured[parameter]} | {
            of: self._inventory.state_name(key, kind, name) for of, kind in moments.items()
        }
        tensors = {"parameter": parameter} | {of: state[kind] for of, kind in moments.items()}
        for of, tensor in tensors.items():
            there = shown.get(registered[of])
            mine = local(tensor)
            if there is None or there.memory.data_ptr() != mine.data_ptr():
                raise NotRepeatable(f"tensor {registered[of]} is tied or not contiguous, so it is captured elsewhere")
            if mine.dtype is not torch.float32 or mine.numel() != local(parameter).numel():
                raise NotRepeatable(f"parameters and moments must be float32, but {registered[of]} is {mine.dtype}")
        step = state.get("step")
        if isinstance(step, Tensor) and step.is_cuda:  # to read it would wait for the GPU; its name is enough
            registered["step_count"] = self._inventory.state_name(key, "step", name)
            if registered["step_count"] not in shown or step.dtype is not torch.float32:
                raise NotRepeatable(f"the number of steps of parameter {name} is not a float32 of its own")
        return registered


def _is_skipped(optimizer: Any) -> bool:
    """Whether the fused step will change nothing, because the gradient scaler found infinities or NaNs."""
    found = getattr(optimizer, "found_inf", None)
    if found is not None and found.is_cuda:
        raise NotRepeatable("a gradient scaler decides on the GPU whether to skip the step; use foreach=True")
    return found is not None and bool(found.item())


def _moments(group: Mapping[str, Any]) -> dict[str, str]:
    """The keys of the moments in the optimizer's state, by the names that the engine gives them."""
    if "betas" not in group:
        return {"first_moment": "momentum_buffer"} if group["momentum"] else {}
    return {of: kind for of, kind in ADAM_MOMENTS.items() if group["amsgrad"] or of != "largest_second_moment"}


def _factors(optimizer: Any, group: Mapping[str, Any], stepping: list[Tensor]) -> dict[str, Any]:
    """The hyperparameters of a parameter group, as the engine names them, and how torch computes with them. Raises
    NotRepeatable."""
    if group.get("capturable") or group.get("differentiable"):
        raise NotRepeatable("the optimizer is capturable or differentiable")
    factors = _adam_factors(optimizer, group) if "betas" in group else _sgd_factors(group)
    if any(isinstance(factor, Tensor) for factor in factors.values()):
        raise NotRepeatable("a hyperparameter is a tensor; give a float")
    return factors | _arithmetic(group, stepping) | {"torch_version": torch.__version__}


def _adam_factors(optimizer: Any, group: Mapping[str, Any]) -> dict[str, Any]:
    beta1, beta2 = group["betas"]
    # torch 2.5 does not have it
    is_decoupled = group.get("decoupled_weight_decay", type(optimizer) is torch.optim.AdamW)
    return {
        "optimizer": Optimizer.ADAM,
        "learning_rate": group["lr"],
        "beta1": beta1,
        "beta2": beta2,
        "epsilon": group["eps"],
        "weight_decay": group["weight_decay"],
        "decoupled_weight_decay": is_decoupled,
        "maximize": group["maximize"],
    }


def _sgd_factors(group: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "optimizer": Optimizer.SGD,
        "learning_rate": group["lr"],
        "momentum": group["momentum"],
        "dampening": group["dampening"],
        "weight_decay": group["weight_decay"],
        "nesterov": group["nesterov"],
        "maximize": group["maximize"],
    }


def _arithmetic(group: Mapping[str, Any], stepping: list[Tensor]) -> dict[str, Any]:
    on_gpu = {parameter.is_cuda for parameter in stepping}
    if len(on_gpu) > 1:
        raise NotRepeatable("a parameter group is partly on a GPU")
    is_unfused = not group.get("fused")
    if True in on_gpu:
        check_gpu(group, is_unfused=is_unfused)
        is_plain = all(type(parameter) in (Tensor, torch.nn.Parameter) for parameter in stepping)
        if is_unfused and "betas" in group and group.get("foreach") is None and not is_plain:
            raise NotRepeatable(
                "on a GPU, torch computes Adam of DTensors in another way by default; give foreach=True or fused=True"
            )
        return {"is_unfused": is_unfused}
    capability = torch.backends.cpu.get_cpu_capability()
    if capability not in ("DEFAULT", "AVX2", "AVX512"):
        raise NotRepeatable(f"torch computes with {capability} here; DEFAULT, AVX2 and AVX512 are known")
    return {"is_unfused": is_unfused, "cpu_has_fma": capability != "DEFAULT"}


def check_gpu(group: Mapping[str, Any], *, is_unfused: bool) -> None:
    """Raises NotRepeatable unless it is known how torch computes on a GPU."""
    if torch.version.cuda is None:
        raise NotRepeatable("the GPU is not one of NVIDIA's")
    numbers = re.match(r"(\d+)\.(\d+)", torch.__version__)
    if numbers is None or tuple(map(int, numbers.groups())) < FIRST_TORCH_FOR_GPUS:
        raise NotRepeatable(f"on a GPU, updates of torch 2.11 and newer are repeated, not of {torch.__version__}")
    if is_unfused and "betas" in group and group.get("foreach") is False:
        raise NotRepeatable("on a GPU, Adam with foreach=False computes in another way; leave out foreach=False")
