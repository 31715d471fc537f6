"""How far diffusers' own timestep frequencies put its output off, and that one attribute mends it.

    python stock.py [W.safetensors B.safetensors]     weights and batch as `ebb grad` reads them

Without files: the cases of tests/golden. What is printed is relative to the right output.
"""

import argparse
import pathlib

import torch
from diffusers.models.embeddings import CombinedTimestepLabelEmbeddings

import diffusion
import peer

GOLDEN = pathlib.Path(__file__).resolve().parents[1] / "golden"


def output(m, weights, batch, time_proj=None):
    """Of the network, with the right frequencies or those of `time_proj`."""
    net = peer.build(m)
    peer.load(net, m, weights)
    if time_proj is not None:
        net.transformer_blocks[0].norm1.emb.time_proj = time_proj  # peer ties all blocks to it
    with torch.no_grad():
        return diffusion.loss_of(net, m, batch)[1]


def report(name, weights_path, batch_path):
    weights, m = peer.read(weights_path)
    tensors, _ = peer.read(batch_path)
    batch = [tensors[k] for k in ("x", "noise", "t", "y")]
    right = output(m, weights, batch)
    time_proj = CombinedTimestepLabelEmbeddings(max(1, m["classes"]), m["width"]).time_proj

    def off():
        return float((output(m, weights, batch, time_proj) - right).norm() / right.norm())

    stock = off()
    time_proj.downscale_freq_shift = 0
    print(f"{name}: stock diffusers off by {stock:.1%}, with downscale_freq_shift 0 by {off():.1e}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", metavar="W B")
    args = parser.parse_args()
    if len(args.files) not in (0, 2):
        parser.error("give a weights file and a batch file, or none")
    cases = {"given": args.files} if args.files else {
        case: [GOLDEN / f"{case}.{what}.safetensors" for what in ("weights", "batch")]
        for case in ("ddpm_small", "flow_small")}
    for name, files in cases.items():
        report(name, *files)


if __name__ == "__main__":
    main()
