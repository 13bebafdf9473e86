"""What restore() brings back is what load_state_dict() would bring back, for any objects, or they are refused by name.

CKPTENGINE_TEST_COVERAGE: how many trainings are made at random, 60 by default."""

from __future__ import annotations

import copy
import functools
import io
import os
import re
from typing import Any

import pytest
import torch
from ckptengine import Error
from ckptengine.torch import Checkpointer, _checkpointer
from coverage_cases import Case
from engine_in_memory import EngineInMemory

SEEDS = range(int(os.environ.get("CKPTENGINE_TEST_COVERAGE", "60")))


@pytest.fixture
def checkpointer(monkeypatch):
    """Makes Checkpointers whose engines are in memory, and know the same checkpoints."""
    monkeypatch.setattr(_checkpointer, "Engine", functools.partial(EngineInMemory, stored={}))
    return Checkpointer


def differences(one: Any, other: Any, path: str = "") -> list[str]:
    """Where two trees of state differ."""
    if isinstance(one, torch.Tensor):
        same = isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
        return [] if same else [path]
    if type(one) is not type(other):
        return [f"{path}: {type(one)} {type(other)}"]
    if isinstance(one, io.BytesIO):
        return [] if isinstance(other, io.BytesIO) and one.getvalue() == other.getvalue() else [path]
    if isinstance(one, dict):
        lacks = [f"{path}.{key}: only once" for key in one.keys() ^ other.keys()]
        common = one.keys() & other.keys()
        return lacks + [d for key in common for d in differences(one[key], other[key], f"{path}.{key}")]
    if isinstance(one, (list, tuple)) and len(one) == len(other):
        return [d for i, (a, b) in enumerate(zip(one, other, strict=True)) for d in differences(a, b, f"{path}[{i}]")]
    return [] if one == other else [f"{path}: {one} {other}"]


def loaded_by_torch(case: Case, saved: bytes) -> Case:
    """Loads what torch.save() has written, as scripts do without ckptengine."""
    state = torch.load(io.BytesIO(saved), weights_only=False)
    case.model.load_state_dict(state["model"])
    case.optimizer.load_state_dict(state["optimizer"])
    case.scheduler.load_state_dict(state["scheduler"])
    return case


def saved_by_torch(case: Case) -> bytes:
    file = io.BytesIO()
    torch.save({"model": case.model.state_dict(), "optimizer": case.optimizer.state_dict(),
                "scheduler": case.scheduler.state_dict()}, file)
    return file.getvalue()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_restore_gives_what_torch_would_load(checkpointer, seed):
    trained = Case(seed, life=0)
    with checkpointer(**trained.objects()) as ckpt:
        ckpt.restore()
        for iteration in range(trained.steps):
            trained.step()
            with ckpt.update(iteration):
                trained.update()
            assert ckpt.ticket.taken, (trained.what, ckpt.ticket.message)
    saved, expected = saved_by_torch(trained), copy.deepcopy(trained.state())
    restored = Case(seed, life=1)
    with checkpointer(**restored.objects()) as ckpt:
        assert ckpt.restore().next_iteration == trained.steps
    by_torch = loaded_by_torch(Case(seed, life=2), saved)
    assert differences(restored.state(), by_torch.state()) == [], trained.what
    assert differences({k: v for k, v in restored.state().items() if k != "derived"},
                       {k: v for k, v in expected.items() if k != "derived"}) == [], trained.what


# ---- what is refused, by name ----


class ShowsOnly(torch.optim.SGD):
    def state_dict(self):
        return super().state_dict() | {"n": 1}


class ShowsExtra(torch.nn.Linear):
    def get_extra_state(self):
        return {"n": 1}


class Fails(torch.optim.SGD):
    def state_dict(self):
        raise RuntimeError("consolidate first")


def optimizer_of(kind: type) -> torch.optim.Optimizer:
    return kind(torch.nn.Linear(2, 2).parameters(), lr=0.1)


