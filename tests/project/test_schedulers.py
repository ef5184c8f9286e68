"""The examples for Airflow and Dagster: valid Python, and commands of the pipeline."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from delayed_queue.spark.pipeline.cli import build_parser
from tests.support.documents import DOCS, blocks

PAGE = DOCS / "operations" / "clusters.md"
# Neither is installed here; the page describes how they were run.
EXAMPLES = {"airflow": "airflow.sdk", "dagster": "dagster"}


def commands_of(tree: ast.Module) -> dict[str, list[str]]:
    (found,) = (
        each.value
        for each in tree.body
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "COMMANDS"
    )
    commands: dict[str, list[str]] = ast.literal_eval(found)
    return commands


@pytest.mark.parametrize("module", EXAMPLES.values(), ids=list(EXAMPLES))
def test_its_commands_are_those_of_the_pipeline(module: str) -> None:
    (block,) = (each for each in blocks(PAGE, "py") if f"from {module} import" in each.text)
    tree = ast.parse(block.text)
    compile(tree, str(block), "exec")
    commands = commands_of(tree)
    assert {"drain", "archive", "report"} <= commands.keys()
    for name, arguments in commands.items():
        assert name == arguments[0]
        options: Any = build_parser([name]).parse_args([*arguments, "--format", "json"])
        assert options.command == name
        # The command runs in a temporary directory.
        assert getattr(options, "quarantine", "/").startswith("/")
