"""Lightning with checkpoints in memory. Run it, kill it, run it again: it goes on where it was.

CKPTENGINE_JOB=run1 torchrun --nproc-per-node 2 examples/integrations/train_lightning.py
"""

import lightning.pytorch as lightning
import torch
from ckptengine.integrations.lightning import CheckpointCallback


class Model(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(8, 1)

    def training_step(self, batch, _):
        return self.layer(batch).square().mean()

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters())


lightning.seed_everything(1)
loader = torch.utils.data.DataLoader(torch.randn(64, 8), 4, shuffle=True)
trainer = lightning.Trainer(
    max_epochs=3,
    accelerator="cpu",
    devices="auto",
    logger=False,
    enable_checkpointing=False,
    callbacks=[CheckpointCallback()],
)
trainer.fit(Model(), loader)
