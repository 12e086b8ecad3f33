"""The tokens that the fake backend must give to one request, computed for that request alone.

No code of the engine, the core or the backend has a part in it, except the oracle and the sampler.
"""

from jitney.backends.fake.oracle import (
    HASH_OF_NOTHING,
    ROUNDED_ALONE,
    TokenOracle,
    encode_plain,
    is_plain,
    mix64,
    seeded,
)
from jitney.core.backend import Vocabulary
from jitney.core.batch import Sampling
from jitney.core.params import SamplingParams
from jitney.sampling.constraint import ConstraintCompiler
from jitney.sampling.sampler import TEMPERATURE_MIN, SlotSampler
from jitney.tokenizers import byte_tokenizer


def expected_completion(
    prompt: tuple[int, ...],
    params: SamplingParams,
    seed: int,
    *,
    eos_period: int,
    tokens_max: int,
    rounds: bool = False,
) -> list[int]:
    """The tokens that the fake backend gives to this request when nothing goes wrong.

    Leaves out the token that ends it (the end token unless ignored, or a stop token), and ignores
    stop strings. So a length below `tokens_max` means that it stopped. Where the simulated kernels
    round, a prompt is computed in spans, and later tokens one by one.
    """
    vocabulary = byte_tokenizer.byte_vocabulary()
    oracle = TokenOracle(vocabulary, eos_period)
    ends = (*(() if params.ignore_eos else vocabulary.eos_tokens), *(params.stop_token_ids or ()))
    sampling = sampling_of(params, seed, len(prompt), ends)
    plain = is_plain(sampling)
    sampler = None if plain else new_sampler(sampling, vocabulary)
    tokens = list(prompt)
    rolling = HASH_OF_NOTHING
    for token in prompt:
        rolling = mix64(rolling, token)
    while len(tokens) - len(prompt) < tokens_max:
        if sampler is None:
            is_drawn = sampling.temperature >= TEMPERATURE_MIN
            mixed = seeded(rolling, seed, len(tokens)) if is_drawn else rolling
            chosen = oracle.choose(mixed, tokens[-1])
        else:
            sample = sampler.sample(tokens, oracle.logits(rolling, tokens[-1]))
            assert sample.token is not None, sample.fault
            chosen = sample.token
        if chosen in ends:
            break
        tokens.append(chosen)
        rolling = mix64(rolling, chosen + rounds * ROUNDED_ALONE)
    return tokens[len(prompt) :]


def sampling_of(
    params: SamplingParams, seed: int, prompt_count: int, end_tokens: tuple[int, ...]
) -> Sampling:
    """The sampling of one sequence of a request, independent of the scheduler's code."""
    return Sampling(
        seed=seed,
        prompt_count=prompt_count,
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        repetition_penalty=params.repetition_penalty,
        frequency_penalty=params.frequency_penalty,
        presence_penalty=params.presence_penalty,
        logit_bias=tuple(sorted((params.logit_bias or {}).items())),
        min_tokens=params.min_tokens,
        end_tokens=end_tokens,
        logprobs=params.logprobs,
        prompt_logprobs=params.prompt_logprobs,
        constraint=params.constraint,
    )


def new_sampler(sampling: Sampling, vocabulary: Vocabulary) -> SlotSampler:
    """A sampler for one sequence."""
    if sampling.constraint is None:
        return SlotSampler(sampling, None)
    compiler = ConstraintCompiler(vocabulary, encode_plain)
    return SlotSampler(sampling, compiler.compile(sampling.constraint))
