"""SAM's mask decoder for very many single points on one image: the same masks for a fraction of the work.

A prompt's few tokens (`t`) and the image's cells (`n`, of `c` channels) attend to each other. All prompts begin with
the same image K, and a layer changes it only by a sum over tokens and heads, so a prompt's image is at any time

    X = diag(d) K + Bᵀ M      d: n,  K: n c, the same for all prompts,  B: r n,  M: r c

LayerNorm keeps this form: centring and γ act on the channels, of K and M, and 1/σ on the cells, in d and B:

    σ² = ( d² |K|² + 2 d Σ_r B_r (M_r · K) + Σ_r B_r (M Mᵀ B)_r ) / c      with K and M centred

So attention to X needs products with K, most of them made once an image, and with B, never X itself. Rows of M are of
two kinds, in turn, beginning and ending with the first: a constant (a bias), and for each head and token `v O`, the
token's value `v` of `e` numbers times a matrix O that is the same for all prompts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm


@dataclass(frozen=True)
class _Shared:
    """What is the same for all prompts of an image at one place in the decoder."""

    image: Tensor  # n c: K
    constants: list[Tensor]  # c each
    maps: list[Tensor]  # h e c each: O

    def mixes(self, values: list[Tensor], prompts: int) -> Tensor:
        """M, `b r c`, of prompts with these values `b h t e`."""
        parts = []
        for index, constant in enumerate(self.constants):
            parts.append(constant.expand(prompts, 1, -1))
            if index < len(values):
                parts.append((values[index] @ self.maps[index]).flatten(1, 2))
        return torch.cat(parts, dim=1)

    def updated(self, attention: Any) -> _Shared:
        """After the image has attended to tokens and before the norm, with the channels centred."""
        constants = [*self.constants[:-1], self.constants[-1] + attention.out_proj.bias]
        maps = [*self.maps, _by_head(attention, attention.out_proj.weight.T)]
        return _Shared(_centred(self.image), [_centred(one) for one in constants], [_centred(one) for one in maps])

    def normed(self, norm: Any) -> _Shared:
        scaled = [one * norm.weight for one in self.constants]
        return _Shared(self.image * norm.weight, [*scaled, norm.bias], [one * norm.weight for one in self.maps])


class _Side:
    """The image as one linear layer of an attention shows it to all prompts, `h e n`."""

    def __init__(self, attention: Any, linear: Any, image: Tensor, places: Tensor | None = None) -> None:
        self.weight = _by_head(attention, linear.weight)
        self.image = self.weight @ image.T
        self.bias = _by_head(attention, linear.bias[:, None])
        self.places = self.bias if places is None else self.weight @ places.T + self.bias


@dataclass(frozen=True)
class _Changed:
    """The images of a batch of prompts."""

    scale: Tensor  # b 1 n: d
    rows: Tensor  # b r n: B
    values: list[Tensor]  # b h t e each

    def scores(self, vectors: Tensor, side: _Side, mixes: Tensor) -> Tensor:
        """Tokens' vectors `b h t e` · cells, `b h·t n`."""
        found = _to_cells(vectors, side.image) * self.scale + _to_cells(vectors, side.places)
        return found.baddbmm_((vectors @ side.weight).flatten(1, 2) @ mixes.mT, self.rows)

    def gathered(self, weights: Tensor, side: _Side, mixes: Tensor) -> Tensor:
        """Means of the cells' values, `b t h·e`, with weights `b h·t n` that sum to 1 over cells."""
        heads, prompts = len(side.weight), len(weights)
        by_head = (weights * self.scale).view(prompts, heads, -1, weights.shape[2]).transpose(0, 1)
        direct = (by_head.flatten(1, 2) @ side.image.mT).view(heads, prompts, -1, side.image.shape[1])
        through = ((weights @ self.rows.mT) @ mixes).unflatten(1, (heads, -1)) @ side.weight.mT
        return (direct.transpose(0, 1) + through + side.bias.mT).transpose(1, 2).flatten(2)

    def updated(self, weights: Tensor, values: Tensor) -> _Changed:
        """With Σ over heads and tokens of weights `b h·t n` × values `b h t e` × O added."""
        return _Changed(self.scale, torch.cat([self.rows, weights], dim=1), [*self.values, values])

    def normed(self, norm: _Norm) -> _Changed:
        mixes = norm.shared.mixes(self.values, len(self.rows))
        inner = (mixes @ mixes.mT) @ self.rows
        start = 0
        for index, constant in enumerate(norm.constants):
            inner[:, start] += 2 * self.scale[:, 0] * constant
            start += 1
            if index < len(self.values):
                crossed = _to_cells(self.values[index], norm.maps[index])
                inner[:, start : start + crossed.shape[1]].addcmul_(crossed, self.scale, value=2)
                start += crossed.shape[1]
        squares = self.scale.square() * norm.squares + inner.mul_(self.rows).sum(1, keepdim=True)
        # A sum of squares; rounding may leave it a little below 0.
        shrink = torch.rsqrt(squares.clamp_(min=0) / mixes.shape[2] + norm.eps)
        rows = torch.cat([self.rows * shrink, torch.ones_like(shrink)], dim=1)
        return _Changed(self.scale * shrink, rows, self.values)


