"""Time every op against its floor and the best library call: `python -m kernels.bench`; or with
`--power` see what binds large batches on a GPU."""

import argparse

import torch


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m kernels.bench", description=__doc__)
    parser.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="what to time (auto)"
    )
    parser.add_argument(
        "--power", action="store_true", help="what the GPU draws, instead; needs nvidia-smi"
    )
    args = parser.parse_args()
    device = args.device
    if args.power:
        from kernels.bench.power import bench_power

        if not torch.cuda.is_available():
            parser.error("--power needs a GPU")
        bench_power()
    elif device == "cuda" or (device == "auto" and torch.cuda.is_available()):
        from kernels.bench.gpu import bench_gpu

        bench_gpu()
    else:
        from kernels.bench.cpu import bench_cpu

        bench_cpu()


if __name__ == "__main__":
    main()
