from jitney.core.params import SamplingParams as SamplingParams
from jitney.core.params import StructuredOutputsParams as StructuredOutputsParams
from jitney.core.request import Priority as Priority
from jitney.engine.answer import Delta as Delta
from jitney.engine.handle import Handle as Handle
from jitney.engine.stats import Stats as Stats
from jitney.errors import JitneyError as JitneyError
from jitney.llm import LLM as LLM
from jitney.outputs import CompletionOutput as CompletionOutput
from jitney.outputs import Logprob as Logprob
from jitney.outputs import RequestOutput as RequestOutput

__all__ = [
    "CompletionOutput",
    "Delta",
    "Handle",
    "JitneyError",
    "LLM",
    "Logprob",
    "Priority",
    "RequestOutput",
    "SamplingParams",
    "Stats",
    "StructuredOutputsParams",
]
