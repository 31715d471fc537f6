"""Writes tests/golden/*.safetensors: what diffusers' DiT computes in float64 (see README.md).

    python make_golden.py [--out DIR]      write the files
    python make_golden.py --check          test the peer itself, and the files against it
    python make_golden.py --wide --out DIR the same cases with wider models
"""

import argparse
import json
import pathlib

import diffusers
import torch
from safetensors.torch import save_file

import diffusion
import optimizers
import peer

DOUBLE = torch.float64
HERE = pathlib.Path(__file__).resolve().parent


def model(width, depth, heads, patch, image_size, channels, classes, learn_sigma, objective):
    return dict(locals())


# Widths are as small as the golden folder's size asks, and no multiple of 16 on purpose: vector
# kernels have to take their tails. --wide has the same cases at WIDE, too big to keep.
CASES = {
    "ddpm_small": (model(24, 2, 3, 2, 8, 4, 5, True, "ddpm"), [0, 437, 999], [2, 5, 0]),
    "flow_small": (model(20, 2, 2, 4, 12, 1, 10, False, "flow"), [0.125, 0.84375], [7, 10]),
    "ddpm_nosigma": (model(12, 1, 1, 2, 6, 3, 3, False, "ddpm"), [3, 812], [1, 3]),
    "flow_nolabel": (model(8, 1, 1, 2, 4, 1, 0, False, "flow"), [0.5, 0.9375], [0, 0]),
}
WIDE = {"ddpm_small": 48, "flow_small": 32, "ddpm_nosigma": 24, "flow_nolabel": 64}
THROUGH_THE_CLI = ["ddpm_small", "flow_small"]
TRAINED = {"ddpm_small": ["adamw"], "flow_small": ["adamw"],
           "ddpm_nosigma": ["lion", "adafactor"], "flow_nolabel": ["lion", "adafactor"]}


NOUGHT = "final_layer.linear.bias"  # starts at zero where optimizers are compared


def random_weights(m, g):
    """fp32, nowhere zero (not even where training starts from zero), so every gradient flows."""
    net = peer.build(m)
    weights = {}
    for name, w in peer.gather(net, m, lambda p: p.detach()).items():
        scale = 0.1 if name.endswith("bias") else 0.7 / w[0].numel() ** 0.5
        scale = 0.3 if "embedding_table" in name else scale
        weights[name] = (scale * torch.randn(w.shape, generator=g, dtype=DOUBLE)).float()
    weights["pos_embed"] = net.pos_embed.pos_embed.float()
    return weights


def random_batch(m, t, y, g):
    """Images of 8-bit values in [-1, 1], a good part of them exactly -1 or 1: the open bins."""
    shape = (len(t), m["channels"], m["image_size"], m["image_size"])
    bytes_ = torch.randint(-80, 336, shape, generator=g).clamp(0, 255)
    x = (bytes_.to(DOUBLE) / 127.5 - 1).float()
    noise = torch.randn(shape, generator=g, dtype=DOUBLE).float()
    if 0 in t and m["learn_sigma"]:
        noise[t.index(0), 0, 1, 1] = 8  # So far off that the likelihood is clamped at 1e-12.
        x[t.index(0), 0, 1, 1] = 0.2
    flow = m["objective"] == "flow"
    return x, noise, torch.tensor(t, dtype=torch.float32 if flow else torch.int64), torch.tensor(y)


def random_steps(m, g):
    """(t, y) of two samples. Flow's t is a multiple of 1/4096, so that 1000 t is exact in fp32:
    rounding it would move the fast timestep frequencies by 1e-5."""
    top = 4095 if m["objective"] == "flow" else 999
    t = torch.randint(1, top + 1, (2,), generator=g)
    y = torch.randint(0, m["classes"] + 1, (2,), generator=g)
    return (t / 4096 if m["objective"] == "flow" else t).tolist(), y.tolist()


def prefixed(prefix, tensors):
    return {prefix + k: v for k, v in tensors.items()}


def batch_tensors(batch, prefix=""):
    return prefixed(prefix, dict(zip(("x", "noise", "t", "y"), batch, strict=True)))


def gradients(m, weights, batch):
    """{loss, output, grad.*}, all double."""
    net = peer.build(m)
    peer.load(net, m, weights)
    loss, output = diffusion.loss_of(net, m, batch)
    loss.backward()
    grads = peer.gather(net, m, lambda p: p.grad)
    result = {"loss": loss.detach().view(1), "output": output.detach().contiguous()}
    return result | prefixed("grad.", grads)


def lion(params):
    return optimizers.Lion(params, lr=1e-3, betas=(0.9, 0.99), weight_decay=0.1)


def adafactor(params):
    """torch's defaults, but for the decay. eps1 is by default the parameters' own machine epsilon:
    here that of fp32, in which Ebb trains, though the numbers are double."""
    eps = (torch.finfo(torch.float32).eps, 1e-3)
    return torch.optim.Adafactor(params, eps=eps, weight_decay=0.1)


def adamw(params):
    return torch.optim.AdamW(params, lr=1e-3, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)


# Adafactor's norm is held so low that the mean squares of some tensors' gradients are below eps1, and
# those of others above.
OPTIMIZERS = {"adamw": (adamw, 1.0), "lion": (lion, 1.0), "adafactor": (adafactor, 0.02)}


