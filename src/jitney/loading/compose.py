"""The composition root: makes the backend, the engine and the rest from settings.

Called once per `LLM` or server, on the caller's thread. Only this module knows every part. It
decides the limits that depend on the model. An impossible limit is an error; it is never lowered in
silence.

Tests: tests/unit/api/test_llm_compose.py.
"""

from contextlib import ExitStack
from dataclasses import dataclass, fields

from jitney.config import Settings
from jitney.core.backend import Traits, Vocabulary
from jitney.core.scheduler_settings import SchedulerSettings, Strategy
from jitney.engine.engine import DRAIN_S, Engine
from jitney.engine.observe import log_batch_composition
from jitney.engine.request_factory import RequestFactory, seed_source
from jitney.errors import ConfigError
from jitney.loading import load_backend
from jitney.loading.model_source import located, takes_model
from jitney.models import embedded
from jitney.models.hub_reference import reference_of
from jitney.text.chat_template import ChatTemplate, Renderer

WAIT_S = {
    Strategy.CONTINUOUS: 0.0,
    Strategy.STATIC: None,
    Strategy.DYNAMIC: 0.05,
    Strategy.ADAPTIVE: 0.05,
}
"""How long requests are gathered where the user does not give `max_wait_ms`; None is no limit."""

TOKENS_LEAST = 2
"""The shortest sequence: a token of prompt and one of completion."""


@dataclass(frozen=True, slots=True)
class Assembly:
    """Everything that belongs to one loaded model; `close` releases all of it."""

    settings: Settings
    engine: Engine
    request_factory: RequestFactory
    template: ChatTemplate | None
    model_name: str
    """The name for clients."""

    def close(self, drain_s: float = DRAIN_S) -> None:
        """Finish running requests, for at most `drain_s` seconds, and release everything."""
        try:
            self.engine.close(drain_s)
        finally:
            if self.template is not None:
                self.template.close()


def assemble(settings: Settings) -> Assembly:
    """Load the model and start its engine. Raises a SetupError."""
    model_name = name_of(settings)
    files = located(settings)
    with ExitStack() as undo:
        # Its process starts while the model loads.
        renderer = Renderer()
        undo.callback(renderer.close)
        renderer.spawn()
        backend = load_backend(files)
        undo.callback(backend.close)
        limits = scheduler_settings(settings, backend.traits)
        template = make_template(backend.vocabulary, limits.model_len_max, renderer)
        engine = Engine(backend, limits)
        undo.pop_all()
    if settings.log_batch_composition:
        engine.observe(log_batch_composition)
    engine.start()
    request_factory = RequestFactory(backend, limits.model_len_max, seed_source(settings.seed))
    return Assembly(settings, engine, request_factory, template, model_name)


def make_template(
    vocabulary: Vocabulary, tokens_max: int, renderer: Renderer
) -> ChatTemplate | None:
    """The model's chat template, compiled, if it has one."""
    if vocabulary.chat_template is None:
        renderer.close()
        return None
    template = ChatTemplate(
        vocabulary.chat_template, vocabulary, tokens_max=tokens_max, renderer=renderer
    )
    template.start()
    return template


def name_of(settings: Settings) -> str:
    """The name of the model: as the user wrote it, or from its file."""
    if not takes_model(settings):
        return settings.backend
    if settings.model is None:
        return embedded.NAME
    reference = reference_of(settings.model)
    return settings.model.stem if reference is None else str(reference)


def model_key(settings: Settings) -> str:
    """Equal for settings that load the same model, whatever runs it."""
    if not takes_model(settings):
        return settings.backend
    return embedded.NAME if settings.model is None else str(settings.model)


def scheduler_settings(settings: Settings, traits: Traits) -> SchedulerSettings:
    """The settings of the scheduler: those of the same names, and computed ones."""
    names = {each.name for each in fields(SchedulerSettings)} & set(Settings.__slots__)
    return SchedulerSettings(
        model_len_max=_model_len(settings, traits),
        wait_s=_wait_s(settings),
        stall_s_target=settings.target_stall_ms / 1e3,
        **{name: getattr(settings, name) for name in names},
    )


def _wait_s(settings: Settings) -> float | None:
    """How long requests are gathered; None means no limit."""
    if settings.max_wait_ms is None:
        return WAIT_S[settings.strategy]
    return settings.max_wait_ms / 1e3


def _model_len(settings: Settings, traits: Traits) -> int:
    kv_tokens = traits.kv_tokens - traits.kv_tokens % traits.block_tokens
    length = settings.max_model_len
    if settings.max_per_sequence == "even":
        kv_tokens = _even_part(kv_tokens, settings.max_num_seqs, traits.block_tokens)
    if length is None:
        return min(traits.model_len_max, kv_tokens)
    if length > traits.model_len_max:
        raise ConfigError(
            f"max_model_len ({length}) is above the {traits.model_len_max} tokens that the "
            "model was made for; lower it."
        )
    if length > kv_tokens:
        if settings.max_per_sequence == "even":
            raise ConfigError(
                f"max_model_len ({length}) is above the {kv_tokens} tokens that max_per_sequence "
                f"allows, an even part of the memory for each of max_num_seqs "
                f"({settings.max_num_seqs}) sequences; lower one of the two, raise kv_tokens, or "
                "set max_per_sequence to overcommit."
            )
        raise ConfigError(
            f"max_model_len ({length}) does not fit the memory of {kv_tokens} tokens; "
            "lower it or raise kv_tokens."
        )
    return length


def _even_part(kv_tokens: int, max_num_seqs: int, block_tokens: int) -> int:
    """Tokens of memory for each sequence where all get the same, in whole blocks."""
    part = kv_tokens // block_tokens // max_num_seqs * block_tokens
    if part < TOKENS_LEAST:
        raise ConfigError(
            f"max_per_sequence is even, and the memory of {kv_tokens} tokens has no "
            f"{TOKENS_LEAST} tokens for each of {max_num_seqs} sequences; lower max_num_seqs or "
            "raise kv_tokens."
        )
    return part
