"""How many samples does a classifier of real Fashion-MNIST images name as they were asked for?

    python classify.py SAMPLES.npz [--data DIR] [--cache WEIGHTS.pt]

SAMPLES.npz is what `ebb sample --out x.npz` writes: arr_0 uint8 (N, 28, 28, 1 or 3), arr_1 labels.
The classifier sees real images only, about two minutes of them on two cores; --cache keeps it.
The last line printed is a JSON object.
"""

import argparse
import gzip
import json
import pathlib
import time

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

CLASSES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag",
           "ankle boot")


def read_idx(path):
    """An IDX file of bytes: a magic number whose last byte is the rank, the sizes, the data."""
    raw = gzip.decompress(path.read_bytes())
    rank = raw[3]
    if raw[:3] != b"\0\0\x08" or rank not in (1, 3):
        raise SystemExit(f"error: {path}: not an IDX file of bytes of rank 1 or 3")
    shape = np.frombuffer(raw, ">u4", rank, 4)
    return torch.from_numpy(np.frombuffer(raw, np.uint8, offset=4 + 4 * rank).reshape(shape).copy())


def read_split(folder, split):
    """(images (N, 1, 28, 28) in [-1, 1], labels)."""
    images, labels = (read_idx(folder / f"{split}-{kind}-ubyte.gz")
                      for kind in ("images-idx3", "labels-idx1"))
    return to_input(images), labels.long()


def to_input(bytes_):
    return bytes_.float().div(127.5).sub(1).unsqueeze(1)


def network():
    def conv(c_in, c_out):
        return [nn.Conv2d(c_in, c_out, 3, padding=1, bias=False), nn.BatchNorm2d(c_out), nn.ReLU()]

    return nn.Sequential(
        *conv(1, 24), nn.MaxPool2d(2), *conv(24, 48), nn.MaxPool2d(2),
        *conv(48, 96), nn.AdaptiveAvgPool2d(3), nn.Flatten(), nn.Dropout(0.3),
        nn.Linear(96 * 9, 10))


def train(net, x, y, epochs, batch=128):
    """SGD with a one-cycle rate; mirrored images double the data for free."""
    steps = epochs * (len(x) // batch)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4,
                                nesterov=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=steps)
    net.train()
    for epoch in range(epochs):
        start, total = time.time(), 0.0
        for rows in torch.randperm(len(x))[: steps // epochs * batch].split(batch):
            images = x[rows]
            mirrored = torch.rand(len(rows)) < 0.5
            images[mirrored] = images[mirrored].flip(-1)
            loss = F.cross_entropy(net(images), y[rows], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total += loss.item()
        print(f"epoch {epoch + 1}: loss {total / (steps // epochs):.3f}, "
              f"{time.time() - start:.0f} s", flush=True)


@torch.no_grad()
def predict(net, x):
    net.eval()
    return torch.cat([net(part).argmax(1) for part in x.split(500)])


def real_classifier(folder, cache, epochs):
    """(network, its accuracy on the real test set), trained unless the cache has it."""
    net = network()
    if cache and cache.exists():
        kept = torch.load(cache, weights_only=True)
        net.load_state_dict(kept["net"])
        return net, kept["accuracy"]
    torch.manual_seed(0)
    net = network()
    train(net, *read_split(folder, "train"), epochs)
    x, y = read_split(folder, "t10k")
    accuracy = (predict(net, x) == y).float().mean().item()
    if cache:
        cache.parent.mkdir(parents=True, exist_ok=True)
        torch.save({"net": net.state_dict(), "accuracy": accuracy}, cache)
    return net, accuracy


def read_samples(path):
    """(images as the network takes them, labels); three channels are averaged into one."""
    with np.load(path) as f:
        images, labels = f["arr_0"], f["arr_1"]
    fits = images.ndim == 4 and images.shape[1:3] == (28, 28) and images.shape[3] in (1, 3)
    if images.dtype != np.uint8 or not fits or labels.shape != images.shape[:1]:
        raise SystemExit(f"error: {path}: arr_0 is {images.dtype} {images.shape}, arr_1 "
                         f"{labels.shape}; wanted uint8 (N, 28, 28, 1 or 3) and (N,)")
    return to_input(torch.from_numpy(images).float().mean(3)), torch.from_numpy(labels).long()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("samples", type=pathlib.Path)
    parser.add_argument("--data", type=pathlib.Path,
                        default=pathlib.Path("/usr/share/datasets/fashion-mnist"))
    parser.add_argument("--cache", type=pathlib.Path, help="where to keep the classifier")
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    x, y = read_samples(args.samples)  # First: a bad file should not cost two minutes.
    net, real = real_classifier(args.data, args.cache, args.epochs)
    right = predict(net, x) == y
    print(f"the classifier itself, on the real test set: {100 * real:.1f} %")
    per_class = {}
    for k in y.unique().tolist():
        rows = y == k
        per_class[k] = right[rows].float().mean().item()
        name = CLASSES[k] if 0 <= k < 10 else "no such class"
        print(f"{k:3} {name:13} {100 * per_class[k]:5.1f} % of {rows.sum().item()}")
    overall = right.float().mean().item()
    print(f"all {len(y)}: {100 * overall:.1f} %")
    print(json.dumps({"accuracy": overall, "per_class": per_class, "count": len(y),
                      "classifier_accuracy": real}))


if __name__ == "__main__":
    main()
