"""One PyTorch configuration in one process, driven by lines on stdin (bench/versus does).

    go N    measures N repetitions: {"seconds": [...], "peak_bytes": ...}
    quit    or the end of stdin: {"peak_bytes": ...}

Says {"ready": true, ...} once it is warm. A repetition is a training step, or with a mode of
sampling the drawing of a whole batch.
"""

import argparse
import ctypes
import gc
import json
import sys
import time

import torch
from torch import nn

from diffusion import OBJECTIVES, euler
from dit import DiT, named

EMA_DECAY = 0.9999
LABEL_DROP = 0.1
LARGEST_NORM = 1.0
TRAINING = {"eager": (False, False), "compiled": (True, False), "checkpointed": (False, True),
            "compiled-checkpointed": (True, True)}  # (compiled, checkpointed)
SAMPLING = {"sample": False, "sample-compiled": True}


class Training:
    def __init__(self, config, args):
        compiled, checkpointed = TRAINING[args.mode]
        self.model = DiT(config, checkpointed)
        self.params = list(self.model.parameters())
        self.averages = [p.detach().clone() for p in self.params]
        self.optimizer = torch.optim.AdamW(self.params, lr=1e-4, weight_decay=0, fused=True)
        self.objective = OBJECTIVES[config.objective]()
        self.loss = torch.compile(self.objective, dynamic=False) if compiled else self.objective
        self.x = torch.randn(args.batch, config.channels, config.image_size, config.image_size)
        self.y = torch.arange(args.batch) % config.classes

    def repetition(self):
        self.optimizer.zero_grad(set_to_none=True)
        t = self.objective.draw_times(len(self.x))
        dropped = torch.rand(len(self.y)) < LABEL_DROP
        y = self.y.masked_fill(dropped, self.model.config.classes)
        loss, _ = self.loss(self.model, self.x, torch.randn_like(self.x), t, y)
        loss.backward()
        nn.utils.clip_grad_norm_(self.params, LARGEST_NORM, foreach=True)
        self.optimizer.step()
        with torch.no_grad():
            torch._foreach_lerp_(self.averages, self.params, 1 - EMA_DECAY)

    warm = repetition


class Sampling:
    def __init__(self, config, args):
        model = DiT(config).eval().requires_grad_(False)
        compiled = SAMPLING[args.mode]
        self.model = torch.compile(model, dynamic=False) if compiled else model
        self.shape = (args.batch, config.channels, config.image_size, config.image_size)
        self.y = torch.zeros(args.batch, dtype=torch.int64)
        self.null_label, self.steps, self.guidance = config.classes, args.steps, args.guidance

    def draw(self, steps):
        euler(self.model, torch.randn(self.shape), self.y, self.null_label, steps, self.guidance)

    def repetition(self):
        self.draw(self.steps)

    def warm(self):
        self.draw(1)


def status_bytes(field):
    with open("/proc/self/status") as status:
        for line in status:
            if line.startswith(field + ":"):
                return int(line.split()[1]) * 1024
    raise KeyError(field)


def forget_peak():
    """Compiling takes memory that training does not: what follows has a peak of its own. In every
    mode alike: garbage goes back to the system, and VmHWM starts again from what is held now."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/clear_refs", "w") as refs:
        refs.write("5")


def warm_up(task):
    task.warm()
    task.warm()
    forget_peak()
    torch.compiler.set_stance("fail_on_recompile")
    task.warm()


def timed(task):
    start = time.perf_counter()
    task.repetition()
    return time.perf_counter() - start


def say(**fields):
    print(json.dumps(fields), flush=True)


def serve(task):
    for line in sys.stdin:
        words = line.split()
        if words == ["quit"]:
            break
        task.warm()  # another process had the caches in the meantime
        seconds = [timed(task) for _ in range(int(words[1]))]
        say(seconds=seconds, peak_bytes=status_bytes("VmHWM"))
    say(peak_bytes=status_bytes("VmHWM"))


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="DiT-S/2")
    parser.add_argument("--mode", choices=[*TRAINING, *SAMPLING], default="eager")
    parser.add_argument("--objective", choices=OBJECTIVES, default="ddpm")
    for name, default in (("batch", 8), ("image-size", 32), ("threads", 2), ("steps", 50),
                          ("width", None), ("depth", None), ("heads", None)):
        parser.add_argument("--" + name, type=int, default=default)
    parser.add_argument("--guidance", type=float, default=4)
    return parser.parse_args()


def main():
    args = parse()
    import_bytes = status_bytes("VmRSS")
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    config = named(args.model, width=args.width, depth=args.depth, heads=args.heads,
                   image_size=args.image_size, objective=args.objective,
                   learn_sigma=args.objective == "ddpm")
    task = (Training if args.mode in TRAINING else Sampling)(config, args)
    warm_up(task)
    say(ready=True, torch=torch.__version__, import_bytes=import_bytes)
    serve(task)


if __name__ == "__main__":
    main()
