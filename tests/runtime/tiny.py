"""Writes a tiny model of random weights, and an adapter that changes what it says.

Run with the Python that has the package `gguf`: `python tiny.py FOLDER`. The model is a llama of two blocks. It always
goes on with a word, since the weights of all other tokens are 0 in its last layer.
"""

import sys
from pathlib import Path

import gguf
import numpy as np

BLOCKS, WIDTH, HEADS, KV_HEADS, INNER, CONTEXT, RANK = 2, 64, 4, 2, 128, 512, 4
WORDS = [f"▁{first}{second}" for first in "bdfgklmnprst" for second in ("a", "e", "i", "o", "u", "al", "em", "on")]
TEMPLATE = "{% for message in messages %}{{ message['content'] }} {% endfor %}"


def tokens() -> tuple[list[str], list[float], list[int]]:
    """The vocabulary of a SentencePiece model: special tokens, bytes, words."""
    kinds = gguf.TokenType
    found = [("<unk>", 0.0, kinds.UNKNOWN), ("<s>", 0.0, kinds.CONTROL), ("</s>", 0.0, kinds.CONTROL)]
    found += [(f"<0x{byte:02X}>", 0.0, kinds.BYTE) for byte in range(256)]
    found += [(word, -float(number), kinds.NORMAL) for number, word in enumerate(WORDS)]
    return [text for text, _, _ in found], [score for _, score, _ in found], [int(kind) for *_, kind in found]


def write_model(path: Path, *, seed: int) -> None:
    """A llama with weights by the seed."""
    rng = np.random.default_rng(seed)

    def weights(rows: int, columns: int) -> np.ndarray:
        found: np.ndarray = (rng.standard_normal((rows, columns)) / np.sqrt(columns)).astype(np.float32)
        return found

    texts, scores, kinds = tokens()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_name("tiny")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(BLOCKS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(WIDTH // HEADS)
    writer.add_vocab_size(len(texts))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(texts)
    writer.add_token_scores(scores)
    writer.add_token_types(kinds)
    writer.add_unk_token_id(0)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_chat_template(TEMPLATE)
    last = weights(len(texts), WIDTH) * 8
    last[: len(texts) - len(WORDS)] = 0
    writer.add_tensor("token_embd.weight", weights(len(texts), WIDTH) * 8)
    writer.add_tensor("output_norm.weight", np.ones(WIDTH, dtype=np.float32))
    writer.add_tensor("output.weight", last)
    width = WIDTH // HEADS * KV_HEADS
    for block in range(BLOCKS):
        shapes = {
            "attn_q": (WIDTH, WIDTH),
            "attn_k": (width, WIDTH),
            "attn_v": (width, WIDTH),
            "attn_output": (WIDTH, WIDTH),
            "ffn_gate": (INNER, WIDTH),
            "ffn_up": (INNER, WIDTH),
            "ffn_down": (WIDTH, INNER),
        }
        for name in ("attn_norm", "ffn_norm"):
            writer.add_tensor(f"blk.{block}.{name}.weight", np.ones(WIDTH, dtype=np.float32))
        for name, shape in shapes.items():
            writer.add_tensor(f"blk.{block}.{name}.weight", weights(*shape))
    finish(writer)


def write_adapter(path: Path, *, seed: int) -> None:
    """An adapter of the model's `ffn_down`, large enough that other words come out."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(RANK))
    for block in range(BLOCKS):
        name = f"blk.{block}.ffn_down.weight"
        writer.add_tensor(f"{name}.lora_a", rng.standard_normal((RANK, INNER)).astype(np.float32) * 4)
        writer.add_tensor(f"{name}.lora_b", rng.standard_normal((WIDTH, RANK)).astype(np.float32) * 4)
    finish(writer)


def finish(writer: gguf.GGUFWriter) -> None:
    """Write the file."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main() -> None:
    """Two models and an adapter."""
    folder = Path(sys.argv[1])
    (folder / "loras").mkdir(parents=True, exist_ok=True)
    write_model(folder / "tiny.gguf", seed=1)
    write_model(folder / "other.gguf", seed=2)
    write_adapter(folder / "loras" / "law.gguf", seed=3)


if __name__ == "__main__":
    main()
