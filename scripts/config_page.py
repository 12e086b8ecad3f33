"""The reference page of the settings, made from their definitions. Pure."""

from collections.abc import Iterable

from jitney.config.definitions import Group, variable_name
from jitney.config.foreign_names import FOREIGN_NAMES, SYNONYMS, TABLES, ForeignName
from jitney.config.forms import SWITCH
from jitney.config.keyfile import FIELDS
from jitney.config.settings import known_serve_settings, known_settings

_HEAD = """\
# Settings

Each setting has one name. It can be in a YAML or TOML file, in the environment and on the command
line, and it is an argument of `LLM`. Settings of the server are flags of `jitney serve` only.
A flag is stronger than the environment, the environment is stronger than the file, and the file is
stronger than the default.

- In a file the name is a key at the top: `max_num_seqs: 32`. `LLM(config="file.yaml")` reads the
  same file as `--config file.yaml`.
- In the environment it is upper case after `JITNEY_`: `JITNEY_MAX_NUM_SEQS=32`. An empty
  variable does not count.
- On the command line it is a flag: `--max-num-seqs 32`. A switch has two: `--backend-process` and
  `--no-backend-process`.
- If none is a value, write the word `none`.

These are errors: an unknown name, a value that cannot be read, a setting given twice in a file or
by two of its names, a combination that cannot work, and a setting that has no effect with the
chosen strategy or mix.
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

_OWN_POLICY = f"""\
## A policy of one's own

`policy` is one of the words above, or an object with `rank(candidate)`, which orders the waiting
requests: the smallest number is next, and of equal ones the older. In Python, give the object. In a
file, the environment or a flag, give its import path, as in
`--policy my_package.my_module:LongestFirst`; a class is called without arguments. Python must find
the module: install it, or name its folder in PYTHONPATH.

```python
{EXAMPLE_POLICY}```
"""

EXAMPLE_KEYS = """\
keys:
  - {name: search, key: a-secret-of-search, priority: high, requests_per_minute: 600}
  - name: nightly
    key_env: NIGHTLY_KEY
    tokens_per_minute: 100000
    queue_share: 0.25
"""

_KEY_FILE_HEAD = f"""\
## Key file

`jitney serve --api-key-file keys.yaml` reads the keys of its callers from a file. Each has a
`name` and a secret; [api.md](api.md#keys) says how rates are counted.

```yaml
{EXAMPLE_KEYS}```
"""

_WORDS_HEAD = """\
## Words of other systems

Words of other systems and of older documents work as well, everywhere. In a file and in Python
their case does not matter. These are other names:
"""

_SPELLINGS_HEAD = """\
A word from a list may be in upper or lower case, with `-`, `_` or nothing between its parts, and in
these spellings:
"""

_TABLES_HEAD = """\
In a file the settings may be inside ThemisDB's tables, all of them or the inner ones. The table
`llamacpp` is `backend: llamacpp`; the others choose nothing.
"""


def config_reference() -> str:
    """The whole page, in Markdown."""
    parts = [_HEAD]
    for group in Group:
        rows = [
            (f"`{each.name}`", each.help, each.form.expected, each.default_words)
            for each in (*known_settings(), *known_serve_settings())
            if each.group is group
        ]
        columns = ("setting", "meaning", "value", "default")
        parts += [f"## {group.value}\n", _table(columns, rows)]
    fields = [(f"`{name}`", each.help) for name, each in FIELDS.items()]
    parts += [_OWN_POLICY, _KEY_FILE_HEAD, _table(("field", "meaning"), fields), *_other_words()]
    return "\n".join(parts)


def _table(columns: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [columns, ("---",) * len(columns), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _other_words() -> list[str]:
    names = [
        (f"`{word.name}`", f"`{word.setting}`", f"`{variable_name(word.name)}`", word.origin)
        for word in FOREIGN_NAMES
        if word.form is None
    ]
    meanings = [row for word in FOREIGN_NAMES if word.form for row in _meaning_rows(word)]
    spellings = [
        (f"`{setting}`", f"`{value}`", f"`{ours}`")
        for setting, pairs in SYNONYMS.items()
        for value, ours in pairs
    ]
    nested = [f"{'  ' * depth}{table}:" for depth, table in enumerate(TABLES)]
    return [
        _WORDS_HEAD,
        _table(("word", "setting", "in the environment", "from"), names),
        "These have other values. A value without a meaning here is refused, or taken with a "
        "warning.\n`enabled: false` stands above what the same file says of `max_num_seqs`.\n",
        _table(("word", "value", "stands for", "from"), meanings),
        _SPELLINGS_HEAD,
        _table(("setting", "value", "stands for"), spellings),
        _TABLES_HEAD,
        "\n".join(("```yaml", *nested, f"{'  ' * len(TABLES)}max_batch_size: 32", "```\n")),
        "`examples/` has a file for each of the documents that these words come from.\n",
    ]


def _meaning_rows(word: ForeignName) -> list[tuple[str, ...]]:
    rows = [
        (f"`{str(value).lower()}`", ", ".join(f"`{name}: {ours}`" for name, ours in meant.items()))
        for value, meant in word.values
    ]
    others = "any other" if word.values else "any"
    if word.advice:
        rows.append((others, f"refused: {word.advice}"))
    elif word.note:
        rows.append((others, f"nothing, with a warning: {word.note}"))
    elif word.form is not SWITCH:
        rows.append((others, f"the same number of `{word.setting}`"))
    return [
        (f"`{word.name}`", value, stands or "what jitney always does", word.origin)
        for value, stands in rows
    ]
