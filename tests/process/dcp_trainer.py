"""One rank that saves and loads with torch.distributed.checkpoint and ckptengine.dcp. For test_dcp.py.

`settings["does"]` names a function below. What it returns is written as JSON to the rank's file.
"""

from __future__ import annotations

import json
import os
import traceback
import warnings
from datetime import timedelta

import framework_trainer
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from ckptengine.dcp import Reader
from framework_trainer import Training
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict


def run(settings: dict) -> None:
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", init_method=f"file://{settings['rendezvous']}", rank=settings["rank"],
                            world_size=settings["world_size"], timeout=timedelta(seconds=90))
    try:
        told = globals()[settings["does"]](settings)
    except Exception:
        told = {"error": traceback.format_exc()}
    with open(settings["log"], "w") as log:
        log.write(json.dumps(told) + "\n")
    dist.barrier()
    os._exit(0)


def reader(settings: dict) -> Reader:
    return Reader(settings["storage"], job=settings["job"], library=settings["library"], iteration=settings.get("iteration"))


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
