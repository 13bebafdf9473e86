"""One rank of a small training job under Accelerate, transformers or Lightning. For test_integrations.py.

Every rank appends to a file of its own, a line of JSON for each event: where it went on, and each batch's loss.
"""

from __future__ import annotations

import json
import logging
import os
import runpy
import signal
from pathlib import Path
from unittest import mock

import ckptengine
import torch
from torch import nn
from torch.distributed.fsdp import fully_shard

EPOCHS, EXAMPLES, BATCH, ACCUMULATED, WIDTH = 3, 20, 2, 2, 6
RANKS, UPDATES = 2, 9  # in each of three epochs, a rank has five batches: updates of two, two and one
COMMIT_MS = 60_000


class Examples(torch.utils.data.Dataset):
    def __init__(self, make) -> None:
        generator = torch.Generator().manual_seed(3)
        self.examples = [make(generator) for _ in range(EXAMPLES)]

    def __len__(self) -> int:
        return EXAMPLES

    def __getitem__(self, index: int):
        return self.examples[index]


class Observer:
    """Tells what happens in a rank, and kills it at its iteration."""

    def __init__(self, settings: dict) -> None:
        self.settings = settings
        self._log = open(settings["log"], "w", buffering=1)
        self.checkpointer = None  # ckptengine.torch.Checkpointer

    def tell(self, **event) -> None:
        self._log.write(json.dumps(event) + "\n")

    def told(self, what: str, call, *arguments, **options) -> None:
        """Tells with which sentence a call is refused."""
        try:
            call(*arguments, **options)
            self.tell(what=what, refused=None)
        except ckptengine.Error as error:
            self.tell(what=what, refused=str(error))

    def restored(self, restored) -> None:
        self.tell(found=restored.found, first=restored.next_iteration)

    def loss(self, updates: int, value: torch.Tensor, is_last: bool) -> None:
        """Of a batch, after so many updates. It dies in the middle of an update."""
        ticket = None if self.checkpointer is None else self.checkpointer.ticket
        if ticket is not None:
            ticket.wait(ckptengine.Stage.CAPTURING, COMMIT_MS)  # before_update() skips a snapshot that has no slot
            self.checkpointer.before_update()
            committed = ticket.wait(3, COMMIT_MS)
            self.tell(committed=committed, message=ticket.message)
        self.tell(updates=updates, is_last=is_last, loss=value.item().hex())
        if is_last and updates == self.settings["die_at"] and self.settings["rank"] in self.settings["victims"]:
            os.kill(os.getpid(), signal.SIGKILL)


def network() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(WIDTH, 16), nn.BatchNorm1d(16), nn.Dropout(0.2), nn.GELU(), nn.Linear(16, 1))


def vectors() -> Examples:
    return Examples(lambda generator: torch.randn(WIDTH, generator=generator))


def sentence(generator) -> dict:
    words = torch.randint(0, 32, (8,), generator=generator)
    return {"input_ids": words, "labels": words}


def language_model() -> nn.Module:
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    return GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=2))


class Count:
    def __init__(self) -> None:
        self.count = 0

    def state_dict(self) -> dict:
        return {"count": self.count}

    def load_state_dict(self, state: dict) -> None:
        self.count = state["count"]


