"""Classification, geometry and diffusion of images."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.outside.registry import Case, program


def _timm(name: str, **settings: Any) -> Case:
    import timm

    model = timm.create_model(name, pretrained=False, num_classes=7, **settings).eval()
    return Case(model, (torch.rand(1, 3, 64, 64),), (torch.rand(3, 3, 64, 64),))


@program("timm")
def timm_vit() -> Case:
    return _timm("vit_tiny_patch16_224", img_size=64, depth=2, embed_dim=24)


@program("timm")
def timm_regnet() -> Case:
    return _timm("regnetx_002")


@program("timm")
def timm_levit() -> Case:
    return _timm("levit_128s", img_size=64)


@program("timm")
def timm_convnext() -> Case:
    return _timm("convnext_atto")


@program("vit-pytorch")
def navit() -> Case:
    from vit_pytorch.na_vit import NaViT

    model = NaViT(
        image_size=32, patch_size=8, num_classes=5, dim=16, depth=1, heads=2, mlp_dim=16,
        token_dropout_prob=None,
    ).eval()  # fmt: skip
    first = [[torch.rand(3, 16, 16), torch.rand(3, 16, 24)], [torch.rand(3, 32, 16)]]
    second = [[torch.rand(3, 24, 24)], [torch.rand(3, 16, 32), torch.rand(3, 8, 8)]]
    return Case(model, (first,), (second,))


@program("kornia")
def canny() -> Case:
    from kornia.filters import canny

    return Case(canny, (torch.rand(1, 1, 16, 16),), (torch.rand(1, 3, 20, 14),))


@program("kornia")
def homography_by_ransac() -> Case:
    from kornia.geometry.ransac import RANSAC

    ransac = RANSAC("homography", inl_th=0.5, batch_size=64, max_iter=2)

    def fitted(one: Tensor, other: Tensor) -> Any:
        return ransac(one, other)

    def pairs(count: int) -> tuple[Tensor, Tensor]:
        points = torch.rand(count, 2) * 20
        moved = points * 1.1 + torch.tensor([2.0, -1.0])
        moved[: count // 4] = torch.rand(count // 4, 2) * 20
        return points, moved

    return Case(fitted, pairs(20), pairs(32), ransac)


@program("kornia")
def corners() -> Case:
    from kornia.feature import gftt_response
    from kornia.geometry.subpix import nms2d

    def found(image: Tensor) -> tuple[Tensor, Tensor]:
        response = nms2d(gftt_response(image), (3, 3))
        return (response > 0.1 * response.max()).nonzero(), response

    return Case(found, (torch.rand(1, 1, 12, 12),), (torch.rand(1, 1, 16, 10),))


@program("kornia")
def warped() -> Case:
    from kornia.geometry.transform import get_rotation_matrix2d, warp_affine

    def turned(image: Tensor, degrees: Tensor) -> Tensor:
        height, width = image.shape[-2:]
        centre = torch.tensor([[width / 2, height / 2]]).repeat(len(image), 1)
        scale = torch.ones(len(image), 2)
        matrix = get_rotation_matrix2d(centre, degrees, scale)
        return warp_affine(image, matrix, (height, width))

    first = (torch.rand(1, 3, 12, 16), torch.tensor([30.0]))
    return Case(turned, first, (torch.rand(2, 3, 20, 10), torch.tensor([45.0, -10.0])))


def _denoised(name: str, steps: int = 5, **settings: Any) -> Case:
    """The loop of a pipeline: a model, and a scheduler of the package."""
    import diffusers

    model = torch.nn.Conv2d(3, 3, 3, padding=1)
    scheduler = getattr(diffusers, name)(num_train_timesteps=100, **settings)

    def sample(image: Tensor) -> Tensor:
        scheduler.set_timesteps(steps)
        image = image * scheduler.init_noise_sigma
        for t in scheduler.timesteps:
            scaled = scheduler.scale_model_input(image, t)
            noise = torch.tanh(model(scaled))
            image = scheduler.step(noise, t, image).prev_sample
        return image

    return Case(sample, (torch.randn(1, 3, 8, 8),), (torch.randn(2, 3, 8, 12),), model)


@program("diffusers")
def euler_scheduler() -> Case:
    return _denoised("EulerDiscreteScheduler")


@program("diffusers")
def euler_ancestral_scheduler() -> Case:
    return _denoised("EulerAncestralDiscreteScheduler")


@program("diffusers")
def dpm_scheduler() -> Case:
    return _denoised("DPMSolverMultistepScheduler", algorithm_type="dpmsolver++")


@program("diffusers")
def lms_scheduler() -> Case:
    return _denoised("LMSDiscreteScheduler")


@program("diffusers")
def ddim_scheduler() -> Case:
    return _denoised("DDIMScheduler")


@program("diffusers")
def ddpm_scheduler() -> Case:
    return _denoised("DDPMScheduler")


@program("diffusers")
def pndm_scheduler() -> Case:
    return _denoised("PNDMScheduler")
