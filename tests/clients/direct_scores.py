"""Scores of texts without a server: what a client's scores are compared with.

Reads pairs of a context and a continuation as JSON, and writes for each the logprob of the
continuation, and whether each of its tokens is the likeliest one.
"""

import json
import sys
from typing import Any

from jitney import LLM, SamplingParams


def scored(llm: LLM, context: str, continuation: str) -> tuple[float, bool]:
    """The sum over the tokens that the continuation adds to the context."""
    params = SamplingParams(max_tokens=1, prompt_logprobs=1)
    alone, whole = llm.generate([context, context + continuation], params)
    start = len(alone.prompt_token_ids)
    assert whole.prompt_logprobs is not None
    added = list(zip(whole.prompt_token_ids, whole.prompt_logprobs, strict=True))[start:]
    chosen = [position[token] for token, position in added if position is not None]
    return sum(each.logprob for each in chosen), all(each.rank == 1 for each in chosen)


def main() -> None:
    """From standard input to standard output."""
    pairs: list[tuple[str, str]] = json.load(sys.stdin)
    settings: dict[str, Any] = {"max_model_len": int(sys.argv[1]), "threads": 1}
    with LLM(**settings) as llm:
        json.dump([scored(llm, *pair) for pair in pairs], sys.stdout)


if __name__ == "__main__":
    main()
