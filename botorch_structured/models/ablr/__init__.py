r"""Multiple adaptive Bayesian linear regression: many tasks, linear in their rows.

Choose ``MultiTaskABLR`` to model many tasks jointly, with a hundred evaluations or
hundreds of thousands, or where other signals come with the objective. With a few
hundred rows of a few tasks BoTorch's ``MultiTaskGP``, cubic in the rows, also transfers
levels between tasks. For a new search of the same space after old ones see
``botorch_structured.models.tree.old_studies``.

What [Perrone2017multiple]_ has, and where it is (modules of this package):

=========================================== ============================================
the paper                                   here
=========================================== ============================================
section 2, model ``y_t = Phi_z w_t + eps``  ``multi_task_ablr.MultiTaskABLR``
its covariance, written out                 ``hyperparameters.TaskFeatureKernel``
(1) predictive mean                         ``regressions.Regressions.weights``, then
                                            ``regressions.WeightPosterior.at``
(2) predictive variance                     the same (its root), and the noise 1 / alpha
                                            in ``MultiTaskABLR.posterior``
``K_t``, ``L_t``, ``c_t``                   ``regressions.solve``: a QR factor in place
                                            of a Cholesky factor
(3) rho, and its gradient                   ``regressions.Regressions.log_evidence``:
                                            minus rho, ``-N / 2 log(2 pi)`` included
section 2.1, empirical Bayes                ``MultiTaskABLR.custom_fit``
section 2.2, ``tanh`` network               ``feature_maps.TanhNetwork``;
                                            ``feature_maps.published_network``
section 2.2, L-BFGS over z, alpha, beta     ``MultiTaskABLR.custom_fit``
section 2.3, random Fourier features        ``kernels.RandomFourierFeatures``
section 3.1, quadratic tasks                ``test_functions.QuadraticTasks``,
                                            ``benchmarks.quality.quadratics``
section 3.1, contexts as inputs of a GP     not here: the paper found no clear gain for
                                            ABLR; they may be columns of ``train_X``
section 3.2, OpenML random forests          ``benchmarks.quality.forests``; data of
                                            another study stand in for flow 6794
section 3.3, heterogeneous signals          ``MultiTaskABLR(..., task_feature=None)``,
                                            ``benchmarks.quality.signals``
section 3, tasks and signals at once        not here: the paper's future work
=========================================== ============================================

``MultiTaskABLR.as_published`` is the paper's model without the priors and scales that
the default adds. Beyond the paper: exchangeable priors of the precisions
(``hyperparameters``), updates by one outcome
(``regressions.WeightPosterior.update``), whole sampled functions
(``multi_task_ablr.WeightPath``) and rows that are spread over processes
(``processes.Processes``).

References:

.. [Perrone2017multiple]
    V. Perrone, R. Jenatton, M. Seeger and C. Archambeau. Multiple Adaptive Bayesian
    Linear Regression for Scalable Bayesian Optimization with Warm Start.
    arXiv:1712.02902, 2017.
"""
