"""Idioms: layers, normalisations, activations, and parameters that `forward` uses itself."""

from __future__ import annotations

from .programs import Draft, idiom

ACTIVATIONS = (
    *("F.relu({})", "F.relu({})", "torch.sigmoid({})", "F.gelu({})", "torch.tanh({})", "F.silu({})", "F.hardswish({})"),
    *("F.leaky_relu({}, 0.1)", "F.elu({})", "F.softplus({})", "{}.clamp(-1, 2)", "F.relu6({})", "{}.abs()", "-{}"),
    *("{} * 0.5 + 1", "F.dropout({}, 0.1, self.training)", "F.mish({})", "torch.where({0} > 0, {0}, 0.1 * {0})"),
    *("{0}.masked_fill({0} < -1, -1.0)", "{0} * torch.sigmoid({0})"),
    *("F.hardsigmoid({})", "F.hardtanh({})", "F.celu({})", "{}.square() * 0.3", "torch.relu({}) ** 2"),
)


def width(d: Draft) -> int:
    """A number of channels."""
    return d.pick(4, 6, 6, 8, 8, 12, 5)


def act(d: Draft, value: str) -> str:
    """Some activation of an expression."""
    return d.pick(*ACTIVATIONS).format(value)


def ones(d: Draft, x: str) -> str:
    """`view` arguments of one number per channel."""
    return ", ".join(["1", "-1", *["1"] * d.space(x)])


def pointwise(d: Draft, c: int, out: int, n: int) -> str:
    """A 1x1 convolution."""
    return d.add(f"nn.Conv{n}d({c}, {out}, 1{d.pick('', ', bias=False')})")


@idiom(10)
def conv(d: Draft, x: str) -> str:
    n, c, out = d.space(x), d.shape(x)[1], width(d)
    more = d.pick("padding=1", "padding=1", "padding=1, bias=False", "padding=2, dilation=2", "padding='same'", "")
    more = d.pick(more, more, more, "padding=1, padding_mode='reflect'", "padding=1, stride=2")
    return d.call(f"nn.Conv{n}d({c}, {out}, {d.pick(3, 3, 3, 1)}, {more})", x)


@idiom(3)
def conv_norm_act(d: Draft, x: str) -> str:
    n, c, out = d.space(x), d.shape(x)[1], width(d)
    inplace = d.pick("", "inplace=True")
    parts = f"nn.Conv{n}d({c}, {out}, 3, padding=1, bias=False), nn.BatchNorm{n}d({out}), nn.ReLU({inplace})"
    return d.call(f"nn.Sequential({parts})", x)


@idiom(2)
def grouped(d: Draft, x: str) -> str:
    n, c, g = d.space(x), d.shape(x)[1], d.pick(2, 2, 3, 4)
    kind = d.pick("Conv", "Conv", "ConvTranspose")
    return d.call(f"nn.{kind}{n}d({c}, {g * d.pick(1, 2, 3)}, 3, padding=1, groups={g})", x)


@idiom(3)
def depthwise(d: Draft, x: str) -> str:
    n, c = d.space(x), d.shape(x)[1]
    kind = d.pick("Conv", "Conv", "Conv", "ConvTranspose")
    return d.call(f"nn.{kind}{n}d({c}, {c * d.pick(1, 1, 1, 2)}, 3, padding=1, groups={c})", x)


@idiom(2)
def transposed(d: Draft, x: str) -> str:
    n, c = d.space(x), d.shape(x)[1]
    more = d.pick("3, padding=1", "2, stride=2", "4, stride=2, padding=1", "3, stride=2, padding=1, output_padding=1")
    return d.call(f"nn.ConvTranspose{n}d({c}, {width(d)}, {more})", x)


@idiom(2)
def linear_last(d: Draft, x: str) -> str:
    return d.call(f"nn.Linear({d.shape(x)[1]}, {width(d)})", f"{x}.movedim(1, -1)") + ".movedim(-1, 1)"


@idiom(2)
def raw_conv(d: Draft, x: str) -> str:
    n, c, out = d.space(x), d.shape(x)[1], width(d)
    w = d.add(f"0.3 * torch.randn({out}, {c}{', 3' * n})", "nn.Parameter")
    if d.pick(True, False):
        gain = d.add(f"torch.ones({out})", "nn.Parameter")
        w = f"{w} * {gain}.view(-1, 1{', 1' * n})"
    bias = d.pick("None", d.add(f"torch.ones({out})", "nn.Parameter"))
    return f"F.conv{n}d({x}, {w}, {bias}, padding=1)"


@idiom()
def raw_product(d: Draft, x: str) -> str:
    c, out = d.shape(x)[1], width(d)
    rest = "hwd"[: d.space(x)]
    w = d.add(f"0.3 * torch.randn({out}, {c})", "nn.Parameter")
    sizes = f"{x}.shape[0], -1, *{x}.shape[2:]"
    return d.pick(
        f"torch.einsum('bc{rest},oc->bo{rest}', {x}, {w})",
        f"({w} @ {x}.flatten(2)).view({sizes})",
        f"torch.matmul({x}.movedim(1, -1), {w}.t()).movedim(-1, 1)",
        f"F.linear({x}.transpose(1, -1), {w}).transpose(1, -1)",
        f"torch.tensordot({x}, {w}, dims=([1], [1])).movedim(-1, 1)",
    )


