"""The Python state of a training loop: it never waits for a GPU, is encoded anew only where it changed, and comes back
as it was. The meta device stands for a GPU: its tensors have no values, so whoever brings one to the host fails."""

from __future__ import annotations

import random
from types import SimpleNamespace

import pytest
import torch
from ckptengine import Engine, Stage
from ckptengine.dcp._index import decode_python_state
from ckptengine.export import tensors_in
from ckptengine.torch import _codec, _python_state
from ckptengine.torch._inventory import Inventory
from ckptengine.torch._python_state import COMMON_STATE, PYTHON_STATE, PYTHON_STATE_ON_GPU, PythonState
from torch import nn

GPU = torch.device("meta")
CPU = torch.device("cpu")
COMMIT_MS = 20_000


class Registrations:
    """Takes the place of an engine."""

    def __init__(self) -> None:
        self.memory: dict[str, object] = {}

    def register(self, name: str, buffer: bytearray, **_: object) -> None:
        self.memory[name] = buffer

    def register_pointer(self, name: str, *_: object, owner: torch.Tensor, **__: object) -> None:
        self.memory[name] = owner

    def unregister(self, name: str) -> None:
        del self.memory[name]


def state_of(device: torch.device) -> tuple[PythonState, SimpleNamespace]:
    """A state with tensors on the device wherever a loop may have them."""
    made = SimpleNamespace()
    parameter = nn.Parameter(torch.zeros(3, device=device))
    made.lr = torch.full((), 0.25, device=device)
    made.optimizer = SimpleNamespace(
        param_groups=[{"params": [parameter], "lr": made.lr, "betas": (0.9, 0.99)}], state={}
    )
    made.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    made.scaler._scale = torch.full((), 1024.0, device=device)
    made.scaler._growth_tracker = torch.full((), 7, dtype=torch.int32, device=device)
    made.average = torch.arange(5, device=device).to(torch.bfloat16)
    made.flags = torch.ones(3, dtype=torch.bool, device=device)
    made.history = SimpleNamespace(value={"loss": torch.full((2,), 0.5, device=device), "n": 3})
    made.history.state_dict = lambda: made.history.value
    made.history.load_state_dict = lambda value: made.history.__setattr__("value", value)
    inventory = Inventory({}, {"": made.optimizer}, {})
    extra = {"average": made.average, "flags": made.flags, "history": made.history}
    return PythonState(inventory, {"scaler": {"": made.scaler}}, extra, rng=True), made


def change(made: SimpleNamespace) -> None:
    made.lr.fill_(9)
    made.scaler._scale.fill_(9)
    made.scaler._growth_tracker.fill_(9)
    made.average.fill_(9)
    made.flags.fill_(False)
    made.history.value = {}


def check_restored(made: SimpleNamespace) -> None:
    assert made.lr.item() == 0.25
    assert made.scaler.state_dict()["scale"] == 1024.0
    assert made.scaler.state_dict()["_growth_tracker"] == 7
    assert made.average.tolist() == [0, 1, 2, 3, 4]
    assert made.flags.tolist() == [True] * 3
    assert made.history.value["loss"].tolist() == [0.5, 0.5]
    assert made.history.value["n"] == 3


def test_snapshot_copies_no_gpu_value_to_the_host():
    engine = Registrations()
    state, _ = state_of(GPU)
    for _ in range(3):
        state.capture(engine, GPU, {"main": "rank0"})
    assert engine.memory[PYTHON_STATE_ON_GPU].device == GPU


def test_tensors_kept_on_their_device_are_restored(job):
    # The CPU stands for the GPU: encode() leaves the tensors there.
    state, made = state_of(CPU)
    with Engine(**job) as engine:
        weight = bytearray(8)
        engine.register("weight", weight)
        engine.restore()
        state.capture(engine, CPU, {"main": "rank0"})
        ticket = engine.snapshot(0)
        change(made)
        engine.before_update()
        assert ticket.wait(Stage.COMMITTED, COMMIT_MS), ticket.message
    state, made = state_of(CPU)
    change(made)
    with Engine(**job) as engine:
        engine.register("weight", bytearray(8))
        stored = engine.stored_layout()["private"]
        assert PYTHON_STATE_ON_GPU in stored
        state.register_as_stored(engine, None, stored)
        assert engine.restore().found
        state.put(state.restored(None, adopted=False), adopted=False)
        check_restored(made)
        state.capture(engine, None, {"main": "rank0"})  # a program without a GPU goes on
        assert PYTHON_STATE_ON_GPU not in engine.registered


def test_the_buffer_on_the_gpu_grows_with_the_state():
    state, made = state_of(CPU)
    engine = Registrations()
    state.capture(engine, CPU, {})
    small = engine.memory[PYTHON_STATE_ON_GPU].numel()
    made.history.value = {"loss": torch.arange(5000)}
    state.capture(engine, CPU, {})
    assert engine.memory[PYTHON_STATE_ON_GPU].numel() > small
    change(made)
    state.put(state.restored(None, adopted=False), adopted=False)
    assert made.history.value["loss"].tolist() == list(range(5000))


