"""Every acquisition function, transform and sampler of BoTorch with every model.

A cell runs, with finite values and gradients, or it is refused, with words. The table
of docs/differences.md is what ``page()`` returns.
"""

import copy
import importlib
import inspect
import pkgutil
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import botorch.acquisition
import botorch.sampling
import pytest
import torch
from botorch.acquisition import (
    AcquisitionFunction,
    ExpectedImprovement,
    qLogExpectedImprovement,
)
from botorch.acquisition.multi_objective.utils import compute_sample_box_decomposition
from botorch.acquisition.objective import LinearMCObjective
from botorch.acquisition.penalized import L2Penalty
from botorch.acquisition.risk_measures import CVaR, Expectation, VaR, WorstCase
from botorch.acquisition.utils import get_optimal_samples
from botorch.cross_validation import loo_cv
from botorch.generation import BoltzmannSampling, MaxPosteriorSampling
from botorch.models import ModelList, ModelListGP
from botorch.models.transforms import input as inputs
from botorch.models.transforms import outcome as outcomes
from botorch.sampling import ListSampler, SobolQMCNormalSampler
from botorch.sampling.base import MCSampler
from botorch.sampling.pathwise import draw_kernel_feature_paths, draw_matheron_paths
from botorch.utils.multi_objective.box_decompositions import (
    FastNondominatedPartitioning,
)
from torch import Tensor
from torch.nn.functional import one_hot

from botorch_structured.models import (
    ConditionalGP,
    DecomposedGP,
    MonotoneGP,
    MultiTaskABLR,
    OldStudiesMean,
    SampledGP,
    TransferGP,
    TreedGP,
    TreeStructuredGP,
)
from botorch_structured.spaces import ParameterTree, SearchSpace

pytestmark = pytest.mark.usefixtures("double")

PAGE = Path(__file__).parents[2] / "docs" / "differences.md"
DEPENDENCIES = {0: {0: [1], 1: [2]}}
double = partial(torch.tensor, dtype=torch.double)
BOUNDS = double([[0.0] * 4, [1.0] * 4])


