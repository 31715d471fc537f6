"""Proves that the peer is the same model with the same loss: compares it with `ebb grad`.

    python check.py [--ebb PATH]                            with small random weights and batches
    python check.py [--ebb PATH] --given W B                with files that `ebb grad` reads

Exits with 1 if the loss, the output or any tensor's gradient is off by more than 1e-4.
"""

import argparse
import dataclasses
import json
import pathlib
import subprocess
import sys
import tempfile

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from diffusion import OBJECTIVES
from dit import Config, DiT

EBB = pathlib.Path(__file__).resolve().parents[2] / "build" / "ebb"
ALLOWED = 1e-4
MADE = {
    "ddpm": Config(64, 2, 2, 2, image_size=8, classes=5),
    "ddpm without sigma": Config(64, 2, 2, 2, image_size=8, classes=5, learn_sigma=False),
    "flow": Config(64, 2, 2, 2, image_size=8, classes=5, learn_sigma=False, objective="flow"),
}


def read(path):
    with safe_open(path, framework="pt") as file:
        config = (file.metadata() or {}).get("ebb.model")
        return {name: file.get_tensor(name) for name in file.keys()}, config


def parsed(config):
    fields = {field.name for field in dataclasses.fields(Config)}
    return Config(**{k: v for k, v in json.loads(config).items() if k in fields})


def write_made(config, folder):
    """Random weights, nowhere zero as at the start of training; t = 0 and the end bins included."""
    weights = DiT(config).state_dict()
    for name, w in weights.items():
        if name != "pos_embed":
            w.normal_(std=0.1 if name.endswith("bias") else 0.7 / w[0].numel() ** 0.5)
    shape = (3, config.channels, config.image_size, config.image_size)
    # 1000 t has to be exact in float32, or the fast frequencies show how each side rounds it.
    t = torch.tensor([0.125, 0.5, 0.84375] if config.objective == "flow" else [0, 437, 999])
    batch = {"x": torch.randn(shape).clamp(-1, 1), "noise": torch.randn(shape), "t": t,
             "y": torch.tensor([2, config.classes, 0])}
    save_file(weights, folder / "W.safetensors",
              metadata={"ebb.model": json.dumps(dataclasses.asdict(config))})
    save_file(batch, folder / "B.safetensors")
    return folder / "W.safetensors", folder / "B.safetensors"


def peer_gradients(weights_path, batch_path):
    weights, config = read(weights_path)
    batch, _ = read(batch_path)
    model = DiT(parsed(config))
    model.load_state_dict(weights)
    objective = OBJECTIVES[model.config.objective]()
    loss, output = objective(model, batch["x"], batch["noise"], batch["t"], batch["y"])
    loss.backward()
    gradients = {"grad." + name: p.grad for name, p in model.named_parameters()}
    return {"loss": loss.detach().view(1), "output": output.detach()} | gradients


def relative_errors(weights, batch, ebb, folder):
    """[(error, name)], the worst last."""
    out = folder / "G.safetensors"
    subprocess.run([ebb, "grad", "--weights", weights, "--batch-file", batch, "--out", out],
                   check=True, stdout=subprocess.DEVNULL)
    wanted, _ = read(out)
    found = peer_gradients(weights, batch)
    if wanted.keys() != found.keys():
        raise SystemExit(f"error: one side only: {sorted(wanted.keys() ^ found.keys())}")
    return sorted(((found[k] - w).norm().item() / w.norm().item(), k) for k, w in wanted.items())


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ebb", type=pathlib.Path, default=EBB)
    parser.add_argument("--given", nargs=2, metavar=("W", "B"), type=pathlib.Path)
    args = parser.parse_args()
    torch.manual_seed(0)
    worst = 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for case in ["given"] if args.given else MADE:
            weights, batch = args.given or write_made(MADE[case], folder)
            errors = relative_errors(weights, batch, args.ebb, folder)
            of = {name: error for error, name in errors}
            print(f"{case}: relative error {of['loss']:.1e} of the loss, {of['output']:.1e} of the"
                  f" output, {errors[-1][0]:.1e} at worst ({errors[-1][1]})")
            worst = max(worst, errors[-1][0])
    return 0 if worst <= ALLOWED else 1


if __name__ == "__main__":
    sys.exit(main())
