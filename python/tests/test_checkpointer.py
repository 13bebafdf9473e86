"""Checkpoint k restores the bytes of k, whatever the state is made of and however often it changed."""

from __future__ import annotations

import copy
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest
import torch
from ckptengine import Error, Stage, Status
from ckptengine.torch import Checkpointer
from loop import Loop
from torch import nn

COMMIT_MS = 20_000


def capture(checkpointer: Checkpointer, iteration: int) -> None:
    """A snapshot that is committed when this returns."""
    ticket = checkpointer.snapshot(iteration)
    assert ticket.taken, ticket.message
    checkpointer.before_update()
    assert ticket.wait(Stage.COMMITTED, COMMIT_MS), ticket.message


def undisturbed(iterations: int, moves: bool) -> tuple[list[dict], list[float]]:
    """State after, and loss of, each iteration of a run that nothing interrupts."""
    loop = Loop(seed=1, moves=moves)
    states, losses = [], []
    for _ in range(iterations):
        losses.append(loop.forward_backward())
        loop.apply()
        states.append(copy.deepcopy(loop.state()))
    return states, losses


def same(actual: dict[str, bytes], expected: dict[str, bytes]) -> list[str]:
    """Names that differ."""
    return [name for name in actual.keys() | expected.keys() if actual.get(name) != expected.get(name)]


@pytest.mark.parametrize("moves", [False, True], ids=["in place", "moving"])
def test_every_checkpoint_restores_its_own_bytes_and_training_continues_exactly(job, moves):
    lengths = [1, 1, 2, 1, 3, 5, 1]
    states, losses = undisturbed(sum(lengths), moves)
    reached = 0
    for incarnation, length in enumerate(lengths):
        loop = Loop(seed=1 if incarnation == 0 else 100 + incarnation, moves=moves)
        with Checkpointer(**loop.checkpointed(), **job) as checkpointer:
            result = checkpointer.restore()
            assert result.next_iteration == reached
            assert result.found == (incarnation > 0)
            if result.found:
                assert same(loop.state(), states[reached - 1]) == []
                stored = checkpointer.engine.stored_layout()["main"]
                assert "model.embedding.weight" in stored and "model.head.weight" not in stored
                assert loop.net.head.weight is loop.net.embedding.weight
            ticket = None
            for k in range(reached, reached + length):
                assert loop.forward_backward() == losses[k]
                loop.apply(checkpointer.before_update)
                assert same(loop.state(), states[k]) == []
                if ticket is not None:  # without waiting, so short an iteration might be skipped
                    assert ticket.wait(Stage.COMMITTED, COMMIT_MS), ticket.message
                ticket = checkpointer.snapshot(k)
                assert ticket.taken, ticket.message
            checkpointer.before_update()
            assert ticket.wait(Stage.COMMITTED, COMMIT_MS), ticket.message
            reached += length


def reserved(checkpointer) -> int:
    """Snapshots until memory for the slots is reserved. Returns the next iteration."""
    deadline = time.monotonic() + 60
    for k in itertools.count():
        ticket = checkpointer.snapshot(k)
        checkpointer.before_update()
        if ticket.taken:
            assert ticket.wait(Stage.COMMITTED, COMMIT_MS), ticket.message
            return k + 1
        assert time.monotonic() < deadline, ticket.message


def test_batchnorm_statistics_are_captured_before_the_next_forward_pass(job):
    """The next forward pass changes them at once. The copy is made slow by a large tensor of the most strictly aligned
    type, which comes first in the layout: what is copied while training goes on, is copied late."""
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    ballast = torch.randn(8 << 20, dtype=torch.float64)
    with Checkpointer(net, tensors={"ballast": ballast}, rng=False, **job) as checkpointer:
        checkpointer.restore()
        first = reserved(checkpointer)
        expected = {}
        for k in range(first, first + 4):
            net(torch.randn(16, 4))
            ballast[k::1000] += 1
            expected = copy.deepcopy(net.state_dict())
            ticket = checkpointer.snapshot(k)
            for _ in range(20):
                net(torch.randn(16, 4) * 100)  # statistics move on, the copy is under way
            checkpointer.before_update()
            assert ticket.wait(Stage.COMMITTED, COMMIT_MS), ticket.message
    last = ballast.clone()
    fresh = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8))
    ballast.zero_()
    with Checkpointer(fresh, tensors={"ballast": ballast}, rng=False, **job) as checkpointer:
        assert checkpointer.restore().iteration == first + 3
    assert torch.equal(ballast, last)
    for name, tensor in fresh.state_dict().items():
        assert torch.equal(tensor, expected[name]), name


