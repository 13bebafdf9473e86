"""ckptengine.dcp.Reader over checkpoints on storage: keys, values, wrapped models, damage, and what differs between
ranks."""

from __future__ import annotations

import copy
import shutil
import time
import warnings
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp
from ckptengine.dcp import Reader
from ckptengine.torch import Checkpointer, encode
from conftest import build_file_of
from safetensors.torch import load_file
from test_storage_tools import checkpoint_folder, flip_bit, same, write_checkpoint
from torch import nn
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict_from_keys

DEADLINE_S = 60


@pytest.fixture(autouse=True)
def _quiet():
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "torch.distributed is")
        yield


def reader(storage: Path, **more) -> Reader:
    job = "job" if (storage / "job").exists() else next(storage.iterdir()).name
    return Reader(storage, **{"job": job, "library": build_file_of("libckptengine.so")} | more)


# ---- what one Checkpointer stored ----


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.norm = nn.BatchNorm1d(6)
        self.conv = nn.Conv2d(2, 3, 3).to(memory_format=torch.channels_last)
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, numbers: torch.Tensor) -> torch.Tensor:
        image = torch.arange(50.0).reshape(1, 2, 5, 5)
        return self.head(self.norm(self.embedding(numbers))).sum() * self.scale + self.conv(image).sum()


def make(seed: int, wrap=lambda net: net):
    torch.manual_seed(seed)
    net = wrap(Net())
    decayed = [p for p in net.parameters() if p.ndim > 1]
    others = [p for p in net.parameters() if p.ndim <= 1]
    optimizer = torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}], lr=0.1)
    return net, optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)


def train(net, optimizer, scheduler) -> None:
    optimizer.zero_grad()
    net(torch.arange(5)).backward()
    optimizer.step()
    scheduler.step()


def state_of(net, optimizer, scheduler, average, extra) -> dict:
    model, optim = get_state_dict(net, optimizer)
    return {"model": model, "optim": optim, "scheduler": scheduler.state_dict(), "tensor": {"average": average},
            "extra": {"data": extra}}


def store(cluster, storage: Path, training, **given) -> None:
    storage.mkdir(exist_ok=True)
    options = cluster.options(0, 1, copies=1, storage=storage, storage_every=1, storage_keep_every=1,
                              library=build_file_of("libckptengine.so"))
    with Checkpointer(training[0], training[1], schedulers=training[2], **given, **options) as checkpointer:
        checkpointer.restore()
        first = 1
        checkpointer.snapshot(first)
        checkpointer.before_update()
        assert checkpointer.ticket.wait(timeout_ms=30_000), checkpointer.ticket.message
        manifest = storage / cluster.job / f"step-{first:08}" / "manifest.json"
        deadline = time.monotonic() + DEADLINE_S
        while not manifest.exists():
            assert time.monotonic() < deadline, list(storage.rglob("*"))
            time.sleep(0.02)


@pytest.fixture
def stored(cluster, tmp_path):
    """A training that stored its state, and that state dict."""
    training = make(1)
    train(*training)
    average = torch.randn(4, 4)
    store(cluster, tmp_path / "storage", training, tensors={"average": average}, extra={"data": Position(7)})
    return tmp_path / "storage", state_of(*training, average, Position(7).state_dict())


class Position:
    def __init__(self, at: int) -> None:
        self.at = at

    def state_dict(self) -> dict:
        return {"at": self.at, "order": torch.arange(self.at)}

    def load_state_dict(self, state: dict) -> None:
        self.at = state["at"]


def differing(found, expected, path="") -> list[str]:
    if isinstance(expected, torch.Tensor):
        return [] if same(found, expected) else [path]
    if isinstance(expected, dict):
        assert found.keys() == expected.keys(), path
        return [name for key in expected for name in differing(found[key], expected[key], f"{path}.{key}")]
    if isinstance(expected, list):
        assert len(found) == len(expected), path
        return [n for i, (a, b) in enumerate(zip(found, expected, strict=True)) for n in differing(a, b, f"{path}.{i}")]
    return [] if found == expected else [path]


