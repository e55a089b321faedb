"""
Silero VAD, a voice activity detector with its published weights (Silero Team, MIT licence, from the silero-vad wheel).

The network is written here in torch and takes the 16 kHz weights of the wheel's TorchScript file: the package's own
module imports more than serving needs, and the script keeps one stream's state and specialises itself (60 ms) for each
new number of rows. A test holds the two equal.
"""

import importlib.util
import warnings
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from smore.handler import Handler
from zoo.model import Arrays, Blank

RATE = 16_000
#: Samples of one window (32 ms).
WINDOW = 512
#: Samples of the window before, which the network sees too.
CONTEXT = 64
#: Features of one window.
FEATURES = 128
#: Bins of the spectrum: half of 256 and the constant.
BINS = 129
#: What the parts of the script's 16 kHz model are called here.
PARTS = {
    "stft.forward_basis_buffer": "fourier.weight",
    "encoder.0.reparam_conv.": "encoder.0.",
    "encoder.1.reparam_conv.": "encoder.2.",
    "encoder.2.reparam_conv.": "encoder.4.",
    "encoder.3.reparam_conv.": "encoder.6.",
    "decoder.rnn.": "memory.",
    "decoder.decoder.2.": "head.",
}


class Detector(nn.Module):
    """``audio`` float [rows, windows x 512] at 16 kHz within -1..1 to speech probabilities [rows, windows]."""

    def __init__(self) -> None:
        super().__init__()
        # A Fourier transform as a convolution: the real parts, then the imaginary ones.
        self.fourier = nn.Conv1d(1, 2 * BINS, 256, stride=128, bias=False)
        self.encoder = nn.Sequential(
            nn.Conv1d(BINS, 128, 3, padding=1),
            nn.ReLU(),
            nn.Conv1d(128, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv1d(64, 64, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv1d(64, FEATURES, 3, padding=1),
            nn.ReLU(),
        )
        self.memory = nn.LSTMCell(FEATURES, FEATURES)
        self.activation = nn.ReLU()
        self.head = nn.Conv1d(FEATURES, 1, 1)

    def forward(self, audio: Tensor) -> Tensor:
        rows, count = audio.shape[0], audio.shape[1] // WINDOW
        windows = functional.pad(audio, (CONTEXT, 0)).unfold(1, CONTEXT + WINDOW, WINDOW).reshape(rows * count, 1, -1)
        # Only the recurrence goes window by window; all that comes before it is one batch.
        parts = self.fourier(functional.pad(windows, (0, CONTEXT), "reflect"))
        spectrum = (parts[:, :BINS].square() + parts[:, BINS:].square()).sqrt()
        features = self.encoder(spectrum).view(rows, count, FEATURES)
        state = (audio.new_zeros(rows, FEATURES), audio.new_zeros(rows, FEATURES))
        remembered = []
        for window in range(count):
            state = self.memory(features[:, window], state)
            remembered.append(state[0])
        logits: Tensor = self.head(self.activation(torch.stack(remembered, dim=2))).squeeze(1)
        return logits.sigmoid()


def script() -> torch.jit.ScriptModule:
    """
    The wheel's TorchScript model, found without importing the package; FileNotFoundError where it is not installed.
    """
    found = importlib.util.find_spec("silero_vad")
    if found is None or not found.submodule_search_locations:
        raise FileNotFoundError("the silero-vad package is not installed")
    with warnings.catch_warnings():
        # torch has marked the format as old; it is the one in which these weights are published.
        warnings.simplefilter("ignore", DeprecationWarning)
        path = Path(found.submodule_search_locations[0]) / "data" / "silero_vad.jit"
        loaded: torch.jit.ScriptModule = torch.jit.load(str(path))  # type: ignore[no-untyped-call]  # torch leaves it unannotated
        return loaded


def weights() -> dict[str, Tensor]:
    """The published weights by the names that :class:`Detector` gives them."""
    published = script().state_dict()
    renamed: dict[str, Tensor] = {}
    for theirs, ours in PARTS.items():
        prefix = f"_model.{theirs}"
        renamed |= {
            ours + name.removeprefix(prefix): tensor for name, tensor in published.items() if name.startswith(prefix)
        }
    return renamed


class Function(Handler):
    """
    ``audio`` FP32 [rows, samples] to ``probability`` FP32 [rows, windows]: of speech, for each window of 512 samples
    (32 ms).

    Rows are independent recordings at 16 kHz. A last window that is not full is filled with silence.
    """

    example: ClassVar = {"audio": np.zeros((1, RATE), np.float32)}

    def load(self, device: str) -> None:
        # As in zoo.model: a received body is not ours to write, and nothing here writes to it.
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        with Blank():
            module = Detector()
        module.load_state_dict(weights())
        self._module = module.to(device).eval()
        self._device = torch.device(device)

    def predict(self, inputs: Arrays) -> Arrays:
        audio = inputs["audio"]
        if audio.ndim != 2 or audio.shape[1] == 0:
            raise ValueError(f"audio: [rows, samples] is expected, not {list(audio.shape)}")
        with torch.inference_mode():
            tensor = torch.from_numpy(audio).to(self._device)
            padded = functional.pad(tensor, (0, -audio.shape[1] % WINDOW))
            return {"probability": self._module(padded).cpu().numpy()}
