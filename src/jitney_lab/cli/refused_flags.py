"""The flags of `vllm bench serve` that have no meaning here, each with the reason in a sentence.

Nothing that is pasted from a command line of vLLM is ignored. Imports nothing heavy.

Tests: tests/unit/lab/cli/test_refused_flags.py.
"""

_TOKENIZER = "no tokenizer is loaded here, because the server counts the tokens; leave it out"
_DATASET = (
    "it belongs to a dataset that is not taken here; --dataset-name is random, "
    "prefix_repetition, custom or sharegpt"
)
_RAMP = "the rate is the same for the whole run; put a rising load into a trace (--dataset-path)"
_PLOT = "plots of the result are drawn into the folder of -o"
_LORA = "all requests go to one model; run once for each adapter, with its name as --model"
_BODY = "put it into --extra-body as a field of each request"
_IMAGES = "requests are text only here; leave it out"

REFUSED_FLAGS: tuple[tuple[str, str], ...] = (
    ("--tokenizer", _TOKENIZER),
    ("--tokenizer-mode", _TOKENIZER),
    ("--skip-tokenizer-init", _TOKENIZER),
    ("--trust-remote-code", "no code of a model is loaded here; leave it out"),
    ("--use-beam-search", "OpenAI's interface has no beam search; leave it out"),
    ("--logprobs", _BODY),
    ("--chat-template-kwargs", f"{_BODY}, chat_template_kwargs"),
    ("--request-id-prefix", "requests are sent without names of their own; leave it out"),
    ("--ramp-up-*", _RAMP),
    ("--probe-request-rate", "only the load itself is measured; leave it out"),
    ("--profile", "it is a profiler of vLLM; leave it out"),
    ("--plot-*", _PLOT),
    ("--timeline-*", _PLOT),
    ("--lora-*", _LORA),
    (
        "--ready-check-timeout-sec",
        "the server must be ready already; wait for it, and leave it out",
    ),
    (
        "--*self-timed",
        "a trace with timestamps is sent at its times, one without at --request-rate; leave it out",
    ),
    ("--no-stream", "datasets are read from a file, never fetched; leave it out"),
    ("--enable-multimodal-chat", _IMAGES),
    ("--custom-ensure-client-side-data", _IMAGES),
    ("--random-mm-*", _IMAGES),
    ("--random-batch-size", "it is for embeddings, and answers are measured here; leave it out"),
    ("--no-reranker", "it is for reranking, and answers are measured here; leave it out"),
    ("--sonnet-*", _DATASET),
    ("--spec-bench-*", _DATASET),
    ("--speed-bench-*", _DATASET),
    (
        "--timed-trace-*",
        "without a --dataset-name, --dataset-path is a trace with timestamp (ms), input_length and "
        "output_length in each line; give it such a file",
    ),
    ("--blazedit-*", _DATASET),
    ("--asr-*", _DATASET),
    ("--hf-*", _DATASET),
    ("--bfcl-*", _DATASET),
)
