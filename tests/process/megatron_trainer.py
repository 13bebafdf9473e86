"""One rank of a small job that checkpoints as Megatron's pretrain() does, with Megatron-Core's state dicts. For
test_megatron.py."""

from __future__ import annotations

import warnings

import torch
import torch._dynamo  # late otherwise, in every rank after it was forked
import torch.distributed as dist
from torch import nn
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

with warnings.catch_warnings(action="ignore"):
    from megatron.core.dist_checkpointing import ShardedTensor
    from megatron.core.dist_checkpointing.mapping import ShardedObject
    from megatron.core.dist_checkpointing.tensor_aware_state_dict import MCoreTensorAwareStateDict
    from nvidia_resiliency_ext.checkpointing.local.ckpt_managers import local_manager
from training_systems import Rank, example

WIDTH, HIDDEN = 7, 10


class Training:
    def __init__(self) -> None:
        torch.manual_seed(1)
        net = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.GELU(), nn.Dropout(0.1), nn.Linear(HIDDEN, WIDTH))
        self.model, self.iteration = DistributedDataParallel(net), 0
        self.optimizer = torch.optim.AdamW(net.parameters(), lr=0.01)
        for p in net.parameters():
            self.optimizer.state[p] = {"step": torch.zeros(()), "exp_avg": torch.zeros_like(p),
                                       "exp_avg_sq": torch.zeros_like(p)}
        self.scheduler = torch.optim.lr_scheduler.StepLR(self.optimizer, 3, 0.9)
        self.data = torch.Generator().manual_seed(dist.get_rank())
        torch.manual_seed(1000 + dist.get_rank())

    def tensors(self) -> dict[str, torch.Tensor]:
        named = dict(self.model.module.named_parameters())
        found = {f"model.{name}": p.data for name, p in named.items()}
        for name, p in named.items():
            found |= {f"optimizer.{key}.{name}": value for key, value in self.optimizer.state[p].items()}
        return found

    def sharded_state_dict(self) -> dict:
        rank = dist.get_rank()
        generators = [torch.get_rng_state(), self.data.get_state()]
        return {
            "iteration": self.iteration,
            "scheduler": self.scheduler.state_dict(),
            "groups": [{k: v for k, v in group.items() if k != "params"} for group in self.optimizer.param_groups],
            "tensors": {name: ShardedTensor.from_rank_offsets(name, tensor, replica_id=rank)
                        for name, tensor in self.tensors().items()},
            "generators": ShardedObject("generators", generators, (dist.get_world_size(),), (rank,)),
        }

    def load(self, state: dict) -> None:
        self.iteration = state["iteration"]
        self.scheduler.load_state_dict(state["scheduler"])
        for group, saved in zip(self.optimizer.param_groups, state["groups"], strict=True):
            group.update(saved)
        for name, tensor in self.tensors().items():
            tensor.copy_(state["tensors"][name])
        torch.set_rng_state(state["generators"][0])
        self.data.set_state(state["generators"][1])

    def train_step(self, rank: Rank) -> None:
        inputs = torch.randn(4, WIDTH, generator=self.data)
        self.optimizer.zero_grad()
        loss = mse_loss(self.model(inputs), inputs)
        loss.backward()
        rank.tell(k=self.iteration, loss=loss.item().hex())
        self.optimizer.step()
        self.scheduler.step()
        self.iteration += 1


def pretrain(rank: Rank, algo: str) -> None:
    """Makes the calls of Megatron's pretrain(), load_checkpoint() and save_checkpoint()."""
    training, manager = Training(), None
    request = None
    if rank.settings["engine"] is not None:
        manager = local_manager.LocalCheckpointManager("/nowhere", repl_strategy=None)
        rank.names["ckpt"] = manager
        if rank.settings["elsewhere"]:  # a newer checkpoint, on storage for example
            assert manager.find_latest() < rank.settings["elsewhere"]
            training.iteration = rank.settings["elsewhere"]
        elif manager.find_latest() != -1:
            loaded, _ = manager.load()
            # The exchange by broadcast, which is Megatron's default, has the device cuda in it.
            state = loaded.to_state_dict(training.sharded_state_dict(), algo=algo, exchange_algo="gather_object")
            training.load(state)
    while training.iteration < rank.settings["iterations"]:
        if request is not None:
            request.execute_sync()
        rank.begin(training.iteration)
        training.train_step(rank)
        if manager is not None:
            state_dict, _ = MCoreTensorAwareStateDict.from_state_dict(training.sharded_state_dict(), algo=algo)
            request = manager.save(state_dict, training.iteration, is_async=algo == "fully_parallel")
    if request is not None:
        request.execute_sync()


def run(settings: dict) -> None:
    rank = Rank(settings)
    torch.cuda.synchronize = lambda: None  # Megatron calls it
    if settings["engine"] is None:
        pretrain(rank, settings["kind"])
        rank.end()
    rank.run(example("Megatron-Core"), pretrain=lambda: pretrain(rank, settings["kind"]))
