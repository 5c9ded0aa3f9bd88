"""Compression of old memories, c to 1, and the losses that train it (Rae et al., 2020, section 3).

All functions take the memories of all layers at once. Rows of a batch may have different numbers of groups to compress:
groups (B,) says how many of the first are real.
"""

# Shape letters: B batch, Y layers, E old memories (E = G c), G groups, T tokens, D width

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from memformer_torch.nn.relative_attention import RelativeLayer


class LayerwiseLinear(nn.Module):
    """One linear map a layer, of (B, Y, G, d_in) to (B, Y, G, d_out); on groups of c memories, a convolution of stride c."""

    def __init__(self, num_layers: int, d_in: int, d_out: int) -> None:
        super().__init__()
        bound = d_in**-0.5  # as nn.Linear
        self.weight = nn.Parameter(torch.empty(num_layers, d_in, d_out).uniform_(-bound, bound))
        self.bias = nn.Parameter(torch.empty(num_layers, 1, d_out).uniform_(-bound, bound))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bygi,yio->bygo", x, self.weight) + self.bias


class Compression(nn.Module):
    """f_c: old memories (B, Y, E, D) to compressed ones (B, Y, G, D), by "convolution", "mean" or "max"."""

    def __init__(self, kind: str, num_layers: int, d_model: int, ratio: int) -> None:
        super().__init__()
        self.kind, self.ratio = kind, ratio
        if kind == "convolution":
            self.convolution = LayerwiseLinear(num_layers, ratio * d_model, d_model)

    def forward(self, old: Tensor) -> Tensor:
        grouped = old.unflatten(2, (-1, self.ratio))  # (B, Y, G, c, D)
        if self.kind == "convolution":
            return self.convolution(grouped.flatten(3))
        return grouped.mean(3) if self.kind == "mean" else grouped.amax(3)


def most_attended(old: Tensor, usage: Tensor, groups: Tensor, ratio: int) -> Tensor:
    """Of each row's old memories (B, Y, E, D) the share 1/c with the highest usage (B, Y, E), in their old order."""
    num_old = old.shape[2]
    position = torch.arange(num_old, device=old.device)
    usage = usage.masked_fill(position >= ratio * groups[:, None, None], -1)  # what is not old yet in this row
    rank = usage.argsort(dim=2, descending=True, stable=True).argsort(dim=2)
    kept = torch.where(rank < groups[:, None, None], position, num_old - 1).sort(dim=2).values[:, :, : num_old // ratio]
    return old.take_along_dim(kept[..., None], dim=2)


def attention_reconstruction(
    layers: Sequence[RelativeLayer], inputs: Sequence[Tensor], real: Tensor, old: Tensor, compressed: Tensor, groups: Tensor
) -> Tensor:
    """What attention loses when it sees compressed memories in place of the old: the sum over layers of

        mean (attn(h, old) - attn(h, compressed))^2     (Algorithm 2)

    over tokens and width. Only `compressed` is differentiated: hidden states, old memories and the layers' weights are not.
    Inputs of the layers, each (B, T, D); real bool (B, T): the tokens that are no padding.
    """
    counted = (real & (groups > 0)[:, None]).to(old.dtype)
    share = (counted / (counted.sum() * old.shape[-1]))[..., None]  # of the mean, (B, T, 1)
    old_mask, new_mask = None, None
    if bool((groups < compressed.shape[2]).any()):
        # a row without groups sees one all the same and does not count: to see nothing is NaN in some kernels
        seen = torch.arange(compressed.shape[2], device=old.device) < groups.clamp(min=1)[:, None]
        new_mask = seen[:, None, None]  # (B, 1, 1, G)
        old_mask = new_mask.repeat_interleave(old.shape[2] // compressed.shape[2], dim=3)

    loss = old.new_zeros(())
    for index, (layer, x) in enumerate(zip(layers, inputs, strict=True)):
        with torch.no_grad():
            wanted = layer.content_attention(x, old[:, index], old_mask)
        given = layer.content_attention(x.detach(), compressed[:, index], new_mask)
        loss = loss + ((wanted - given).square() * share).sum()
    return loss


def autoencoding_reconstruction(decoder: LayerwiseLinear, old: Tensor, compressed: Tensor, groups: Tensor) -> Tensor:
    """The sum over layers of the mean (old - decoder(compressed))^2 over memories and width."""
    error = decoder(compressed) - old.unflatten(2, (compressed.shape[2], -1)).flatten(3)  # (B, Y, G, c D)
    counted = torch.arange(error.shape[2], device=old.device) < groups[:, None]
    return (error.square() * counted[:, None, :, None]).sum() / (groups.sum() * error.shape[3])
