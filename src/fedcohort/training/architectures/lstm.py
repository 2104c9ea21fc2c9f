"""Recurrent networks for text."""

from torch import Tensor, nn


class CharLSTM(nn.Module):
    """LSTM layers over characters, and the next one from the last state.

    The layout that S. Caldas et al. use for Shakespeare (LEAF: A Benchmark for Federated Settings,
    2018): embeddings of 8, two layers of 256.

    Parameters
    ----------
    input_shape : (int,)
        Tokens per sample.
    classes : int
        Tokens that can come next.
    vocabulary : int
        Tokens that a sample can hold.
    hidden : int
        Width of the LSTM layers.
    layers : int
        How many of them.
    """

    def __init__(
        self,
        input_shape: tuple[int, ...],
        classes: int,
        vocabulary: int,
        hidden: int = 256,
        layers: int = 2,
    ) -> None:
        super().__init__()
        if len(input_shape) != 1:
            raise ValueError(f"samples must be rows of tokens, not of shape {list(input_shape)}")
        self.embedding = nn.Embedding(vocabulary, 8)
        self.lstm = nn.LSTM(8, hidden, num_layers=layers, batch_first=True)
        self.fc = nn.Linear(hidden, classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return logits [B, classes] of tokens int64 [B, T]."""
        states, _ = self.lstm(self.embedding(tokens))
        return self.fc(states[:, -1])  # type: ignore[no-any-return]
