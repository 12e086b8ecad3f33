from jitney.api.batch_processor import BatchConfig as BatchConfig
from jitney.api.batch_processor import BatchingStrategy as BatchingStrategy
from jitney.api.batch_processor import BatchProcessor as BatchProcessor
from jitney.api.batch_processor import BatchStats as BatchStats
from jitney.api.batch_processor import GenerationConfig as GenerationConfig
from jitney.api.batch_processor import RequestPriority as RequestPriority
from jitney.api.batch_result import BatchRequest as BatchRequest
from jitney.api.batch_result import BatchResult as BatchResult
from jitney.api.batch_result import StopReason as StopReason
from jitney.api.llm import LLM as LLM
from jitney.api.outputs import CompletionOutput as CompletionOutput
from jitney.api.outputs import Logprob as Logprob
from jitney.api.outputs import RequestOutput as RequestOutput
from jitney.core.events import FinishReason as FinishReason
from jitney.core.params import SamplingParams as SamplingParams
from jitney.core.params import StructuredOutputsParams as StructuredOutputsParams
from jitney.core.request import Priority as Priority
from jitney.core.request import RequestId as RequestId
from jitney.core.scheduler_settings import Candidate as Candidate
from jitney.core.scheduler_settings import SchedulingPolicy as SchedulingPolicy
from jitney.engine.answer import Delta as Delta
from jitney.engine.handle import Handle as Handle
from jitney.engine.stats import Stats as Stats
from jitney.errors import JitneyError as JitneyError
from jitney_cluster.ray_data import RowAnswers as RowAnswers

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
    "FinishReason",
    "GenerationConfig",
    "Handle",
    "JitneyError",
    "LLM",
    "Logprob",
    "Priority",
    "RequestId",
    "RequestOutput",
    "RequestPriority",
    "RowAnswers",
    "SamplingParams",
    "SchedulingPolicy",
    "Stats",
    "StopReason",
    "StructuredOutputsParams",
]
