"""Pages of the site that are not in this folder: what pages link to, and the API reference.

README is the first page. Other files of the repository are under ``repository/``, as listings if
they are no pages; links of all pages lead there.
"""

from __future__ import annotations

import re
from pathlib import Path
from posixpath import dirname, join, normpath, relpath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

_REPOSITORY = Path(__file__).parents[1]
_TARGET = re.compile(r'(?<=\]\()(?!\w+:)[^)#\s]+|(?<=src=")[^"]+')
_PACKAGE = re.compile(r"api/([\w.]+)\.md")
_ITEM = re.compile(r"^\d+\. .*(?:\n(?: {3}.*)?$)*", re.MULTILINE)
_ROLE = re.compile(r":\w+:<code>[.~]*")
_names: dict[str, str] = {}  # of the repository, by their place in the site


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the packages of the navigation, and all files that a page links to."""
    names = ["README.md", *(f"docs/{page.src_uri}" for page in files.documentation_pages())]
    for package in _PACKAGE.findall(str(config.nav)):
        content = f"# {package}\n\n::: {package}\n"
        files.append(File.generated(config, f"api/{package}.md", content=content))
    for name in names:
        place = _place(name)
        _names[place] = name
        if files.get_file_from_path(place) is None:
            files.append(File.generated(config, place, content=_content(name)))
        if name.endswith(".md"):
            targets = _TARGET.findall((_REPOSITORY / name).read_text("utf-8"))
            linked = {_file(name, target) for target in targets}
            names += sorted(file for file in linked - {None, *names} if file)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links lead to the places that files have in the site.

    What belongs to a numbered item is indented by three spaces; MkDocs wants four.
    """
    here = page.file.src_uri
    name = _names.get(here, "")

    def place(target: re.Match[str]) -> str:
        file = _file(name, target[0])
        return relpath(_place(file), dirname(here) or ".") if file else target[0]

    if not name.endswith(".md"):
        return markdown
    markdown = _ITEM.sub(lambda item: item[0].replace("\n   ", "\n    "), markdown)
    return _TARGET.sub(place, markdown)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Write names of docstrings without their roles, as `:meth:`."""
    return _ROLE.sub("<code>", html)


def _file(page: str, target: str) -> str | None:
    file = normpath(join(dirname(page), target))
    return file if (_REPOSITORY / file).is_file() else None


def _place(name: str) -> str:
    if name == "README.md":
        return "index.md"
    if name.startswith("docs/"):
        return name.removeprefix("docs/")
    return f"repository/{name}" if name.endswith(".md") else f"repository/{name}.md"


def _content(name: str) -> str:
    text = (_REPOSITORY / name).read_text("utf-8")
    if name.endswith(".md"):
        return text
    return f"# `{name}`\n\n````{Path(name).suffix[1:]}\n{text}````\n"
