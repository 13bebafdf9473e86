"""One rank of a small DeepSpeed job, for test_deepspeed.py. Its loop is the example of the documentation."""

from __future__ import annotations

import os

import deepspeed
import deepspeed.runtime.zero.muon.muon_optimizer  # late otherwise, in every rank after it was forked
import torch
import torch._dynamo
import torch.distributed as dist
from ckptengine import Error
from ckptengine.integrations.deepspeed import Checkpointer
from deepspeed.pipe import PipelineModule
from deepspeed.runtime.dataloader import RepeatingLoader
from torch import nn
from torch.nn.functional import mse_loss
from training_systems import Rank, example

WIDTH, HIDDEN = 7, 10

KINDS = {
    # bfloat16 with float32 accumulation: DeepSpeed's BF16_Optimizer
    "zero1": {"zero_optimization": {"stage": 1}, "bf16": {"enabled": True},
              "data_types": {"grad_accum_dtype": "fp32"}},
    # The first steps overflow and are skipped.
    "zero2": {"zero_optimization": {"stage": 2}, "fp16": {"enabled": True, "initial_scale_power": 23, "hysteresis": 1},
              "gradient_accumulation_steps": 2},
}
COMMON = {
    "train_micro_batch_size_per_gpu": 4,
    "optimizer": {"type": "Adam", "params": {"lr": 0.01, "torch_adam": True}},
    "scheduler": {"type": "WarmupLR", "params": {"warmup_min_lr": 0.001, "warmup_max_lr": 0.02, "warmup_num_steps": 6}},
    "steps_per_print": 1_000_000,
}


# What is refused.
REFUSED = {
    "stage 0": {"zero_optimization": {"stage": 0}},
    "stage 3": {"zero_optimization": {"stage": 3}},
    "offload": {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
    "pipeline": {"zero_optimization": {"stage": 1}},
    "training_data": {"zero_optimization": {"stage": 1}},
}


def parts() -> list[nn.Module]:
    torch.manual_seed(1)
    return [nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Dropout(0.1), nn.Linear(HIDDEN, WIDTH)]


def dataset() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(7)
    return list(torch.randn(40, WIDTH, generator=generator))


def initialize(model: nn.Module | None = None, data: list | None = None, **config):
    os.environ |= {"DS_ACCELERATOR": "cpu", "LOCAL_RANK": "0"}
    deepspeed.accelerator.get_accelerator().is_fp16_supported = lambda: True  # slow, but PyTorch does
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False  # which it would compile
    model = model or nn.Sequential(*parts())
    return deepspeed.initialize(model=model, training_data=data, config=COMMON | config)


def tell_refusals(rank: Rank) -> None:
    for case, config in REFUSED.items():
        model = PipelineModule(parts(), num_stages=1) if case == "pipeline" else None
        engine, *_ = initialize(model, dataset() if case == "training_data" else None, **config)
        try:
            Checkpointer(engine, job="refused")
        except Error as error:
            rank.tell(case=case, refused=str(error))
    rank.end()


def run(settings: dict) -> None:
    rank = Rank(settings)
    if settings["kind"] == "refused":
        tell_refusals(rank)
    engine, _, loader, _ = initialize(data=dataset(), **KINDS[settings["kind"]])
    loader.num_local_io_workers = 0
    torch.manual_seed(1000 + dist.get_rank())

    def loss_of(batch):
        rank.begin(engine.global_steps)
        batch = batch.to(next(engine.module.parameters()).dtype)
        loss = mse_loss(engine(batch).float(), batch.float())
        rank.tell(k=engine.global_steps, micro=engine.micro_steps, loss=loss.item().hex(),
                  scale=engine.optimizer.loss_scaler.cur_scale if settings["kind"] == "zero2" else 1)
        return loss

    if settings["engine"] is None:
        batches = RepeatingLoader(loader)
        while engine.global_steps < settings["iterations"]:
            engine.backward(loss_of(next(batches)))
            engine.step()
        rank.end()
    rank.run(example("DeepSpeed"), engine=engine, loader=loader, loss_of=loss_of, iterations=settings["iterations"])
