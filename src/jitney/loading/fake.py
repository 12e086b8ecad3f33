"""The fake backend's numbers. It has no library and no model."""

from jitney.config import Settings
from jitney.errors import ConfigError
from jitney.loading.common import Values, refuse_dtypes
from jitney.loading.sizing import kv_tokens_wanted, pool_slots

FAKE_MODEL_LEN = 4096


def check(settings: Settings) -> None:
    """Refuse what has no meaning here. Raises ConfigError."""
    refuse_dtypes("fake", settings)
    if settings.batch_invariant == "off":
        raise ConfigError(
            "batch_invariant is off, and the fake backend is the same in every batch; leave it out."
        )
    if settings.memory_limit is not None:
        raise ConfigError(
            "The fake backend has no bytes to count; give kv_tokens, not memory_limit."
        )


def values(settings: Settings) -> Values:
    """What the backend is told. Raises ConfigError."""
    check(settings)
    kv_tokens = kv_tokens_wanted(settings)
    return {
        "slots": pool_slots(settings.max_num_seqs),
        "kv_tokens": kv_tokens,
        "model_len_max": settings.max_model_len or min(FAKE_MODEL_LEN, kv_tokens),
        "max_num_batched_tokens": settings.max_num_batched_tokens,
    }
