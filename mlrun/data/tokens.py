"""From text to token ids, with the tokenizers library. No framework is imported here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import BertNormalizer
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

from mlrun.errors import RequestError

TOKENIZER = "tokenizer.json"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def read_tokenizer(path: Path, vocabulary: int) -> Tokenizer:
    """The tokenizer in ``path``: a ``tokenizer.json``, or a folder with one.

    Raises:
        RequestError: unreadable, or with ids that a model of ``vocabulary`` tokens lacks.
    """
    path = path / TOKENIZER if path.is_dir() else path
    if not path.is_file():
        raise RequestError(f"data.tokenizer: there is no file {path}", fix="name a tokenizer.json")
    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # The library raises bare Exception.
        raise RequestError(f"data.tokenizer: {path} can't be read: {error}") from error
    if (size := tokenizer.get_vocab_size()) > vocabulary:
        raise RequestError(
            f"data.tokenizer: {path} has {size:,} tokens, but the model {vocabulary:,}",
            fix=f"set model.args.vocab_size: {size}",
        )
    return tokenizer


def make_tokenizer(texts: Sequence[str], vocabulary: int) -> Tokenizer:
    """A tokenizer of the most frequent words of ``texts``, ``vocabulary`` tokens at most.

    The same on every host: ties are broken by the alphabet. Trainers of subwords don't promise that.
    """
    tokenizer = Tokenizer(WordLevel({}, unk_token="[UNK]"))
    tokenizer.normalizer = BertNormalizer()
    tokenizer.pre_tokenizer = BertPreTokenizer()
    counts: Counter[str] = Counter()
    for text in texts:
        normal = tokenizer.normalizer.normalize_str(text)
        counts.update(word for word, _ in tokenizer.pre_tokenizer.pre_tokenize_str(normal))
    words = sorted(counts, key=lambda word: (-counts[word], word))
    tokens = [*SPECIAL, *words][:vocabulary]
    tokenizer.model = WordLevel({token: i for i, token in enumerate(tokens)}, unk_token="[UNK]")
    tokenizer.add_special_tokens([token for token in SPECIAL if token in tokens])
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        special_tokens=[(token, SPECIAL.index(token)) for token in ("[CLS]", "[SEP]")],
    )
    return tokenizer


def encode(
    tokenizer: Tokenizer, texts: Sequence[str], length: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(token ids, attention mask), each of shape (texts, ``length``): cut and padded to ``length``."""
    cut = Tokenizer.from_str(tokenizer.to_str())
    pad = next((token for token in ("[PAD]", "<pad>") if cut.token_to_id(token) is not None), None)
    cut.enable_truncation(length)
    cut.enable_padding(length=length, pad_id=cut.token_to_id(pad) if pad else 0, pad_token=pad or "[PAD]")
    encoded = cut.encode_batch(list(texts))
    ids = np.array([each.ids for each in encoded], dtype=np.int64)
    return ids, np.array([each.attention_mask for each in encoded], dtype=np.int64)
