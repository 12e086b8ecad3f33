"""`python -m scripts.count_lines`: lines of code by room, without comments, docstrings and blanks.

Lines, settings and minutes are a budget: this prints the lines and the settings.
"""

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

from jitney.config import known_serve_settings, known_settings

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("jitney", "jitney_cluster", "jitney_lab")
OTHERS = ("tests", "benchmarks", "scripts", "examples")
SILENT = (
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
)


def code_lines(source: str) -> int:
    """The lines of a file that hold code."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    lines = {
        line
        for token in tokens
        if token.type not in SILENT
        for line in range(token.start[0], token.end[0] + 1)
    }
    return len(lines - docstring_lines(ast.parse(source)))


def docstring_lines(module: ast.Module) -> set[int]:
    """The lines of texts that stand alone: docstrings, of constants too."""
    return {
        line
        for node in ast.walk(module)
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }


def counts(folder: Path) -> Counter[str]:
    """Lines of code by the first folder below this one; files in it itself count as `.`."""
    found = Counter[str]()
    for file in sorted(folder.rglob("*.py")):
        inside = file.relative_to(folder).parts
        found[inside[0] if len(inside) > 1 else "."] += code_lines(file.read_text(encoding="utf-8"))
    return found


def main() -> None:
    """Print a line for each room, and for each package."""
    for name in (*(f"src/{package}" for package in PACKAGES), *OTHERS):
        rooms = counts(ROOT / name)
        print(f"{name:<24} {sum(rooms.values()):7,}")
        for room, lines in rooms.most_common():
            print(f"    {room:<20} {lines:7,}")
    print(f"{'settings':<24} {len(known_settings()) + len(known_serve_settings()):7,}")


if __name__ == "__main__":
    main()
