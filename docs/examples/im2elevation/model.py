"""IM2ELEVATION: the height of each pixel of one aerial image.

`paper` is the published network, with an SENet-154 as its encoder. `small` has the same layers, fewer of them and narrower ones.
Parameters have the names of the published weights; the encoder has those of timm's `legacy_senet154`.
"""

import torch
from torch import nn
from torch.nn import functional as F


class SEModule(nn.Module):
    """Squeeze-and-excitation: a factor for each channel."""

    def __init__(self, channels, reduction):
        super().__init__()
        self.fc1 = nn.Conv2d(channels, channels // reduction, 1)
        self.fc2 = nn.Conv2d(channels // reduction, channels, 1)

    def forward(self, x):
        return x * self.fc2(F.relu(self.fc1(x.mean((2, 3), keepdim=True)))).sigmoid()


class SEBottleneck(nn.Module):
    def __init__(self, inside, planes, groups, reduction, stride=1, kernel=None):
        super().__init__()
        outside = 4 * planes
        self.conv1 = nn.Conv2d(inside, 2 * planes, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(2 * planes)
        self.conv2 = nn.Conv2d(2 * planes, outside, 3, stride, 1, groups=groups, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.conv3 = nn.Conv2d(outside, outside, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outside)
        self.se_module = SEModule(outside, reduction)
        self.downsample = kernel and nn.Sequential(
            nn.Conv2d(inside, outside, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outside)
        )

    def forward(self, x):
        y = F.relu(self.bn1(self.conv1(x)))
        y = F.relu(self.bn2(self.conv2(y)))
        y = self.se_module(self.bn3(self.conv3(y)))
        return F.relu(y + (self.downsample(x) if self.downsample else x))


class SENet(nn.Module):
    """The encoder. SENet-154 has `width` 64, 64 groups and 3, 8, 36 and 3 blocks.

    It returns the output of the second convolution of the stem, and those of the four layers: `width` x 1, 4, 8, 16 and 32 channels.
    """

    def __init__(self, width, blocks, groups, reduction):
        super().__init__()
        self.layer0 = nn.Sequential()
        for number, (inside, outside) in enumerate([(3, width), (width, width), (width, 2 * width)], 1):
            stride = 2 if number == 1 else 1
            self.layer0.add_module(f"conv{number}", nn.Conv2d(inside, outside, 3, stride, 1, bias=False))
            self.layer0.add_module(f"bn{number}", nn.BatchNorm2d(outside))
            self.layer0.add_module(f"relu{number}", nn.ReLU())
        inside = 2 * width
        for number, count in enumerate(blocks, 1):
            planes = width << (number - 1)
            stride, kernel = (1, 1) if number == 1 else (2, 3)
            layer = [SEBottleneck(inside, planes, groups, reduction, stride, kernel)]
            inside = 4 * planes
            layer += [SEBottleneck(inside, planes, groups, reduction) for _ in range(count - 1)]
            self.add_module(f"layer{number}", nn.Sequential(*layer))
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        self.down = UpProjection(width, 2 * width)  # never used; a part of the published weights

    def forward(self, image):
        block0 = self.layer0[:6](image)
        x = F.max_pool2d(self.layer0[6:](block0), 3, 2, ceil_mode=True)
        block1 = self.layer1(x)
        block2 = self.layer2(block1)
        block3 = self.layer3(block2)
        return block0, block1, block2, block3, self.layer4(block3)


class UpProjection(nn.Module):
    """Resizes to `size`, and then adds a branch of two convolutions and one of a single convolution."""

    def __init__(self, inside, outside):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 5, padding=2, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv1_2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bn1_2 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(inside, outside, 5, padding=2, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)

    def forward(self, x, size):
        x = F.interpolate(x, size, mode="bilinear", align_corners=False)
        y = self.bn1_2(self.conv1_2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + self.bn2(self.conv2(x)))


class D2(nn.Module):
    """The decoder. Some of its convolutions and BatchNorms are used twice, and `bn3` three times."""

    def __init__(self, width):
        super().__init__()
        self.conv, self.bn = nn.Conv2d(32 * width, 16 * width, 1, bias=False), nn.BatchNorm2d(16 * width)
        for number, outside in enumerate((8 * width, 4 * width, 2 * width), 1):
            self.add_module(f"up{number}", UpProjection(2 * outside, outside))
            self.add_module(f"conv{number}", nn.Conv2d(2 * outside, outside, 1, bias=False))
            self.add_module(f"bn{number}", nn.BatchNorm2d(outside))
        self.up4 = UpProjection(2 * width, width)
        self.conv4 = nn.Conv2d(2 * width, 2 * width, 3, padding=1, bias=False)

    def forward(self, block0, block1, block2, block3, block4):
        x = F.relu(self.bn(self.conv(block4)))
        x = self.up1(x, block3.shape[-2:])
        skip = F.relu(self.bn1(self.conv1(block3)))
        x = F.relu(self.bn1(self.conv1(torch.cat([x, skip], 1))))
        # The published network also computes `up2` of x, and then drops it. So block2 reaches the decoder nowhere.
        x = F.relu(self.bn2(self.conv2(x)))
        x = self.up3(x, block1.shape[-2:])
        skip = F.relu(self.bn3(self.conv3(block1)))
        x = F.relu(self.bn3(self.conv3(torch.cat([x, skip], 1))))
        x = self.up4(x, block0.shape[-2:])
        return F.relu(self.bn3(self.conv4(torch.cat([x, block0], 1))))


class MFF(nn.Module):
    """Multi-scale feature fusion: all five outputs of the encoder at the size of the first."""

    def __init__(self, width):
        super().__init__()
        part = width // 4
        for number, factor in enumerate((1, 4, 8, 16, 32)):
            self.add_module(f"up{number}", UpProjection(factor * width, part))
        self.conv, self.bn = nn.Conv2d(5 * part, 5 * part, 5, padding=2, bias=False), nn.BatchNorm2d(5 * part)

    def forward(self, *blocks):
        size = blocks[0].shape[-2:]
        ups = (self.up0, self.up1, self.up2, self.up3, self.up4)
        return F.relu(self.bn(self.conv(torch.cat([up(x, size) for up, x in zip(ups, blocks)], 1))))


class R(nn.Module):
    """Refinement: one number for each pixel."""

    def __init__(self, width):
        super().__init__()
        inside, middle = 2 * width + 5 * (width // 4), 9 * width // 4
        widths = (inside, middle, middle, middle, middle // 2)
        for number, kernel in enumerate((1, 5, 5, 3)):
            self.add_module(f"conv{number}", nn.Conv2d(widths[number], widths[number + 1], kernel, padding=kernel // 2))
            self.add_module(f"bn{number}", nn.BatchNorm2d(widths[number + 1]))
        self.conv4 = nn.Conv2d(middle // 2, 1, 1)

    def forward(self, x):
        x = F.relu(self.bn0(self.conv0(x)))
        x = F.relu(self.bn1(self.conv1(x)))
        x = F.relu(self.bn2(self.conv2(x)))
        return self.conv4(F.relu(self.bn3(self.conv3(x))))


class Im2Elevation(nn.Module):
    """Heights in metres, at half of the image's size, and the loss of each image. The loss counts in units of `unit` metres."""

    def __init__(self, width, blocks, groups, reduction, unit):
        super().__init__()
        self.E = SENet(width, blocks, groups, reduction)
        self.D2 = D2(width)
        self.MFF = MFF(width)
        self.R = R(width)
        self.unit = unit

    def heights(self, image):
        blocks = self.E(image)
        return self.R(torch.cat([self.D2(*blocks), self.MFF(*blocks)], 1))

    def forward(self, image, map):
        output = self.heights(image)
        target = F.interpolate(map[:, None], output.shape[-2:], mode="nearest-exact") / self.unit
        return {"loss": four_terms(output, target), "height": output * self.unit}


def four_terms(output, target):
    """ln(|d| + 0.5) of the height and of its two slopes, and 1 - the cosine between the normals: the mean over the pixels of each image.

    Pixels without a height are NaN in `target`. They do not count, and nor do slopes next to them.
    """
    known = ~torch.isnan(target)
    target = torch.where(known, target, torch.zeros_like(target))
    near = -F.max_pool2d(-known.float(), 3, 1, 1)
    (out_x, out_y), (x, y) = slopes(output), slopes(target)
    cosine = (out_x * x + out_y * y + 1) * ((out_x**2 + out_y**2 + 1) * (x**2 + y**2 + 1)).rsqrt()
    rough = log(out_x - x) + log(out_y - y) + (1 - cosine).abs()
    return mean(log(output - target), known.float()) + mean(rough, near)


def log(difference):
    return torch.log(difference.abs() + 0.5)


def mean(values, weights):
    return (values * weights).sum((1, 2, 3)) / weights.sum((1, 2, 3)).clamp(min=1)


def slopes(height):
    """Sobel's slopes along the rows and along the columns."""
    kernel = torch.tensor([[1.0, 0.0, -1.0], [2.0, 0.0, -2.0], [1.0, 0.0, -1.0]])
    both = F.conv2d(height, torch.stack([kernel, kernel.t()])[:, None].to(height), padding=1)
    return both[:, :1], both[:, 1:]


PAPER = dict(width=64, blocks=(3, 8, 36, 3), groups=64, reduction=16)
SMALL = dict(width=8, blocks=(1, 2, 2, 1), groups=8, reduction=4)


def paper(image_size=440, unit=100.0, blocks=PAPER["blocks"]):
    return Im2Elevation(**{**PAPER, "blocks": blocks}, unit=unit), inputs(image_size)


def small(image_size=64, unit=20000.0):
    return Im2Elevation(**SMALL, unit=unit), inputs(image_size)


def inputs(size):
    return {"image": torch.randn(2, 3, size, size), "map": 50 * torch.rand(2, size, size)}
