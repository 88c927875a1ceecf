#!/usr/bin/env python3
"""The demo: prepares the data, and trains LeNet with a script that was written for BigDL's Orca.

DEMO_EPOCHS sets the number of epochs (2). DEMO=ddp trains with DDP under torchrun instead, over gloo and over orca.
--cpp installs the C++ package into build/package, builds examples/cpp against it, and trains with the Estimator of C++.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RAW = ROOT / "data/FashionMNIST/raw"
FILES = [f"{part}-{kind}" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
START = float(os.environ.get("ORCA_START", time.time()))


def say(text: str) -> None:
    print(f"[{time.time() - START:4.0f} s] demo: {text}", flush=True)


def prepare() -> str:
    """Unzips the distribution's files where torchvision looks for them. Returns the data's name."""
    if all((RAW / f"{name}-ubyte").exists() for name in FILES):
        return "fashion-mnist"
    listed = subprocess.run(
        ["dpkg", "-L", "dataset-fashion-mnist"], capture_output=True, text=True, check=False
    )
    found = {Path(line).name: line for line in listed.stdout.splitlines() if line.endswith(".gz")}
    if any(f"{name}-ubyte.gz" not in found for name in FILES):
        say("no package dataset-fashion-mnist here: training on scikit-learn's digits instead")
        return "digits"
    say(f"unzipping Fashion-MNIST into {RAW.relative_to(ROOT)}")
    RAW.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        target = RAW / f"{name}-ubyte"
        part = target.with_suffix(".part")
        with gzip.open(found[f"{name}-ubyte.gz"]) as source, part.open("wb") as file:
            shutil.copyfileobj(source, file)
        part.rename(target)
    return "fashion-mnist"


def train(backend: str, data: str, epochs: str) -> dict[str, float]:
    say(f"2 ranks over {backend}")
    result = ROOT / f"build/demo-{backend}.json"
    result.parent.mkdir(exist_ok=True)
    result.unlink(missing_ok=True)
    command = [
        *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"),
        *("examples/fashion_mnist_ddp.py", "--backend", backend, "--data", data),
        *("--epochs", epochs, "--result", str(result)),
    ]
    # One thread a rank, as torchrun would choose itself, but without its notice.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    code = subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode
    if code != 0 or not result.exists():
        print(f"\ndemo failed: training over {backend} ended with exit status {code}")
        print("What to do: read the first traceback above; 'make check' tests the build.")
        sys.exit(1)
    return json.loads(result.read_text())


def estimator() -> None:
    command = [sys.executable, "examples/bigdl_fashion_mnist.py", "--data_dir", "data"]
    command += ["--lr", "0.01", "--workers", str(len(os.sched_getaffinity(0)))]
    command += ["--epochs", os.environ.get("DEMO_EPOCHS", "2")]
    say("examples/bigdl_fashion_mnist.py: fit, evaluate, predict, save and load, one worker a core")
    code = subprocess.run(command, cwd=ROOT, check=False).returncode
    if code != 0:
        print(f"\ndemo failed: the example ended with exit status {code}")
        print("What to do: read the first traceback above; 'make check' tests the build.")
        sys.exit(1)


def cpp() -> None:
    package, build = ROOT / "build/package", ROOT / "build/examples"
    say("installing the C++ package and building examples/cpp/fashion_mnist.cc against it")
    python = f"-DPython_EXECUTABLE={sys.executable}"
    steps = [
        ["cmake", "--install", "build/release", "--prefix", package],
        ["cmake", "-G", "Ninja", "-S", "examples/cpp", "-B", build, python]
        + [f"-DCMAKE_PREFIX_PATH={package}", "-DCMAKE_BUILD_TYPE=Release"],
        ["cmake", "--build", build, "--target", "fashion_mnist"],
    ]
    for step in steps:
        done = subprocess.run(step, cwd=ROOT, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            print(done.stdout + done.stderr)
            print(f"\ndemo failed: {' '.join(map(str, step))} ended with {done.returncode}")
            sys.exit(1)
    say("fit, evaluate, predict and save, one worker a core")
    command = [build / "fashion_mnist", RAW, os.environ.get("DEMO_EPOCHS", "2")]
    sys.exit(subprocess.run(command, cwd=build, check=False).returncode)


def main() -> None:
    data = prepare()
    if "--cpp" in sys.argv:
        if data != "fashion-mnist":
            sys.exit("demo failed: install the package dataset-fashion-mnist first")
        cpp()
    if data == "fashion-mnist" and os.environ.get("DEMO") != "ddp":
        estimator()
        return
    epochs = os.environ.get("DEMO_EPOCHS", "3" if data == "fashion-mnist" else "60")
    results = {backend: train(backend, data, epochs) for backend in ("gloo", "orca")}
    base = results["gloo"]["images_per_second"]
    print(f"\nLeNet on {data}, DDP, 2 ranks, batch 64 a rank, {epochs} epochs")
    print(f"  {'backend':8} {'images/s':>9} {'ratio':>6} {'test accuracy':>14}")
    for backend, result in results.items():
        rate = result["images_per_second"]
        print(f"  {backend:8} {rate:9.0f} {rate / base:6.2f} {result['accuracy']:14.4f}")


if __name__ == "__main__":
    main()
