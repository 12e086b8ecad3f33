"""Writes the pages that are made from the source. Run by `make docs`."""

from pathlib import Path

from scripts.api_page import api_reference
from scripts.cli_page import cli_reference
from scripts.config_page import config_reference
from scripts.families_page import families_page
from scripts.records_page import records_reference

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "families.md": families_page,
    "reference/api.md": api_reference,
    "reference/cli.md": cli_reference,
    "reference/config.md": config_reference,
    "reference/records.md": records_reference,
}


def main() -> None:
    """Write each page and name it."""
    folder = ROOT / "docs"
    (folder / "reference").mkdir(parents=True, exist_ok=True)
    for name, made in PAGES.items():
        (folder / name).write_text(made(), encoding="utf-8")
        print(f"wrote {(folder / name).relative_to(ROOT)}")


if __name__ == "__main__":
    main()
