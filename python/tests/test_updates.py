"""Which updates of torch's optimizers are given to the engine to be repeated, and why others are not."""

from __future__ import annotations

import logging

import pytest
import torch
from ckptengine._abi import Optimizer
from ckptengine.torch._inventory import Inventory, named
from ckptengine.torch._memory import show
from ckptengine.torch._updates import NotRepeatable, Updates, check_gpu
from torch import nn


class FakeEngine:
    def __init__(self) -> None:
        self.given: list[dict] = []

    def wants_gradients(self) -> bool:
        return True

    def add_gradient(self, **gradient) -> bool:
        self.given.append(gradient)
        return True


class Case:
    def __init__(self, optimizer, *, steps: int = 1, **settings) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(4, 3), nn.Linear(3, 2))
        self.optimizer = optimizer(self.model.parameters(), **settings)
        self.inventory = Inventory(named("model", self.model), named("optimizer", self.optimizer), {})
        self.engine = FakeEngine()
        self.updates = Updates(self.engine, self.inventory)
        for _ in range(steps):
            self.backward()
            self.optimizer.step()
        self.backward()

    def backward(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.ones(5, 4)).square().sum().backward()

    def give(self, **more) -> list[dict]:
        shown = {found.name: show(found.name, found.tensor, found.capture) for found in self.inventory.gather()}
        self.updates.give("", self.optimizer, shown, None, **more)
        return self.engine.given


def test_each_gradient_is_given_with_the_names_and_factors_of_its_step():
    case = Case(torch.optim.AdamW, steps=2, lr=0.5, betas=(0.8, 0.9), eps=1e-6, weight_decay=0.25, fused=True)
    given = case.give()
    assert [gradient["parameter"] for gradient in given] == [
        "model.0.weight", "model.0.bias", "model.1.weight", "model.1.bias"
    ]  # fmt: skip
    first = given[0]
    assert first["first_moment"] == "optim.exp_avg.0.weight"
    assert first["second_moment"] == "optim.exp_avg_sq.0.weight"
    assert "largest_second_moment" not in first
    assert (first["step"], first["elements"]) == (3.0, 12)
    assert first["data"] == case.model[0].weight.grad.data_ptr()
    factors = ("learning_rate", "beta1", "beta2", "epsilon", "weight_decay", "decoupled_weight_decay")
    assert [first[name] for name in factors] == [0.5, 0.8, 0.9, 1e-6, 0.25, True]


def test_amsgrad_has_a_third_moment():
    given = Case(torch.optim.Adam, amsgrad=True, fused=True).give()
    assert given[0]["largest_second_moment"] == "optim.max_exp_avg_sq.0.weight"
    assert given[0]["decoupled_weight_decay"] is False


def test_names_are_looked_up_once_for_the_same_tensors():
    case, identities = Case(torch.optim.AdamW, fused=True, amsgrad=True), object()
    shown = {found.name: show(found.name, found.tensor, found.capture) for found in case.inventory.gather()}
    for k in range(2):
        case.optimizer.state[case.model[0].weight]["step"].fill_(k)
        case.updates.give("", case.optimizer, shown, identities)
        shown = {}
    assert [gradient["step"] for gradient in case.engine.given[::4]] == [1, 2]
    case.optimizer.param_groups[0]["amsgrad"] = False
    case.updates.give("", case.optimizer, shown, identities)
    assert len(case.engine.given) == 8, "names are asked for again, and nothing is shown"


def test_sgd_has_a_momentum_and_no_number_of_the_step():
    settings = {"momentum": 0.5, "dampening": 0.25, "weight_decay": 0.125, "maximize": True}
    first = Case(torch.optim.SGD, lr=0.5, **settings).give()[0]
    assert first["first_moment"] == "optim.momentum_buffer.0.weight"
    assert not {"second_moment", "step", "step_count", "beta1"} & first.keys()
    assert {name: first[name] for name in settings} == settings
    assert (first["optimizer"], first["is_unfused"]) == (Optimizer.SGD, True)


def test_sgd_without_momentum_has_only_parameters():
    given = Case(torch.optim.SGD, lr=0.5, steps=0, fused=True).give()
    assert len(given) == 4
    assert "first_moment" not in given[0]
    assert given[0]["is_unfused"] is False


