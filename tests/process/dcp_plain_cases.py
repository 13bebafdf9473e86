"""Cases of torch's tests of distributed checkpoints with plain tensors and objects, most of them in one process."""

from __future__ import annotations

import copy
import io

import torch
import torch.distributed.checkpoint as dcp
from dcp_case import Medium, case, check, layers, refuses, trained
from torch import nn
from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    get_state_dict,
    set_state_dict,
)


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
