"""Cases in which torch's own tests of distributed checkpoints use a FileSystemWriter and a FileSystemReader, stated
anew for ckptengine.dcp. For test_dcp_torch_cases.py.

A case is a function. It saves one or several states through a Medium, loads each of them from storage and from memory,
and asserts what torch promises. All ranks of a process group run the cases of their world size one after another.
"""

from __future__ import annotations

import copy
import io
import itertools
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ckptengine import Engine, Stage
from ckptengine.dcp import Reader, Writer
from torch import nn
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec, EnumerableShardingSpec, ShardMetadata
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.optimizer import load_sharded_optimizer_state_dict
from torch.distributed.checkpoint.state_dict import (
    StateDictOptions,
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_model_state_dict,
    set_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy, StateDictType, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor, zeros
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

WAIT_MS = 60_000
CASES: dict[int, dict[str, Callable]] = {1: {}, 2: {}, 4: {}}  # by world size and name; 1 has no process group


def case(*world_sizes: int) -> Callable:
    def add(function: Callable) -> Callable:
        for world_size in world_sizes:
            CASES[world_size][function.__name__] = function
        return function

    return add


class Medium:
    """Where a case saves, and from where it loads."""

    def __init__(self, settings: dict) -> None:
        self._settings = settings
        self._iteration = 0
        self._open()

    def _open(self) -> None:
        self.engine = Engine(**self._settings["engine"][self._settings["rank"]])

    def writer(self) -> Writer:
        self._iteration += 1
        return Writer(self.engine, self._iteration)

    def save(self, state: dict, **more) -> None:
        writer = self.writer()
        dcp.save(state, storage_writer=writer, **more)
        self.await_storage(writer)

    def await_storage(self, writer: Writer) -> None:
        assert writer.ticket.wait(Stage.DURABLE, WAIT_MS), writer.ticket.message

    def storage(self) -> Reader:
        at = {key: self._settings[key] for key in ("job", "library")}
        return Reader(self._settings["storage"], **at)

    def readers(self) -> Iterator[Reader]:
        """Storage; then memory, as after a restart of the job."""
        yield self.storage()
        self.close()
        self._open()
        yield Reader(self.engine)

    def close(self) -> None:
        self.engine.close()


def run(settings: dict) -> dict[str, str]:
    """Runs all cases of a world size, and tells what went wrong in each: "" if nothing did."""
    told: dict[str, str] = {}
    medium = Medium(settings)
    for name, function in CASES[settings["world_size"]].items():
        try:
            torch.manual_seed(1)
            function(medium)
            if dist.is_initialized():
                dist.barrier()
            told[name] = ""
        except Exception:
            told[name] = traceback.format_exc()
            return told  # other ranks may wait for this one: nothing more can be said
    medium.close()
    return told


def check(found: object, expected: object, where: str = "") -> None:
    """Asserts that two state dicts are the same, bit for bit."""
    assert type(found) is type(expected), f"{where} is a {type(found)}"
    if isinstance(expected, sharded_tensor.ShardedTensor):
        for one, other in zip(found.local_shards(), expected.local_shards(), strict=True):
            check(one.tensor, other.tensor, where)
    elif isinstance(expected, DTensor):
        check(found.to_local(), expected.to_local(), where)
    elif isinstance(expected, torch.Tensor):
        assert found.dtype == expected.dtype and torch.equal(found, expected), f"{where} differs"
    elif isinstance(expected, dict):
        assert found.keys() == expected.keys(), where
        for key in expected:
            check(found[key], expected[key], f"{where}.{key}")
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected), where
        for index, (one, other) in enumerate(zip(found, expected, strict=True)):
            check(one, other, f"{where}.{index}")
    else:
        assert found == expected, f"{where} is {found}"


def refuses(text: str, call: Callable, error: type[Exception] = CheckpointException) -> None:
    try:
        call()
    except error as raised:
        assert text in str(raised), str(raised)
    else:
        raise AssertionError(f"nothing was refused with '{text}'")


