"""The commands and their options, one frozen dataclass each. Its docstring is the help.

Only definitions. The module of a command does the work, and is loaded when the command is called.
Imports nothing heavy.

Tests: tests/unit/cli/test_flags.py and test_help.py.
"""

from dataclasses import dataclass
from pathlib import Path

from jitney.cli.flags import API_KEY, COMMAND, SERVER_URL, Verb, argument, option
from jitney.extensions import commands

TEMPERATURE = 0.7
RUN_TOKENS_MAX = 256
CHAT_TOKENS_MAX = 1024
DEMO_TOKENS_MAX = 160
TRACE_FILE = "jitney-trace.json"
BATCH_FILE = "out.jsonl"

SAMPLING = "Sampling"
OUTPUT = "Output"

ABOUT = "Serves language models to many callers at once, with shared forward passes."
EXAMPLES = ("jitney serve", 'jitney run "Why is the sky blue?"', "jitney chat", "jitney demo")

SYSTEM = option(COMMAND, help="The system message that a chat begins with.")
TEMPERATURE_OPTION = option(
    SAMPLING, help=f"How random the choice of tokens is; 0 is greedy. Default: {TEMPERATURE:g}."
)
GREEDY = option(
    SAMPLING, False, help="Always take the most likely token; the same as --temperature 0."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """Answer prompts; several are batched and computed together.

    Answers go to standard output, everything else to standard error. Several answers have their
    prompts above them; with --json there is one object for each instead. Without a prompt, standard
    input is the prompt. Without --model, the embedded model answers; it is fetched first if it is
    not here.

    Examples:
        jitney run "Why is the sky blue?"
        jitney run --model model.gguf --greedy "One." "Two." "Three."
        jitney run --lines --json < prompts.txt > answers.jsonl
        git diff | jitney run --system 'Describe this change.'
    """

    prompts: tuple[str, ...] = argument("[PROMPT]...", ())
    """What to answer; a single - means standard input."""
    lines: bool = option(COMMAND, False)
    """Take every line of standard input as a separate prompt."""
    chat: bool | None = option(COMMAND, spelled=("--chat/--raw",))
    """Put the prompt into the model's chat template, or use it as it is. Default: chat if the model
    has a template."""
    system: str | None = SYSTEM
    max_tokens: int = option(SAMPLING, RUN_TOKENS_MAX)
    """The most tokens of an answer."""
    temperature: float | None = TEMPERATURE_OPTION
    greedy: bool = GREEDY
    top_p: float | None = option(SAMPLING, metavar="SHARE")
    """Choose from the most likely tokens that have this share together; 1 is all of them."""
    top_k: int | None = option(SAMPLING)
    """Choose from the N most likely tokens; 0 is all."""
    stop: tuple[str, ...] = option(SAMPLING, ())
    """End the answer before this text; may be given several times."""
    json_schema: Path | None = option(SAMPLING)
    """The answer is JSON that matches the schema in this file."""
    regex: str | None = option(SAMPLING)
    """The answer matches this regular expression."""
    json: bool = option(OUTPUT, False)
    """One JSON object per prompt and line: text, tokens, finish reason, usage, times."""
    stats: bool = option(OUTPUT, False)
    """Statistics on standard error at the end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """Talk with a model in the terminal.

    Ctrl-C stops an answer, Ctrl-D leaves, and /help lists all commands.

    Examples:
        jitney chat --model model.gguf --system "You are brief."
    """

    system: str | None = SYSTEM
    max_tokens: int = option(SAMPLING, CHAT_TOKENS_MAX)
    """The most tokens of one answer."""
    temperature: float | None = TEMPERATURE_OPTION
    greedy: bool = GREEDY


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """Watch eight prompts being answered side by side.

    Slots, batch, memory and speed are below them. It ends by itself.

    Examples:
        jitney demo
        jitney demo --backend fake
    """

    max_tokens: int = option(SAMPLING, DEMO_TOKENS_MAX)
    """The most tokens of each answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """Serve a model to many callers at once, through OpenAI's HTTP interface.

    It listens on this machine only, unless --host says otherwise. The backend runs in its own
    process, which is started again when it crashes; --no-backend-process keeps it in the server's.
    SIGTERM, Ctrl-C and the end of its terminal let running requests finish; a second SIGTERM or
    Ctrl-C does not.

    Examples:
        jitney serve
        jitney serve model.gguf --port 8080 --max-num-seqs 32
        jitney serve Qwen/Qwen3-0.6B-GGUF:Q8_0
        jitney serve model.gguf --host 0.0.0.0 --api-key-file keys.yaml
    """

    model_argument: str | None = argument("[MODEL]")
    """The model to serve; the same as --model."""
    yes: bool = option(COMMAND, False, spelled=("--yes", "-y"))
    """If only llama.cpp can run the model and it is not installed, add it without asking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRunOptions:
    """Answer a file of requests, in the form of OpenAI's batches, without a server.

    Each line of the input is an object with custom_id, method (POST), url (/v1/chat/completions or
    /v1/completions) and body. Results are in the output once, in the order of the input; lines that
    failed are in a file beside it, with .errors in its name. A run that was interrupted or killed
    goes on where it was when the same command is given again. The exit code is 0 if every line was
    answered, 1 if some failed.

    Examples:
        jitney batch run in.jsonl -o out.jsonl
        jitney batch run in.jsonl -o out.jsonl --model model.gguf --max-num-seqs 32
    """

    source: str | None = argument("INPUT")
    """The file of requests, one JSON object per line."""
    output: Path = option(
        COMMAND,
        Path(BATCH_FILE),
        help=f"The file to write; it must not be there yet. Default: {BATCH_FILE}.",
        spelled=("--output", "-o"),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PullOptions:
    """Fetch a model by its name on the hub, or the embedded one.

    A model of the hub goes into the cache that other tools share; HF_HOME, HF_TOKEN, HF_ENDPOINT
    and HF_HUB_OFFLINE mean what they mean elsewhere. Without a quant it is Q4_K_M, then Q8_0, then
    the only one there is. A model that nothing here runs is refused before it is fetched; of others
    it says the memory that they take. An interrupted download continues where it stopped. The
    embedded model, SmolLM2-135M-Instruct, is also converted for its backend.

    Examples:
        jitney pull
        jitney pull Qwen/Qwen3-0.6B-GGUF:Q8_0
    """

    named: str | None = argument("[MODEL]")
    """Its name on the hub: owner/name, owner/name:quant or owner/name/file.gguf. Default: the
    embedded model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsOptions:
    """List the models that are here, with their sizes and when they were last used.

    These are the embedded one, the GGUF files of the hub's cache, and all converted models. `jitney
    models` alone does the same.

    Examples:
        jitney models
        jitney models list --json
    """

    json: bool = option(COMMAND, False)
    """A JSON list instead of a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveOptions:
    """Remove models, by the names that jitney models lists.

    Other tools share the hub's cache, so it asks before it removes anything there, and removes only
    the files of that model.

    Examples:
        jitney models rm Qwen/Qwen3-0.6B-GGUF:Q8_0
    """

    names: tuple[str, ...] = argument("NAME...", ())
    """Names that jitney models lists."""
    yes: bool = option(COMMAND, False, spelled=("--yes", "-y"))
    """Do not ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneOptions:
    """Remove files that are no longer useful, and say how many bytes that frees.

    These are conversions of models that are gone or have changed, conversions of an earlier jitney
    in another form, the rests of interrupted downloads and conversions, and stored results about
    libraries and models that are gone. Files that another process is making stay.

    Examples:
        jitney models prune
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendsOptions:
    """List the backends: what is installed, what works here, and which would be chosen.

    Each installed one is tried once, with a tiny model in its own process. The choice is for the
    given model, or the embedded one, under the settings in force, with its reason, and with the
    memory that the model takes. Of a model of the hub only the first megabytes are read. Nothing is
    fetched, converted or measured without --add or --measure.

    Examples:
        jitney backends
        jitney backends --add llamacpp
        jitney backends Qwen/Qwen3-0.6B-GGUF:Q8_0
        jitney backends model.gguf --max-num-seqs 4 --measure
        jitney backends --json
    """

    model_argument: str | None = argument("[MODEL]")
    """The model to choose a backend for; the same as --model."""
    measure: bool = option(COMMAND, False)
    """If speed decides and was not measured yet, measure it now: the model is fetched and converted
    if necessary."""
    add: str | None = option(COMMAND, metavar="NAME")
    """First add the backend to this environment, without a compiler: llamacpp, or llamacpp-vulkan
    for a GPU on Linux x86-64."""
    json: bool = option(COMMAND, False)
    """One JSON object instead of a table."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """Save the last ticks and requests of a running server as a trace.

    The file is in Chrome's trace format: a lane for each slot, ticks with their batches, memory and
    queue, and a row for each request that says why it took its time.

    Examples:
        jitney trace
        jitney trace --url http://127.0.0.1:8080 -o slow.json
    """

    url: str = option(COMMAND, SERVER_URL, metavar="URL")
    """Where the server is."""
    output: Path = option(
        COMMAND,
        Path(TRACE_FILE),
        help=f"The file to write; - is standard output. Default: {TRACE_FILE}.",
        spelled=("--output", "-o"),
    )
    api_key: str | None = API_KEY


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowOptions:
    """Show every setting that is in force, and where it came from.

    It takes the same settings as run, chat, demo and serve, so that you can try a command line.
    Those of the server come last. Keys are not shown.

    Examples:
        jitney config show --config jitney.yaml --max-num-seqs 32
    """

    json: bool = option(COMMAND, False)
    """One JSON object instead of a table."""


OWN_VERBS = (
    Verb(
        path=("run",),
        module="jitney.cli.run",
        options=RunOptions,
    ),
    Verb(
        path=("serve",),
        module="jitney.cli.serve",
        options=ServeOptions,
        serves=True,
    ),
    Verb(
        path=("batch", "run"),
        module="jitney.cli.batch_run",
        options=BatchRunOptions,
    ),
    Verb(
        path=("chat",),
        module="jitney.cli.chat",
        options=ChatOptions,
    ),
    Verb(
        path=("demo",),
        module="jitney.cli.run",
        call="demo",
        options=DemoOptions,
    ),
    Verb(
        path=("pull",),
        module="jitney.cli.pull",
        options=PullOptions,
        settings=("cache_dir",),
    ),
    Verb(
        path=("models", "list"),
        module="jitney.cli.models",
        options=ModelsOptions,
        settings=("cache_dir",),
        is_default=True,
    ),
    Verb(
        path=("models", "rm"),
        module="jitney.cli.models",
        call="remove",
        options=RemoveOptions,
        settings=("cache_dir",),
    ),
    Verb(
        path=("models", "prune"),
        module="jitney.cli.models",
        call="prune",
        options=PruneOptions,
        settings=("cache_dir",),
    ),
    Verb(
        path=("backends",),
        module="jitney.cli.backends",
        options=BackendsOptions,
        settings=(
            *("model", "backend", "dtype", "kv_cache_dtype", "quantization", "threads"),
            *("gpu_layers", "flash_attention", "max_num_seqs", "cache_dir"),
        ),
    ),
    Verb(
        path=("trace",),
        module="jitney.cli.trace",
        options=TraceOptions,
        settings=(),
    ),
    Verb(
        path=("config", "show"),
        module="jitney.cli.show",
        options=ShowOptions,
        serves=True,
    ),
)


def all_verbs() -> tuple[Verb, ...]:
    """All commands, in the order of the help; last those of packages beside this one."""
    return (*OWN_VERBS, *(verb for verbs in commands() for verb in verbs))
