"""A vision transformer as in dual cross-attention learning (Zhu et al., CVPR 2022, arXiv 2205.02151), for the memory of an import.

Pairs are an input of their own. All attention is by explicit softmax, since the rollout needs the matrices.
"""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads, mlp):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, mlp), nn.GELU(), nn.Dropout(0.1), nn.Linear(mlp, width), nn.Dropout(0.1))

    def parts(self, x):
        """Returns queries, keys and values: batch, heads, tokens, width of a head."""
        made = self.qkv(self.norm1(x)).unflatten(-1, (3, self.heads, -1))
        return made.permute(2, 0, 3, 1, 4).unbind(0)

    def attend(self, x, query, key, value):
        weights = (query @ key.transpose(-2, -1) * query.shape[-1] ** -0.5).softmax(-1)
        x = x + self.project((weights @ value).transpose(1, 2).flatten(2))
        return x + self.mlp(self.norm2(x)), weights

    def forward(self, x):
        return self.attend(x, *self.parts(x))

    def with_pair(self, x, pair):
        """Attends to the tokens of both images."""
        query, key, value = self.parts(x)
        _, other_key, other_value = self.parts(pair)
        return self.attend(x, query, torch.cat([key, other_key], 2), torch.cat([value, other_value], 2))[0]


class DualCrossAttention(nn.Module):
    def __init__(self, depth, size, classes, width=768, heads=12, mlp=3072, patch=16, share=0.1):
        super().__init__()
        tokens = (size // patch) ** 2
        self.kept = int(tokens * share)
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.first = nn.Parameter(torch.zeros(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, tokens + 1, width))
        self.blocks = nn.ModuleList(Block(width, heads, mlp) for _ in range(depth))
        self.local = Block(width, heads, mlp)
        self.norm = nn.LayerNorm(width)
        self.head, self.local_head = nn.Linear(width, classes), nn.Linear(width, classes)

    def tokens(self, image):
        x = self.patches(image).flatten(2).transpose(1, 2)
        return torch.cat([self.first.expand(x.shape[0], -1, -1), x], 1) + self.places

    def forward(self, image, pair):
        x, other = self.tokens(image), self.tokens(pair)
        crossed, rollout = x, None
        for block in self.blocks:
            x, weights = block(x)
            weights = weights.detach().mean(1) + torch.eye(x.shape[1])
            weights = weights / weights.sum(-1, keepdim=True)
            rollout = weights if rollout is None else weights @ rollout
            if self.training:
                other = block(other)[0]
                crossed = block.with_pair(crossed, other)
        chosen = rollout[:, 0, 1:].topk(self.kept).indices + 1
        chosen = torch.cat([torch.zeros_like(chosen[:, :1]), chosen], 1)
        query, key, value = self.local.parts(x)
        rows = chosen[:, None, :, None].expand(-1, query.shape[1], -1, query.shape[3])
        places = chosen[..., None].expand(-1, -1, x.shape[2])
        local, _ = self.local.attend(x.gather(1, places), query.gather(2, rows), key, value)
        logits = self.head(self.norm(x[:, 0]))
        if not self.training:
            return {"logits": logits, "local": self.local_head(self.norm(local[:, 0]))}
        return {"logits": logits, "local": self.local_head(self.norm(local[:, 0])), "crossed": self.head(self.norm(crossed[:, 0]))}


def model(depth=12, size=448, classes=200):
    example = torch.randn(2, 3, size, size)
    return DualCrossAttention(depth, size, classes), {"image": example, "pair": example.flip(0)}
