"""The settings for people: the reference page, made from the definitions. Pure; any thread."""

from jitney.config.forms import Size, size_text
from jitney.config.keyfile import EXAMPLE, FIELDS
from jitney.config.known import Known, variable_name
from jitney.config.options import Group
from jitney.config.serving import known_serve_settings
from jitney.config.settings import known_settings

_HEAD = """\
# Settings

Each setting has one name. It can stand in a YAML or TOML file, in the environment and on the
command line, and it is an argument of `LLM`; those of the server are flags of `jitney serve` only.
A flag is stronger than the environment, the environment is stronger than the file, and the file is
stronger than the default.

- In a file the name is a key at the top: `max_num_seqs: 32`.
- In the environment it is upper case behind `JITNEY_`: `JITNEY_MAX_NUM_SEQS=32`. An empty
  variable is not given.
- On the command line it is a flag: `--max-num-seqs 32`. A switch has two: `--backend-process` and
  `--no-backend-process`.
- Where none is a value, the word `none` stands for it.

An unknown name, a value that cannot be read, a setting given twice in one place, a combination that
cannot work and a setting that the chosen strategy or mix has no use for are errors.
`jitney config show` says where each value came from.

This page is made from the source by `make docs`.
"""


def default_text(known: Known) -> str:
    """The default of a setting, in words or as it would be written."""
    if known.option.default_text is not None:
        return known.option.default_text
    if known.default is None:
        return "none"
    if isinstance(known.default, bool):
        return str(known.default).lower()
    if isinstance(known.option.form, Size) and isinstance(known.default, int):
        return size_text(known.default)
    if isinstance(known.default, float):
        return f"{known.default:g}"
    return str(known.default)


def config_reference() -> str:
    """The whole page, in Markdown."""
    parts = [_HEAD]
    for group in Group:
        rows = [_row(known) for known in _all_known() if known.option.group is group]
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
    parts += [_key_file(), _other_names()]
    return "\n".join(parts)


def _all_known() -> tuple[Known, ...]:
    return (*known_settings(), *known_serve_settings())


def _row(known: Known) -> str:
    cells = (f"`{known.name}`", known.option.help, known.expected, default_text(known))
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


def _other_names() -> str:
    rows = [
        f"| `{alias}` | `{known.name}` | `{variable_name(alias)}` |"
        for known in _all_known()
        for alias in known.option.aliases
    ]
    return "\n".join(
        (
            "## Other names",
            "",
            "Names of other systems and of older documents that are understood as well.",
            "",
            "| other name | setting | in the environment |",
            "| --- | --- | --- |",
            *rows,
            "",
        )
    )
