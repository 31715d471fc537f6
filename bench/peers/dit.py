"""The Diffusion Transformer in PyTorch float32; tensors are named as in its checkpoints."""

import dataclasses
import math

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

SIZES = {"S": (384, 12, 6), "B": (768, 12, 12), "L": (1024, 24, 16), "XL": (1152, 28, 16)}
FREQUENCIES = 128


@dataclasses.dataclass(frozen=True)
class Config:
    """The fields of the metadata key `ebb.model`."""

    width: int
    depth: int
    heads: int
    patch: int
    image_size: int = 32
    channels: int = 4
    classes: int = 1000
    learn_sigma: bool = True
    objective: str = "ddpm"

    @property
    def grid(self):
        return self.image_size // self.patch

    @property
    def out_channels(self):
        return self.channels * (2 if self.learn_sigma else 1)


def named(name, **changes):
    """Config of "DiT-S/2" and the like; changes that are None leave the named size's value."""
    size, patch = name.removeprefix("DiT-").split("/")
    width, depth, heads = SIZES[size]
    changes = {key: value for key, value in changes.items() if value is not None}
    return Config(**{"width": width, "depth": depth, "heads": heads, "patch": int(patch)} | changes)


def position_table(width, grid):
    """(1, grid * grid, width): columns in the first half, rows in the last, each [sin | cos]."""
    omega = 10000.0 ** (-torch.arange(width // 4, dtype=torch.float64) / (width // 4))
    angles = torch.outer(torch.arange(grid, dtype=torch.float64), omega)
    line = torch.cat([angles.sin(), angles.cos()], dim=1)
    column = line[None, :, :].expand(grid, -1, -1)
    row = line[:, None, :].expand(-1, grid, -1)
    return torch.cat([column, row], dim=2).reshape(1, grid * grid, width).float()


def modulate(x, shift, scale):
    return torch.addcmul(shift, F.layer_norm(x, x.shape[-1:], eps=1e-6), 1 + scale)


def modulation(width, parts):
    return nn.Sequential(nn.SiLU(), nn.Linear(width, parts * width))


class Patches(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.proj = nn.Conv2d(config.channels, config.width, config.patch, config.patch)

    def forward(self, x):
        # One GEMM. conv2d would leave the tokens transposed in memory for every later operation.
        patches = F.pixel_unshuffle(x, self.proj.stride[0]).flatten(2).transpose(1, 2)
        return F.linear(patches, self.proj.weight.flatten(1), self.proj.bias)


class Timestep(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.mlp = nn.Sequential(nn.Linear(2 * FREQUENCIES, width), nn.SiLU(),
                                 nn.Linear(width, width))
        steps = torch.arange(FREQUENCIES, dtype=torch.float64) / FREQUENCIES
        self.register_buffer("frequencies", (-math.log(1e4) * steps).exp().float(),
                             persistent=False)

    def forward(self, t):
        angles = t[:, None].float() * self.frequencies
        return self.mlp(torch.cat([angles.cos(), angles.sin()], dim=1))


class Label(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embedding_table = nn.Embedding(config.classes + 1, config.width)

    def forward(self, y):
        return self.embedding_table(y)


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x):
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2)
                   for part in self.qkv(x).chunk(3, dim=2))
        return self.proj(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.attn = Attention(config.width, config.heads)
        self.mlp = Mlp(config.width)
        self.adaLN_modulation = modulation(config.width, 6)

    def forward(self, x, c):
        shift1, scale1, gate1, shift2, scale2, gate2 = self.adaLN_modulation(c).chunk(6, dim=2)
        x = torch.addcmul(x, gate1, self.attn(modulate(x, shift1, scale1)))
        return torch.addcmul(x, gate2, self.mlp(modulate(x, shift2, scale2)))


class Final(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.linear = nn.Linear(config.width, config.patch**2 * config.out_channels)
        self.adaLN_modulation = modulation(config.width, 2)

    def forward(self, x, c):
        return self.linear(modulate(x, *self.adaLN_modulation(c).chunk(2, dim=2)))


class DiT(nn.Module):
    def __init__(self, config, checkpointed=False):
        super().__init__()
        self.config = config
        self.checkpointed = checkpointed
        self.x_embedder = Patches(config)
        self.t_embedder = Timestep(config.width)
        self.y_embedder = Label(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.depth))
        self.final_layer = Final(config)
        self.register_buffer("pos_embed", position_table(config.width, config.grid))
        self.initialise()

    @torch.no_grad()
    def initialise(self):
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Conv2d)):
                nn.init.xavier_uniform_(module.weight.flatten(1))
                module.bias.zero_()
        for weight in (self.t_embedder.mlp[0].weight, self.t_embedder.mlp[2].weight,
                       self.y_embedder.embedding_table.weight):
            weight.normal_(std=0.02)
        for layer in (*self.blocks, self.final_layer):
            layer.adaLN_modulation[1].weight.zero_()
        self.final_layer.linear.weight.zero_()

    def forward(self, x, t, y):
        """x (B, C, H, W); t (B), 0 to 1000; y (B), `classes` for no label."""
        c = (self.t_embedder(t) + self.y_embedder(y))[:, None, :]
        x = self.x_embedder(x) + self.pos_embed
        for block in self.blocks:
            if self.checkpointed:
                x = checkpoint(block, x, c, use_reentrant=False, preserve_rng_state=False)
            else:
                x = block(x, c)
        return self.image(self.final_layer(x, c))

    def image(self, tokens):
        p, g = self.config.patch, self.config.grid
        pieces = tokens.view(-1, g, g, p, p, self.config.out_channels)
        return pieces.permute(0, 5, 1, 3, 2, 4).reshape(-1, self.config.out_channels, g * p, g * p)
