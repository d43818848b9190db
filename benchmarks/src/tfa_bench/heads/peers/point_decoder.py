"""SAM's mask decoder for very many single points on one image: the same masks for a fraction of the work.

A prompt's few tokens (`t`) and the image's cells (`n`, of `c` channels) attend to each other. All prompts begin with
the same image K, and a layer changes it only by a sum over tokens and heads, so a prompt's image is at any time

    X = diag(d) K + Bᵀ M + β      d: n,  K: n c and β: c, the same for all prompts,  B: r n,  M: r c

A layer adds to B, for each head, the shares `A` that cells give to the tokens, and to M the tokens' values `v` of `e`
numbers times a matrix O that is the same for all prompts. Shares sum to 1, so the last token needs no row of its own:

    Σ_t A_t v_t O = Σ_{t<last} A_t (v_t − v_last) O + v_last O      (the last term joins β in one row, of ones)

LayerNorm keeps this form: centring and γ act on the channels, of K and M, and 1/σ on the cells, in d and B:

    σ² = ( d² |K|² + 2 d Σ_r B_r (M_r · K) + Σ_r B_r (M Mᵀ B)_r ) / c      with K and M centred

So attention to X needs products with K, most of them made once an image, and with B, never X itself. What is the same
for all cells does not change a softmax over them: biases and β play no part there. Tokens of a batch of prompts go
together through the layers; the images, larger than the processor's caches, one by one, in memory that is used again.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True)
class _Shared:
    """What is the same for all prompts of an image at one place in the decoder."""

    image: Tensor  # n c: K
    maps: list[Tensor]  # h e c of each update so far: O
    offsets: list[Tensor]  # c: what an update's row of ones has besides v_last O
    beta: Tensor  # c

    def updated(self, attention: Any) -> _Shared:
        """After the image has attended to tokens and before the norm, with the channels centred."""
        maps = [*self.maps, _by_head(attention, attention.out_proj.weight.T)]
        offsets = [*self.offsets, self.beta + attention.out_proj.bias]
        return _Shared(
            _centred(self.image), [_centred(one) for one in maps], [_centred(one) for one in offsets], self.beta * 0
        )

    def normed(self, norm: Any) -> _Shared:
        maps, offsets = ([one * norm.weight for one in some] for some in (self.maps, self.offsets))
        return _Shared(self.image * norm.weight, maps, offsets, norm.bias)


class _Side:
    """The image as one linear layer of an attention shows it to all prompts, `h e n`."""

    def __init__(self, attention: Any, linear: Any, shared: _Shared, places: Tensor | None = None) -> None:
        self.weight = _by_head(attention, linear.weight)
        self.image = self.weight @ shared.image.T
        self.bias = self.weight @ shared.beta[:, None] + _by_head(attention, linear.bias[:, None])
        self.places = self.bias if places is None else self.weight @ places.T + self.bias
        # Till the first update all images are K, and both parts are one product.
        self.whole = None if shared.maps else self.image + self.places


class _Norm:
    """The shared part of a norm, before γ and β: |K|² and the products of K with the rows of M."""

    def __init__(self, shared: _Shared, norm: Any) -> None:
        self.shared, self.weight, self.eps = shared, norm.weight, norm.eps
        self.squares = shared.image.square().sum(1)
        self.maps = [one @ shared.image.T for one in shared.maps]
        self.offsets = [shared.image @ one for one in shared.offsets]


@dataclass
class Changed:
    """The image of one prompt; rows of B that no update has set yet are ones."""

    scale: Tensor  # n: d
    rows: Tensor  # R n: B
    scratch: Tensor  # h·t n, twice: fresh memory costs more than what is computed in it
    mixes: Tensor  # r c: M
    values: list[Tensor] = field(default_factory=list)  # h t e each

    @property
    def used(self) -> Tensor:
        """Rows of B that updates have set, `r n`."""
        return self.rows[: len(self.mixes)]

    def scores(self, vectors: Tensor, side: _Side) -> Tensor:
        """Tokens' vectors `h t e` · cells, `h t n`."""
        found = self._room(0, vectors.shape[:2])
        if side.whole is not None:
            return torch.bmm(vectors, side.whole, out=found)
        torch.bmm(vectors, side.image, out=found).mul_(self.scale).baddbmm_(vectors, side.places)
        found.flatten(0, 1).addmm_((vectors @ side.weight).flatten(0, 1) @ self.mixes.T, self.used)
        return found

    def softmax(self, scores: Tensor, dim: int) -> Tensor:
        """Of scores `h t n`, which are used up."""
        return torch.softmax(scores, dim, out=self._room(1, scores.shape[:2]))

    def gathered(self, weights: Tensor, side: _Side) -> Tensor:
        """Means of the cells' values, `t h·e`, with weights `h t n` that sum to 1 over cells; they are used up."""
        if side.whole is not None:
            return (weights @ side.whole.mT).transpose(0, 1).flatten(1)
        through = (weights.flatten(0, 1) @ self.used.T) @ self.mixes
        direct = weights.mul_(self.scale) @ side.image.mT
        found = through.unflatten(0, weights.shape[:2]) @ side.weight.mT + direct + side.bias.mT
        return found.transpose(0, 1).flatten(1)

    def update(self, weights: Tensor, values: Tensor, norm: _Norm) -> None:
        """Σ over heads and tokens of weights `h t n` × values `h t e` × O is added, and the sum normed."""
        heads, tokens, cells = weights.shape
        values = torch.cat([values[:, :-1] - values[:, -1:], values[:, -1:]], dim=1)
        self.values.append(values)
        mixed = values @ norm.shared.maps[-1]
        ones = mixed[:, -1].sum(0, keepdim=True) + norm.shared.offsets[-1]
        start = len(self.mixes)
        self.mixes = torch.cat([_centred(self.mixes), mixed[:, :-1].flatten(0, 1), ones])
        self.used[start:-1].view(heads, tokens - 1, cells).copy_(weights[:, :-1])
        shrink = self._shrink(norm)
        self.used.mul_(shrink)
        self.scale.mul_(shrink)
        self.mixes *= norm.weight

    def _room(self, which: int, shape: Sequence[int]) -> Tensor:
        return self.scratch[which][: math.prod(shape)].view(*shape, -1)

    def _shrink(self, norm: _Norm) -> Tensor:
        """1/σ of each cell, `n`."""
        products = self.mixes @ self.mixes.T
        squares = self.scale.square() * norm.squares
        start = 0
        for values, map_, offset in zip(self.values, norm.maps, norm.offsets, strict=True):
            stop = start + values.shape[0] * (values.shape[1] - 1) + 1
            # M Mᵀ is symmetric: products with later rows count twice, those with earlier ones are counted there.
            products[start:stop, stop:] *= 2
            inner = torch.mm(products[start:stop, start:], self.used[start:], out=self._room(0, (stop - start,)))
            crossed = torch.bmm(values, map_, out=self._room(1, values.shape[:2]))
            inner[:-1].view_as(crossed[:, :-1]).addcmul_(crossed[:, :-1], self.scale, value=2)
            inner[-1].addcmul_(crossed[:, -1].sum(0).add_(offset), self.scale, value=2)
            squares += inner.mul_(self.used[start:stop]).sum(0)
            start = stop
        # A sum of squares; rounding may leave it a little below 0.
        return torch.rsqrt(squares.clamp_(min=0).div_(self.mixes.shape[1]).add_(norm.eps))


