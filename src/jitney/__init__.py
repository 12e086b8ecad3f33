"""jitney: serves language models from Python to many callers at once.

The public names. They are loaded when they are first asked for, so that a part of the package can
be imported without everything else.
"""

import importlib

_HOMES = {
    "LLM": "jitney.llm",
    "BatchConfig": "jitney.batch_processor",
    "BatchProcessor": "jitney.batch_processor",
    "BatchRequest": "jitney.batch_processor",
    "BatchResult": "jitney.batch_processor",
    "BatchStats": "jitney.batch_processor",
    "BatchingStrategy": "jitney.batch_processor",
    "Candidate": "jitney.core.policy",
    "CompletionOutput": "jitney.outputs",
    "Delta": "jitney.engine.answer",
    "GenerationConfig": "jitney.batch_processor",
    "Handle": "jitney.engine.handle",
    "JitneyError": "jitney.errors",
    "Logprob": "jitney.outputs",
    "Priority": "jitney.core.request",
    "RequestOutput": "jitney.outputs",
    "RequestPriority": "jitney.batch_processor",
    "SamplingParams": "jitney.core.params",
    "SchedulingPolicy": "jitney.core.policy",
    "Stats": "jitney.engine.stats",
    "StructuredOutputsParams": "jitney.core.params",
}

__all__ = [
    "BatchConfig",
    "BatchProcessor",
    "BatchRequest",
    "BatchResult",
    "BatchStats",
    "BatchingStrategy",
    "Candidate",
    "CompletionOutput",
    "Delta",
    "GenerationConfig",
    "Handle",
    "JitneyError",
    "LLM",
    "Logprob",
    "Priority",
    "RequestOutput",
    "RequestPriority",
    "SamplingParams",
    "SchedulingPolicy",
    "Stats",
    "StructuredOutputsParams",
]


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'jitney' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
