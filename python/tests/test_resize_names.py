"""Stored tensors are found by the names that they have in a job whose models are wrapped otherwise."""

from __future__ import annotations

import pytest
from ckptengine import Error, Status

pytest.importorskip("torch.distributed.checkpoint")
from ckptengine.torch import _resize
from ckptengine.torch._resize_names import Names


def test_names_match_with_or_without_wrapper_prefixes():
    plain, wrapped = (
        {"model.fc.weight", "buffer.bn.mean"},
        {"model.module.fc._orig_mod.weight", "buffer.module.bn.mean"},
    )
    unwrap, wrap = Names(wrapped, plain, ()), Names(plain, wrapped, ())
    assert {unwrap.of_tensor(name) for name in wrapped} == plain
    assert {wrap.of_tensor(name) for name in plain} == wrapped
    assert unwrap.of_parameter("module.fc._orig_mod.weight") == "fc.weight"


def test_optimizer_state_follows_its_parameter_for_any_optimizer_name():
    stored, here = {"model.net.module.weight"}, {"model.net.weight"}
    assert Names(stored, here, ()).of_tensor("optim.exp_avg.net.module.weight") == "optim.exp_avg.net.weight"
    named = Names(stored, here, {"fast"})
    assert named.of_tensor("optim.fast.exp_avg.net.module.weight") == "optim.fast.exp_avg.net.weight"
    assert named.of_tensor("optim.fast.step.group0:1") == "optim.fast.step.group0:1"


def test_existing_or_ambiguous_name_is_kept():
    both = Names({"model.module.a", "model.a"}, {"model.a", "model.module.a"}, ())
    assert both.of_tensor("model.module.a") == "model.module.a"
    several = Names({"model.module.a"}, {"model.a", "model._orig_mod.a"}, ())
    assert several.of_tensor("model.module.a") == "model.module.a"
    tensor = Names({"tensor.module.a"}, {"tensor.a"}, ())
    assert tensor.of_tensor("tensor.module.a") == "tensor.module.a"


def test_process_with_closed_groups_exchanges_no_tensors(monkeypatch):
    monkeypatch.setattr(_resize.groups, "is_closed", True)
    with pytest.raises(Error, match="groups of this process are closed") as caught:
        _resize.take_over(None, None, None, {})
    assert caught.value.status is Status.MISMATCH
