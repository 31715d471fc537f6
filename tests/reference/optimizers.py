"""Optimizers that PyTorch does not have, as their papers write them."""

import torch


class Lion(torch.optim.Optimizer):
    """Chen et al. 2023, "Symbolic Discovery of Optimization Algorithms", Algorithm 2."""

    def __init__(self, params, lr, betas, weight_decay):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            beta1, beta2 = group["betas"]
            for theta in group["params"]:
                state, g = self.state[theta], theta.grad
                m = state.get("m", torch.zeros_like(theta))
                c = beta1 * m + (1 - beta1) * g
                theta.sub_(group["lr"] * (c.sign() + group["weight_decay"] * theta))
                state["m"] = beta2 * m + (1 - beta2) * g
