"""The sampler where others load it: OptunaHub, Ray Tune, Hydra, the pages about it."""

from __future__ import annotations

import re
from pathlib import Path

import optuna
import pytest
import yaml

from botorch_structured.integrations.optuna import StructuredSampler

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "optunahub" / "package" / "samplers" / "structured"


def objective(trial: optuna.Trial) -> float:
    kind = trial.suggest_categorical("kind", ["a", "b"])
    return trial.suggest_float(f"x of {kind}", 0, 1) + (kind == "b")


def test_optunahub_loads_the_package() -> None:
    optunahub = pytest.importorskip("optunahub")
    module = optunahub.load_local_module(
        "samplers/structured", registry_root=str(ROOT / "optunahub" / "package")
    )
    assert module.StructuredSampler is StructuredSampler


def test_the_package_of_optunahub_is_complete() -> None:
    names = {path.name for path in PACKAGE.iterdir()}
    assert names >= {"__init__.py", "README.md", "LICENSE", "example.py"}
    head, text = (PACKAGE / "README.md").read_text().split("---\n", 2)[1:]
    matter = yaml.safe_load(head)
    # what the registry's template asks for
    assert matter.keys() == {
        "author",
        "title",
        "description",
        "tags",
        "optuna_versions",
        "license",
    }
    assert "sampler" in matter["tags"] and matter["license"] == "MIT License"
    assert "Please" not in text and not re.search(r"<\w+>", text)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("page", ["start/optuna.md", "how_to/many_machines.md"])
def test_code_of_the_pages_runs(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    monkeypatch.chdir(tmp_path)
    text = (ROOT / "docs" / page).read_text()
    names: dict[str, object] = {}
    for block in re.findall(r"^```python\n(.*?)^```", text, re.M | re.S):
        exec(block, names)


@pytest.mark.filterwarnings("ignore")
def test_ray_tune_takes_the_sampler() -> None:
    search = pytest.importorskip("ray.tune.search.optuna", exc_type=ImportError)

    def space(trial: optuna.Trial) -> None:
        objective(trial)

    searcher = search.OptunaSearch(
        space=space,
        sampler=StructuredSampler(seed=0),
        metric="loss",
        mode="min",
    )
    seen = []
    for number in range(8):
        config = searcher.suggest(str(number))
        seen.append(config)
        loss = config.get("x of a", 1.0 + config.get("x of b", 0.0))
        searcher.on_trial_complete(str(number), {"loss": loss})
    assert {config["kind"] for config in seen[:2]} == {"a", "b"}
    assert min(config.get("x of a", 1.0) for config in seen) < 0.2


def test_the_sweeper_of_hydra_takes_the_sampler() -> None:
    sweeper = pytest.importorskip("hydra_plugins.hydra_optuna_sweeper._impl")
    assert sweeper.OptunaSweeperImpl is not None
    sampler = StructuredSampler(seed=0)
    made = sweeper.OptunaSweeperImpl(
        sampler=sampler,
        direction="minimize",
        storage=None,
        study_name=None,
        n_trials=4,
        n_jobs=1,
        max_failure_rate=0.0,
        search_space=None,
        custom_search_space=None,
        params=None,
    )
    assert made.sampler is sampler
