from __future__ import annotations

from botorch_structured.study import Trial


def test_what_it_shows() -> None:
    good = Trial(3, {"a": 1}, {"value": 0.5}, cost=2.0)
    shown = "Trial(3, 'complete', config={'a': 1}, values={'value': 0.5}, cost=2.0)"
    assert repr(good) == shown
    assert (good.state, good.value) == ("complete", 0.5)
    bad = Trial(4, {"a": 1}, error="ValueError: no")
    assert repr(bad) == "Trial(4, 'failed', config={'a': 1}, error='ValueError: no')"
    assert (bad.state, bad.value) == ("failed", None)
    more = Trial(5, {}, {"value": 0.5}, metadata={"seconds": 3})
    assert repr(more).endswith("values={'value': 0.5}, metadata={'seconds': 3})")
