"""A small CLIP: an encoder of images, an encoder of texts as bytes, and the classes by their captions."""

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

CONTEXT = 32


class Block(nn.Module):
    """Attention of the bytes of a text, and two linear layers."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads, self.qkv, self.proj = heads, nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x, is_text):
        n, t, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=is_text[:, None, None])
        x = x + self.proj(seen.transpose(1, 2).reshape(n, t, width))
        return x + self.mlp(self.norm2(x))


class Texts(nn.Module):
    def __init__(self, width=64, heads=4, depth=2, out=128):
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Parameter(torch.randn(CONTEXT, width) * 0.02)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, out)

    def forward(self, tokens):
        is_text = tokens != 0
        x = self.bytes(tokens) + self.places
        for block in self.blocks:
            x = block(x, is_text)
        weights = is_text[..., None].float()
        return self.head(self.norm((x * weights).sum(1) / weights.sum(1)))


class Images(nn.Sequential):
    def __init__(self, widths=(32, 64, 128), out=128):
        layers, inside = [], 3
        for width in widths:
            layers += [nn.Conv2d(inside, width, 3, padding=1), nn.GroupNorm(8, width), nn.ReLU(), nn.MaxPool2d(2)]
            inside = width
        super().__init__(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inside, out))


class Clip(nn.Module):
    def __init__(self, names):
        super().__init__()
        self.images, self.texts, self.log_scale = Images(), Texts(), nn.Parameter(torch.tensor(14.3).log())
        captions = [f"a photo of a {name.replace('_', ' ')}".encode().ljust(CONTEXT, b"\0") for name in names]
        self.register_buffer("captions", torch.tensor([list(caption) for caption in captions]))

    def forward(self, image, tokens):
        found = {"image_embeds": self.images(image), "text_embeds": self.texts(tokens), "logit_scale": self.log_scale.exp()}
        if not self.training:  # the class is that of the nearest caption
            nearest = F.normalize(found["image_embeds"], dim=1) @ F.normalize(self.texts(self.captions), dim=1).t()
            found["logits"] = found["logit_scale"] * nearest
        return found


def make_model(folders="data/cifar100/train"):
    torch.manual_seed(0)
    names = sorted(folder.name for folder in Path(folders).iterdir())
    return Clip(names), {"image": torch.zeros(2, 3, 32, 32), "tokens": torch.ones(2, CONTEXT, dtype=torch.long)}
