"""Writes the pages that are made from the source. Run by `make docs`."""

from pathlib import Path

from jitney.config import config_reference

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Write each page and name it."""
    page = ROOT / "docs" / "reference" / "config.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(config_reference(), encoding="utf-8")
    print(f"wrote {page.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
