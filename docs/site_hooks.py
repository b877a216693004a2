"""MkDocs hooks: pages that live at the root of the repository, or beside what they describe.

They are shown on the site under `project/`; links to them, and from them, are turned around. A
link to a file that is no page (a manifest, a value file) stays as its path in words.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "project/readme.md",
    "ARCHITECTURE.md": "project/architecture.md",
    "SCOPE.md": "project/scope.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "examples/README.md": "project/examples.md",
    **{
        f"examples/{name}/README.md": f"project/examples-{name}.md"
        for name in ("hami", "koordinator", "metax", "mixed", "qgpu")
    },
}
"""Path in the repository to path on the site."""
LEFT_OUT = {"decisions/0000-template.md"}
"""No pages of the site; a link to one stays as its path."""
_LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")


PARTS = {
    "how-to": "Operate",
    "reference": "Reference",
    "from": "Coming from",
    "compatibility": "Coming from",
    "decisions": "Design",
    "design": "Design",
    "sources": "Design",
}
"""Folder to the part of the navigation; other pages belong to `Measured`."""


FOUND: dict[str, float] = {
    "how-to/": 4,
    "faq.md": 4,
    "quick-start.md": 2,
    "from/": 2,
    "reference/": 1.5,
    "decisions/": 0.2,
    "design/": 0.2,
    "sources/": 0.2,
    "conformance": 0.2,
    "project/": 0.2,
}
"""Beginning of a page's path to its weight in the search: what readers do comes before why it is so."""


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put pages that have no place of their own at the end of their part, by their headings."""
    known = str(config.nav)
    folder = Path(config.docs_dir)
    parts = {name: items for part in config.nav for name, items in part.items()}
    for page in sorted(folder.rglob("*.md")):
        path = page.relative_to(folder).as_posix()
        if f"'{path}'" not in known and path not in LEFT_OUT:
            parts[PARTS.get(path.split("/")[0], "Measured")].append(path)
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages from outside of docs/."""
    for source, target in PAGES.items():
        file = File.generated(config, target, content=(ROOT / source).read_text("utf-8"))
        if target not in str(config.nav):
            file.inclusion = file.inclusion.NOT_IN_NAV
        files.append(file)
    return files


def on_post_page(output: str, **_: object) -> str:
    """Say what the theme leaves out for those who do not see the page: the name of its search, and that a corner heads nothing."""
    named = output.replace('class="md-search" ', 'class="md-search" aria-label="Search" ')
    return named.replace("<th></th>", "<td></td>")


def on_post_template(output_content: str, **_: object) -> str:
    """The same of pages that no text stands behind, such as the one for 404."""
    return on_post_page(output_content)


def on_page_markdown(markdown: str, *, page: Page, **_: object) -> str:
    """Turn links around; `page` tells from where. And weigh the page in the search."""
    shown = page.file.src_uri
    for path, weight in FOUND.items():
        if shown.startswith(path):
            page.meta.setdefault("search", {"boost": weight})
    source = {target: source for source, target in PAGES.items()}.get(shown, f"docs/{shown}")
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.DOTALL | re.MULTILINE)
    return "".join(
        part if part.startswith("```") else _turned(part, source, shown) for part in parts
    )


def _turned(text: str, source: str, shown: str) -> str:
    def turned(match: re.Match[str]) -> str:
        mark, words, link = match.groups()
        path, _, anchor = link.partition("#")
        if not path or "://" in path:
            return match[0]
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), path))
        if target in PAGES:
            target = PAGES[target]
        elif target.startswith("docs/"):
            target = target.removeprefix("docs/")
            if target in LEFT_OUT:
                return f"{words} (`docs/{target}`)"
        else:
            return f"{words} (`{target}`)"
        relative = posixpath.relpath(target, posixpath.dirname(shown) or ".")
        return f"{mark}[{words}]({relative}{'#' + anchor if anchor else ''})"

    return _LINK.sub(turned, text)
