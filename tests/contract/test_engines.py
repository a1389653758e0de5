"""The exclusions of tests for an engine refer to existing tests."""

import re
from pathlib import Path

from tests.contract.engines import ENGINES, EXCLUDED


def test_what_is_excluded_exists():
    """Each exclusion names a known engine, and a test of this suite that uses an engine."""
    source = "".join(path.read_text("utf-8") for path in Path(__file__).parent.glob("test_*.py"))
    assert set(EXCLUDED) <= set(ENGINES)
    for reasons in EXCLUDED.values():
        for test, reason in reasons.items():
            assert re.search(rf"def {test}\((store|connect|engine)\b", source), test
            assert reason


def test_no_test_is_excluded_everywhere():
    """Each test runs on at least one engine."""
    for test in {test for reasons in EXCLUDED.values() for test in reasons}:
        assert [name for name in ENGINES if test not in EXCLUDED.get(name, {})]