def fresh_state() -> dict:
    return state_of(*make(2), torch.zeros(4, 4), Position(7).state_dict())


def test_stored_state_of_a_checkpointer_is_loaded_by_state_dict_keys(stored):
    storage, expected = stored
    state = fresh_state()
    assert len(differing(state, expected)) > 10
    dcp.load(state, storage_reader=reader(storage))
    assert differing(state, expected) == []
    assert state["model"]["conv.weight"].is_contiguous(memory_format=torch.channels_last)


def test_the_files_of_a_checkpoint_are_read_by_the_safetensors_package_alone(stored):
    storage, expected = stored
    files = list(storage.glob("*/step-00000001/*.safetensors"))
    assert len(files) == 2
    found = {key: value for file in files for key, value in load_file(file).items()}
    parameters = dict(Net().named_parameters())
    names = {key: f"{'model' if key in parameters else 'buffer'}.{key}" for key in expected["model"]}
    # The convolution has the order of its memory in its name, and the head is the embedding's weight.
    assert {key for key, name in names.items() if name not in found} == {"conv.weight", "head.weight"}
    assert [key for key, name in names.items() if name in found and not same(found[name], expected["model"][key])] == []
    moment = expected["optim"]["state"]["scale"]["exp_avg"]
    assert same(found["optim.exp_avg.scale"], moment) and same(found["tensor.average"], expected["tensor"]["average"])


def test_a_part_of_the_state_is_loaded(stored):
    storage, expected = stored
    state = {"model": {"norm.running_mean": torch.zeros(6), "conv.bias": torch.zeros(3)}}
    dcp.load(state, storage_reader=reader(storage))
    assert all(same(state["model"][key], expected["model"][key]) for key in state["model"])
    found = _load_state_dict_from_keys({"model.conv.bias", "scheduler"}, storage_reader=reader(storage))
    assert found.keys() == {"model", "scheduler"} and same(found["model"]["conv.bias"], expected["model"]["conv.bias"])
    assert found["scheduler"] == expected["scheduler"]


def test_missing_keys_are_reported_or_kept(stored):
    storage, expected = stored
    state = {"model": {"conv.bias": torch.zeros(3), "conv.gain": torch.ones(3)}}
    with pytest.raises(CheckpointException, match=r"Missing key in checkpoint state_dict: model.conv.gain"):
        dcp.load(state, storage_reader=reader(storage))
    dcp.load(state, storage_reader=reader(storage), planner=DefaultLoadPlanner(allow_partial_load=True))
    assert state["model"]["conv.gain"].tolist() == [1, 1, 1]
    assert same(state["model"]["conv.bias"], expected["model"]["conv.bias"])
    with pytest.raises(CheckpointException, match=r"Size mismatch"):
        dcp.load({"model": {"conv.bias": torch.zeros(4)}}, storage_reader=reader(storage))


