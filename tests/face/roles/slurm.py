"""What a Slurm job does, on this machine: a job file, two workers, resumed, and read by the command line."""

import subprocess
import sys
from pathlib import Path

import numpy as np

import bnp_dask as bnp

rng = np.random.default_rng(0)
np.save("points.npy", np.concatenate([rng.normal(c, 1.0, (400, 2)) for c in ([0, 0], [8, 0], [0, 8])]))
Path("run.yaml").write_text(
    """
model: {allocation: DPMixture, observation: Gaussian}
data: {path: points.npy, batch_size: 200}
store: runs/points
rng: 0
"""
)


def command(*words: str) -> None:
    subprocess.run([sys.executable, "-m", "bnp_dask", *words], check=True)


command("plan", "run.yaml", "--workers", "2", "--memory", "1GB")
command("train", "run.yaml", "--workers", "2")
command("resume", "runs/points")
command("predict", "runs/points", "points.npy", "labels.parquet")
command("report", "runs/points", "report.html")
print("clusters:", bnp.load("runs/points").n_clusters)
