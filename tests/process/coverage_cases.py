"""Makes small trainings at random from a seed: modules and optimizers that keep state in unusual places."""

from __future__ import annotations

import io
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

WIDTH = 4


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.seen = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return self.fc(x)


class ExtraState(Plain):
    """Shows a dict that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.history: dict[str, Any] = {}

    def get_extra_state(self) -> Any:
        return dict(self.history)

    def set_extra_state(self, state: Any) -> None:
        self.history = dict(state)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.history[f"k{len(self.history)}"] = x.detach().abs().amax(0)
        return super().forward(x)


class ExtraTensor(ExtraState):
    """Shows bytes in a tensor, as layers in FP8 do."""

    def get_extra_state(self) -> Any:
        return torch.tensor([len(self.history), 7], dtype=torch.uint8)

    def set_extra_state(self, state: Any) -> None:
        self.history = {f"k{i}": torch.zeros(WIDTH) for i in range(int(state[0]))}


class Saves(Plain):
    """Shows an attribute through _save_to_state_dict(), as packed weights do."""

    def __init__(self) -> None:
        super().__init__()
        self.packed = torch.zeros(WIDTH)

    def _save_to_state_dict(self, destination, prefix, keep_vars):
        super()._save_to_state_dict(destination, prefix, keep_vars)
        destination[prefix + "packed"] = self.packed
        destination[prefix + "seen"] = self.seen

    def _load_from_state_dict(self, state, prefix, *rest):
        self.packed = state.pop(prefix + "packed").clone()
        self.seen = state.pop(prefix + "seen")
        super()._load_from_state_dict(state, prefix, *rest)

    def forward(self, x):
        self.packed = self.packed + x.detach().sum(0)
        return super().forward(x)


class Hooks(Plain):
    """Shows a counter through hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.register_state_dict_post_hook(self._show)
        self.register_load_state_dict_pre_hook(self._take)

    @staticmethod
    def _show(module, state, prefix, _):
        state[prefix + "count"] = module.seen

    @staticmethod
    def _take(module, state, prefix, *_):
        module.seen = state.pop(prefix + "count")


class Derives(Plain):
    """Rebuilds a buffer that is not persistent when it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("doubled", torch.zeros(WIDTH, WIDTH), persistent=False)
        self.register_load_state_dict_post_hook(lambda module, _: module.derive())

    def derive(self) -> None:
        self.doubled = self.fc.weight.detach() * 2

    def forward(self, x):
        self.derive()
        return super().forward(x)


class Overrides(Derives):
    """Shows and takes everything in its own words."""

    def state_dict(self, *arguments, **options):
        shown = super().state_dict(*arguments, **options)
        shown[options.get("prefix", "") + "half"] = self.fc.weight.detach() / 2
        return shown

    def _load_from_state_dict(self, state, prefix, *rest):
        half = state.pop(prefix + "half")
        super()._load_from_state_dict(state, prefix, *rest)
        self.halved = half.clone()


class Normed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH)
        self.fc = nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, WIDTH))

    def forward(self, x):
        return self.fc(self.norm(x))


class Packed(Plain):
    """Has weights of 8 bits beside it, as torch packs them."""

    def __init__(self) -> None:
        super().__init__()
        self.packed = torch.ao.nn.quantized.dynamic.Linear(WIDTH, WIDTH)
        self.pack()

    def pack(self) -> None:
        weight = torch.quantize_per_tensor(self.fc.weight.detach(), 0.02, 0, torch.qint8)
        self.packed.set_weight_bias(weight, self.fc.bias.detach())

    def forward(self, x):
        self.pack()
        return super().forward(x) + self.packed(x.detach())


class Buffered(ExtraState):
    """Shows a file in memory."""

    def get_extra_state(self) -> Any:
        file = io.BytesIO()
        torch.save(self.history, file)
        file.seek(0)
        return file

    def set_extra_state(self, state: Any) -> None:
        self.history = torch.load(state)


MODULES = {kind.__name__: kind for kind in (
    Plain, ExtraState, ExtraTensor, Saves, Hooks, Derives, Overrides, Normed, Packed, Buffered)}


# ---- optimizers ----


class Counts(torch.optim.SGD):
    """Shows a counter and a tensor that are attributes."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.count, self.sum = 0, torch.zeros(())

    def step(self, closure=None):
        super().step()
        self.count, self.sum = self.count + 1, self.sum + 2

    def state_dict(self):
        return super().state_dict() | {"count": self.count, "sum": self.sum}

    def load_state_dict(self, state):
        self.count, self.sum = state["count"], state["sum"]
        super().load_state_dict({key: state[key] for key in ("state", "param_groups")})


