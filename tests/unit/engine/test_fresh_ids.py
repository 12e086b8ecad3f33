"""Ids from blocks of random bytes: each is given once, to whichever thread."""

import re
from concurrent.futures import ThreadPoolExecutor

from jitney.engine.fresh_ids import FreshIds


def test_no_id_is_given_twice() -> None:
    """Guards callers from each other: who knows an id can cancel its request."""
    fresh = FreshIds()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: fresh.take(), range(5000)))
    assert len(set(found)) == 5000
    assert all(re.fullmatch("[0-9a-f]{32}", each) for each in found)
