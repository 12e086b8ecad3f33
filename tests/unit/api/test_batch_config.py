"""`BatchConfig`: the defaults of the seed, its spellings, and what is refused."""

import math
from typing import Any

import pytest

from jitney import (
    BatchConfig,
    BatchingStrategy,
    BatchProcessor,
    FinishReason,
    GenerationConfig,
    SamplingParams,
    StopReason,
)
from jitney.config import resolve
from jitney.errors import ConfigError


def test_the_defaults_are_the_seeds() -> None:
    """Guards what somebody expects who wrote nothing."""
    config = BatchConfig()
    assert config.strategy is BatchingStrategy.DynamicTimeout
    assert config.max_wait_time_ms == 100
    assert config.settings() == {
        "strategy": "dynamic",
        "max_num_seqs": 8,
        "min_batch_size": 1,
        "max_wait_ms": 100,
        "max_num_queued_reqs": 1000,
        "policy": "fifo",
        "memory_limit": None,
    }
    assert GenerationConfig is SamplingParams
    assert StopReason is FinishReason


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"num_workers": 4}, "jitney serve --replicas"),
        ({"enable_priority": "perhaps"}, "enable_priority is 'perhaps'; expected true or false"),
        ({"max_batch_size": None}, "max_batch_size is None; expected a whole number"),
        ({"min_batch_size": "x"}, "min_batch_size is 'x'; expected a whole number"),
        ({"max_batch_size": 0}, "max_batch_size is 0; expected a whole number from 1"),
        ({"strategy": "Greedy"}, "expected one of static, dynamic, adaptive, continuous"),
        ({"max_wait_time_ms": math.inf}, "under FixedSize only, not DynamicTimeout"),
        ({"min_batch_size": 2, "strategy": "static"}, "which waits for max_batch_size"),
        ({"min_batch_size": 2, "strategy": "Continuous"}, "where max_wait_time_ms is 0"),
    ],
)
def test_what_cannot_be_done_is_refused(given: Any, sentence: str) -> None:
    """Guards against a wish that is lost in silence: the wrong word is named, and what to do."""
    with pytest.raises(ConfigError, match=sentence):
        BatchProcessor(None, BatchConfig(**given), backend="fake").start()


@pytest.mark.parametrize(
    ("fields", "settings"),
    [
        ({"strategy": "FixedSize"}, {"strategy": "static", "max_wait_ms": None}),
        ({"strategy": "fixed_size"}, {"strategy": "static", "max_wait_ms": None}),
        ({"strategy": "STATIC"}, {"strategy": "static", "max_wait_ms": None}),
        ({"strategy": BatchingStrategy.Adaptive}, {"strategy": "adaptive", "max_wait_ms": 100}),
        ({"strategy": "continuous"}, {"strategy": "continuous", "max_wait_ms": 0}),
        *(
            ({"strategy": each, "max_wait_time_ms": 250}, {"max_wait_ms": 250})
            for each in BatchingStrategy
        ),
        ({"strategy": "static", "max_wait_time_ms": math.inf}, {"max_wait_ms": None}),
        ({"min_batch_size": 4}, {"min_batch_size": 4, "max_wait_ms": 100}),
        ({"enable_priority": True}, {"policy": "priority"}),
        ({"enable_priority": "no"}, {"policy": "fifo"}),
        ({"memory_limit_bytes": 2**30}, {"memory_limit": 2**30}),
        ({"strategy": "Adaptive", "min_batch_size": 4}, {"min_batch_size": 4}),
    ],
)
def test_fields_become_settings(fields: Any, settings: dict[str, object]) -> None:
    """Guards spellings, waits under every strategy, and fields against being ignored."""
    found = BatchConfig(**fields).settings()
    assert found | settings == found
    resolved = resolve(found, None, {}, given_as="argument").settings
    assert all(getattr(resolved, name) == value for name, value in settings.items())