class _Norm:
    """The shared part of a norm, before γ and β: |K|² and the products of K with the rows of M."""

    def __init__(self, shared: _Shared, eps: float) -> None:
        self.shared, self.eps = shared, eps
        self.squares = shared.image.square().sum(1)
        self.constants = [shared.image @ row for row in shared.constants]
        self.maps = [one @ shared.image.T for one in shared.maps]


class PointDecoder:
    """One image, ready for points; `sam` has transformers' prompt encoder and mask decoder."""

    def __init__(self, sam: Any, embedded: Tensor) -> None:
        self._prompts, self._decoder = sam.prompt_encoder, sam.mask_decoder
        self.grid = tuple(embedded.shape[2:])
        places = sam.get_image_wide_positional_embeddings()[0].flatten(1).T
        image = embedded[0].flatten(1).T + self._prompts.no_mask_embed.weight
        shared = _Shared(image, [torch.zeros_like(image[0])], [])
        self._layers = []
        for layer in self._decoder.transformer.layers:
            there, back = layer.cross_attn_token_to_image, layer.cross_attn_image_to_token
            keys, values = _Side(there, there.k_proj, shared.image, places), _Side(there, there.v_proj, shared.image)
            queries = _Side(back, back.q_proj, shared.image, places)
            norm = _Norm(shared.updated(back), layer.layer_norm4.eps)
            self._layers.append((layer, shared, keys, values, queries, norm))
            shared = norm.shared.normed(layer.layer_norm4)
        final = self._decoder.transformer.final_attn_token_to_image
        self._last = shared, _Side(final, final.k_proj, shared.image, places), _Side(final, final.v_proj, shared.image)
        # A transposed convolution of side and stride 2 is a linear layer to four pixels.
        self._to_pixels = self._decoder.upscale_conv1.weight.permute(0, 2, 3, 1).flatten(1)
        self._image_pixels = shared.image @ self._to_pixels

    def masks(self, points: Tensor, least_iou: float, rows: int | None = None) -> tuple[Tensor, Tensor]:
        """Of three masks for each point `p 2`, those with a good predicted IoU: logits `s h w`, IoUs `s`.

        With `rows`, only the first rows of cells are drawn: what lies below is of no use, if it is padding.
        """
        labels = torch.ones(1, len(points), 1, device=points.device)
        tokens = self._prompts(points[None, :, None], labels, None, None)[0][0]
        output = torch.cat([self._decoder.iou_token.weight, self._decoder.mask_tokens.weight])
        tokens, changed = self._attended(torch.cat([output.expand(len(points), -1, -1), tokens], dim=1))
        iou = self._decoder.iou_prediction_head(tokens[:, 0])[:, 1:]
        good = iou >= least_iou
        drawn = [
            self._drawn(tokens[i], changed, i, good[i].nonzero()[:, 0], rows or self.grid[0])
            for i in good.any(dim=1).nonzero()[:, 0].tolist()
        ]
        empty = iou.new_zeros(0, 4 * (rows or self.grid[0]), 4 * self.grid[1])
        return torch.cat([empty, *drawn]), iou[good]

    def _attended(self, first: Tensor) -> tuple[Tensor, _Changed]:
        """Tokens `b t c` → those that answer, of IoU and masks, after all attention, and the images."""
        cells = self._image_pixels.shape[0]
        changed = _Changed(first.new_ones(1, 1, cells), first.new_ones(len(first), 1, cells), [])
        tokens = first
        for layer, shared, keys, values, queries, norm in self._layers:
            asking = tokens if layer.skip_first_layer_pe else tokens + first
            found = layer.self_attn(asking[None], asking[None], tokens[None])[0][0]
            tokens = layer.layer_norm1(found if layer.skip_first_layer_pe else tokens + found)
            mixes = shared.mixes(changed.values, len(first))
            there, back = layer.cross_attn_token_to_image, layer.cross_attn_image_to_token
            tokens = layer.layer_norm2(tokens + _read(there, tokens + first, changed, keys, values, mixes))
            tokens = layer.layer_norm3(tokens + layer.mlp(tokens))
            offered = _heads(back, back.k_proj(tokens + first)) * back.scaling
            scores = changed.scores(offered, queries, mixes).view(len(first), len(queries.weight), -1, cells)
            weights = torch.softmax(scores, dim=2).flatten(1, 2)
            changed = changed.updated(weights, _heads(back, back.v_proj(tokens))).normed(norm)
        shared, keys, values = self._last
        mixes = shared.mixes(changed.values, len(first))
        final = self._decoder.transformer.final_attn_token_to_image
        answers = tokens[:, : 1 + self._decoder.num_mask_tokens]  # of the prompt's own tokens nothing more is asked
        read = _read(final, answers + first[:, : answers.shape[1]], changed, keys, values, mixes)
        return self._decoder.transformer.layer_norm_final_attn(answers + read), changed

    def _drawn(self, tokens: Tensor, changed: _Changed, prompt: int, chosen: Tensor, rows: int) -> Tensor:
        """Logits `s 4·rows 4·columns` of one prompt's chosen masks; pixels keep the order of cells till last."""
        decoder, columns = self._decoder, self.grid[1]
        cells = rows * columns
        scale = changed.scale[prompt, 0, :cells, None]
        mixes = self._last[0].mixes([one[prompt : prompt + 1] for one in changed.values], 1)[0]
        pixels = self._image_pixels[:cells] * scale
        pixels = pixels.addmm_(changed.rows[prompt, :, :cells].T, mixes @ self._to_pixels).view(cells * 4, -1)
        norm = decoder.upscale_layer_norm
        pixels = gelu(
            layer_norm(pixels + decoder.upscale_conv1.bias, norm.weight.shape, norm.weight, norm.bias, norm.eps)
        )
        second = decoder.upscale_conv2
        pixels = pixels @ second.weight.permute(0, 2, 3, 1).flatten(1) + second.bias.repeat(4)
        wanted = torch.stack([decoder.output_hypernetworks_mlps[1 + i](tokens[2 + i]) for i in chosen.tolist()])
        logits = gelu(pixels).view(cells * 16, -1) @ wanted.T
        nested = logits.T.view(len(wanted), rows, columns, 2, 2, 2, 2)
        return nested.permute(0, 1, 3, 5, 2, 4, 6).reshape(len(wanted), rows * 4, columns * 4)


def _read(attention: Any, asking: Tensor, changed: _Changed, keys: _Side, values: _Side, mixes: Tensor) -> Tensor:
    """What tokens `b t c` take from the image."""
    query = _heads(attention, attention.q_proj(asking)) * attention.scaling
    weights = torch.softmax(changed.scores(query, keys, mixes), dim=2)
    found: Tensor = attention.out_proj(changed.gathered(weights, values, mixes))
    return found


def _heads(attention: Any, x: Tensor) -> Tensor:
    """`b t h·e` → `b h t e`."""
    return x.unflatten(2, (attention.num_attention_heads, -1)).transpose(1, 2)


def _by_head(attention: Any, weight: Tensor) -> Tensor:
    """`h·e c` → `h e c`."""
    return weight.unflatten(0, (attention.num_attention_heads, -1))


def _to_cells(vectors: Tensor, side: Tensor) -> Tensor:
    """`b h t e` · `h e n` → `b h·t n`, the side read once for all prompts."""
    prompts, heads, count, _ = vectors.shape
    found = vectors.transpose(0, 1).flatten(1, 2) @ side
    return found.view(heads, prompts, count, -1).transpose(0, 1).reshape(prompts, heads * count, -1)


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)