def layers(seed: int, *sizes: int) -> nn.Sequential:
    torch.manual_seed(seed)
    sizes = sizes or (5, 10, 15, 7)
    return nn.Sequential(*[nn.Linear(a, b) for a, b in itertools.pairwise(sizes)])


def trained(model: nn.Module, inputs: int = 5, steps: int = 2, lr: float = 0.1) -> torch.optim.Optimizer:
    torch.manual_seed(9)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.rand(8, inputs)).sum().backward()
        optimizer.step()
    return optimizer


# ---- one process, no process group ----


@case(1, 2)
def a_plain_model(medium: Medium) -> None:
    model = nn.ModuleDict({"first": nn.Linear(5, 5), "second": nn.Linear(5, 1), "table": nn.Embedding(5, 10)})
    medium.save(model.state_dict())
    for reader in medium.readers():
        state = {key: torch.zeros_like(value) for key, value in model.state_dict().items()}
        dcp.load(state, storage_reader=reader)
        check(state, dict(model.state_dict()))


@case(1)
def no_dist_is_given(medium: Medium) -> None:
    expected = {"weight": torch.rand(3, 4), "number": 3}
    medium.save(expected, no_dist=True)
    for reader in medium.readers():
        state = {"weight": torch.zeros(3, 4), "number": 0}
        dcp.load(state, storage_reader=reader, no_dist=True)
        check(state, expected)


@case(1, 2)
def an_empty_state(medium: Medium) -> None:
    medium.save({})
    for reader in medium.readers():
        dcp.load({}, storage_reader=reader)


@case(1, 4)
def stateful_objects_and_plain_ones(medium: Medium) -> None:
    """A stateful object is loaded in place. A plain dict is put into the state dict anew."""

    class Watched(dict):
        puts = 0

        def __setitem__(self, key, value) -> None:
            self.puts += 1
            super().__setitem__(key, value)

    class Counter:
        loads, value = 0, 4

        def state_dict(self) -> dict:
            return {"value": self.value}

        def load_state_dict(self, state: dict) -> None:
            self.loads, self.value = self.loads + 1, state["value"]

    counter = Counter()
    state = Watched(counter=counter)
    medium.save(state)
    for loads, reader in enumerate(medium.readers(), 1):
        counter.value = 0
        dcp.load(state, storage_reader=reader)
        assert (counter.loads, counter.value, state.puts) == (loads, 4, 0) and state["counter"] is counter
    expected = {"same": torch.arange(100.0).reshape(10, 10), "bytes": [1, 2, 3, 4]}
    medium.save({"plain": expected})
    for reader in medium.readers():
        state = Watched(plain={"same": torch.zeros(10, 10), "bytes": [0] * 4})
        dcp.load(state, storage_reader=reader)
        assert state.puts
        check(state["plain"], expected)


@case(1)
def nested_values_of_an_older_format(medium: Medium) -> None:
    expected = {"a": torch.zeros(4, 4), "dict": {"x": {"y": 1}, "z": {"w": 2}}, "list": [0, 1, 2]}
    dcp._version._act_like_version = "2_3"
    try:
        medium.save(expected)
    finally:
        dcp._version._act_like_version = None
    for reader in medium.readers():
        state = {"a": torch.ones(4, 4), "dict": {"x": {"y": 9}, "z": {"w": 9}}, "list": [7, 8, 9]}
        dcp.load(state, storage_reader=reader)
        check(state, expected)


@case(1, 2)
def a_strict_and_a_partial_load(medium: Medium) -> None:
    model = nn.Linear(2, 2)
    medium.save({"module": model})
    for reader in medium.readers():
        other = nn.Linear(2, 2)
        other.extra = nn.Parameter(torch.ones(2, 2))
        dcp.load({"module": other}, storage_reader=reader, planner=DefaultLoadPlanner(allow_partial_load=True))
        assert torch.equal(other.weight, model.weight) and other.extra.sum() == 4
        refuses("Missing key in checkpoint", lambda o=other, r=reader: dcp.load({"module": o}, storage_reader=r))


