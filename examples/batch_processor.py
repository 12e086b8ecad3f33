"""Prompts by callback, as ZigLlama's chapter does it: start, submit, results, statistics.

python examples/batch_processor.py                    the embedded model
python examples/batch_processor.py --backend fake     without a model
"""

import argparse
import threading

from jitney import (
    BatchConfig,
    BatchingStrategy,
    BatchProcessor,
    BatchResult,
    GenerationConfig,
    JitneyError,
    RequestPriority,
)

PROMPTS = [f"{number} times {number} is" for number in range(2, 10)]


def show(result: BatchResult, printing: threading.Lock) -> None:
    """Called once for each request, from a thread that is not the engine's."""
    with printing:
        print(f"{result.text!r}")
        print(
            f"    {result.num_tokens} tokens, {result.stop_reason}, "
            f"log probability {result.total_log_prob:.1f}, "
            f"{result.queue_time_ms:.0f} ms in the queue, {result.latency_ms:.0f} ms of work"
        )


def main() -> None:
    """Run the prompts and say how it went."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--model", help="what LLM takes; the embedded model if left out")
    parser.add_argument("--backend", default="auto")
    given = parser.parse_args()
    config = BatchConfig(
        strategy=BatchingStrategy.DynamicTimeout,
        max_batch_size=4,
        max_wait_time_ms=20,
        enable_priority=True,
    )
    processor = BatchProcessor(given.model, config, show, threading.Lock(), backend=given.backend)
    with processor:
        for prompt in PROMPTS:
            processor.submit(prompt, GenerationConfig(max_tokens=16, temperature=0.0))
        processor.submit("The bus is", priority=RequestPriority.High)
    stats = processor.get_stats()
    print(
        f"{stats.total_requests} requests in {stats.total_batches} batches of "
        f"{stats.avg_batch_size:.1f} on average, {stats.tokens_per_second:.0f} tokens/s"
    )


if __name__ == "__main__":
    try:
        main()
    except JitneyError as error:
        raise SystemExit(str(error)) from None
