"""Accelerate with checkpoints in memory. Run it, kill it, run it again: it goes on where it was.

CKPTENGINE_JOB=run1 accelerate launch --cpu --num_processes 2 examples/integrations/train_accelerate.py
"""

import torch
from accelerate import Accelerator
from ckptengine.integrations.accelerate import Checkpointer

accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
model = torch.nn.Linear(8, 1)
optimizer = torch.optim.AdamW(model.parameters())
scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
loader = torch.utils.data.DataLoader(torch.randn(64, 8), 4, shuffle=True)
model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)

with Checkpointer(accelerator) as checkpointer:
    for _ in checkpointer.epochs(3):
        for batch in checkpointer.batches(loader):
            with accelerator.accumulate(model):
                loss = model(batch).square().mean()
                accelerator.backward(loss)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
