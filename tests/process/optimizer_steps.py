"""Takes steps with torch.optim and repeats them with kernels/optimizer.hpp.

`optimizer_steps.py LIBRARY CAPABILITY [sample]` runs all groups of cases, or a sample of them, in this process's CPU
capability, or on a GPU ("cuda"). It prints one JSON object: the capability, and for each group how many tensors it
compared and which of them differ.

Where torch.sqrt() does not round correctly on a CPU, parameters of Adam and AdamW without fused=True are not compared,
and the kernels go on from torch's. docs/mechanisms.md says why, and which steps on a GPU are not repeated."""

from __future__ import annotations

import ctypes
import itertools
import json
import math
import random
import sys
from collections.abc import Iterator

import torch
from optimizer_kernels import CAPABILITIES, Call

DEVICE = torch.device("cuda" if sys.argv[2] == "cuda" else "cpu")
IS_SAMPLE = "sample" in sys.argv
IS_GPU = DEVICE.type == "cuda"
FORMS = {"single": {"foreach": False}, "foreach": {"foreach": True}, "fused": {"fused": True}}
LEAF_BYTES = 65536

ADAMS = [
    (torch.optim.AdamW, {"lr": 1e-3, "weight_decay": 0.01}),
    (torch.optim.AdamW, {"lr": 3e-4, "weight_decay": 0.1, "betas": (0.9, 0.95), "amsgrad": True}),
    (torch.optim.AdamW, {"lr": 1e-2, "weight_decay": 0.0, "eps": 1e-6, "maximize": True}),
    (torch.optim.Adam, {"lr": 1e-3}),
    (torch.optim.Adam, {"lr": 1e-3, "weight_decay": 0.01, "amsgrad": True, "maximize": True}),
    (torch.optim.Adam, {"lr": 1e-3, "weight_decay": 0.01, "betas": (0.3, 0.99)}),
]
SGDS = [
    (torch.optim.SGD, {"lr": 0.1}),
    (torch.optim.SGD, {"lr": 0.1, "weight_decay": 0.01, "maximize": True}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "dampening": 0.25, "weight_decay": 0.01}),
    (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01, "maximize": True}),
]
CONFIGURATIONS = ADAMS + SGDS


def is_repeated(configuration: tuple[type, dict], form: str) -> bool:
    optimizer, settings = configuration
    if not IS_GPU or optimizer is torch.optim.SGD:
        return True
    has_coupled_decay = optimizer is torch.optim.Adam and "weight_decay" in settings
    return form == "foreach" or (form == "fused" and not has_coupled_decay)


CASES = [case for case in itertools.product(CONFIGURATIONS, FORMS) if is_repeated(*case)]
if IS_SAMPLE:  # each configuration, with the three forms in turn
    CASES = CASES[::2]


def sqrt_rounds_correctly() -> bool:
    """Whether torch.sqrt() gives what the processor's instruction gives, which is also the C library's sqrt()."""
    values = torch.rand(10_000, generator=torch.Generator().manual_seed(0))
    return torch.equal(values.sqrt(), torch.tensor([math.sqrt(value) for value in values.tolist()]))


SQRT_ROUNDS_CORRECTLY = IS_GPU or sqrt_rounds_correctly()


