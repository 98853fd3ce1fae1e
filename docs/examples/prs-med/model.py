"""PRS-Med: a language model reads the image and a question, answers, and its hidden states lead the mask of what was asked for.

The parameters have the names of the published weights: `image_encoder.*` those of TinySAM, `model.*` and `lm_head.*` those of Mistral in
transformers, `model.mm_projector.*` those of LLaVA, `fusion.*` and `mask_head.*` those of PRS-Med's own two modules.
Shapes: N samples, T tokens, D width, H x W pixels or cells.
"""

import torch
from torch import nn
from torch.nn import functional as F

# ---- The image encoder: TinyViT of TinySAM ----


class ConvNorm(nn.Sequential):
    """A convolution without a bias, and BatchNorm."""

    def __init__(self, inside, outside, kernel=1, stride=1, groups=1):
        super().__init__()
        self.c = nn.Conv2d(inside, outside, kernel, stride, kernel // 2, groups=groups, bias=False)
        self.bn = nn.BatchNorm2d(outside)


class PatchEmbed(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.seq = nn.Sequential(ConvNorm(3, width // 2, 3, 2), nn.GELU(), ConvNorm(width // 2, width, 3, 2))

    def forward(self, x):
        return self.seq(x)


class MBConv(nn.Module):
    """An inverted bottleneck. It begins as the identity."""

    def __init__(self, width):
        super().__init__()
        inner = 4 * width
        self.conv1 = ConvNorm(width, inner)
        self.conv2 = ConvNorm(inner, inner, 3, groups=inner)
        self.conv3 = ConvNorm(inner, width)
        nn.init.zeros_(self.conv3.bn.weight)

    def forward(self, x):
        y = F.gelu(self.conv2(F.gelu(self.conv1(x))))
        return F.gelu(x + self.conv3(y))


class PatchMerging(nn.Module):
    def __init__(self, inside, outside, stride):
        super().__init__()
        self.conv1 = ConvNorm(inside, outside)
        self.conv2 = ConvNorm(outside, outside, 3, stride, groups=outside)
        self.conv3 = ConvNorm(outside, outside)

    def forward(self, x):
        return self.conv3(F.gelu(self.conv2(F.gelu(self.conv1(x)))))


class WindowAttention(nn.Module):
    """Attention within a window, with a learned bias for each distance of two cells."""

    def __init__(self, width, heads, window):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        row, column = torch.arange(window * window) // window, torch.arange(window * window) % window
        distance = lambda at: (at[:, None] - at[None]).abs()
        # The published numbering: distances by their first pair, row by row.
        self.register_buffer("attention_bias_idxs", distance(row) * window + distance(column), persistent=False)
        self.attention_biases = nn.Parameter(torch.zeros(heads, window * window))

    def forward(self, x):
        n, cells, width = x.shape
        # A head's query, key and value are beside each other.
        q, k, v = self.qkv(self.norm(x)).view(n, cells, self.heads, -1).transpose(1, 2).chunk(3, dim=-1)
        bias = self.attention_biases[:, self.attention_bias_idxs]
        attention = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5 + bias).softmax(-1)
        return self.proj((attention @ v).transpose(1, 2).reshape(n, cells, width))


class Mlp(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, 4 * width)
        self.fc2 = nn.Linear(4 * width, width)

    def forward(self, x):
        return self.fc2(F.gelu(self.fc1(self.norm(x))))


class TinyViTBlock(nn.Module):
    """Window attention, a depthwise convolution, and a perceptron."""

    def __init__(self, width, heads, window):
        super().__init__()
        self.window = window
        self.attn = WindowAttention(width, heads, window)
        self.local_conv = ConvNorm(width, width, 3, groups=width)
        self.mlp = Mlp(width)

    def attend(self, x):
        n, height, width, channels = x.shape
        size = self.window
        x = F.pad(x, (0, 0, 0, -width % size, 0, -height % size))
        rows, columns = x.shape[1] // size, x.shape[2] // size
        x = x.view(n, rows, size, columns, size, channels).transpose(2, 3)
        x = self.attn(x.reshape(n * rows * columns, size * size, channels))
        x = x.view(n, rows, columns, size, size, channels).transpose(2, 3)
        return x.reshape(n, rows * size, columns * size, channels)[:, :height, :width]

    def forward(self, x):
        x = x + self.attend(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        x = self.local_conv(x)
        return x + self.mlp(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Stage(nn.Module):
    def __init__(self, blocks, downsample):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.downsample = downsample

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return x if self.downsample is None else self.downsample(x)


class LayerNorm2d(nn.LayerNorm):
    def __init__(self, width):
        super().__init__(width, eps=1e-6)

    def forward(self, x):
        return super().forward(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class TinyViT(nn.Module):
    """N x 3 x H x W -> N x out x H / 16 x W / 16."""

    def __init__(self, widths=(64, 128, 160, 320), depths=(2, 2, 6, 2), heads=(2, 4, 5, 10), windows=(7, 7, 14, 7), out=256, head=True):
        super().__init__()
        self.patch_embed = PatchEmbed(widths[0])
        self.layers = nn.ModuleList()
        for at, (width, depth) in enumerate(zip(widths, depths)):
            blocks = [MBConv(width) if at == 0 else TinyViTBlock(width, heads[at], windows[at]) for _ in range(depth)]
            merging = PatchMerging(width, widths[at + 1], 1 if at == 2 else 2) if at < 3 else None
            self.layers.append(Stage(blocks, merging))
        if head:
            # The classifier of the published weights, without use here.
            self.norm_head = nn.LayerNorm(widths[-1])
            self.head = nn.Linear(widths[-1], 1000)
        self.neck = nn.Sequential(
            nn.Conv2d(widths[-1], out, 1, bias=False), LayerNorm2d(out), nn.Conv2d(out, out, 3, padding=1, bias=False), LayerNorm2d(out)
        )

    def forward(self, x):
        x = self.patch_embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.neck(x)


# ---- The language model: Mistral ----


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5))


def rotate(x, angles):
    """Rotates the pairs (i, i + half) of a head's features."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class SelfAttention(nn.Module):
    """Causal attention. Several heads of queries share one of keys and values."""

    def __init__(self, width, heads, groups):
        super().__init__()
        self.size = width // heads
        self.q_proj = nn.Linear(width, width, bias=False)
        self.k_proj = nn.Linear(width, groups * self.size, bias=False)
        self.v_proj = nn.Linear(width, groups * self.size, bias=False)
        self.o_proj = nn.Linear(width, width, bias=False)

    def forward(self, x, angles):
        n, length, _ = x.shape
        heads = lambda y: y.view(n, length, -1, self.size).transpose(1, 2)
        q, k, v = rotate(heads(self.q_proj(x)), angles), rotate(heads(self.k_proj(x)), angles), heads(self.v_proj(x))
        shared = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(shared, dim=1), v.repeat_interleave(shared, dim=1)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(y.transpose(1, 2).reshape(n, length, -1))


class GatedMlp(nn.Module):
    def __init__(self, width, inner):
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=False)
        self.up_proj = nn.Linear(width, inner, bias=False)
        self.down_proj = nn.Linear(inner, width, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class DecoderLayer(nn.Module):
    def __init__(self, width, inner, heads, groups):
        super().__init__()
        self.self_attn = SelfAttention(width, heads, groups)
        self.mlp = GatedMlp(width, inner)
        self.input_layernorm = RMSNorm(width)
        self.post_attention_layernorm = RMSNorm(width)

    def forward(self, x, angles):
        x = x + self.self_attn(self.input_layernorm(x), angles)
        return x + self.mlp(self.post_attention_layernorm(x))


class Decoder(nn.Module):
    """The tokens of a text, and those of an image in their places, N x T x D -> the last hidden state."""

    def __init__(self, vocabulary, width, inner, depth, heads, groups, theta, image_width):
        super().__init__()
        self.embed_tokens = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(DecoderLayer(width, inner, heads, groups) for _ in range(depth))
        self.norm = RMSNorm(width)
        self.mm_projector = nn.Sequential(nn.Linear(image_width, width), nn.GELU(), nn.Linear(width, width))
        size = width // heads
        frequencies = theta ** (-torch.arange(0, size, 2, dtype=torch.float32) / size)
        self.register_buffer("frequencies", frequencies, persistent=False)

    def forward(self, x):
        angles = torch.arange(x.shape[1], device=x.device)[:, None] * self.frequencies
        for layer in self.layers:
            x = layer(x, angles)
        return self.norm(x)


# ---- Fusion and mask head ----


class CrossAttention(nn.Module):
    """The attention of `nn.MultiheadAttention`, whose dropout draws by sample."""

    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.in_proj_weight = nn.Parameter(torch.empty(3 * width, width))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)
        nn.init.xavier_uniform_(self.in_proj_weight)
        nn.init.zeros_(self.out_proj.bias)

    def forward(self, x, context, is_seen):
        split = lambda y: y.unflatten(-1, (self.heads, -1)).transpose(1, 2)
        weights, biases = self.in_proj_weight.chunk(3), self.in_proj_bias.chunk(3)
        q, k, v = (split(F.linear(y, *part)) for y, *part in zip((x, context, context), weights, biases))
        scores = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5
        attention = scores.masked_fill(~is_seen[:, None, None], -1e4).softmax(-1)
        attention = F.dropout(attention, self.dropout, self.training)
        return self.out_proj((attention @ v).transpose(1, 2).flatten(2))


class CrossAttentionBlock(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.attn = CrossAttention(width, heads, dropout)
        self.norm1 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.norm2 = nn.LayerNorm(width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x, context, is_seen):
        x = x + self.dropout(self.attn(self.norm1(x), self.norm1(context), is_seen))
        return x + self.dropout(self.mlp(self.norm2(x)))


class Fusion(nn.Module):
    """Cells of the image attend to the tokens of the prompt."""

    def __init__(self, width, text_width, heads=8, dropout=0.1):
        super().__init__()
        self.proj_image = nn.Sequential(nn.Conv2d(width, width, 1), nn.GELU(), nn.BatchNorm2d(width))
        self.proj_text = nn.Sequential(nn.Linear(text_width, width), nn.GELU(), nn.LayerNorm(width))
        self.cross_attn = CrossAttentionBlock(width, heads, dropout)
        self.output_conv = nn.Sequential(nn.Conv2d(width, width, 3, padding=1), nn.GELU(), nn.BatchNorm2d(width))

    def forward(self, image, text, is_seen):
        cells = self.proj_image(image).flatten(2).transpose(1, 2)
        cells = self.cross_attn(cells, self.proj_text(text), is_seen)
        return self.output_conv(image + cells.transpose(1, 2).unflatten(2, image.shape[2:]))


class MaskHead(nn.Module):
    """Each block doubles the sides."""

    def __init__(self, width, widths):
        super().__init__()
        pairs = zip((width, *widths), widths)
        blocks = [nn.Sequential(nn.ConvTranspose2d(i, o, 4, 2, 1), nn.BatchNorm2d(o), nn.ReLU(inplace=True)) for i, o in pairs]
        self.upsample_blocks = nn.ModuleList([*blocks, nn.Conv2d(widths[-1], 1, 1)])

    def forward(self, x):
        for block in self.upsample_blocks:
            x = block(x)
        return x


# ---- The whole ----


class PRSMed(nn.Module):
    """Inputs: `image`; of the prompt and its answer `tokens`, `attention_mask` and `labels`, -100 before the answer; `mask`, 1 for the object."""

    def __init__(self, encoder, decoder, fusion_width, mask_widths, image_token):
        super().__init__()
        vocabulary, width = decoder["vocabulary"], decoder["width"]
        self.image_encoder = TinyViT(out=fusion_width, **encoder)
        self.model = Decoder(image_width=fusion_width, **decoder)
        self.lm_head = nn.Linear(width, vocabulary, bias=False)
        self.fusion = Fusion(fusion_width, width)
        self.mask_head = MaskHead(fusion_width, mask_widths)
        self.scale, self.image_token = 2 ** len(mask_widths), image_token

    def read(self, image, tokens, attention_mask):
        """Returns the last hidden state. The image's cells take the places of its tokens, in their order."""
        is_image = (tokens == self.image_token) & (attention_mask == 1)
        cells = self.model.mm_projector(image.flatten(2).transpose(1, 2))
        cell = (is_image.cumsum(1) - 1).clamp(0, cells.shape[1] - 1)
        cells = cells.gather(1, cell[..., None].expand(-1, -1, cells.shape[2]))
        return self.model(torch.where(is_image[..., None], cells, self.model.embed_tokens(tokens)))

    def forward(self, image, tokens, attention_mask, labels, mask):
        side = [length // self.scale for length in image.shape[2:]]
        cells = F.adaptive_avg_pool2d(self.image_encoder(image), side)
        hidden = self.read(cells, tokens, attention_mask)
        # A user who wants a mask does not know the answer.
        is_prompt = (attention_mask == 1) & (labels == -100)
        drawn = self.mask_head(self.fusion(cells, hidden, is_prompt))[:, 0]
        logits = self.lm_head(hidden)

        target = mask.float()
        crossed = F.binary_cross_entropy_with_logits(drawn, target, reduction="none").mean((1, 2))
        found = drawn.sigmoid()
        overlap, sizes = (found * target).sum((1, 2)), (found + target).sum((1, 2))
        dice = 1 - (2 * overlap + 1e-6) / (sizes + 1e-6)
        # The logits of a token are those of the next one.
        next_ones, answer = logits[:, :-1].transpose(1, 2), labels[:, 1:]
        counted = (answer != -100).sum(1).clamp(min=1)
        text = F.cross_entropy(next_ones, answer, ignore_index=-100, reduction="none").sum(1) / counted
        out = {"loss": crossed + dice + 0.5 * text}
        if not self.training:
            # Greedy decoding writes the answer if every token of it is the most probable one after those before it.
            is_right = (next_ones.argmax(1) == answer) | (answer == -100)
            out |= {"text_loss": text, "exact_match": is_right.all(1).float(), "logits": logits}
            out["objects"] = torch.stack((torch.zeros_like(drawn), drawn), 1)
        return out


def examples(image_size, context, vocabulary, image_token, cells):
    """Two samples: the image's tokens, a question and an answer."""
    tokens = torch.randint(1, vocabulary, (2, context))
    tokens[tokens == image_token] = image_token + 1
    tokens[:, 1 : 1 + cells] = image_token
    labels = tokens.clone()
    labels[:, : context - 6] = -100
    mask = torch.zeros(2, image_size, image_size, dtype=torch.int64)
    mask[:, : image_size // 2, : image_size // 2] = 1
    image = torch.randn(2, 3, image_size, image_size)
    return {"image": image, "tokens": tokens, "attention_mask": torch.ones_like(tokens), "labels": labels, "mask": mask}


def make_7b(image_size=1024, context=320, num_hidden_layers=32, depths=(2, 2, 6, 2), vocabulary=32000, image_token=0):
    """The paper's: TinySAM's encoder, LLaVA-Med's Mistral-7B, `<unk>` for the cells of the image."""
    decoder = dict(vocabulary=vocabulary, width=4096, inner=14336, depth=num_hidden_layers, heads=32, groups=8, theta=1e6)
    model = PRSMed(dict(depths=depths), decoder, 256, (128, 64, 32, 16, 8, 4), image_token)
    for part in (model.model.embed_tokens, model.model.layers, model.model.norm, model.lm_head):
        part.requires_grad_(False)
    return model, examples(image_size, context, vocabulary, image_token, (image_size // 64) ** 2)


def make_small(image_size=96, context=68, vocabulary=64, image_token=1):
    """The same parts, small: half a million parameters."""
    encoder = dict(widths=(16, 32, 48, 64), depths=(1, 1, 2, 1), heads=(1, 1, 2, 2), head=False)
    decoder = dict(vocabulary=vocabulary, width=64, inner=192, depth=2, heads=4, groups=2, theta=1e4)
    model = PRSMed(encoder, decoder, 64, (48, 32, 16, 8), image_token)
    for name, parameter in model.named_parameters():
        if name.startswith(("model.", "lm_head.")) and parameter.dim() == 2:
            nn.init.normal_(parameter, std=0.05)
    return model, examples(image_size, context, vocabulary, image_token, (image_size // 16) ** 2)
