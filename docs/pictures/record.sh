#!/usr/bin/env bash
# Records the figures in data/ again; then run draw.py. Usage: record.sh FOLDER PART...
# FOLDER has the real data: camvid/, chase/, cifar100/, membrane/, omniglot/ and shakespeare/. PARTs: plans, ranks, killed, finetune, gallery, terminal. It needs
# `dtrain` in PATH; for `terminal` a `python3` with PyTorch, for `gallery` with transformers and Pillow too.
set -euo pipefail
data=$(cd "$1" && pwd) out=$(cd "$(dirname "$0")" && pwd)/data work=$(mktemp -d /tmp/dtrain-XXX)
shift
cd "$work"

plans() { # the recipe of docs/out-of-memory.md
    cat >fine-grained.toml <<'RECIPE'
task = "classify"
data = { kind = "generated", classes = 200, image_size = 448, train_samples = 5994 }
model = { name = "vit", width = 768, depth = 12, heads = 12 }
train = { effective_batch = 16, epochs = 100 }
optim = { name = "adam", lr = 5e-4, reference_batch = 512, scaling = "linear", clip = 1.0 }
RECIPE
    for ranks in 1 2 4; do
        dtrain plan fine-grained.toml --gpu 8GiB --nproc $ranks --set memory.micro_batch=4 --json >"$out/batch-$ranks.json"
    done
    dtrain plan fine-grained.toml --gpu 3GiB,4GiB --json >"$out/plan.json"
}

# table RUN FILE [SKIP]: the steps and evaluations after step SKIP as lines RUN,STEP,LOSS,ACCURACY
table() {
    python3 - "$@" <<'PYTHON'
import json, sys
for line in map(json.loads, open(sys.argv[2])):
    entry = line.get("eval", line)
    if entry.get("step", 0) > int((sys.argv + ["0"])[3]) and "loss" in entry:
        print(sys.argv[1], entry["step"], *([entry["loss"], ""] if entry is line else ["", entry.get("accuracy", "")]), sep=",")
PYTHON
}

ranks() {
    for ranks in 1 2; do
        OMP_NUM_THREADS=1 dtrain launch --nproc $ranks shakespeare --set "data.root=$data/shakespeare" --set train.steps=300 --run-dir $ranks
    done
    { echo run,step,loss,accuracy; table 1 1/metrics.jsonl; table 2 2/metrics.jsonl; } >"$out/ranks.csv"
}

killed() { # SIGKILL to the launcher after step 144 of 256, then the same command on one rank
    set -- cifar100 --set "data.root=$data/cifar100" --set model.batchnorm=group:64 --run-dir
    dtrain launch --nproc 2 "$@" whole
    dtrain launch --nproc 2 "$@" killed &
    until [ "$(grep -s step_ms killed/metrics.jsonl | wc -l)" -ge 144 ]; do sleep 0.02; done
    kill -KILL $!
    wait $! || sleep 2
    cp killed/metrics.jsonl killed.jsonl
    dtrain launch --nproc 1 "$@" killed
    { echo run,step,loss,accuracy; table whole whole/metrics.jsonl; table killed killed.jsonl; table resumed killed/metrics.jsonl 128; } \
        >"$out/killed.csv"
}

halves() { # of the classes of CIFAR-100
    for part in train test; do
        mkdir -p {first,second}/$part
        find "$data/cifar100/$part" -mindepth 1 -maxdepth 1 | sort | head -n 50 | xargs -I{} ln -s {} first/$part
        find "$data/cifar100/$part" -mindepth 1 -maxdepth 1 | sort | tail -n 50 | xargs -I{} ln -s {} second/$part
    done
}

