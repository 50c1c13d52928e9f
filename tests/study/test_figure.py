"""`Study.plot`."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("matplotlib")

from matplotlib.axes import Axes

from botorch_structured import Study
from botorch_structured.plots.style import shortened
from botorch_structured.test_functions import JenattonTree

SPACE = JenattonTree().space


def labels(ax: Axes) -> list[str]:
    return [label.get_text() for label in ax.get_yticklabels()]


def test_best_so_far_and_evaluations_on_each_path(tmp_path: Path) -> None:
    study = Study(SPACE, "maximize", seed=0)
    for i, config in enumerate(study.ask(6)):
        study.tell(config, None if i == 1 else float(i))
    figure = study.plot()
    traces, bars = figure.axes
    assert traces.get_lines()[0].get_ydata()[-1] == 5.0
    assert all(float(tick).is_integer() for tick in traces.get_xticks())
    assert sum("best 5)" in label for label in labels(bars)) == 1
    assert sum(bar.get_width() for bar in bars.patches) == 6
    figure.savefig(tmp_path / "study.png")
    assert (tmp_path / "study.png").stat().st_size > 10_000
    assert figure._repr_png_()[:4] == b"\x89PNG"  # type: ignore[attr-defined]


def test_values_of_many_decades_are_on_a_logarithmic_axis() -> None:
    values = [10.0 ** (-i / 4) for i in range(20)]
    configs = SPACE.decode(SPACE.sample(20, seed=0))
    for offset, scale in ((0.0, "log"), (-2.0, "linear"), (1.0, "linear")):
        study = Study(SPACE, seed=0)
        study.tell_many(configs, [v + offset for v in values])
        assert study.plot().axes[0].get_yscale() == scale


def test_no_word_of_a_long_path_is_cut() -> None:
    name = "feature_preprocessor:__choice__"
    kinds = [f"extra_trees_preprocessor_for_{i}_classification" for i in range(30)]
    study = Study([{name: [kind], "x": (0.0, 1.0)} for kind in kinds], seed=0)
    study.tell_many(study.ask(4), [1.0] * 4)
    chosen = [trial.config[name] for trial in study.trials]
    shown = [f"{name}={kind}\n(best 1)" for kind in chosen]
    assert sorted(labels(study.plot().axes[1])) == sorted(shown)
    assert shortened(kinds[0]) == "extra_trees_…ssification"
    assert shortened(name) == "feature_prep…:__choice__"
    assert shortened(24 * "ab") == "abababababab…bababababab"


@pytest.mark.parametrize("direction", ["minimize", "maximize"])
def test_the_best_of_many_paths_has_a_bar(direction: str) -> None:
    space = [{"a": [f"c{i}"], f"x{i}": [0]} for i in range(30)]
    study = Study(space, direction, seed=0)
    sign = 1.0 if direction == "minimize" else -1.0
    names = [*range(29), *range(29), 29]
    study.tell_many(
        [{"a": f"c{i}", f"x{i}": 0} for i in names],
        [sign * (1.0 + i) for i in range(58)] + [sign * 0.5],
    )
    bars = study.plot().axes[1]
    assert len(labels(bars)) == 24
    assert labels(bars)[-1] == f"a=c29 (best {sign * 0.5:.4g})"
    assert bars.patches[-1].get_width() == 1
    assert "24 of 30 paths" in bars.get_title(loc="left")


def test_a_pareto_front() -> None:
    study = Study(SPACE, {"a": "minimize", "b": "maximize", "c": "minimize"}, seed=0)
    for i, config in enumerate(study.ask(4)):
        study.tell(config, {"a": i, "b": 2 - (i - 1) ** 2, "c": i})
    panels = study.plot().axes
    assert [(ax.get_xlabel(), ax.get_ylabel()) for ax in panels] == [
        ("a", "b"),
        ("a", "c"),
        ("b", "c"),
    ]
    everything, front = panels[0].collections
    assert everything.get_offsets().tolist() == [[0, 1], [1, 2], [2, 1], [3, -2]]
    assert front.get_offsets().tolist() == [[0, 1], [1, 2]]


@pytest.mark.parametrize("constraints", [None, ["value <= -1.0"]])
def test_nothing_is_feasible_yet(constraints: list[str] | None) -> None:
    study = Study(SPACE, constraints=constraints, seed=0)
    for config in study.ask(6):
        study.tell(config, None if constraints is None else 1.0)
    traces, bars = study.plot().axes
    assert "none yet" in traces.get_title(loc="left")
    assert not traces.get_lines()
    assert ["no best" in label for label in labels(bars)] == [True] * 4


@pytest.mark.parametrize("told", [{"a": 1.0, "b": 2.0}, None])
def test_infeasible_trials_of_several_objectives(told: dict[str, float] | None) -> None:
    objectives = {"a": "minimize", "b": "minimize"}
    study = Study(SPACE, objectives, ["a <= 0.5"], seed=0)
    study.tell_many(study.ask(2), [told, None])
    (panel,) = study.plot().axes
    drawn = [points.get_offsets().tolist() for points in panel.collections]
    assert drawn == ([] if told is None else [[[1.0, 2.0]]])
