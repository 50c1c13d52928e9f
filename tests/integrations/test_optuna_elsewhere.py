"""The sampler where others load it: OptunaHub, Ray Tune, Hydra, the pages about it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import optuna
import pytest

from botorch_structured.integrations.optuna import StructuredSampler

ROOT = Path(__file__).parents[2]


def objective(trial: optuna.Trial) -> float:
    kind = trial.suggest_categorical("kind", ["a", "b"])
    return trial.suggest_float(f"x of {kind}", 0, 1) + (kind == "b")


def test_optunahub_loads_the_package() -> None:
    # the folder optunahub/ of this repository would do for "import optunahub"
    pytest.importorskip("optunahub.version", exc_type=ImportError)
    import optunahub

    module = optunahub.load_local_module(
        "samplers/structured", registry_root=str(ROOT / "optunahub" / "package")
    )
    assert module.StructuredSampler is StructuredSampler


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


_APP = """
import hydra

@hydra.main(version_base=None, config_path=None, config_name=None)
def main(cfg):
    return (cfg.x - 0.3) ** 2 + (cfg.kind == "b")

main()
"""


def test_the_sweeper_of_hydra_takes_the_sampler(tmp_path: Path) -> None:
    pytest.importorskip("hydra_plugins.hydra_optuna_sweeper._impl")
    sampler = "botorch_structured.integrations.optuna.StructuredSampler"
    (tmp_path / "app.py").write_text(_APP)
    done = subprocess.run(
        [
            *(sys.executable, "app.py", "-m", "hydra/sweeper=optuna"),
            *("hydra/sweeper/sampler=random", "hydra.sweeper.sampler.seed=0"),
            f"hydra.sweeper.sampler._target_={sampler}",
            *("hydra.sweeper.n_trials=6", "hydra.sweeper.n_jobs=1"),
            *("+kind=choice(a,b)", "+x=interval(0,1)"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    best = re.search(r"Best value: (\S+)", done.stdout + done.stderr)
    assert best is not None and float(best[1]) < 0.05
