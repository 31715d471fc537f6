"""diffusers' own DiT in float64, made to agree with the reference in every digit.

The network is not ours: this file only ties, renames and patches what diffusers does otherwise.
  * timestep frequencies k/128, not k/127, and made in double rather than float;
  * norm3 with eps 1e-6 (diffusers' config default is 1e-5);
  * one timestep and label embedder shared by all blocks, so autograd sums their gradients;
  * eval mode, so labels are never dropped at random;
  * no classes at all: an untrained label row of zeros, absent from every file.
"""

import json
import math

import numpy as np
import torch
from diffusers import DiTTransformer2DModel
from diffusers.utils import logging
from safetensors import safe_open

logging.set_verbosity_error()
DOUBLE = torch.float64


class TimestepFrequencies(torch.nn.Module):
    """[cos(t f) | sin(t f)], f_k = exp(-ln(10^4) k/128), in double whatever the type of t."""

    def forward(self, t):
        f = torch.exp(-math.log(1e4) * torch.arange(128, dtype=DOUBLE) / 128)
        angle = t.to(DOUBLE)[:, None] * f[None, :]
        return torch.cat([angle.cos(), angle.sin()], dim=-1)


def position_table(width, grid):
    """(1, grid*grid, width) in double: columns in the first half, rows in the last, [sin | cos]."""
    omega = 10000.0 ** (-np.arange(width // 4, dtype=np.float64) / (width // 4))
    row, column = np.divmod(np.arange(grid * grid), grid)
    angles = [np.outer(position, omega) for position in (column, row)]
    halves = [np.concatenate([np.sin(a), np.cos(a)], axis=1) for a in angles]
    return torch.from_numpy(np.concatenate(halves, axis=1))[None]


def build(m, device="cpu"):
    """m: the `ebb.model` object. Weights are whatever diffusers starts with; see `load`."""
    with torch.device(device):
        net = DiTTransformer2DModel(
            num_attention_heads=m["heads"],
            attention_head_dim=m["width"] // m["heads"],
            in_channels=m["channels"],
            out_channels=m["channels"] * (2 if m["learn_sigma"] else 1),
            num_layers=m["depth"],
            sample_size=m["image_size"],
            patch_size=m["patch"],
            num_embeds_ada_norm=m["classes"],
            norm_eps=1e-6,
        )
    net = net.to(DOUBLE).eval()
    shared = net.transformer_blocks[0].norm1.emb
    shared.time_proj = TimestepFrequencies()
    for block in net.transformer_blocks:
        block.norm1.emb = shared
    if m["classes"] == 0:
        table = shared.class_embedder.embedding_table.weight
        table.data.zero_()
        table.requires_grad_(False)
    if device != "meta":
        # Both sides store the table in fp32, so fp32-rounded it goes into the computation.
        table = position_table(m["width"], m["image_size"] // m["patch"])
        assert (net.pos_embed.pos_embed - table).abs().max() < 1e-7, "diffusers' table differs"
        net.pos_embed.pos_embed = table.float().to(DOUBLE)
    return net


def names(m):
    """reference name -> the diffusers parameters whose rows, in order, make it up."""
    emb = "transformer_blocks.0.norm1.emb."
    both = {
        "x_embedder.proj": ["pos_embed.proj"],
        "t_embedder.mlp.0": [emb + "timestep_embedder.linear_1"],
        "t_embedder.mlp.2": [emb + "timestep_embedder.linear_2"],
    }
    for i in range(m["depth"]):
        ours, theirs = f"blocks.{i}.", f"transformer_blocks.{i}."
        both[ours + "attn.qkv"] = [theirs + "attn1.to_" + c for c in "qkv"]
        both[ours + "attn.proj"] = [theirs + "attn1.to_out.0"]
        both[ours + "mlp.fc1"] = [theirs + "ff.net.0.proj"]
        both[ours + "mlp.fc2"] = [theirs + "ff.net.2"]
        both[ours + "adaLN_modulation.1"] = [theirs + "norm1.linear"]
    both["final_layer.linear"] = ["proj_out_2"]
    both["final_layer.adaLN_modulation.1"] = ["proj_out_1"]
    result = {f"{k}.{e}": [f"{n}.{e}" for n in v] for k, v in both.items()
              for e in ("weight", "bias")}
    if m["classes"] > 0:
        table = "embedding_table.weight"
        result["y_embedder." + table] = [emb + "class_embedder." + table]
    return result


def gather(net, m, what):
    """{reference name: tensor}, `what` taking a parameter to its value or its gradient."""
    own = dict(net.named_parameters())
    return {k: torch.cat([what(own[n]) for n in v]).contiguous() for k, v in names(m).items()}


def load(net, m, weights):
    """Copies {reference name: tensor} into the network; pos_embed is computed, never loaded."""
    own = dict(net.named_parameters())
    for name, parts in names(m).items():
        for part, rows in zip(parts, weights[name].chunk(len(parts)), strict=True):
            own[part].data.copy_(rows)


def read(path):
    """(tensors, the `ebb.model` object or None) of a safetensors file."""
    with safe_open(path, framework="pt") as f:
        meta = (f.metadata() or {}).get("ebb.model")
        return {k: f.get_tensor(k) for k in f.keys()}, json.loads(meta) if meta else None
