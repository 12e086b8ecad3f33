"""Draws which packages import which, as SVG: layers from top to bottom, a square for each file.

Usage, from the root of the repository:
.venv/bin/python -m scripts.draw_imports docs/images/imports.svg [ROOT]

Packages stand in the order of the layers in pyproject.toml. A line is as dark as there are imports
between two packages; one that goes up would be red. ROOT is another checkout, to draw it alike.
"""

import ast
import re
import sys
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

WIDTH = 1240
ROW_GAP = 46
PADDING = 10
SQUARE_GAP = 3
LINES_PER_PIXEL = 1.6
"""Code lines to the square pixel of a file."""


@dataclass
class Box:
    """One package: its files with their lengths, and where it is drawn."""

    name: str
    layer: int
    files: dict[str, int] = field(default_factory=dict)
    x: float = 0.0
    y: float = 0.0
    width: float = 0.0
    height: float = 0.0

    @property
    def lines(self) -> int:
        """Lines of all files."""
        return sum(self.files.values())


def layers_of(root: Path) -> list[list[str]]:
    """Names of modules and packages, the highest layer first."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    contract = project["tool"]["importlinter"]["contracts"][1]
    return [re.findall(r"jitney\.(\w+)", layer) for layer in contract["layers"]]


def package_of(module: str) -> str:
    """The package that a module is drawn in: `server.openai` for `jitney.server.openai.bodies`."""
    parts = module.split(".")[1:]
    return ".".join(parts[:-1][:2]) or parts[0]


def read(root: Path) -> tuple[dict[str, Box], Counter[tuple[str, str]]]:
    """The packages, and how often one imports another."""
    source = root / "src"
    rank = {name: row for row, names in enumerate(layers_of(root)) for name in names}
    files = {
        file.relative_to(source).with_suffix("").as_posix().replace("/", "."): file
        for file in sorted((source / "jitney").rglob("*.py"))
        if not file.name.startswith("__")
    }
    boxes: dict[str, Box] = {}
    arrows: Counter[tuple[str, str]] = Counter()
    for module, file in files.items():
        name = package_of(module)
        text = file.read_text(encoding="utf-8")
        box = boxes.setdefault(name, Box(name, rank.get(name.split(".")[0], len(rank))))
        box.files[module] = sum(1 for line in text.splitlines() if line.strip())
        for target in imported(ast.parse(text), files):
            if package_of(target) != name:
                arrows[name, package_of(target)] += 1
    return boxes, arrows


def imported(tree: ast.Module, files: dict[str, Path]) -> set[str]:
    """Modules of ours that a module imports."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            found |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return found & files.keys()


def lay_out(boxes: dict[str, Box]) -> float:
    """Give every package its place; the value is the height of the picture."""
    y = 40.0
    for layer in sorted({box.layer for box in boxes.values()}):
        row = [box for box in boxes.values() if box.layer == layer]
        for box in row:
            side = (box.lines / LINES_PER_PIXEL) ** 0.5
            box.width = max(side * 1.7, 7.2 * len(box.name)) + 2 * PADDING
            box.height = len(squares(box)) and max(y for _, y, _, _ in squares(box)) + 2 * PADDING
        taken = sum(box.width for box in row) + 14 * (len(row) - 1)
        x = (WIDTH - taken) / 2
        for box in row:
            box.x, box.y = x, y
            x += box.width + 14
        y += max(box.height for box in row) + ROW_GAP
    return y


def squares(box: Box) -> list[tuple[float, float, float, str]]:
    """Each file as a square: left, bottom, side and name, relative to the package's corner."""
    placed: list[tuple[float, float, float, str]] = []
    x, y, deepest = 0.0, 20.0, 0.0
    for name, lines in sorted(box.files.items(), key=lambda each: -each[1]):
        side = max(5.0, (lines / LINES_PER_PIXEL) ** 0.5)
        if x and x + side > box.width - 2 * PADDING:
            x, y, deepest = 0.0, y + deepest + SQUARE_GAP, 0.0
        placed.append((x, y + side, side, name))
        x, deepest = x + side + SQUARE_GAP, max(deepest, side)
    return placed


def draw(boxes: dict[str, Box], arrows: Counter[tuple[str, str]], height: float) -> str:
    """The picture as SVG."""
    files = sum(len(box.files) for box in boxes.values())
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height:.0f}" '
        'font-family="sans-serif" font-size="13">',
        f'<rect width="{WIDTH}" height="{height:.0f}" fill="white"/>',
        f'<text x="16" y="24" fill="#555">{files} files in {len(boxes)} packages; '
        "a square is a file, a line is imports, higher imports lower</text>",
    ]
    parts += [
        line(boxes[one], boxes[other], count)
        for (one, other), count in sorted(arrows.items())
        if one in boxes and other in boxes
    ]
    for box in boxes.values():
        parts += drawn(box)
    return "\n".join([*parts, "</svg>\n"])


def line(one: Box, other: Box, count: int) -> str:
    """The imports from one package to another."""
    upward = one.layer > other.layer
    beside = one.layer == other.layer
    x1, y1 = one.x + one.width / 2, one.y + (0 if upward else one.height)
    x2, y2 = other.x + other.width / 2, other.y + (other.height if upward else 0)
    if beside:
        y1, y2 = one.y + one.height, other.y + other.height
    bend = 30 if beside else (y2 - y1) / 2
    colour = "#c62828" if upward else "#37474f"
    opacity = min(0.12 + count / 60, 0.85)
    return (
        f'<path d="M{x1:.0f} {y1:.0f} C{x1:.0f} {y1 + bend:.0f} {x2:.0f} '
        f'{(y2 + 30) if beside else (y2 - bend):.0f} {x2:.0f} {y2:.0f}" fill="none" '
        f'stroke="{colour}" stroke-width="{min(1 + count / 12, 5):.1f}" opacity="{opacity:.2f}"/>'
    )


def drawn(box: Box) -> list[str]:
    """One package: its frame, its name and its files."""
    parts = [
        f'<rect x="{box.x:.0f}" y="{box.y:.0f}" width="{box.width:.0f}" height="{box.height:.0f}" '
        'rx="6" fill="#fafafa" stroke="#90a4ae"/>',
        f'<text x="{box.x + PADDING:.0f}" y="{box.y + 19:.0f}">{box.name}</text>',
    ]
    for x, bottom, side, name in squares(box):
        parts.append(
            f'<rect x="{box.x + PADDING + x:.1f}" y="{box.y + PADDING + bottom - side:.1f}" '
            f'width="{side:.1f}" height="{side:.1f}" fill="#ffcc80"><title>{name}</title></rect>'
        )
    return parts


def main(arguments: list[str]) -> None:
    """Draw a checkout into a file."""
    target, *others = arguments
    boxes, arrows = read(Path(others[0]) if others else Path())
    Path(target).write_text(draw(boxes, arrows, lay_out(boxes)), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
