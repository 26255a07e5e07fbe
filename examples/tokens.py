"""Documents to sequences of tokens, and from them a small language model.

    python examples/tokens.py
    python examples/tokens.py --storage ./data --documents 20000 --epochs 3

Nothing is downloaded: the documents are sentences made from a small grammar, of 5 to 200 words.
"""

import argparse
import random
import tempfile

import numpy as np
import torch
from torch import nn

from storage_loader import DataConfig, DataSaver, Dataset
from storage_loader.torch import DataLoader

GRAMMAR = {
    "the": ["old", "small", "cat", "dog", "bird"],
    "old": ["cat", "dog", "bird"],
    "small": ["cat", "dog", "bird"],
    "cat": ["sees", "hears"],
    "dog": ["sees", "chases"],
    "bird": ["sees", "sings"],
    "sees": ["the"],
    "hears": ["the"],
    "chases": ["the"],
    "sings": ["."],
    ".": ["the"],
}
"""Which words may follow a word."""

WORDS = ["<pad>", *GRAMMAR]
PAD = 0
TOKENS = {word: token for token, word in enumerate(WORDS)}


def documents(count: int, seed: int) -> list[str]:
    """Texts of random length, each a walk through the grammar."""
    chance = random.Random(seed)
    made = []
    for _ in range(count):
        words = ["the"]
        for _ in range(chance.randrange(4, 200)):
            words.append(chance.choice(GRAMMAR[words[-1]]))
        made.append(" ".join(words))
    return made


def tokenized(text: str) -> np.ndarray:
    return np.array([TOKENS[word] for word in text.split()], np.int32)


def preprocess(config: DataConfig, count: int) -> None:
    """Save each document's text, its tokens, and where it came from."""
    with DataSaver(config, refresh=True) as saver:
        for start in range(0, count, 500):
            texts = documents(min(500, count - start), seed=start)
            saver(
                {
                    "tokens": [tokenized(text) for text in texts],
                    "text": texts,
                    "source": [{"by": "grammar", "number": start + i} for i in range(len(texts))],
                }
            )


class LanguageModel(nn.Module):
    """Scores of the next word at each place, shape (batch, words, vocabulary)."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(WORDS), width, padding_idx=PAD)
        self.reader = nn.GRU(width, width, batch_first=True)
        self.scores = nn.Linear(width, len(WORDS))

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.scores(self.reader(self.embedding(tokens))[0])


def train(config: DataConfig, epochs: int) -> None:
    """`pad` makes batches of shape (64, longest of the batch), and adds "tokens_length"."""
    torch.manual_seed(0)
    model = LanguageModel()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    loader = DataLoader(
        config, batch_size=64, shuffle=True, seed=0, attributes=["tokens"], pad={"tokens": PAD}
    )
    for epoch in range(epochs):
        summed = words = 0.0
        for step, batch in enumerate(loader):
            tokens = batch["tokens"].long()
            scores = model(tokens[:, :-1])
            loss = nn.functional.cross_entropy(
                scores.flatten(0, 1), tokens[:, 1:].flatten(), ignore_index=PAD
            )
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if epoch == step == 0:
                print(f"first loss: {loss.item():.2f} nats a word")
            count = int(batch["tokens_length"].sum()) - len(tokens)  # words that were predicted
            summed, words = summed + loss.item() * count, words + count
        print(f"epoch {epoch}: {summed / words:.2f} nats a word; {loader.stats}")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--storage", help="default: a folder that goes at the end")
    options.add_argument("--documents", type=int, default=2000)
    options.add_argument("--epochs", type=int, default=2)
    arguments = options.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = DataConfig(
            "documents",
            attributes=[("tokens", "int32", (None,)), ("text", "str"), ("source", "json")],
            storage=arguments.storage or folder,
        )
        preprocess(config, arguments.documents)
        dataset = Dataset(config)
        row = dataset[17]
        print(f"row 17 of {len(dataset)}: {len(row['tokens'])} tokens, {row['text'][:40]!r} ...")
        train(config, arguments.epochs)


if __name__ == "__main__":
    main()
