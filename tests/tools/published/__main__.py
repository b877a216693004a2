"""`python -m published [FOLDER]`: writes the pages of conformance, default below docs.

Without FOLDER, the captures in README.md are brought up to date as well.
"""

import sys
from pathlib import Path

from published.captures import refreshed
from published.case import Verdict
from published.cases import CASES
from published.page import pages
from published.program import run, verdict

__all__ = ["main"]


def main(arguments: list[str]) -> int:
    """Write the pages; 1 when a case fails."""
    outputs = {case.id: run(case) for case in CASES}
    folder = Path(arguments[0] if arguments else "docs")
    for name, text in pages(outputs).items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    if not arguments:
        readme = Path("README.md")
        readme.write_text(refreshed(readme.read_text(encoding="utf-8")), encoding="utf-8")
    failed = [case.id for case in CASES if verdict(case, outputs[case.id]) is Verdict.FAIL]
    passed = len(CASES) - len(failed)
    sys.stdout.write(f"{folder}/conformance.md: {passed} of {len(CASES)} cases pass\n")
    sys.stdout.writelines(f"  FAIL {name}\n" for name in failed)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
