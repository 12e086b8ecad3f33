"""What llama.cpp says of a model without its weights. A child asks it, so a file can do no harm.

Called at start-up and before a model is fetched, from any thread.

Tests: tests/unit/backends/llamacpp/test_kind.py.
"""

from dataclasses import replace
from pathlib import Path

from jitney.backends.trials.trial import START_S_MAX, Trial
from jitney.backends.trials.trial_process import EXIT_REFUSED, TrialResult, ask
from jitney.models.gguf import GgufHeader, read_header

BINDINGS = "jitney.backends.llamacpp.bindings"
RELEASE = "0.5.0"
_NAMES = """
afmoe apertus arcee arctic arwkv7 baichuan bailingmoe bailingmoe2 bailingmoe3 bitnet bloom chameleon
chatglm codeshell cogvlm cohere2 cohere2moe command-r dbrx deci deepseek deepseek2 deepseek2-ocr
deepseek32 deepseek4 dots1 dots3note ernie4_5 ernie4_5-moe exaone exaone-moe exaone4 falcon
falcon-h1 gemma gemma2 gemma3 gemma3n gemma4 glm-dsa glm4 glm4moe gpt-oss gpt2 gptneox granite
granite_swa granitehybrid granitemoe graniteswitch grok grovemoe hrm_text hunyuan-dense hunyuan-moe
hunyuan_vl hy_v3 hy_v4 internlm2 jais jais2 jamba kimi-k3 kimi-linear laguna lfm2 lfm2moe llama
llama4 maincoder mamba mamba2 maple mellum mimo2 minicpm minicpm3 minimax-01 minimax-m2 minimax-m3
mistral3 mistral4 mpt muse-glimmer nanbeige nemotron nemotron_h nemotron_h_moe olmo olmo2 olmoe
openelm orion paddleocr pangu-embedded phi2 phi3 phimoe plamo plamo2 plamo3 plm qwen qwen2 qwen2moe
qwen2vl qwen3 qwen35 qwen35moe qwen3moe qwen3next qwen3vl qwen3vlmoe qwen4exp refact rwkv6
rwkv6qwen2 rwkv7 seed_oss smallthinker smollm3 spark2_5 stablelm starcoder starcoder2 step35 talkie
xverse
"""
ARCHITECTURES = frozenset(_NAMES.split())
"""What that release knows and what continues a text, for machines without the library."""
_NAME, _REWINDS = "llamacpp", "is_rewindable"


def finds_gpu() -> bool:
    """Whether it finds a GPU. A child looks, so that its driver is not loaded here."""
    return bool(_ask("").found.get("finds_gpu"))


def unknown(head: Path, distributions: tuple[str, ...]) -> str | None:
    """Why it would not load the model of this head, as a clause. Raises ModelError."""
    if distributions:
        found = _ask(str(head))
        return found.failure if found.status == EXIT_REFUSED else None
    family = read_header(head).architecture
    if family in ARCHITECTURES:
        return None
    return f"the architecture {family!r} is not among those that llama.cpp {RELEASE} serves"


def full_header(model: Path, distributions: tuple[str, ...], cache: Path) -> GgufHeader:
    """The header, with a state of unknown size where only the library knows that layers keep one.

    The library goes by the architecture, so it is asked once for each. Raises ModelError.
    """
    header = read_header(model)
    if header.state_bytes or not distributions:
        return header
    trial = Trial(
        cache=cache,
        names=(_NAME,),
        facts=[_REWINDS, header.architecture],
        distributions=distributions,
        keeps=lambda results: _REWINDS in results[_NAME].found,
    )
    results = trial.recall() or trial.results({_NAME: _ask(str(model))})
    return header if results[_NAME].found.get(_REWINDS, True) else replace(header, state_bytes=1)


def _ask(head: str) -> TrialResult:
    return ask(BINDINGS, {"head": head}, START_S_MAX)
