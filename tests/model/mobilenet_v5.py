"""MobileNet V5 in plain PyTorch, with timm's names of tensors: the oracle of Gemma 3n's tower.

`test_gemma3n_sees.py` compares it with timm itself where that is installed.
"""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional


class Norm(nn.Module):
    """RMS norm over the channels of a map."""

    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        mean = (x * x).mean(1, keepdim=True)
        return x * torch.rsqrt(mean + 1e-6) * self.weight[:, None, None]


class Convolution(nn.Conv2d):
    """A convolution whose output's side is ⌈side/stride⌉, more of its padding at the end."""

    def forward(self, x):
        (kernel, _), (stride, _) = self.kernel_size, self.stride
        pads = []
        for side in (x.shape[-1], x.shape[-2]):
            lacking = max((-(-side // stride) - 1) * stride + kernel - side, 0)
            pads += [lacking // 2, lacking - lacking // 2]
        return super().forward(functional.pad(x, pads))


class Normed(nn.Module):
    """A convolution, its norm, and GELU if asked."""

    def __init__(self, before, out, kernel=1, stride=1, act=True, bias=False, own=False):
        super().__init__()
        groups = before if own else 1
        self.conv = Convolution(before, out, kernel, stride, groups=groups, bias=bias)
        self.bn, self.act = Norm(out), act

    def forward(self, x):
        x = self.bn(self.conv(x))
        return functional.gelu(x, approximate="tanh") if self.act else x


class Scaled(nn.Module):
    """Gains of a branch."""

    def __init__(self, width):
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), 0.5))

    def forward(self, x):
        return x * self.gamma[:, None, None]


class Edge(nn.Module):
    """An edge residual."""

    def __init__(self, before, out, inner, kernel, stride):
        super().__init__()
        self.conv_exp = Convolution(before, inner, kernel, stride, bias=False)
        self.bn1, self.conv_pwl = Norm(inner), Convolution(inner, out, 1, bias=False)
        self.bn2, self.adds = Norm(out), stride == 1 and before == out

    def forward(self, x):
        y = functional.gelu(self.bn1(self.conv_exp(x)), approximate="tanh")
        y = self.bn2(self.conv_pwl(y))
        return x + y if self.adds else y


class Inverted(nn.Module):
    """A universal inverted bottleneck."""

    def __init__(self, before, out, inner, start, middle, stride, branch=True):
        super().__init__()
        first = 1 if middle else stride
        none = nn.Identity()
        own = {"own": True}
        self.dw_start = Normed(before, before, start, first, False, **own) if start else none
        self.pw_exp = Normed(before, inner)
        self.dw_mid = Normed(inner, inner, middle, stride, True, **own) if middle else none
        self.pw_proj = Normed(inner, out, act=False)
        self.layer_scale = Scaled(out) if branch else none
        self.adds = branch and stride == 1 and before == out

    def forward(self, x):
        y = self.layer_scale(self.pw_proj(self.dw_mid(self.pw_exp(self.dw_start(x)))))
        return x + y if self.adds else y


class Attention(nn.Module):
    """Multi-query attention, whose keys may be those of a map half as wide."""

    def __init__(self, width, heads, size, down):
        super().__init__()
        self.heads, self.size = heads, size
        self.norm, self.layer_scale = Norm(width), Scaled(width)

        def rows():
            parts = {}
            if down:
                parts["down_conv"] = Convolution(width, width, down, 2, groups=width, bias=False)
                parts["norm"] = Norm(width)
            parts["proj"] = Convolution(width, size, 1, bias=False)
            return nn.ModuleDict(parts)

        self.attn = nn.ModuleDict({
            "query": nn.ModuleDict({"proj": Convolution(width, heads * size, 1, bias=False)}),
            "key": rows(), "value": rows(),
            "output": nn.ModuleDict({"proj": Convolution(heads * size, width, 1, bias=False)}),
        })  # fmt: skip

    def forward(self, x):
        y = self.norm(x)
        count, _, down, across = y.shape
        parts = []
        for role in ("query", "key", "value"):
            rows = y
            for module in self.attn[role].values():
                rows = module(rows)
            parts.append(rows.reshape(count, -1, self.size, rows.shape[-1] * rows.shape[-2]))
        q, k, v = parts
        scores = torch.einsum("nhdq,nodk->nhqk", q, k) * self.size**-0.5
        y = torch.einsum("nhqk,nodk->nhdq", scores.softmax(-1), v)
        y = self.attn["output"]["proj"](y.reshape(count, -1, down, across))
        return x + self.layer_scale(y)


class Fusion(nn.Module):
    """The last two stages, the smaller one repeated, averaged to `side` pixels."""

    def __init__(self, before, out, side):
        super().__init__()
        self.ffn, self.norm = Inverted(before, out, 2 * before, 0, 0, 1, branch=False), Norm(out)
        self.side = side

    def forward(self, wide, small):
        small = small.repeat_interleave(2, -1).repeat_interleave(2, -2)
        x = self.ffn(torch.cat([wide, small], 1))
        return self.norm(functional.avg_pool2d(x, x.shape[-1] // self.side))


def block(before, kind, *sizes):
    """Return a block of a geometry, and its channels."""
    if kind == "mqa":
        return Attention(before, *sizes), before
    return {"er": Edge, "uir": Inverted}[kind](before, *sizes), sizes[0]


class MobileNetV5(nn.Module):
    """The tower, as transformers' model calls it."""

    def __init__(self, stem, stages, out, side):
        super().__init__()
        self.timm_model = nn.Module()
        self.timm_model.conv_stem = Normed(3, stem, 3, 2, bias=True)
        made, width, widths = [], stem, []
        for stage in stages:
            blocks = []
            for given in stage:
                one, width = block(width, *given)
                blocks.append(one)
            made.append(nn.Sequential(*blocks))
            widths.append(width)
        self.timm_model.blocks = nn.Sequential(*made)
        self.timm_model.msfa = Fusion(sum(widths[-2:]), out, side)

    def forward(self, pixel_values, **_):
        x, maps = self.timm_model.conv_stem(pixel_values), []
        for stage in self.timm_model.blocks:
            x = stage(x)
            maps.append(x)
        return SimpleNamespace(last_hidden_state=self.timm_model.msfa(*maps[-2:]))
