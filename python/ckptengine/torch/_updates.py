"""Gives the engine the gradients of updates that other nodes can repeat (docs/recompute.md).

Optimizers call this right before they update, when gradients are final. An update that cannot be repeated is refused
with a sentence in the log, once for each reason. Nodes then fetch the checkpoint in full, so nothing is lost but time.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from .._engine import Engine, Error
from ._inventory import Inventory
from ._memory import Shown
from ._split import local

log = logging.getLogger("ckptengine")

MOMENTS = {"first_moment": "exp_avg", "second_moment": "exp_avg_sq", "largest_second_moment": "max_exp_avg_sq"}


class NotRepeatable(Exception):
    """The update cannot be repeated; the text says why."""


class Updates:
    def __init__(self, engine: Engine, inventory: Inventory) -> None:
        self._engine = engine
        self._inventory = inventory
        self._told: set[str] = set()
        # By optimizer: names of its parameters as the inventory gives them, and as they are captured.
        self._names: dict[str, tuple[dict[Tensor, str], dict[Tensor, str]]] = {}
        self._known: Any = None  # the identities for which `_names` is right

    def give(
        self, key: str, optimizer: Any, shown: Mapping[str, Shown], identities: Any, *, has_closure: bool = False
    ) -> None:
        """Gives the gradients of the update that `optimizer` is about to make. `key` is its name, `shown` has the
        registered tensors, and `identities` is another object when they are others. `has_closure`: step() computes the
        gradients itself."""
        if not self._engine.wants_gradients() or _is_skipped(optimizer):
            return
        if identities is None or identities is not self._known:
            self._names, self._known = {}, identities
        if key not in self._names:
            self._names[key] = self._inventory.parameter_names(key), self._inventory.captured_names(key)
        try:
            if has_closure:
                raise NotRepeatable("step() has a closure, so gradients are not final before it; call it without one")
            gradients = list(self._gradients(key, optimizer, shown))
            for gradient in gradients:
                self._engine.add_gradient(**gradient)
        except (NotRepeatable, Error) as why:
            self._tell(str(why))

    def _tell(self, why: str) -> None:
        if why not in self._told:
            self._told.add(why)
            log.warning("updates are not repeated on other nodes, which fetch checkpoints in full: %s", why)

    def _gradients(self, key: str, optimizer: Any, shown: Mapping[str, Shown]):
        if type(optimizer) not in (torch.optim.AdamW, torch.optim.Adam):
            raise NotRepeatable(f"only torch.optim.AdamW and Adam are repeated, not {type(optimizer).__name__}")
        if getattr(optimizer, "grad_scale", None) is not None:
            raise NotRepeatable("the gradient scaler unscales within step(); call scaler.unscale_(optimizer) before it")
        capability = torch.backends.cpu.get_cpu_capability()
        if capability not in ("DEFAULT", "AVX2", "AVX512"):
            raise NotRepeatable(f"torch computes with {capability} here; DEFAULT, AVX2 and AVX512 are known")
        for group in optimizer.param_groups:
            stepping = [parameter for parameter in group["params"] if parameter.grad is not None]
            if not any(optimizer.state.get(parameter) for parameter in stepping):
                continue  # this step creates the moments, so there is nothing to repeat it with
            factors = _factors(group, type(optimizer)) | {
                "cpu_has_fma": capability != "DEFAULT",
                "torch_version": torch.__version__,
            }
            for parameter in stepping:
                yield factors | self._gradient(key, parameter, optimizer.state[parameter], group["amsgrad"], shown)

    def _gradient(
        self, key: str, parameter: Tensor, state: Mapping, amsgrad: bool, shown: Mapping[str, Shown]
    ) -> dict[str, Any]:
        names, captured = self._names[key]
        name = names[parameter]
        moments = {of: kind for of, kind in MOMENTS.items() if amsgrad or of != "largest_second_moment"}
        if any(kind not in state for kind in moments.values()):
            raise NotRepeatable(f"the moments of parameter {name} do not exist yet")
        registered = {"parameter": captured[parameter]} | {
            of: self._inventory.state_name(key, kind, name) for of, kind in moments.items()
        }
        tensors = {"parameter": parameter} | {of: state[kind] for of, kind in moments.items()}
        gradient = local(parameter.grad)
        for of, tensor in tensors.items():
            there = shown.get(registered[of])
            mine = local(tensor)
            if there is None or there.memory.data_ptr() != mine.data_ptr():
                raise NotRepeatable(f"tensor {registered[of]} is tied or not contiguous, so it is captured elsewhere")
            if mine.dtype is not torch.float32 or mine.numel() != gradient.numel():
                raise NotRepeatable(f"parameters and moments must be float32, but {registered[of]} is {mine.dtype}")
        if gradient.layout is not torch.strided or not gradient.is_contiguous():
            raise NotRepeatable(f"the gradient of {name} is not contiguous")
        if gradient.dtype is not torch.float32:
            raise NotRepeatable(f"the gradient of {name} is {gradient.dtype}, not float32")
        return registered | {
            "data": gradient.data_ptr(),
            "elements": gradient.numel(),
            "step": float(state["step"]) + 1,
        }


def _is_skipped(optimizer: Any) -> bool:
    """Whether the fused step will change nothing, because the gradient scaler found infinities or NaNs."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found.item())


def _factors(group: Mapping[str, Any], kind: type) -> dict[str, Any]:
    """The hyperparameters of a parameter group, as the engine names them. Raises NotRepeatable."""
    if not group.get("fused"):
        raise NotRepeatable("without fused=True, the bits of a parameter depend on the processor; give it fused=True")
    if group.get("capturable") or group.get("differentiable"):
        raise NotRepeatable("the optimizer is capturable or differentiable")
    beta1, beta2 = group["betas"]
    numbers = {
        "learning_rate": group["lr"],
        "beta1": beta1,
        "beta2": beta2,
        "epsilon": group["eps"],
        "weight_decay": group["weight_decay"],
    }
    if any(isinstance(number, Tensor) for number in numbers.values()):
        raise NotRepeatable("a hyperparameter is a tensor; give a float")
    is_decoupled = group.get("decoupled_weight_decay", kind is torch.optim.AdamW)  # torch 2.5 does not have it
    return numbers | {"decoupled_weight_decay": is_decoupled, "maximize": group["maximize"]}
