r"""GPs over spaces where parameters exist only for some values of others.

Choose ``TreeStructuredGP`` (Jenatton et al. 2017) where branches share columns, or have
too few points each to learn their level: it estimates both from all branches.
Choose ``ConditionalGP`` (Levesque et al. 2017) where branches have nothing in common
but the scale of the outcome. Both covariances have a block for each leaf, the
former also a low-rank part from a few weights. Both models have the same inference
(``leaf_model``, ``leaf_inference``, ``linalg.blocks``).

Jenatton, Archambeau, Gonzalez and Seeger (ICML 2017)

==================  ====================================================================
equation, section   where
==================  ====================================================================
(1), 2.1            ``tree_structured_gp.TreeStructuredGP``; the free b_p are
                    ``kernels.tree_structured_kernel.PathMean``
(2), 2.2            not computed: (3) and (4) are this joint density with g and c
                    integrated out
p(c | y), 2.2       ``linalg.blocks.factorise`` (Lambda_c in units of the
                    prior), ``TreeStructuredGP.weight_posterior``
p(g | c, y), 2.2    ``solver.LeafSolver``, with c integrated out as in 3.2
(3), 2.3            ``leaf_inference.log_evidence``, with its gradient; in fits
                    ``objective.LeafObjective``, log priors included
(4), 2.3            ``kernels.tree_structured_kernel.TreeStructuredKernel.forward``
z_p with r_v, 2.4   ``kernels.tree_structured_kernel.WeightFeatures.forward``
naive, 3.1          ``optim.optimize_acqf_paths``: the best over all paths
two steps, 3.1      ``optim.optimize_acqf_two_step``
(5), 3.2            ``botorch.acquisition.ExpectedImprovement`` of the model
m~_p, S~_p, 3.2     ``moments.LeafMoments`` for points one by one (t_p is its
                    z - H'w), ``solver.LeafSolver.predict`` for joint ones
alpha(x, p), 3.2    as (5); xi is (y_min - m~) / sigma~, where the paper prints its
                    negative
(6), 3.2            ``acquisition.PathExpectedImprovement``, from
                    ``TreeStructuredGP.path_posterior``
independent, 4      options in the docstring of ``TreeStructuredGP``
marginal, 4         ``TreeStructuredKernel`` in a ``SingleTaskGP``
Figure 1, 4.1       ``test_functions.JenattonTree``
basis, 4.3          ``shared_features="fourier"``: stratified frequencies in place
                    of random ones (``kernels.tree_structured_kernel.WeightFeatures``)
K~_p, 5             ``context_features`` of ``TreeStructuredGP``:
                    ``TreeStructuredKernel.leaf_covariance``
alpha / cost, 5     ``acquisition.ContextLogExpectedImprovement``
(p*, beta*), 5      ``acquisition.PathContextLogExpectedImprovement``, with
                    ``improvement="published"`` as printed
hyperband, 5        rows as any others: ``space.encode`` with the context by name
==================  ====================================================================

``TreeStructuredGP.as_published`` is sections 2 to 4 with the paper's choices.

Levesque, Durand, Gagne and Sabourin (IJCNN 2017)

==================  ====================================================================
equation, section   where
==================  ====================================================================
(1), (2), III       the problem; ``test_functions.ScikitLearnCASH`` has one
(3), (4), III       ``solver.LeafSolver``, block by block; other kernels:
                    GPyTorch's prediction
imputation, III-A   ``transforms.Impute``; ``spaces.ParameterTree.impute``
(5), III-A          ``gpytorch.kernels.RBFKernel`` (l = 2 lengthscale^2)
(6), III-B          ``optim.optimize_acqf_local_search``
(7), III-B          ``optim.walk.Neighbourhood``
(8), IV-A           ``kernels.leaf_kernels.LeafKernel._covariance``
(9), IV-A           ``ConditionalKernel.leaf_covariance``
(10), IV-A          ``linalg.blocks.factorise`` (Cholesky factors, no inverses);
                    in fits ``objective.LeafObjective``
(11), IV-B          ``kernels.LaplaceKernel``, one lengthscale per column as in V
Mondrian, IV-B      ``kernels.MondrianKernel``
priors, V           ``conditional_gp.ConditionalGP``,
                    ``linalg.parameters.horseshoe_likelihood``
slice sampling, V   ``fit.fit_slice_sampling``
==================  ====================================================================
"""
