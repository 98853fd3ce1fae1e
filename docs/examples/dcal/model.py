"""DCAL (Zhu et al. 2022): a vision transformer for fine-grained classes with global-local and pair-wise cross-attention.

The backbone has the parameter names of timm's vision transformers. Shapes: B images, N tokens (the class token and the
patches), D features, H heads, K classes.
"""

import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(dropout)

    def project(self, x_BND, first, last):
        """Rows `first` to `last` of query, key and value, by head: each B x H x N x D/H."""
        dim = self.proj.in_features
        rows = slice(first * dim, last * dim)
        y = F.linear(x_BND, self.qkv.weight[rows], self.qkv.bias[rows])
        return y.unflatten(-1, (last - first, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)

    def forward(self, x_BND, context=None):
        """Attention of x to itself, or of x to the tokens of `context`."""
        if context is None:
            query, key, value = self.project(x_BND, 0, 3)
        else:
            (query,) = self.project(x_BND, 0, 1)
            key, value = self.project(context, 1, 3)
        y = F.scaled_dot_product_attention(query, key, value)
        return self.proj_drop(self.proj(y.transpose(1, 2).flatten(2)))

    def weights(self, x_BND):
        """The weights of the attention of x to itself, as the mean over the heads: B x N x N."""
        query, key = self.project(x_BND, 0, 2)
        scores = query @ key.transpose(2, 3) * query.shape[-1] ** -0.5
        return scores.softmax(-1).mean(1)


class Mlp(nn.Module):
    def __init__(self, dim, hidden, dropout):
        super().__init__()
        self.fc1 = nn.Linear(dim, hidden)
        self.fc2 = nn.Linear(hidden, dim)
        self.drop = nn.Dropout(dropout)

    def forward(self, x):
        return self.drop(self.fc2(self.drop(F.gelu(self.fc1(x)))))


class Block(nn.Module):
    def __init__(self, dim, heads, dropout):
        super().__init__()
        self.norm1 = nn.LayerNorm(dim, eps=1e-6)
        self.attn = Attention(dim, heads, dropout)
        self.norm2 = nn.LayerNorm(dim, eps=1e-6)
        self.mlp = Mlp(dim, 4 * dim, dropout)

    def forward(self, x, pair=None, context=None):
        """Self-attention; with a pair, attention to the tokens of both images; with a context, to its tokens alone."""
        y = self.norm1(x)
        if pair is not None:
            context = torch.cat([y, self.norm1(pair)], dim=1)
        elif context is not None:
            context = self.norm1(context)
        x = x + self.attn(y, context)
        return x + self.mlp(self.norm2(x))


class PatchEmbed(nn.Module):
    def __init__(self, dim, patch):
        super().__init__()
        self.proj = nn.Conv2d(3, dim, patch, patch)

    def forward(self, image):
        return self.proj(image).flatten(2).transpose(1, 2)


class Dcal(nn.Module):
    def __init__(self, classes, size, patch, dim, depth, heads, dropout, glca, pwca, share=0.1, pool="cls"):
        super().__init__()
        patches = (size // patch) ** 2
        self.has_glca, self.has_pwca, self.pool = glca, pwca, pool
        self.local = max(1, int(share * patches))
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, 1 + patches, dim))
        self.patch_embed = PatchEmbed(dim, patch)
        self.pos_drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(dim, heads, dropout) for _ in range(depth))
        self.norm = nn.LayerNorm(dim, eps=1e-6)
        self.head = nn.Linear(dim, classes)
        if glca:
            self.glca = Block(dim, heads, dropout)
            self.glca_head = nn.Linear(dim, classes)
        branches = 1 + glca + pwca
        if branches > 1:
            self.loss_weights = nn.Parameter(torch.zeros(branches))
        self.apply(initialise)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)

    def embed(self, image):
        tokens = self.patch_embed(image)
        cls = self.cls_token.expand(tokens.shape[0], -1, -1)
        return self.pos_drop(torch.cat([cls, tokens], dim=1) + self.pos_embed)

    def rollout(self, inputs):
        """How much the class token attends to each patch through all blocks: the first row of the product of the rows
        0.5 (attention + identity), newest on the left. A row times a matrix needs neither the product nor the weights
        of more than one block. They are computed anew from the inputs of the blocks, because the attention of the
        training keeps none."""
        with torch.no_grad():
            row = F.pad(torch.ones_like(inputs[0][:, :1, 0]), (0, inputs[0].shape[1] - 1))
            for block, x in zip(reversed(self.blocks), reversed(inputs)):
                weights = block.attn.weights(block.norm1(x))
                row = 0.5 * row + 0.5 * (row[:, :, None] * weights).sum(1)
            return row[:, 1:]

    def branches(self, image, pair_image=None):
        """The logits of self-attention, global-local attention and, in training, pair-wise attention; the rollout."""
        start = x = self.embed(image)
        inputs = []
        for block in self.blocks:
            inputs.append(x)
            x = block(x)
        logits, rollout = [self.head(self.norm(x[:, 0]))], None
        if self.has_glca:
            rollout = self.rollout(inputs)
            chosen = F.pad(rollout.topk(self.local).indices + 1, (1, 0))
            queries = x.gather(1, chosen[:, :, None].expand(-1, -1, x.shape[2]))
            local = self.glca(queries, context=x)
            logits.append(self.glca_head(self.norm(local[:, 0] if self.pool == "cls" else local.mean(1))))
        if self.has_pwca and self.training:
            # Views, so that a block is alone in using its input twice: then it is a segment for recompute.
            pair, x = self.embed(pair_image), start.view_as(start)
            for block in self.blocks:
                pair = block(pair.view_as(pair))
                x = block(x, pair=pair)
            logits.append(self.head(self.norm(x[:, 0])))
        return logits, rollout

    def forward(self, image, label, pair_image=None):
        logits, rollout = self.branches(image, pair_image)
        losses = torch.stack([F.cross_entropy(one, label, reduction="none") for one in logits])
        if hasattr(self, "loss_weights"):
            # The value stays within -1 and 1; the gradient passes, so that a weight at its bound can return.
            free = self.loss_weights
            weights = (free + (free.clamp(-1, 1) - free).detach())[: len(losses), None]
            losses = 0.5 * (losses * torch.exp(-weights) + weights)
        outputs = {"loss": losses.sum(0)}
        if not self.training:
            outputs["logits"] = torch.logsumexp(torch.stack([one.log_softmax(1) for one in logits]), dim=0)
            outputs["accuracy"] = (outputs["logits"].argmax(1) == label).float()
            outputs["accuracy_sa"] = (logits[0].argmax(1) == label).float()
            if self.has_glca:
                outputs["accuracy_glca"] = (logits[1].argmax(1) == label).float()
                outputs["rollout"] = rollout
        return outputs


def initialise(module):
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        nn.init.zeros_(module.bias)


def with_inputs(model, size):
    inputs = {"image": torch.randn(2, 3, size, size), "label": torch.tensor([0, 1])}
    if model.has_pwca:
        inputs["pair_image"] = torch.randn(2, 3, size, size)
    return model, inputs


def vit_b16(classes=200, image_size=448, dropout=0.1, glca=True, pwca=True, pool="cls", depth=12):
    """The paper's model."""
    return with_inputs(Dcal(classes, image_size, 16, 768, depth, 12, dropout, glca, pwca, pool=pool), image_size)


def small(classes=20, image_size=32, dropout=0.1, glca=True, pwca=True, pool="cls", depth=4, dim=96):
    """The same network for a CPU."""
    return with_inputs(Dcal(classes, image_size, 4, dim, depth, 3, dropout, glca, pwca, pool=pool), image_size)
