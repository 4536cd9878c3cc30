"""Time every op against its floor and the best library call: `python -m kernels.bench`."""

import argparse

import torch


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m kernels.bench", description=__doc__)
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="what to time (auto)"
    )
    device = parser.parse_args().device
    if device == "cuda" or (device == "auto" and torch.cuda.is_available()):
        from kernels.bench.gpu import bench_gpu

        bench_gpu()
    else:
        from kernels.bench.cpu import bench_cpu

        bench_cpu()


if __name__ == "__main__":
    main()
