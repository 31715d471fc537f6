"""`make_golden.py --check`: is the peer itself right? Raises at the first thing that is not."""

import torch
from diffusers import DDPMScheduler

import diffusion
import make_golden
import peer

DOUBLE = torch.float64


def check(name, got, want, tolerance):
    got, want = torch.as_tensor(got, dtype=DOUBLE), torch.as_tensor(want, dtype=DOUBLE)
    error = ((got - want).abs().max() / want.abs().max().clamp(min=1e-30)).item()
    print(f"  {name:46} {error:.1e}")
    if not error <= tolerance:
        raise SystemExit(f"error: {name}: off by {error:.3e}, wanted at most {tolerance:.0e}")


def check_counts():
    """Parameters of the paper's models, the position table included and the copies counted once."""
    for name, width, depth, heads, patch, want in (
            ("S/2", 384, 12, 6, 2, 32963360), ("S/8", 384, 12, 6, 8, 33148160),
            ("B/4", 768, 12, 12, 4, 130475648), ("XL/2", 1152, 28, 16, 2, 675129632)):
        m = make_golden.model(width, depth, heads, patch, 32, 4, 1000, True, "ddpm")
        count = sum(p.numel() for p in peer.build(m, "meta").parameters())
        check(f"parameters of {name}", count + (32 // patch) ** 2 * width, want, 0)


def check_gradients(case, m, weights, batch, grads):
    """Every tensor's gradient along a random direction, against a central difference."""
    net = peer.build(m)
    peer.load(net, m, weights)
    eps = diffusion.loss_of(net, m, batch)[1][:, : m["channels"]].detach()
    g, h = torch.Generator().manual_seed(7), 1e-5
    worst = 0.0
    for name in peer.names(m):
        step = torch.randn(weights[name].shape, generator=g, dtype=DOUBLE)
        values = []
        for sign in (h, -h):
            peer.load(net, m, weights | {name: weights[name].to(DOUBLE) + sign * step})
            values.append(diffusion.loss_of(net, m, batch, eps)[0].item())
        peer.load(net, m, weights)
        slope, want = (values[0] - values[1]) / (2 * h), (grads["grad." + name] * step).sum()
        worst = max(worst, abs(slope - want.item()) / grads["grad." + name].norm().item())
    check(f"{case}: gradients by finite differences", 1 + worst, 1, 1e-6)


def check_likelihoods():
    normal = torch.distributions.Normal
    mean, log_var = torch.randn(4, 50, dtype=DOUBLE), torch.randn(4, 50, dtype=DOUBLE)
    p, q = (normal(mean[i], (0.5 * log_var[i]).exp()) for i in (0, 1))
    check("KL against torch.distributions", diffusion.kl(mean[0], log_var[0], mean[1], log_var[1]),
          torch.distributions.kl_divergence(p, q), 1e-12)
    bins = torch.arange(256, dtype=DOUBLE)[:, None] / 127.5 - 1
    nll = diffusion.discretised_nll(bins, torch.linspace(-1.1, 1.1, 7, dtype=DOUBLE)[None],
                                    torch.tensor(-3.0, dtype=DOUBLE))
    check("256 bins share probability one", (-nll).exp().sum(0), torch.ones(7), 1e-9)


def check_samplers(tables):
    """diffusers' own scheduler walks the same respaced steps, its tables raised to double."""
    full = diffusion.Tables()
    check("last alpha_bar", full.alpha_bar[-1], 4.036e-5, 2e-4)
    check("log of the clipped first variance", full.log_posterior_variance[0], -9.8167, 1e-5)
    assert diffusion.respaced(250)[:4] + diffusion.respaced(250)[-2:] == [0, 4, 8, 12, 995, 999]
    s = DDPMScheduler(beta_start=1e-4, beta_end=0.02, variance_type="learned_range",
                      clip_sample=False)
    check("alpha_bar against diffusers' float", s.alphas_cumprod, full.alpha_bar, 1e-6)
    s.alphas_cumprod, s.one = full.alpha_bar, torch.ones((), dtype=DOUBLE)
    kept = diffusion.respaced(10)
    s.set_timesteps(timesteps=kept[::-1])
    g, xs = torch.Generator().manual_seed(5), []
    x = start = tables["ddpm.x_T"]
    for t in kept[::-1]:
        eps, v = make_golden.known_noise(x, t)
        x = s.step(torch.cat([eps, v])[None], t, x[None], generator=g).prev_sample[0]
        xs.append(x)
    z = scheduler_noise(5, len(kept))
    check("DDPM against diffusers' scheduler", diffusion.sample_ddpm(
        make_golden.known_noise, start, z, kept), torch.stack(xs), 1e-10)


def scheduler_noise(seed, steps):
    """The numbers the scheduler drew: six a step, none at its last."""
    g = torch.Generator().manual_seed(seed)
    drawn = [torch.randn(1, 6, generator=g, dtype=DOUBLE)[0] for _ in range(steps - 1)]
    return torch.stack([*drawn, torch.zeros(6, dtype=DOUBLE)])


def run(files, folder):
    check_counts()
    check_likelihoods()
    check_samplers(files["diffusion_tables"][0])
    for case in make_golden.CASES:
        tensors, m = files[case]
        weights = {k[8:]: v for k, v in tensors.items() if k.startswith("weights.")}
        batch = [tensors["batch." + k] for k in ("x", "noise", "t", "y")]
        check_gradients(case, m, weights, batch, tensors)
    for name, (tensors, m) in files.items():
        stored, stored_model = peer.read(folder / f"{name}.safetensors")
        assert stored.keys() == tensors.keys() and stored_model == m, f"{name}: other contents"
        for k in tensors:
            assert stored[k].dtype == tensors[k].dtype, f"{name}: {k}: other type"
            if not torch.allclose(stored[k], tensors[k], rtol=1e-10, atol=1e-13):
                raise SystemExit(f"error: {name}: {k}: the stored values are other ones")
    print(f"  {len(files)} golden files hold what was just computed")
