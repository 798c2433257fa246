"""Detection and dense prediction."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from tests.outside.registry import Case, program


def _detection() -> Any:
    """torchvision's detection models.

    Wheels of torchvision from the index are built for CUDA and lack their operators beside a build
    of torch for CPUs: `nms` is then given by `_nms`. What the package has for `roi_align` would be
    compiled by torch.compile, for most of a minute.
    """
    from torchvision import extension
    from torchvision.models import detection

    if not extension._has_ops():
        _library.impl("nms", _nms, "CPU")
        extension._has_ops = lambda: True
        torch._dynamo.config.disable = True
    return detection


_library = torch.library.Library("torchvision", "FRAGMENT")


def _nms(boxes: Tensor, scores: Tensor, threshold: float) -> Tensor:
    """Boxes, the best first, that overlap with none of those kept before by more than threshold."""
    from torchvision.ops import box_iou

    order = scores.argsort(descending=True, stable=True).tolist()
    overlaps = box_iou(boxes, boxes) > threshold
    kept: list[int] = []
    for box in order:
        if not any(overlaps[box, other] for other in kept):
            kept.append(box)
    return torch.tensor(kept, dtype=torch.int64)


class Backbone(nn.Module):
    """Two feature maps of an image."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.out_channels: Any = channels
        self.stem = nn.Conv2d(3, channels, 3, stride=4, padding=1)
        self.down = nn.Conv2d(channels, channels, 3, stride=2, padding=1)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        fine = self.stem(x).relu()
        return {"0": fine, "1": self.down(fine).relu()}


def _sure(model: nn.Module) -> nn.Module:
    """The model with larger weights: scores that are nearly equal have no order to compare."""
    for weight in model.parameters():
        if weight.dim() > 1:
            weight.normal_(0, 0.1)
    return model.eval()


def _anchors(count: int = 1) -> Any:
    from torchvision.models.detection.anchor_utils import AnchorGenerator

    return AnchorGenerator(((8,), (16,)), ((0.5, 1.0, 2.0)[:count],) * 2)


def _images(*sizes: tuple[int, int]) -> tuple[list[Tensor]]:
    return ([torch.rand(3, *size) for size in sizes],)


@program("torchvision")
def faster_rcnn() -> Case:
    from torchvision.ops import MultiScaleRoIAlign

    model = _detection().FasterRCNN(
        Backbone(), 3, min_size=32, max_size=48, rpn_anchor_generator=_anchors(3),
        box_roi_pool=MultiScaleRoIAlign(["0", "1"], 4, 2), rpn_post_nms_top_n_test=10,
        box_detections_per_img=5, box_score_thresh=0.1,
    )  # fmt: skip
    return Case(_sure(model), _images((32, 40)), _images((40, 32), (30, 36)))


@program("torchvision")
def retinanet() -> Case:
    model = _detection().RetinaNet(
        Backbone(), 3, min_size=32, max_size=48, anchor_generator=_anchors(3), score_thresh=0.005,
        topk_candidates=20, detections_per_img=5,
    )  # fmt: skip
    return Case(_sure(model), _images((32, 40)), _images((40, 32), (30, 36)))


@program("torchvision")
def fcos() -> Case:
    model = _detection().FCOS(
        Backbone(32), 3, min_size=32, max_size=48, anchor_generator=_anchors(), score_thresh=0.05,
        topk_candidates=20, detections_per_img=5,
    )  # fmt: skip
    return Case(_sure(model), _images((32, 40)), _images((40, 32), (30, 36)))


@program("torchvision")
def ssd() -> Case:
    _detection()
    from torchvision.models.detection.anchor_utils import DefaultBoxGenerator
    from torchvision.models.detection.ssd import SSD

    backbone = Backbone()
    backbone.out_channels = [8, 8]
    model = SSD(
        backbone, DefaultBoxGenerator([[2], [2]]), (32, 32), 3, score_thresh=0.1,
        topk_candidates=20, detections_per_img=5,
    )  # fmt: skip
    return Case(_sure(model), _images((32, 40)), _images((40, 32), (30, 36)))


