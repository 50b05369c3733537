"""A run whose kernels are not compiled yet says what it waits for."""

import logging
import threading

from bnp_dask.training.callbacks import logger, tell_of_compiling


class Heard(logging.Handler):
    """Keeps messages, and lets one wait for the first."""

    def __init__(self):
        super().__init__(logging.INFO)
        self.messages, self.any = [], threading.Event()

    def emit(self, record):
        self.messages.append(record.getMessage())
        self.any.set()


def test_a_line_says_that_kernels_are_compiled_where_that_takes_long(caplog):
    heard = Heard()
    logger.addHandler(heard)
    try:
        with caplog.at_level(logging.INFO, logger="bnp_dask"):
            with tell_of_compiling(patience=0.0):
                assert heard.any.wait(60.0)
            with tell_of_compiling(patience=3600.0):
                pass
    finally:
        logger.removeHandler(heard)
    assert len(heard.messages) == 1
    assert heard.messages[0].startswith("kernels are compiled")
