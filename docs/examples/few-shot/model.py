"""Few-shot learning by episodes: FSCT with cosine or softmax attention, ProFOCT, and a prototypical baseline.

N episodes of n classes with k support and q query images each; Q = n * q queries; features of D numbers; h = 8 heads.
"""

import torch
from torch import nn
from torch.nn import functional as F

HEADS, HEAD_DIM, HIDDEN = 8, 64, 512


class ConvBlock(nn.Module):
    def __init__(self, inside, pool=True, padding=1):
        super().__init__()
        self.C = nn.Conv2d(inside, 64, 3, padding=padding)
        self.BN = nn.BatchNorm2d(64)
        self.pool = nn.MaxPool2d(2) if pool else nn.Identity()
        nn.init.normal_(self.C.weight, std=(2 / (9 * 64)) ** 0.5)

    def forward(self, x):
        return self.pool(F.relu(self.BN(self.C(x))))


class Conv4(nn.Module):
    """Four blocks of 64 channels. With `pools=2` the first two blocks have no padding, and the last two no pooling."""

    def __init__(self, channels=3, pools=4, image_size=84):
        super().__init__()
        self.trunk = nn.Sequential(*(
            ConvBlock(64 if i else channels, pool=i < pools, padding=0 if pools == 2 and i < 2 else 1) for i in range(4)
        ))
        side = image_size // 16 if pools == 4 else ((image_size - 2) // 2 - 2) // 2
        self.dim = 64 * side * side

    def forward(self, x):
        return self.trunk(x).flatten(1)


class BasicBlock(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.conv2 = nn.Conv2d(outside, outside, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.downsample = None
        if stride > 1:
            self.downsample = nn.Sequential(nn.Conv2d(inside, outside, 1, stride, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        return F.relu(y + (x if self.downsample is None else self.downsample(x)))


class ResNet(nn.Module):
    """The trunk of torchvision's ResNet-18 or -34, with its names: all but the average and the classifier."""

    def __init__(self, depths, image_size=224):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, 7, 2, 3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        inside = 64
        for stage, depth in enumerate(depths, 1):
            outside = 32 * 2 ** stage
            blocks = [BasicBlock(inside if i == 0 else outside, outside, 2 if stage > 1 and i == 0 else 1) for i in range(depth)]
            setattr(self, f"layer{stage}", nn.Sequential(*blocks))
            inside = outside
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        self.dim = 512 * ((image_size + 31) // 32) ** 2

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        return self.layer4(self.layer3(self.layer2(self.layer1(x)))).flatten(1)


BACKBONES = {
    "Conv4": lambda size: Conv4(3, 4, size),
    "Conv4S": lambda size: Conv4(1, 4, size),
    "Conv4SNP": lambda size: Conv4(1, 2, size),
    "ResNet18": lambda size: ResNet([2, 2, 2, 2], size),
    "ResNet34": lambda size: ResNet([3, 4, 6, 3], size),
}


class Episodic(nn.Module):
    """Encodes the images of each episode in one call, so that BatchNorm sees an episode's rows beside each other."""

    def __init__(self, feature, n_way, k_shot):
        super().__init__()
        self.feature, self.n_way, self.k_shot = feature, n_way, k_shot

    def encode(self, support_image, query_image):
        """Returns features N x n x k x D of the support images and N x Q x D of the queries."""
        images = torch.cat([support_image, query_image], 1)
        z = self.feature(images.flatten(0, 1)).unflatten(0, images.shape[:2])
        support = self.n_way * self.k_shot
        return z[:, :support].unflatten(1, (self.n_way, self.k_shot)), z[:, support:]

    def results(self, scores, query_label):
        """Returns the loss and the accuracy of each episode."""
        loss = F.cross_entropy(scores.flatten(0, 1), query_label.flatten(), reduction="none").view_as(query_label).mean(1)
        return {"loss": loss, "accuracy": (scores.argmax(2) == query_label).float().mean(1)}


class Prototypes(Episodic):
    """The prototypical network: minus the squared distance to the mean of each class."""

    def forward(self, support_image, query_image, query_label):
        support, query = self.encode(support_image, query_image)
        distance = (query[:, :, None] - support.mean(2)[:, None]).square().sum(3)
        return self.results(-distance, query_label)


class Attention(nn.Module):
    """Attention of the prototypes to one query alone. With one key a softmax is 1, and only the cosine sees the prototype."""

    def __init__(self, dim, variant):
        super().__init__()
        self.variant = variant
        self.input_linear = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, HEADS * HEAD_DIM, bias=False))
        self.output_linear = nn.Linear(HEADS * HEAD_DIM, dim)

    def heads(self, x):
        return self.input_linear(x).unflatten(-1, (HEADS, HEAD_DIM))

    def forward(self, prototypes, query):
        q, k = self.heads(prototypes)[:, None], self.heads(query)[:, :, None]  # N x 1 x n x h x 64, N x Q x 1 x h x 64
        dots = (q * k).sum(-1, keepdim=True)
        if self.variant == "cosine":
            dots = dots / (q.norm(dim=-1, keepdim=True) * k.norm(dim=-1, keepdim=True))
        else:
            dots = torch.softmax((dots * HEAD_DIM ** -0.5).unsqueeze(-1), -1).squeeze(-1)
        return self.output_linear((dots * k).flatten(-2))  # N x Q x n x D


class WeightNorm(nn.Module):
    """A linear layer to one number: its weight is `weight_v`, scaled to the length `weight_g`."""

    def __init__(self, inside):
        super().__init__()
        self.weight_v = nn.Parameter(nn.Linear(inside, 1).weight.detach())
        self.weight_g = nn.Parameter(self.weight_v.detach().norm(dim=1, keepdim=True))

    def forward(self, x):
        return F.linear(x, self.weight_v * (self.weight_g / self.weight_v.norm(dim=1, keepdim=True)))


class CosineDistLinear(nn.Module):
    """Twice a weight-normed layer. As in the published code, the length of each feature is that over the n classes."""

    def __init__(self, inside):
        super().__init__()
        self.L = WeightNorm(inside)

    def forward(self, x):
        return 2 * self.L(x / (x.norm(dim=-2, keepdim=True) + 1e-5))


class FSCT(Episodic):
    """The few-shot transformer: weighted prototypes, attention to the query, a feed-forward network and a classifier."""

    def __init__(self, feature, n_way, k_shot, variant="cosine"):
        super().__init__(feature, n_way, k_shot)
        dim = feature.dim
        self.ATTN = Attention(dim, variant)
        self.proto_weight = nn.Parameter(torch.ones(n_way, k_shot, 1))
        self.FFN = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, HIDDEN), nn.GELU(), nn.Linear(HIDDEN, dim))
        last = CosineDistLinear(HEAD_DIM) if variant == "cosine" else nn.Linear(HEAD_DIM, 1)
        self.linear = nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, HEAD_DIM), last)

    def scores(self, support, query):
        """Returns a score for each query and class, N x Q x n."""
        prototypes = (support * self.proto_weight.softmax(-2)).sum(2)
        x = self.ATTN(prototypes, query) + prototypes[:, None]
        x = self.FFN(x) + x
        return self.linear(x).squeeze(-1)

    def forward(self, support_image, query_image, query_label):
        return self.results(self.scores(*self.encode(support_image, query_image)), query_label)