@case(1, 2)
def another_size_is_refused(medium: Medium) -> None:
    medium.save({"module": nn.Linear(2, 2)})
    for reader in medium.readers():
        refuses("Size mismatch", lambda r=reader: dcp.load({"module": nn.Linear(3, 2)}, storage_reader=r))


@case(1)
def another_type_is_cast(medium: Medium) -> None:
    expected = torch.rand(4, 3)
    medium.save({"weight": expected})
    for reader in medium.readers():
        state = {"weight": torch.zeros(4, 3, dtype=torch.bfloat16)}
        dcp.load(state, storage_reader=reader)
        check(state["weight"], expected.to(torch.bfloat16))


@case(1)
def a_blob(medium: Medium) -> None:
    medium.save({"blob": io.BytesIO(b"some bytes"), "weight": torch.ones(2)})
    for reader in medium.readers():
        state = {"blob": io.BytesIO(b""), "weight": torch.zeros(2)}
        dcp.load(state, storage_reader=reader)
        assert state["blob"].getvalue() == b"some bytes" and state["weight"].sum() == 2


@case(1)
def the_state_of_an_optimizer_is_loaded_in_place(medium: Medium) -> None:
    model = layers(0)
    medium.save(dict(zip(("model", "optimizer"), get_state_dict(model, trained(model)), strict=True)))
    expected = copy.deepcopy(model.state_dict())
    for reader in medium.readers():
        other = layers(5)
        optimizer = torch.optim.Adam(other.parameters(), lr=0.2)
        weights, moments = get_model_state_dict(other), get_optimizer_state_dict(other, optimizer)
        state = {"model": weights, "optimizer": moments}
        dcp.load(state, storage_reader=reader)
        assert state["model"] is weights and state["optimizer"] is moments
        set_state_dict(other, optimizer, model_state_dict=weights, optim_state_dict=moments)
        check(dict(other.state_dict()), dict(expected))
        assert optimizer.param_groups[0]["lr"] == 0.1


@case(1)
def the_metadata_names_what_is_stored(medium: Medium) -> None:
    medium.save({"a": torch.zeros(4, 4), "b": 3})
    for reader in medium.readers():
        metadata = reader.read_metadata()
        assert set(metadata.state_dict_metadata) == {"a", "b"}
        assert tuple(metadata.state_dict_metadata["a"].size) == (4, 4) and metadata.storage_meta is not None


# ---- sharded tensors, of FSDP1 and before ----


def even(*ranks: int) -> ChunkShardingSpec:
    return ChunkShardingSpec(dim=0, placements=[f"rank:{rank}/cpu" for rank in ranks])


def uneven(*shards: tuple[list[int], list[int], int]) -> EnumerableShardingSpec:
    return EnumerableShardingSpec([ShardMetadata(begin, size, f"rank:{rank}/cpu") for begin, size, rank in shards])


def sharded(spec, *size: int) -> sharded_tensor.ShardedTensor:
    return sharded_tensor.rand(spec, *size, init_rrefs=False)


def gathered(tensor: sharded_tensor.ShardedTensor) -> torch.Tensor | None:
    whole = torch.zeros(tensor.size()) if dist.get_rank() == 0 else None
    tensor.gather(out=whole)
    return whole


def same_everywhere(one: torch.Tensor | None, other: torch.Tensor | None) -> None:
    assert (one is None) == (other is None) and (one is None or torch.equal(one, other))


@case(2)
def sharded_tensors(medium: Medium) -> None:
    state = {"weight": sharded(even(0, 1), 10, 20), "bias": torch.rand(3)}
    medium.save(state)
    for reader in medium.readers():
        found = {"weight": sharded(even(0, 1), 10, 20), "bias": torch.zeros(3)}
        dcp.load(found, storage_reader=reader)
        check(found, state)


@case(2)
def sharded_tensors_are_split_in_another_way(medium: Medium) -> None:
    specs = [
        even(0, 1),
        even(0, 1, 1, 0),
        uneven(([0, 0], [2, 20], 0), ([2, 0], [1, 20], 1), ([3, 0], [3, 20], 0), ([6, 0], [3, 20], 1),
               ([9, 0], [1, 20], 0)),
        uneven(([0, 0], [8, 20], 1), ([8, 0], [2, 20], 0)),
    ]
    for spec in specs:
        stored = {"weight": sharded(spec, 10, 20)}
        medium.save(stored)
        expected = gathered(stored["weight"])
        for reader in medium.readers():
            for other in specs:
                found = {"weight": sharded(other, 10, 20)}
                dcp.load(found, storage_reader=reader)
                same_everywhere(gathered(found["weight"]), expected)


