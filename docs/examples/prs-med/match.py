"""Matches of written answers: python match.py data/questions/questions.csv answers.csv [SPLIT]

`answers.csv` is what `dtrain predict` wrote for this table. An exact match has the words of the answer and no others, a keyword
match contains the position.
"""

import csv
import sys


def words(text):
    return " ".join(text.split())


table, answers, split = [*sys.argv[1:], None][:3]
with open(table, newline="") as asked, open(answers, newline="") as written:
    pairs = list(zip(csv.DictReader(asked), csv.DictReader(written), strict=True))
pairs = [(row, words(answer["text"])) for row, answer in pairs if split in (None, row["split"])]
exact = sum(text == words(row["answer"]) for row, text in pairs)
keyword = sum(words(row["position"]) in text for row, text in pairs)
print(f"exact match {exact / len(pairs):.4f}, keyword match {keyword / len(pairs):.4f} of {len(pairs)} answers")
