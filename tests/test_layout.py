"""The house rules that the imports and the files can be asked about.

``CONTRIBUTING.md`` states them; a rule that is broken is named with the modules that
break it.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any, NamedTuple

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
_MOST_TOKENS_A_FILE = 6_200
# The weight of the house, and what it may weigh: tokens of code (no docstrings, no
# comments) in each folder, files, and habits that make lines dense or are riddles. A
# change that needs more says in its message what that is worth; one that needs less
# lowers the figure.
_MOST_TOKENS = {
    ".": 4_271,
    "acquisition": 3_921,
    "integrations": 6_403,
    "integrations/optuna": 10_829,
    "kernels": 10_342,
    "linalg": 9_198,
    "models": 12_507,
    "models/ablr": 14_014,
    "models/monotone": 11_112,
    "models/sampled": 10_342,
    "models/tree": 32_022,
    "models/treed": 16_029,
    "optim": 20_531,
    "plots": 6_333,
    "spaces": 24_147,
    "study": 15_151,
    "suggest": 6_541,
    "test_functions": 5_257,
}
_MOST_TOKENS_A_LINE = 8.39
# Assignments such as ``a, b = x, y``, in a thousand lines.
_MOST_PAIRS = 0.1
_MOST_PRIVATE_CONSTANTS = 118
# Names that say nothing of the thing that they stand for.
_RIDDLES = {"found", "known", "own", "held", "given", "mine", "every", "here"}
_MOST_RIDDLES = 1
# Sentences that do not begin with their subject.
_MOST_OF_AND_WHAT = 0
_MOST_FILES = 114
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


class Weight(NamedTuple):
    """What code weighs, and habits that make it hard to read."""

    tokens: int = 0
    lines: int = 0
    pairs: int = 0
    private_constants: int = 0
    riddles: int = 0
    of_and_what: int = 0

    def __add__(self, other: tuple[Any, ...]) -> Weight:
        return Weight(*(a + b for a, b in zip(self, other, strict=True)))


_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def _weight(text: str) -> Weight:
    """The weight of a module, without docstrings, comments and blank lines."""
    tree = ast.parse(text)
    docstrings: set[int] = set()
    sentences: list[str] = []
    pairs = 0
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            docstring = ast.get_docstring(node)
            if docstring is not None:
                first = node.body[0]
                docstrings |= set(range(first.lineno, (first.end_lineno or 0) + 1))
                sentences.append(docstring)
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
            pairs += isinstance(node.targets[0], ast.Tuple)
    constants = 0
    for node in tree.body:
        if isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            names = [n.id for t in targets for n in ast.walk(t) if type(n) is ast.Name]
            constants += sum(re.match("_[A-Z]", name) is not None for name in names)
    tokens = 0
    code: set[int] = set()
    riddles = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            sentences.append(token.string.lstrip("# "))
        if token.type not in _NO_CODE and token.start[0] not in docstrings:
            tokens += 1
            code |= set(range(token.start[0], token.end[0] + 1))
            riddles += token.type == tokenize.NAME and token.string in _RIDDLES
    of_and_what = sum(words.startswith(("Of ", "What ")) for words in sentences)
    return Weight(tokens, len(code), pairs, constants, riddles, of_and_what)


def test_code_is_weighed() -> None:
    text = '"""Of one.\n\nTwo."""\n\n# What three is\nx = """a\nb"""  # four\n'
    text += '_A, _B = 1, 2\ndef f(own):\n    """f."""\n    a, b = own\n    return a\n'
    assert _weight(text) == Weight(23, 6, 1, 2, 2, 2)


WEIGHTS = {name: _weight(path.read_text()) for name, path in FILES.items()}
WHOLE = sum(WEIGHTS.values(), Weight())


def test_files_end_where_their_idea_ends() -> None:
    """Except that a public class is whole, however long."""
    public = {
        getattr(face, name).__module__.removeprefix("botorch_structured.")
        for face in (models, spaces, study)
        for name in face.__all__
    }
    long = {n: w.tokens for n, w in WEIGHTS.items() if n not in public}
    assert {n: t for n, t in long.items() if t > _MOST_TOKENS_A_FILE} == {}


def test_the_package_is_no_heavier() -> None:
    by_folder: Counter[str] = Counter()
    for name, path in FILES.items():
        folder = path.parent.relative_to(PACKAGE).as_posix()
        by_folder[folder] += WEIGHTS[name].tokens
    assert by_folder.keys() == _MOST_TOKENS.keys()
    assert {k: v for k, v in by_folder.items() if v > _MOST_TOKENS[k]} == {}
    assert len(FILES) <= _MOST_FILES


def test_lines_are_no_denser() -> None:
    assert WHOLE.tokens / WHOLE.lines <= _MOST_TOKENS_A_LINE
    assert 1_000 * WHOLE.pairs / WHOLE.lines <= _MOST_PAIRS


@pytest.mark.parametrize(
    "habit, most",
    [
        ("private_constants", _MOST_PRIVATE_CONSTANTS),
        ("riddles", _MOST_RIDDLES),
        ("of_and_what", _MOST_OF_AND_WHAT),
    ],
)
def test_habits_are_no_more(habit: str, most: int) -> None:
    by_file = {name: getattr(weight, habit) for name, weight in WEIGHTS.items()}
    assert getattr(WHOLE, habit) <= most, Counter(by_file).most_common(10)


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