def accelerate(observer: Observer) -> None:
    import accelerate
    from ckptengine.integrations.accelerate import Checkpointer

    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED)
    # Accelerate has none on CPU. The gradients of the first updates overflow.
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**127)
    accelerate.utils.set_seed(5, device_specific=True)
    model, loader = network(), torch.utils.data.DataLoader(vectors(), BATCH, shuffle=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
    model, optimizer, loader, evaluation, scheduler = accelerator.prepare(
        model, optimizer, loader, torch.utils.data.DataLoader(vectors(), BATCH, shuffle=True), scheduler)
    updates = Count()
    accelerator.register_for_checkpointing(updates)
    checkpointer, epochs, batches_of = None, range(EPOCHS), lambda loader: loader
    if observer.settings["engine"] is not None:
        checkpointer = Checkpointer(accelerator, **observer.settings["engine"])
        observer.checkpointer = checkpointer.inner
        observer.restored(checkpointer.restored)
        epochs, batches_of = checkpointer.epochs(EPOCHS), checkpointer.batches
    for _ in epochs:
        for batch in batches_of(loader):
            with accelerator.accumulate(model):
                loss = model(batch).square().mean()
                observer.loss(updates.count, loss, accelerator.sync_gradients)
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            updates.count += accelerator.sync_gradients
        model.eval()
        with torch.no_grad():
            for batch in evaluation:
                observer.tell(evaluated=model(batch + torch.rand(1)).mean().item().hex(), updates=updates.count)
        model.train()
    if checkpointer is not None:
        checkpointer.close()


def announce(callback, observer: Observer):
    """A callback for a Trainer, of transformers, that learns of the Checkpointer."""
    from transformers import TrainerCallback

    class Announce(TrainerCallback):
        def on_train_begin(self, *_, **__):
            observer.checkpointer = callback.checkpointer
            observer.restored(callback.restored)

    return Announce()


def transformers(observer: Observer) -> None:
    from ckptengine.integrations.transformers import CheckpointCallback
    from transformers import Trainer, TrainerCallback, TrainingArguments

    class Observed(Trainer):
        def compute_loss(self, model, inputs, *arguments, **options):
            loss = super().compute_loss(model, inputs, *arguments, **options)
            if model.training:
                step = self.state.global_step
                observer.loss(step, loss, self.accelerator.sync_gradients)
            return loss

    class Logs(TrainerCallback):
        def on_log(self, args, state, control, logs, **_):
            observer.tell(updates=state.global_step - 1, evaluated=steady(logs))

    def steady(logs: dict) -> dict:
        return {key: value for key, value in logs.items() if not key.endswith(("runtime", "per_second"))}

    arguments = TrainingArguments(
        observer.settings["folder"], per_device_train_batch_size=BATCH, gradient_accumulation_steps=ACCUMULATED,
        num_train_epochs=EPOCHS, logging_steps=2, eval_strategy="steps", eval_steps=3, save_strategy="no",
        warmup_steps=4, use_cpu=True, report_to=[], disable_tqdm=True, dataloader_pin_memory=False)
    trainer = Observed(language_model(), arguments, train_dataset=Examples(sentence), eval_dataset=Examples(sentence),
                       callbacks=[Logs()])
    if observer.settings["engine"] is not None:
        callback = CheckpointCallback(trainer, **observer.settings["engine"])
        trainer.add_callback(callback)
        trainer.add_callback(announce(callback, observer))
    trainer.train()
    observer.tell(updates=UPDATES, evaluated=[steady(logs) for logs in trainer.state.log_history])


def lightning(observer: Observer, strategy="ddp", precision="bf16-mixed") -> None:
    import lightning.pytorch as pl
    import torchmetrics
    from ckptengine.integrations.lightning import CheckpointCallback

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.network = network()
            self.mean = torchmetrics.MeanMetric()

        def configure_model(self):
            if strategy != "ddp":
                fully_shard(self.network, mesh=self.device_mesh["data_parallel"])

        def training_step(self, batch, index):
            loss = self.network(batch).square().mean()
            is_last = self.trainer.is_last_batch or (index + 1) % ACCUMULATED == 0
            observer.loss(self.global_step, loss.float(), is_last)
            self.log("train", loss, on_step=False, on_epoch=True, sync_dist=True)
            self.mean.update(loss.detach())
            self.log("mean", self.mean, on_step=False, on_epoch=True)
            return loss

        def validation_step(self, batch, _):
            loss = self.network(batch + torch.rand(1)).square().mean()
            observer.tell(updates=self.global_step - 1, evaluated=loss.item().hex())
            self.log("val", loss, sync_dist=True)

        def configure_optimizers(self):
            optimizer = torch.optim.AdamW(self.parameters(), lr=0.05)
            by_step = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.9)
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, "min", 0.7, 0)
            return [optimizer], [{"scheduler": by_step, "interval": "step"}, {"scheduler": plateau, "monitor": "train"}]

    class Logs(pl.Callback):
        def on_train_epoch_end(self, trainer, module):
            logged = {name: value.item().hex() for name, value in sorted(trainer.callback_metrics.items())}
            rate = trainer.optimizers[0].param_groups[0]["lr"]
            observer.tell(updates=trainer.global_step - 1, evaluated=[logged, rate])

    class Announce(pl.Callback):
        def on_fit_start(self, trainer, module):
            observer.checkpointer = callback.checkpointer
            observer.restored(callback.restored)

    callbacks = [Logs()]
    if observer.settings["engine"] is not None:
        callback = CheckpointCallback(**observer.settings["engine"])
        callbacks = [callback, Announce(), *callbacks]
    pl.seed_everything(5)
    trainer = pl.Trainer(
        accelerator="cpu", devices=RANKS, strategy=strategy, precision=precision, max_epochs=EPOCHS,
        callbacks=callbacks, accumulate_grad_batches=ACCUMULATED, val_check_interval=4, logger=False,
        enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=observer.settings["folder"])
    loader, evaluation = (torch.utils.data.DataLoader(vectors(), BATCH, shuffle=shuffle) for shuffle in (True, False))
    trainer.fit(Module(), loader, evaluation)


def lightning_fsdp2(observer: Observer) -> None:
    from lightning.pytorch.strategies import ModelParallelStrategy

    lightning(observer, ModelParallelStrategy(data_parallel_size=RANKS, tensor_parallel_size=1), "32-true")


