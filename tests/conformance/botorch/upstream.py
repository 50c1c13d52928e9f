"""BoTorch's test files, loaded with another class in the place of ``SingleTaskGP``."""

import importlib.util
import sys
import unittest
from dataclasses import dataclass
from filecmp import cmpfiles
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType
from typing import Any
from unittest.mock import patch

import botorch
import numpy as np
import torch
from botorch.models import SingleTaskGP
from gpytorch.module import Module

NAME = SingleTaskGP.__name__


@dataclass(frozen=True)
class UpstreamTest:
    """One test of BoTorch's, named as pytest names it there."""

    root: Path
    path: str
    class_name: str
    method: str

    @property
    def id(self) -> str:
        return f"{self.path}::{self.class_name}::{self.method}"

    def run(self, model_class: type) -> list[str]:
        """Run it with ``model_class`` for ``SingleTaskGP``; failures are raised.

        Returns:
            Assertions about the class of a kernel, mean, noise, prior or model that do
            not hold. Ours are others; what comes after such an assertion is what
            matters, so that the test goes on.
        """
        torch.manual_seed(0)
        np.random.seed(0)
        case = getattr(load(self.root, self.path, model_class), self.class_name)(
            self.method
        )
        other_classes: list[str] = []

        def assert_is_instance(obj: object, cls: Any, msg: Any = None) -> None:
            # a model that BoTorch made is a SingleTaskGP, one made of ours is not
            ours = cls is model_class and not type(obj).__module__.startswith(
                "botorch."
            )
            if isinstance(obj, cls) or ours or not isinstance(obj, Module):
                unittest.TestCase.assertIsInstance(case, obj, cls, msg)
            else:
                expected = getattr(cls, "__name__", str(cls))
                other_classes.append(f"{type(obj).__name__} is no {expected}")

        case.assertIsInstance = assert_is_instance
        default = torch.get_default_dtype()
        try:
            case.debug()
        finally:
            torch.set_default_dtype(default)
        return other_classes


@cache
def load(root: Path, path: str, model_class: type = SingleTaskGP) -> ModuleType:
    """The test file as a module of its own, in which the name is ``model_class``."""
    if model_class is not SingleTaskGP:
        # whatever the file imports keeps the true class
        load(root, path)
    name = "_".join([*Path(path).with_suffix("").parts, model_class.__name__])
    spec = importlib.util.spec_from_file_location(name, root / path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # where pickle looks for its classes
    with (
        patch(f"botorch.models.{NAME}", model_class),
        patch(f"botorch.models.gp_regression.{NAME}", model_class),
    ):
        spec.loader.exec_module(module)
    return module


def is_installed(source: Path) -> bool:
    """Whether the package of a checkout is the installed one, file by file.

    A checkout does not say its version: BoTorch writes that when it is built.
    """
    installed = Path(botorch.__file__).parent
    files = [file.relative_to(source) for file in source.glob("botorch/**/*.py")]
    files = [file for file in files if file.name != "version.py"]
    same, _, _ = cmpfiles(source, installed.parent, files, shallow=False)
    return bool(files) and len(same) == len(files)


def upstream_tests(root: Path, path: str) -> list[UpstreamTest]:
    """The tests of a file that get to the name ``SingleTaskGP``, as far as one sees.

    Raises:
        ImportError: If the file is not of the installed BoTorch's version.
    """
    module = load(root, path)
    return [
        UpstreamTest(root, path, key, method)
        for key, value in vars(module).items()
        if isinstance(value, type)
        and issubclass(value, unittest.TestCase)
        and value.__module__ == module.__name__
        for method in unittest.defaultTestLoader.getTestCaseNames(value)
        if _mentions(value, method, module)
    ]


def _mentions(case: type, method: str, module: ModuleType) -> bool:
    """Whether the method, its set-up or a helper of theirs in the file has the name."""
    seen: set[CodeType] = set()
    names: set[str] = set()

    def visit(item: object) -> None:
        if isinstance(item, type) and item.__module__ == module.__name__:
            for attribute in vars(item).values():
                visit(attribute)
        item = getattr(item, "__wrapped__", item)
        if isinstance(item, FunctionType) and item.__module__ != module.__name__:
            return  # BoTorch's own code keeps the true class
        code = item.__code__ if isinstance(item, FunctionType) else item
        if not isinstance(code, CodeType) or code in seen:
            return
        seen.add(code)
        for constant in code.co_consts:
            visit(constant)
        names.update(code.co_names)
        for name in code.co_names:
            if not name.startswith("test"):
                visit(getattr(case, name, None))
            visit(vars(module).get(name))

    for name in (method, "setUp", "setUpClass"):
        visit(getattr(case, name, None))
    return NAME in names or any(vars(module).get(n) is SingleTaskGP for n in names)
