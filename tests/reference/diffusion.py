"""The losses and samplers in PyTorch float64, written from the formulas, tables in plain double."""

import math

import torch

DOUBLE = torch.float64
STEPS = 1000
LN2 = math.log(2.0)


class Tables:
    """Everything that follows from the betas. `t` holds the original index of each entry."""

    def __init__(self, kept=None):
        beta = torch.linspace(1e-4, 0.02, STEPS, dtype=DOUBLE)
        self.t = torch.arange(STEPS) if kept is None else torch.tensor(kept)
        self.alpha_bar = torch.cumprod(1 - beta, 0)[self.t]
        self.alpha_bar_prev = torch.cat([torch.ones(1, dtype=DOUBLE), self.alpha_bar[:-1]])
        self.beta = beta if kept is None else 1 - self.alpha_bar / self.alpha_bar_prev
        noise, noise_prev = 1 - self.alpha_bar, 1 - self.alpha_bar_prev
        self.posterior_variance = self.beta * noise_prev / noise
        # The first entry is 0 and has no logarithm: the second one stands in for it.
        self.log_posterior_variance = self.posterior_variance[[1, *range(1, len(self.t))]].log()
        self.log_beta = self.beta.log()
        self.mean_coef_x0 = self.beta * self.alpha_bar_prev.sqrt() / noise
        self.mean_coef_xt = noise_prev * (1 - self.beta).sqrt() / noise

    def x0(self, i, x_t, eps):
        return (x_t - (1 - self.alpha_bar[i]).sqrt() * eps) / self.alpha_bar[i].sqrt()

    def mean(self, i, x_0, x_t):
        return self.mean_coef_x0[i] * x_0 + self.mean_coef_xt[i] * x_t

    def log_variance(self, i, v):
        f = (v + 1) / 2
        return f * self.log_beta[i] + (1 - f) * self.log_posterior_variance[i]


def respaced(k):
    """The k original steps that a shorter sampler visits, ascending."""
    return [round(i * (STEPS - 1) / (k - 1)) for i in range(k)]


def kl(mean1, log_var1, mean2, log_var2):
    """KL between diagonal Gaussians, in nats, element by element."""
    return 0.5 * (-1 + log_var2 - log_var1 + (log_var1 - log_var2).exp()
                  + (mean1 - mean2) ** 2 * (-log_var2).exp())


def discretised_nll(x, mean, log_var):
    """-log of the probability of the bin of width 2/255 around x, in nats, element by element.

    The bins at -1 and 1 are open towards infinity; no probability is taken below 1e-12.
    """
    def cdf(z):
        return 0.5 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3)))

    inv_std = (-0.5 * log_var).exp()
    upper = cdf((x - mean + 1 / 255) * inv_std)
    lower = cdf((x - mean - 1 / 255) * inv_std)
    p = torch.where(x < -0.999, upper, torch.where(x > 0.999, 1 - lower, upper - lower))
    return -p.clamp(min=1e-12).log()


def ddpm_loss(net, m, x, noise, t, y, frozen_eps=None):
    """(loss, output). `frozen_eps` replaces the detached prediction inside vb: finite differences
    need it, for they would otherwise see through the detach."""
    tab, C = Tables(), m["channels"]
    i = t.view(-1, 1, 1, 1)
    x_t = tab.alpha_bar[i].sqrt() * x + (1 - tab.alpha_bar[i]).sqrt() * noise
    output = net(x_t, timestep=t, class_labels=y).sample
    loss = ((noise - output[:, :C]) ** 2).mean(dim=(1, 2, 3))
    if m["learn_sigma"]:
        eps = output[:, :C].detach() if frozen_eps is None else frozen_eps
        mean = tab.mean(i, tab.x0(i, x_t, eps), x_t)
        log_var = tab.log_variance(i, output[:, C:])
        far = kl(tab.mean(i, x, x_t), tab.log_posterior_variance[i], mean, log_var)
        vb = torch.where(i == 0, discretised_nll(x, mean, log_var), far)
        loss = loss + vb.mean(dim=(1, 2, 3)) / LN2
    return loss.mean(), output


def flow_loss(net, m, x, noise, t, y, frozen_eps=None):
    """(loss, output): velocity matching along the straight line from x (t=0) to noise (t=1)."""
    s = t.to(DOUBLE).view(-1, 1, 1, 1)
    output = net((1 - s) * x + s * noise, timestep=1000 * t.to(DOUBLE), class_labels=y).sample
    return ((noise - x - output) ** 2).mean(), output


def loss_of(net, m, batch, frozen_eps=None):
    """batch: (x, noise, t, y) as stored; x and noise are taken to double here."""
    x, noise, t, y = batch
    fn = ddpm_loss if m["objective"] == "ddpm" else flow_loss
    return fn(net, m, x.to(DOUBLE), noise.to(DOUBLE), t, y, frozen_eps)


def sample_ddpm(model, x, z, kept):
    """model(x, t) -> (eps, v), t the original step. Row k of z is the noise of the k-th step
    taken; the last step adds none. Returns x after each step."""
    tab, xs = Tables(kept), []
    for k, i in enumerate(reversed(range(len(kept)))):
        eps, v = model(x, kept[i])
        x = tab.mean(i, tab.x0(i, x, eps), x)
        if i > 0:
            x = x + (0.5 * tab.log_variance(i, v)).exp() * z[k]
        xs.append(x)
    return torch.stack(xs)


def sample_ddim(model, x, kept):
    """The same with eta = 0: no noise, and v is not used."""
    tab, xs = Tables(kept), []
    for i in reversed(range(len(kept))):
        eps, _ = model(x, kept[i])
        to = tab.alpha_bar_prev[i]
        x = to.sqrt() * tab.x0(i, x, eps) + (1 - to).sqrt() * eps
        xs.append(x)
    return torch.stack(xs)


def sample_flow(velocity, x, steps, heun):
    """From t = 1 down to 0 on a uniform grid. Heun corrects every step, the last one too."""
    xs = []
    for k in range(steps):
        t, to = 1 - k / steps, 1 - (k + 1) / steps
        v = velocity(x, t)
        if heun:
            v = 0.5 * (v + velocity(x + (to - t) * v, to))
        x = x + (to - t) * v
        xs.append(x)
    return torch.stack(xs)