@pytest.mark.parametrize(
    ("optimizer", "settings"), [(torch.optim.AdamW, {"fused": True}), (torch.optim.SGD, {"momentum": 0.9})]
)
def test_step_that_creates_the_moments_is_omitted_without_a_warning(caplog, optimizer, settings):
    assert Case(optimizer, steps=0, **settings).give() == []
    assert caplog.text == ""


@pytest.mark.parametrize(
    ("torch_version", "cuda", "group", "why"),
    [
        ("2.11.0+cu130", "13.0", {"betas": (0, 0), "foreach": None}, ""),
        ("2.13.1", "13.0", {"betas": (0, 0), "foreach": True}, ""),
        ("2.12.0", "13.0", {"foreach": False}, ""),  # of SGD
        ("2.10.0", "12.8", {"betas": (0, 0), "foreach": None}, "updates of torch 2.11 and newer"),
        ("2.11.0+rocm7", None, {"betas": (0, 0), "foreach": None}, "not one of NVIDIA's"),
        ("2.11.0", "13.0", {"betas": (0, 0), "foreach": False}, "leave out foreach=False"),
    ],
)
def test_on_a_gpu_only_known_kernels_are_repeated(monkeypatch, torch_version, cuda, group, why):
    monkeypatch.setattr(torch, "__version__", torch_version)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    if not why:
        check_gpu(group, is_unfused=True)
        return
    with pytest.raises(NotRepeatable, match=why):
        check_gpu(group, is_unfused=True)


def test_changed_factors_apply_to_the_next_update():
    case = Case(torch.optim.AdamW, lr=0.5, weight_decay=0.25, fused=True)
    case.give()
    case.optimizer.param_groups[0] |= {"lr": 0.125, "weight_decay": 0.0}
    case.optimizer.state[case.model[0].weight]["step"].fill_(9)
    case.engine.given.clear()
    first = case.give()[0]
    assert (first["learning_rate"], first["weight_decay"], first["step"]) == (0.125, 0.0, 10.0)


def test_parameter_without_a_gradient_is_omitted():
    case = Case(torch.optim.AdamW, fused=True)
    case.model[0].weight.grad = None
    assert [gradient["parameter"] for gradient in case.give()] == ["model.0.bias", "model.1.weight", "model.1.bias"]


def test_step_skipped_by_the_scaler_is_omitted_without_a_warning(caplog):
    case = Case(torch.optim.AdamW, fused=True)
    case.optimizer.found_inf = torch.ones(())
    assert case.give() == []
    assert caplog.text == ""
    case.optimizer.found_inf = torch.zeros(())
    assert len(case.give()) == 4


def test_step_with_a_closure_is_reported_as_not_repeatable(caplog):
    assert Case(torch.optim.AdamW, fused=True).give(has_closure=True) == []
    assert caplog.text.count("call it without one") == 1


def scaled(case: Case) -> None:
    case.optimizer.grad_scale = torch.ones(1)


def scattered(case: Case) -> None:
    case.model[0].weight.grad = torch.ones(4, 3).t()


def rate_in_a_tensor(case: Case) -> None:
    case.optimizer.param_groups[0]["lr"] = torch.tensor(0.1)


class OwnAdamW(torch.optim.AdamW):
    pass


@pytest.mark.parametrize(
    ("optimizer", "settings", "change", "why"),
    [
        (torch.optim.RMSprop, {}, None, "not RMSprop"),
        (torch.optim.SGD, {"momentum": 0.9}, scattered, "is not contiguous"),
        (OwnAdamW, {"fused": True}, None, "not OwnAdamW"),
        (torch.optim.AdamW, {"fused": True}, scaled, "call scaler.unscale_(optimizer) before it"),
        (torch.optim.AdamW, {"fused": True}, scattered, "is not contiguous"),
        (torch.optim.AdamW, {"fused": True}, rate_in_a_tensor, "a hyperparameter is a tensor"),
    ],
)
def test_update_that_cannot_be_repeated_is_reported_once(caplog, optimizer, settings, change, why):
    case = Case(optimizer, lr=0.1, **settings)
    if change is not None:
        change(case)
    with caplog.at_level(logging.WARNING):
        assert case.give() == []
        assert case.give() == []
    assert caplog.text.count(why) == 1
