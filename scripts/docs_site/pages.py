"""The hooks of mkdocs: pages that are made from other files of the repository, links between all of them, and a check.

README.md is the home page, and CONTRIBUTING.md, CHANGELOG.md and examples/README.md have a page each. The API reference
comes from the headers and the Python package. If a page links to a source file, that file becomes a page, too. After
the build, each link and anchor of the site must exist. Otherwise there is a warning, and the build fails.
"""

from __future__ import annotations

import ast
import logging
import posixpath
import re
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from mkdocs.structure.files import File, InclusionLevel
from mkdocs.utils import get_relative_url

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), str(HERE.parent)]

import reference  # noqa: E402
from check_links import slug  # noqa: E402

log = logging.getLogger("mkdocs.hooks.ckptengine")

# Path in the repository: page of the site.
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "examples/README.md": "examples.md",
    "include/ckptengine/ckptengine.h": "reference/c.md",
    "include/ckptengine/engine.hpp": "reference/cpp.md",
}
# Page of the reference: its title, and the modules of the Python package whose public names it lists.
PYTHON = {
    "reference/python.md": ("Python", ["ckptengine"]),
    "reference/torch.md": ("PyTorch", ["ckptengine.torch", "ckptengine.torch.groups"]),
    "reference/storage.md": ("DCP and storage", ["ckptengine.dcp", "ckptengine.whole", "ckptengine.export"]),
    "reference/adapters.md": (
        "Framework adapters",
        [
            f"ckptengine.integrations.{name}"
            for name in ("accelerate", "transformers", "lightning", "torchtitan", "deepspeed", "megatron")
        ],
    ),
}
LINK = re.compile(r"(\[[^\]\n]*(?:\n[^\]\n]*)?\]\()([^)\s]+)(\))")
CODE = re.compile(r"^```.*?^```|`[^`\n]*`", re.M | re.S)
LANGUAGES = {".py": "python", ".sh": "bash", ".h": "c", ".hpp": "cpp", ".cpp": "cpp", ".yaml": "yaml", ".cu": "cuda"}


# ---- pages ----


def on_config(config):
    config.mdx_configs.setdefault("toc", {})["slugify"] = lambda text, _: slug(text)
    return config


def on_files(files, config):
    for path, page in PAGES.items():
        if path.endswith(".md"):
            files.append(File.generated(config, page, content=(ROOT / path).read_text()))
    xml = reference.run_doxygen(ROOT, ROOT / "build" / "docs-doxygen")
    files.append(File.generated(config, "reference/c.md", content=reference.c_page(xml)))
    files.append(File.generated(config, "reference/cpp.md", content=reference.cpp_page(xml)))
    for page, (title, modules) in PYTHON.items():
        files.append(File.generated(config, page, content=python_page(title, modules)))
    for name in ("style.css", "offline.js"):
        files.append(File.generated(config, name, content=(HERE / name).read_text()))
    config.extra_css = ["style.css"]
    texts = [(path_of(file), file.content_string) for file in files.documentation_pages()]
    for linked in sorted(set().union(*(linked_files(path, text) for path, text in texts))):
        page = source_page(linked)
        if (ROOT / linked).is_file():
            content = as_source(linked)
            files.append(File.generated(config, page, content=content, inclusion=InclusionLevel.NOT_IN_NAV))
    config.nav = complete(config.nav, {file.src_uri for file in files.documentation_pages()})
    return files


def complete(nav: list, pages: set[str]) -> list:
    """The navigation without pages that do not exist, and with those that it does not name."""
    named: set[str] = set()

    def existing(items: list) -> list:
        kept = []
        for item in items:
            for name, at in item.items():
                if isinstance(at, list):
                    kept += [{name: pages_at} for pages_at in [existing(at)] if pages_at]
                elif at in pages:
                    kept.append(item)
                else:
                    log.info("the navigation names %s, which does not exist", at)
                named.add(str(at))
        return kept

    shown = existing(nav)
    more = sorted(page for page in pages - named if not page.startswith("source/"))
    return shown + ([{"More": more}] if more else [])


def python_page(title: str, modules: list[str]) -> str:
    parts = [f"# {title}\n"]
    for module in modules:
        path = ROOT / "python" / Path(*module.split("."))
        tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())
        if len(modules) > 1:
            parts.append(f"## `{module}` {{ #{module}-module }}\n")
        parts.append(
            f"::: {module}\n    options:\n      show_root_heading: false\n      show_root_toc_entry: false\n"
            "      members: false\n"
        )
        level = 3 if len(modules) > 1 else 2
        for name in public_names(tree):
            parts.append(f"::: {module}.{name}\n    options:\n      heading_level: {level}\n")
    return "\n".join(parts)


def public_names(tree: ast.Module) -> list[str]:
    """`__all__` without modules, or else the public classes and functions."""
    modules = {
        alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and not node.module
        for alias in node.names
    }
    names = [
        name
        for node in ast.walk(tree)
        if isinstance(node, (ast.Assign, ast.AugAssign)) and "__all__" in ast.unparse(node).split("=")[0]
        for name in ast.literal_eval(node.value)
    ]
    if not names:
        names = [node.name for node in tree.body if isinstance(node, (ast.ClassDef, ast.FunctionDef))]
    return [name for name in names if not name.startswith("_") and name not in modules and name != "main"]