@case(2)
def rows_become_columns(medium: Medium) -> None:
    stored = {"weight": sharded(even(0, 1), 20, 20)}
    medium.save(stored)
    expected = gathered(stored["weight"])
    for reader in medium.readers():
        columns = ChunkShardingSpec(dim=1, placements=["rank:0/cpu", "rank:1/cpu"])
        found = {"weight": sharded(columns, 20, 20)}
        dcp.load(found, storage_reader=reader)
        same_everywhere(gathered(found["weight"]), expected)


@case(2)
def bytes_of_ranks(medium: Medium) -> None:
    medium.save({"one": [1], "two": "of all"})
    for reader in medium.readers():
        state = {"one": [3], "two": "?"}
        dcp.load(state, storage_reader=reader)
        check(state, {"one": [1], "two": "of all"})


@case(2)
def a_sharded_tensor_becomes_a_tensor_and_back(medium: Medium) -> None:
    specs = [even(0, 1), uneven(([0], [8], 1), ([8], [2], 0))]
    for spec in specs:
        stored = {"weight": sharded(spec, 10)}
        medium.save(stored)
        whole = gathered(stored["weight"])
        for reader in medium.readers():
            found = {"weight": torch.zeros(10)}
            dcp.load(found, storage_reader=reader)
            assert whole is None or torch.equal(found["weight"], whole)
        plain = torch.arange(10.0)
        medium.save({"weight": plain})
        for reader in medium.readers():
            found = {"weight": sharded(spec, 10)}
            dcp.load(found, storage_reader=reader)
            again = gathered(found["weight"])
            assert again is None or torch.equal(again, plain)


def fsdp1(seed: int, **more) -> FullyShardedDataParallel:
    return FullyShardedDataParallel(layers(seed), device_id=torch.device("cpu"), **more)


def fsdp1_state(model) -> dict:
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        return {"model": model.state_dict()}


@case(2)
def a_model_of_fsdp1(medium: Medium) -> None:
    model = fsdp1(0)
    stored = fsdp1_state(model)
    medium.save(stored)
    for reader in medium.readers():
        other = fsdp1(5)
        state = fsdp1_state(other)
        dcp.load(state, storage_reader=reader)
        check(state, stored)
        with FullyShardedDataParallel.state_dict_type(other, StateDictType.SHARDED_STATE_DICT):
            other.load_state_dict(state["model"])
        with FullyShardedDataParallel.summon_full_params(model), FullyShardedDataParallel.summon_full_params(other):
            check(list(other.parameters()), list(model.parameters()))


@case(2)
def the_optimizer_of_fsdp1(medium: Medium) -> None:
    model = fsdp1(0, use_orig_params=True)
    optimizer = trained(model)
    state = dict(zip(("model", "optim"), get_state_dict(model, optimizer), strict=True))
    medium.save(state)
    for reader in medium.readers():
        other = fsdp1(5, use_orig_params=True)
        again = trained(other, steps=1)
        found = dict(zip(("model", "optim"), get_state_dict(other, again), strict=True))
        dcp.load(found, storage_reader=reader)
        check(found, state)


@case(2)
def the_sharded_state_of_an_optimizer(medium: Medium) -> None:
    model = fsdp1(0)
    optimizer = trained(model)
    with FullyShardedDataParallel.state_dict_type(model, StateDictType.SHARDED_STATE_DICT):
        state = {"model": model.state_dict(), "optim": FullyShardedDataParallel.optim_state_dict(model, optimizer)}
        medium.save(state)
        for reader in medium.readers():
            found = load_sharded_optimizer_state_dict(state["model"], "optim", reader)
            for name, moments in state["optim"]["state"].items():
                for key, value in moments.items():
                    check(found["optim"]["state"][name][key], value, f"{name}.{key}")


