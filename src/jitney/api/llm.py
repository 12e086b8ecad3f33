"""`LLM`: the Python API, with the names of vLLM's offline API, and handles for streaming.

Any thread may call. Everything here runs on the caller's thread. The engine has its own thread, and
so have callbacks (`jitney.api.callbacks`). In an event loop, use `submit_async` and the handle's
async methods.
"""

import asyncio
import itertools
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, Unpack

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from jitney.api.callbacks import Callbacks, CallbackThreads
from jitney.api.feed import AnswerOrError, run_each
from jitney.api.outputs import RequestOutput, make_output
from jitney.api.prompts import Prompt, PromptInput, read_prompt, read_prompts
from jitney.api.submission import (
    ID_PREFIX,
    ParamsInput,
    PriorityInput,
    SubmitOptions,
    read_callbacks,
    read_options,
    read_params,
    read_priorities,
)
from jitney.config import Settings, environment, resolve
from jitney.core.params import SamplingParams
from jitney.core.request import Priority, Request
from jitney.engine.answer import Answer
from jitney.engine.engine import DRAIN_S, Engine
from jitney.engine.handle import Handle
from jitney.engine.stats import Stats
from jitney.errors import ConfigError, InvalidRequest, JitneyError, ModelError
from jitney.loading.compose import Assembly, assemble
from jitney.text.detokenizer import Detokenizer

PROGRESS_PROMPTS_MIN = 9
"""Shorter lists have no progress bar: they end too soon."""

PromptMessage = Mapping[str, Any]
"""Any: a message is JSON, checked by the chat template's reader."""


