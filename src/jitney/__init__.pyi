from jitney.core.params import SamplingParams as SamplingParams
from jitney.core.params import StructuredOutputsParams as StructuredOutputsParams
from jitney.core.policy import Candidate as Candidate
from jitney.core.policy import SchedulingPolicy as SchedulingPolicy
from jitney.engine.answer import Delta as Delta
from jitney.engine.handle import Handle as Handle
from jitney.engine.stats import Stats as Stats
from jitney.errors import JitneyError as JitneyError
from jitney.llm import LLM as LLM
from jitney.outputs import CompletionOutput as CompletionOutput
from jitney.outputs import Logprob as Logprob
from jitney.outputs import RequestOutput as RequestOutput

__all__ = [
    "Candidate",
    "CompletionOutput",
    "Delta",
    "Handle",
    "JitneyError",
    "LLM",
    "Logprob",
    "RequestOutput",
    "SamplingParams",
    "SchedulingPolicy",
    "Stats",
    "StructuredOutputsParams",
]
