"""GPs averaged over samples of their hyperparameters, drawn by slice sampling.

Choose this where there are few points for the number of hyperparameters.
``botorch_structured.fit.fit_slice_sampling`` samples those of any BoTorch GP with
priors, and every acquisition function averages over the resulting ``SampledGP``. With
many points the MAP estimate of ``fit_gpytorch_mll`` predicts the same in less time.

Where the equations are. The kernels of Levesque et al., their local search and their
imputation are in the table of ``models.tree``.

=======================================  ===============================================
Equation or section                      Function
=======================================  ===============================================
[Levesque2017conditional]_, section V:
  hyperparameters by slice sampling      ``botorch_structured.fit.fit_slice_sampling``
  priors on l, sigma_f and sigma_n       ``models.tree.conditional_gp.ConditionalGP``
  their densities, one number at a time  ``coordinates.scalar_log_densities``
[Snoek2012practical]_:
  acquisitions averaged over samples     ``sampled_gp.SampledGP``
  posteriors of all samples at once      ``sampled_gp.FoldedPredictor``
[Neal2003slice]_:
  figure 3, stepping out                 ``chains.slice_update``
  figure 5, shrinkage                    ``chains.slice_update``
  one coordinate at a time               ``chains.sample_chain``
  figure 4, doubling                     not used: stepping out with tuned widths takes
                                         five evaluations an update
[Murray2010slice]_:
  p(y | theta) p(theta)                  ``density.ModelDensity`` (any GP)
  the same for plain GPs, incrementally  ``density.StationaryDensity``
  theta, positive values as logarithms   ``coordinates.PriorCoordinates``
  surrogate data for latent values       not needed: with Gaussian noise latent values
                                         are integrated out
[Vehtari2021rank]_:
  split R-hat                            ``chains.split_r_hat``
  effective sample size                  ``chains.effective_sample_size``
  rank normalisation, folding            not used: values are sampled as logarithms,
                                         whose tails are light
=======================================  ===============================================

References:

.. [Levesque2017conditional]
    J.-C. Levesque, A. Durand, C. Gagne and R. Sabourin. Bayesian Optimization for
    Conditional Hyperparameter Spaces. IJCNN 2017.
.. [Snoek2012practical]
    J. Snoek, H. Larochelle and R. P. Adams. Practical Bayesian Optimization of Machine
    Learning Algorithms. NIPS 2012.
.. [Neal2003slice]
    R. M. Neal. Slice Sampling. Annals of Statistics 31(3), 2003.
.. [Murray2010slice]
    I. Murray and R. P. Adams. Slice Sampling Covariance Hyperparameters of Latent
    Gaussian Models. NeurIPS 2010.
.. [Vehtari2021rank]
    A. Vehtari, A. Gelman, D. Simpson, B. Carpenter and P.-C. Buerkner. Rank-
    Normalization, Folding, and Localization: An Improved R-hat for Assessing
    Convergence of MCMC. Bayesian Analysis 16(2), 2021.
"""