class Tokenizer:
    """The model's tokenizer, with the usual names of other libraries."""

    def __init__(self, assembly: Assembly) -> None:
        self._request_factory = assembly.request_factory
        self._backend = assembly.engine.backend
        self._vocabulary = assembly.engine.backend.vocabulary

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""
        return len(self._vocabulary.pieces)

    @property
    def bos_token_id(self) -> int | None:
        """The token that begins a text; None if the model has none."""
        return self._vocabulary.bos_token

    @property
    def eos_token_id(self) -> int | None:
        """The first of the tokens that end a completion; None if the model has none."""
        return next(iter(self._vocabulary.eos_tokens), None)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The tokens of a text, as a prompt has them. `add_special_tokens` adds the first token."""
        if add_special_tokens:
            return list(self._request_factory.encode_text(text))
        return self._backend.encode([(text, True)])

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = False) -> str:
        """The text of tokens. Bytes that are not a whole character become U+FFFD."""
        detokenizer = Detokenizer(self._vocabulary, skip_special_tokens)
        return detokenizer.push_all(token_ids) + detokenizer.flush()


class LLM:
    """A loaded model and the engine that runs it.

    `model` is a GGUF file; the default is the embedded model. `config` is a settings file, as for
    `--config` on the command line. Every other argument is a setting by its name (`jitney config
    show` lists them), and is stronger than the file. `close`, or the end of a `with` block, waits
    for the requests that run.
    """

    def __init__(
        self,
        model: str | Path | None = None,
        *,
        config: str | Path | None = None,
        **settings: object,
    ) -> None:
        if config is not None and not isinstance(config, str | Path):
            raise ConfigError(
                f"config takes the path of a settings file, and got {type(config).__name__}; "
                "give settings as arguments."
            )
        resolved = resolve(
            {**settings, "model": None if model is None else str(model)},
            None if config is None else Path(config).expanduser(),
            environment(),
            given_as="argument",
        )
        self._assembly = assemble(resolved.settings)
        self._numbers = itertools.count()
        self._callback_threads = CallbackThreads()

    @property
    def settings(self) -> Settings:
        """The settings in force."""
        return self._assembly.settings

    @property
    def engine(self) -> Engine:
        """The engine, for observers and for callers who need more than this class."""
        return self._assembly.engine

    def generate(
        self,
        prompts: PromptInput | Sequence[PromptInput],
        sampling_params: ParamsInput = None,
        use_tqdm: bool = True,
        *,
        priority: PriorityInput | Sequence[PriorityInput] | None = None,
    ) -> list[RequestOutput]:
        """Complete all prompts together. The results are in the order of the prompts.

        Give one `sampling_params` and one `priority` for all prompts, or a list with one for each.
        Priorities count up, from 0 (low) to 3 (critical); in vLLM's `generate` they count down. If
        a request fails, its error is raised and the others are cancelled.
        """
        read = read_prompts(prompts)
        params = read_params(len(read), sampling_params)
        return self._run(read, params, read_priorities(len(read), priority), use_tqdm)

    def chat(
        self,
        messages: Sequence[PromptMessage] | Sequence[Sequence[PromptMessage]],
        sampling_params: ParamsInput = None,
        use_tqdm: bool = True,
        *,
        priority: PriorityInput | Sequence[PriorityInput] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> list[RequestOutput]:
        """Answer one conversation, or several together, with the model's chat template.

        `sampling_params` and `priority` are as in `generate`. With `continue_final_message`, and
        without `add_generation_prompt`, the answer continues the last message.
        """
        _check_messages(messages)
        is_one = isinstance(messages[0], Mapping)
        # Any: `chat_prompt` looks into each
        conversations: list[Any] = [messages] if is_one else list(messages)
        params = read_params(len(conversations), sampling_params)
        priorities = read_priorities(len(conversations), priority)
        prompts = [
            self.chat_prompt(
                each,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
            )
            for each in conversations
        ]
        return self._run(prompts, params, priorities, use_tqdm)

    def chat_prompt(
        self,
        messages: Sequence[PromptMessage],
        *,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> Prompt:
        """The prompt of a conversation, with its tokens."""
        self.engine.check_process()
        template = self._assembly.template
        if template is None:
            raise ModelError("The model has no chat template; use generate with a complete prompt.")
        _check_messages(messages)
        listed = [dict(each) if isinstance(each, Mapping) else each for each in messages]
        segments = template.render(
            listed, add_generation_prompt, continue_final_message=continue_final_message
        )
        text = "".join(text for text, _ in segments)
        return Prompt(text, self._assembly.request_factory.encode(segments))

    def submit(
        self,
        prompt: PromptInput | Prompt,
        params: SamplingParams | None = None,
        **options: Unpack[SubmitOptions],
    ) -> Handle[RequestOutput]:
        """Submit one prompt. Iterate over the handle, wait for its result, or cancel it.

        Waits until the request is accepted, and raises QueueFull when there is no room.

        With `on_delta` or `on_done`, a thread of `jitney.api.callbacks` calls them with the deltas,
        in order. Then do not iterate over the handle; `result` and `cancel` still work. `on_done`
        is called exactly once for an accepted request, after the last delta; `result` may return
        before. A callback that raises is logged and counted (`callback_failed_count`). One that
        blocks delays no other request, up to the limit that `jitney.api.callbacks` names.
        """
        read = prompt if isinstance(prompt, Prompt) else read_prompt(prompt)
        callbacks = read_callbacks(options)
        request = self.make_request(read, read_params(1, params)[0], options)
        handle = self.engine.submit(request, streams=callbacks.want_deltas)
        return self._handle(handle, read, callbacks)

    async def submit_async(
        self,
        prompt: PromptInput | Prompt,
        params: SamplingParams | None = None,
        **options: Unpack[SubmitOptions],
    ) -> Handle[RequestOutput]:
        """`submit` for an event loop. A thread makes the callbacks here too."""
        read = prompt if isinstance(prompt, Prompt) else read_prompt(prompt)
        callbacks = read_callbacks(options)
        # To tokenise a long text or compile a constraint would block the loop.
        request = await asyncio.to_thread(
            self.make_request, read, read_params(1, params)[0], options
        )
        handle = await self.engine.submit_async(request, streams=callbacks.want_deltas)
        return self._handle(handle, read, callbacks)

    def make_request(
        self, prompt: Prompt, params: SamplingParams, options: SubmitOptions
    ) -> Request:
        """A request for the engine, tokenised and checked. Raises a RequestError."""
        self.engine.check_process()
        request_factory = self._assembly.request_factory
        tokens = prompt.tokens
        if tokens is None:
            assert prompt.text is not None, "A prompt has text or tokens"
            tokens = request_factory.encode_text(prompt.text)
        default_id = f"{ID_PREFIX}{next(self._numbers)}"
        return request_factory.make(tokens, params, read_options(default_id, options))

    def get_tokenizer(self) -> Tokenizer:
        """The model's tokenizer."""
        return Tokenizer(self._assembly)

    def stats(self) -> Stats:
        """The engine's statistics since its start."""
        return self.engine.stats()

    @property
    def callback_failed_count(self) -> int:
        """How often a callback raised."""
        return self._callback_threads.failed_count

    @property
    def callback_blocked_count(self) -> int:
        """How many callbacks took so long that it was logged."""
        return self._callback_threads.blocked_count

    def close(self, drain_s: float = DRAIN_S) -> None:
        """Let requests that run finish, for at most `drain_s` seconds, and release the model.

        Then wait until all callbacks were called, for 10 s at most. A callback that blocks is left.
        """
        try:
            self._assembly.close(drain_s)
        finally:
            self._callback_threads.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        # After an error nobody needs the answers.
        self.close(DRAIN_S if error is None else 0.0)

    def _run(
        self,
        prompts: list[Prompt],
        params: list[SamplingParams],
        priorities: list[Priority],
        use_tqdm: bool,
    ) -> list[RequestOutput]:
        requests = (
            self.make_request(prompt, each, {"priority": priority})
            for prompt, each, priority in zip(prompts, params, priorities, strict=True)
        )
        shows = use_tqdm and len(prompts) >= PROGRESS_PROMPTS_MIN and sys.stderr.isatty()
        with _progress(len(prompts), shows=shows) as report:
            answers = run_each(self.engine, requests, report)
        vocabulary = self.engine.backend.vocabulary
        return [
            make_output(answer, prompt.text, vocabulary)
            for answer, prompt in zip(answers, prompts, strict=True)
            if isinstance(answer, Answer)
        ]

    def _handle(
        self, handle: Handle[Answer], prompt: Prompt, callbacks: Callbacks
    ) -> Handle[RequestOutput]:
        """The handle for the caller: with outputs, and with the callbacks that were given."""
        vocabulary = self.engine.backend.vocabulary
        shaped = handle.shaped(lambda answer: make_output(answer, prompt.text, vocabulary))
        if callbacks.has_any:
            self._callback_threads.serve(shaped, callbacks)
        return shaped


def _check_messages(messages: object) -> None:
    if not isinstance(messages, list | tuple) or not messages:
        raise InvalidRequest(
            'A conversation is a list of messages, such as [{"role": "user", "content": "hello"}], '
            f"and got {messages!r:.80}.",
            "messages",
        )


@contextmanager
def _progress(count: int, *, shows: bool) -> Iterator[Callable[[int, AnswerOrError], None]]:
    """A progress bar on standard error that moves with every answer, or nothing.

    The function raises the error of a request that failed.
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[tokens]} tokens"),
    )
    with Progress(*columns, console=Console(stderr=True), disable=not shows) as bar:
        task = bar.add_task("completing", total=count, tokens=0)
        token_count = 0

        def report(_place: int, outcome: AnswerOrError) -> None:
            nonlocal token_count
            if isinstance(outcome, JitneyError):
                raise outcome
            token_count += outcome.usage.completion_count
            bar.update(task, advance=1, tokens=token_count)

        yield report
