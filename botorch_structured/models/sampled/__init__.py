"""GPs averaged over samples of their hyperparameters, drawn by slice sampling.

Choose it where there are few points for the number of hyperparameters: any BoTorch GP
with priors can be sampled with ``botorch_structured.fit.fit_slice_sampling``, and every
acquisition function averages over the ``SampledGP`` that results. With many points the
MAP estimate of ``fit_gpytorch_mll`` predicts the same at a fraction of the cost.

Where the equations are (``fit`` is ``botorch_structured.fit``, other modules are in
this folder)::

    Levesque et al. (2017)
      section V, hyperparameters by slice sampling     fit.fit_slice_sampling
      section V, priors on l, sigma_f and sigma_n      models.tree.conditional_gp
      priors as functions of one number                priors.scalar_log_densities
      equations (6), (7): local search                 optim.local_search
      equations (8) to (10): conditional kernel        models.tree.conditional_kernel
      equation (11): Laplace kernel                    kernels.laplace
      section III-A, imputation                        transforms.impute
    Snoek et al. (2012)
      acquisition averaged over hyperparameters        sampled_gp.SampledGP
      posterior of each sample, all at once            folded_prediction.FoldedPredictor
    Neal (2003)
      figure 3, stepping out                           slice_sampling.slice_update
      figure 5, shrinkage                              slice_sampling.slice_update
      one coordinate at a time                         slice_sampling.SliceSampler
      figure 4, doubling                               not here: stepping out with tuned
                                                       widths takes five evaluations
    Murray and Adams (2010)
      p(y | theta) p(theta), the definition            density.ModelDensity
      the same for plain GPs, incrementally            density.StationaryDensity
      theta: values with priors, logarithms            coordinates.PriorCoordinates
      surrogate data for latent values                 not here: Gaussian noise leaves
                                                       no latent values to sample
    Vehtari et al. (2021)
      split R-hat                                      chains.split_r_hat
      effective sample size                            chains.effective_sample_size
      rank normalisation, folding                      not here: values are sampled as
                                                       logarithms, with light tails

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