class Keyed(torch.optim.Adam):
    """Keeps state under keys that are no parameters, and under numbers."""

    def step(self, closure=None):
        super().step()
        self.state["k"] = self.state.get("k", 0) + 1
        self.state.setdefault("layer.low", {"rank": torch.zeros(3)})["rank"] += 1
        for group in self.param_groups:
            for parameter in group["params"]:
                self.state[parameter].setdefault(0, torch.zeros(2)).add_(1)


class Nested(torch.optim.SGD):
    """Keeps matrices in lists and dicts, as SOAP does."""

    def step(self, closure=None):
        super().step()
        for group in self.param_groups:
            for parameter in group["params"]:
                state = self.state[parameter]
                state.setdefault("GG", [torch.zeros(2, 2), torch.zeros(3, 3)])
                state.setdefault("Q", {"left": torch.zeros(2), "n": 0, "right": [torch.ones(1)]})
                state["GG"][1].add_(1)
                state["Q"]["left"].sub_(1)
                state["Q"]["n"] += 1


class Derived(torch.optim.SGD):
    """Makes a value from its state when it loads."""

    made = 0.0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.register_load_state_dict_post_hook(lambda optimizer: optimizer.derive())

    def derive(self) -> None:
        self.made = sum(float(value.sum()) for state in self.state.values() for value in state.values())

    def step(self, closure=None):
        super().step()
        self.derive()


class Hooked(torch.optim.SGD):
    """Shows a counter through hooks."""

    n = 0

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.register_state_dict_post_hook(lambda optimizer, state: state.update(n=optimizer.n))
        self.register_load_state_dict_pre_hook(lambda optimizer, state: setattr(optimizer, "n", state["n"]))

    def step(self, closure=None):
        super().step()
        self.n += 1


def sgd(kind: type) -> Callable:
    return lambda groups: kind(groups, lr=0.1, momentum=0.9)


OPTIMIZERS: dict[str, Callable] = {
    "SGD": sgd(torch.optim.SGD),
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=0.01, amsgrad=True),
    "Adagrad": torch.optim.Adagrad,
    "tensor lr": lambda groups: torch.optim.Adam(groups, lr=torch.tensor(0.01)),
    "counts": sgd(Counts),
    "keyed": Keyed,
    "nested": sgd(Nested),
    "derived": sgd(Derived),
    "hooked": sgd(Hooked),
}


@dataclass
class Case:
    """One training, always the same for a seed, except that `life` draws other initial values."""

    seed: int
    life: int
    kinds: list[str] | None = None  # of modules; None: at random
    optimizer_kind: str = ""
    model: nn.Module = field(init=False)
    optimizer: torch.optim.Optimizer = field(init=False)

    def __post_init__(self) -> None:
        choice = random.Random(self.seed)
        torch.manual_seed(1000 * self.seed + self.life)
        self.kinds = self.kinds or choice.choices(list(MODULES), k=choice.randint(1, 3))
        self.model = nn.Sequential(*(MODULES[kind]() for kind in self.kinds))
        self.optimizer_kind = self.optimizer_kind or choice.choice(list(OPTIMIZERS))
        self.optimizer = OPTIMIZERS[self.optimizer_kind](self._groups(choice))
        self.scheduler = torch.optim.lr_scheduler.ExponentialLR(self.optimizer, choice.choice([0.5, 0.9]))
        self.steps = choice.randint(1, 4)
        self.what = f"{self.kinds}, {self.optimizer_kind}"

    def _groups(self, choice: random.Random) -> list[dict]:
        parameters = list(self.model.parameters())
        at = choice.randrange(len(parameters))
        groups = [{"params": parameters[:at], "weight_decay": 0.1}, {"params": parameters[at:], "weight_decay": 0.0}]
        return [group for group in groups if group["params"]]

    def objects(self) -> dict[str, Any]:
        """What a Checkpointer is given."""
        return {"model": self.model, "optimizer": self.optimizer, "schedulers": self.scheduler}

    def step(self) -> None:
        self.optimizer.zero_grad()
        self.model(torch.randn(8, WIDTH)).square().mean().backward()

    def update(self) -> None:
        self.optimizer.step()
        self.scheduler.step()

    def state(self) -> dict[str, Any]:
        """What the objects show, and values that they derive from it."""
        derived = {name: getattr(module, name) for module in self.model.modules() for name in ("doubled", "halved")
                   if hasattr(module, name)}
        return {
            "model": dict(self.model.state_dict()),
            "optimizer": self.optimizer.state_dict(),
            "scheduler": self.scheduler.state_dict(),
            "derived": derived,
            "made": getattr(self.optimizer, "made", None),
        }
