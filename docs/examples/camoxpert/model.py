"""CamoXpert: segmentation of camouflaged objects. EdgeNeXt, a gate and a mixture of experts at each of four levels, a decoder.

The parameters of EdgeNeXt have timm's names below `backbone.`; those of the rest have the names of the published training
code. Shapes: B samples, C channels, H x W pixels, E experts, L = 4 levels.
"""

import math

import torch
from torch import nn
from torch.nn import functional as F

# Channels, blocks and attention heads of the four stages.
EDGENEXT = {
    "xx_small": ((24, 48, 88, 168), (2, 2, 6, 2), 4),
    "x_small": ((32, 64, 100, 192), (3, 3, 9, 3), 4),
    "small": ((48, 96, 160, 304), (3, 3, 9, 3), 8),
    "base": ((80, 160, 288, 584), (3, 3, 9, 3), 8),
}


class LayerNorm2d(nn.LayerNorm):
    """Normalises the channels of each pixel."""

    def __init__(self, channels):
        super().__init__(channels, eps=1e-6)

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


# EdgeNeXt (Maaz et al. 2022, arXiv 2206.10589).


class Mlp(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.fc1 = nn.Linear(channels, 4 * channels)
        self.fc2 = nn.Linear(4 * channels, channels)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(x)))


class ConvBlock(nn.Module):
    """A depthwise convolution, then an inverted bottleneck."""

    def __init__(self, channels, kernel):
        super().__init__()
        self.conv_dw = nn.Conv2d(channels, channels, kernel, padding=kernel // 2, groups=channels)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.mlp = Mlp(channels)
        self.gamma = nn.Parameter(torch.full((channels,), 1e-6))

    def forward(self, x):
        y = self.norm(self.conv_dw(x).permute(0, 2, 3, 1))
        return x + (self.gamma * self.mlp(y)).permute(0, 3, 1, 2)


class FourierPositions(nn.Module):
    """Sines and cosines of each pixel's row and column, projected to the channels of the stage."""

    def __init__(self, channels, waves=32):
        super().__init__()
        self.token_projection = nn.Conv2d(2 * waves, channels, 1)
        self.waves = waves

    def forward(self, height, width):
        weight = self.token_projection.weight
        wave = torch.arange(self.waves, device=weight.device)
        frequency = 10000.0 ** (-2 * (wave // 2) / self.waves)

        def encode(length):
            place = torch.arange(1, length + 1, device=weight.device) / (length + 1e-6) * (2 * math.pi)
            angle = place[:, None] * frequency
            return torch.where(wave % 2 == 0, angle.sin(), angle.cos())

        rows = encode(height)[:, None].expand(height, width, self.waves)
        columns = encode(width)[None].expand(height, width, self.waves)
        positions = torch.cat([rows, columns], dim=2).permute(2, 0, 1)[None]
        return self.token_projection(positions.to(weight.dtype))


class ChannelAttention(nn.Module):
    """Attention between channels (XCA): its cost is linear in the pixels."""

    def __init__(self, channels, heads):
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(heads, 1, 1))
        self.qkv = nn.Linear(channels, 3 * channels)
        self.proj = nn.Linear(channels, channels)
        self.heads = heads

    def forward(self, x):
        batch, pixels, channels = x.shape
        qkv = self.qkv(x).view(batch, pixels, 3, self.heads, channels // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 4, 1).unbind(0)
        attention = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1) * self.temperature
        attended = attention.softmax(dim=-1) @ v
        return self.proj(attended.permute(0, 3, 1, 2).reshape(batch, pixels, channels))


class SplitTransposeBlock(nn.Module):
    """SDTA: a cascade of depthwise convolutions over groups of channels, attention, an inverted bottleneck."""

    def __init__(self, channels, groups, heads, positions):
        super().__init__()
        width = math.ceil(channels / groups)
        self.convs = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1, groups=width) for _ in range(groups - 1))
        self.pos_embd = FourierPositions(channels) if positions else None
        self.norm_xca = nn.LayerNorm(channels, eps=1e-6)
        self.gamma_xca = nn.Parameter(torch.full((channels,), 1e-6))
        self.xca = ChannelAttention(channels, heads)
        self.norm = nn.LayerNorm(channels, eps=1e-6)
        self.mlp = Mlp(channels)
        self.gamma = nn.Parameter(torch.full((channels,), 1e-6))

    def forward(self, x):
        batch, channels, height, width = x.shape
        *groups, last = x.chunk(len(self.convs) + 1, dim=1)
        parts = []
        for conv, group in zip(self.convs, groups):
            parts.append(conv(group + parts[-1] if parts else group))
        y = torch.cat([*parts, last], dim=1)
        if self.pos_embd is not None:
            y = y + self.pos_embd(height, width)
        y = y.flatten(2).transpose(1, 2)
        y = y + self.gamma_xca * self.xca(self.norm_xca(y))
        y = self.gamma * self.mlp(self.norm(y))
        return x + y.transpose(1, 2).reshape(batch, channels, height, width)


