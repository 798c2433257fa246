"""Speech and sound."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.outside.registry import Case, program


@program("torchaudio")
def emformer_stream() -> Case:
    from torchaudio.models import Emformer

    model = Emformer(16, 2, 24, 2, 4, left_context_length=6, right_context_length=2).eval()

    def stream(frames: Tensor) -> tuple[Tensor, Tensor]:
        states, found = None, []
        lengths = torch.full((len(frames),), 6)
        for begin in range(0, frames.shape[1] - 5, 4):
            out, lengths_out, states = model.infer(frames[:, begin : begin + 6], lengths, states)
            found.append(out)
        return torch.cat(found, 1), lengths_out

    return Case(stream, (torch.randn(1, 14, 16),), (torch.randn(2, 26, 16),), model)


@program("torchaudio")
def emformer() -> Case:
    from torchaudio.models import Emformer

    model = Emformer(16, 2, 24, 2, 4, left_context_length=4, right_context_length=2).eval()
    first = (torch.randn(2, 14, 16), torch.tensor([12, 9]))
    return Case(model, first, (torch.randn(3, 22, 16), torch.tensor([20, 7, 13])))


@program("torchaudio")
def conformer() -> Case:
    from torchaudio.models import Conformer

    model = Conformer(16, 2, 24, 1, 5).eval()
    first = (torch.randn(2, 12, 16), torch.tensor([12, 9]))
    return Case(model, first, (torch.randn(3, 20, 16), torch.tensor([20, 7, 13])))


@program("torchaudio")
def tacotron2() -> Case:
    from torchaudio.models import Tacotron2

    model = Tacotron2(
        n_mels=8, n_symbol=20, symbol_embedding_dim=16, encoder_embedding_dim=16,
        encoder_n_convolution=1, attention_rnn_dim=16, attention_hidden_dim=8,
        attention_location_n_filter=4, attention_location_kernel_size=5, decoder_rnn_dim=16,
        decoder_max_step=6, postnet_n_convolution=2, postnet_embedding_dim=16, prenet_dim=8,
        gate_threshold=0.52,
    ).eval()  # fmt: skip

    def spoken(tokens: Tensor, lengths: Tensor) -> Any:
        return model.infer(tokens, lengths)

    first = (torch.randint(0, 20, (2, 7)), torch.tensor([7, 5]))
    return Case(spoken, first, (torch.randint(0, 20, (1, 10)), torch.tensor([10])), model)


@program("torchaudio")
def wavernn() -> Case:
    from torchaudio.models import WaveRNN

    model = WaveRNN(
        upsample_scales=[2, 2], n_classes=16, hop_length=4, n_res_block=1, n_rnn=8, n_fc=8,
        n_freq=6, n_hidden=8, n_output=8,
    ).eval()  # fmt: skip

    def wave(spectrogram: Tensor) -> Any:
        return model.infer(spectrogram)

    return Case(wave, (torch.rand(1, 6, 5),), (torch.rand(2, 6, 7),), model)


@program("torchaudio")
def transducer_beam_search() -> Case:
    from torchaudio.models import RNNTBeamSearch
    from torchaudio.models.rnnt import emformer_rnnt_model

    model = emformer_rnnt_model(
        input_dim=8, encoding_dim=12, num_symbols=10, segment_length=4, right_context_length=1,
        time_reduction_input_dim=8, time_reduction_stride=1, transformer_num_heads=2,
        transformer_ffn_dim=16, transformer_num_layers=1, transformer_dropout=0.0,
        transformer_activation="gelu", transformer_left_context_length=4,
        transformer_max_memory_size=0, transformer_weight_init_scale_strategy="depthwise",
        transformer_tanh_on_mem=True, symbol_embedding_dim=8, num_lstm_layers=1,
        lstm_layer_norm=True, lstm_layer_norm_epsilon=1e-3, lstm_dropout=0.0,
    ).eval()  # fmt: skip
    search = RNNTBeamSearch(model, 9, step_max_tokens=3).eval()

    def decoded(frames: Tensor, length: Tensor) -> Any:
        return search(frames, length, 3)

    first = (torch.randn(1, 9, 8), torch.tensor([9]))
    return Case(decoded, first, (torch.randn(1, 13, 8), torch.tensor([13])), model)


@program("torchaudio")
def mel_features() -> Case:
    from torchaudio.transforms import MFCC

    mfcc = MFCC(8000, 6, melkwargs={"n_fft": 64, "hop_length": 32, "n_mels": 12})
    return Case(mfcc, (torch.randn(1, 400),), (torch.randn(2, 640),))


@program("torchaudio")
def griffin_lim() -> Case:
    from torchaudio.transforms import GriffinLim

    transform = GriffinLim(n_fft=32, n_iter=4, rand_init=False)
    return Case(transform, (torch.rand(17, 9),), (torch.rand(17, 14),))


@program("torchaudio")
def filtered() -> Case:
    from torchaudio.functional import biquad, overdrive

    def played(wave: Tensor) -> Tensor:
        return overdrive(biquad(wave, 0.2, 0.3, 0.2, 1.0, -0.5, 0.2), 10, 15)

    return Case(played, (torch.rand(1, 40) - 0.5,), (torch.rand(2, 70) - 0.5,))


@program("torchaudio")
def conv_tasnet() -> Case:
    from torchaudio.models import ConvTasNet

    model = ConvTasNet(2, 8, 16, 3, 8, 16, 2, 2).eval()
    return Case(model, (torch.randn(1, 1, 80),), (torch.randn(2, 1, 130),))