class LateLoader:
    """Like torchdata's, it begins with state_dict() or with iter(), and draws a random number then."""

    def __init__(self, generator: torch.Generator | None = None) -> None:
        self.generator, self.begun, self.position = generator, False, 0

    def begin(self) -> None:
        if not self.begun:
            torch.empty((), dtype=torch.int64).random_(generator=self.generator)
            self.begun = True

    def __iter__(self) -> Iterator[int]:
        self.begin()
        while True:
            self.position += 1
            yield self.position

    def state_dict(self) -> dict:
        self.begin()
        return {"position": self.position}

    def load_state_dict(self, state: dict) -> None:
        self.position, self.begun = state["position"], False


@pytest.mark.parametrize("own", [False, True], ids=["the global generator", "a generator in extra"])
def test_loader_that_draws_a_random_number_does_not_shift_a_restored_run(job, own):
    def make(seed: int) -> tuple[torch.Generator | None, LateLoader]:
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed) if own else None
        return generator, LateLoader(generator)

    generator, loader = make(1)
    undisturbed = [(k, torch.rand((), generator=generator)) for k, _ in zip(loader, range(6), strict=False)]
    found = []
    for seed in (1, 2):
        generator, loader = make(seed)
        extra = {"order": generator, "loader": loader} if own else {"loader": loader}
        with Checkpointer(extra=extra, **job) as checkpointer:
            checkpointer.restore()
            for k, _ in zip(loader, range(3), strict=False):
                found.append((k, torch.rand((), generator=generator)))
                capture(checkpointer, k)
    assert found == undisturbed


ODD = {
    "zero_dim": torch.tensor(3.25),
    "bool": torch.rand(13) > 0.5,
    "int64": torch.randint(-(2**62), 2**62, (5,)),
    "bf16": torch.randn(7).bfloat16(),
    "fp8": torch.randn(9).to(torch.float8_e4m3fn),
    "fp8 as bytes": torch.randn(9).to(torch.float8_e4m3fnuz),
    "complex": torch.randn(3, dtype=torch.complex64),
    "wide complex": torch.randn(3, dtype=torch.complex128),
    "complex, transposed": torch.randn(3, 4, dtype=torch.complex64).t(),
    "transposed": torch.randn(4, 6).t(),
    "channels_last": torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "channels_last_3d": torch.randn(2, 3, 2, 4, 5).to(memory_format=torch.channels_last_3d),
    "gaps": torch.randn(8, 6)[::2, 1::2],
    "fp8 with gaps": torch.randn(8, 6).to(torch.float8_e4m3fn)[::2, 1::2],
    "zero_dim in a row": torch.randn(5)[3],
    "expanded": torch.randn(4, 1).expand(4, 5),
    "empty": torch.empty(0, 3),
    "one": torch.randn(1, 1),
}


