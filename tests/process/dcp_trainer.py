"""One rank that saves and loads with torch.distributed.checkpoint and ckptengine.dcp. For test_dcp.py.

`settings["does"]` names a function below. What it returns is written as JSON to the rank's file.
"""

from __future__ import annotations

import json
import os
import signal
import traceback
import warnings
from datetime import timedelta

import dcp_cases
import framework_trainer
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ckptengine import Engine, Stage
from ckptengine.dcp import Reader, Writer
from framework_trainer import Training
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor


def run(settings: dict) -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    if settings.get("grouped", True):
        dist.init_process_group("gloo", init_method=f"file://{settings['rendezvous']}", rank=settings["rank"],
                                world_size=settings["world_size"], timeout=timedelta(seconds=90))
    try:
        told = globals()[settings["does"]](settings)
    except Exception:
        told = {"error": traceback.format_exc()}
    with open(settings["log"], "w") as log:
        log.write(json.dumps(told) + "\n")
    if settings["does"] != "cases":  # which end together, or as soon as one fails
        dist.barrier()
    os._exit(0)


def reader(settings: dict) -> Reader:
    if "engine" in settings:
        return Reader(engine(settings))
    where = {"job": settings["job"], "library": settings["library"]}
    return Reader(settings["storage"], iteration=settings.get("iteration"), **where)


def load_into_training(settings: dict) -> dict:
    """Loads what another job stored into a model that is split in another way. Writes the whole tensors."""
    training = Training(settings["kind"])
    for parameter in training.model.parameters():
        torch.nn.init.zeros_(parameter)
    model, optimizer = get_state_dict(training.model, training.optimizer)
    state = {"model": model, "optim": optimizer, "tensor": training.average,
             "scheduler": training.scheduler.state_dict()}
    read = reader(settings)
    dcp.load(state, storage_reader=read)
    set_state_dict(training.model, training.optimizer, model_state_dict=model, optim_state_dict=optimizer)
    torch.save(whole(training), settings["log"] + ".pt")
    return {"iteration": read.iteration, "scheduler": state["scheduler"]["last_epoch"],
            "lr": training.optimizer.param_groups[0]["lr"]}


def whole(training: Training) -> dict[str, torch.Tensor]:
    found = framework_trainer.Training.whole(training)
    if not found:  # nothing is split
        found = {f"model.{name}": p.detach() for name, p in training.model.named_parameters()}
        for name, parameter in training.model.named_parameters():
            found |= {f"optim.{key}.{name}": value for key, value in training.optimizer.state[parameter].items()}
    return found


# ---- memory ----


def engine(settings: dict) -> Engine:
    return Engine(**settings["engine"][settings["rank"]])


def state_of(settings: dict, seed: int) -> dict:
    """Of every kind: split along either dimension, replicated, plain, values. `seed` is in every element."""
    mesh = init_device_mesh("cpu", (settings["world_size"],))
    shape = (7, 10)
    whole = torch.arange(70.0).reshape(shape) + seed
    placement = [Shard(settings.get("dim", 0))]
    return {
        "model": {"split": distribute_tensor(whole, mesh, placement),
                  "replicated": distribute_tensor(whole + 0.5, mesh, [Replicate()]),
                  "thin": distribute_tensor(torch.arange(1.0) + seed, mesh, [Shard(0)]),
                  "scalar": torch.tensor(float(seed)), "complex": torch.full((3,), seed * 1j, dtype=torch.complex128),
                  "transposed": (whole + 0.25).t()},
        "step": seed, "text": {"name": f"seed {seed}"}, "list": [1, seed],
    }


def plain(state: dict) -> dict:
    flat, _ = flatten_state_dict(state)
    return {key: value.full_tensor() if isinstance(value, DTensor) else value for key, value in flat.items()}


def same(one: dict, other: dict) -> list[str]:
    one, other = plain(one), plain(other)
    assert one.keys() == other.keys()
    return [key for key, value in one.items()
            if not (torch.equal(value, other[key]) if isinstance(value, torch.Tensor) else value == other[key])]


def save(settings: dict) -> dict:
    with engine(settings) as own:
        saved = []
        for seed in settings["seeds"]:
            writer = Writer(own)
            if settings.get("asynchronous"):
                dcp.async_save(state_of(settings, seed), storage_writer=writer).result()
            else:
                dcp.save(state_of(settings, seed), storage_writer=writer)
            saved.append([writer.ticket.iteration, writer.ticket.wait(Stage.COMMITTED, 60_000)])
        if settings["rank"] in settings.get("victims", ()):
            dist.barrier()
            os.kill(os.getpid(), signal.SIGKILL)
        if settings.get("victims"):
            dist.barrier()
            os._exit(0)
        return {"saved": saved}


def load(settings: dict) -> dict:
    with engine(settings) as own:
        state = state_of(settings, 0)
        read = Reader(own)
        dcp.load(state, storage_reader=read)
        return {"iteration": read.iteration, "differs": same(state, state_of(settings, settings["seeds"][-1]))}


def cases(settings: dict) -> dict:
    return dcp_cases.run(settings)