def _boxes(count: int) -> Tensor:
    corners = torch.rand(count, 2) * 20
    return torch.cat([corners, corners + 1 + torch.rand(count, 2) * 15], 1)


@program("torchvision", fast=True)
def batched_nms() -> Case:
    _detection()
    from torchvision.ops import batched_nms, clip_boxes_to_image, remove_small_boxes

    def kept(boxes: Tensor, scores: Tensor, classes: Tensor) -> tuple[Tensor, Tensor]:
        boxes = clip_boxes_to_image(boxes, (24, 24))
        large = remove_small_boxes(boxes, 3.0)
        boxes, scores, classes = boxes[large], scores[large], classes[large]
        best = batched_nms(boxes, scores, classes, 0.3)[:5]
        return boxes[best], scores[best]

    first, second = (
        (_boxes(count), torch.rand(count), torch.randint(0, 3, (count,))) for count in (9, 17)
    )
    return Case(kept, first, second)


@program("torchvision", fast=True)
def box_losses() -> Case:
    from torchvision.ops import box_convert, complete_box_iou_loss, generalized_box_iou

    def losses(boxes: Tensor, others: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        matched = others[generalized_box_iou(boxes, others).argmax(1)]
        loss = complete_box_iou_loss(boxes, matched, reduction="mean")
        return loss, box_convert(matched, "xyxy", "cxcywh"), matched

    return Case(losses, (_boxes(4), _boxes(6)), (_boxes(7), _boxes(3)))


@program("torchvision", fast=True)
def roi_align_of_levels() -> Case:
    _detection()
    from torchvision.ops import MultiScaleRoIAlign

    pool = MultiScaleRoIAlign(["0", "1"], 3, 2)

    def pooled(image: Tensor, boxes: list[Tensor]) -> Tensor:
        maps = {"0": image[:, :, ::4, ::4], "1": image[:, :, ::8, ::8]}
        return pool(maps, boxes, [(48, 48)] * len(boxes))

    first = (torch.rand(1, 2, 48, 48), [_boxes(5)])
    return Case(pooled, first, (torch.rand(2, 2, 48, 48), [_boxes(4), _boxes(3)]))


@program("torchvision")
def raft() -> Case:
    from torchvision.models.optical_flow import raft_small

    model = raft_small(weights=None).eval()

    def flow(one: Tensor, other: Tensor) -> Tensor:
        return model(one, other, num_flow_updates=3)[-1]

    sizes = (1, 3, 128, 128), (1, 3, 128, 136)
    first, second = ((torch.rand(size), torch.rand(size)) for size in sizes)
    return Case(flow, first, second, model)


@program("monai")
def sliding_windows() -> Case:
    from monai.inferers import sliding_window_inference
    from monai.networks.nets import UNet

    net = UNet(2, 1, 2, channels=(4, 8), strides=(2,)).eval()

    def segmented(image: Tensor) -> Tensor:
        return sliding_window_inference(image, (16, 16), 2, net, overlap=0.25)

    return Case(segmented, (torch.rand(1, 1, 24, 24),), (torch.rand(1, 1, 30, 20),), net)


@program("monai")
def dice_metric() -> Case:
    from monai.losses import DiceCELoss
    from monai.metrics import compute_dice

    loss = DiceCELoss(to_onehot_y=True, softmax=True)

    def scores(logits: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
        hard = torch.nn.functional.one_hot(logits.argmax(1), 3).movedim(-1, 1)
        truth = torch.nn.functional.one_hot(labels[:, 0], 3).movedim(-1, 1)
        return loss(logits, labels), compute_dice(hard, truth)

    first, second = ((torch.randn(n, 3, 8, 8), torch.randint(0, 3, (n, 1, 8, 8))) for n in (2, 3))
    return Case(scores, first, second)


@program("segmentation-models-pytorch")
def unet_of_a_package() -> Case:
    import segmentation_models_pytorch as smp

    net = smp.Unet("resnet18", encoder_weights=None, encoder_depth=3, decoder_channels=(16, 8, 4))
    return Case(net.eval(), (torch.rand(1, 3, 32, 32),), (torch.rand(2, 3, 32, 48),))
