"""What the documents name is there."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_test_that_is_named_exists(document: Path) -> None:
    named = set(re.findall(r"`(test_\w+|Test[A-Z]\w+)`", document.read_text()))
    defined = {
        name
        for file in (ROOT / "tests").rglob("*.py")
        for name in re.findall(r"^ *(?:async )?(?:def|class) ([Tt]est\w+)", file.read_text(), re.M)
    }
    assert named <= defined


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_leads_to_a_file(document: Path) -> None:
    links = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []
