"""What the peer trains for and how it samples: DDPM with or without learned sigma, and flow."""

import math

import torch
import torch.nn.functional as F
from torch import nn

STEPS = 1000
LOWEST_PROBABILITY = 1e-12


def column(values):
    return values.view(-1, 1, 1, 1)


def normal_cdf(z):
    """The tanh approximation, as a sigmoid: exact to the last digit in the lower tail too."""
    return torch.sigmoid(math.sqrt(8 / math.pi) * (z + 0.044715 * z**3))


def discretised_nll(x, offset, log_var):
    """-ln of the probability of the bin of width 2/255 around x, `offset` above the mean."""
    inv_std = (-0.5 * log_var).exp()
    below, above = (offset - 1 / 255) * inv_std, (offset + 1 / 255) * inv_std
    far, near = (-offset.abs() - 1 / 255) * inv_std, (-offset.abs() + 1 / 255) * inv_std
    inner = normal_cdf(near) - normal_cdf(far)  # in the lower tail, by symmetry
    p = torch.where(x > 0.999, normal_cdf(-below), inner)
    p = torch.where(x < -0.999, normal_cdf(above), p)
    return -p.clamp(min=LOWEST_PROBABILITY).log()


class Ddpm(nn.Module):
    """Linear betas; mean squared error of the noise, plus the variational bound for sigma."""

    def __init__(self):
        super().__init__()
        beta = torch.linspace(1e-4, 0.02, STEPS, dtype=torch.float64)
        alpha_bar = torch.cumprod(1 - beta, 0)
        previous = torch.cat([torch.ones(1, dtype=torch.float64), alpha_bar[:-1]])
        posterior = beta * (1 - previous) / (1 - alpha_bar)
        posterior[0] = posterior[1]  # 0 has no logarithm
        # The true mean of x_{t-1} less the predicted one is this times (predicted noise - noise).
        miss = beta * previous.sqrt() / ((1 - alpha_bar) * alpha_bar).sqrt()
        columns = [alpha_bar.sqrt(), (1 - alpha_bar).sqrt(), beta.log(), posterior.log(), miss]
        self.register_buffer("table", torch.stack(columns, dim=1).float())

    def draw_times(self, batch):
        return torch.randint(STEPS, (batch,))

    def forward(self, model, x, noise, t, y):
        """(loss, the network's output)"""
        signal, spread, log_beta, log_posterior, miss = map(column, self.table[t].unbind(1))
        output = model(signal * x + spread * noise, t, y)
        error = output[:, :x.shape[1]] - noise
        loss = error.square().mean()
        if model.config.learn_sigma:
            log_var = torch.lerp(log_posterior, log_beta, (output[:, x.shape[1]:] + 1) / 2)
            offset = miss * error.detach()
            ratio = log_posterior - log_var
            kl = 0.5 * (ratio.exp() - 1 - ratio + offset.square() * (-log_var).exp())
            bound = torch.where(column(t) == 0, discretised_nll(x, offset, log_var), kl)
            loss = loss + bound.mean() / math.log(2)
        return loss, output


class Flow(nn.Module):
    """The velocity along the straight line from x (t = 0) to noise (t = 1)."""

    def draw_times(self, batch):
        return torch.rand(batch)

    def forward(self, model, x, noise, t, y):
        """(loss, the network's output)"""
        output = model(torch.lerp(x, noise, column(t)), 1000 * t, y)
        return F.mse_loss(output, noise - x), output


OBJECTIVES = {"ddpm": Ddpm, "flow": Flow}


@torch.no_grad()
def euler(model, x, y, null_label, steps, guidance):
    """Samples of a flow model from the noise x, with classifier-free guidance."""
    labels = torch.cat([y, torch.full_like(y, null_label)])
    for k in range(steps):
        t = torch.full((len(labels),), 1000 * (1 - k / steps))
        labelled, unlabelled = model(torch.cat([x, x]), t, labels).chunk(2)
        x = torch.add(x, torch.lerp(unlabelled, labelled, guidance), alpha=-1 / steps)
    return x
