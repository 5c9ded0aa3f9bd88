"""The paper's external memory: slots that are written by slot attention and forget by biased normalization.

A slot is a vector of length 1. Tokens in a network of width D have a length of about sqrt(D), and would drown it: where
slots meet tokens they are scaled by sqrt(D), which is the paper's algebra on a sphere of that radius.
"""

# Shape letters: B batch, K slots, L tokens, D width, H heads

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from memformer_torch.nn.attention import merge_heads, split_heads


class Forgetting(nn.Module):
    """Biased Memory Normalization (section 3.4.3) and the initial memory, which is also the state of rest.

        m <- m + v_bias;  m <- m / |m|;  m_0 = v_bias / |v_bias|

    `add_bias=False` drops the first step, `normalize=False` the second (for ablations); `v_bias` always gives the start.
    """

    def __init__(
        self, num_slots: int, d_model: int, bias_length: float = 0.1, add_bias: bool = True, normalize: bool = True
    ) -> None:
        super().__init__()
        self.add_bias, self.normalize = add_bias, normalize
        self.bias = nn.Parameter(bias_length * F.normalize(torch.randn(num_slots, d_model), dim=-1))  # v_bias

    def initial(self) -> Tensor:
        return F.normalize(self.bias, dim=-1)  # (K, D)

    def forward(self, slots: Tensor) -> Tensor:
        """Slots (B, K, D), unscaled, as the attention left them."""
        if self.add_bias:
            slots = slots + self.bias
        return F.normalize(slots, dim=-1) if self.normalize else slots


class MemoryWriter(nn.Module):
    """Slot attention (section 3.4.1, equations 4 to 8), then forgetting.

    A slot attends to itself and to the tokens, never to another slot, with one softmax at temperature tau. Its own value
    is the slot as it is: one that attends to itself alone does not change. Time and memory are O(K L).
    """

    def __init__(self, d_model: int, num_heads: int, temperature: float) -> None:
        super().__init__()
        self.num_heads = num_heads
        self.d_model = d_model
        self.scale = (d_model // num_heads) ** -0.5 / temperature
        self.query_key_value = nn.Linear(d_model, 3 * d_model, bias=False)  # W_Q, W_K, W_V: one set for slots and tokens

    def forward(self, slots: Tensor, tokens: Tensor, mask: Tensor | None = None) -> Tensor:
        """What each slot takes: slots (B, K, D), scaled; tokens (B, L, D); mask bool (B, 1, 1, L), True where real."""
        weight = self.query_key_value.weight
        query, slot_key = self._project(slots, weight[: 2 * self.d_model])  # eq. 4
        key, value = self._project(tokens, weight[self.d_model :])  # eq. 5

        # Beside the tokens' keys and values, which all slots share, each slot has its own. One more channel lets a fused
        # kernel do that: it carries the slot's score with itself to one more key, and that key's weight back out.
        own_score = (query * slot_key).sum(-1, keepdim=True)  # (B, H, K, 1)
        own = F.pad(key.new_ones(1), (key.shape[-1], 0)).expand(*key.shape[:2], 1, -1)
        query = torch.cat([query, own_score], dim=-1)
        del slot_key, own_score  # many slots: at inference their memory is the peak's
        key = torch.cat([F.pad(key, (0, 1)), own], dim=2)
        value = torch.cat([F.pad(value, (0, 1)), own], dim=2)
        if mask is not None:
            mask = F.pad(mask, (0, 1), value=True)
        taken = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=self.scale)  # eq. 6, 7
        del query
        from_tokens, own_weight = taken[..., :-1], taken[..., -1:]
        return merge_heads(torch.addcmul(from_tokens, own_weight, split_heads(slots, self.num_heads)))  # eq. 8

    def _project(self, x: Tensor, weight: Tensor) -> list[Tensor]:
        return [split_heads(part, self.num_heads) for part in F.linear(x, weight).chunk(2, dim=-1)]
