"""The commands and their options, one frozen dataclass each: what a person can write.

Only definitions; what a command does stands in the module of its name, which is loaded when it
is called. Imports nothing heavy.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from jitney.cli.flags import COMMAND, Verb
from jitney.cli.verbs_models import MODEL_VERBS

TEMPERATURE = 0.7
RUN_TOKENS_MAX = 256
CHAT_TOKENS_MAX = 1024
DEMO_TOKENS_MAX = 160
SERVER_URL = "http://127.0.0.1:8000"
TRACE_FILE = "jitney-trace.json"

SAMPLING = "Sampling"
OUTPUT = "Output"

ABOUT = "Serves language models to many callers at once: one forward pass per tick for everyone."
EXAMPLES = ("jitney serve", 'jitney run "Why is the sky blue?"', "jitney chat", "jitney demo")

Temperature = Annotated[
    float | None,
    typer.Option(
        "--temperature",
        metavar="X",
        help=f"How freely tokens are drawn; 0 is greedy. Default: {TEMPERATURE:g}.",
        rich_help_panel=SAMPLING,
    ),
]
Greedy = Annotated[
    bool,
    typer.Option(
        "--greedy",
        help="Always take the likeliest token: the same as --temperature 0.",
        rich_help_panel=SAMPLING,
    ),
]
System = Annotated[
    str | None,
    typer.Option(
        "--system",
        metavar="TEXT",
        help="The system message that a chat begins with.",
        rich_help_panel=COMMAND,
    ),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOptions:
    """`jitney run`."""

    prompts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[PROMPT]...",
            help="What to answer; a lone - stands for standard input.",
        ),
    ] = None
    lines: Annotated[
        bool,
        typer.Option(
            "--lines",
            help="Take every line of standard input as a prompt of its own.",
            rich_help_panel=COMMAND,
        ),
    ] = False
    chat: Annotated[
        bool | None,
        typer.Option(
            "--chat/--raw",
            help="Put the prompt into the model's chat template, or hand it over as it is. "
            "Default: chat where the model has a template.",
            rich_help_panel=COMMAND,
        ),
    ] = None
    system: System = None
    max_tokens: Annotated[
        int,
        typer.Option(
            "--max-tokens",
            metavar="N",
            help="Tokens of an answer at most.",
            rich_help_panel=SAMPLING,
        ),
    ] = RUN_TOKENS_MAX
    temperature: Temperature = None
    greedy: Greedy = False
    top_p: Annotated[
        float | None,
        typer.Option(
            "--top-p",
            metavar="SHARE",
            help="Draw from the likeliest tokens that make up this share; 1 is all of them.",
            rich_help_panel=SAMPLING,
        ),
    ] = None
    top_k: Annotated[
        int | None,
        typer.Option(
            "--top-k",
            metavar="N",
            help="Draw from the N likeliest tokens; 0 is all of them.",
            rich_help_panel=SAMPLING,
        ),
    ] = None
    stop: Annotated[
        list[str] | None,
        typer.Option(
            "--stop",
            metavar="TEXT",
            help="End the answer before this text; may be given several times.",
            rich_help_panel=SAMPLING,
        ),
    ] = None
    json_schema: Annotated[
        Path | None,
        typer.Option(
            "--json-schema",
            metavar="FILE",
            help="The answer is JSON that the schema in this file allows.",
            rich_help_panel=SAMPLING,
        ),
    ] = None
    regex: Annotated[
        str | None,
        typer.Option(
            "--regex",
            metavar="TEXT",
            help="The answer matches this regular expression.",
            rich_help_panel=SAMPLING,
        ),
    ] = None
    json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="One JSON object per prompt and line: text, tokens, finish reason, usage, times.",
            rich_help_panel=OUTPUT,
        ),
    ] = False
    stats: Annotated[
        bool,
        typer.Option(
            "--stats",
            help="Statistics on standard error at the end.",
            rich_help_panel=OUTPUT,
        ),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatOptions:
    """`jitney chat`."""

    system: System = None
    max_tokens: Annotated[
        int,
        typer.Option(
            "--max-tokens",
            metavar="N",
            help="Tokens of one answer at most.",
            rich_help_panel=SAMPLING,
        ),
    ] = CHAT_TOKENS_MAX
    temperature: Temperature = None
    greedy: Greedy = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """`jitney demo`."""

    max_tokens: Annotated[
        int,
        typer.Option(
            "--max-tokens",
            metavar="N",
            help="Tokens of each answer at most.",
            rich_help_panel=SAMPLING,
        ),
    ] = DEMO_TOKENS_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeOptions:
    """`jitney serve`."""

    served: Annotated[
        str | None,
        typer.Argument(metavar="[MODEL]", help="The model to serve; the same as --model."),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendsOptions:
    """`jitney backends`."""

    named: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]", help="The model to choose a backend for; the same as --model."
        ),
    ] = None
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Where speed decides and was not measured yet, measure it now: the model is "
            "fetched and converted if need be.",
            rich_help_panel=COMMAND,
        ),
    ] = False
    add: Annotated[
        str | None,
        typer.Option(
            "--add",
            metavar="NAME",
            help="First add the backend to this environment, without a compiler: llamacpp.",
            rich_help_panel=COMMAND,
        ),
    ] = None
    json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object instead of a table.", rich_help_panel=COMMAND),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceOptions:
    """`jitney trace`."""

    url: Annotated[
        str,
        typer.Option("--url", metavar="URL", help="Where the server is.", rich_help_panel=COMMAND),
    ] = SERVER_URL
    output: Annotated[
        Path,
        typer.Option(
            "--output",
            "-o",
            metavar="FILE",
            help=f"Where to put it; - is standard output. Default: {TRACE_FILE}.",
            rich_help_panel=COMMAND,
        ),
    ] = Path(TRACE_FILE)
    api_key: Annotated[
        str | None,
        typer.Option(
            "--api-key", metavar="TEXT", help="A key of the server.", rich_help_panel=COMMAND
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ShowOptions:
    """`jitney config show`."""

    json: Annotated[
        bool,
        typer.Option("--json", help="One JSON object instead of a table.", rich_help_panel=COMMAND),
    ] = False


SHORTS = (
    ("model", "-m"),
    ("kv_tokens", "-c"),
    ("max_num_seqs", "-np"),
    ("max_num_batched_tokens", "-b"),
    ("threads", "-t"),
    ("gpu_layers", "-ngl"),
)
"""llama-server's, for those whose fingers know them."""

