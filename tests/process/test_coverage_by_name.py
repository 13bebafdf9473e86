"""A restart with other groups, optimizers, schedulers or extra objects gets what belongs to it by name. Otherwise it is
refused with one sentence, before any tensor changes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from ckptengine import Error, Status
from test_coverage import checkpointer  # noqa: F401
from torch import nn

NAMES = ("a", "b", "c", "d")
GIVEN = {"a": (0.5, 0.01), "b": (0.5, 0.01), "c": (0.0, 0.02), "d": (0.0, 0.02)}  # weight decay and learning rate


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        for name in NAMES:
            self.register_parameter(name, nn.Parameter(torch.randn(3)))


def training(groups: list[str], **changes) -> dict:
    """Objects for a Checkpointer. `groups` has the names of the parameters of each group."""
    net = Net()
    options = [{"params": [getattr(net, name) for name in group], "weight_decay": 0.1 * n, "lr": 0.1 * n}
               for n, group in enumerate(groups)]
    optimizer = changes.pop("kind", torch.optim.AdamW)(options)
    made = {"model": net, "optimizer": optimizer, "schedulers": torch.optim.lr_scheduler.StepLR(optimizer, 5)}
    return made | {key: value(optimizer) if callable(value) else value for key, value in changes.items()}


def store(checkpointer, objects: dict) -> None:  # noqa: F811
    net, optimizer = objects["model"], objects["optimizer"]
    with checkpointer(**objects) as ckpt:
        ckpt.restore()
        for parameter in net.parameters():
            parameter.grad = torch.ones_like(parameter)
        with ckpt.update(0):
            optimizer.step()
        assert ckpt.ticket.taken, ckpt.ticket.message


def set_options(objects: dict) -> None:
    """Gives the groups options that no constructor gives."""
    for group, name in zip(objects["optimizer"].param_groups, ("a", "c"), strict=True):
        group["weight_decay"], group["lr"] = GIVEN[name]


def options_of(objects: dict) -> dict:
    names = {parameter: name for name, parameter in objects["model"].named_parameters()}
    return {names[p]: (group["weight_decay"], group["lr"])
            for group in objects["optimizer"].param_groups for p in group["params"]}


@pytest.mark.parametrize("groups", [["ab", "cd"], ["cd", "ab"], ["ba", "dc"], ["a", "cd", "b"], ["dc", "b", "a"]])
def test_options_follow_their_parameters(checkpointer, groups):  # noqa: F811
    first = training(["ab", "cd"])
    set_options(first)
    store(checkpointer, first)
    again = training(groups)
    with checkpointer(**again) as ckpt:
        assert ckpt.restore().found
    assert options_of(again) == GIVEN
    for name in NAMES:
        mine, stored = getattr(again["model"], name), getattr(first["model"], name)
        assert torch.equal(mine, stored)
        moments = (objects["optimizer"].state[p]["exp_avg"] for objects, p in ((again, mine), (first, stored)))
        assert torch.equal(*moments)


def test_a_new_parameter_in_a_known_group_gets_its_options_and_one_in_a_new_group_keeps_those_given(checkpointer):  # noqa: F811
    first = training(["ab", "c"])
    set_options(first)
    store(checkpointer, first)
    for groups, expected in ((["ab", "cd"], GIVEN["d"]), (["ab", "c", "d"], (0.2, 0.2))):
        again = training(groups)
        with checkpointer(**again) as ckpt:
            ckpt.restore()
        assert options_of(again) == GIVEN | {"d": expected}


OTHERS = {
    "a parameter in another group": ({"groups": ["abd", "c"]}, "parameter group 0 .*'a' and 'd', .*different options"),
    "one group": ({"groups": ["abcd"]}, "'a' and 'c', which have different options"),
    "another optimizer": ({"kind": torch.optim.SGD}, "the optimizer is a SGD, but a AdamW in the checkpoint"),
    "another scheduler": ({"schedulers": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9)},
                          "the scheduler is a ExponentialLR, but a StepLR"),
    "no scheduler": ({"schedulers": None}, "the scheduler is in the checkpoint, but not in this program"),
    "new extra": ({"extra": {"x": torch.zeros(2), "y": torch.zeros(2)}}, "extra 'y' is missing in the checkpoint"),
    "no extra": ({"extra": {}}, "extra 'x' is in the checkpoint, but not in this program"),
    "a longer tensor": ({"extra": {"x": torch.zeros(3)}}, r"a tensor of type float32 and shape \[3\], but .*\[2\]"),
    "a wider tensor": ({"extra": {"x": torch.zeros(2).double()}}, "float64.*, but .*float32"),
    "no tensor": ({"extra": {"x": torch.Generator()}}, "extra 'x' is a generator, but a tensor"),
}


@pytest.mark.parametrize("change, says", OTHERS.values(), ids=OTHERS.keys())
def test_what_does_not_fit_is_refused_by_name_before_a_tensor_changes(checkpointer, change, says):  # noqa: F811
    first = training(["ab", "cd"], extra={"x": torch.ones(2)})
    set_options(first)
    store(checkpointer, first)
    again = training(**{"groups": ["ab", "cd"], "extra": {"x": torch.zeros(2)}} | change)
    before = {name: parameter.clone() for name, parameter in again["model"].named_parameters()}
    with pytest.raises(Error, match=says) as caught, checkpointer(**again) as ckpt:
        ckpt.restore()
    assert caught.value.status is Status.MISMATCH and "\n" not in str(caught.value)
    assert all(torch.equal(before[name], parameter) for name, parameter in again["model"].named_parameters())


@pytest.mark.parametrize("here", [torch.tensor(0.5).double(), torch.ones(1)], ids=["another type", "another shape"])
def test_a_tensor_among_the_options_keeps_its_type_and_shape(checkpointer, here):  # noqa: F811
    def objects(rate: torch.Tensor) -> dict:
        net = Net()
        return {"model": net, "optimizer": SimpleNamespace(param_groups=[{"params": [net.a], "lr": rate}], state={})}

    with checkpointer(**objects(torch.tensor(0.25))) as ckpt:
        ckpt.restore()
        assert ckpt.snapshot(0).taken
    with pytest.raises(Error, match="the option 'lr' of parameter group 0 of the optimizer is a tensor of type"):
        checkpointer(**objects(here)).restore()


def test_a_group_that_moves_while_training_goes_on_is_stored_as_it_is(checkpointer):  # noqa: F811
    objects = training(["ab", "cd"])
    set_options(objects)
    store(checkpointer, objects)
    with checkpointer(**objects) as ckpt:
        ckpt.restore()
        assert ckpt.snapshot(1).taken
        ckpt.before_update()
        groups = objects["optimizer"].param_groups
        groups[1]["params"].insert(0, groups[0]["params"].pop())  # the same parameters in the same order
        assert ckpt.snapshot(2).taken
    again = training(["a", "bcd"])
    with checkpointer(**again) as ckpt:
        ckpt.restore()
    assert options_of(again) == GIVEN | {"b": GIVEN["c"]}
