"""A Trainer of transformers with checkpoints in memory. Run it, kill it, run it again: it goes on where it was.

CKPTENGINE_JOB=run1 torchrun --nproc-per-node 2 examples/integrations/train_transformers.py
"""

import torch
from ckptengine.integrations.transformers import CheckpointCallback
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(1)
words = torch.randint(0, 32, (64, 8))
dataset = [{"input_ids": sentence, "labels": sentence} for sentence in words]
model = GPT2LMHeadModel(GPT2Config(vocab_size=32, n_positions=8, n_embd=8, n_layer=1, n_head=2))
arguments = TrainingArguments(
    "/tmp/train-transformers", use_cpu=True, save_strategy="no", report_to=[], gradient_accumulation_steps=2
)

trainer = Trainer(model, arguments, train_dataset=dataset)
trainer.add_callback(CheckpointCallback(trainer))
trainer.train()
