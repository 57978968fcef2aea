"""The docs say what the code says."""

import re
import runpy
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ANSWER = re.compile(r"`(src/[\w/]+\.py)`, `(\w+)[\w.]*`")


def test_the_page_of_recipes_is_made_from_the_source() -> None:
    page = runpy.run_path(str(ROOT / "docs/recipes.py"))["page"]
    assert page() == (ROOT / "docs/recipes.md").read_text(encoding="utf-8"), "run `make docs`"


def test_the_quiz_has_ten_questions_each_with_one_file() -> None:
    quiz = (ROOT / "docs/quiz.md").read_text(encoding="utf-8")
    questions = re.split(r"\n(?=\d+\. )", quiz)[1:]
    assert len(questions) == 10
    for question in questions:
        answers = ANSWER.findall(question)
        assert len(answers) == 1, question
        path, name = answers[0]
        assert re.search(rf"^(class|def) {name}\b", (ROOT / path).read_text(encoding="utf-8"), re.M), name


@pytest.mark.parametrize("page", [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")], ids=lambda path: path.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8"))
    for link in links:
        assert (page.parent / link).exists(), f"{page.name} links to {link}"


def test_the_tests_that_the_readme_names_are_there() -> None:
    names = re.findall(r"`(tests/[\w/]+\.py)`", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert names
    for name in names:
        assert (ROOT / name).exists(), name