class PointDecoder:
    """One image, ready for points; `sam` has transformers' prompt encoder and mask decoder."""

    def __init__(self, sam: Any, embedded: Tensor) -> None:
        self._prompts, self._decoder = sam.prompt_encoder, sam.mask_decoder
        self.grid = tuple(embedded.shape[2:])
        places = sam.get_image_wide_positional_embeddings()[0].flatten(1).T
        image = embedded[0].flatten(1).T + self._prompts.no_mask_embed.weight
        shared = _Shared(image, [], [], torch.zeros_like(image[0]))
        self._layers = []
        for layer in self._decoder.transformer.layers:
            there, back = layer.cross_attn_token_to_image, layer.cross_attn_image_to_token
            keys, values = _Side(there, there.k_proj, shared, places), _Side(there, there.v_proj, shared)
            queries = _Side(back, back.q_proj, shared, places)
            norm = _Norm(shared.updated(back), layer.layer_norm4)
            self._layers.append((layer, keys, values, queries, norm))
            shared = norm.shared.normed(layer.layer_norm4)
        final = self._decoder.transformer.final_attn_token_to_image
        self.shared = shared
        self._last = _Side(final, final.k_proj, shared, places), _Side(final, final.v_proj, shared)
        self._memory: Tensor | None = None

    def answers(self, points: Tensor) -> tuple[Tensor, Tensor, list[Changed]]:
        """For points `p 2`: IoUs `p 3` that three masks are predicted to have, what draws them `p 3 c/8`, images.

        The images lie in memory that the next points are given again.
        """
        decoder = self._decoder
        labels = torch.ones(1, len(points), 1, device=points.device)
        tokens = self._prompts(points[None, :, None], labels, None, None)[0][0]
        output = torch.cat([decoder.iou_token.weight, decoder.mask_tokens.weight])
        tokens, images = self._attended(torch.cat([output.expand(len(points), -1, -1), tokens], dim=1))
        iou = decoder.iou_prediction_head(tokens[:, 0])[:, 1:]
        wanted = [decoder.output_hypernetworks_mlps[i](tokens[:, 1 + i]) for i in range(1, decoder.num_mask_tokens)]
        return iou, torch.stack(wanted, dim=1), images

    def _attended(self, first: Tensor) -> tuple[Tensor, list[Changed]]:
        """Tokens `b t c` → those that answer, of IoU and masks, after all attention, and the images."""
        images = self._begun(*first.shape[:2])
        tokens = first
        for layer, keys, values, queries, norm in self._layers:
            asking = tokens if layer.skip_first_layer_pe else tokens + first
            found = layer.self_attn(asking[None], asking[None], tokens[None])[0][0]
            tokens = layer.layer_norm1(found if layer.skip_first_layer_pe else tokens + found)
            there, back = layer.cross_attn_token_to_image, layer.cross_attn_image_to_token
            tokens = layer.layer_norm2(tokens + _read(there, tokens + first, images, keys, values))
            tokens = layer.layer_norm3(tokens + layer.mlp(tokens))
            offered = _heads(back, back.k_proj(tokens + first)) * back.scaling
            given = _heads(back, back.v_proj(tokens))
            for index, image in enumerate(images):
                shares = image.softmax(image.scores(offered[index], queries), 1)
                image.update(shares, given[index], norm)
        final = self._decoder.transformer.final_attn_token_to_image
        answers = tokens[:, : 1 + self._decoder.num_mask_tokens]  # of the prompt's own tokens nothing more is asked
        read = _read(final, answers + first[:, : answers.shape[1]], images, *self._last)
        return self._decoder.transformer.layer_norm_final_attn(answers + read), images

    def _begun(self, prompts: int, tokens: int) -> list[Changed]:
        """Images that no token has changed yet."""
        heads = [layer.cross_attn_image_to_token.num_attention_heads for layer, *_ in self._layers]
        rows = sum(count * (tokens - 1) + 1 for count in heads) + 1  # the last stays ones
        cells = self.grid[0] * self.grid[1]
        if self._memory is None or len(self._memory) < prompts:
            self._memory = self.shared.image.new_empty(prompts, 1 + rows, cells)
            self._scratch = self.shared.image.new_empty(2, max(heads) * tokens, cells)
        self._memory.fill_(1)
        none = self.shared.image[:0]
        return [Changed(memory[0], memory[1:], self._scratch, none) for memory in self._memory[:prompts]]


def _read(attention: Any, asking: Tensor, images: list[Changed], keys: _Side, values: _Side) -> Tensor:
    """What tokens `b t c` take from the images."""
    query = _heads(attention, attention.q_proj(asking)) * attention.scaling
    found = []
    for one, image in zip(query, images, strict=True):
        weights = image.softmax(image.scores(one, keys), 2)
        found.append(image.gathered(weights, values))
    projected: Tensor = attention.out_proj(torch.stack(found))
    return projected


def _heads(attention: Any, x: Tensor) -> Tensor:
    """`b t h·e` → `b h t e`."""
    return x.unflatten(2, (attention.num_attention_heads, -1)).transpose(1, 2)


def _by_head(attention: Any, weight: Tensor) -> Tensor:
    """`h·e c` → `h e c`."""
    return weight.unflatten(0, (attention.num_attention_heads, -1))


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)
