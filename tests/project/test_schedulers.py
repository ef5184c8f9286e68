"""The example for Airflow: valid Python, and commands of the pipeline."""

from __future__ import annotations

import ast
from typing import Any

from delayed_queue.spark.pipeline.cli import build_parser
from tests.support.documents import DOCS, blocks

PAGE = DOCS / "operations" / "clusters.md"


def test_its_commands_are_those_of_the_pipeline() -> None:
    (block,) = (each for each in blocks(PAGE, "py") if "from airflow.sdk import" in each.text)
    tree = ast.parse(block.text)
    compile(tree, str(block), "exec")
    (found,) = (
        each.value
        for each in tree.body
        if isinstance(each, ast.Assign) and ast.unparse(each.targets[0]) == "COMMANDS"
    )
    commands: dict[str, list[str]] = ast.literal_eval(found)
    assert {"drain", "archive", "report"} <= commands.keys()
    for name, arguments in commands.items():
        assert name == arguments[0]
        options: Any = build_parser([name]).parse_args([*arguments, "--format", "json"])
        assert options.command == name
        # The command runs in a temporary directory.
        assert getattr(options, "quarantine", "/").startswith("/")