@pytest.mark.parametrize("objects, says", [
    ({"optimizer": optimizer_of(ShowsOnly)}, "state_dict.. of the optimizer shows 'n'.* override load_state_dict"),
    ({"optimizer": {"a": optimizer_of(ShowsOnly)}}, "state_dict.. of optimizer 'a' shows 'n'"),
    ({"optimizer": optimizer_of(Fails)}, "state_dict.. of the optimizer, a Fails, failed .*consolidate first"),
    ({"model": torch.nn.Sequential(ShowsExtra(2, 2))}, "shows '0._extra_state'.*ShowsExtra.*set_extra_state"),
])  # fmt: skip
def test_state_that_is_shown_and_that_nothing_loads_is_refused_at_construction(checkpointer, objects, says):
    with pytest.raises(Error, match=says):
        checkpointer(**objects)


@pytest.mark.parametrize("key, state, says", [
    (torch.zeros(3), {"z": torch.zeros(1)}, r"a tensor of shape \[3\] that is in none of its parameter groups"),
    ("k", object(), r"training state\['keyed'\]\[''\]\['k'\] is of type"),
])  # fmt: skip
def test_optimizer_state_without_a_name_or_a_form_is_refused_at_each_snapshot(checkpointer, key, state, says):
    optimizer = optimizer_of(torch.optim.SGD)
    with checkpointer(optimizer=optimizer) as ckpt:
        ckpt.restore()
        assert ckpt.snapshot(0).taken
        optimizer.state[key] = state
        for iteration in (1, 2):
            ticket = ckpt.snapshot(iteration)
            assert not ticket.taken and re.search(says, ticket.message)
        del optimizer.state[key]
        assert ckpt.snapshot(3).taken


def test_a_tensor_that_an_optimizer_does_not_show_is_named_in_a_warning(checkpointer, caplog):
    optimizer = optimizer_of(torch.optim.SGD)
    optimizer.count = torch.zeros(())
    checkpointer(optimizer=optimizer).close()
    assert "a tensor in its attribute 'count'" in caplog.text


def test_a_snapshot_asks_only_objects_that_have_something_to_add(checkpointer, monkeypatch):
    asked = []
    for kind, method in ((torch.nn.Module, "_save_to_state_dict"), (torch.optim.Optimizer, "state_dict")):

        original = getattr(kind, method)

        @functools.wraps(original)
        def note(one, *arguments, original=original):
            asked.append(one)
            return original(one, *arguments)

        monkeypatch.setattr(kind, method, note)
    case = Case(seed=0, life=0, kinds=["Plain", "Normed"], optimizer_kind="AdamW")
    with checkpointer(**case.objects()) as ckpt:
        ckpt.restore()
        for iteration in range(6):
            if iteration == 5:
                assert asked
                asked.clear()
            case.step()
            with ckpt.update(iteration):
                case.update()
        assert asked == []


def test_what_an_object_writes_into_another_while_it_loads_is_not_kept(checkpointer):
    class Writes:
        def __init__(self, optimizer, generator):
            self.optimizer, self.generator = optimizer, generator

        def state_dict(self):
            return {}

        def load_state_dict(self, state):
            self.optimizer.param_groups[0]["lr"] = 7.0
            self.optimizer.param_groups[0]["new"] = 7.0
            self.optimizer.state["k"] = 7
            self.generator.manual_seed(7)

    states = []
    for seed in range(2):
        optimizer, generator = optimizer_of(torch.optim.SGD), torch.Generator().manual_seed(seed)
        if seed == 0:
            optimizer.param_groups[0]["lr"], optimizer.state["k"] = 0.5, 3
        writes = Writes(optimizer, generator)
        with checkpointer(optimizer=optimizer, schedulers=writes, extra={"g": generator, "w": writes}) as ckpt:
            if ckpt.restore().next_iteration == 0:
                assert ckpt.snapshot(0).taken
        group = {key: value for key, value in optimizer.param_groups[0].items() if key != "params"}
        states.append((group, optimizer.state["k"], generator.get_state().tolist()))
    assert states[0] == states[1]
