import torch
import torch.distributed as dist

if __name__ == "__main__":
    dist.init_process_group("nccl")  # finds: nccl
    dist.new_group([0, 1], backend="nccl")  # finds: nccl
    dist.destroy_process_group()
    dist.init_process_group("nccl" if torch.cuda.is_available() else None)
    torch.cuda.set_device(0)  # finds: set-device
