#!/usr/bin/env python3
"""Makes small tokenizers of three kinds with Hugging Face's tokenizers, and what they and transformers' chat templates give.

    pip install -r tests/parity/requirements-tokens.txt
    python tests/parity/make_tokens.py --out tests/parity/reference

A second run writes the same bytes. README.md describes the files.
"""

import argparse
import json
import sys
from pathlib import Path

import tokenizers
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

sys.dont_write_bytecode = True  # no __pycache__ in the source tree

VERSIONS = {tokenizers: "0.22.2", transformers: "4.57.6"}

NOUNS = "king queen night morning river tower letter garden sword crown brother daughter".split()
VERBS = "sees follows finds likes hears leaves remembers answers".split()
CORPUS = [
    f"The {NOUNS[a % 12]} {VERBS[(a * 5) % 8]} the {NOUNS[(a * 7 + 3) % 12]}, and it's {a} o'clock.\n" for a in range(400)
] + ["Grüße aus Köln: naïve café, 東京と大阪, 1,000.50 €.\n"] * 20

TEXTS = [
    "",
    "The king sees the river.",
    "it's  two   spaces\tand\n\n\nthree breaks \n",
    " leading and trailing ",
    "Grüße aus 東京 😀 12345 don't we'll I'VE",
    "a <|endoftext|> token inside, <image> too",
    "unseen: ZzQqXx ~^` \u00a0 \u200b \u0301e",
    "The daughter remembers the morning.\nThe brother answers.\n" * 3,
]

CHATS = [
    [{"role": "user", "content": "Who sees the <king>?"}, {"role": "assistant", "content": "The queen, it's true."}],
    [
        {"role": "system", "content": "  Be brief. "},
        {"role": "user", "content": "One?"},
        {"role": "assistant", "content": "Two\nlines."},
        {"role": "user", "content": "And \"three\"?"},
        {"role": "assistant", "content": "Köln."},
    ],
    [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "A river."}]},
    ],
]

CHATML = """{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\\n' }}
    {%- if message.content is string %}
        {{- message.content.strip() }}
    {%- else %}
        {%- for part in message['content'] %}
            {%- if part['type'] == 'image' %}
                {{- '<image>' }}
            {%- else %}
                {{- part['text'] }}
            {%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""

# With generation blocks, a macro, a namespace, loop variables, slices, Python's methods and JSON.
MARKED = """{{ bos_token }}{% set ns = namespace(system='') %}
{% macro text(content) %}
{% if content is string %}{{ content | trim }}{% else %}{{ content | tojson }}{% endif %}
{% endmacro %}
{% if messages[0]['role'] == 'system' %}
{% set ns.system = messages[0]['content'].strip() %}
{% set loop_messages = messages[1:] %}
{% else %}
{% set loop_messages = messages %}
{% endif %}
{% for message in loop_messages %}
{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must alternate') }}
{% endif %}
{% if message['role'] == 'user' %}
[INST] {% if loop.first and ns.system %}<<{{ ns.system.upper() }}>> {% endif %}{{ text(message['content']) }} [/INST]
{% elif message['role'] == 'assistant' %}
{% generation %}
{{ text(message['content']) }}{{ eos_token }}
{% endgeneration %}
{% endif %}
{% endfor %}
{% if tools is not none and tools %}{{ tools | tojson(indent=2) }}{% endif %}"""


def byte_level():
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    special = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<image>"]
    trainer = trainers.BpeTrainer(
        vocab_size=420, special_tokens=special, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator(CORPUS, trainer)
    return tokenizer


def word_pieces():
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(vocab_size=300, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(CORPUS, trainer)
    number = tokenizer.token_to_id
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B [SEP]",
        special_tokens=[("[CLS]", number("[CLS]")), ("[SEP]", number("[SEP]"))],
    )
    # Lengths of an earlier program, which a reader must drop.
    tokenizer.enable_truncation(8)
    tokenizer.enable_padding(length=12)
    return tokenizer


def sentence_pieces():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    special = ["<unk>", "<s>", "</s>", *[f"<0x{byte:02X}>" for byte in range(256)]]
    trainer = trainers.BpeTrainer(vocab_size=520, special_tokens=special, show_progress=False)
    words = [word for line in CORPUS for word in line.split()]
    tokenizer.train_from_iterator(words, trainer)
    made = json.loads(tokenizer.to_str())
    # Bytes are ordinary tokens.
    made["added_tokens"] = [token for token in made["added_tokens"] if not token["content"].startswith("<0x")]
    tokenizer = Tokenizer.from_str(json.dumps(made))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", tokenizer.token_to_id("<s>"))]
    )
    return tokenizer


def plain(tokenizer):
    """Returns a copy without lengths."""
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_padding()
    copy.no_truncation()
    return copy


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder of the reference files")
    out = parser.parse_args().out / "tokens"
    for module, wanted in VERSIONS.items():
        if module.__version__ != wanted:
            sys.exit(f"{module.__name__} {module.__version__} found, {wanted} needed: install tests/parity/requirements-tokens.txt")
    cases = {}
    for name, tokenizer in [("bytes", byte_level()), ("words", word_pieces()), ("pieces", sentence_pieces())]:
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").write_text(tokenizer.to_str())
        whole = plain(tokenizer)
        encode = lambda special: [whole.encode(text, add_special_tokens=special).ids for text in TEXTS]
        ids = encode(False)
        cases[name] = {
            "size": max(whole.get_vocab(with_added_tokens=True).values()) + 1,
            "plain": ids,
            "special": encode(True),
            "decoded": [whole.decode(tokens) for tokens in ids],
        }
    config = {"eos_token": "<|endoftext|>", "bos_token": {"content": "<|im_start|>"}, "chat_template": CHATML}
    (out / "bytes" / "tokenizer_config.json").write_text(json.dumps(config, indent=1))
    chats = []
    for template in [CHATML, MARKED]:
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=plain(byte_level()), eos_token="<|endoftext|>", bos_token="<|im_start|>", chat_template=template
        )
        marked = "generation %}" in template
        for chat in CHATS:
            text = tokenizer.apply_chat_template(chat, tokenize=False)
            answers = None
            if marked:
                made = tokenizer.apply_chat_template(chat, return_dict=True, return_assistant_tokens_mask=True)
                answers = [made["input_ids"], made["assistant_masks"]]
            chats.append({"template": template, "messages": json.dumps(chat, ensure_ascii=False), "text": text, "answers": answers})
    (out / "tokens.json").write_text(json.dumps({"texts": TEXTS, "tokenizers": cases, "chats": chats}, indent=1, ensure_ascii=False))


main()