# ---- DTensors ----

PLACEMENTS = {1: [[Shard(0)], [Replicate()]],
              2: [[Replicate(), Replicate()], [Replicate(), Shard(0)], [Shard(0), Replicate()], [Shard(0), Shard(0)]]}


def meshes() -> list[tuple[DeviceMesh, list]]:
    """Each mesh of one and two dimensions, with each placement on it."""
    two = (2, dist.get_world_size() // 2)
    return [(init_device_mesh("cpu", shape), placement)
            for shape in ((dist.get_world_size(),), two) for placement in PLACEMENTS[len(shape)]]


@case(2, 4)
def dtensors_change_mesh_and_placement(medium: Medium) -> None:
    whole = torch.arange(16.0).reshape(4, 4)
    for mesh, placement in meshes():
        medium.save({"weight": distribute_tensor(whole, mesh, placement)})
        for reader in medium.readers():
            for other, target in meshes():
                state = {"weight": zeros([4, 4], device_mesh=other, placements=target)}
                dcp.load(state, storage_reader=reader)
                check(state["weight"].full_tensor(), whole)


@case(4)
def dtensors_of_which_a_rank_has_nothing(medium: Medium) -> None:
    mesh = init_device_mesh("cpu", (4,))
    for length in (1, 2, 5):
        whole = torch.rand(length, 3)
        medium.save({"weight": distribute_tensor(whole, mesh, [Shard(0)])})
        for reader in medium.readers():
            state = {"weight": zeros([length, 3], device_mesh=mesh, placements=[Shard(0)])}
            dcp.load(state, storage_reader=reader)
            check(state["weight"].full_tensor(), whole)


@case(4)
def dtensors_on_a_part_of_the_ranks(medium: Medium) -> None:
    mesh, half = DeviceMesh("cpu", range(4)), DeviceMesh("cpu", [0, 2])

    def make(factor: float) -> dict:
        return {
            "split": distribute_tensor(torch.arange(4.0) * factor, mesh, [Shard(0)]),
            "same": distribute_tensor(torch.arange(4.0, 8.0) * factor, mesh, [Replicate()]),
            "half split": zeros([4], device_mesh=half, placements=[Shard(0)]).add_(factor),
            "half same": zeros([4], device_mesh=half, placements=[Replicate()]).add_(factor),
            "extra": {"number": int(factor), "tensor": torch.tensor([factor])},
        }

    expected = make(1.0)
    medium.save(expected)
    for reader in medium.readers():
        state = make(9.0)
        dcp.load(state, storage_reader=reader)
        check(state, expected)


@case(2, 4)
def tensor_parallel(medium: Medium) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel(), "2": ColwiseParallel()}
    model = parallelize_module(layers(0), mesh, plan)
    expected = model.state_dict()
    medium.save({"model": expected}, planner=DefaultSavePlanner())
    for reader in medium.readers():
        state = {"model": parallelize_module(layers(5), mesh, plan).state_dict()}
        dcp.load(state, storage_reader=reader, planner=DefaultLoadPlanner())
        check(dict(state["model"]), dict(expected))


@case(2)
def a_model_on_the_meta_device(medium: Medium) -> None:
    mesh = init_device_mesh("cpu", (2,))
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel(), "2": ColwiseParallel()}
    expected = parallelize_module(layers(0), mesh, plan).state_dict()
    medium.save({"model": expected})
    for reader in medium.readers():
        with torch.device("meta"):
            other = layers(5)
        other = parallelize_module(other, mesh, plan)
        given = other.state_dict()
        state = {"model": given}
        dcp.load(state, storage_reader=reader)
        assert state["model"] is given
        other.load_state_dict(given, assign=True)
        check(dict(other.state_dict()), dict(expected))


def fully_sharded(seed: int, shape: tuple[int, ...], *sizes: int) -> nn.Module:
    names = ("replicate", "shard")[-len(shape):]
    model = layers(seed, *sizes)
    fully_shard(model[0], mesh=init_device_mesh("cpu", shape, mesh_dim_names=names))
    return fully_shard(model, mesh=init_device_mesh("cpu", shape, mesh_dim_names=names))


