"""The networks of the training benchmarks in PyTorch; dtrain has the same."""

import torch
import torch.nn.functional as F
from torch import nn

GPT = {"vocabulary": 65, "width": 384, "depth": 6, "heads": 6}


class Block(nn.Module):
    """Attention and a perceptron, each after a normalisation and with a residual connection."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.ln_1 = nn.LayerNorm(width)
        self.c_attn = nn.Linear(width, 3 * width)
        self.attn_proj = nn.Linear(width, width)
        self.ln_2 = nn.LayerNorm(width)
        self.c_fc = nn.Linear(width, 4 * width)
        self.mlp_proj = nn.Linear(4 * width, width)

    def forward(self, x):
        n, t, width = x.shape
        q, k, v = (
            part.view(n, t, self.heads, width // self.heads).transpose(1, 2)
            for part in self.c_attn(self.ln_1(x)).chunk(3, dim=-1)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.attn_proj(attended.transpose(1, 2).reshape(n, t, width))
        return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))


class Gpt(nn.Module):
    """A decoder in the style of GPT-2 without dropout; the head shares the token table."""

    def __init__(self, vocabulary, context, width, depth, heads):
        super().__init__()
        self.wte = nn.Embedding(vocabulary, width)
        self.wpe = nn.Embedding(context, width)
        self.h = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.ln_f = nn.LayerNorm(width)
        for module in self.modules():
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

    def forward(self, tokens):
        x = self.wte(tokens) + self.wpe.weight[: tokens.shape[1]]
        for block in self.h:
            x = block(x)
        return F.linear(self.ln_f(x), self.wte.weight)


def windows(vocabulary, context):
    """Returns a function that draws a batch of n windows, with the tokens shifted by one as targets."""

    def draw(n):
        text = torch.randint(vocabulary, (n, context + 1))
        return text[:, :-1].contiguous(), text[:, 1:].contiguous()

    return draw


def build(name, context):
    """Returns the network, a function that draws n samples, and the units (images, tokens) in a sample."""
    if name == "resnet18":
        # The GPTs do not need it.
        import torchvision

        model = torchvision.models.resnet18(num_classes=10, zero_init_residual=True)
        return model, lambda n: (torch.randn(n, 3, 64, 64), torch.randint(10, (n,))), 1
    if name == "gpt":
        return Gpt(context=context, **GPT), windows(GPT["vocabulary"], context), context
    raise ValueError(f"no model {name}")
