"""Writes a small Llama with random weights and a tokenizer of one token a byte.

    tiny_model.py FOLDER [HIDDEN LAYERS HEADS KV_HEADS]

No model has to be downloaded: what the proof needs is that equal prompts give
equal tokens, not that they mean anything. Every ASCII character of a prompt is
one token, so prompts have exact lengths.
"""

import sys
from pathlib import Path


def tokenizer():
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    vocabulary = {"<s>": 0, "</s>": 1, "<unk>": 2, "<pad>": 3}
    for letter in sorted(pre_tokenizers.ByteLevel.alphabet()):
        vocabulary[letter] = len(vocabulary)
    made = Tokenizer(models.BPE(vocab=vocabulary, merges=[], unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<pad>",
        model_max_length=8192,
    )


def main():
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = Path(sys.argv[1])
    hidden, layers, heads, kv_heads = [int(one) for one in sys.argv[2:]] or (256, 4, 4, 2)
    words = tokenizer()
    words.save_pretrained(folder)
    torch.manual_seed(20250221)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=8192,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=3,
        # Wider than usual, so that greedy decoding does not repeat one token for ever.
        initializer_range=0.08,
    )
    LlamaForCausalLM(config).to(torch.float32).save_pretrained(folder, safe_serialization=True)


if __name__ == "__main__":
    main()
