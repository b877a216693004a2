"""`python -m reference`: writes the made pages of docs/reference."""

import asyncio
import sys
import tempfile
from pathlib import Path

from reference.live import exported, routes_page, series_page
from reference.pages import declared_pages

__all__ = ["main"]


def main() -> int:
    """Write the pages below the working directory."""
    root = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        found = asyncio.run(exported(Path(folder)))
    made = {
        **declared_pages(root),
        "routes.md": routes_page(found),
        "series.md": series_page(found),
    }
    for name, text in made.items():
        path = root / "docs" / "reference" / name
        path.write_text(text, encoding="utf-8")
        sys.stdout.write(f"{path}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
