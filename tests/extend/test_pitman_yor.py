"""The shipped suite over the guest allocation."""

from pitman_yor import PitmanYor

from bnp_dask.testing import AllocationSuite


class TestPitmanYor(AllocationSuite):
    def model(self, top=None):
        return PitmanYor(gamma=2.0, discount=0.3, top=top)
