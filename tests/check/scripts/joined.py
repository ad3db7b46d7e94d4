import lightning
from accelerate import Accelerator

import mlrun.accelerate
import mlrun.lightning

if __name__ == "__main__":
    mlrun.accelerate.join()
    accelerator = Accelerator()
    trainer = lightning.Trainer(**mlrun.lightning.trainer_options())
