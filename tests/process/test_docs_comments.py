"""The filter through which doxygen reads the headers describes what the comments describe."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "docs_site" / "comments.py"


def converted(tmp_path, text):
    header = tmp_path / "header.h"
    header.write_text(text)
    return subprocess.run([sys.executable, SCRIPT, header], check=True, capture_output=True, text=True).stdout


def test_a_comment_describes_what_follows_it_or_what_stands_before_it(tmp_path):
    text = "/* The header. */\n\n/* Adds\n * numbers. */\nint add(int a); /* a <number> */\n"
    assert converted(tmp_path, text).split("\n\n", 1) == [
        "/** @file\nThe header.\n*/",
        "/**\nAdds\nnumbers.\n*/\nint add(int a); /**< a \\<number\\> */\n\n",
    ]


def test_indented_lines_become_code_and_texts_in_quotes_stay(tmp_path):
    text = '// The header:\n//\n//   f("// no comment");\n//\n// Ends.\nconst char* t = "// no comment";\n'
    assert converted(tmp_path, text) == (
        '/** @file\nThe header:\n\n```\n  f("// no comment");\n\n```\nEnds.\n*/\n\nconst char* t = "// no comment";\n\n'
    )


def test_comments_that_only_name_what_ends_are_left_out(tmp_path):
    text = "// The header.\n}  // namespace a\n#endif  // HEADER\n"
    assert "namespace" not in converted(tmp_path, text) and "HEADER" not in converted(tmp_path, text)
