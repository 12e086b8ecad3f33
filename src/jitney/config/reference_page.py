"""The settings for people: the reference page, made from the definitions. Pure; any thread."""

from jitney.config.definitions import Group, Setting, variable_name
from jitney.config.keyfile import EXAMPLE, FIELDS
from jitney.config.serving import known_serve_settings
from jitney.config.settings import known_settings
from jitney.config.words import SYNONYMS, TABLES, WORDS, Meaning, Word

_HEAD = """\
# Settings

Each setting has one name. It can stand in a YAML or TOML file, in the environment and on the
command line, and it is an argument of `LLM`; those of the server are flags of `jitney serve` only.
A flag is stronger than the environment, the environment is stronger than the file, and the file is
stronger than the default.

- In a file the name is a key at the top: `max_num_seqs: 32`. `LLM(config="file.yaml")` reads the
  same file as `--config file.yaml`.
- In the environment it is upper case behind `JITNEY_`: `JITNEY_MAX_NUM_SEQS=32`. An empty
  variable is not given.
- On the command line it is a flag: `--max-num-seqs 32`. A switch has two: `--backend-process` and
  `--no-backend-process`.
- Where none is a value, the word `none` stands for it.

An unknown name, a value that cannot be read, a setting given twice in a file or by two of its
names, a combination that cannot work and a setting that the chosen strategy or mix has no use for
are errors.
`jitney config show` says where each value came from.

This page is made from the source by `make docs`.
"""

EXAMPLE_POLICY = """\
from jitney import LLM, Candidate


class LongestFirst:
    def rank(self, candidate: Candidate) -> float:
        return -candidate.prompt_tokens


llm = LLM(policy=LongestFirst())
"""


def config_reference() -> str:
    """The whole page, in Markdown."""
    parts = [_HEAD]
    for group in Group:
        rows = [_row(setting) for setting in _all_known() if setting.group is group]
        parts.append(
            "\n".join(
                (
                    f"## {group.value}",
                    "",
                    "| setting | meaning | value | default |",
                    "| --- | --- | --- | --- |",
                    *rows,
                    "",
                )
            )
        )
    parts += [_own_policy(), _key_file(), _other_names()]
    return "\n".join(parts)


def _all_known() -> tuple[Setting, ...]:
    return (*known_settings(), *known_serve_settings())


def _row(setting: Setting) -> str:
    cells = (f"`{setting.name}`", setting.help, setting.expected, setting.default_shown)
    return "| " + " | ".join(cells) + " |"


def _key_file() -> str:
    rows = [f"| `{name}` | {note} |" for name, note in FIELDS.items()]
    return "\n".join(
        (
            "## Key file",
            "",
            "`jitney serve --api-key-file keys.yaml` reads the keys of its callers from a file. "
            "Each has a",
            "`name` and a secret; [api.md](api.md#keys) says how rates are counted.",
            "",
            "```yaml",
            EXAMPLE + "```",
            "",
            "| field | meaning |",
            "| --- | --- |",
            *rows,
            "",
        )
    )


def _own_policy() -> str:
    return "\n".join(
        (
            "## A policy of one's own",
            "",
            "`policy` is one of the words above, or an object with `rank(candidate)`, which orders "
            "those who wait:",
            "the smallest number is next, and of equal ones the older. From Python it is given as "
            "it is, from a file,",
            "the environment or a flag by its import path, `--policy my_package.my_module:"
            "LongestFirst`; a class is",
            "made without arguments. The module must be one that Python finds: installed, or in a "
            "folder that",
            "PYTHONPATH names.",
            "",
            "```python",
            EXAMPLE_POLICY + "```",
            "",
        )
    )


def _other_names() -> str:
    names = [word for word in WORDS if word.meaning is None]
    return "\n".join(
        (
            "## Words of other systems",
            "",
            "Words of other systems and of older documents are understood as well, in every place "
            "that a setting",
            "may stand in. In a file and in Python their case does not matter. These are other "
            "names:",
            "",
            "| word | setting | in the environment | from |",
            "| --- | --- | --- | --- |",
            *(
                f"| `{word.name}` | `{word.setting}` | `{variable_name(word.name)}` | "
                f"{word.origin} |"
                for word in names
            ),
            "",
            "These are put differently. What has no meaning here is refused:",
            "",
            "| word | value | stands for | from |",
            "| --- | --- | --- | --- |",
            *(row for word in WORDS if word.meaning for row in _meaning_rows(word, word.meaning)),
            "",
            "A word that is chosen from a list is understood in any case, with `-`, `_` or nothing "
            "between its",
            "parts, and in these spellings:",
            "",
            "| setting | value | stands for |",
            "| --- | --- | --- |",
            *(
                f"| `{setting}` | `{value}` | `{ours}` |"
                for setting, pairs in SYNONYMS.items()
                for value, ours in pairs
            ),
            "",
            "In a file the settings may stand within ThemisDB's tables, all of them or the inner "
            "ones. The tables",
            "choose nothing; `llamacpp` does not choose the backend.",
            "",
            "```yaml",
            *(f"{'  ' * depth}{table}:" for depth, table in enumerate(TABLES)),
            f"{'  ' * len(TABLES)}max_batch_size: 32",
            "```",
            "",
            "`examples/` has a file for each of the documents that these words come from.",
            "",
        )
    )


def _meaning_rows(word: Word, meaning: Meaning) -> list[str]:
    rows = [
        (_written(value), "what is always done" if ours is None else f"`{word.setting}: {ours}`")
        for value, ours in meaning.values
    ]
    if meaning.advice:
        rows.append(("any other" if meaning.values else "any", f"refused: {meaning.advice}"))
    return [f"| `{word.name}` | {value} | {stands} | {word.origin} |" for value, stands in rows]


def _written(value: object) -> str:
    return f"`{str(value).lower()}`"
