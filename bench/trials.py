"""What bench/fidelity and bench/pruning share: small trainings on Fashion-MNIST by `ebb`, and their
loss on test pictures that no run has seen, with noise and times that are the same for all."""

import array
import gzip
import json
import pathlib
import random
import struct
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
DATA = pathlib.Path("/usr/share/datasets/fashion-mnist")
SIZE = 28
# AdamW's; a flag that is given again after them wins.
TRAINING = ["--objective", "flow", "--batch", 32, "--lr", "2e-3", "--warmup", 50, "--clip", 1,
            "--ema", "0.99", "--ema-ramp"]
BETAS = ["--betas", "0.9,0.99"]


def read_idx(name, skip):
    for path in (DATA / name, DATA / f"{name}.gz"):
        if path.exists():
            opener = gzip.open if path.suffix == ".gz" else open
            with opener(path, "rb") as file:
                return file.read()[skip:]
    sys.exit(f"error: {DATA / name} is missing\n  apt install dataset-fashion-mnist")


def write_safetensors(path, tensors):
    """tensors: name -> (type, shape, bytes)"""
    header, offset = {}, 0
    for name, (kind, shape, data) in tensors.items():
        header[name] = {"dtype": kind, "shape": shape, "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for _, _, data in tensors.values():
            file.write(data)


def read_safetensors(path):
    """The header, and where the data starts."""
    with open(path, "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        return header, 8 + length


def validation_batch(path, count):
    images = read_idx("t10k-images-idx3-ubyte", 16)[:count * SIZE * SIZE]
    labels = read_idx("t10k-labels-idx1-ubyte", 8)[:count]
    draw = random.Random(0)
    floats = lambda values: array.array("f", values).tobytes()
    shape = [count, 1, SIZE, SIZE]
    write_safetensors(path, {
        "x": ("F32", shape, floats(p / 127.5 - 1 for p in images)),
        "noise": ("F32", shape, floats(draw.gauss(0, 1) for _ in images)),
        "t": ("F32", [count], floats((i + 0.5) / count for i in range(count))),
        "y": ("I64", [count], array.array("q", list(labels)).tobytes()),
    })


def run(*command):
    """What it wrote to stdout. A failure ends the script, unless SystemExit is caught."""
    done = subprocess.run([str(word) for word in command], stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        sys.exit(f"error: exit code {done.returncode} of {' '.join(map(str, command))}")
    return done.stdout


def train(args, out, steps, *flags, save_every=None, ranks=1):
    """The checkpoint after the last step."""
    launch = ["mpiexec.mpich", "-n", ranks] if ranks > 1 else []
    run(*launch, args.ebb, "train", "--data", DATA, "--steps", steps, "--sample-every", 0, "--save-every",
        save_every or steps, "--log-every", 0, "--threads", args.threads, "--out", out, *flags)
    return checkpoint(out, steps)


def checkpoint(out, step):
    return out / "checkpoints" / f"step-{step:09}.safetensors"


def loss_of(args, weights, batch, out, *flags):
    # In parts the same loss to the last digit, without a gigabyte to be faulted in.
    text = run(args.ebb, "grad", "--weights", weights, "--batch-file", batch, "--out",
               out / "g.safetensors", "--objective", "flow", "--image-size", SIZE,
               "--micro-batch", min(100, args.pictures), "--threads", args.threads, *flags)
    return float(text.split()[1])


def add_options(parser, steps):
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--pictures", type=int, default=2000, help="of the test set")
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side; no result changes")
    parser.add_argument("--threads", type=int, default=1, help="of each run; no result changes")
    parser.add_argument("--ebb", type=pathlib.Path, default=HERE.parent / "build" / "ebb")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")


def parse(parser):
    args = parser.parse_args()
    if args.seeds < 1:
        parser.error("--seeds: one or more; a spread takes two")
    return args
