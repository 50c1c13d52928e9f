"""What is written out for the network equals automatic differentiation."""

from __future__ import annotations

import pytest
import torch

from botorch_structured.models.ablr.feature_maps import TanhNetwork
from botorch_structured.models.ablr.passes import Passes, TanhPasses, passes_of


def results(passes: Passes, chunks: list[torch.Tensor]) -> list[torch.Tensor]:
    """Features, derivatives to inputs and sums of those to parameters.

    The first two chunks are kept at the same time, the others use memory again.
    """
    found, kept = [], []
    for i, X in enumerate(chunks):
        kept.append(passes.forward(X))
        found.append(passes.features_of(kept[-1]))
        while i and kept:
            done = kept.pop()
            phi = passes.features_of(done)
            found.append(passes.backward(done, phi.cos() + phi))
    return [t for t in found if t is not None] + passes.sums()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("of_inputs", [True, False])
@pytest.mark.parametrize("held", [[], [0], "all"])
def test_network(bias: bool, of_inputs: bool, held: list[int] | str) -> None:
    bounds = torch.tensor([[0.0, -1.0, 2.0], [1.0, 3.0, 2.5]])
    network = TanhNetwork(3, widths=(7, 5, 4), bounds=bounds, bias=bias)
    everything = list(network.parameters())
    for i, p in enumerate(everything):
        p.requires_grad_(held != "all" and i not in held)
    parameters = [p for p in everything if p.requires_grad]
    g = torch.Generator().manual_seed(0)
    chunks = [torch.rand(n, 3, generator=g, dtype=torch.float64) for n in (6, 9, 2, 11)]
    quick = passes_of(network, parameters, of_inputs)
    assert isinstance(quick, TanhPasses)
    expected = results(Passes(network, parameters, of_inputs), chunks)
    found = results(quick, chunks)
    assert len(found) == len(chunks) * (1 + of_inputs) + len(parameters)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-12, atol=1e-13)


def test_a_subclass_may_compute_something_else() -> None:
    class Other(TanhNetwork):
        pass

    assert type(passes_of(Other(2), [], False)) is Passes


def test_an_own_forward_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    network = TanhNetwork(2)
    monkeypatch.setattr(network, "forward", lambda X: 3.0 * X)
    assert type(passes_of(network, [], False)) is Passes


def test_parameters_that_are_not_used_have_no_derivative() -> None:
    network = TanhNetwork(2, widths=(3,)).double()
    network.register_parameter("extra", torch.nn.Parameter(torch.ones(2).double()))
    passes = passes_of(network, list(network.parameters()), False)
    assert isinstance(passes, TanhPasses)
    found = results(passes, [torch.rand(4, 2).double() for _ in range(2)])
    names = list(dict(network.named_parameters()))
    named = dict(zip(names, found[-len(names) :], strict=True))
    assert named.pop("extra").tolist() == [0.0, 0.0]
    assert all(bool(g.any()) for g in named.values())
