"""What a newcomer sees first."""

from __future__ import annotations

from pages import ROOT, blocks, shell_lines

README = ROOT / "README.md"


def test_the_hello_world_of_the_readme_is_five_lines() -> None:
    [hello, *_] = [block for block in blocks(README) if block.language == "python"]
    assert len(hello.text.splitlines()) == 5
    assert "scheduler.run()" in hello.text


def test_the_readme_leads_from_a_checkout_to_the_running_hello_world() -> None:
    lines = shell_lines(README)
    steps = ["python3 -m venv .venv", ". .venv/bin/activate", "pip install .", "python hello.py"]
    assert [line for line in lines if line in steps] == steps
