"""The loss of one batch by diffusers' DiT in float64; with --compare, how far `ebb grad` is off.

    python peer_step.py W.safetensors B.safetensors [--compare G.safetensors]
"""

import argparse

import torch

import make_golden
import peer


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights")
    parser.add_argument("batch")
    parser.add_argument("--compare", metavar="G", help="what ebb grad wrote for these two files")
    args = parser.parse_args()
    weights, m = peer.read(args.weights)
    if m is None:
        parser.error(f"{args.weights} has no metadata key ebb.model")
    tensors, _ = peer.read(args.batch)
    batch = [tensors[k] for k in ("x", "noise", "t", "y")]
    want = make_golden.gradients(m, weights, batch)
    print(f"loss {want['loss'].item():.12f}")
    if args.compare:
        got, _ = peer.read(args.compare)
        if missing := want.keys() - got.keys():
            raise SystemExit(f"error: {args.compare} lacks {', '.join(sorted(missing))}")
        print("relative error (2-norm) and largest absolute error, worst last")
        rows = []
        for name, w in want.items():
            d = got[name].to(torch.float64) - w
            rows.append(((d.norm() / w.norm()).item(), d.abs().max().item(), name))
        for relative, absolute, name in sorted(rows):
            print(f"{relative:9.2e} {absolute:9.2e}  {name}")


if __name__ == "__main__":
    main()