@case(4)
def hsdp_and_fsdp2_in_both_directions(medium: Medium) -> None:
    for sizes in ((8, 16, 8), (5, 10, 15, 7)):
        for stored, loaded in (((2, 2), (2, 2)), ((2, 2), (4,)), ((4,), (2, 2))):
            model = fully_sharded(0, stored, *sizes)
            state = dict(zip(("model", "optim"), get_state_dict(model, trained(model, sizes[0])), strict=True))
            medium.save(state)
            for reader in medium.readers():
                other = fully_sharded(5, loaded, *sizes)
                found = dict(zip(("model", "optim"), get_state_dict(other, trained(other, sizes[0], 1)), strict=True))
                dcp.load(found, storage_reader=reader)
                for one, value in state["model"].items():
                    check(found["model"][one].full_tensor(), value.full_tensor())
                for one, moments in state["optim"]["state"].items():
                    for key, value in moments.items():
                        value = value.full_tensor() if isinstance(value, DTensor) else value
                        again = found["optim"]["state"][one][key]
                        check(again.full_tensor() if isinstance(again, DTensor) else again, value)


@case(2)
def fsdp1_becomes_fsdp2_and_tensor_parallel(medium: Medium) -> None:
    model = fsdp1(0)
    with FullyShardedDataParallel.summon_full_params(model):
        expected = [parameter.detach().clone() for parameter in model.parameters()]
    medium.save(fsdp1_state(model))
    mesh = init_device_mesh("cpu", (2,))
    for reader in medium.readers():
        for other in (fully_sharded(5, (2,)),
                      parallelize_module(layers(5), mesh, {"0": ColwiseParallel(), "1": RowwiseParallel()})):
            state = {"model": get_model_state_dict(other)}
            dcp.load(state, storage_reader=reader)
            set_model_state_dict(other, state["model"])
            parameters = [p.full_tensor() if isinstance(p, DTensor) else p for p in other.parameters()]
            check([p.detach() for p in parameters], expected)


# ---- whole programs ----


def wrapped(kind: str, seed: int) -> nn.Module:
    if kind == "ddp":
        return DistributedDataParallel(layers(seed))
    if kind == "fsdp1":
        return fsdp1(seed, use_orig_params=True, device_mesh=init_device_mesh("cpu", (4,)))
    if kind == "hsdp1":
        return fsdp1(seed, use_orig_params=True, device_mesh=init_device_mesh("cpu", (2, 2)),
                     sharding_strategy=ShardingStrategy.HYBRID_SHARD)
    return fully_sharded(seed, (4,))


def save_and_load_a_program(medium: Medium, kind: str, save: Callable) -> None:
    model = wrapped(kind, 0)
    optimizer = trained(model)
    plain = layers(0)
    trained(plain)
    save(dict(zip(("model", "optim"), get_state_dict(model, optimizer), strict=True)) | {"step": torch.tensor(2)})
    whole = StateDictOptions(full_state_dict=True)
    for reader in medium.readers():
        other = wrapped(kind, 5)
        again = torch.optim.Adam(other.parameters(), lr=0.5)
        weights, moments = get_state_dict(other, again)
        state = {"model": weights, "optim": moments, "step": torch.tensor(0)}
        dcp.load(state, storage_reader=reader)
        set_state_dict(other, again, model_state_dict=weights, optim_state_dict=moments)
        assert state["step"] == 2 and again.param_groups[0]["lr"] == 0.1
        found = get_model_state_dict(other, options=whole)
        for name, value in plain.state_dict().items():  # gradients of ranks are added in another order
            torch.testing.assert_close(found[name], value)
        check(get_optimizer_state_dict(other, again, options=whole),
              get_optimizer_state_dict(model, optimizer, options=whole))


@case(4)
def a_program_with_ddp(medium: Medium) -> None:
    save_and_load_a_program(medium, "ddp", medium.save)


@case(4)
def a_program_with_fsdp1(medium: Medium) -> None:
    save_and_load_a_program(medium, "fsdp1", medium.save)


