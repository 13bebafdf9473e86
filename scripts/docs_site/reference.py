"""Writes the pages of the C and C++ API in Markdown, from what doxygen finds in the headers of include/ckptengine.

Everything appears in the order of the header. Functions that follow each other without a comment between them share
the comment of the first one.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

HERE = Path(__file__).resolve().parent


def run_doxygen(root: Path, output: Path) -> Path:
    """Returns the folder of doxygen's XML. A warning of doxygen is an error."""
    output.mkdir(parents=True, exist_ok=True)
    settings = [(HERE / "Doxyfile").read_text(), f"INPUT = include/ckptengine\nOUTPUT_DIRECTORY = {output}"]
    run = subprocess.run(
        ["doxygen", "-"], cwd=root, input="\n".join(settings), capture_output=True, text=True, check=False
    )
    if run.returncode or run.stderr.strip():
        raise RuntimeError(f"doxygen cannot read include/ckptengine: {run.stderr.strip()}")
    return output / "xml"


# ---- what doxygen says, in Markdown ----


BLOCKS = {"itemizedlist", "orderedlist", "programlisting", "verbatim", "para", "simplesect"}
SIGNS = {"ndash": "--", "mdash": "---", "nonbreakablespace": " "}


def escape(text: str | None) -> str:
    return re.sub(r"([*_\[\]])", r"\\\1", text or "").replace("<", "&lt;")


def inline(element: Element) -> str:
    """The text of an element that is within a paragraph."""
    if element.tag in ("computeroutput", "ref"):
        return f"`{''.join(element.itertext())}`"
    if element.tag in SIGNS:
        return SIGNS[element.tag]
    text = escape(element.text) + "".join(inline(child) + escape(child.tail) for child in element)
    return f"[{text}]({element.get('url')})" if element.tag == "ulink" else text


def blocks(element: Element) -> Iterator[str]:
    """The paragraphs, lists and code in an element, in order. A paragraph of doxygen may contain lists and code."""
    text = escape(element.text)
    for child in element:
        if child.tag in BLOCKS:
            if text.strip():
                yield text.strip()
            text = ""
            yield from block(child)
        else:
            text += inline(child)
        text += escape(child.tail)
    if text.strip():
        yield text.strip()


def block(element: Element) -> Iterator[str]:
    if element.tag in ("itemizedlist", "orderedlist"):
        yield "\n".join("- " + " ".join(blocks(item)) for item in element.iter("listitem"))
    elif element.tag == "programlisting":
        code = "\n".join(
            "".join(" " if part.tag == "sp" else part.text or "" for part in with_tails(line))
            for line in element.iter("codeline")
        )
        yield fenced(code, "cpp" if ";" in code else "json")
    elif element.tag == "verbatim":
        yield fenced(element.text or "", "cpp")
    else:
        yield from blocks(element)


def with_tails(element: Element) -> Iterator[Element]:
    """All text of an element in order, as elements."""
    for part in element.iter():
        yield part
        if part is not element and part.tail:
            tail = Element("text")
            tail.text = part.tail
            yield tail


def fenced(code: str, language: str) -> str:
    lines = code.rstrip().splitlines()
    least = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
    return f"```{language}\n" + "\n".join(line[least:] for line in lines) + "\n```"


def described(element: Element) -> str:
    found = [text for tag in ("briefdescription", "detaileddescription") for text in blocks(element.find(tag))]
    return "\n\n".join(found)


def in_cell(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def table(heads: list[str], rows: Iterable[list[str]]) -> str:
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(in_cell(cell) for cell in line) + " |" for line in lines)


def type_of(member: Element) -> str:
    return "".join(member.find("type").itertext()).strip()


# ---- functions ----


@dataclass
class Entry:
    """Functions that share a heading."""

    names: list[str]
    signatures: list[str]
    text: str
    sections: list[str] = field(default_factory=list)


def tidy(declaration: str) -> str:
    """As clang-format writes it."""
    return re.sub(r" ([*&])", r"\1", declaration).replace("< ", "<").replace(" >", ">")


