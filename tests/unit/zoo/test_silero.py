"""Silero VAD with its published weights: equal to the published model, and right about what is speech."""

import numpy as np
import pytest
import torch

from tests.support.rounding import rounding
from zoo.silero import FEATURES, RATE, WINDOW, Function, script

pytestmark = pytest.mark.numeric

#: First three formants in Hz (Peterson and Barney 1952, men) of the vowels in: father, heed, who'd, head, hawed.
VOWELS = ((730, 1090, 2440), (270, 2290, 3010), (300, 870, 2240), (530, 1840, 2480), (570, 840, 2410))
BANDWIDTHS = (80, 100, 140)
SYLLABLE = RATE // 5

Audio = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


def vowels(seconds: float) -> Audio:
    """
    A voice that says vowels, five a second: pulses of a wavering pitch near 120 Hz with a little breath, through three
    resonances.

    The filters are applied as convolutions with their impulse responses.
    """
    count = int(seconds * RATE)
    t = np.arange(count) / RATE
    pitch = 120 + 15 * np.sin(2 * np.pi * 2.1 * t) + 5 * np.sin(2 * np.pi * 5.3 * t)
    pulses = np.diff(np.floor(np.cumsum(pitch) / RATE), prepend=0.0)
    source = pulses + 0.01 * np.random.default_rng(0).standard_normal(count)
    ramp = np.minimum(1, np.minimum(np.arange(SYLLABLE), np.arange(SYLLABLE)[::-1]) / (0.04 * RATE))
    tail = np.arange(RATE // 20)
    spoken = np.zeros(count)
    for number, start in enumerate(range(0, count - SYLLABLE + 1, SYLLABLE)):
        sound = source[start : start + SYLLABLE]
        for frequency, bandwidth in zip(VOWELS[number % len(VOWELS)], BANDWIDTHS, strict=True):
            angle = 2 * np.pi * frequency / RATE
            response = np.exp(-np.pi * bandwidth / RATE * tail) * np.sin(angle * (tail + 1)) / np.sin(angle)
            sound = np.convolve(sound, response)[:SYLLABLE]
        spoken[start : start + SYLLABLE] = sound * ramp
    voice: Audio = (0.3 * spoken / np.abs(spoken).max()).astype(np.float32)
    return voice


@pytest.fixture(scope="module")
def detector() -> Function:
    made = Function()
    try:
        made.load("cpu")
    except FileNotFoundError as error:
        pytest.skip(str(error))
    return made


def probabilities(detector: Function, audio: Audio) -> Audio:
    found: Audio = detector.predict({"audio": audio[None]})["probability"][0]
    return found


def test_it_tells_speech_from_silence_noise_and_tones(detector: Function) -> None:
    t = np.arange(2 * RATE) / RATE
    noise = 0.05 * np.random.default_rng(1).standard_normal(2 * RATE)
    speech = probabilities(detector, vowels(2.0))
    silence = probabilities(detector, np.zeros(2 * RATE, np.float32))
    white = probabilities(detector, noise.astype(np.float32))
    tone = probabilities(detector, (0.3 * np.sin(2 * np.pi * 440 * t)).astype(np.float32))
    assert max(silence.max(), white.max(), tone.max()) < 0.1
    assert speech.mean() > 0.4
    assert speech.max() > 0.8


def test_it_finds_where_the_speech_is(detector: Function) -> None:
    second = np.zeros(RATE, np.float32)
    found = probabilities(detector, np.concatenate([second, vowels(1.6), second]))
    windows = RATE // WINDOW
    assert found[:windows].max() < 0.1
    assert found[windows + 8 : windows + 48].mean() > 0.4
    assert found[-15:].max() < 0.1


def of_probabilities(windows: int) -> float:
    """
    How far rounding may move a probability: the transform, four convolutions, a step of the memory for each window, the
    head.
    """
    return rounding(np.float32, [256, 129 * 3, 128 * 3, 64 * 3, 64 * 3, *[2 * FEATURES] * windows, FEATURES])


def test_it_equals_the_published_model(detector: Function) -> None:
    audio = vowels(1.0)[: 30 * WINDOW]
    published = script()
    with torch.inference_mode():
        expected = [published(torch.from_numpy(window)[None], RATE).item() for window in audio.reshape(-1, WINDOW)]
    np.testing.assert_allclose(probabilities(detector, audio), expected, rtol=0, atol=of_probabilities(30))


def test_rows_are_independent_recordings_of_any_length(detector: Function) -> None:
    speech = vowels(0.4)[: 10 * WINDOW + 100]
    together = detector.predict({"audio": np.stack([speech, np.zeros_like(speech), speech])})["probability"]
    assert together.shape == (3, 11)
    np.testing.assert_allclose(together[0], together[2], rtol=0, atol=of_probabilities(11))
    np.testing.assert_allclose(together[0], probabilities(detector, speech), rtol=0, atol=of_probabilities(11))
    with pytest.raises(ValueError, match="rows, samples"):
        detector.predict({"audio": speech})