def variance_loss(z):
    """The mean over D of max(0, 1e-4 - deviation), of N x m x D. It is 0, because the deviation is at least 1e-4."""
    return F.relu(1e-4 - (z.var(1) + 1e-8).sqrt()).mean(1)


def covariance_loss(z):
    """The sum of the squared covariances of different features, over D: of N x m x D, by an m x m matrix in place of D x D."""
    z = z - z.mean(1, keepdim=True)
    squares = (z @ z.transpose(1, 2)).square().sum((1, 2)) - z.square().sum(1).square().sum(1)
    return squares / ((z.shape[1] - 1) ** 2 * z.shape[2])


class ProFOCT(FSCT):
    """FSCT with variance and covariance losses of the support features. Their weights follow the losses, step by step.

    Each episode moves the weights of before the step. The weights after the step are the mean over its episodes.
    """

    def __init__(self, feature, n_way, k_shot, variant="cosine"):
        super().__init__(feature, n_way, k_shot, variant)
        for name, value in (("alpha_ema", 0.5), ("beta_ema", 9.0), ("gamma_ema", 0.5)):
            self.register_buffer(name, torch.tensor(value))

    def moved(self, weight, target):
        """Returns the weight of each episode: in training its moving average, else the weight."""
        if not self.training:
            return weight.expand_as(target)
        after = 0.9 * weight + 0.1 * target
        weight.copy_(after.mean())
        return after

    def forward(self, support_image, query_image, query_label):
        support, query = self.encode(support_image, query_image)
        results = self.results(self.scores(support, query), query_label)
        support = support.flatten(1, 2)
        v, c = variance_loss(support), covariance_loss(support)
        parts = torch.stack([v, c, results["loss"]]).detach()
        v_part, c_part, ce_part = parts / (parts.sum(0) + 1e-8)
        alpha = self.moved(self.alpha_ema, 0.5 + 2 * v_part).clamp(0.1, 5)
        beta = self.moved(self.beta_ema, 9 * (1 - 0.5 * ce_part)).clamp(1, 20)
        gamma = self.moved(self.gamma_ema, 0.5 + 2 * c_part).clamp(0.1, 5)
        invariance = torch.zeros_like(v)  # the published loss has no second view of an image
        results["loss"] = results["loss"] + alpha * v + beta * invariance + gamma * c
        results["covariance"] = c
        return results


def make(head, backbone, n_way, k_shot, n_query, image_size, **settings):
    model = head(BACKBONES[backbone](image_size), n_way, k_shot, **settings)
    channels = 1 if backbone.startswith("Conv4S") else 3
    images = [torch.randn(2, n_way * count, channels, image_size, image_size) for count in (k_shot, n_query)]
    label = torch.arange(n_way).repeat_interleave(n_query).repeat(2, 1)
    return model, {"support_image": images[0], "query_image": images[1], "query_label": label}


def fsct(backbone="Conv4", variant="cosine", n_way=5, k_shot=5, n_query=16, image_size=84):
    return make(FSCT, backbone, n_way, k_shot, n_query, image_size, variant=variant)


def profoct(backbone="Conv4", variant="cosine", n_way=5, k_shot=5, n_query=16, image_size=84):
    return make(ProFOCT, backbone, n_way, k_shot, n_query, image_size, variant=variant)


def prototypes(backbone="Conv4", n_way=5, k_shot=5, n_query=16, image_size=84):
    return make(Prototypes, backbone, n_way, k_shot, n_query, image_size)


def small(head="fsct", variant="cosine", k_shot=1, n_query=15, image_size=28):
    """The same architecture for images of one channel and 28 x 28 pixels, where D is 64."""
    size = {"backbone": "Conv4S", "k_shot": k_shot, "n_query": n_query, "image_size": image_size}
    if head == "prototypes":
        return prototypes(**size)
    return {"fsct": fsct, "profoct": profoct}[head](variant=variant, **size)