@idiom()
def computed_weight(d: Draft, x: str) -> str:
    n, c, out = d.space(x), d.shape(x)[1], width(d)
    a = d.add(f"nn.Conv{n}d({c}, {out}, 3, padding=1)")
    b = d.add(f"nn.Conv{n}d({c}, {out}, 1)")
    w = d.pick(
        f"{a}.weight + F.pad({b}.weight, [1, 1] * {n})",
        f"{a}.weight * torch.sigmoid({b}.weight)",
        f"({a}.weight - {a}.weight.mean(0, keepdim=True))",
        f"({a}.weight + {a}.weight.flip(-1)) / 2",
        f"{a}.weight * (1.0 / math.sqrt({a}.weight[0].numel()))",
    )
    return f"F.conv{n}d({x}, {w}, {a}.bias, padding=1)"


@idiom()
def parametrized(d: Draft, x: str) -> str:
    n, c = d.space(x), d.shape(x)[1]
    return d.call(f"nn.utils.parametrizations.weight_norm(nn.Conv{n}d({c}, {width(d)}, 3, padding=1))", x)


@idiom(6)
def activation(d: Draft, x: str) -> str:
    return act(d, x)


@idiom()
def prelu(d: Draft, x: str) -> str:
    return d.call(f"nn.PReLU({d.pick(d.shape(x)[1], 1)})", x)


@idiom(3)
def batch_norm(d: Draft, x: str) -> str:
    n, c = d.space(x), d.shape(x)[1]
    more = d.pick("", "", ", affine=False", ", track_running_stats=False")
    return d.call(f"nn.BatchNorm{n}d({c}{more})", x)


@idiom(2)
def other_norm(d: Draft, x: str) -> str:
    n, c = d.space(x), d.shape(x)[1]
    shape = list(d.shape(x)[1:])
    groups = d.pick(*[g for g in (1, 2, 3, 4, c) if c % g == 0])
    return d.pick(
        *[d.call(f"nn.InstanceNorm{n}d({c}, affine={d.pick(True, False)})", x)] * 2,
        *[d.call(f"nn.GroupNorm({groups}, {c})", x)] * 2,
        d.call(f"nn.LayerNorm({c})", f"{x}.movedim(1, -1)") + ".movedim(-1, 1)",
        d.call(f"nn.RMSNorm({c})", f"{x}.movedim(1, -1)") + ".movedim(-1, 1)",
        d.call(f"nn.LayerNorm({shape})", x),
        f"F.normalize({x}, dim=1)",
        f"F.layer_norm({x}, {x}.shape[1:])",
        f"({x} - {x}.mean(1, keepdim=True)) / ({x}.std(1, keepdim=True) + 1)",
        f"({x} - {x}.mean((-1, -2), keepdim=True)) * torch.rsqrt({x}.var((-1, -2), keepdim=True) + 1)",
        f"F.local_response_norm({x}, 3)",
    )


@idiom(2)
def scale(d: Draft, x: str) -> str:
    c, kind = d.shape(x)[1], d.pick("nn.Parameter", "nn.Parameter", "buffer")
    g = d.add(f"torch.ones({c})", kind)
    wide = f"{g}.view({ones(d, x)})"
    return d.pick(
        f"{x} * {wide}", f"{x} + {wide}", f"torch.addcmul({x}, {x}, {wide})", f"{x} * {g}.exp().view_as({wide})"
    )


@idiom()
def position_embedding(d: Draft, x: str) -> str:
    shape = list(d.shape(x)[1:])
    own = d.add(f"torch.randn(1, *{shape})", d.pick("nn.Parameter", "buffer"))
    return f"{x} + {own}"


@idiom(2)
def pool(d: Draft, x: str) -> str:
    n = d.space(x)
    return d.pick(
        f"F.max_pool{n}d({x}, 2)",
        f"F.avg_pool{n}d({x}, 3, 1, 1)",
        f"F.max_pool{n}d({x}, 3, 1, 1)",
        f"F.adaptive_avg_pool{n}d({x}, 4)",
        f"F.adaptive_max_pool{n}d({x}, 3)",
        f"F.interpolate({x}, scale_factor=2.0)",
        f"F.interpolate({x}, size={[5] * n}, mode='{['linear', 'bilinear', 'trilinear'][n - 1]}')",
        f"F.pad({x}, [1, 1] * {n}, mode='{d.pick('reflect', 'replicate', 'circular', 'constant')}')",
        f"F.lp_pool{n}d({x}, 2, 2)",
        f"{x}.repeat_interleave(2, -1)",
        f"{x}.flip(-1)",
        f"torch.roll({x}, 1, -1)",
        f"{x}.cumsum(-1) / {x}.shape[-1]",
        f"{x}[..., 1:]",
        f"{x}[..., ::2]",
        f"F.softmax({x}.flatten(2), -1).view_as({x}) * 9",
        f"F.max_unpool2d(*F.max_pool2d({x}, 2, return_indices=True), 2)",
        f"F.grid_sample({x}, torch.ones({x}.shape[0], 4, 4, 2, dtype={x}.dtype) * 0.3, align_corners=False)",
    )


@idiom()
def blur(d: Draft, x: str) -> str:
    d.need(None, d.space(x) == 2)
    k = d.add("torch.tensor([[1.0, 2, 1], [2, 4, 2], [1, 2, 1]]).view(1, 1, 3, 3) / 16", "buffer")
    spread = d.pick(f"{k}.expand({x}.shape[1], -1, -1, -1)", f"{k}.repeat({x}.shape[1], 1, 1, 1)")
    return f"F.conv2d({x}, {spread}, padding=1, groups={x}.shape[1])"


@idiom()
def dtype_change(d: Draft, x: str) -> str:
    return d.pick(
        f"{act(d, f'{x}.float()')}.to({x}.dtype)",
        f"{x}.double().tanh().type_as({x})",
        f"{x}.to(torch.get_default_dtype())",
    )