@case(4)
def a_program_with_hsdp1(medium: Medium) -> None:
    save_and_load_a_program(medium, "hsdp1", medium.save)


@case(4)
def an_asynchronous_save_with_fsdp2(medium: Medium) -> None:
    def save(state: dict) -> None:
        writer = medium.writer()
        done: Future = dcp.async_save(state, storage_writer=writer)
        done.result(WAIT_MS / 1000)
        medium.await_storage(writer)

    save_and_load_a_program(medium, "fsdp2", save)


@case(4)
def keys_in_another_order_on_each_rank(medium: Medium) -> None:
    class Collective:
        def state_dict(self) -> dict:
            return {}

        def load_state_dict(self, state: dict) -> None:
            dist.all_gather([torch.zeros(2) for _ in range(4)], torch.ones(2))

    class Other(Collective):
        def load_state_dict(self, state: dict) -> None:
            dist.all_reduce(torch.ones(3))

    state = {"a": Collective(), "b": Other()}
    if dist.get_rank():
        state = dict(reversed(state.items()))
    medium.save(state)
    for reader in medium.readers():
        dcp.load(state, storage_reader=reader)


@case(4)
def a_part_by_its_keys(medium: Medium) -> None:
    model = fully_sharded(0, (4,))
    optimizer = trained(model)
    weights, moments = get_state_dict(model, optimizer)
    medium.save({"model": weights, "optimizer": moments})
    whole = {name: value.full_tensor() for name, value in weights.items()}
    for reader in medium.readers():
        found = {"model": get_model_state_dict(fully_sharded(5, (4,)))}
        dcp.load(found, storage_reader=reader)
        check(dict(found["model"]), dict(weights))
        check(_load_state_dict_from_keys("model", storage_reader=reader)["model"], whole)
        state = _load_state_dict_from_keys("optimizer.state", storage_reader=reader)["optimizer"]["state"]
        assert "param_groups" not in state
        for name, value in moments["state"].items():
            check(state[name]["exp_avg"], value["exp_avg"].full_tensor())


@case(2)
def a_later_save_is_the_one_that_is_loaded(medium: Medium) -> None:
    for number in (1.0, 2.0):
        medium.save({"number": torch.full((10,), number)})
    for reader in medium.readers():
        state = {"number": torch.zeros(10)}
        dcp.load(state, storage_reader=reader)
        assert state["number"].tolist() == [2.0] * 10


@case(4)
def fine_tuning_of_a_part(medium: Medium) -> None:
    """A model is loaded into a larger one; then the larger one, of which a part is frozen, is saved and loaded."""
    base = fully_sharded(0, (4,), 8, 8)
    medium.save({"model": get_model_state_dict(base)})
    expected = [parameter.full_tensor() for parameter in base.parameters()]

    def larger(seed: int) -> nn.Module:
        model = layers(seed, 8, 8, 3)
        for parameter in model[0].parameters():
            parameter.requires_grad = False
        for part in (*model, model):
            fully_shard(part, mesh=init_device_mesh("cpu", (4,)))
        return model

    for reader in medium.readers():
        model = larger(5)
        state = {"model": get_model_state_dict(model[0])}
        dcp.load({"model": {f"0.{key}": value for key, value in state["model"].items()}}, storage_reader=reader)
        set_model_state_dict(model[0], state["model"])
        check([p.full_tensor() for p in model[0].parameters()], expected)
    optimizer = torch.optim.Adam([p for p in model.parameters() if p.requires_grad], lr=0.1)
    model(torch.rand(2, 8)).sum().backward()
    optimizer.step()
    trainable = StateDictOptions(ignore_frozen_params=True)
    weights, moments = get_state_dict(model, optimizer, options=trainable)
    medium.save({"model": weights, "optim": moments})
    for reader in medium.readers():
        found = {"model": get_model_state_dict(larger(6), options=trainable)}
        dcp.load(found, storage_reader=reader)
        check(dict(found["model"]), dict(weights))
        assert not [name for name in found["model"] if name.startswith("0.")]
