"""A rank of a script written for Hugging Face's Trainer; prints the SHA-256 of its model after training."""

from __future__ import annotations

import hashlib
import tempfile

import torch
from transformers import BertConfig, BertForSequenceClassification, Trainer, TrainingArguments

import mlrun.accelerate

mlrun.accelerate.join()
with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(
        folder, num_train_epochs=1, per_device_train_batch_size=4, save_strategy="no", report_to=[]
    )
    torch.manual_seed(torch.distributed.get_rank())  # ranks start from unlike models
    config = BertConfig(vocab_size=64, hidden_size=16, num_hidden_layers=1, num_attention_heads=2)
    model = BertForSequenceClassification(config)
    generator = torch.Generator().manual_seed(1)
    data = [{"input_ids": torch.randint(64, (8,), generator=generator), "labels": n % 2} for n in range(32)]
    result = Trainer(model, arguments, train_dataset=data).train()
parameters = torch.cat([p.detach().flatten().cpu() for p in model.parameters()])
digest = hashlib.sha256(parameters.numpy().tobytes()).hexdigest()
print(f"rank={arguments.process_index} of={arguments.world_size} steps={result.global_step} {digest=}")
torch.distributed.destroy_process_group()
