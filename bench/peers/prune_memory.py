"""What PyTorch's own structured pruning does to the memory of training: JSON, a row for each state.

    VENV/bin/python bench/peers/prune_memory.py [--model DiT-S/2] [--batch 8]

torch.nn.utils.prune.ln_structured takes half of the rows of every linear layer of the blocks'
attention and MLP; prune.remove then makes that permanent. Training steps come before each row.
"""

import argparse
import ctypes
import gc
import json

import torch
from torch.nn.utils import prune

from dit import named
from worker import Training, forget_peak, status_bytes

STEPS = 3  # before each row: the first makes the optimizer's state


def layers(model):
    for block in model.blocks:
        yield from (block.attn.qkv, block.attn.proj, block.mlp.fc1, block.mlp.fc2)


def size(tensors):
    """Each storage once."""
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(storages.values())


def state_tensors(optimizer):
    return [t for state in optimizer.state.values() for t in state.values() if torch.is_tensor(t)]


def row(task, state):
    for _ in range(STEPS - 1):
        task.repetition()
    forget_peak()
    task.repetition()
    peak = status_bytes("VmHWM")
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    model = task.model
    # What every pass multiplies with the mask is an attribute, neither parameter nor buffer.
    masked = [l.weight for l in layers(model) if not isinstance(l.weight, torch.nn.Parameter)]
    with torch.no_grad():
        pruned = masked or [l.weight for l in layers(model)]
        zeros = sum((w == 0).sum().item() for w in pruned) / sum(w.numel() for w in pruned)
    return {"state": state, "weights": size(model.parameters()), "buffers": size(model.buffers()),
            "masked": size(masked), "optimizer": size(state_tensors(task.optimizer)),
            "resident": status_bytes("VmRSS"), "peak": peak, "zeros": zeros,
            "torch": torch.__version__}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="DiT-S/2")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    imported = status_bytes("VmRSS")
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    args.mode = "eager"
    task = Training(named(args.model), args)
    rows = [row(task, "PyTorch")]
    for layer in layers(task.model):
        prune.ln_structured(layer, "weight", amount=0.5, n=2, dim=0)
    rows.append(row(task, "PyTorch, ln_structured 0.5"))
    for layer in layers(task.model):
        prune.remove(layer, "weight")
    rows.append(row(task, "PyTorch, prune.remove"))
    print(json.dumps([r | {"imported": imported} for r in rows], indent=2))


if __name__ == "__main__":
    main()
