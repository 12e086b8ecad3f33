"""jitney: serves language models from Python to many callers at once.

The public names. They are loaded when they are first asked for, so that a part of the package can
be imported without everything else.
"""

import importlib

_HOMES = {
    "LLM": "jitney.api.llm",
    "BatchConfig": "jitney.api.batch_processor",
    "BatchProcessor": "jitney.api.batch_processor",
    "BatchRequest": "jitney.api.batch_result",
    "BatchResult": "jitney.api.batch_result",
    "BatchStats": "jitney.api.batch_processor",
    "BatchingStrategy": "jitney.api.batch_processor",
    "Candidate": "jitney.core.scheduler_settings",
    "CompletionOutput": "jitney.api.outputs",
    "Delta": "jitney.engine.answer",
    "FinishReason": "jitney.core.events",
    "GenerationConfig": "jitney.api.batch_processor",
    "Handle": "jitney.engine.handle",
    "JitneyError": "jitney.errors",
    "Logprob": "jitney.api.outputs",
    "Priority": "jitney.core.request",
    "RequestId": "jitney.core.request",
    "RequestOutput": "jitney.api.outputs",
    "RequestPriority": "jitney.api.batch_processor",
    "RowAnswers": "jitney_cluster.ray_data",
    "SamplingParams": "jitney.core.params",
    "SchedulingPolicy": "jitney.core.scheduler_settings",
    "Stats": "jitney.engine.stats",
    "StopReason": "jitney.api.batch_result",
    "StructuredOutputsParams": "jitney.core.params",
}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> object:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'jitney' has no attribute {name!r}")
    return getattr(importlib.import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