class App:
    """Stateful, as torch's tutorial has it."""

    def __init__(self, net, optimizer) -> None:
        self.net, self.optimizer = net, optimizer

    def state_dict(self) -> dict:
        model, optimizer = get_state_dict(self.net, self.optimizer)
        return {"model": model, "optimizer": optimizer}

    def load_state_dict(self, state: dict) -> None:
        set_state_dict(self.net, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"])


def test_stateful_objects_are_loaded_at_their_keys(stored):
    storage, expected = stored
    net, optimizer, _ = make(2)
    at = {"model": "app.model", "optim": "app.optimizer"}
    dcp.load({"app": App(net, optimizer)}, storage_reader=reader(storage, at=at))
    model, optim = get_state_dict(net, optimizer)
    assert differing(model, expected["model"]) == [] and differing(optim, expected["optim"]) == []
    with pytest.raises(ValueError, match="`at` has the unknown key 'optimizer'"):
        dcp.load({"app": App(net, optimizer)}, storage_reader=reader(storage, at={"optimizer": "app"}))


def test_flattened_optimizer_state_of_one_group_and_a_model_at_the_root_are_loaded(cluster, tmp_path):
    net, optimizer = nn.Linear(3, 2), None
    optimizer = torch.optim.AdamW(net.parameters(), lr=0.25)
    net(torch.ones(3)).sum().backward()
    optimizer.step()
    store(cluster, tmp_path / "storage", (net, optimizer, None))
    other = nn.Linear(3, 2)
    flat = StateDictOptions(flatten_optimizer_state_dict=True)
    again = torch.optim.AdamW(other.parameters(), lr=0.5)
    model, optim = get_state_dict(other, again, options=flat)
    state = model | {"optimizer": optim}
    dcp.load(state, storage_reader=reader(tmp_path / "storage", at={"model": "", "optim": "optimizer"}))
    assert same(state["weight"], net.weight.detach()) and optim["param_groups.weight.lr"] == 0.25
    assert same(optim["state.bias.exp_avg"], optimizer.state[net.bias]["exp_avg"])


def test_a_wrapped_model_is_loaded_by_its_names_with_and_without_the_wrapper(cluster, tmp_path):
    training = make(1, wrap=torch.compile)
    train_eager = (training[0]._orig_mod, *training[1:])
    train(*train_eager)
    store(cluster, tmp_path / "storage", training)
    expected = copy.deepcopy(training[0]._orig_mod.state_dict())
    for prefix in ("", "_orig_mod.", "module."):
        state = {"model": {prefix + key: torch.zeros_like(value) for key, value in expected.items()}}
        dcp.load(state, storage_reader=reader(tmp_path / "storage"))
        assert differing({k.removeprefix(prefix): v for k, v in state["model"].items()}, expected) == []


# ---- several shards ----


def test_newest_checkpoint_in_parts_is_read_unless_another_is_named(tmp_path):
    states = {k: {"model": torch.randn(1000, 257), "small": torch.tensor(k)} for k in (3, 12)}
    for k, state in states.items():
        write_checkpoint(tmp_path / "storage", k, {"model/3": state})
    for given, expected in (({}, 12), ({"iteration": 3}, 3)):
        read, found = reader(tmp_path / "storage", **given), {"model": torch.zeros(1000, 257), "small": torch.tensor(0)}
        dcp.load(found, storage_reader=read)
        assert read.iteration == expected and differing(found, states[expected]) == []
    found = {"small": torch.tensor(0)}
    dcp.load(found, checkpoint_id="checkpoints/step-3", storage_reader=reader(tmp_path / "storage"))
    assert found["small"] == 3


def test_every_flipped_bit_is_noticed(tmp_path):
    state = {"weight": torch.randn(700, 300), "bias": torch.randn(70)}
    folder = write_checkpoint(tmp_path / "storage", 3, {"model/2": state})
    write_checkpoint(tmp_path / "storage", 5, {"model/2": state})
    files = sorted(path for path in checkpoint_folder(tmp_path / "storage", 5).iterdir() if path.stat().st_size)
    assert len(files) >= 4
    for path in files:
        if path.name.endswith(".json") and path.name != "manifest.json":
            continue  # records of pieces, which a reader does not need
        for at in (9, path.stat().st_size // 2, path.stat().st_size - 1):
            flip_bit(path, at)
            read, found = reader(tmp_path / "storage"), {key: torch.zeros_like(value) for key, value in state.items()}
            if path.name == "manifest.json":  # it does not count, and an older one does
                dcp.load(found, storage_reader=read)
                assert read.iteration == 3 and differing(found, state) == []
            else:
                with pytest.raises(CheckpointException, match=f"{path.name} is damaged"):
                    dcp.load(found, storage_reader=read)
            flip_bit(path, at)
    dcp.load(found, storage_reader=(read := reader(tmp_path / "storage")))
    assert read.iteration == 5 and differing(found, state) == []
    assert folder.exists()


def test_damage_in_one_part_does_not_affect_others(tmp_path):
    state = {"weight": torch.randn(700, 3000), "bias": torch.randn(70)}  # 8 MB
    folder = write_checkpoint(tmp_path / "storage", 3, {"model": state})
    flip_bit(folder / "model.1.safetensors", 5_000_000)  # the bias lies before it
    found = {"bias": torch.zeros(70)}
    dcp.load(found, storage_reader=reader(tmp_path / "storage"))
    assert same(found["bias"], state["bias"])


def test_a_manifest_that_was_moved_is_refused_and_does_not_count_as_the_newest(tmp_path):
    storage, state = tmp_path / "storage", {"weight": torch.randn(10)}
    folder = write_checkpoint(storage, 3, {"model": state})
    shutil.copytree(folder, folder.with_name("step-00000007"))
    shutil.copytree(storage / "job", storage / "other")
    for given, where in (({"iteration": 7}, "step-00000007"), ({"job": "other"}, "other/step-0000000[37]"),
                         ({"job": "other", "iteration": 3}, "other/step-00000003")):
        with pytest.raises(CheckpointException, match=f"{where}/manifest.json is of iteration 3 of job 'job'"):
            dcp.load({"weight": torch.zeros(10)}, storage_reader=reader(storage, **given))
    found = {"weight": torch.zeros(10)}
    dcp.load(found, storage_reader=(read := reader(storage)))
    assert read.iteration == 3 and differing(found, state) == []


def test_truncated_file_and_missing_job_are_reported(tmp_path):
    folder = write_checkpoint(tmp_path / "storage", 3, {"model": {"weight": torch.randn(100, 100)}})
    with pytest.raises(CheckpointException, match=r"has no whole checkpoint; check that this is the job's storage"):
        dcp.load({}, storage_reader=reader(tmp_path / "storage", job="other"))
    with pytest.raises(CheckpointException, match=r"has no checkpoint of iteration 4"):
        dcp.load({}, storage_reader=reader(tmp_path / "storage", iteration=4))
    with open(folder / "model.1.safetensors", "r+b") as file:
        file.truncate(10_000)
    for given in ({}, {"iteration": 3}):
        with pytest.raises(CheckpointException, match=r"is damaged \(its size is not the one in the manifest"):
            dcp.load({"weight": torch.zeros(100, 100)}, storage_reader=reader(tmp_path / "storage", **given))
    with pytest.raises(ValueError, match="reads a directory"):
        Reader("nfs://server/export", job="job")
    with pytest.raises(ValueError, match="job's name"):
        Reader(tmp_path / "storage")


def captured(name: str, **tensors: torch.Tensor) -> dict[str, torch.Tensor]:
    state = encode({"groups": {}, "main": name})
    return tensors | {"python_state": torch.frombuffer(bytearray(state), dtype=torch.uint8)}


def test_tensor_stored_by_several_ranks_is_loaded_elsewhere_only_if_equal(tmp_path):
    shards = {}
    for rank in (0, 1):
        shards[f"rank{rank}"] = {"model.same": torch.arange(50.0), "model.expert": torch.full((50,), float(rank))}
        shards[f"rank{rank}.private"] = captured(f"rank{rank}", **{"buffer.mean": torch.tensor(float(rank))})
    write_checkpoint(tmp_path / "storage", 3, shards)
    state = {"model": {"same": torch.zeros(50), "mean": torch.tensor(9.0)}}
    dcp.load(state, storage_reader=reader(tmp_path / "storage"))
    assert state["model"]["same"].tolist() == list(range(50)) and state["model"]["mean"] == 0
    with pytest.raises(CheckpointException, match=r"'model.expert' has different values on different ranks"):
        dcp.load({"model": {"expert": torch.zeros(50)}}, storage_reader=reader(tmp_path / "storage"))