def data(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Column 0 chooses between columns 1 and 2; column 3 is shared."""
    g = torch.Generator().manual_seed(seed)
    X = torch.rand(n, 4, generator=g, dtype=torch.double)
    X[:, 0] = torch.arange(n) % 2
    Y = torch.where(X[:, :1] == 0, X[:, 1:2], 2 + X[:, 2:3]) + 0.3 * X[:, 3:]
    return X, Y


X, Y = data(12)
BOTH = torch.cat([Y, 3.0 - Y], -1)
POINTS = data(80, seed=5)[0]
BEST = float(Y.max())

# -- models ---------------------------------------------------------------------------


def treed(X: Tensor, Y: Tensor, published: bool = False, **kwargs: Any) -> Any:
    options: dict[str, Any] = {"min_leaf_size": 4, "max_leaves": 3}
    if published:
        model = TreedGP.as_published(X, Y, **options, **kwargs)
    else:
        model = TreedGP(X, Y, split_criterion="variance", **options, **kwargs)
    assert model.partition.num_leaves > 1
    return model


def decomposed(X: Tensor, Y: Tensor, **kwargs: Any) -> Any:
    part = 0.1 * Y.square()
    rising = MonotoneGP(X, part, {3: 1}, **copy.deepcopy(kwargs))
    return DecomposedGP(rising, MonotoneGP(X, Y - part, {}, **kwargs))


def sampled(X: Tensor, Y: Tensor, **kwargs: Any) -> Any:
    models = []
    for noise in (0.01, 0.02):
        model = TreeStructuredGP(X, Y, DEPENDENCIES, **copy.deepcopy(kwargs))
        if "train_Yvar" not in kwargs:
            model.likelihood.noise = noise
        models.append(model.eval())
    return SampledGP(models)


@cache
def old_studies() -> Any:
    tree = ParameterTree(4, DEPENDENCIES)
    space = SearchSpace(["d", "a", "b", "c"], BOUNDS, tree)
    return OldStudiesMean.from_studies([(X, Y), (X, 2.0 * Y)], space)


TREE = DEPENDENCIES
MODELS: dict[str, Callable[..., Any]] = {
    "TreeStructuredGP": lambda X, Y, **kw: TreeStructuredGP(X, Y, TREE, **kw),
    "TreeStructuredGP.as_published": lambda X, Y, **kw: TreeStructuredGP.as_published(
        X, Y, TREE, **kw
    ),
    "ConditionalGP": lambda X, Y, **kw: ConditionalGP(X, Y, TREE, **kw),
    "TransferGP": lambda X, Y, **kw: TransferGP(X, Y, old_studies(), **kw),
    "TreedGP": treed,
    "TreedGP.as_published": partial(treed, published=True),
    "MonotoneGP": lambda X, Y, **kw: MonotoneGP(X, Y, {3: 1}, **kw),
    "DecomposedGP": decomposed,
    "MultiTaskABLR": lambda X, Y, **kw: MultiTaskABLR(X, Y, None, **kw),
    "SampledGP": sampled,
}


@cache
def made(name: str) -> Any:
    torch.manual_seed(0)
    return MODELS[name](X, Y).eval()


@cache
def with_noise(name: str) -> Any:
    return MODELS[name](X, Y, train_Yvar=torch.full_like(Y, 0.01)).eval()


@cache
def pair(name: str) -> Any:
    kind = ModelList if name == "DecomposedGP" else ModelListGP
    return kind(made(name), MODELS[name](X, BOTH[:, 1:]).eval())


# -- what is run ----------------------------------------------------------------------


def sampler(count: int = 4) -> MCSampler:
    return SobolQMCNormalSampler(torch.Size([count]), seed=0)


def public(base: type, *modules: Any) -> dict[str, type]:
    """The concrete classes of BoTorch's modules, by name."""
    return {
        name: kind
        for module in modules
        for name, kind in vars(module).items()
        if inspect.isclass(kind) and issubclass(kind, base) and kind is not base
        if not inspect.isabstract(kind) and kind.__module__.startswith("botorch.")
        if not name.startswith("_")
    }


def modules_of(package: Any) -> list[Any]:
    found = pkgutil.walk_packages(package.__path__, f"{package.__name__}.")
    return [importlib.import_module(module.name) for module in found]


ACQUISITION = public(AcquisitionFunction, *modules_of(botorch.acquisition))
SAMPLERS = public(MCSampler, *modules_of(botorch.sampling))


def evaluate(name: str, *models: Any, q: int = 2, **arguments: Any) -> None:
    """Values, and gradients, of an acquisition function at two batches of q points."""
    arguments = copy.deepcopy(arguments)
    if any(type(model) is ModelList for model in models) and "sampler" in arguments:
        arguments["sampler"] = ListSampler(sampler(), sampler())
    acqf: Any = ACQUISITION[name](*models, **arguments)
    if hasattr(acqf, "get_augmented_q_batch_size"):
        q = acqf.get_augmented_q_batch_size(q)
    points = POINTS[: 2 * q].reshape(2, q, 4)
    if name == "FixedFeatureAcquisitionFunction":
        points = points[..., 1:]
    points = points.clone().requires_grad_(True)
    value = acqf(points)
    assert value.shape == (2,) and value.isfinite().all()
    # BoTorch's expectation propagation has NaN in gradients, of a SingleTaskGP too
    if "Predictive" not in name:
        (gradient,) = torch.autograd.grad(value.sum(), points)
        assert gradient.isfinite().all()


def improvement(model: Any) -> Any:
    return qLogExpectedImprovement(model, BEST, sampler())


def use(name: str, points: Tensor = POINTS[:4], **modules: Any) -> None:
    """A model with a transform: draws, gradients, fantasies and new data."""
    torch.manual_seed(0)
    arguments = copy.deepcopy(modules)
    batch = arguments.pop("batch", ())
    model = MODELS[name](X.expand(*batch, 12, 4), Y.expand(*batch, 12, 1), **arguments)
    model.eval()
    points = points.reshape(2, 2, -1).clone().requires_grad_(True)
    draws = model.posterior(points).rsample(torch.Size([2]))
    (gradient,) = torch.autograd.grad(draws.sum(), points)
    assert draws.isfinite().all() and gradient.isfinite().all()
    fantasy = model.fantasize(POINTS[4:6].expand(*batch, 2, 4), sampler())
    assert fantasy.posterior(points.detach()[:1]).rsample().isfinite().all()


def each(names: str, **arguments: Any) -> dict[str, dict[str, Any]]:
    return dict.fromkeys(names.split(), arguments)


SAMPLER = {"sampler": sampler()}
ENTROPY = {"candidate_set": X, "num_mv_samples": 2}
OPTIMA = {"optimal_inputs": X[:3], "optimal_outputs": Y[:3]}
#: One point at a time.
SINGLE = {
    **each(
        """LogProbabilityOfImprovement ProbabilityOfImprovement ExpectedImprovement
        LogExpectedImprovement""",
        best_f=BEST,
    ),
    **each("PosteriorMean PosteriorStandardDeviation"),
    **each("UpperConfidenceBound", beta=1.0),
    **each("LogProbabilityOfFeasibility", constraints={0: (None, 1.0)}),
    **each("qMultiStepLookahead", batch_sizes=[1], num_fantasies=[2]),
    **each("qMaxValueEntropy qLowerBoundMaxValueEntropy", **ENTROPY, train_inputs=X),
    **each(
        "qMultiFidelityMaxValueEntropy qMultiFidelityLowerBoundMaxValueEntropy",
        **ENTROPY,
        num_fantasies=2,
    ),
}
SEVERAL = {
    **each("qAnalyticProbabilityOfImprovement", best_f=BEST),
    **each(
        "qExpectedImprovement qLogExpectedImprovement qProbabilityOfImprovement",
        best_f=BEST,
        **SAMPLER,
    ),
    **each(
        "qNoisyExpectedImprovement qLogNoisyExpectedImprovement",
        X_baseline=X[:4],
        **SAMPLER,
    ),
    **each(
        """qSimpleRegret qPosteriorStandardDeviation qExpectedUtilityOfBestOption
        qBayesianActiveLearningByDisagreement""",
        **SAMPLER,
    ),
    **each("qUpperConfidenceBound qLowerConfidenceBound", beta=1.0, **SAMPLER),
    **each("ScalarizedPosteriorMean", weights=double([1.0, 1.0])),
    **each(
        "qLogProbabilityOfFeasibility",
        constraints=[lambda Z: Z[..., 0] - 2.0],
        **SAMPLER,
    ),
    **each("qNegIntegratedPosteriorVariance", mc_points=X[:3]),
    **each(
        "PairwiseMCPosteriorVariance",
        objective=LinearMCObjective(double([1.0])),
        **SAMPLER,
    ),
    **each("PairwiseBayesianActiveLearningByDisagreement", num_samples=4),
    **each("qKnowledgeGradient qMultiFidelityKnowledgeGradient", num_fantasies=2),
    **each("qJointEntropySearch", **OPTIMA),
    **each("qPredictiveEntropySearch", optimal_inputs=POINTS[:2], max_ep_iterations=9),
    **each("PathwiseThompsonSampling"),
}
NOISE_IS_KNOWN = each(
    "NoisyExpectedImprovement LogNoisyExpectedImprovement",
    X_observed=X[:4],
    num_fantasies=2,
)
#: Around another acquisition function.
AROUND: dict[str, Callable[[Any], dict[str, Any]]] = {
    "ProximalAcquisitionFunction": lambda model: {
        "acq_function": ExpectedImprovement(model, BEST),
        "proximal_weights": BOUNDS[1],
        "q": 1,
    },
    "PriorGuidedAcquisitionFunction": lambda model: {
        "acq_function": improvement(model),
        "prior_module": lambda x: -x[..., 3],
        "log": True,
    },
    "FixedFeatureAcquisitionFunction": lambda model: {
        "acq_function": improvement(model),
        "d": 4,
        "columns": [0],
        "values": [1.0],
    },
    "PenalizedAcquisitionFunction": lambda model: {
        "raw_acqf": improvement(model),
        "penalty_func": L2Penalty(X[0]),
        "regularization_parameter": 0.1,
    },
}
REFERENCE = {"ref_point": double([-1.0, -1.0])}
PARTITION = {"partitioning": FastNondominatedPartitioning(double([-1.0, -1.0]), BOTH)}
SETS = {"pareto_sets": X[None, :3].repeat(2, 1, 1)}
FRONTS = BOTH[None, :3].repeat(2, 1, 1)
CELLS = {"hypercell_bounds": compute_sample_box_decomposition(FRONTS)}
FANTASIES = {"num_fantasies": 2, "num_pareto": 2}
TWO_SINGLE = {
    **each(
        "ConstrainedExpectedImprovement LogConstrainedExpectedImprovement",
        best_f=BEST,
        objective_index=0,
        constraints={1: (None, 1.0)},
    ),
    **each("ExpectedHypervolumeImprovement", **REFERENCE, **PARTITION),
}
TWO_OUTPUTS = {
    **each(
        "qExpectedHypervolumeImprovement qLogExpectedHypervolumeImprovement MOMF",
        **REFERENCE,
        **PARTITION,
        **SAMPLER,
    ),
    **each(
        """qNoisyExpectedHypervolumeImprovement
        qLogNoisyExpectedHypervolumeImprovement""",
        X_baseline=X[:4],
        **REFERENCE,
        **SAMPLER,
    ),
    **each("qLogNParEGO", X_baseline=X[:4], **SAMPLER),
    **each("qHypervolumeKnowledgeGradient", **REFERENCE, **FANTASIES),
    **each(
        "qMultiFidelityHypervolumeKnowledgeGradient",
        target_fidelities={3: 1.0},
        **REFERENCE,
        **FANTASIES,
    ),
    **each(
        "qLowerBoundMultiObjectiveJointEntropySearch",
        pareto_fronts=FRONTS,
        **SETS,
        **CELLS,
    ),
    **each("qLowerBoundMultiObjectiveMaxValueEntropySearch", **CELLS),
    **each(
        "qMultiObjectivePredictiveEntropySearch",
        pareto_sets=POINTS[None, :2],
        max_ep_iterations=9,
    ),
}
PERTURBATION = inputs.InputPerturbation(double([[0.0] * 4, [0.0, 0.0, 0.01, 0.01]]))
INPUTS: dict[str, Any] = {
    "Normalize": inputs.Normalize(4),
    "InputStandardize": inputs.InputStandardize(4),
    "Round": inputs.Round(integer_indices=[0]),
    "Log10": inputs.Log10(indices=[3]),
    "Warp": inputs.Warp(4, indices=[3]),
    "AppendFeatures": inputs.AppendFeatures(double([[0.5], [0.6]])),
    "InteractionFeatures": inputs.InteractionFeatures(),
    "FilterFeatures": inputs.FilterFeatures(torch.tensor([0, 1, 3])),
    "InputPerturbation": PERTURBATION,
    "NumericToCategoricalEncoding": inputs.NumericToCategoricalEncoding(
        4, {0: 2}, {0: partial(one_hot, num_classes=2)}
    ),
    "OneHotToNumeric": inputs.OneHotToNumeric(4, {}),
    "ChainedInputTransform": inputs.ChainedInputTransform(
        first=inputs.Normalize(4, bounds=BOUNDS), second=inputs.Log10(indices=[3])
    ),
    "BatchBroadcastedInputTransform": inputs.BatchBroadcastedInputTransform(
        [inputs.Normalize(4, bounds=BOUNDS)]
    ),
}
OUTCOMES: dict[str, Any] = {
    "Standardize": outcomes.Standardize(1),
    "StratifiedStandardize": outcomes.StratifiedStandardize(0, torch.arange(2)),
    "Log": outcomes.Log(),
    "Power": outcomes.Power(0.5),
    "Bilog": outcomes.Bilog(),
    "ChainedOutcomeTransform": outcomes.ChainedOutcomeTransform(
        first=outcomes.Bilog(), second=outcomes.Standardize(1)
    ),
}


def draw(kind: str, name: str) -> None:
    if kind == "ListSampler":
        one: Any = ListSampler(sampler(), sampler())
        posterior = ModelList(made(name), made(name)).posterior(X[:2])
    else:
        one = SAMPLERS[kind](torch.Size([2]), seed=0)
        posterior = made(name).posterior(X[:2])
    assert one(posterior).isfinite().all()


OTHERS: dict[str, Callable[[Any], Any]] = {
    "MaxPosteriorSampling": lambda model: MaxPosteriorSampling(model)(X, 2),
    "BoltzmannSampling": lambda model: BoltzmannSampling(improvement(model))(
        X.unsqueeze(1), 2
    ),
    "draw_matheron_paths": lambda m: draw_matheron_paths(m, torch.Size([2]))(X),
    "draw_kernel_feature_paths": lambda m: draw_kernel_feature_paths(
        m, torch.Size([2])
    )(X),
    "get_optimal_samples": lambda m: get_optimal_samples(m, BOUNDS, 1, 8, 1),
    "loo_cv": loo_cv,
}


#: What is in BoTorch's modules and has no row.
LEFT_OUT = """AnalyticExpectedUtilityOfBestOption IndexSampler PairwiseMCSampler
     MultiOutputAcquisitionFunctionWrapper
    MultiOutputPosteriorMean ProjectedAcquisitionFunction AffineInputTransform
    LearnedFeatureImputation""".split()


def risk(measure: Any, name: str) -> None:
    """A risk measure of perturbed points."""
    model = MODELS[name](X, Y, input_transform=copy.deepcopy(PERTURBATION)).eval()
    arguments = {"X_baseline": X[:4], "objective": measure, "sampler": sampler()}
    evaluate("qNoisyExpectedImprovement", model, **arguments)


def _rows() -> dict[str, Callable[[str], Any]]:
    """What is run for the name of a model, by BoTorch's name."""
    rows: dict[str, Callable[[str], Any]] = {}
    for group, model, q in (
        (SINGLE, made, 1),
        (SEVERAL, made, 2),
        (NOISE_IS_KNOWN, with_noise, 1),
        (TWO_SINGLE, pair, 1),
        (TWO_OUTPUTS, pair, 2),
    ):
        for name, kw in group.items():
            rows[name] = lambda k, n=name, m=model, q=q, kw=kw: evaluate(
                n, m(k), q=q, **kw
            )
    for name, around in AROUND.items():
        rows[name] = lambda k, n=name, f=around: evaluate(n, **f(made(k)))
    for name, transform in INPUTS.items():
        points = POINTS[:4, :3] if name == "AppendFeatures" else POINTS[:4]
        batch = (1,) if name.startswith("Batch") else ()
        rows[name] = partial(use, points=points, input_transform=transform, batch=batch)
    for name, transform in OUTCOMES.items():
        rows[name] = partial(use, outcome_transform=transform)
    for measure in (CVaR(0.5, 2), VaR(0.5, 2), WorstCase(2), Expectation(2)):
        rows[type(measure).__name__] = partial(risk, measure)
    for name in sorted(SAMPLERS.keys() - LEFT_OUT):
        rows[name] = partial(draw, name)
    for name, other in OTHERS.items():
        rows[name] = lambda k, f=other: f(made(k))
    return rows


ROWS = _rows()
# -- what is refused ------------------------------------------------------------------

_REFUSED = """
the transform is that of the space
'input_transform'
TransferGP
Normalize InputStandardize Round Log10 Warp AppendFeatures InteractionFeatures
FilterFeatures InputPerturbation NumericToCategoricalEncoding OneHotToNumeric
ChainedInputTransform BatchBroadcastedInputTransform CVaR VaR WorstCase Expectation

it would learn from inactive entries
learn from inactive
TreeStructuredGP TreeStructuredGP.as_published ConditionalGP SampledGP
InputStandardize Warp

give `warp=True`
warp=True
TreedGP TreedGP.as_published
Warp

it changes decisions
leaves the decision
TreeStructuredGP TreeStructuredGP.as_published ConditionalGP SampledGP
InteractionFeatures FilterFeatures NumericToCategoricalEncoding

a sign would be one of several columns
moves one column
MonotoneGP DecomposedGP
InteractionFeatures

it has one data set
one data set
MultiTaskABLR
BatchBroadcastedInputTransform

a sum, or a mixture, needs a linear scale
linear outcome|Gaussian Gaussian
DecomposedGP SampledGP
Log Power Bilog ChainedOutcomeTransform

no functions to draw: use `posterior(X).rsample()`
whole functions
TransferGP TreedGP TreedGP.as_published SampledGP
PathwiseThompsonSampling draw_matheron_paths draw_kernel_feature_paths
get_optimal_samples

`draw_matheron_paths` draws exactly
draw_matheron_paths draws
MultiTaskABLR
draw_kernel_feature_paths

its box has points off the space: `optimize_acqf_paths(PathwiseThompsonSampling(model))`
decision
TreeStructuredGP TreeStructuredGP.as_published ConditionalGP
get_optimal_samples

BoTorch takes components for outputs
multi-output models
DecomposedGP
PathwiseThompsonSampling get_optimal_samples

BoTorch asks for the training data of one GP
2 columns|ndim|train_inputs
DecomposedGP
qMultiFidelityMaxValueEntropy qMultiFidelityLowerBoundMaxValueEntropy loo_cv
qJointEntropySearch qLowerBoundMultiObjectiveJointEntropySearch
qLowerBoundMultiObjectiveMaxValueEntropySearch qMultiObjectivePredictiveEntropySearch

BoTorch has it for a `SingleTaskGP` with known noise
Only single-output `SingleTaskGP`
DecomposedGP MultiTaskABLR SampledGP
NoisyExpectedImprovement LogNoisyExpectedImprovement

it is for samples of hyperparameters
Fully Bayesian
TreeStructuredGP TreeStructuredGP.as_published ConditionalGP TransferGP TreedGP
TreedGP.as_published MonotoneGP DecomposedGP MultiTaskABLR
qBayesianActiveLearningByDisagreement

so does BoTorch's own `SaasFullyBayesianSingleTaskGP`, but for the last
shape|must match|supported|requires a single|samples in dimension|get_fantasy_model
SampledGP
PosteriorStandardDeviation qKnowledgeGradient qMultiFidelityKnowledgeGradient
qMultiStepLookahead qMaxValueEntropy qMultiFidelityMaxValueEntropy qJointEntropySearch
qMultiFidelityLowerBoundMaxValueEntropy qPredictiveEntropySearch
ProximalAcquisitionFunction PriorGuidedAcquisitionFunction
qMultiObjectivePredictiveEntropySearch qLowerBoundMultiObjectiveJointEntropySearch
"""


class Refusal(NamedTuple):
    """Why; what the error says; which models; which rows."""

    why: str
    words: str
    models: list[str]
    rows: list[str]

    @classmethod
    def read(cls, text: str) -> "Refusal":
        why, words, *names = text.strip().split("\n")
        names = " ".join(names).split()
        models = [name for name in names if name in MODELS]
        rows = [name for name in names if name in ROWS]
        assert len(models) + len(rows) == len(names)
        return cls(why, words, models, rows)


REFUSED = [Refusal.read(text) for text in _REFUSED.split("\n\n")]


def refusal(row: str, name: str) -> Refusal | None:
    return next((r for r in REFUSED if name in r.models and row in r.rows), None)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("row", ROWS)
def test_cell(row: str, name: str) -> None:
    refused = refusal(row, name)
    torch.manual_seed(0)
    if refused is None:
        ROWS[row](name)
        return
    with pytest.raises(Exception, match=refused.words):
        ROWS[row](name)


def test_all_are_here() -> None:
    kinds = {
        *ACQUISITION,
        *SAMPLERS,
        *public(inputs.InputTransform, inputs),
        *public(outcomes.OutcomeTransform, outcomes),
    }
    assert kinds <= {*ROWS, *LEFT_OUT}
    assert not {*LEFT_OUT} - kinds


def page() -> str:
    """What is refused."""
    lines = ["| of BoTorch | raises with | why |", "|---|---|---|"]
    for refused in REFUSED:
        columns = ", ".join(f"`{row}`" for row in refused.rows)
        if {*INPUTS} <= {*refused.rows}:
            columns = "input transforms, risk measures of perturbed points"
        names = [m for m in refused.models if m.removesuffix(".as_published") == m]
        models = ", ".join(f"`{name}`" for name in names)
        if len(refused.models) == len(MODELS) - 1:
            (only,) = MODELS.keys() - refused.models
            models = f"all but `{only}`"
        lines.append(f"| {columns} | {models} | {refused.why} |")
    return "\n".join(lines)


def test_page() -> None:
    others = sum(not any(refusal(row, name) for name in MODELS) for row in ROWS)
    text = PAGE.read_text()
    assert page() in text, "docs/differences.md: expected what page() returns"
    assert f"The other {others} " in text