def in_memory_like(tensor: torch.Tensor, fill: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A tensor of the same type, shape and strides in memory whose bytes are all `fill`, and that memory."""
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    elements = reach + 1 if tensor.numel() else 0
    memory = torch.full((elements * tensor.element_size(),), fill, dtype=torch.uint8)
    return memory.view(tensor.dtype).as_strided(tensor.shape, tensor.stride()), memory


@pytest.mark.parametrize("kind", ODD)
def test_tensor_of_any_kind_is_restored_with_its_strides(job, kind):
    original, expected = in_memory_like(ODD[kind], 3)
    once = (slice(None), slice(1)) if kind == "expanded" else ...  # no element twice
    original[once] = ODD[kind][once]
    for _ in range(2):
        with Checkpointer(tensors={"x": original, "other": torch.zeros(3)}, rng=False, **job) as checkpointer:
            capture(checkpointer, checkpointer.restore().next_iteration)
    target, memory = in_memory_like(original, 3)  # what lies between the elements must stay
    strides, address = target.stride(), target.data_ptr()
    with Checkpointer(tensors={"x": target, "other": torch.zeros(3)}, rng=False, **job) as checkpointer:
        assert checkpointer.restore().iteration == 1
    assert (target.dtype, target.shape) == (original.dtype, original.shape)
    assert (target.stride(), target.data_ptr()) == (strides, address)
    assert torch.equal(memory, expected)


def test_tensor_is_restored_into_another_memory_order(job):
    original = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    with Checkpointer(tensors={"x": original}, rng=False, **job) as checkpointer:
        checkpointer.restore()
        capture(checkpointer, 0)
    contiguous = torch.zeros(2, 3, 4, 5)
    reversed_ = torch.zeros(5, 4, 3, 2).permute(3, 2, 1, 0)
    gapped = torch.zeros(2, 3, 4, 10)
    for target in (contiguous, reversed_, gapped[..., ::2]):
        with Checkpointer(tensors={"x": target}, rng=False, **job) as checkpointer:
            assert checkpointer.restore().iteration == 0
        assert torch.equal(target, original)


def test_parameters_that_share_memory_are_captured_once(job):
    def make() -> nn.ModuleDict:
        net = nn.ModuleDict({"a": nn.Linear(4, 4, bias=False), "b": nn.Linear(4, 4, bias=False)})
        net["b"].weight.data = net["a"].weight.data
        return net

    net = make()
    with Checkpointer(net, **job) as checkpointer:
        checkpointer.restore()
        capture(checkpointer, 0)
    fresh = make()
    with Checkpointer(fresh, **job) as checkpointer:
        assert list(checkpointer.engine.stored_layout()["main"]) == ["model.a.weight"]
        checkpointer.restore()
    assert torch.equal(fresh["b"].weight, net["a"].weight)


def test_scalars_and_lists_in_optimizer_state_are_restored(job):
    def make() -> torch.optim.Optimizer:
        parameter = nn.Parameter(torch.ones(3))
        return torch.optim.LBFGS([parameter], lr=0.1, max_iter=3)

    def step(optimizer: torch.optim.Optimizer) -> float:
        (parameter,) = optimizer.param_groups[0]["params"]

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = ((parameter - torch.arange(3)) ** 4).sum()
            loss.backward()
            return loss

        return optimizer.step(closure).item()

    whole = make()
    expected = [step(whole) for _ in range(4)]
    for k in range(4):
        optimizer = make()
        with Checkpointer(optimizer=optimizer, **job) as checkpointer:
            assert checkpointer.restore().next_iteration == k
            assert step(optimizer) == expected[k]
            capture(checkpointer, k)


def test_state_that_appears_later_is_captured(job):
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    optimizer = torch.optim.SGD(first.parameters(), lr=0.1, momentum=0.9)
    extra = {"words": torch.zeros(2)}
    with Checkpointer({"first": first, "second": second}, optimizer, extra=extra, **job) as checkpointer:
        checkpointer.restore()
        for k in range(4):
            if k == 2:
                optimizer.add_param_group({"params": list(second.parameters())})
            optimizer.zero_grad()
            second(first(torch.randn(3, 4))).sum().backward()
            optimizer.step()
            capture(checkpointer, k)
    again = [nn.Linear(4, 4), nn.Linear(4, 4)]
    revived = torch.optim.SGD(again[0].parameters(), lr=0.1, momentum=0.9)
    revived.add_param_group({"params": list(again[1].parameters())})
    modules = {"first": again[0], "second": again[1]}
    with Checkpointer(modules, revived, extra=extra, **job) as checkpointer:
        assert checkpointer.restore().iteration == 3
    assert [m.state_dict().__repr__() for m in again] == [m.state_dict().__repr__() for m in (first, second)]
    assert repr(revived.state_dict()) == repr(optimizer.state_dict())


class MixedPrecision:
    """A training whose GradScaler begins far too high: it skips the first steps, so that the optimizer has no state."""

    def __init__(self) -> None:
        torch.manual_seed(3)
        self.net = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64))
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-3)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127, growth_interval=4)

    def train(self, before_update=lambda: None) -> float:
        data = torch.randn(16, 64)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss = (self.net(data) - data).square().sum()
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        before_update()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss.item()


def test_optimizer_that_begins_late_costs_no_checkpoint(job):
    undisturbed = MixedPrecision()
    losses, begins = [], None
    for k in range(14):
        losses.append(undisturbed.train())
        begins = k if begins is None and undisturbed.optimizer.state else begins
    assert begins is not None and 2 < begins < 10, begins
    reached = 0
    for length in (begins - 1, 3, 2, 14 - begins - 4):  # ends before the optimizer begins, right after, and later
        job_now = MixedPrecision()
        extra = {"scaler": job_now.scaler}
        with Checkpointer(job_now.net, job_now.optimizer, extra=extra, **job) as checkpointer:
            assert checkpointer.restore().next_iteration == reached
            for k in range(reached, reached + length):
                assert job_now.train(checkpointer.before_update) == losses[k], k
                capture(checkpointer, k)
            reached += length
    assert reached == 14


def test_an_optimizer_step_ends_the_capture_by_itself(job):
    net = nn.Linear(4, 4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    net(torch.randn(2, 4)).sum().backward()
    with Checkpointer(net, optimizer, **job) as checkpointer:
        checkpointer.restore()
        ticket = checkpointer.snapshot(0)
        at_snapshot = net.weight.detach().clone()
        optimizer.step()
        assert ticket.wait(Stage.COMMITTED, COMMIT_MS), ticket.message
        assert not torch.equal(net.weight, at_snapshot)
    with Checkpointer(net, optimizer, **job) as checkpointer:
        checkpointer.restore()
    assert torch.equal(net.weight, at_snapshot)


class Wrapper(torch.optim.Optimizer):
    """As Accelerate wraps an optimizer: it is one by its class, and was never made as one."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.optimizer = optimizer

    param_groups = property(lambda self: self.optimizer.param_groups)
    state = property(lambda self: self.optimizer.state)

    def step(self) -> None:
        self.optimizer.step()


def test_the_step_of_a_wrapped_optimizer_ends_the_capture_by_itself(job):
    net = nn.Linear(4, 4)
    optimizer = Wrapper(torch.optim.SGD(net.parameters(), lr=0.1))
    net(torch.randn(2, 4)).sum().backward()
    with Checkpointer(net, optimizer, **job) as checkpointer:
        checkpointer.restore()
        ticket = checkpointer.snapshot(0)
        optimizer.step()
        assert ticket.wait(Stage.COMMITTED, COMMIT_MS), ticket.message


MOVES_UNDER_A_CAPTURE = """
import json, sys, torch
from ckptengine.torch import Checkpointer
weight = torch.ones(8)
with Checkpointer(tensors={"weight": weight}, **json.loads(sys.argv[1])) as checkpointer:
    checkpointer.restore()
    ticket = checkpointer.snapshot(0)
    checkpointer.before_update()
    assert ticket.wait(timeout_ms=20_000), ticket.message
    assert checkpointer.snapshot(1).taken
    weight.data = torch.zeros(8)
    checkpointer.snapshot(2)
"""


def test_tensor_that_moves_during_a_capture_discards_it(job):
    command = [sys.executable, "-c", MOVES_UNDER_A_CAPTURE, json.dumps(job, default=str)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "call before_update() before anything replaces" in done.stderr
    weight = torch.zeros(8)
    with Checkpointer(tensors={"weight": weight}, **job) as checkpointer:
        assert checkpointer.restore().iteration == 0
    assert torch.equal(weight, torch.ones(8))


def test_changed_model_is_refused_and_its_tensor_named(job):
    with Checkpointer(nn.Linear(4, 4), **job) as checkpointer:
        checkpointer.restore()
        capture(checkpointer, 0)
    with Checkpointer(nn.Linear(4, 5), **job) as checkpointer:
        with pytest.raises(Error, match=r"model\.(weight|bias)") as caught:
            checkpointer.restore()
    assert caught.value.status is Status.MISMATCH


def test_state_that_cannot_be_represented_is_refused_at_construction(job):
    class Odd:
        def state_dict(self) -> dict:
            return {"callback": print}

    with pytest.raises(Error, match=r"training state.*'odd'.*'callback'"):
        Checkpointer(extra={"odd": Odd()}, **job)


def test_a_tensor_whose_elements_share_memory_is_refused_by_name(job):
    windows = torch.arange(6.0).as_strided((3, 4), (1, 1))
    with pytest.raises(Error, match=r"tensor\.windows") as caught:
        Checkpointer(tensors={"windows": windows}, **job)
    assert caught.value.status is Status.INVALID


def test_update_context_takes_a_snapshot_unless_the_update_fails(job):
    net = nn.Linear(4, 4)
    with Checkpointer(net, **job) as checkpointer:
        checkpointer.restore()
        with checkpointer.update(0), torch.no_grad():
            net.weight.fill_(7)
        assert checkpointer.ticket.taken and checkpointer.ticket.stage is Stage.CAPTURING
        with pytest.raises(ZeroDivisionError), checkpointer.update(1), torch.no_grad():
            net.weight.fill_(1 / 0)
        assert checkpointer.stats().snapshots == 1
        assert checkpointer.ticket.wait(Stage.COMMITTED, COMMIT_MS), checkpointer.ticket.message
    fresh = nn.Linear(4, 4)
    with Checkpointer(fresh, **job) as checkpointer:
        assert checkpointer.restore().iteration == 0
    assert torch.equal(fresh.weight, torch.full((4, 4), 7.0))


def test_stale_own_state_is_not_kept_before_the_update(job):
    """Else a rank that dies within its update would go on with the position of an earlier iteration."""

    class Position:
        text = ""

        def state_dict(self) -> dict:
            return {"text": self.text}

        def load_state_dict(self, state: dict) -> None:
            self.text = state["text"]

    net, position, told = nn.Linear(4, 4), Position(), []
    with Checkpointer(net, extra={"position": position}, **job | {"on_suspicion": "halt"}) as checkpointer:
        checkpointer.restore()
        own_not_ready = checkpointer.engine.own_not_ready
        checkpointer.engine.own_not_ready = lambda: (told.append(iteration), own_not_ready())
        for iteration in range(6):
            if iteration == 2:
                position.text = "x" * 100_000  # outgrows its buffer
            if iteration == 4:
                net.weight = nn.Parameter(torch.ones(4, 4))  # a tensor was replaced
            with checkpointer.update(iteration):
                pass
    assert told == [2, 4]