VERBS = (
    Verb(
        path=("run",),
        module="run",
        options=RunOptions,
        about="""Answer prompts; several are batched and computed together.

        Answers go to standard output, several with their prompts above them (--json has one object
        for each instead); everything else goes to standard error. Without a
        prompt, standard input is the prompt. Without --model, the embedded model answers; it is
        fetched first when it is not there.""",
        examples=(
            'jitney run "Why is the sky blue?"',
            'jitney run --model model.gguf --greedy "One." "Two." "Three."',
            "jitney run --lines --json < prompts.txt > answers.jsonl",
            "git diff | jitney run --system 'Describe this change.'",
        ),
        shorts=SHORTS,
    ),
    Verb(
        path=("serve",),
        module="serve",
        options=ServeOptions,
        about="""Serve a model to many callers at once, through OpenAI's HTTP interface.

        It listens on this machine only, until --host says otherwise. The backend runs in a
        process of its own, which is started again when it crashes; --no-backend-process keeps it
        inside. SIGTERM, Ctrl-C and the end of its terminal let running requests finish; a second
        SIGTERM or Ctrl-C does not.""",
        examples=(
            "jitney serve",
            "jitney serve model.gguf --port 8080 --max-num-seqs 32",
            "jitney serve Qwen/Qwen3-0.6B-GGUF:Q8_0",
            "jitney serve model.gguf --host 0.0.0.0 --api-key-file keys.yaml",
        ),
        serves=True,
        shorts=SHORTS,
    ),
    Verb(
        path=("chat",),
        module="chat",
        options=ChatOptions,
        about="""Talk with a model in the terminal.

        Ctrl-C stops an answer, Ctrl-D leaves, and /help lists what else can be typed.""",
        examples=('jitney chat --model model.gguf --system "You are brief."',),
        shorts=SHORTS,
    ),
    Verb(
        path=("demo",),
        module="demo",
        options=DemoOptions,
        about="""Watch eight prompts being answered side by side.

        Slots, batch, memory and speed stand below them. It ends by itself.""",
        examples=("jitney demo", "jitney demo --backend fake"),
    ),
    *MODEL_VERBS,
    Verb(
        path=("backends",),
        module="backends",
        options=BackendsOptions,
        about="""List the backends: what is installed, what works here, and which would be chosen.

        Each one that is installed is tried once, with a tiny model in a process of its own. The
        choice is for the given model, or the embedded one, under the settings in force, and it says
        why. Nothing is fetched, converted or measured, unless --add or --measure asks for it.""",
        examples=(
            "jitney backends",
            "jitney backends --add llamacpp",
            "jitney backends model.gguf --max-num-seqs 4 --measure",
            "jitney backends --json",
        ),
        settings=(
            *("model", "backend", "dtype", "kv_cache_dtype", "threads", "gpu_layers"),
            *("flash_attention", "max_num_seqs", "cache_dir"),
        ),
    ),
    Verb(
        path=("trace",),
        module="trace",
        options=TraceOptions,
        about="""Save the last ticks and requests of a running server, to be looked at.

        The file is in Chrome's trace format: a lane for each slot, ticks with what was in their
        batch, memory and queue, and a row for each request that says why it took its time.""",
        examples=("jitney trace", "jitney trace --url http://127.0.0.1:8080 -o slow.json"),
        settings=(),
    ),
    Verb(
        path=("config", "show"),
        module="show",
        options=ShowOptions,
        about="""Show every setting that is in force, and where it came from.

        It takes the same settings as run, chat, demo and serve, so that a command line can be
        tried; those of the server stand last. Keys are not shown.""",
        examples=("jitney config show --config jitney.yaml --max-num-seqs 32",),
        serves=True,
    ),
)
"""All commands, in the order of the help."""