pretrained() { # the ViT of docs/results/finetune-cifar100.md
    cp "$out"/../../results/finetune-cifar100/* .
    halves
    dtrain import vit.py:vit -o vit.pt2
    dtrain launch pretrain.toml --run-dir pretrained
    python3 headless.py pretrained pretrained.safetensors
}

finetune() { # docs/results/finetune-cifar100.md
    pretrained
    echo run,step,loss,accuracy >"$out/finetune.csv"
    for recipe in full plain; do
        for seed in 1 2 3; do
            dtrain launch "$recipe.toml" --run-dir "$recipe-$seed" --set "train.seed=$seed"
            evaluations "$recipe-$seed" >>"$out/finetune.csv"
        done
    done
}

# evaluations RUN: its evaluations as lines RUN,STEP,LOSS,ACCURACY
evaluations() {
    python3 - "$@" <<'PYTHON'
import json, sys
for line in map(json.loads, open(sys.argv[1] + "/metrics.jsonl")):
    if "eval" in line:
        print(sys.argv[1], line["eval"]["step"], round(line["eval"]["loss"], 4), round(line["eval"]["accuracy"], 4), sep=",")
PYTHON
}

# figures ENTRY RUN FOLDER FIGURE...: the losses of every tenth step and these figures of its evaluations, as lines of gallery.csv
figures() {
    python3 - "$@" <<'PYTHON'
import json, sys
entry, run, folder, *figures = sys.argv[1:]
for line in map(json.loads, open(folder + "/metrics.jsonl")):
    if "eval" in line:
        name = f"{run}-test" if figures == ["loss"] else run
        for figure in figures:
            print(entry, name, line["eval"]["step"], figure, round(line["eval"][figure], 4), sep=",")
    elif figures == ["loss"] and "loss" in line and line["step"] % 10 in (0, 1):
        print(entry, run, line["step"], "loss", round(line["loss"], 4), sep=",")
PYTHON
}

# blocks PAGE: writes the files that a page shows
blocks() {
    python3 - "$@" <<'PYTHON'
import re, sys
for text in re.findall(r"```\w*\n(.*?)```", open(sys.argv[1]).read(), re.S):
    if name := re.match(r"# (\w+\.\w+)", text):
        open(name[1], "w").write(text)
PYTHON
}

# agreement TRUTH PREDICTION OUT: green where both have vessels, orange in the truth alone, blue in the prediction alone; prints the Dice
agreement() {
    python3 - "$@" <<'PYTHON'
import sys
from PIL import Image
truth, found = (Image.open(path) for path in sys.argv[1:3])
both = bytes((a > 0) + 2 * (b > 0) for a, b in zip(truth.convert("L").tobytes(), found.tobytes()))
print(f"Dice {2 * both.count(3) / (both.count(1) + both.count(2) + 2 * both.count(3)):.3f}")
picture = Image.frombytes("P", truth.size, both).resize((600, 577), Image.Resampling.NEAREST)
picture.putpalette(bytes.fromhex("101418e8842a4a90e23fae5c"))
picture.save(sys.argv[3], optimize=True)
PYTHON
}

systems() { # the small runs of three of the five systems
    for name in camoxpert prs-med few-shot; do
        cp -r "$examples/$name" "$name"
        ln -s "$data" "$name/real"
    done
    (
        cd camoxpert
        dtrain import model.py:make_small -o small.pt2
        membrane=(train=image train_masks=label test=image test_masks=label val=0.2 'mask_colors={ rest = "#000000", object = "#FFFFFF" }')
        for recipe in small unet; do
            dtrain launch $recipe.toml --set data.root=real/membrane "${membrane[@]/#/--set=data.}" --run-dir $recipe
        done
        cd ../prs-med
        mkdir data
        python3 prepare.py real/camvid data/questions
        dtrain import model.py:make_small -o small.pt2
        dtrain launch small.toml --run-dir question
        fields='{ image = "image:image_path", tokens = "text:no_question,answer", mask = "mask:mask_path" }'
        dtrain launch small.toml --run-dir no-question --set "data.fields=$fields"
        cd ../few-shot
        python3 prepare.py real/omniglot omniglot
        dtrain import model.py:small -o small.pt2
        dtrain launch small.toml --run-dir one
        dtrain import model.py:small --arg k_shot=5 -o small5.pt2
        dtrain launch small.toml --set model.file=small5.pt2 --set data.episodes.k_shot=5 --set train.epochs=8 --run-dir five
    )
}

gallery() { # docs/examples/README.md
    examples=$(cd "$out/../../examples" && pwd)
    systems
    pretrained
    mkdir data
    for name in ../first ../second "$data/shakespeare" "$data/cifar100"; do ln -s "$name" data; done
    dtrain launch --nproc 2 "$examples/resnet/pretrain.toml" --run-dir resnet
    dtrain ckpt export resnet resnet18.safetensors
    dtrain launch --nproc 2 "$examples/resnet/recipe.toml" --run-dir tuned
    sed '/^weights/d' "$examples/resnet/recipe.toml" >scratch.toml
    dtrain launch --nproc 2 scratch.toml --run-dir scratch
    python3 "$examples/vessels/prepare.py" "$data/chase" data/vessels
    dtrain launch --nproc 2 "$examples/vessels/recipe.toml" --run-dir vessels
    dtrain predict vessels "$data/chase/Image_11L.jpg" --windows -o predicted
    agreement "$data/chase/Image_11L_1stHO.png" predicted/mask/Image_11L.png "$examples/vessels/agreement.png"
    dtrain launch --nproc 2 "$examples/lora/recipe.toml" --run-dir lora
    python3 "$examples/clip/captions.py" data/cifar100 data/captions.csv
    dtrain import "$examples/clip/model.py:make_model" -o clip.pt2
    dtrain launch --nproc 2 "$examples/clip/recipe.toml" --run-dir clip
    rates=(1e-4 3e-4 1e-3 3e-3)
    for number in "${!rates[@]}"; do
        dtrain launch --nproc 2 "$examples/sweep/recipe.toml" --set "optim.lr=${rates[number]}" --run-dir "$number"
    done
    blocks "$examples/../train-gpt2.md"
    python3 config.py
    dtrain import hf:small-gpt2 -o gpt2.pt2
    dtrain launch --nproc 2 gpt2.toml --run-dir gpt2
    blocks "$examples/../train-vlm.md"
    python3 prepare.py
    dtrain import hf:small-vlm -o vlm.pt2
    dtrain launch --nproc 2 vlm.toml --run-dir vlm
    {
        echo entry,run,step,figure,value
        for run in tuned scratch; do figures resnet "$run" "$run" accuracy; done
        figures vessels vessels vessels dice auc_binned
        figures gpt2 gpt2 gpt2 loss
        figures lora lora lora accuracy
        figures clip clip clip accuracy top5_accuracy
        figures vlm vlm vlm loss
        for number in "${!rates[@]}"; do figures sweep "$number" "$number" accuracy; done
        figures camoxpert camoxpert camoxpert/small iou
        figures camoxpert unet camoxpert/unet iou
        for run in question no-question; do figures prs-med $run prs-med/$run mDice; done
        for run in one five; do figures few-shot $run few-shot/$run accuracy; done
    } >"$out/gallery.csv"
}

terminal() { # on a terminal of 84 columns
    plans
    cat >train.py <<'SCRIPT'
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

torch.set_num_threads(1)
dist.init_process_group("gloo")
model = DistributedDataParallel(torch.nn.Linear(8, 10))
for step in range(100):
    labels = torch.full((4,), 12 if (step, dist.get_rank()) == (50, 2) else 3)
    torch.nn.functional.cross_entropy(model(torch.randn(4, 8)), labels).backward()
SCRIPT
    for line in "plan dtrain plan fine-grained.toml --gpu 3GiB,4GiB,t4" "failing-rank dtrain launch --nproc 4 train.py"; do
        { echo "\$ ${line#* }"; script -qec "stty cols 84; ${line#* }" /dev/null || true; } |
            sed "s#$work/##g; s#/[^ \"]*/site-packages/##g" >"$out/${line%% *}.txt" # no paths of this machine
    done
}

for part in "$@"; do "$part"; done
rm -r "$work"
