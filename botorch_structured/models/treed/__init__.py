"""Treed GPs: a GP with its own hyperparameters in each region, regions being found.

Choose ``TreedGP`` when an objective is flat in one region and rough in another, jumps,
or has noise that differs between regions, and the regions are not known. Where they are
known (decisions), use ``TreeStructuredGP`` or ``ConditionalGP``; where smoothness
changes gradually, BoTorch's ``Warp``.

From [Assael2014treed]_ (Heteroscedastic Treed Bayesian Optimisation) to the code, in
this package unless another is named:

=====================  ===============================================================
Section 2.1            Matern-5/2 with a lengthscale per column:
                       ``leaf_modules.TreedStationary``; expected improvement: BoTorch's
Section 3.1, U(A)      ``cart.split_by_variance``
Equation (1)           ``cart.split_by_variance``, and the tree:
                       ``cart.propose_by_variance``
Section 3.1, figure 1  tau at a data point that both children have: ``cart.Split``,
                       ``cart.TreeNode.divided``
Section 3.1, entropy   not implemented, as the paper found it no better; in its place
                       ``growth.propose_by_evidence``, by the evidence of GPs
                       (``growth.NodeEvidence``)
Equation (2)           ``objective.path_evidence``; log p(theta): the priors of
                       ``leaf_modules``
Section 3.2, w_i       ``objective.path_weight``; a leaf: ``objective.leaf_terms``
Section 3.2, maximum   ``treed_gp.TreedGP.custom_fit``,
                       ``models.stationary_evidence.StationaryObjective``
Section 3.2, MCMC      ``botorch_structured.fit.fit_slice_sampling``
Section 3.3            five points per leaf: ``min_leaf_size`` of ``TreedGP``; amplitude
                       and mean along the path: its ``path_sharing="all"``;
                       predictions from all observations: its ``condition_on="all"``,
                       ``prediction.TreedPredictor``; the tree is built anew at each
                       step: so is the model
Section 3.3, grid      ``botorch_structured.optim.optimize_acqf_sobol``
Section 4, HTBO WARP   ``warp=True`` of ``TreedGP``
Section 4, problems    ``botorch_structured.test_functions``: ``RKHS1D``,
                       ``GramacyExponential2D``, and the tables that are published
=====================  ===============================================================

``TreedGP.as_published`` is the method of the paper. The default splits by evidence,
shares only lengthscales along a path, has noise of its own in each leaf, and predicts
from the data of a leaf: these are not in the paper. Of large nodes a fit has some rows
(``objective.leaf_terms``).
"""
