"""What a user would pick instead of SPCN: a supervised bidirectional GRU, and plain one-hot features."""

from ematrace.baselines.bigru import BiGRUSettings, BiGRUTagger
from ematrace.baselines.onehot import (
    ONE_HOT_CONTROLS,
    current_token,
    ema_of_onehots,
    merged_ema,
    position,
    window,
)
from ematrace.baselines.shortcuts import (
    TokenScore,
    content_tokens,
    context_only_accuracy,
    intact_accuracy,
    swapped_accuracy,
    word_only_accuracy,
)

__all__ = [
    "ONE_HOT_CONTROLS",
    "BiGRUSettings",
    "BiGRUTagger",
    "TokenScore",
    "content_tokens",
    "context_only_accuracy",
    "current_token",
    "ema_of_onehots",
    "intact_accuracy",
    "merged_ema",
    "position",
    "swapped_accuracy",
    "window",
    "word_only_accuracy",
]
