"""The commands that fetch, list and remove models, and their options; part of `verbs`.

Only definitions. Imports nothing heavy.
"""

from dataclasses import dataclass
from typing import Annotated

import typer

from jitney.cli.flags import COMMAND, Verb


@dataclass(frozen=True, slots=True, kw_only=True)
class PullOptions:
    """`jitney pull`."""

    named: Annotated[
        str | None,
        typer.Argument(
            metavar="[MODEL]",
            help="Its name on the hub: owner/name, owner/name:quant or owner/name/file.gguf. "
            "Default: the embedded model.",
        ),
    ] = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelsOptions:
    """`jitney models list`."""

    json: Annotated[
        bool,
        typer.Option("--json", help="A JSON list instead of a table.", rich_help_panel=COMMAND),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveOptions:
    """`jitney models rm`."""

    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME...", help="As jitney models lists them."),
    ] = None
    yes: Annotated[
        bool,
        typer.Option("--yes", "-y", help="Do not ask.", rich_help_panel=COMMAND),
    ] = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneOptions:
    """`jitney models prune`."""


MODEL_VERBS = (
    Verb(
        path=("pull",),
        module="pull",
        options=PullOptions,
        about="""Fetch a model by its name on the hub, or the embedded one.

        A model of the hub goes into the cache that other tools share; HF_HOME, HF_TOKEN,
        HF_ENDPOINT and HF_HUB_OFFLINE mean what they mean elsewhere. Without a quant it is Q4_K_M,
        then Q8_0, then the only one there is. What was interrupted goes on where it was. The
        embedded model, SmolLM2-135M-Instruct, is also made ready for use.""",
        examples=("jitney pull", "jitney pull Qwen/Qwen3-0.6B-GGUF:Q8_0"),
        settings=("cache_dir",),
    ),
    Verb(
        path=("models", "list"),
        module="models",
        options=ModelsOptions,
        about="""List the models that are here, with their sizes and when they were last used.

        These are the embedded one, the GGUF files of the hub's cache, and what was converted from
        any model. `jitney models` alone does the same.""",
        examples=("jitney models", "jitney models list --json"),
        settings=("cache_dir",),
        is_default=True,
    ),
    Verb(
        path=("models", "rm"),
        module="models_rm",
        options=RemoveOptions,
        about="""Remove models, by the names that jitney models lists.

        The hub's cache is shared with other tools, so it asks before it takes anything out of it,
        and takes out the files of that model only.""",
        examples=("jitney models rm Qwen/Qwen3-0.6B-GGUF:Q8_0",),
        settings=("cache_dir",),
    ),
    Verb(
        path=("models", "prune"),
        module="models_prune",
        options=PruneOptions,
        about="""Remove what is of no use any more, and say how much room it gives.

        That is: conversions of models that are gone or have changed, or that an earlier jitney made
        in another way, what interrupted fetches and conversions left, and what was remembered of
        libraries and models that are gone. What another process is making stays.""",
        examples=("jitney models prune",),
        settings=("cache_dir",),
    ),
)
"""In the order of the help."""
