"""No module of the workers imports another that imports it, not even within a function or for types."""

import ast
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

WORKER = Path(__file__).parents[1]


def modules() -> dict[str, Path]:
    paths = [path for package in WORKER.glob("hone_*") for path in package.rglob("*.py")]
    return {".".join(path.relative_to(WORKER).with_suffix("").parts).removesuffix(".__init__"): path for path in paths}


def imported(name: str, path: Path) -> Iterator[str]:
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            origin = ".".join([*above, *([node.module] if node.module else [])])
            yield origin
            yield from (f"{origin}.{alias.name}" for alias in node.names)


def test_imports_have_no_cycle() -> None:
    found = modules()
    graph = {name: {each for each in imported(name, path) if each in found} - {name} for name, path in found.items()}
    assert "hone_worker.operations" in graph["hone_sharded.operations"] & graph["hone_verl.operations"]
    order = list(TopologicalSorter(graph).static_order())  # raises CycleError
    assert order.index("hone_sharded.zero") < order.index("hone_sharded.policy")
