from accelerate import Accelerator  # finds: trainer-ignores-mps
from transformers import Trainer, TrainingArguments  # finds: trainer-ignores-mps

if __name__ == "__main__":
    accelerator = Accelerator()
    Trainer(args=TrainingArguments("out")).train()
