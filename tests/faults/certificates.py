"""Certificates for a test, made on the spot by ``openssl``."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Certificates:
    """Paths of PEM files: an authority, and certificate and key of one party that it vouches for."""

    authority: Path
    cert: Path
    key: Path


def can_make() -> bool:
    """Whether there is a way to make certificates."""
    return shutil.which("openssl") is not None


def make(folder: Path) -> Certificates:
    """An authority of its own and one certificate for 127.0.0.1."""
    folder.mkdir(parents=True, exist_ok=True)
    out = Certificates(folder / "ca.pem", folder / "cert.pem", folder / "key.pem")

    def run(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)

    (folder / "names").write_text("subjectAltName=IP:127.0.0.1,DNS:localhost\n")
    new = ("-newkey", "rsa:2048", "-nodes")
    run("req", "-x509", *new, "-keyout", "ca-key.pem", "-out", "ca.pem", "-days", "2", "-subj", "/CN=test authority")
    run("req", *new, "-keyout", "key.pem", "-out", "request.pem", "-subj", "/CN=localhost")
    sign = ("-CA", "ca.pem", "-CAkey", "ca-key.pem", "-CAcreateserial", "-days", "2", "-extfile", "names")
    run("x509", "-req", "-in", "request.pem", *sign, "-out", "cert.pem")
    assert out.cert.exists()
    return out