def example(observer: Observer) -> None:
    options = dict(observer.settings["engine"])
    places = [Path(options.pop("library")).parent]
    ckptengine._abi._places = lambda: places
    os.environ |= {f"CKPTENGINE_{name.upper()}": str(value) for name, value in options.items()}
    os.chdir(observer.settings["folder"])
    runpy.run_path(observer.settings["example"], run_name="__main__")


def accelerate_refusals(observer: Observer) -> None:
    import accelerate
    from ckptengine.integrations.accelerate import Checkpointer

    told = observer.told
    accelerator = accelerate.Accelerator(cpu=True)
    told("nothing prepared", Checkpointer, accelerator)
    model = accelerator.prepare(network())
    told("no optimizer", Checkpointer, accelerator)
    optimizer = torch.optim.SGD(model.parameters())
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    accelerator.prepare(optimizer)
    told("no scheduler", Checkpointer, accelerator)
    accelerator.prepare(scheduler)
    state = accelerate.state.AcceleratorState._shared_state
    for kind in ("DEEPSPEED", "MEGATRON_LM", "FSDP", "XLA"):
        with mock.patch.dict(state, distributed_type=getattr(accelerate.DistributedType, kind), fsdp_plugin=None):
            told(kind, Checkpointer, accelerator)
    checkpointer = Checkpointer(accelerator, **observer.settings["engine"])
    told("no epochs", next, checkpointer.batches([1]))
    epochs = checkpointer.epochs(1)
    next(epochs)
    accelerator.prepare(network())
    told("late prepare", next, epochs)
    checkpointer.close()


def transformers_refusals(observer: Observer) -> None:
    from ckptengine.integrations.transformers import CheckpointCallback
    from transformers import Trainer, TrainingArguments

    def trainer(**options):
        arguments = TrainingArguments(
            observer.settings["folder"], use_cpu=True, report_to=[], save_strategy="no", max_steps=1, **options)
        return Trainer(language_model(), arguments, train_dataset=Examples(sentence))

    for options in ({"optim": "lomo"}, {"auto_find_batch_size": True}):
        observer.told(str(options), CheckpointCallback, trainer(**options))
    ours = trainer()
    callback = CheckpointCallback(ours, **observer.settings["engine"])
    observer.told("not added", ours.train)
    ours.add_callback(callback)
    ours.train()
    observer.told("a second train()", ours.train)
    without = trainer()
    with mock.patch.object(Trainer, "_run_epoch", create=True):
        del Trainer._run_epoch
        observer.told("other version", CheckpointCallback, without)


def lightning_refusals(observer: Observer) -> None:
    import lightning.pytorch as pl
    from ckptengine.integrations.lightning import CheckpointCallback
    from lightning.pytorch.strategies import FSDPStrategy

    class Module(pl.LightningModule):
        def __init__(self, configured) -> None:
            super().__init__()
            self.network, self.configured = network(), configured

        def training_step(self, batch, _):
            return self.network(batch).mean()

        def configure_optimizers(self):
            return self.configured(torch.optim.SGD(self.parameters()))

    def with_scheduler(optimizer):
        self = torch.optim.lr_scheduler.StepLR(optimizer, 1)
        return self.optimizer

    def fit(configured, **options) -> None:
        trainer = pl.Trainer(accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, max_steps=1,
                             callbacks=[CheckpointCallback(**observer.settings["engine"])])
        for name, value in options.items():
            setattr(trainer, name, value)
        trainer.fit(Module(configured), torch.utils.data.DataLoader(vectors(), 4))

    observer.told("no scheduler", fit, with_scheduler)
    observer.told("no optimizer", fit, lambda optimizer: None)
    callback = CheckpointCallback(**observer.settings["engine"])
    observer.told("FSDP1", callback.setup, mock.Mock(strategy=FSDPStrategy()), None, "fit")


def run(settings: dict) -> None:
    torch.set_num_threads(1)
    os.environ |= {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
    if settings["world_size"] > 1:
        os.environ |= {
            "RANK": str(settings["rank"]), "LOCAL_RANK": str(settings["rank"]), "GROUP_RANK": "0",
            "WORLD_SIZE": str(settings["world_size"]), "LOCAL_WORLD_SIZE": str(settings["world_size"]),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(settings["port"]), "TORCHELASTIC_RUN_ID": "1",
        }
    observer = Observer(settings)
    handler = logging.Handler()
    handler.emit = lambda record: observer.tell(said=record.getMessage())
    logging.getLogger("ckptengine").addHandler(handler)
    logging.getLogger("ckptengine").setLevel(logging.INFO)
    globals()[settings["kind"]](observer)
    if settings["world_size"] > 1:
        torch.distributed.barrier()
    observer.tell(ended=True)
    os._exit(0)