def signature(member: Element) -> str:
    """The declaration, over several lines if it is long."""
    name = member.findtext("name")
    before = [word for word, key in (("explicit", "explicit"), ("static", "static")) if member.get(key) == "yes"]
    start = tidy(" ".join(filter(None, [*before, type_of(member), name])))
    arguments = []
    for parameter in member.findall("param"):
        words = f"{''.join(parameter.find('type').itertext())} {parameter.findtext('declname') or ''}".strip()
        words = tidy(words)
        default = parameter.find("defval")
        arguments.append(words + (f" = {''.join(default.itertext())}" if default is not None else ""))
    end = (" const" if member.get("const") == "yes" else "") + ";"
    line = f"{start}({', '.join(arguments)}){end}"
    if len(line) <= 100:
        return line
    return f"{start}(\n    " + ",\n    ".join(arguments) + f"){end}"


def entries(members: Iterable[Element]) -> list[Entry]:
    found: list[Entry] = []
    for member in members:
        name, text = member.findtext("name"), described(member)
        is_new = text or not found[-1:] or not found[-1].text or name.startswith("operator")
        if found and (name == found[-1].names[-1] or not is_new):
            found[-1].names += [name] * (name not in found[-1].names)
            found[-1].signatures.append(signature(member))
            found[-1].text = "\n\n".join(filter(None, [found[-1].text, text]))
        else:
            found.append(Entry([name], [signature(member)], text))
    return found


def shown(entry: Entry, level: int, language: str, scope: str = "") -> str:
    heading = ", ".join(f"`{name}()`" for name in entry.names)
    first, *more = [f"{scope}{name}".replace(" ", "-") for name in entry.names]
    parts = [f"{'#' * level} {heading} {{ #{first} }}", *(f'<a id="{anchor}"></a>' for anchor in more)]
    return "\n\n".join([*parts, f"```{language}\n" + "\n".join(entry.signatures) + "\n```", entry.text])


# ---- pages ----


def compounds(xml: Path, *kinds: str) -> list[Element]:
    index = ElementTree.parse(xml / "index.xml").getroot()
    names = [entry.get("refid") for entry in index if entry.get("kind") in kinds]
    return [ElementTree.parse(xml / f"{name}.xml").getroot().find("compounddef") for name in names]


def line_of(element: Element) -> int:
    return int(element.find("location").get("line"))


def file_of(element: Element) -> str:
    return Path(element.find("location").get("file")).name


def file_named(xml: Path, name: str) -> Element:
    return next(file for file in compounds(xml, "file") if file.findtext("compoundname") == name)


def c_page(xml: Path) -> str:
    header = file_named(xml, "ckptengine.h")
    members = sorted(header.iter("memberdef"), key=line_of)
    kinds = {
        kind: [member for member in members if member.get("kind") == kind]
        for kind in ("function", "enum", "typedef", "define")
    }
    structs = structs_of(xml)
    parts = ["# C", "The header `ckptengine/ckptengine.h`.", described(header), "## Functions"]
    parts += [shown(entry, 3, "c") for entry in entries(kinds["function"])]
    types = [(line_of(struct), struct_section(struct)) for struct in structs]
    types += [(line_of(enum), enum_section(enum)) for enum in kinds["enum"]]
    types += [(line_of(typedef), typedef_section(typedef)) for typedef in callbacks(kinds["typedef"])]
    parts += ["## Types", *(section for _, section in sorted(types))]
    rows = [[f"`{macro.findtext('name')}`", described(macro)] for macro in kinds["define"] if described(macro)]
    parts += ["## Macros", "Each struct with `struct_size` has a macro `CKPT_..._INIT`."]
    parts.append(table(["macro", "meaning"], rows))
    return linked("\n\n".join(parts), anchors(header, structs))


def callbacks(typedefs: list[Element]) -> list[Element]:
    """Type definitions that are no second name of a struct or enum of this header, except the opaque engine."""
    return [
        typedef
        for typedef in typedefs
        if described(typedef)
        and (not re.match(r"(struct|enum) ", type_of(typedef)) or typedef.findtext("name") == "ckpt_engine")
    ]