def test_readers_decode_state_captured_from_the_gpu():
    on_gpu = _codec.OnGpu(CPU)
    python_state = _codec.encode({"groups": [], "lr": torch.tensor([0.5])}, on_gpu=on_gpu)
    buffer = torch.zeros(on_gpu.size_bytes, dtype=torch.uint8)
    on_gpu.copy_to(buffer)
    gpu_bytes = bytes(buffer.tolist())
    small = {PYTHON_STATE: python_state, PYTHON_STATE_ON_GPU: gpu_bytes}
    assert decode_python_state({name: {} for name in small}, small.__getitem__)["lr"].tolist() == [0.5]
    ends = [0, len(gpu_bytes), len(gpu_bytes) + len(python_state)]
    header = {name: {"data_offsets": ends[i : i + 2]} for i, name in enumerate([PYTHON_STATE_ON_GPU, PYTHON_STATE])}
    tensors = tensors_in(header, memoryview(bytearray(gpu_bytes + python_state)))
    assert list(tensors) == [PYTHON_STATE]
    assert tensors[PYTHON_STATE]["lr"].tolist() == [0.5]


# ---- only what changed is encoded ----


@pytest.fixture
def encoded(monkeypatch) -> list[str]:
    """What is encoded, by name."""
    found: list[str] = []
    original = _codec.encode

    def encode(state: object, what: str = "state", *more: object) -> bytes:
        found.append(what)
        return original(state, what, *more)

    monkeypatch.setattr(_codec, "encode", encode)
    return found


def loop_with_plain_groups() -> tuple[PythonState, dict]:
    group = {"params": [], "lr": 0.1, "betas": (0.9, 0.99), "fused": None}
    optimizer = SimpleNamespace(param_groups=[group], state={})
    return PythonState(Inventory({}, {"": optimizer}, {}), {}, {}, rng=True), group


def decoded(engine: Registrations) -> dict:
    return _codec.decode(engine.memory[PYTHON_STATE])


def test_unchanged_state_is_not_encoded_again(encoded):
    state, group = loop_with_plain_groups()
    engine, facts = Registrations(), {"main": "rank0"}
    state.capture(engine, None, facts)
    encoded.clear()
    state.capture(engine, None, facts)
    assert encoded == []
    random.random()
    state.capture(engine, None, facts)
    assert encoded == ["python"]
    encoded.clear()
    assert decoded(engine)["groups"][""] == [{"lr": 0.1, "betas": (0.9, 0.99), "fused": None}]
    group["lr"] = 0.05
    state.capture(engine, None, facts)
    assert encoded == ["training state['groups']"]
    assert decoded(engine)["groups"][""][0]["lr"] == 0.05
    encoded.clear()
    torch.rand(1)
    state.capture(engine, None, {"main": "rank1"})
    assert encoded == ["main", "torch"]
    assert decoded(engine)["main"] == "rank1"
    assert torch.equal(decoded(engine)["rng"]["torch"], torch.get_rng_state())


@pytest.mark.parametrize("more, change", [
    ({"steps": [1]}, lambda group: group["steps"].append(2)),
    ({"rates": torch.ones(2)}, lambda group: group["rates"].fill_(2.0)),
    ({"lr": 1.0}, lambda group: group.update(lr=1)),
    ({}, lambda group: group.update(more=None)),
    ({}, lambda group: group.pop("lr")),
], ids=["in place", "tensor", "type", "key", "less"])  # fmt: skip
def test_every_change_of_a_group_is_seen(more, change):
    state, group = loop_with_plain_groups()
    group |= more
    engine = Registrations()
    for _ in range(2):
        state.capture(engine, None, {})
    change(group)
    state.capture(engine, None, {})
    stored = decoded(engine)["groups"][""][0]
    assert repr(stored) == repr({key: value for key, value in group.items() if key != "params"})


def test_state_may_use_any_names():
    state = _codec.join({"~": _codec.encode(1), "b": _codec.encode([2])})
    assert _codec.decode(state) == {"~": 1, "b": [2]}


# ---- tensors that were replaced or moved are noticed ----


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.empty = nn.Identity()
        self.register_buffer("mean", torch.zeros(4))


def shrink(parameter: nn.Parameter) -> None:
    parameter.data = parameter.data[:2]


