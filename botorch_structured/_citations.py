"""The papers behind the package, as BibTeX."""

from __future__ import annotations

__all__ = ["BIBTEX", "cite"]

import inspect

_JENATTON = "Jenatton2017tree"
_LEVESQUE = "Levesque2017conditional"
_BALOG = "Balog2016mondrian"
_ASSAEL = "Assael2014treed"
_WANG = "Wang2018monotonicity"
_PERRONE = "Perrone2017multiple"

BIBTEX: dict[str, str] = {
    "Jenatton2017tree": """\
@inproceedings{Jenatton2017tree,
  author    = {Jenatton, Rodolphe and Archambeau, Cedric and Gonz{\\'a}lez, Javier and
               Seeger, Matthias},
  title     = {{Bayesian} Optimization with Tree-structured Dependencies},
  booktitle = {Proceedings of the 34th International Conference on Machine Learning},
  series    = {Proceedings of Machine Learning Research},
  volume    = {70},
  pages     = {1655--1664},
  year      = {2017},
}
""",
    "Levesque2017conditional": """\
@inproceedings{Levesque2017conditional,
  author    = {L{\\'e}vesque, Julien-Charles and Durand, Audrey and
               Gagn{\\'e}, Christian and Sabourin, Robert},
  title     = {{Bayesian} Optimization for Conditional Hyperparameter Spaces},
  booktitle = {2017 International Joint Conference on Neural Networks (IJCNN)},
  pages     = {286--293},
  year      = {2017},
}
""",
    "Balog2016mondrian": """\
@inproceedings{Balog2016mondrian,
  author    = {Balog, Matej and Lakshminarayanan, Balaji and Ghahramani, Zoubin and
               Roy, Daniel M. and Teh, Yee Whye},
  title     = {The {Mondrian} Kernel},
  booktitle = {Proceedings of the 32nd Conference on Uncertainty in Artificial
               Intelligence},
  year      = {2016},
}
""",
    "Assael2014treed": """\
@article{Assael2014treed,
  author    = {Assael, John-Alexander M. and Wang, Ziyu and Shahriari, Bobak and
               de Freitas, Nando},
  title     = {Heteroscedastic Treed {Bayesian} Optimisation},
  journal   = {arXiv preprint arXiv:1410.7172},
  year      = {2014},
}
""",
    "Perrone2017multiple": """\
@article{Perrone2017multiple,
  author    = {Perrone, Valerio and Jenatton, Rodolphe and Seeger, Matthias and
               Archambeau, C{\\'e}dric},
  title     = {Multiple Adaptive {Bayesian} Linear Regression for Scalable {Bayesian}
               Optimization with Warm Start},
  journal   = {arXiv preprint arXiv:1712.02902},
  year      = {2017},
}
""",
    "Wang2018monotonicity": """\
@article{Wang2018monotonicity,
  author    = {Wang, Wenyi and Welch, William J.},
  title     = {{Bayesian} Optimization Using Monotonicity Information and Its
               Application in Machine Learning Hyperparameter Tuning},
  journal   = {arXiv preprint arXiv:1802.03532},
  year      = {2018},
}
""",
}

# By name, so that this module imports nothing: a class here also covers what derives
# from it elsewhere.
_PAPER_OF: dict[str, str] = {
    "ConditionalGP": _LEVESQUE,
    "ConditionalKernel": _LEVESQUE,
    "DecomposedGP": _WANG,
    "ElasticNetTuning": _WANG,
    "GramacyExponential2D": _ASSAEL,
    "Impute": _LEVESQUE,
    "JenattonTree": _JENATTON,
    "LaplaceKernel": _LEVESQUE,
    "MondrianKernel": _BALOG,
    "MonotoneGP": _WANG,
    "MonotoneMixture1D": _WANG,
    "MultiTaskABLR": _PERRONE,
    "PathExpectedImprovement": _JENATTON,
    "PathLogExpectedImprovement": _JENATTON,
    "QuadraticTask": _PERRONE,
    "QuadraticTasks": _PERRONE,
    "RKHS1D": _ASSAEL,
    "RandomFourierFeatures": _PERRONE,
    "SampledGP": _LEVESQUE,
    "ScikitLearnCASH": _LEVESQUE,
    "TreeStructuredGP": _JENATTON,
    "TreeStructuredKernel": _JENATTON,
    "TreedGP": _ASSAEL,
    "adaptive_sobol_candidates": _ASSAEL,
    "fit_slice_sampling": _LEVESQUE,
    "optimize_acqf_local_search": _LEVESQUE,
    "optimize_acqf_random": _LEVESQUE,
    "optimize_acqf_sobol": _ASSAEL,
    "optimize_acqf_two_step": _JENATTON,
}


def cite(obj: object) -> str:
    """The BibTeX entry of the paper behind an object of this package.

    Args:
        obj: A model, kernel, acquisition function, problem or optimiser of this
            package, its class, or an instance of a class derived from one; or a key of
            the papers, such as ``"Jenatton2017tree"``.

    Raises:
        ValueError: Where no paper is known; it lists what is.

    Example:
        >>> print(cite(TreeStructuredGP))
    """
    if isinstance(obj, str):
        if obj in BIBTEX:
            return BIBTEX[obj]
    elif inspect.isfunction(obj):
        if _is_ours(obj.__module__) and obj.__name__ in _PAPER_OF:
            return BIBTEX[_PAPER_OF[obj.__name__]]
    else:
        for cls in inspect.getmro(obj if isinstance(obj, type) else type(obj)):
            if _is_ours(cls.__module__) and cls.__name__ in _PAPER_OF:
                return BIBTEX[_PAPER_OF[cls.__name__]]
    raise ValueError(
        f"obj: expected one of {', '.join(sorted(_PAPER_OF))}, or a key of "
        f"{', '.join(BIBTEX)}, got {obj!r}."
    )


def _is_ours(module: str) -> bool:
    return module.split(".")[0] == __name__.split(".")[0]
