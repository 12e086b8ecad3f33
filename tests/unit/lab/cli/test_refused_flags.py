"""Every flag of `vllm bench serve` is taken or refused with its reason; none is unknown."""

from fnmatch import fnmatchcase

import pytest

from jitney.cli.flags import parse, verb_flags
from jitney.errors import ConfigError
from jitney_lab.cli.refused_flags import REFUSED_FLAGS
from jitney_lab.cli.serve_load_verb import SERVE_LOAD_VERB

FLAGS = """
--append-result --asr-max-audio-len-sec --asr-min-audio-len-sec --backend --base-url
--bfcl-categories --blazedit-max-distance --blazedit-min-distance --burstiness
--chat-template-kwargs --custom-ensure-client-side-data --custom-output-len --dataset-name
--dataset-path --disable-shuffle --disable-tqdm --enable-multimodal-chat --endpoint
--endpoint-type --extra-body --frequency-penalty --goodput --header --hf-name --hf-output-len
--hf-split --hf-subset --host --ignore-eos --input-len --insecure --label --logprobs
--lora-assignment --lora-modules --max-concurrency --metadata --metric-percentiles --min-p --model
--no-oversample --no-reranker --no-self-timed --no-stream --num-prompts --num-warmups --output-len
--percentile-metrics --plot-dataset-stats --plot-timeline --port --prefix-repetition-num-prefixes
--prefix-repetition-output-len --prefix-repetition-prefix-len --prefix-repetition-suffix-len
--presence-penalty --probe-request-rate --profile --ramp-up-end-rps --ramp-up-start-rps
--ramp-up-strategy --random-batch-size --random-input-len --random-mm-base-items-per-request
--random-mm-bucket-config --random-mm-limit-mm-per-prompt --random-mm-num-mm-items-range-ratio
--random-output-len --random-prefix-len --random-range-ratio --ready-check-timeout-sec
--repetition-penalty --request-id-prefix --request-rate --result-dir --result-filename
--save-detailed --save-result --seed --self-timed --served-model-name --sharegpt-output-len
--skip-chat-template --skip-tokenizer-init --sonnet-input-len --sonnet-output-len
--sonnet-prefix-len --spec-bench-category --spec-bench-output-len --speed-bench-category
--speed-bench-dataset-subset --speed-bench-output-len --temperature --timed-trace-chunk-hash-size
--timed-trace-label-hash-ids --timed-trace-label-input-length --timed-trace-label-output-length
--timed-trace-label-timestamp --timed-trace-sec-multiplier --timeline-itl-thresholds --tokenizer
--tokenizer-mode --top-k --top-p --trust-remote-code --use-beam-search
"""
"""The flags of vLLM's `vllm bench serve`, of August 2026."""

VLLM_FLAGS = FLAGS.split()

KNOWN = [name for flag in verb_flags(SERVE_LOAD_VERB) for name in flag.spelled]


@pytest.mark.parametrize("flag", VLLM_FLAGS)
def test_a_flag_of_vllm_is_taken_or_refused_with_a_reason(flag: str) -> None:
    """Guards pasted command lines: nobody should have to guess what became of a flag."""
    if flag not in KNOWN:
        with pytest.raises(ConfigError, match=f"does not take {flag}: .*[a-z]"):
            parse(SERVE_LOAD_VERB, [flag, "1"])


def test_what_is_taken_is_not_refused() -> None:
    """Guards the patterns: one that is too wide would speak of a flag that works."""
    for name in KNOWN:
        assert not any(fnmatchcase(name, pattern) for pattern, _ in REFUSED_FLAGS), name
    for pattern, reason in REFUSED_FLAGS:
        assert any(fnmatchcase(flag, pattern) for flag in VLLM_FLAGS), pattern
        assert not reason.endswith(".")


def test_a_flag_of_nobody_is_unknown() -> None:
    with pytest.raises(ConfigError, match="There is no option --random-inputlen"):
        parse(SERVE_LOAD_VERB, ["--random-inputlen", "5"])
