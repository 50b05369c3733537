"""What users may call is what was recorded."""

from __future__ import annotations

from difflib import unified_diff

import pytest

from tests.face.public_names import RECORDED, lines


def test_public_names_and_signatures_are_those_recorded():
    pytest.importorskip("sklearn")
    changes = list(unified_diff(RECORDED.read_text().splitlines(), lines(), "recorded", "found", lineterm="", n=0))
    assert not changes, "\n".join(["if this is meant: python tests/face/public_names.py", *changes])