def training_run(optimizer, m, weights, batches):
    """Loss and gradient norm of each step: before that step's update, before its clipping; and how
    far the weights have moved in the end."""
    make, clip = OPTIMIZERS[optimizer]
    net = peer.build(m)
    # The tensors of the reference, not of diffusers: to Adafactor it matters that queries, keys and
    # values are one. A convolution's weight is a matrix to Ebb; torch would take each of its
    # patches as one.
    trained = {name: torch.nn.Parameter(weights[name].to(DOUBLE).flatten(1))
               if weights[name].dim() > 1 else torch.nn.Parameter(weights[name].to(DOUBLE))
               for name in peer.names(m)}
    rule = make(trained.values())
    losses, norms = [], []
    for k, batch in enumerate(batches):
        net.zero_grad()
        peer.load(net, m, {n: p.detach().view(weights[n].shape) for n, p in trained.items()})
        loss, _ = diffusion.loss_of(net, m, batch)
        loss.backward()
        for name, gradient in peer.gather(net, m, lambda p: p.grad).items():
            trained[name].grad = gradient.view(trained[name].shape)
        norms.append(torch.nn.utils.clip_grad_norm_(trained.values(), clip).item())
        losses.append(loss.item())
        if optimizer == "adafactor" and k == len(batches) - 1:
            rule.param_groups[0]["lr"] = 1.0  # Above 1 / sqrt(k + 1), which is then the rate.
        rule.step()
    moved = {n: (p.detach().view(weights[n].shape) - weights[n].to(DOUBLE)).float()
             for n, p in trained.items()}
    if optimizer == "lion":  # The sign of a gradient that is zero but for rounding means nothing.
        for name in moved:
            if name.endswith("attn.qkv.bias"):
                moved[name].chunk(3)[1].zero_()
    return torch.tensor(losses, dtype=DOUBLE), torch.tensor(norms, dtype=DOUBLE), moved


def training_file(optimizer, m, weights, batches):
    if optimizer != "adamw":
        # As training starts: nothing to take a share of, so that Adafactor's least step shows.
        weights = weights | {NOUGHT: torch.zeros_like(weights[NOUGHT])}
    losses, norms, moved = training_run(optimizer, m, weights, batches)
    out = prefixed("weights.", weights) | {"losses": losses, "grad_norms": norms}
    for k, b in enumerate(batches):
        out |= batch_tensors(b, f"batch.{k}.")
    return out if optimizer == "adamw" else out | prefixed("moved.", moved)


def known_noise(x, t):
    """Stands for a network in the samplers' files: (eps, v), exact in any language."""
    return 0.1 * x + t / 10000, torch.full_like(x, 0.3)


def known_velocity(x, t):
    return 0.5 * x - t


def tables_file(g):
    tab = diffusion.Tables()
    fields = ("beta", "alpha_bar", "posterior_variance", "log_posterior_variance", "log_beta",
              "mean_coef_x0", "mean_coef_xt")
    at = torch.tensor([0, 1, 2, 10, 250, 500, 750, 998, 999])
    out = {"at": at} | {f: getattr(tab, f)[at] for f in fields}
    for k in (10, 50, 250):
        out[f"respaced.{k}"] = torch.tensor(diffusion.respaced(k))
    out["respaced_beta.10"] = diffusion.Tables(diffusion.respaced(10)).beta
    x = torch.randn(6, generator=g, dtype=DOUBLE).float().to(DOUBLE)
    z = torch.randn(10, 6, generator=g, dtype=DOUBLE).float().to(DOUBLE)
    kept = diffusion.respaced(10)
    out |= {"ddpm.x_T": x.clone(), "ddpm.z": z, "ddim.x_T": x.clone()}
    out["ddpm.xs"] = diffusion.sample_ddpm(known_noise, x, z, kept)
    out["ddim.xs"] = diffusion.sample_ddim(known_noise, x, kept)
    for name in ("euler", "heun"):
        out[name + ".x_T"] = x.clone()
        out[name + ".xs"] = diffusion.sample_flow(known_velocity, x, 8, heun=name == "heun")
    return out


def make(wide=False):
    """{file name: (tensors, the model or None)}; the same numbers at every call."""
    files = {}
    for seed, (case, (m, t, y)) in enumerate(CASES.items()):
        m = m | {"width": WIDE[case]} if wide else m
        g = torch.Generator().manual_seed(seed)
        weights, batch = random_weights(m, g), random_batch(m, t, y, g)
        given = prefixed("weights.", weights)
        files[case] = (given | batch_tensors(batch, "batch.") | gradients(m, weights, batch), m)
        if case in THROUGH_THE_CLI:
            files[case + ".weights"] = (weights, m)
            files[case + ".batch"] = (batch_tensors(batch), None)
        batches = [random_batch(m, *random_steps(m, g), g) for _ in range(20)]
        for optimizer in TRAINED[case]:
            files[f"{optimizer}_{case}"] = (training_file(optimizer, m, weights, batches), m)
    files["diffusion_tables"] = (tables_file(torch.Generator().manual_seed(99)), None)
    return files


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path, default=HERE.parent / "golden")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--wide", action="store_true")
    args = parser.parse_args()
    if args.wide and args.out == parser.get_default("out"):
        parser.error("--wide needs an --out of its own: those files are too big to keep")
    torch.set_num_threads(1)  # The models are tiny, and one thread adds in one order.
    files = make(args.wide)
    if args.check:
        import check_peer
        return check_peer.run(files, args.out)
    args.out.mkdir(parents=True, exist_ok=True)
    total = 0
    for name, (tensors, m) in files.items():
        meta = {"made_by": f"diffusers {diffusers.__version__}, torch {torch.__version__}"}
        if m:
            meta["ebb.model"] = json.dumps(m)
        path = args.out / f"{name}.safetensors"
        save_file({k: v.contiguous() for k, v in tensors.items()}, path, metadata=meta)
        total += path.stat().st_size
        print(f"{path.name:40} {path.stat().st_size:9,}")
    print(f"{'total':40} {total:9,}")


if __name__ == "__main__":
    main()