CHANGES = {
    "moved": lambda m, o, t: setattr(m.first.weight, "data", m.first.weight.data.clone()),
    "replaced": lambda m, o, t: setattr(m.first, "weight", nn.Parameter(m.first.weight.data)),
    "shorter, at the same address": lambda m, o, t: shrink(m.first.weight),
    "buffer replaced": lambda m, o, t: setattr(m, "mean", m.mean.clone()),
    "first parameter of a module": lambda m, o, t: setattr(m.empty, "scale", nn.Parameter(torch.ones(1))),
    "first buffer of a module": lambda m, o, t: m.empty.register_buffer("scale", torch.ones(1)),
    "first child of a module": lambda m, o, t: setattr(m.empty, "child", nn.Identity()),
    "child replaced": lambda m, o, t: setattr(m, "empty", nn.Identity()),
    "state replaced": lambda m, o, t: o.state[m.first.weight].update(momentum=torch.ones(4, 4)),
    "state added": lambda m, o, t: o.state[m.first.weight].update(more=torch.ones(1)),
    "group added": lambda m, o, t: o.param_groups.append({"params": [torch.ones(1)]}),
    "tensor replaced": lambda m, o, t: t.update(ema=torch.ones(3)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES.keys())
def test_a_tensor_that_was_replaced_or_moved_is_noticed(change):
    model, tensors = Model(), {"ema": torch.zeros(3)}
    optimizer = SimpleNamespace(
        param_groups=[{"params": list(model.parameters())}],
        state={p: {"momentum": torch.zeros_like(p)} for p in model.parameters()},
    )
    inventory = Inventory({"": model}, {"": optimizer}, tensors)
    before = inventory.identities()
    list(inventory.gather())
    assert inventory.identities() == before
    assert inventory.identities() == before
    change(model, optimizer, tensors)
    after = inventory.identities()
    assert after != before
    assert inventory.identities() == after


def test_plain_optimizer_numbers_are_read_again_at_each_snapshot():
    model = Model()
    state = {model.first.weight: {"step": 1, "momentum": torch.zeros(4)}}
    optimizer = SimpleNamespace(param_groups=[{"params": [model.first.weight]}], state=state)
    inventory = Inventory({"": model}, {"": optimizer}, {})
    before = inventory.identities()
    state[model.first.weight]["step"] = 2
    assert inventory.identities() == before
    assert inventory.other_state()[""]["first.weight"] == {"step": 2}
    assert _python_state.PythonState(inventory, {}, {}, rng=False) is not None


# ---- common state apart from own state ----


class Schedule:
    """Has attributes in the order in which they were set."""

    def __init__(self, **state: object) -> None:
        self.state = state

    def state_dict(self) -> dict:
        return dict(self.state)

    def load_state_dict(self, state: dict) -> None:
        self.state = state


def split_state(schedule: Schedule, **extra: object) -> tuple[PythonState, dict]:
    group = {"params": [], "lr": 0.1}
    inventory = Inventory({}, {"": SimpleNamespace(param_groups=[group], state={})}, {})
    return PythonState(inventory, {"scheduler": {"": schedule}}, extra, rng=True, splits=True), group


def test_state_changed_by_an_update_is_common_and_the_rest_is_own():
    position = Schedule(at=3)
    state, group = split_state(Schedule(steps=5), data=position)
    engine = Registrations()
    state.capture(engine, None, {"main": "rank0"})
    own, common = (_codec.decode(engine.memory[name]) for name in (PYTHON_STATE, COMMON_STATE))
    assert set(own) == {"main", "extra", "rng"} and own["extra"] == {"data": {"at": 3}}
    assert set(common) == {"groups", "optimizer", "scheduler"} and common["scheduler"] == {"": {"steps": 5}}
    before = bytes(engine.memory[COMMON_STATE])
    group["lr"], position.state = 0.7, {"at": 4}
    assert state.capture_own({"main": "rank0"})
    assert _codec.decode(engine.memory[PYTHON_STATE])["extra"] == {"data": {"at": 4}}
    assert bytes(engine.memory[COMMON_STATE]) == before, "that of the last snapshot may still be captured"
    state.put(state.restored(None, adopted=False), adopted=False)
    assert group["lr"] == 0.1 and position.state == {"at": 4}


def test_own_state_larger_than_its_buffer_is_captured_by_the_snapshot():
    position = Schedule(at="")
    state, _ = split_state(Schedule(), data=position)
    engine, facts = Registrations(), {}
    state.check()
    state.capture(engine, None, facts)
    before = bytes(engine.memory[PYTHON_STATE])
    position.state = {"at": "x" * len(before)}
    assert not state.capture_own(facts)
    assert bytes(engine.memory[PYTHON_STATE]) == before
    state.capture(engine, None, facts)
    assert decoded(engine)["extra"]["data"] == position.state


def test_equal_common_state_is_encoded_to_equal_bytes():
    one, two = Schedule(a=1, b=[{"c": 2, "d": 3}]), Schedule(b=[{"d": 3, "c": 2}], a=1)
    found = []
    for schedule in (one, two):
        state, _ = split_state(schedule)
        engine = Registrations()
        if schedule is two:
            schedule.state, state_of_now = {"longer": "x" * 1000}, schedule.state
            state.capture(engine, None, {})
            schedule.state = state_of_now
        state.capture(engine, None, {})
        found.append(bytes(engine.memory[COMMON_STATE]))
    assert found[0] == found[1]


def test_readers_of_a_checkpoint_join_common_and_own_state():
    small = {PYTHON_STATE: _codec.encode({"main": "model"}), COMMON_STATE: _codec.encode({"groups": [1]})}
    assert decode_python_state({name: {} for name in small}, small.__getitem__) == {"main": "model", "groups": [1]}
    data = memoryview(bytearray(small[COMMON_STATE]))
    assert tensors_in({COMMON_STATE: {"data_offsets": [0, len(data)]}}, data) == {COMMON_STATE: {"groups": [1]}}
