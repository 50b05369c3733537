"""``--import MODULE``: classes and functions of other packages, for every command."""

from __future__ import annotations

import argparse
import importlib
import os
import sys

from bnp_dask.core.registry import FUNCTIONS, imported
from bnp_dask.errors import SettingError, StoreError


def add_option(command: argparse.ArgumentParser) -> None:
    """Add the option to a command."""
    command.add_argument(
        "--import",
        dest="modules",
        action="append",
        default=[],
        metavar="MODULE",
        help="import a module first that registers classes of its own, such as a likelihood (installed, or in the "
        "current directory); MODULE:FUNCTION lets a function be called that a store or posterior names; may be given "
        "several times",
    )


def import_modules(args: argparse.Namespace) -> None:
    """Import the modules that the options name; files never do, so reading one runs no code that it names."""
    if args.modules:
        look_here()
    for name in args.modules:
        try:
            if ":" in name:
                FUNCTIONS.add(imported(name), name)
            else:
                importlib.import_module(name)
        except StoreError as error:
            raise SettingError(f"--import {error}") from error
        except ImportError as error:
            raise SettingError(
                f"--import {name}: {error}; needs a module that is installed or in the current directory, or in one "
                "that PYTHONPATH lists"
            ) from error


def look_here() -> None:
    """Let modules in the current directory be imported."""
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())