class Kernels:
    """The kernels, as a torch of `capability` computes."""

    def __init__(self, library: str, capability: str) -> None:
        self.library = ctypes.CDLL(library)
        self.capability = CAPABILITIES.index(capability)
        self.isas = itertools.cycle(isa for isa in range(3) if self.library.isa_is_supported(isa))

    def step(self, shadow: Shadow, group: dict, gradient: torch.Tensor, fused: bool) -> list[torch.Tensor]:
        """Repeats one step in the tensors of `shadow` and returns the digests of their leaves."""
        digests = [torch.zeros(-(-4 * tensor.numel() // LEAF_BYTES), dtype=torch.int64) for tensor in shadow.tensors]
        call = Call()
        call.step = shadow.steps
        call.fused, call.capability, call.isa = fused, self.capability, next(self.isas)
        call.bfloat16 = gradient.dtype == torch.bfloat16
        call.elements, call.gradient = gradient.numel(), gradient.data_ptr()
        for i, (tensor, of_leaves) in enumerate(zip(shadow.tensors, digests, strict=True)):
            call.tensors[i], call.digests[i] = tensor.data_ptr(), of_leaves.data_ptr()
        if "betas" in group:
            call.factors = (group["lr"], *group["betas"], group["eps"], group["weight_decay"])
            call.flags = (group["decoupled_weight_decay"], group["amsgrad"], group["maximize"])
            self.library.adam(ctypes.byref(call))
        else:
            call.factors = (group["lr"], group["momentum"], group["dampening"], group["weight_decay"], 0)
            call.flags = (shadow.steps == 1, group["nesterov"], group["maximize"])
            self.library.sgd(ctypes.byref(call))
        return digests

    def digests(self, tensor: torch.Tensor) -> torch.Tensor:
        found = torch.zeros(-(-4 * tensor.numel() // LEAF_BYTES), dtype=torch.int64)
        self.library.digests(
            ctypes.c_void_p(tensor.data_ptr()), ctypes.c_uint64(4 * tensor.numel()), ctypes.c_void_p(found.data_ptr())
        )
        return found


class Shadow:
    """A parameter and its states that only the kernels change, beside torch's."""

    def __init__(self, parameter: torch.Tensor, group: dict) -> None:
        self.names = ["momentum_buffer"] if group.get("momentum") else []
        if "betas" in group:
            self.names = ["exp_avg", "exp_avg_sq", *(["max_exp_avg_sq"] if group["amsgrad"] else [])]
        self.steps = 0
        self.tensors = [parameter.detach().cpu().clone(), *(torch.zeros(parameter.shape) for _ in self.names)]

    def of_torch(self, parameter: torch.Tensor, optimizer: torch.optim.Optimizer) -> list[torch.Tensor]:
        """What torch has for each of the tensors."""
        return [parameter.detach().cpu(), *(optimizer.state[parameter][name].cpu() for name in self.names)]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """As integers, with all NaNs alike."""
    return torch.where(tensor.isnan(), torch.full_like(tensor, math.nan), tensor).view(torch.int32)


class Run:
    """One optimizer over parameters of the given sizes, and the kernels beside it."""

    def __init__(
        self, kernels: Kernels, optimizer: type, settings: dict, form: str, sizes: list[int], seed: int
    ) -> None:
        self.kernels = kernels
        self.name = f"{optimizer.__name__} {settings} {form} sizes={sizes} seed={seed}"
        self.fused = form == "fused"
        self.parameters_compare = self.fused or SQRT_ROUNDS_CORRECTLY or optimizer is torch.optim.SGD
        self.generator = torch.Generator().manual_seed(seed)
        self.parameters = [torch.nn.Parameter(self.random(size).to(DEVICE)) for size in sizes]
        groups = [{"params": self.parameters[::2]}]
        if self.parameters[1::2]:
            groups.append({"params": self.parameters[1::2], "weight_decay": 0.0})
        self.optimizer = optimizer(groups, **settings, **FORMS[form])
        self.shadows = {
            parameter: Shadow(parameter, group)
            for group in self.optimizer.param_groups
            for parameter in group["params"]
        }
        self.compared = 0
        self.differing: list[str] = []

    def random(self, size: int) -> torch.Tensor:
        return torch.randn(size, generator=self.generator)

    def step(self, gradients: list[torch.Tensor], bfloat16: bool = False) -> None:
        for parameter, gradient in zip(self.parameters, gradients, strict=True):
            parameter.grad = (gradient.float() if bfloat16 else gradient.clone()).to(DEVICE)
        self.optimizer.step()
        for group in self.optimizer.param_groups:
            for parameter in group["params"]:
                gradient = parameter.grad.cpu()
                self.repeat(parameter, group, gradient.bfloat16() if bfloat16 else gradient)

    def repeat(self, parameter: torch.nn.Parameter, group: dict, gradient: torch.Tensor) -> None:
        shadow = self.shadows[parameter]
        shadow.steps += 1
        digests = self.kernels.step(shadow, group, gradient, self.fused)
        expected = shadow.of_torch(parameter, self.optimizer)
        triples = list(zip(shadow.tensors, expected, digests, strict=True))
        if not self.parameters_compare:
            shadow.tensors[0].copy_(parameter.detach())
            triples = triples[1:]
        for tensor, of_torch, found in triples:
            self.compared += 1
            unequal = int((bits(tensor) != bits(of_torch)).sum())
            same_digest = bool(torch.equal(found, self.kernels.digests(of_torch)))
            if unequal or not (same_digest or bool(of_torch.isnan().any())):
                self.differing.append(f"{self.name} step {shadow.steps}: {unequal} of {tensor.numel()}, {same_digest=}")


def every_size(kernels: Kernels) -> Iterator[Run]:
    choose = random.Random(1)
    for size in range(1, 1001):
        if IS_SAMPLE and size > 80 and size % 7:
            continue
        for _ in range(3 if size <= 40 else 1):
            configuration, form = choose.choice(CASES)
            run = Run(kernels, *configuration, form, [size], seed=size)
            for _ in range(2):
                run.step([run.random(size)])
            yield run


def hundred_steps(kernels: Kernels) -> Iterator[Run]:
    """As a training does: parameter groups, a schedule, clipping, and steps that a scaler skips."""
    for seed, (configuration, form) in enumerate(CASES):
        run = Run(kernels, *configuration, form, [1000, 77, 5, 321], seed)
        cycle = configuration in ADAMS or "momentum" in configuration[1]
        schedule = torch.optim.lr_scheduler.OneCycleLR(
            run.optimizer, max_lr=0.01, total_steps=101, cycle_momentum=cycle
        )
        for step in range(20 if IS_SAMPLE else 100):
            gradients = [run.random(parameter.numel()) for parameter in run.parameters]
            for parameter, gradient in zip(run.parameters, gradients, strict=True):
                parameter.grad = gradient.to(DEVICE)
            torch.nn.utils.clip_grad_norm_(run.parameters, 0.5)
            if step % 9 != 4:
                run.step([parameter.grad.cpu() for parameter in run.parameters])
            schedule.step()
        yield run


def large_tensors(kernels: Kernels) -> Iterator[Run]:
    """Larger than what torch gives to one thread, and no multiple of a vector."""
    torch.set_num_threads(2)
    for seed, (configuration, form) in enumerate(CASES):
        run = Run(kernels, *configuration, form, [300_007], seed)
        for _ in range(2 if IS_SAMPLE else 3):
            run.step([run.random(300_007)])
        yield run
    torch.set_num_threads(1)


def special_values(kernels: Kernels) -> Iterator[Run]:
    for seed, (configuration, form) in enumerate(CASES):
        for special in (0.0, -0.0, 1e-45, -3e-39, 1e-20, 3e38, math.inf, -math.inf, math.nan):
            run = Run(kernels, *configuration, form, [203], seed)
            for every in (7, 5, 11):
                gradient = run.random(203)
                gradient[::every] = special
                run.step([gradient])
            yield run


def small_values(kernels: Kernels) -> Iterator[Run]:
    """Parameters, gradients and moments become denormal."""
    for seed, (configuration, form) in enumerate(CASES):
        run = Run(kernels, *configuration, form, [203], seed)
        with torch.no_grad():
            run.parameters[0].mul_(1e-38)
            run.shadows[run.parameters[0]].tensors[0].mul_(1e-38)
        for exponent in (-18, -20, -38, -41, -44):
            run.step([run.random(203) * 10.0**exponent])
        yield run


def bfloat16_gradients(kernels: Kernels) -> Iterator[Run]:
    for seed, (configuration, form) in enumerate(CASES):
        run = Run(kernels, *configuration, form, [1003], seed)
        for _ in range(5):
            run.step([run.random(1003).bfloat16()], bfloat16=True)
        yield run


def other_capability(kernels: Kernels) -> Iterator[Run]:
    """Steps repeated as a torch of another capability would compute them. They differ."""
    other = Kernels(kernels.library._name, "AVX2" if kernels.capability == 0 else "DEFAULT")
    for seed, configuration in enumerate(CONFIGURATIONS):
        run = Run(other, *configuration, "fused", [1003], seed)
        for _ in range(3):
            run.step([run.random(1003)])
        yield run


GROUPS = [
    every_size,
    hundred_steps,
    large_tensors,
    special_values,
    small_values,
    bfloat16_gradients,
    other_capability,
]


def main() -> None:
    torch.set_num_threads(1)
    capability = DEVICE.type if IS_GPU else torch.backends.cpu.get_cpu_capability()
    kernels = Kernels(sys.argv[1], capability)
    report: dict = {"capability": capability, "groups": {}}
    for group in GROUPS[:-1] if IS_GPU else GROUPS:
        runs = list(group(kernels))
        report["groups"][group.__name__] = {
            "compared": sum(run.compared for run in runs),
            "differing": [line for run in runs for line in run.differing],
            "runs": len(runs),
            "differing_runs": sum(bool(run.differing) for run in runs),
        }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
