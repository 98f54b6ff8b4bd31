"""The console examples of README and docs print what they say they print."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCKS = [
    pytest.param(*block, id=f"{page.name}: {block[0][:60]}")
    for page in PAGES
    for block in re.findall(r"^```console\n\$ (.*?[^\\])\n(.*?)^```$", page.read_text(encoding="utf-8"), re.S | re.M)
]


@pytest.mark.parametrize(("command", "shown"), BLOCKS)
def test_an_example_prints_what_the_page_shows(command: str, shown: str) -> None:
    """A line of ``...`` stands for any lines."""
    words = shlex.split(command.replace("\\\n", " "))
    assert words[0] == "python"
    printed = subprocess.run([sys.executable, *words[1:]], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    parts = [re.escape(clean(part)) for part in re.split(r"^\.\.\.\n", shown, flags=re.M)]
    assert re.fullmatch("(?:.*\n)*?".join(parts), clean(printed)), printed


def clean(text: str) -> str:
    """Without spaces at the ends of lines, which tables fill up."""
    return re.sub(r" +$", "", text, flags=re.M)
