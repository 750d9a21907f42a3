"""What every reader knows in advance: prompts, and the rows that plain transformers gives for each of them alone."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

PROMPTS = 48
LONGEST = 400
TOLERANCE = 1e-4


def write_content(path: Path, target_directory: Path, seed: int) -> None:
    """Runs the prompts through transformers and keeps the rows."""
    import torch
    from transformers import AutoModel

    model = AutoModel.from_pretrained(target_directory, dtype=torch.float32).eval()
    random_ = random.Random(seed)
    arrays = {}
    for index in range(PROMPTS):
        prompt = [random_.randrange(model.config.vocab_size) for _ in range(random_.randint(1, LONGEST))]
        with torch.inference_mode():
            rows = model(input_ids=torch.tensor([prompt])).last_hidden_state[0]
        arrays[f"prompt_{index}"] = np.array(prompt, dtype=np.int64)
        arrays[f"rows_{index}"] = rows.numpy()
    np.savez(path, **arrays)


class Content:
    """Prompts and their rows."""

    def __init__(self, path: Path) -> None:
        with np.load(path) as arrays:
            count = len(arrays.files) // 2
            self.prompts = [arrays[f"prompt_{i}"].tolist() for i in range(count)]
            self.rows = [arrays[f"rows_{i}"] for i in range(count)]
        self._by_prompt = {tuple(prompt): index for index, prompt in enumerate(self.prompts)}

    def draw(self, random_: random.Random, at_most: int = 4) -> list[list[int]]:
        """A few prompts."""
        return random_.sample(self.prompts, random_.randint(1, at_most))

    def is_right(self, token_ids: list[int], rows: np.ndarray) -> bool:
        """Whether the rows are those of the prompt."""
        index = self._by_prompt.get(tuple(token_ids))
        if index is None or rows.shape != self.rows[index].shape:
            return False
        expected = self.rows[index]
        return bool(np.abs(rows - expected).max() <= TOLERANCE * np.abs(expected).max())
