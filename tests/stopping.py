"""Callbacks that end a run early, so that it can be resumed, and the exception that stands for a kill."""


class Killed(BaseException):
    """A kill: no handler sees it."""


class AfterSteps:
    """Ends a run after some steps."""

    def __init__(self, steps):
        self.left = steps

    def on_start(self, info): ...

    def on_batch(self, done):
        self.left -= 1
        return self.left <= 0

    def on_lap(self, row, posterior): ...

    def on_end(self, reason):
        self.reason = reason


class AfterLaps:
    """Ends a run after some laps."""

    def __init__(self, laps):
        self.laps = laps

    def on_start(self, info): ...

    def on_batch(self, done): ...

    def on_lap(self, row, posterior):
        return row["lap"] >= self.laps

    def on_end(self, reason):
        self.reason = reason


class InLap:
    """Ends a run in a lap, counted from 1, once so many batches of it are done."""

    def __init__(self, lap, done):
        self.lap, self.done = lap, done

    def on_start(self, info):
        self.now = info.first_lap + 1

    def on_batch(self, done):
        return self.now == self.lap and done >= self.done

    def on_lap(self, row, posterior):
        self.now = row["lap"] + 1

    def on_end(self, reason):
        self.reason = reason
