"""A model of a megabyte for a real llama.cpp, which says one sentence and stops. Runs in the venv that has `gguf`.

Its weights are a table: the embedding of a token is a unit vector, attention and feed-forward are zero, and the output matrix maps each
token to the one that follows it. So a real inference server answers every prompt with the same words, on any machine.
"""

import gguf
import numpy

TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}<|go|>"


def write(path, text):
    tokens, kinds = ["<unk>", "<s>", "</s>"], [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL]
    tokens += [f"<0x{byte:02X}>" for byte in range(256)] + ["<|go|>"]
    kinds += [gguf.TokenType.BYTE] * 256 + [gguf.TokenType.CONTROL]
    end, go = 2, len(tokens) - 1
    # Each word is a token of its own, so no word may come twice.
    words = [("\u2581" if place else "") + word for place, word in enumerate(text.split(" "))]
    assert len(set(words)) == len(words), text
    tokens += words
    kinds += [gguf.TokenType.NORMAL] * len(words)
    follows = dict(zip(range(go, len(tokens)), [*range(go + 1, len(tokens)), end]))

    count = len(tokens)
    width = (count + 63) // 64 * 64
    embedding = numpy.eye(count, width, dtype=numpy.float16)
    output = numpy.zeros((count, width), numpy.float16)
    for token in range(count):
        output[follows.get(token, end), token] = 1.0

    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(8192)
    writer.add_embedding_length(width)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(width // 64)
    writer.add_head_count_kv(width // 64)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_dimension_count(64)
    writer.add_vocab_size(count)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([-0.01 * place for place in range(count)])
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(end)
    writer.add_unk_token_id(0)
    writer.add_add_bos_token(True)
    writer.add_chat_template(TEMPLATE)
    writer.add_tensor("token_embd.weight", embedding)
    writer.add_tensor("output_norm.weight", numpy.ones(width, numpy.float32))
    writer.add_tensor("output.weight", output)
    for name, rows, columns in [
        ("attn_q", width, width),
        ("attn_k", width, width),
        ("attn_v", width, width),
        ("attn_output", width, width),
        ("ffn_gate", 32, width),
        ("ffn_up", 32, width),
        ("ffn_down", width, 32),
    ]:
        writer.add_tensor(f"blk.0.{name}.weight", numpy.zeros((rows, columns), numpy.float16))
    for name in ("attn_norm", "ffn_norm"):
        writer.add_tensor(f"blk.0.{name}.weight", numpy.ones(width, numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
