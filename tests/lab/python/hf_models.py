"""Small models of transformers and peft for `dtrain import`: python3 hf_models.py FOLDER writes FOLDER/NAME/config.json.

The functions are also sources: hf_models.py:lora_gpt2.
"""

import sys

import peft
import torch
import transformers

TEXT = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64, "vocab_size": 128}
IMAGE = {**TEXT, "image_size": 32, "patch_size": 8}
del IMAGE["vocab_size"]
WIDE = {"hidden_size": 256, "num_hidden_layers": 6, "num_attention_heads": 4, "intermediate_size": 1024, "vocab_size": 1024}
LLAMA = {**TEXT, "num_key_value_heads": 1, "max_position_embeddings": 64}

CONFIGS = {
    "gpt2": ("GPT2LMHeadModel", transformers.GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=128, n_positions=64)),
    "llama": ("LlamaForCausalLM", transformers.LlamaConfig(**LLAMA)),
    "mistral": ("MistralForCausalLM", transformers.MistralConfig(**LLAMA, sliding_window=16)),
    "qwen2": ("Qwen2ForCausalLM", transformers.Qwen2Config(**LLAMA)),
    "bert": ("BertForSequenceClassification", transformers.BertConfig(**TEXT, max_position_embeddings=64)),
    "bert_masked": ("BertForMaskedLM", transformers.BertConfig(**TEXT, max_position_embeddings=64)),
    "distilbert": (
        "DistilBertForSequenceClassification",
        transformers.DistilBertConfig(dim=32, n_layers=2, n_heads=2, hidden_dim=64, vocab_size=128, max_position_embeddings=64),
    ),
    "t5_encoder": (
        "T5EncoderModel",
        transformers.T5Config(d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, vocab_size=128),
    ),
    "vit": ("ViTForImageClassification", transformers.ViTConfig(**IMAGE)),
    "clip_vision": ("CLIPVisionModel", transformers.CLIPVisionConfig(**IMAGE)),
    "gpt2_wide": ("GPT2LMHeadModel", transformers.GPT2Config(n_layer=6, n_head=4, n_embd=256, vocab_size=1024, n_positions=256)),
    "llama_wide": ("LlamaForCausalLM", transformers.LlamaConfig(**WIDE, num_key_value_heads=2, max_position_embeddings=256)),
    "bert_wide": ("BertForMaskedLM", transformers.BertConfig(**WIDE, max_position_embeddings=256)),
    "segformer": (
        "SegformerForSemanticSegmentation",
        transformers.SegformerConfig(depths=[1, 1, 1, 1], hidden_sizes=[8, 16, 24, 32], decoder_hidden_size=16, num_attention_heads=[1, 1, 2, 2]),
    ),
}


def make(name):
    architecture, config = CONFIGS[name]
    config.use_cache = False
    return getattr(transformers, architecture)(config)


def lora_gpt2():
    config = peft.LoraConfig(r=4, lora_alpha=8, lora_dropout=0.1, target_modules=["c_attn"], fan_in_fan_out=True)
    return peft.get_peft_model(make("gpt2"), config), {"input_ids": torch.randint(0, 128, (2, 64))}


def lora_vit():
    config = peft.LoraConfig(r=4, target_modules=["query", "value"], modules_to_save=["classifier"])
    return peft.get_peft_model(make("vit"), config), {"pixel_values": torch.randn(2, 3, 32, 32)}


class Chain(torch.nn.Module):
    """Many operations on one number: nothing but the cost of an operation."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def forward(self, x):
        x = x * self.weight
        for _ in range(1000):
            x = torch.sigmoid(x)
        return x


def chain():
    return Chain(), {"x": torch.zeros(2, 1)}


def masked_llama():
    """A causal model with padding: two inputs."""
    tokens = torch.randint(0, 128, (2, 64))
    return make("llama"), {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}


if __name__ == "__main__":
    for name, (architecture, config) in CONFIGS.items():
        config.architectures = [architecture]
        config.save_pretrained(f"{sys.argv[1]}/{name}")
