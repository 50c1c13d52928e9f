"""The house rules that the imports and the files can be asked about.

``CONTRIBUTING.md`` states them; a rule that is broken is named with the modules that
break it.
"""

from __future__ import annotations

import ast
import importlib
import io
import re
import tokenize
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

import botorch_structured
from botorch_structured import models, spaces, study

PACKAGE = Path(botorch_structured.__file__).parent
FAMILIES = ["tree", "treed", "ablr", "monotone", "sampled"]
# What a module may import: its own layer, and those above it in this list.
LAYERS = [
    "spaces",
    "linalg",
    "_botorch_names",
    "_learners",
    "kernels",
    "transforms",
    "models",
    "models.tree",
    *(f"models.{family}" for family in FAMILIES if family != "tree"),
    "acquisition",
    "optim",
    "fit",
    "suggest",
    "test_functions",
    "plots",
    "study",
    "integrations",
    "__main__",
]
_MOST_LINES = 800
# The weight of the house, and what it may weigh: lines of code (no docstrings, no
# comments, no blank lines), files, and questions after an exact type. A
# change that needs more says in its message what that is worth.
_MOST_CODE = 28_710
_MOST_FILES = 130
_MOST_EXACT_TYPES = 30


def _name(path: Path) -> str:
    parts = path.relative_to(PACKAGE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {_name(path): path for path in sorted(PACKAGE.rglob("*.py"))}
# Faces import what they show, wherever it is; nobody below imports them.
FACES = {name for name, path in FILES.items() if path.name == "__init__.py"}


def _imports(name: str) -> set[str]:
    """Modules of the package that a module imports, in functions and for types too."""
    found = set()
    for node in ast.walk(ast.parse(FILES[name].read_text())):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: a relative import"
            targets = [f"{node.module}.{alias.name}" for alias in node.names]
            targets += [node.module or ""]
        else:
            continue
        for target in targets:
            short = target.removeprefix("botorch_structured.")
            if target.startswith("botorch_structured") and short in FILES:
                found.add(short)
                break  # the module itself, not the package that it is in
    return found - {name}


IMPORTS = {name: _imports(name) for name in FILES}


def _layer(name: str) -> str:
    """The longest entry of ``LAYERS`` that a module is in."""
    return max(
        (layer for layer in LAYERS if f"{name}.".startswith(f"{layer}.")),
        key=len,
        default="",
    )


def test_every_module_has_a_layer() -> None:
    assert not [name for name in FILES if not _layer(name) and name[:1].isalpha()]


def test_imports_run_one_way() -> None:
    wrong = [
        f"{name} imports {target}"
        for name in FILES
        if name not in FACES and _layer(name)
        for target in IMPORTS[name]
        if LAYERS.index(_layer(target)) > LAYERS.index(_layer(name))
    ]
    assert not wrong


def test_families_do_not_import_each_other() -> None:
    """All may use the tree's."""
    families = {f"models.{family}" for family in FAMILIES}
    wrong = [
        f"{name} imports {target}"
        for name in FILES
        for target in IMPORTS[name]
        if _layer(name) in families
        and _layer(target) in families - {_layer(name), "models.tree"}
    ]
    assert not wrong


def test_no_circles() -> None:
    try:
        tuple(TopologicalSorter(IMPORTS).static_order())
    except CycleError as error:
        pytest.fail(f"A circle of imports: {error.args[1]}")


def test_files_end_where_their_idea_ends() -> None:
    """Except that a public class is whole, however long."""
    public = {
        getattr(face, name).__module__.removeprefix("botorch_structured.")
        for face in (models, spaces, study)
        for name in face.__all__
    }
    long = {n: p.read_text().count("\n") for n, p in FILES.items() if n not in public}
    assert {n: lines for n, lines in long.items() if lines > _MOST_LINES} == {}


def _lines_of_code(text: str) -> int:
    """Lines without docstrings, comments and blank ones."""
    docstrings: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (
            ast.get_docstring(node, clean=False) is not None
        ):
            first = node.body[0]
            docstrings |= set(range(first.lineno, (first.end_lineno or 0) + 1))
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            code |= set(range(token.start[0], token.end[0] + 1))
    return len(code - docstrings)


_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def test_lines_of_code_are_counted() -> None:
    text = '"""One.\n\nTwo."""\n\n# three\nx = """a\nb"""  # four\n'
    text += 'def f():\n    """f."""\n'
    assert _lines_of_code(text) == 3


def test_the_package_is_no_heavier() -> None:
    by_folder: Counter[str] = Counter()
    for path in FILES.values():
        folder = path.parent.relative_to(PACKAGE).as_posix()
        by_folder[folder] += _lines_of_code(path.read_text())
    table = "\n".join(f"{lines:6} {folder}" for folder, lines in by_folder.items())
    print(table)  # shown by ``pytest -s``
    assert by_folder.total() <= _MOST_CODE, table
    assert len(FILES) <= _MOST_FILES


def test_no_class_name_stands_twice() -> None:
    places: dict[str, list[str]] = {}
    for name, path in FILES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(name)
    assert not {cls: where for cls, where in places.items() if len(where) > 1}


def test_no_file_name_stands_twice() -> None:
    """But for the same thing in several families, and for faces."""
    places: dict[str, list[str]] = {}
    for name in FILES.keys() - FACES:
        layer, _, file = name.rpartition(".")
        family = layer in {f"models.{family}" for family in FAMILIES}
        places.setdefault(file, []).append("a family" if family else name)
    twice = {file: where for file, where in places.items() if len(set(where)) > 1}
    assert not twice


def test_few_questions_are_after_an_exact_type() -> None:
    """A subclass of a known class would lose what such a question decides."""
    found = Counter(
        {
            name: len(re.findall(r"\btype\([\w.]+\) (?:is|in|not)\b", path.read_text()))
            for name, path in FILES.items()
        }
    )
    assert found.total() <= _MOST_EXACT_TYPES, found.most_common(10)


def test_errors_are_in_one_style() -> None:
    """``argument: expected ..., got ...``"""
    odd = []
    for name, path in FILES.items():
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Raise) and node.exc is not None:
                words = [
                    part.value
                    for part in ast.walk(node.exc)
                    if isinstance(part, ast.Constant) and isinstance(part.value, str)
                ]
                if re.search(r"\bexpects\b|\bmust be\b", " ".join(words)):
                    odd.append(f"{name}:{node.lineno}")
    assert not odd


@pytest.mark.parametrize("name", models.__all__)
def test_a_public_model_is_whole(name: str) -> None:
    """A class of the package that a model derives from serves another one, too."""
    public = [getattr(models, other) for other in models.__all__]
    slices = [
        base.__name__
        for base in getattr(models, name).__mro__[1:]
        if base.__module__.startswith("botorch_structured")
        and sum(issubclass(model, base) for model in public) < 2
    ]
    assert not slices


@pytest.mark.parametrize("family", FAMILIES)
def test_the_front_door_names_what_is_there(family: str) -> None:
    """Each ``module.name`` of the table of equations exists."""
    package = f"botorch_structured.models.{family}"
    table = importlib.import_module(package).__doc__ or ""
    modules = {n.rpartition(".")[2] for n in FILES if n.startswith(f"models.{family}.")}
    named = [
        parts
        for text in re.findall(r"`+([\w.]+)`+", table)
        if len(parts := text.split(".")) > 1 and parts[0] in modules
    ]
    assert len(named) >= 3, "expected a table `equation -> ``module.function```"
    for module, *names in named:
        value = importlib.import_module(f"{package}.{module}")
        for part in names:
            assert hasattr(value, part), f"{module}.{'.'.join(names)} is not there"
            value = getattr(value, part)
