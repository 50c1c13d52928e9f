"""Gaussian processes with known signs of derivatives, and sums of observed functions.

Choose ``MonotoneGP`` if an outcome is known to rise, or to fall, with some columns, and
``DecomposedGP`` if an evaluation returns the parts of a sum that is optimised. The
paper optimises a ``DecomposedGP`` whose components are ``MonotoneGP`` s.

**Wang and Welch (2018)**, whose equations have no numbers: section, equation -> name.

* 2.1, algorithm 1, the loop; GP regression
  -> BoTorch (``fit_gpytorch_mll``, ``optimize_acqf``)
* 2.2, P(M_ij = true | df/dx_j(V_i) = z) = Phi(z / nu), with nu = 0.1
  -> ``monotone_gp.MonotoneGP`` (``monotone``, ``nu``),
  ``expectation_propagation.probit_site``
* 2.2, the set V of virtual points; grids of 10 (3.2), 10 x 10 (4.1), 4 x 4 x 4 (4.2)
  -> ``monotone_gp.default_virtual_points``
* 2.2, the conditional GP by expectation propagation
  -> ``expectation_propagation.expectation_propagation``,
  ``derivative_process.DerivativeProcess``
* 2.2, hyperparameters by a MAP estimate given data and signs (no priors are named)
  -> ``monotone_gp.MonotoneGP`` with ``signs_in_fit=True``
* 2.3, shape constraints on the objective itself (Jauch and Pena)
  -> not implemented: the paper argues against them
* 3.1, f(x) = sum_i f_i(x), every f_i observed
  -> ``decomposed_gp.DecomposedGP``
* 3.1, f_i(.., x_j, ..) <= f_i(.., x_j', ..), or >=
  -> ``monotone_gp.MonotoneGP`` (``monotone={j: +1}``, or -1)
* 3.1, means add and variances add
  -> ``decomposed_gp.DecomposedGP.posterior``
* 3.1, expected improvement of the sum
  -> BoTorch (``LogExpectedImprovement`` of a ``DecomposedGP``)
* 3.1, zero mean, constant variance, isotropic squared exponential, Gaussian noise
  -> ``monotone_gp.MonotoneGP.as_published``
* 3.1, four initial evaluations; 3.2, f, f_1 and f_2; 4, err, e, E and
  validation = training error + gap; 4.1, l(beta), P_alpha and mse; 4.2, 4.3
  -> the problems ``MonotoneMixture1D`` and ``ElasticNetTuning`` of ``test_functions``,
  (forests and networks were tuned at commit a40163fe, ``benchmarks/problems``)
* 5, virtual points one at a time where a sign is least probable (Wang and Berger 2016)
  -> ``monotone_gp.MonotoneGP`` by default (``min_probability``)
* 5, points that fill the space more sparsely than a grid
  -> ``monotone_gp.default_virtual_points`` (Sobol in place of Latin hypercubes)
* 5, projection of samples onto monotone functions (Lin and Dunson 2014)
  -> not implemented: projected samples have no joint density
* 5, gain d (p - c), optimised as log d + log(p - c)
  -> ``decomposed_gp.DecomposedGP`` with a ``DeterministicModel``

**Riihimaki and Vehtari (2010)**, the parts that are used: equation -> name.

* (1) to (4) and log p(y | X), GP regression
  -> GPyTorch
* section 2, mean of a derivative
  -> ``derivative_process.partial_of_mean``
* section 2, covariances of values and derivatives
  -> ``derivative_process.DerivativeCovariance`` (Matern-5/2 as well)
* section 2, posterior of a derivative
  -> ``monotone_gp.MonotoneGP.derivative_posterior``
* (5) and (8), the probit likelihood
  -> ``expectation_propagation.probit_log_mass``
* (6), joint prior of values and derivatives
  -> ``derivative_process.DerivativeProcess``; EP runs on the derivatives given the
  data alone
* (7), the posterior, and (9), its Gaussian approximation
  -> ``expectation_propagation.expectation_propagation``
* (10), means and variances of the sites, as shifts and precisions
  -> ``expectation_propagation.EPResult``, ``derivative_process.Sites``
* after (10), the moments Z^, mu^ and sigma^2
  -> ``expectation_propagation.probit_log_mass``,
  ``expectation_propagation.probit_site``,
  ``expectation_propagation.truncated_moments``
* after (10), log Z_EP
  -> GPyTorch's evidence of the data plus ``monotone_gp.SignEvidence``;
  ``array_evidence.ArraySignEvidence`` with its gradient, on arrays
* after (10), E[f*] and Var[f*] given data and signs
  -> ``derivative_process.DerivativeProcess.posterior``
* section 3, classification
  -> not implemented: outcomes are real numbers
* section 3.1, virtual points on a grid, or where a sign is improbable
  -> ``monotone_gp.default_virtual_points``,
  ``monotone_gp.choose_signs``
"""
