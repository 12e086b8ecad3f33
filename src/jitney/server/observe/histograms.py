"""The table of histograms: the name of each metric, its meaning and its bounds. No state.

The names with a server before them are only that server's. Times of background requests are in none
of them: nobody waits for those, and some wait for hours.
"""

FIRST_TOKEN_S = (
    0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0,
    20.0, 40.0, 80.0, 160.0, 640.0, 2560.0,
)  # fmt: skip
TOKEN_GAP_S = (
    0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0,
    40.0, 80.0,
)  # fmt: skip
LATENCY_S = (
    0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0,
    480.0, 960.0, 1920.0, 7680.0,
)  # fmt: skip
TICK_TOKENS = (1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)
COMPLETIONS = (1, 2, 5, 10, 20)
TICK_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The bounds of vLLM's histograms; only TICK_S is our own."""

LENGTHS = ()
"""Stands for bounds that depend on the model: `token_bounds`."""

HISTOGRAMS: dict[str, tuple[str, tuple[float, ...]]] = {
    "first_token_seconds": (
        "From arrival to the first token. Times of background requests count in none of these.",
        FIRST_TOKEN_S,
    ),
    "token_gap_seconds": ("Between successive tokens of a completion.", TOKEN_GAP_S),
    "request_seconds": ("From arrival to the end.", LATENCY_S),
    "queue_seconds": ("Waiting for the first slot.", LATENCY_S),
    "prefill_seconds": ("From the first slot to the first token.", LATENCY_S),
    "generation_seconds": ("From the first token to the last.", LATENCY_S),
    "tick_seconds": ("One tick of the engine that ran a batch.", TICK_S),
    "forward_seconds": ("The forward pass of a tick.", TICK_S),
    "tick_tokens": ("Positions computed in one tick.", TICK_TOKENS),
    "request_prompt_tokens": ("Prompt tokens of a request.", LENGTHS),
    "request_completion_tokens": ("Tokens made for a request.", LENGTHS),
    "vllm:request_time_per_output_token_seconds": ("Mean time per token.", TOKEN_GAP_S),
    "vllm:request_inference_time_seconds": ("Time spent running.", LATENCY_S),
    "vllm:request_max_num_generation_tokens": ("Tokens of the longest completion.", LENGTHS),
    "vllm:request_params_n": ("The parameter n.", COMPLETIONS),
    "vllm:request_params_max_tokens": ("The parameter max_tokens.", LENGTHS),
    "vllm:request_prefill_kv_computed_tokens": ("Prompt tokens that were computed.", LENGTHS),
}
"""By name: what each is about, and its bounds."""


def token_bounds(tokens_max: int) -> tuple[int, ...]:
    """1, 2, 5, 10, 20, 50 and so on, up to the longest possible sequence."""
    bounds: list[int] = []
    power = 1
    while power <= tokens_max:
        bounds += [power * digit for digit in (1, 2, 5) if power * digit <= tokens_max]
        power *= 10
    return tuple(bounds)