class Stage(nn.Module):
    def __init__(self, inside, channels, number, depth, heads):
        super().__init__()
        self.downsample = nn.Identity()
        if number > 0:
            self.downsample = nn.Sequential(LayerNorm2d(inside), nn.Conv2d(inside, channels, 2, stride=2))
        blocks = [ConvBlock(channels, 3 + 2 * number) for _ in range(depth)]
        if number > 0:
            blocks[-1] = SplitTransposeBlock(channels, number + 1, heads, positions=number == 1)
        self.blocks = nn.Sequential(*blocks)

    def forward(self, x):
        return self.blocks(self.downsample(x))


class EdgeNeXt(nn.Module):
    """Returns the features at strides 4, 8, 16 and 32."""

    def __init__(self, variant):
        super().__init__()
        dims, depths, heads = EDGENEXT[variant]
        self.stem = nn.Sequential(nn.Conv2d(3, dims[0], 4, stride=4), LayerNorm2d(dims[0]))
        insides = (dims[0], *dims[:3])
        self.stages = nn.ModuleList(Stage(insides[i], dims[i], i, depths[i], heads) for i in range(4))
        for module in self.modules():
            if isinstance(module, (nn.Conv2d, nn.Linear)):
                nn.init.trunc_normal_(module.weight, std=0.02, a=-0.04, b=0.04)
                nn.init.zeros_(module.bias)

    def forward(self, x):
        x, features = self.stem(x), []
        for stage in self.stages:
            x = stage(x)
            features.append(x)
        return features


# Experts. Each maps C x H x W to the same shape.