def anchors(header: Element, structs: list[Element], page: str = "") -> dict[str, str]:
    """Where each name of the C API is explained."""
    found = {}
    for member in header.iter("memberdef"):
        name, kind = member.findtext("name"), member.get("kind")
        if kind in ("function", "enum") or (kind == "typedef" and described(member)):
            found[name] = f"{page}#{name}"
        for value in member.findall("enumvalue"):
            found[value.findtext("name")] = f"{page}#{name}"
    return found | {name: f"{page}#{name}" for name in (struct.findtext("compoundname") for struct in structs)}


def structs_of(xml: Path) -> list[Element]:
    return [
        one
        for one in compounds(xml, "struct")
        if one.findtext("compoundname").startswith("ckpt_") and list(one.iter("memberdef"))
    ]


def enum_section(enum: Element) -> str:
    name = enum.findtext("name")
    rows = [
        [f"`{value.findtext('name')}`", (value.findtext("initializer") or "").lstrip("= "), described(value)]
        for value in enum.findall("enumvalue")
    ]
    return f"### `{name}` {{ #{name} }}\n\n{described(enum)}\n\n{table(['value', 'number', 'meaning'], rows)}"


def struct_section(struct: Element) -> str:
    name = struct.findtext("compoundname")
    rows = [
        [
            f"`{tidy(type_of(member))}`",
            f"`{member.findtext('name')}{member.findtext('argsstring') or ''}`",
            described(member),
        ]
        for member in struct.iter("memberdef")
    ]
    return f"### `{name}` {{ #{name} }}\n\n{described(struct)}\n\n{table(['type', 'member', 'meaning'], rows)}"


def typedef_section(typedef: Element) -> str:
    name = typedef.findtext("name")
    return f"### `{name}` {{ #{name} }}\n\n```c\n{typedef.findtext('definition')};\n```\n\n{described(typedef)}"


def linked(page: str, where: dict[str, str]) -> str:
    """Names of the reference in the text become links, except in headings, code and the first cell of a row."""
    longest_first = "|".join(sorted(map(re.escape, where), key=len, reverse=True))
    names = re.compile(rf"(?<![\w#`/])`?({longest_first})(\(\))?`?(?![\w`])")
    lines, is_code = [], False
    for line in page.replace("\\_", "_").splitlines():
        is_code ^= line.startswith("```")
        if not is_code and not line.startswith(("#", "```", "<a ")):
            first = re.match(r"\| `\w+`|", line)[0]
            line = first + names.sub(lambda name: f"[`{name[1]}{name[2] or ''}`]({where[name[1]]})", line[len(first) :])
        lines.append(line)
    return "\n".join(lines) + "\n"


def cpp_page(xml: Path) -> str:
    header = file_named(xml, "engine.hpp")
    found = compounds(xml, "class", "struct")
    named = {one.findtext("compoundname").split("::")[-1]: one for one in found if file_of(one) == "engine.hpp"}
    classes = sorted(named.items(), key=lambda one: (one[0] != "Engine", line_of(one[1])))
    parts = ["# C++", "The header `ckptengine/engine.hpp`, namespace `ckpt`.", described(header)]
    for name, one in classes:
        members = [member for member in one.iter("memberdef") if member.get("prot") == "public"]
        parts += [f"## `{name}` {{ #{name} }}", described(one)]
        functions = [m for m in members if m.get("kind") == "function" and not is_special(m)]
        rows = [
            [f"`{type_of(member)}`", f"`{member.findtext('name')}`", described(member)]
            for member in members
            if member.get("kind") == "variable"
        ]
        parts += [table(["type", "member", "meaning"], rows)] * bool(rows)
        parts += [shown(entry, 3, "cpp", f"{name}.") for entry in entries(sorted(functions, key=line_of))]
    return linked("\n\n".join(parts), anchors(file_named(xml, "ckptengine.h"), structs_of(xml), "c.md"))


def is_special(member: Element) -> bool:
    """Copying and moving: nobody calls them by name."""
    arguments = member.findtext("argsstring") or ""
    if member.findtext("name").startswith(("operator=", "~")) and not described(member):
        return True
    return "=delete" in arguments.replace(" ", "") or "&&" in arguments
