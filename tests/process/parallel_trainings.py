"""A training whose state is split over its ranks by tensor parallelism, FSDP2, HSDP or a pipeline, or by several of
them, or which all ranks share (DDP). Parameters have the same names with every split, except that DDP puts "module."
before them. For split_trainer.py, which runs it."""

from __future__ import annotations

import torch
import torch.distributed.checkpoint as dcp
from ckptengine.torch import Checkpointer
from torch import nn
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.functional import mse_loss
from torch.nn.parallel import DistributedDataParallel

WIDTH, ROWS = 6, 4
BLOCKS = 4
BY_PARAMETER = StateDictOptions(flatten_optimizer_state_dict=True)


class Block(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.register_buffer("seen", torch.tensor([float(number)]))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        self.seen += 1  # whatever data this rank has, because each rank's buffers are its own
        return inputs + self.down(torch.tanh(self.up(self.norm(inputs)))) * (1 + 0.01 * self.seen)


class Whole(nn.Module):
    """A part of the model: only the blocks in `own`. Each parameter has the name that it has in the whole model."""

    def __init__(self, own: range) -> None:
        super().__init__()
        self.blocks = nn.ModuleDict()
        for number in own:
            torch.manual_seed(1 + number)  # the same everywhere
            self.blocks[str(number)] = Block(number)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for block in self.blocks.values():
            inputs = block(inputs)
        return inputs


class CountingAdamW(torch.optim.AdamW):
    """Keeps something that is no tensor for each parameter."""

    @torch.no_grad()
    def step(self, closure=None):
        super().step(closure)
        for parameter, state in self.state.items():
            state["updates"] = state.get("updates", 0) + 1
            parameter.mul_(1 - 0.001 * state["updates"])


class Training:
    """`split`: by how many ranks each dimension splits it: "pp", "replicate", "dp", "tp" and "ddp". `fast`: blocks with
    twice the learning rate. `stages`: how many blocks each stage of the pipeline has, if not all have as many."""

    def __init__(
        self,
        split: dict[str, int],
        blocks: int = BLOCKS,
        fast: tuple[int, ...] = (),
        stages: tuple[int, ...] = (),
    ) -> None:
        sizes = {name: split.get(name, 1) for name in ("pp", "replicate", "ddp", "dp", "tp")}
        mesh = init_device_mesh("cpu", tuple(sizes.values()), mesh_dim_names=tuple(sizes))
        at = dict(zip(sizes, mesh.get_coordinate(), strict=True))
        # Ranks with the same number have the same data.
        self.copy = (at["replicate"] * sizes["ddp"] + at["ddp"]) * sizes["dp"] + at["dp"]
        stages = stages or (blocks // sizes["pp"],) * sizes["pp"]
        first = sum(stages[: at["pp"]])
        self.model = Whole(range(first, first + stages[at["pp"]]))
        for block in self.model.blocks.values():
            if "tp" in split:
                parallelize_module(block, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
            if "dp" in split:
                fully_shard(block, mesh=mesh["replicate", "dp"] if "replicate" in split else mesh["dp"])
        rate = 0.02 if all(int(number) in fast for number in self.model.blocks) else 0.01
        if "ddp" in split:
            self.model = DistributedDataParallel(self.model)
        self.optimizer = CountingAdamW(self.model.parameters(), lr=rate)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda k: 0.8 ** (k // 2))
        self.at, self.stages, self.schedule = at["pp"], sizes["pp"], None
        if "pp" in split:
            stage = PipelineStage(self.model, self.at, self.stages, torch.device("cpu"), group=mesh.get_group("pp"))
            self.schedule = Schedule1F1B(stage, 2 * self.stages, loss_fn=mse_loss)

    def checkpointer(self, options: dict) -> Checkpointer:
        return Checkpointer(self.model, self.optimizer, schedulers=self.scheduler, **options)

    def step(self, k: int) -> float:
        """Returns the loss. In a pipeline, only the last stage has it."""
        rows = ROWS if self.schedule is None else 8  # a row for each micro batch
        generator = torch.Generator().manual_seed(100 * k + self.copy)
        inputs = torch.randn(rows, WIDTH, generator=generator)
        self.optimizer.zero_grad()
        if self.schedule is None:
            loss = mse_loss(self.model(inputs), -inputs)
            loss.backward()
            return loss.item()
        losses: list[torch.Tensor] = []
        given = (inputs,) if self.at == 0 else ()
        target = -inputs if self.at == self.stages - 1 else None
        self.schedule.step(*given, target=target, losses=losses)
        return float(sum(loss.item() for loss in losses))

    def update(self, k: int) -> None:
        self.optimizer.step()
        self.scheduler.step()

    def state(self) -> dict:
        model, optimizer = get_state_dict(self.model, self.optimizer, options=BY_PARAMETER)
        return {"model": model, "optim": optimizer, "scheduler": self.scheduler.state_dict()}

    def load(self, folder: str) -> None:
        state = self.state()
        dcp.load(state, checkpoint_id=folder)
        set_state_dict(self.model, self.optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"],
                       options=BY_PARAMETER)
        rates = [group["lr"] for group in self.optimizer.param_groups]
        own = {"base_lrs": self.scheduler.base_lrs, "_last_lr": rates}
        self.scheduler.load_state_dict(state["scheduler"] | own)  # DCP has kept the scheduler of one rank alone
