"""Distributions, flows, Gaussian processes, Bayesian optimisation, metrics."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.outside.registry import Case, program


@program("gpytorch")
def gaussian_process() -> Case:
    import gpytorch

    class Model(gpytorch.models.ExactGP):
        def __init__(self, x: Tensor, y: Tensor, likelihood: Any) -> None:
            super().__init__(x, y, likelihood)
            self.mean = gpytorch.means.ConstantMean()
            self.kernel = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: Tensor) -> Any:
            return gpytorch.distributions.MultivariateNormal(self.mean(x), self.kernel(x))

    x = torch.linspace(0, 1, 8)
    likelihood = gpytorch.likelihoods.GaussianLikelihood().eval()
    model = Model(x, torch.sin(6 * x), likelihood).eval()

    def posterior(points: Tensor) -> tuple[Tensor, Tensor]:
        found = likelihood(model(points))
        return found.mean, found.variance

    return Case(posterior, (torch.rand(3),), (torch.rand(5),), (model, likelihood))


@program("gpytorch")
def kernels() -> Case:
    import gpytorch

    kernel = gpytorch.kernels.ScaleKernel(
        gpytorch.kernels.MaternKernel(nu=1.5) + gpytorch.kernels.PeriodicKernel()
    )

    def covariance(x: Tensor, y: Tensor) -> Tensor:
        return kernel(x, y).to_dense()

    first = (torch.rand(4, 2), torch.rand(5, 2))
    return Case(covariance, first, (torch.rand(6, 2), torch.rand(3, 2)), kernel)


@program("botorch")
def expected_improvement() -> Case:
    from botorch.acquisition import LogExpectedImprovement
    from botorch.models import SingleTaskGP

    x = torch.rand(6, 2, dtype=torch.float64)
    model = SingleTaskGP(x, (x.sum(1, keepdim=True) * 3).sin()).eval()
    acquisition = LogExpectedImprovement(model, best_f=0.5)

    def improvement(points: Tensor) -> Tensor:
        return acquisition(points)

    first, second = (torch.rand(n, 1, 2, dtype=torch.float64) for n in (3, 5))
    return Case(improvement, (first,), (second,), model)


@program("botorch")
def pareto_front() -> Case:
    from botorch.utils.multi_objective.hypervolume import Hypervolume
    from botorch.utils.multi_objective.pareto import is_non_dominated

    def front(points: Tensor) -> tuple[Tensor, float]:
        best = points[is_non_dominated(points)]
        return best, Hypervolume(torch.zeros(2)).compute(best)

    return Case(front, (torch.rand(6, 2),), (torch.rand(9, 2),))


@program("zuko")
def spline_flow() -> Case:
    import zuko

    flow = zuko.flows.NSF(3, 2, transforms=1, hidden_features=(8,))

    def likelihood(x: Tensor, context: Tensor) -> Tensor:
        return flow(context).log_prob(x)

    first = (torch.randn(4, 3), torch.randn(4, 2))
    return Case(likelihood, first, (torch.randn(7, 3), torch.randn(7, 2)), flow)


@program("zuko")
def flow_samples() -> Case:
    import zuko

    flow = zuko.flows.MAF(3, 2, transforms=1, hidden_features=(8,))

    def sampled(context: Tensor) -> Tensor:
        return flow(context).sample()

    return Case(sampled, (torch.randn(4, 2),), (torch.randn(7, 2),), flow)


@program("pyro-ppl")
def mixture() -> Case:
    from pyro.distributions import Categorical, MixtureSameFamily, Normal

    def likelihood(x: Tensor, logits: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
        found = MixtureSameFamily(Categorical(logits=logits), Normal(means, 1.0))
        return found.log_prob(x), found.mean

    first = (torch.randn(5), torch.randn(3), torch.randn(3))
    return Case(likelihood, first, (torch.randn(8), torch.randn(4), torch.randn(4)))


@program("pyro-ppl")
def hidden_markov_model() -> Case:
    from pyro.distributions import DiscreteHMM, Normal

    def likelihood(x: Tensor, initial: Tensor, transition: Tensor) -> Tensor:
        states = Normal(torch.arange(3.0), 1.0)
        return DiscreteHMM(initial, transition, states, duration=len(x)).log_prob(x)

    def drawn(steps: int) -> tuple[Tensor, Tensor, Tensor]:
        return torch.randn(steps), torch.randn(3), torch.randn(3, 3)

    return Case(likelihood, drawn(5), drawn(8))


@program("torchmetrics")
def classification_metrics() -> Case:
    from torchmetrics.functional.classification import multiclass_auroc, multiclass_f1_score

    def scores(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        found = multiclass_f1_score(logits, labels, 3)
        return found, multiclass_auroc(logits.softmax(-1), labels, 3, thresholds=5)

    first = (torch.randn(9, 3), torch.arange(9) % 3)
    return Case(scores, first, (torch.randn(15, 3), torch.arange(15) % 3))


@program("torchmetrics")
def running_metric() -> Case:
    from torchmetrics.regression import PearsonCorrCoef

    metric = PearsonCorrCoef()

    def correlation(x: Tensor, y: Tensor) -> Tensor:
        metric.update(x, y)
        return metric.compute()

    first = (torch.randn(9), torch.randn(9))
    return Case(correlation, first, (torch.randn(15), torch.randn(15)), metric)