def reduce(channels):
    """A quarter of the channels, normalised."""
    return nn.Sequential(nn.Conv2d(channels, channels // 4, 1), LayerNorm2d(channels // 4), nn.GELU())


def fuse(channels):
    return nn.Sequential(nn.Conv2d(channels, channels, 1), LayerNorm2d(channels), nn.GELU())


class TextureExpert(nn.Module):
    """Convolutions of four dilations."""

    def __init__(self, channels):
        super().__init__()
        for dilation in range(1, 5):
            conv, norm, act = reduce(channels)
            texture = nn.Conv2d(channels // 4, channels // 4, 3, padding=dilation, dilation=dilation)
            self.add_module(f"branch{dilation}", nn.Sequential(conv, texture, norm, act))
        self.fusion = fuse(channels)

    def forward(self, x):
        branches = (self.branch1, self.branch2, self.branch3, self.branch4)
        return x + self.fusion(torch.cat([branch(x) for branch in branches], dim=1))


class LinearAttention(nn.Module):
    """Attention over pixels in linear time: keys meet values before queries."""

    def __init__(self, channels):
        super().__init__()
        self.qkv = nn.Conv2d(channels, 3 * channels, 1, bias=False)
        self.proj = nn.Conv2d(channels, channels, 1)
        self.dropout = nn.Dropout(0.1)
        self.heads = 8 if channels % 8 == 0 else 4

    def forward(self, x):
        batch, channels, height, width = x.shape
        qkv = self.qkv(x).view(batch, 3, self.heads, channels // self.heads, height * width)
        q, k, v = qkv.unbind(1)
        q, k = F.elu(q) + 1, F.elu(k) + 1
        q, k = q / q.sum(2, keepdim=True), k / k.sum(2, keepdim=True)
        attended = v @ k.transpose(2, 3) @ q
        return x + self.dropout(self.proj(attended.reshape(batch, channels, height, width)))


class AttentionExpert(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.attention = LinearAttention(channels)

    def forward(self, x):
        return self.attention(x)


class HybridExpert(nn.Module):
    """A 5 x 5 depthwise convolution, scaled by the mean of the image."""

    def __init__(self, channels):
        super().__init__()
        self.local_branch = nn.Sequential(
            nn.Conv2d(channels, channels, 5, padding=2, groups=channels),
            LayerNorm2d(channels),
            nn.Conv2d(channels, channels, 1),
            nn.GELU(),
        )
        self.global_branch = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, channels // 4, 1),
            nn.GELU(),
            nn.Conv2d(channels // 4, channels, 1),
            nn.Sigmoid(),
        )
        self.fusion = nn.Conv2d(channels, channels, 1)

    def forward(self, x):
        return x + self.fusion(self.local_branch(x) * self.global_branch(x))


class FrequencyExpert(nn.Module):
    """Low, middle and high frequencies, as differences of local means."""

    def __init__(self, channels):
        super().__init__()
        self.low_freq_conv, self.mid_freq_conv = reduce(channels), reduce(channels)
        self.high_freq_conv, self.spatial_conv = reduce(channels), reduce(channels)
        self.fusion = fuse(channels)

    def forward(self, x):
        narrow, wide = F.avg_pool2d(x, 3, stride=1, padding=1), F.avg_pool2d(x, 5, stride=1, padding=2)
        bands = [
            self.low_freq_conv(narrow),
            self.mid_freq_conv(narrow - wide),
            self.high_freq_conv(x - narrow),
            self.spatial_conv(x),
        ]
        return x + self.fusion(torch.cat(bands, dim=1))


SOBEL = torch.tensor([[-1.0, 0.0, 1.0], [-2.0, 0.0, 2.0], [-1.0, 0.0, 1.0]])
LAPLACE = torch.tensor([[0.0, 1.0, 0.0], [1.0, -4.0, 1.0], [0.0, 1.0, 0.0]])


def sobel_magnitude(x, eps):
    """The length of the gradient of each channel."""
    kernels = torch.stack([SOBEL, SOBEL.t()])[:, None].to(x)
    batch, channels, height, width = x.shape
    gradient = F.conv2d(x.reshape(batch * channels, 1, height, width), kernels, padding=1)
    return (gradient.square().sum(1) + eps).sqrt().view(batch, channels, height, width)


class EdgeExpert(nn.Module):
    """Edges by fixed filters: Sobel, Laplace, and the length of both."""

    def __init__(self, channels):
        super().__init__()
        self.sobel_branch, self.laplacian_branch = reduce(channels), reduce(channels)
        self.gradient_branch, self.spatial_branch = reduce(channels), reduce(channels)
        self.fusion = fuse(channels)

    def forward(self, x):
        sobel = sobel_magnitude(x, 1e-8)
        laplace = LAPLACE.to(x).expand(x.shape[1], 1, 3, 3)
        laplace = F.conv2d(x, laplace, padding=1, groups=x.shape[1]).abs()
        both = (sobel.square() + laplace.square() + 1e-8).sqrt()
        edges = [
            self.sobel_branch(sobel),
            self.laplacian_branch(laplace),
            self.gradient_branch(both),
            self.spatial_branch(x),
        ]
        return x + self.fusion(torch.cat(edges, dim=1))


class PyramidExpert(nn.Module):
    """Means over 8 x 8, 4 x 4, 2 x 2 and 1 x 1 parts of the image."""

    def __init__(self, channels):
        super().__init__()
        self.conv_1, self.conv_2, self.conv_3, self.conv_4 = (reduce(channels) for _ in range(4))
        self.context_fusion = fuse(channels)

    def forward(self, x):
        convs = (self.conv_1, self.conv_2, self.conv_3, self.conv_4)
        means = [conv(F.adaptive_avg_pool2d(x, parts)) for conv, parts in zip(convs, (8, 4, 2, 1))]
        means = [F.interpolate(mean, size=x.shape[2:], mode="bilinear") for mean in means]
        return x + self.context_fusion(torch.cat(means, dim=1))


class ContrastExpert(nn.Module):
    """A 3 x 3 depthwise convolution."""

    def __init__(self, channels):
        super().__init__()
        self.local_contrast = nn.Sequential(
            nn.Conv2d(channels, channels, 3, padding=1, groups=channels),
            LayerNorm2d(channels),
            nn.GELU(),
            nn.Conv2d(channels, channels, 1),
            LayerNorm2d(channels),
        )
        self.fusion = fuse(channels)

    def forward(self, x):
        return x + self.fusion(self.local_contrast(x))


EXPERTS = (
    TextureExpert,
    AttentionExpert,
    HybridExpert,
    FrequencyExpert,
    EdgeExpert,
    PyramidExpert,
    ContrastExpert,
)


class Moe(nn.Module):
    """A mixture of experts. Each sample has its k best ones; the weights of the others are zero.

    All experts run, because an exported program cannot choose modules by values.
    """

    def __init__(self, channels, experts):
        super().__init__()
        self.experts = nn.ModuleList(expert(channels) for expert in EXPERTS[:experts])
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(channels, experts, 1))
        self.top = max(2, experts // 2)

    def forward(self, x):
        """Returns the mixture, and the probability of each expert, B x E."""
        scores = self.gate(x).flatten(1)
        best, chosen = scores.topk(self.top, dim=1)
        weights = torch.full_like(scores, -math.inf).scatter(1, chosen, best).softmax(dim=1)
        mixture = sum(weights[:, i, None, None, None] * expert(x) for i, expert in enumerate(self.experts))
        return mixture, scores.softmax(dim=1)


class Gate(nn.Module):
    """Scales channels by the mean of the image, then pixels by their neighbourhood."""

    def __init__(self, channels):
        super().__init__()
        self.channel_attention = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, channels // 8, 1),
            nn.ReLU(),
            nn.Conv2d(channels // 8, channels, 1),
            nn.Sigmoid(),
        )
        self.spatial_attention = nn.Sequential(nn.Conv2d(channels, 1, 7, padding=3), nn.Sigmoid())

    def forward(self, x):
        x = x * self.channel_attention(x)
        return x * self.spatial_attention(x)


class DecoderBlock(nn.Module):
    """Twice the size, joined with the features of this size."""

    def __init__(self, inside, skip, outside):
        super().__init__()
        layers = []
        for channels in (inside + skip, outside):
            layers += [nn.Conv2d(channels, outside, 3, padding=1), nn.BatchNorm2d(outside), nn.ReLU()]
        self.conv = nn.Sequential(*layers)

    def forward(self, x, skip=None):
        x = F.interpolate(x, scale_factor=2, mode="bilinear")
        return self.conv(x if skip is None else torch.cat([x, skip], dim=1))


class CamoXpert(nn.Module):
    """Takes images, and for the loss masks whose objects are 1."""

    def __init__(self, variant, experts):
        super().__init__()
        dims = EDGENEXT[variant][0]
        self.backbone = EdgeNeXt(variant)
        self.sdta_blocks = nn.ModuleList(Gate(channels) for channels in dims)
        self.moe_layers = nn.ModuleList(Moe(channels, experts) for channels in dims)
        self.decoder_blocks = nn.ModuleList(
            [
                DecoderBlock(dims[3], dims[2], dims[2]),
                DecoderBlock(dims[2], dims[1], dims[1]),
                DecoderBlock(dims[1], dims[0], dims[0]),
                DecoderBlock(dims[0], 0, 64),
            ]
        )
        self.deep_heads = nn.ModuleList(nn.Conv2d(channels, 1, 1) for channels in dims[2::-1])
        self.final_conv = nn.Sequential(
            nn.Conv2d(64, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 1, 1)
        )

    def predict(self, image):
        """Returns the logit of each pixel, those of the three deep heads, and the probabilities of each level's experts."""
        levels, gates = [], []
        for feature, gate, moe in zip(self.backbone(image), self.sdta_blocks, self.moe_layers):
            mixture, probabilities = moe(gate(feature))
            levels.append(mixture)
            gates.append(probabilities)
        x, deep = levels[3], []
        for number in range(3):
            x = self.decoder_blocks[number](x, levels[2 - number])
            deep.append(self.deep_heads[number](x).clamp(-15, 15))
        x = F.interpolate(self.decoder_blocks[3](x), size=image.shape[2:], mode="bilinear")
        return self.final_conv(x).clamp(-15, 15), deep, gates

    def forward(self, image, mask):
        logit, deep, gates = self.predict(image)
        return {
            "loss": loss_of(logit, deep, (mask[:, None] == 1).to(logit.dtype)),
            "logits": torch.cat([torch.zeros_like(logit), logit], dim=1),
            "gates": apart(gates),
        }


def loss_of(logit, deep, mask):
    """The loss of each sample: 5 BCE + 3 IoU + 2 edges + 0.4 x the mean BCE of the deep heads."""

    def bce(logit):
        target = F.interpolate(mask, size=logit.shape[2:], mode="bilinear")
        return F.binary_cross_entropy_with_logits(logit, target, reduction="none").mean((1, 2, 3))

    object_ = logit.sigmoid()
    both = (object_ * mask).sum((1, 2, 3))
    either = object_.sum((1, 2, 3)) + mask.sum((1, 2, 3)) - both
    iou = 1 - (both + 1e-5) / (either + 1e-5)
    edges = (sobel_magnitude(object_, 1e-5) - sobel_magnitude(mask, 1e-5)).square().mean((1, 2, 3))
    return 5 * bce(logit) + 3 * iou + 2 * edges + 0.4 * sum(bce(x) for x in deep) / len(deep)


def apart(gates):
    """Places the probabilities of each level in columns of their own: B x L x (L E).

    The loss "balance" counts the columns of all rows, and experts of two levels are different experts. The result
    is the mean of the losses of the levels.
    """
    experts = gates[0].shape[1]
    rows = [F.pad(g, (i * experts, (len(gates) - 1 - i) * experts)) for i, g in enumerate(gates)]
    return torch.stack(rows, dim=1)


def make_model(variant="base", experts=7, image_size=384):
    """The model of the paper; 30,954,585 parameters."""
    image = torch.randn(2, 3, image_size, image_size)
    mask = (torch.rand(2, image_size, image_size) < 0.3).long()
    return CamoXpert(variant, experts), {"image": image, "mask": mask}


def make_small(experts=5, image_size=128):
    """The same architecture with the smallest backbone, for two CPU cores."""
    return make_model("xx_small", experts, image_size)