# ---- links and lists ----


def path_of(file: File) -> str:
    """The path in the repository of what a page was made from."""
    made = {page: path for path, page in PAGES.items()}
    return made.get(file.src_uri, f"docs/{file.src_uri}")


def source_page(path: str) -> str:
    return f"source/{path}.md"


def as_source(path: str) -> str:
    fence = "````"
    return f"# `{path}`\n\n{fence}{LANGUAGES.get(Path(path).suffix, 'text')}\n{(ROOT / path).read_text()}\n{fence}\n"


def target_of(path: str, link: str) -> tuple[str, str]:
    """Which file of the repository a link of `path` names, and which anchor in it."""
    name, _, anchor = link.partition("#")
    return (posixpath.normpath(posixpath.join(posixpath.dirname(path), name)) if name else path), anchor


def is_outside(link: str) -> bool:
    return bool(re.match(r"[a-z][a-z+.-]*:|#", link))


def links_of(text: str) -> list[str]:
    blank = CODE.sub(lambda code: " " * len(code[0]), text)
    return [link[2] for link in LINK.finditer(blank) if not is_outside(link[2])]


def linked_files(path: str, text: str) -> set[str]:
    """Files outside docs/ that become pages because a page names them."""
    found = {target_of(path, link)[0] for link in links_of(text)}
    return {name for name in found if not name.startswith("docs/") and name not in PAGES}


def page_of(path: str) -> str:
    return PAGES.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else source_page(path))


def on_page_markdown(markdown, page, **_):
    here = page.file.src_uri
    if here == "index.md":
        page.meta["hide"] = ["navigation"]
    if here.startswith(("reference/", "source/")):
        return markdown
    path = path_of(page.file)

    def rewritten(link: re.Match) -> str:
        if is_outside(link[2]):
            return link[0]
        target, anchor = target_of(path, link[2])
        uri = posixpath.relpath(page_of(target), posixpath.dirname(here) or ".")
        return f"{link[1]}{uri}{'#' + anchor if anchor else ''}{link[3]}"

    spans = [code.span() for code in CODE.finditer(markdown)]
    markdown = LINK.sub(
        lambda link: link[0] if any(begin < link.start(2) < end for begin, end in spans) else rewritten(link), markdown
    )
    return with_wide_lists(markdown)


def with_wide_lists(markdown: str) -> str:
    """GitHub's Markdown with lists as Python-Markdown wants them: with an empty line before, and four spaces deep."""
    lines, width, is_code, before = [], 0, False, ""
    for line in markdown.splitlines():
        indent = len(line) - len(line.lstrip())
        if line.startswith("```"):
            is_code, width = not is_code, 0
        item = re.match(r"([-*]|\d+\.) +", line)
        if not is_code:
            if item:
                if before.strip() and width == 0 and not before.startswith("#"):
                    lines.append("")
                width = len(item[0])
            elif line.strip() and indent == 0 and not before.strip():
                width = 0
            elif width and indent >= width:
                line = " " * (4 * (indent // width) + indent % width) + line.lstrip()
        lines.append(line)
        before = line
    return "\n".join(lines)


def on_page_content(html, page, files, **_):
    """In the reference, names of pages such as docs/jit.md become links."""
    if not page.file.src_uri.startswith("reference/"):
        return html

    names = re.compile(r"docs/([\w/]+\.md)")
    for name in sorted({name for name in names.findall(html) if files.get_file_from_path(name) is None}):
        log.warning("%s names docs/%s, and there is no such page", page.file.src_uri, name)

    def link(name: re.Match) -> str:
        target = files.get_file_from_path(name[1])
        if target is None:
            return name[0]
        return f'<a href="{target.url_relative_to(page.file)}">{target.page.title if target.page else name[1]}</a>'

    return names.sub(link, html)


def on_post_page(output, page, **_):
    """The theme's own script for this comes from another server."""
    own = get_relative_url("offline.js", page.url)
    return output.replace("https://unpkg.com/iframe-worker/shim", own)


# ---- the check ----


class Links(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        self.ids |= {found[key] for key in ("id", "name") if found.get(key)}
        self.links += [found[key] for key in ("href", "src") if found.get(key)]


def on_post_build(config, **_):
    site = Path(config.site_dir)
    pages = {}
    for path in site.rglob("*.html"):
        pages[path] = Links()
        pages[path].feed(path.read_text())
    for path, page in sorted(pages.items()):
        for link in sorted(set(page.links)):
            parts = urlsplit(link)
            if parts.scheme or parts.netloc or path.name == "404.html":
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchor = unquote(parts.fragment)
            if not target.exists():
                log.warning("%s: the link %s names no file", path.relative_to(site), link)
            elif anchor and target in pages and anchor not in pages[target].ids | {"__skip", "__top"}:
                log.warning("%s: the link %s names no heading", path.relative_to(site), link)
